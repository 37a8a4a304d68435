"""The passes that place buffers: what shares bytes, what must not, and what is said when a scope is too small."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import BufferOp, RingOp
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.loop.plan_report import plan_report
from penstock.runtime.compiler import attach_machine
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify

MACHINE = """
machine.target @small frequency 100 {
  machine.scope @spad size 256 granule 16 dtypes [f32]
  machine.scope @acc size 128 granule 32 dtypes [f32]
}
"""

SPAD = 'memref<16xf32, "spad">'
"""64 bytes."""


def after(text: str, pipeline: str) -> ModuleOp:
    ctx = make_context()
    module = parse_text(ctx, SourceText("test.mlir", text)).module
    verify(module)
    run_passes(ctx, module, read_pipeline(pipeline))
    return module


def offsets(module: ModuleOp) -> dict[str, int | None]:
    """The offset of each buffer, by its name."""
    return {op.memref.name_hint or "?": op.byte_offset for op in module.walk() if isinstance(op, BufferOp)}


def spad_kernel(body: str) -> str:
    return f"""{MACHINE}
func.func private @kernel(%x: memref<16xf32>, %y: memref<16xf32>, %n: index) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  {body}
  func.return
}}
"""


def new(name: str, type: str = SPAD) -> str:
    return f"%{name} = mem.buffer : {type}\n"


def copy(source: str, dest: str) -> str:
    """A copy between two of @kernel's buffers; %x and %y are off chip."""
    types = ["memref<16xf32>" if name in "xy" else SPAD for name in (source, dest)]
    return f"mem.copy %{source} to %{dest} : {types[0]} to {types[1]}\n"


# scopes


def test_buffers_that_are_never_alive_together_share_bytes() -> None:
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + new("c") + copy("b", "c") + copy("c", "y")
    assert offsets(after(spad_kernel(body), "plan-scopes")) == {"a": 0, "b": 64, "c": 0}


def test_a_copy_does_not_read_and_write_the_same_bytes() -> None:
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + copy("b", "y")
    assert offsets(after(spad_kernel(body), "plan-scopes")) == {"a": 0, "b": 64}


def test_a_buffer_from_outside_a_loop_is_alive_throughout_it() -> None:
    body = f"""{new("a")}
  scf.for %i = %c0 to %n step %c1 {{
    {copy("x", "a")} {copy("a", "y")}
    {new("b")} {copy("x", "b")} {copy("b", "y")}
    {new("c")} {copy("x", "c")} {copy("c", "y")}
  }}
  {new("d")} {copy("x", "d")} {copy("d", "y")}"""
    found = offsets(after(spad_kernel(body), "plan-scopes"))
    assert found["a"] not in (found["b"], found["c"])
    assert found["b"] == found["c"]
    assert found["d"] == 0


def test_a_buffer_is_alive_as_long_as_a_view_of_it_is_used() -> None:
    half = 'memref<8xf32, strided<[1], offset: 8>, "spad">'
    body = f"""{new("a")} {copy("x", "a")}
  %v = memref.subview %a[8] [8] [1] : {SPAD} to {half}
  %w = memref.expand_shape %v [[0, 1]] output_shape [2, 4] :
    {half} into memref<2x4xf32, strided<[4, 1], offset: 8>, "spad">
  {new("b")} {copy("x", "b")} {copy("b", "y")}
  %k = memref.load %w[%c0, %c1] : memref<2x4xf32, strided<[4, 1], offset: 8>, "spad">"""
    assert offsets(after(spad_kernel(body), "plan-scopes")) == {"a": 0, "b": 64}


def test_a_view_that_is_taken_but_not_used_keeps_nothing_alive() -> None:
    body = f"""{new("a")} {copy("x", "a")} {copy("a", "y")}
  {new("b")} {copy("x", "b")} {copy("b", "y")}
  %v = memref.subview %a[8] [8] [1] : {SPAD} to memref<8xf32, strided<[1], offset: 8>, "spad">"""
    assert offsets(after(spad_kernel(body), "plan-scopes")) == {"a": 0, "b": 0}


def test_a_buffer_used_in_one_branch_is_alive_there_only() -> None:
    body = f"""{new("a")} {new("b")}
  %p = arith.cmpi eq, %n, %c0 : index
  scf.if %p {{
    {copy("x", "a")} {copy("a", "y")}
  }} else {{
    {copy("x", "b")} {copy("b", "y")}
  }}"""
    assert offsets(after(spad_kernel(body), "plan-scopes")) == {"a": 0, "b": 0}


def test_a_buffer_that_a_loop_carries_is_alive_throughout_it() -> None:
    body = f"""{new("a")} {new("b")} {copy("x", "a")}
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%m = %a) -> ({SPAD}) {{
    {copy("m", "y")}
    scf.yield %m : {SPAD}
  }}
  {copy("x", "b")} {copy("b", "y")}
  {copy("r", "y")}"""
    found = offsets(after(spad_kernel(body), "plan-scopes"))
    assert found["a"] != found["b"]


def test_every_scope_is_planned_by_itself_and_on_its_granule() -> None:
    body = """
  %a = mem.buffer : memref<5xf32, "spad">
  %b = mem.buffer : memref<5xf32, "spad">
  %p = mem.buffer : memref<5xf32, "acc">
  %q = mem.buffer : memref<5xf32, "acc">
  mem.copy %a to %b : memref<5xf32, "spad"> to memref<5xf32, "spad">
  mem.copy %p to %q : memref<5xf32, "acc"> to memref<5xf32, "acc">
  mem.copy %b to %a : memref<5xf32, "spad"> to memref<5xf32, "spad">"""
    assert offsets(after(spad_kernel(body), "plan-scopes")) == {"a": 0, "b": 32, "p": 0, "q": 32}


def test_the_pitch_of_rows_counts_and_the_last_row_ends_with_its_elements() -> None:
    pitched = 'memref<3x2xf32, strided<[8, 1]>, "spad">'
    body = f"""
  %a = mem.buffer : {pitched}
  %b = mem.buffer : {pitched}
  mem.copy %a to %b : {pitched} to {pitched}"""
    # two rows of 32 bytes and 8 bytes of the third, in granules of 16
    assert offsets(after(spad_kernel(body), "plan-scopes")) == {"a": 0, "b": 80}


def test_an_offset_given_by_hand_stays_and_the_others_go_around_it() -> None:
    body = f"""%a = mem.buffer at 32 : {SPAD}
  {new("b")} {copy("x", "a")} {copy("a", "b")} {copy("b", "y")}"""
    assert offsets(after(spad_kernel(body), "plan-scopes")) == {"a": 32, "b": 96}


def test_offsets_given_by_hand_that_overlap_are_refused() -> None:
    body = f"""%a = mem.buffer at 32 : {SPAD}
  %b = mem.buffer at 48 : {SPAD}
  {copy("x", "a")} {copy("a", "b")} {copy("b", "y")}"""
    with pytest.raises(UserError, match='@kernel, scope "spad": the places given by hand are no plan'):
        after(spad_kernel(body), "plan-scopes")


def test_planning_again_changes_nothing() -> None:
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + copy("b", "y")
    once = after(spad_kernel(body), "plan-scopes")
    assert str(after(str(once), "plan-scopes,plan-arena")) == str(once)


def test_another_planner_can_be_chosen() -> None:
    text = spad_kernel(new("a") + copy("x", "a") + copy("a", "y"))
    assert offsets(after(text, "plan-scopes{planner=greedy-by-start}")) == {"a": 0}
    with pytest.raises(UserError, match='no planner is called "best"'):
        after(text, "plan-scopes{planner=best}")


def test_a_scope_that_the_machine_lacks_is_refused() -> None:
    text = spad_kernel('%a = mem.buffer : memref<4xf32, "spat">')
    with pytest.raises(UserError, match='there is no scope "spat"') as caught:
        after(text, "plan-scopes")
    assert caught.value.notes == ('did you mean "spad"?',)


def test_too_small_a_scope_is_an_error_that_says_who_is_alive_and_what_would_do() -> None:
    names = "abcde"
    body = (
        "".join(new(name) + copy("x", name) for name in names)
        + new("f")
        + copy("x", "f")
        + copy("f", "y")
        + "".join(copy(name, "y") for name in names)
    )
    body = body.replace(f"%a = mem.buffer : {SPAD}", f'%a = mem.buffer : {SPAD} loc("model":7:3)')
    with pytest.raises(UserError) as caught:
        after(spad_kernel(body), "plan-scopes")
    assert caught.value.message == (
        '@kernel does not fit scope "spad": the plan of "greedy-by-size" takes 384 bytes, the scope has 256'
    )
    assert caught.value.loc == "model:7:3"
    assert caught.value.notes == (
        "384 bytes are alive at once:",
        *(f"  %{name} : {SPAD}, 64 bytes" for name in "abcdef"),
        "the least capacity that would do is 384 bytes",
    )


def test_a_planner_that_wastes_the_room_is_told_of_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.passes.planning import registry
    from penstock.passes.planning.problem import Plan, Problem

    def wasteful(problem: Problem) -> Plan:
        return Plan({buffer.id: 128 * number for number, buffer in enumerate(problem.buffers)})

    monkeypatch.setitem(registry._OWN, "wasteful", wasteful)  # pyright: ignore[reportPrivateUsage]
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + new("c") + copy("b", "c") + copy("c", "y")
    with pytest.raises(UserError) as caught:
        after(spad_kernel(body), "plan-scopes{planner=wasteful}")
    assert caught.value.notes[-1] == 'the planner "greedy-by-area" finds a plan of 128 bytes, which fits'


# the arena


OFF = "memref<16xf32>"


def alloc(name: str) -> str:
    return f"%{name} = memref.alloc() : {OFF}\n"


def move(source: str, dest: str) -> str:
    return f"mem.copy %{source} to %{dest} : {OFF} to {OFF}\n"


def call(callee: str, source: str, dest: str) -> str:
    return f"func.call @{callee}(%{source}, %{dest}) : ({OFF}, {OFF}) -> ()\n"


def function(name: str, body: str, visibility: str = "private ") -> str:
    outputs = "" if visibility else ' {graph.output = "y"}'
    return f"func.func {visibility}@{name}(%x: {OFF}, %y: {OFF}{outputs}) {{\n{body}func.return\n}}\n"


def main(body: str) -> str:
    return function("main", body, "")


def runs(module: ModuleOp) -> list[float]:
    [found] = run_module(module, [np.arange(16, dtype=np.float32)], WeightStore())
    return found.tolist()


def test_the_arena_is_shared_over_the_program_and_aligned() -> None:
    text = main(
        alloc("a") + move("x", "a") + alloc("b") + move("a", "b") + alloc("c") + move("b", "c") + move("c", "y")
    )
    module = after(text, "plan-arena")
    assert offsets(module) == {"a": 0, "b": 64, "c": 0}
    assert runs(module) == list(range(16))


def test_small_buffers_lie_on_cache_lines_or_on_the_alignment_they_ask_for() -> None:
    small = "memref<4xf32>"
    text = f"""
func.func @main(%x: {small}) {{
  %a = memref.alloc() : {small}
  %b = memref.alloc() : {small}
  %c = memref.alloc() {{alignment = 256 : i64}} : {small}
  mem.copy %a to %b : {small} to {small}
  mem.copy %b to %c : {small} to {small}
  mem.copy %a to %c : {small} to {small}
  func.return
}}
"""
    found = offsets(after(text, "plan-arena"))
    assert sorted(offset or 0 for offset in found.values()) in ([0, 64, 128], [0, 64, 256])
    assert (found["c"] or 0) % 256 == 0


def test_the_buffers_of_a_kernel_are_free_at_each_of_its_calls() -> None:
    text = function("kernel", alloc("t") + move("x", "t") + move("t", "y")) + main(
        alloc("a")
        + call("kernel", "x", "a")
        + alloc("b")
        + call("kernel", "a", "b")
        + move("b", "y")
        + alloc("c")
        + move("b", "c")
        + alloc("d")
        + move("c", "d")
        + move("d", "y")
    )
    module = after(text, "plan-arena")
    found = offsets(module)
    assert found["t"] not in (found["a"], found["b"])
    # at the second call its argument, its result and its own buffer are alive, and nothing else
    [arena] = plan_report(module)
    assert arena.peak == arena.lower_bound == 192
    assert runs(module) == list(range(16))


def test_the_buffers_of_two_kernels_share_bytes() -> None:
    text = (
        function("first", alloc("t") + move("x", "t") + move("t", "y"))
        + function("second", alloc("u") + move("x", "u") + move("u", "y"))
        + main(alloc("a") + call("first", "x", "a") + call("second", "a", "y"))
    )
    found = offsets(after(text, "plan-arena"))
    assert found["t"] == found["u"] != found["a"]


def test_a_kernel_that_calls_another_keeps_its_own_buffers_meanwhile() -> None:
    text = (
        function("inner", alloc("u") + move("x", "u") + move("u", "y"))
        + function("outer", alloc("t") + move("x", "t") + call("inner", "x", "y") + move("t", "y"))
        + main(call("outer", "x", "y"))
    )
    module = after(text, "plan-arena")
    assert offsets(module)["t"] != offsets(module)["u"]
    assert runs(module) == list(range(16))


def test_two_programs_in_a_module_share_the_arena() -> None:
    text = function("one", alloc("a") + move("x", "a") + move("a", "y"), "") + function(
        "two", alloc("b") + move("x", "b") + move("b", "y"), ""
    )
    assert offsets(after(text, "plan-arena")) == {"a": 0, "b": 0}


def test_freeing_a_buffer_is_left_to_the_plan() -> None:
    module = after(main(alloc("a") + move("x", "a") + move("a", "y") + f"memref.dealloc %a : {OFF}\n"), "plan-arena")
    assert "dealloc" not in str(module)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (main(call("main", "x", "y")), "@main calls itself"),
        (f"func.func @main() -> {OFF} {{\n{alloc('a')}func.return %a : {OFF}\n}}", "a buffer that a function returns"),
        (
            "func.func @main(%n: index) {\n%a = memref.alloc(%n) : memref<?xf32>\nfunc.return\n}",
            "the shape of memref<[?]xf32> is not static",
        ),
    ],
)
def test_what_has_no_place_in_an_arena_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        after(text, "plan-arena")


# reports


def test_the_report_is_read_back_from_the_program() -> None:
    body = (
        new("a")
        + copy("x", "a")
        + new("b")
        + copy("a", "b")
        + copy("b", "y")
        + alloc("t")
        + move("x", "t")
        + move("t", "y")
    )
    spad, arena = plan_report(after(spad_kernel(body), "plan-scopes,plan-arena"))
    assert (spad.function, spad.scope, spad.capacity, spad.peak, spad.lower_bound) == ("kernel", "spad", 256, 128, 128)
    assert spad.is_optimal
    assert [(b.name, b.type, b.offset, b.size) for b in spad.buffers] == [("%a", SPAD, 0, 64), ("%b", SPAD, 64, 64)]
    assert spad.buffers[0].intervals[0][1] > spad.buffers[1].intervals[0][0]
    assert (arena.function, arena.scope, arena.capacity, arena.peak) == ("", "arena", None, 64)
    assert arena.buffers[0].name == "%t of @kernel"


def test_the_report_finds_a_plan_that_was_tampered_with() -> None:
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + copy("b", "y")
    planned = str(after(spad_kernel(body), "plan-scopes"))
    with pytest.raises(
        UserError, match=r'the plan of @kernel, scope "spad" is not valid: .* overlap while both are alive'
    ):
        plan_report(after(planned.replace("at 64", "at 48"), "canonicalize"))


def test_a_plan_that_is_valid_but_wasteful_is_not_called_optimal() -> None:
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + copy("b", "y")
    planned = str(after(spad_kernel(body), "plan-scopes"))
    [spad] = plan_report(after(planned.replace("at 64", "at 128"), "canonicalize"))
    assert (spad.peak, spad.lower_bound, spad.is_optimal) == (192, 128, False)


@pytest.mark.parametrize("body", [new("a") + copy("x", "a"), alloc("t") + move("x", "t")])
def test_the_report_asks_for_a_plan_first(body: str) -> None:
    with pytest.raises(UserError, match="yet"):
        plan_report(after(spad_kernel(body), "cse"))


def test_a_ring_is_placed_whole_and_alive_as_long_as_any_of_its_slots() -> None:
    text = """
    func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @gemmini_fp32} {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %r = mem.ring 3 : !mem.ring<memref<16xf32, "spad">>
      %s = mem.slot %r[%zero] : !mem.ring<memref<16xf32, "spad">>
      mem.copy %x to %s : memref<16xf32> to memref<16xf32, "spad">
      %b = mem.buffer : memref<16xf32, "spad">
      mem.copy %s to %b : memref<16xf32, "spad"> to memref<16xf32, "spad">
      %t = mem.slot %r[%one] : !mem.ring<memref<16xf32, "spad">>
      mem.copy %b to %t : memref<16xf32, "spad"> to memref<16xf32, "spad">
      mem.copy %t to %y : memref<16xf32, "spad"> to memref<16xf32>
      func.return
    }
    """
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", text)).module
    attach_machine(module, "gemmini-fp32")
    run_passes(ctx, module, read_pipeline("plan-scopes"))
    ring = next(op for op in module.walk() if isinstance(op, RingOp))
    buffer = next(op for op in module.walk() if isinstance(op, BufferOp))
    assert (ring.byte_offset, buffer.byte_offset) == (0, 3 * 64)
    (plan,) = plan_report(module)
    assert (plan.peak, plan.lower_bound) == (4 * 64, 4 * 64)
