# SPDX-License-Identifier: Apache-2.0
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
from penstock.passes.analysis.memory.memory_problems import plan_report
from penstock.passes.loop.mem_plan import MemPlanPass
from penstock.passes.planning import registry
from penstock.passes.planning.problem import Limits, Outcome, Plan, Problem
from penstock.passes.planning.registry import DEFAULT_PLANNER
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
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
    assert offsets(after(spad_kernel(body), "mem-plan")) == {"a": 0, "b": 64, "c": 0}


def test_a_copy_does_not_read_and_write_the_same_bytes() -> None:
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + copy("b", "y")
    assert offsets(after(spad_kernel(body), "mem-plan")) == {"a": 0, "b": 64}


def test_a_buffer_from_outside_a_loop_that_reads_what_the_round_before_wrote_is_alive_throughout_it() -> None:
    body = f"""{new("a")} {copy("x", "a")}
  scf.for %i = %c0 to %n step %c1 {{
    {copy("a", "y")} {copy("x", "a")}
    {new("b")} {copy("x", "b")} {copy("b", "y")}
    {new("c")} {copy("x", "c")} {copy("c", "y")}
  }}
  {new("d")} {copy("x", "d")} {copy("d", "y")}"""
    found = offsets(after(spad_kernel(body), "mem-plan"))
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
    assert offsets(after(spad_kernel(body), "mem-plan")) == {"a": 0, "b": 64}


def test_a_view_that_is_taken_but_not_used_keeps_nothing_alive() -> None:
    body = f"""{new("a")} {copy("x", "a")} {copy("a", "y")}
  {new("b")} {copy("x", "b")} {copy("b", "y")}
  %v = memref.subview %a[8] [8] [1] : {SPAD} to memref<8xf32, strided<[1], offset: 8>, "spad">"""
    assert offsets(after(spad_kernel(body), "mem-plan")) == {"a": 0, "b": 0}


def test_a_buffer_used_in_one_branch_is_alive_there_only() -> None:
    body = f"""{new("a")} {new("b")}
  %p = arith.cmpi eq, %n, %c0 : index
  scf.if %p {{
    {copy("x", "a")} {copy("a", "y")}
  }} else {{
    {copy("x", "b")} {copy("b", "y")}
  }}"""
    assert offsets(after(spad_kernel(body), "mem-plan")) == {"a": 0, "b": 0}


def test_a_buffer_that_a_loop_carries_is_alive_throughout_it() -> None:
    body = f"""{new("a")} {new("b")} {copy("x", "a")}
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%m = %a) -> ({SPAD}) {{
    {copy("m", "y")}
    scf.yield %m : {SPAD}
  }}
  {copy("x", "b")} {copy("b", "y")}
  {copy("r", "y")}"""
    found = offsets(after(spad_kernel(body), "mem-plan"))
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
    found = offsets(after(spad_kernel(body), "mem-plan"))
    assert sorted([found["a"] or 0, found["b"] or 0]) == sorted([found["p"] or 0, found["q"] or 0]) == [0, 32]


def test_the_pitch_of_rows_counts_and_the_last_row_ends_with_its_elements() -> None:
    pitched = 'memref<3x2xf32, strided<[8, 1]>, "spad">'
    body = f"""
  %a = mem.buffer : {pitched}
  %b = mem.buffer : {pitched}
  mem.copy %a to %b : {pitched} to {pitched}"""
    # two rows of 32 bytes and 8 bytes of the third, in granules of 16
    assert offsets(after(spad_kernel(body), "mem-plan")) == {"a": 0, "b": 80}


def test_an_offset_given_by_hand_stays_and_the_others_go_around_it() -> None:
    body = f"""%a = mem.buffer at 32 : {SPAD}
  {new("b")} {copy("x", "a")} {copy("a", "b")} {copy("b", "y")}"""
    assert offsets(after(spad_kernel(body), "mem-plan")) == {"a": 32, "b": 96}


def test_offsets_given_by_hand_that_overlap_are_refused() -> None:
    body = f"""%a = mem.buffer at 32 : {SPAD}
  %b = mem.buffer at 48 : {SPAD}
  {copy("x", "a")} {copy("a", "b")} {copy("b", "y")}"""
    with pytest.raises(UserError, match=r'@kernel, scope "spad": %a \[32, 96\) and %b \[48, 112\) share') as caught:
        after(spad_kernel(body), "mem-plan")
    assert caught.value.notes[-1] == "what has an offset keeps it: change one, or leave it to the planner"


def test_an_offset_given_by_hand_that_leaves_the_scope_is_refused() -> None:
    body = f"%a = mem.buffer at 208 : {SPAD} {copy('x', 'a')} {copy('a', 'y')}"
    with pytest.raises(UserError, match='@kernel, scope "spad": buffer %a ends at 272 of 256 bytes'):
        after(spad_kernel(body), "mem-plan")


def test_planning_again_changes_nothing() -> None:
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + copy("b", "y")
    once = after(spad_kernel(body), "mem-plan")
    assert str(after(str(once), "mem-plan")) == str(once)


def test_another_planner_can_be_chosen() -> None:
    text = spad_kernel(new("a") + copy("x", "a") + copy("a", "y"))
    assert offsets(after(text, "mem-plan{planner=first-fit-by-start}")) == {"a": 0}
    with pytest.raises(UserError, match='no planner is called "best"'):
        after(text, "mem-plan{planner=best}")


def test_a_scope_that_the_machine_lacks_is_refused() -> None:
    text = spad_kernel('%a = mem.buffer : memref<4xf32, "spat">')
    with pytest.raises(UserError, match='there is no scope "spat"') as caught:
        after(text, "mem-plan")
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
        after(spad_kernel(body), "mem-plan")
    error = caught.value
    assert error.message == '@kernel does not fit scope "spad": 384 bytes are alive at once here, and it has 256'
    # the copy that fills the last of them
    assert (error.loc, error.status) == ("test.mlir:21:1", 1)
    assert error.notes[0] == "alive here: 6 of 6 buffers"
    assert error.notes[1] == f"  %a : {SPAD}, 64 bytes, model:7:3"
    assert [note.split(" : ")[0] for note in error.notes[1:7]] == [f"  %{name}" for name in "abcdef"]
    assert error.notes[7:] == (
        "peak of the best plan 384, lower bound 384, capacity 256 bytes",
        "each of these alone would fit, the cheapest first:",
        '  a scope "spad" of 384 bytes; no smaller one will do',
    )


def wasteful(problem: Problem, limits: Limits) -> Outcome:
    """Every buffer by itself."""
    return Outcome(Plan({buffer.id: 128 * number for number, buffer in enumerate(problem.buffers)}))


def with_planner(monkeypatch: pytest.MonkeyPatch, name: str, plan: registry.Planner) -> None:
    """One more planner, as an installed package would bring it."""
    known = registry.planner

    def planner(asked: str) -> registry.Planner:
        return plan if asked == name else known(asked)

    monkeypatch.setattr(registry, "planner", planner)
    monkeypatch.setitem(MemPlanPass.PARTS, "planner", planner)


THREE = new("a") + copy("x", "a") + new("b") + copy("a", "b") + new("c") + copy("b", "c") + copy("c", "y")


def test_what_a_planner_does_not_find_within_its_limits_is_no_proof_that_nothing_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_planner(monkeypatch, "wasteful", wasteful)
    with pytest.raises(UserError) as caught:
        after(spad_kernel(THREE), "mem-plan{planner=wasteful}")
    error = caught.value
    assert error.status == 4
    assert error.message.endswith('within its limits "wasteful" found no plan of the 256 bytes that it has')
    assert f'  planner="{DEFAULT_PLANNER}": 128 bytes' in error.notes
    assert (
        error.notes[-1]
        == "it is not proved that there is none: with more steps or time-limit, mem-plan searches longer"
    )
    after(spad_kernel(THREE), "mem-plan")


def test_a_planner_that_proves_that_nothing_fits_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_planner(monkeypatch, "sure", lambda problem, limits: Outcome(None, bound=300, infeasible=True))
    with pytest.raises(UserError) as caught:
        after(spad_kernel(THREE), "mem-plan{planner=sure}")
    assert caught.value.status == 1
    assert "no plan takes the 256 that it has, or less" in caught.value.message


def test_the_limits_are_handed_to_the_planner_and_a_scope_that_fits_is_not_searched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Limits] = []

    def watched(problem: Problem, limits: Limits) -> Outcome:
        seen.append(limits)
        return registry.planner("first-fit-by-size")(problem, limits)

    with_planner(monkeypatch, "watched", watched)
    body = THREE + alloc("t") + move("x", "t") + move("t", "y")
    after(spad_kernel(body), "mem-plan{planner=watched time-limit=2 steps=100000 seed=7}")
    assert seen == [Limits(2, 0, 7), Limits(2, 100000, 7)]
    seen.clear()
    with pytest.raises(UserError):
        after(spad_kernel(THREE).replace("size 256", "size 112"), "mem-plan{planner=watched time-limit=0.5}")
    # the bound says at once that nothing fits: nothing is searched for but changes
    assert seen == [Limits(0.5, 0)]


@pytest.mark.parametrize("limit", ["steps=-1", "time-limit=-0.5"])
def test_a_negative_limit_is_refused(limit: str) -> None:
    with pytest.raises(UserError, match="a limit of mem-plan is negative"):
        after(spad_kernel(THREE), f"mem-plan{{{limit}}}")


def test_a_planner_without_any_plan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with_planner(monkeypatch, "lazy", lambda problem, limits: Outcome(None))
    with pytest.raises(UserError, match='the arena: the planner "lazy" has no plan'):
        after(main(alloc("a") + move("x", "a") + move("a", "y")), "mem-plan{planner=lazy}")
    with pytest.raises(UserError, match='within its limits "lazy" found no plan of the 256 bytes') as caught:
        after(spad_kernel(THREE), "mem-plan{planner=lazy}")
    assert caught.value.status == 4


def test_an_allocation_in_a_scope_gets_its_place_there() -> None:
    body = f"""
  %a = memref.alloc() : {SPAD}
  {copy("x", "a")}
  %b = memref.alloca() {{alignment = 128 : i64}} : {SPAD}
  {copy("a", "b")} {copy("b", "y")}
  memref.dealloc %a : {SPAD}"""
    module = after(spad_kernel(body), "mem-plan")
    found = offsets(module)
    assert found["b"] in (0, 128)
    assert abs((found["a"] or 0) - (found["b"] or 0)) >= 64
    assert "alloc" not in str(module)


# a scope that a caller uses, too


SCOPED_ARGUMENT = f"""
func.func private @twice(%x: {SPAD}, %y: {SPAD}) {{
  %t = mem.buffer : {SPAD}
  mem.copy %x to %t : {SPAD} to {SPAD}
  mem.copy %t to %y : {SPAD} to {SPAD}
  func.return
}}
"""


def test_what_a_caller_holds_in_a_scope_is_kept_off_by_its_callees() -> None:
    text = (
        MACHINE
        + SCOPED_ARGUMENT
        + main(
            new("a")
            + copy("x", "a")
            + new("b")
            + f"func.call @twice(%a, %b) : ({SPAD}, {SPAD}) -> ()\n"
            + new("c")
            + f"func.call @twice(%b, %c) : ({SPAD}, {SPAD}) -> ()\n"
            + copy("c", "y")
        )
    )
    module = after(text, "mem-plan,mem-verify")
    found = offsets(module)
    assert found["t"] not in (found["a"], found["b"], found["c"])
    assert found["a"] == found["c"]
    [plan] = plan_report(module)
    assert (plan.function, plan.scope, plan.peak, plan.lower_bound) == ("", "spad", 192, 192)
    assert [buffer.name for buffer in plan.buffers] == ["%t of @twice", "%a of @main", "%b of @main", "%c of @main"]
    assert runs(module) == list(range(16))


def test_a_scope_that_no_caller_uses_is_planned_function_by_function_beside_one_that_is() -> None:
    acc = 'memref<16xf32, "acc">'
    text = (
        MACHINE
        + SCOPED_ARGUMENT.replace(
            "func.return", f"%p = mem.buffer : {acc} mem.copy %x to %p : {SPAD} to {acc} func.return"
        )
        + main(new("a") + copy("x", "a") + f"func.call @twice(%a, %a) : ({SPAD}, {SPAD}) -> ()\n" + copy("a", "y"))
    )
    plans = plan_report(after(text, "mem-plan"))
    assert [(plan.function, plan.scope) for plan in plans] == [("twice", "acc"), ("", "spad")]


def test_a_program_that_does_not_fit_says_what_is_alive_across_the_call() -> None:
    text = (MACHINE + SCOPED_ARGUMENT).replace("size 256", "size 128") + main(
        new("a")
        + copy("x", "a")
        + new("b")
        + copy("x", "b")
        + f"func.call @twice(%a, %a) : ({SPAD}, {SPAD}) -> ()\n"
        + copy("a", "y")
        + copy("b", "y")
    )
    with pytest.raises(UserError) as caught:
        after(text, "mem-plan")
    error = caught.value
    assert error.message == 'the program does not fit scope "spad": 192 bytes are alive at once here, and it has 128'
    assert [note.split(" : ")[0] for note in error.notes[1:4]] == ["  %t of @twice", "  %a of @main", "  %b of @main"]


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
    module = after(text, "mem-plan")
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
    found = offsets(after(text, "mem-plan"))
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
    module = after(text, "mem-plan")
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
    found = offsets(after(text, "mem-plan"))
    assert found["t"] == found["u"] != found["a"]


def test_a_kernel_that_calls_another_keeps_its_own_buffers_meanwhile() -> None:
    text = (
        function("inner", alloc("u") + move("x", "u") + move("u", "y"))
        + function("outer", alloc("t") + move("x", "t") + call("inner", "x", "y") + move("t", "y"))
        + main(call("outer", "x", "y"))
    )
    module = after(text, "mem-plan")
    assert offsets(module)["t"] != offsets(module)["u"]
    assert runs(module) == list(range(16))


def test_two_programs_in_a_module_share_the_arena() -> None:
    text = function("one", alloc("a") + move("x", "a") + move("a", "y"), "") + function(
        "two", alloc("b") + move("x", "b") + move("b", "y"), ""
    )
    assert offsets(after(text, "mem-plan")) == {"a": 0, "b": 0}


def test_freeing_a_buffer_is_left_to_the_plan() -> None:
    module = after(main(alloc("a") + move("x", "a") + move("a", "y") + f"memref.dealloc %a : {OFF}\n"), "mem-plan")
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
        after(text, "mem-plan")


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
    spad, arena = plan_report(after(spad_kernel(body), "mem-plan"))
    assert (spad.function, spad.scope, spad.capacity, spad.peak, spad.lower_bound) == ("kernel", "spad", 256, 128, 128)
    assert spad.is_optimal
    assert [(b.name, b.type, b.offset, b.size) for b in spad.buffers] == [("%a", SPAD, 0, 64), ("%b", SPAD, 64, 64)]
    assert spad.buffers[0].intervals[0][1] > spad.buffers[1].intervals[0][0]
    assert (arena.function, arena.scope, arena.capacity, arena.peak) == ("", "arena", None, 64)
    assert arena.buffers[0].name == "%t of @kernel"


def test_the_report_finds_a_plan_that_was_tampered_with() -> None:
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + copy("b", "y")
    planned = str(after(spad_kernel(body), "mem-plan"))
    with pytest.raises(UserError, match=r'@kernel, scope "spad": %a .* and %b .* share bytes \[48, 64\)'):
        plan_report(after(planned.replace("at 64", "at 48"), "canonicalize"))


def test_a_plan_that_is_valid_but_wasteful_is_not_called_optimal() -> None:
    body = new("a") + copy("x", "a") + new("b") + copy("a", "b") + copy("b", "y")
    planned = str(after(spad_kernel(body), "mem-plan"))
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
    run_passes(ctx, module, read_pipeline("mem-plan"))
    ring = next(op for op in module.walk() if isinstance(op, RingOp))
    buffer = next(op for op in module.walk() if isinstance(op, BufferOp))
    assert (ring.byte_offset, buffer.byte_offset) == (0, 3 * 64)
    (plan,) = plan_report(module)
    assert (plan.peak, plan.lower_bound) == (4 * 64, 4 * 64)
