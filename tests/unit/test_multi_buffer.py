# SPDX-License-Identifier: Apache-2.0
"""multi-buffer: which buffers get a ring, which are left, and that nothing changes but where the bytes lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sampling import sweep
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.accel import BarrierOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import BufferOp, RingOp, SlotOp
from penstock.dialects.weights import WeightStore
from penstock.passes.toolchain import find_compiler
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline


def kernel(body: str, *, lower: int = 0, upper: int = 64, step: int = 16) -> str:
    return f"""func.func @main(%x: memref<64xf32>, %y: memref<64xf32> {{graph.output = "y"}}) {{
      func.call @k(%x, %y) : (memref<64xf32>, memref<64xf32>) -> ()
      func.return
    }}
    func.func private @k(%x: memref<64xf32>, %y: memref<64xf32>) attributes {{device = @gemmini_fp32}} {{
      %lower = arith.constant {lower} : index
      %upper = arith.constant {upper} : index
      %step = arith.constant {step} : index
      {body}
      func.return
    }}"""


def after(text: str, passes: str = "multi-buffer", machine: str = "gemmini-fp32") -> ModuleOp:
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, machine)
    run_passes(ctx, module, read_pipeline(passes))
    return module


def rings(module: ModuleOp) -> list[tuple[str | None, int]]:
    return [(op.ring.name_hint, op.slot_count) for op in module.walk() if isinstance(op, RingOp)]


def a_loop(body: str) -> str:
    return f"scf.for %i = %lower to %upper step %step {{ {body} }}"


FILL = """%a = mem.buffer : memref<16xf32, "spad">
mem.copy %x[%i] to %a : memref<64xf32> to memref<16xf32, "spad">"""
EMPTY = """mem.copy %a to %y[%i] : memref<16xf32, "spad"> to memref<64xf32>"""


def outputs(module: ModuleOp) -> list[float]:
    (y,) = run_module(module, [np.arange(64, dtype=np.float32) + 1], WeightStore())
    return np.nan_to_num(y, nan=-1).tolist()


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("then", ["", ",mem-plan", ",mem-plan,loop-to-accel"])
def test_the_results_are_the_same_with_and_without_a_plan_and_as_commands(depth: int, then: str) -> None:
    text = kernel(a_loop(FILL + EMPTY), lower=16)
    expected = outputs(after(text, "cse"))
    assert expected == [-1] * 16 + list(range(17, 65))
    module = after(text, f"multi-buffer{{depth={depth}}}{then}")
    assert rings(module) == [("a_ring", depth)]
    assert outputs(module) == expected
    assert any(isinstance(op, BarrierOp) for op in module.walk()) == then.endswith("accel")


def test_a_round_is_counted_from_the_lower_bound_in_steps() -> None:
    module = after(kernel(a_loop(FILL + EMPTY), lower=8, upper=56))
    slot = next(op for op in module.walk() if isinstance(op, SlotOp))
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    ops = [op.name for op in loop.body.block.ops]
    assert ops[:3] == ["arith.subi", "arith.divui", "mem.slot"]
    assert slot.index.owner is list(loop.body.block.ops)[1]
    assert loop.prev_op is slot.ring.owner


def test_buffers_of_one_loop_take_turns_by_one_number() -> None:
    body = FILL + FILL.replace("%a", "%b") + EMPTY + EMPTY.replace("%a", "%b")
    module = after(kernel(a_loop(body)))
    assert rings(module) == [("a_ring", 2), ("b_ring", 2)]
    assert len({op.index for op in module.walk() if isinstance(op, SlotOp)}) == 1


def test_what_is_only_emptied_to_the_outside_gets_a_ring_as_well() -> None:
    zero = """%a = mem.buffer : memref<16xf32, "spad">
      %z = arith.constant 2.0 : f32
      linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
          outs(%a : memref<16xf32, "spad">) {
      ^bb0(%o: f32):
        linalg.yield %z : f32
      }
      """
    module = after(kernel(a_loop(zero + EMPTY)))
    assert rings(module) == [("a_ring", 2)]
    assert outputs(module) == [2.0] * 64


def test_a_loop_of_fewer_rounds_gets_as_many_slots() -> None:
    assert rings(after(kernel(a_loop(FILL + EMPTY), upper=32), "multi-buffer{depth=4}")) == [("a_ring", 2)]


@pytest.mark.parametrize("upper", ["%upper", "%other"])
def test_slots_go_on_from_one_round_of_an_outer_loop_to_the_next(upper: str) -> None:
    # Three rounds inside: with two slots, every other outer round begins with the other one.
    other = "%other = arith.constant 32 : index"
    outer = f"{other} scf.for %j = %lower to {upper} step %step {{ {a_loop(FILL + EMPTY)} }}"
    text = kernel(outer, upper=48)
    module = after(text)
    ring = next(op for op in module.walk() if isinstance(op, RingOp))
    slot = next(op for op in module.walk() if isinstance(op, SlotOp))
    assert isinstance(ring.parent_op(), func.FuncOp)
    assert slot.parent_block() is not ring.parent_block()
    names = [op.name for op in slot.parent_block().ops]  # pyright: ignore[reportOptionalMemberAccess]
    assert names[: names.index("mem.slot")] == [
        *("arith.divui", "arith.divui", "arith.constant", "arith.muli", "arith.addi")
    ]
    assert outputs(module) == outputs(after(text, "cse"))
    assert outputs(after(text, "multi-buffer,mem-plan,loop-to-accel")) == outputs(module)


def test_a_loop_whose_rounds_are_not_known_ends_the_nest() -> None:
    # The inner loop begins where the outer one is: how many rounds it has is another number every time.
    inner = a_loop(FILL + EMPTY).replace("= %lower", "= %j")
    text = kernel(f"scf.for %j = %lower to %upper step %step {{ {inner} }}")
    ring = next(op for op in after(text).walk() if isinstance(op, RingOp))
    assert isinstance(ring.parent_op(), scf.ForOp)
    assert outputs(after(text)) == outputs(after(text, "cse"))


ACCUMULATED = """%a = mem.buffer : memref<16xf32, "acc">
      %z = arith.constant 0.0 : f32
      linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"],
                      library_call = "zero_acc"} outs(%a : memref<16xf32, "acc">) {
      ^bb0(%o: f32):
        linalg.yield %z : f32
      }
      scf.for %k = %lower to %upper step %step {
        linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                        iterator_types = ["parallel"], library_call = "mvin_add"}
            ins(%y2 : memref<16xf32, strided<[1], offset: ?>>) outs(%a : memref<16xf32, "acc">) {
        ^bb0(%i0: f32, %o: f32):
          %s = arith.addf %o, %i0 : f32
          linalg.yield %s : f32
        }
      }
      mem.copy %a to %y[%i] : memref<16xf32, "acc"> to memref<64xf32>"""
SOURCE = "%y2 = memref.subview %x[%i] [16] [1] : memref<64xf32> to memref<16xf32, strided<[1], offset: ?>>\n"


@pytest.mark.parametrize(("depth", "slots"), [(2, 2), (4, 4)])
def test_an_accumulator_takes_turns_in_the_outer_loop(depth: int, slots: int) -> None:
    text = kernel(a_loop(SOURCE + ACCUMULATED))
    module = after(text, f"multi-buffer{{depth={depth}}}")
    assert rings(module) == [("a_ring", slots)]
    assert outputs(module) == [4.0 * value for value in range(1, 65)]


def test_what_is_only_emptied_has_two_slots_at_most() -> None:
    zero = """%a = mem.buffer : memref<16xf32, "spad">
      %z = arith.constant 2.0 : f32
      linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
          outs(%a : memref<16xf32, "spad">) {
      ^bb0(%o: f32):
        linalg.yield %z : f32
      }
      """
    assert rings(after(kernel(a_loop(zero + EMPTY)), "multi-buffer{depth=4}")) == [("a_ring", 2)]


def with_depths(text: str, depths: str) -> str:
    return text.replace("device = @gemmini_fp32", f"device = @gemmini_fp32, depths = {{{depths}}}")


def test_automatic_depth_is_what_the_kernel_says_for_each_scope() -> None:
    body = a_loop(
        FILL
        + EMPTY
        + FILL.replace("%a", "%b").replace("spad", "acc")
        + EMPTY.replace("%a", "%b").replace("spad", "acc")
    )
    text = kernel(body)
    assert rings(after(text, "multi-buffer{depth=auto}")) == []
    assert rings(after(with_depths(text, "spad = 3 : i64"), "multi-buffer{depth=auto}")) == [("a_ring", 3)]
    both = with_depths(text, "spad = 3 : i64, acc = 2 : i64")
    assert rings(after(both, "multi-buffer{depth=auto}")) == [("a_ring", 3), ("b_ring", 2)]
    assert outputs(after(both, "multi-buffer{depth=auto},mem-plan,loop-to-accel")) == outputs(after(text, "cse"))


@pytest.mark.parametrize("depth", ["0", '"deep"'])
def test_a_depth_is_a_number_from_one_or_auto(depth: str) -> None:
    with pytest.raises(UserError, match="at least one slot"):
        after(kernel(a_loop(FILL + EMPTY)), f"multi-buffer{{depth={depth}}}")


PITCHED = kernel(
    a_loop("""%a = mem.buffer : memref<8x3xf32, strided<[4, 1]>, "spad">
    mem.copy %x[%i, 0] to %a : memref<64x3xf32> to memref<8x3xf32, strided<[4, 1]>, "spad">
    mem.copy %a to %y[%i, 0] : memref<8x3xf32, strided<[4, 1]>, "spad"> to memref<64x3xf32>"""),
    step=8,
).replace("memref<64xf32>", "memref<64x3xf32>")


def test_slots_begin_at_whole_granules() -> None:
    module = after(PITCHED, "multi-buffer{depth=3},mem-plan")
    ring = next(op for op in module.walk() if isinstance(op, RingOp))
    assert (ring.pitch_in_bytes, ring.slot_offsets(), ring.size_in_bytes) == (128, [0, 128, 256], 2 * 128 + 124)
    assert str(Parser(make_context(), str(module)).parse_module()) == str(module)


@pytest.mark.parametrize("passes", ["mem-plan", "mem-plan,loop-to-accel"])
def test_rings_in_c_are_those_of_the_interpreter(passes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find_compiler()
    except UserError:
        pytest.skip("no C compiler")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    module = after(PITCHED, f"multi-buffer{{depth=3}},{passes}")
    x = np.arange(64 * 3, dtype=np.float32).reshape(64, 3)
    (found,) = load_native(module).run([x])
    assert found.tolist() == x.tolist() == run_module(module, [x], WeightStore())[0].tolist()


LEFT = {
    "it is placed by hand": a_loop(FILL.replace("mem.buffer", "mem.buffer at 64") + EMPTY),
    "it is outside of all loops": f"%i = arith.constant 0 : index\n{FILL}\n{EMPTY}",
    "a loop has a single round": a_loop(FILL + EMPTY).replace("%upper", "%step"),
    "no data comes or goes": a_loop(
        """%a = mem.buffer : memref<16xf32, "spad">
        %b = mem.buffer : memref<16xf32, "spad">
        mem.copy %b to %a : memref<16xf32, "spad"> to memref<16xf32, "spad">"""
    ),
    "it is read before it is written": a_loop('%a = mem.buffer : memref<16xf32, "spad">\n' + EMPTY),
    "only a part of it is written": a_loop(
        """%a = mem.buffer : memref<32xf32, "spad">
        %v = memref.subview %a[0] [16] [1] : memref<32xf32, "spad"> to memref<16xf32, strided<[1]>, "spad">
        mem.copy %x[%i] to %v : memref<64xf32> to memref<16xf32, strided<[1]>, "spad">
        %w = memref.subview %a[16] [16] [1]
          : memref<32xf32, "spad"> to memref<16xf32, strided<[1], offset: 16>, "spad">
        mem.copy %x[%i] to %w : memref<64xf32> to memref<16xf32, strided<[1], offset: 16>, "spad">"""
    ),
    "it is handed to the next round": f"""%i0 = arith.constant 0 : index
      %first = mem.buffer : memref<16xf32, "spad">
      mem.copy %x[%i0] to %first : memref<64xf32> to memref<16xf32, "spad">
      %last = scf.for %i = %lower to %upper step %step iter_args(%c = %first) -> (memref<16xf32, "spad">) {{
        {FILL}
        mem.copy %c to %y[%i] : memref<16xf32, "spad"> to memref<64xf32>
        scf.yield %a : memref<16xf32, "spad">
      }}""",
}


@pytest.mark.parametrize("why", LEFT)
def test_a_buffer_is_left_where(why: str) -> None:
    module = after(kernel(LEFT[why]))
    assert rings(module) == []
    assert str(module) == str(after(kernel(LEFT[why]), "multi-buffer{depth=1}"))
    assert any(isinstance(op, BufferOp) for op in module.walk())


def test_depth_one_changes_nothing_and_scopes_choose() -> None:
    text = kernel(a_loop(FILL + EMPTY))
    assert rings(after(text, "multi-buffer{depth=1}")) == []
    assert rings(after(text, 'multi-buffer{scopes="acc"}')) == []
    assert rings(after(text, 'multi-buffer{scopes="acc","spad"}')) == [("a_ring", 2)]


def large(elements: int) -> str:
    """A loop with two buffers of so many elements."""
    fill = """
        %NAME = mem.buffer : memref<SIZExf32, "spad">
        mem.copy %big[%i] to %NAME : memref<65536xf32> to memref<SIZExf32, "spad">"""
    empty = """
        mem.copy %NAME to %big[%i] : memref<SIZExf32, "spad"> to memref<65536xf32>"""
    body = "".join(
        (part.replace("NAME", name).replace("SIZE", str(elements))) for part in (fill, empty) for name in "ab"
    )
    return kernel("%big = mem.buffer : memref<65536xf32>\n" + a_loop(body))


def test_a_ring_is_as_deep_as_there_is_room_for_where_it_has_to_fit() -> None:
    # of 256 KiB each takes 80: one gets a second slot, and then the other stays as it is
    with pytest.raises(UserError, match='the scope "spad" has no room for 3 slots of %a') as refused:
        after(large(20480), "multi-buffer{depth=3}")
    assert refused.value.notes == ("it has room for 2 of %a, 81,920 bytes each",)
    assert rings(after(large(20480), "multi-buffer{depth=3 fit=true},mem-plan")) == [("a_ring", 2)]


def test_nothing_is_left_of_rings_that_do_not_fit() -> None:
    module = after(large(32768), "multi-buffer{fit=true}")
    assert str(module) == str(after(large(32768), "multi-buffer{depth=1}"))


@pytest.mark.parametrize(
    ("options", "message"), [("depth=0", "at least one slot"), ('scopes="spat"', 'no scope "spat"')]
)
def test_options_that_make_no_sense_are_refused(options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        after(kernel(a_loop(FILL + EMPTY)), f"multi-buffer{{{options}}}")


@pytest.mark.parametrize("depth", sweep([2, 3], quick=[3]))
def test_a_tiled_matrix_product_computes_the_same_bits_at_every_level(depth: int) -> None:
    text = """func.func @main(%x: tensor<64x96xf32>, %w: tensor<96x80xf32>) -> tensor<64x80xf32> {
      %p = graph.matmul %x, %w : (tensor<64x96xf32>, tensor<96x80xf32>) -> tensor<64x80xf32>
      func.return %p : tensor<64x80xf32>
    }"""
    random = np.random.default_rng(0)
    inputs = [random.random((64, 96), np.float32), random.random((96, 80), np.float32)]

    def run(passes: list[str]) -> bytes:
        (result,) = run_module(after(text, ",".join(passes)), inputs, WeightStore(), ordered=True)
        return result.tobytes()

    plain = list(pipeline("loop", "gemmini-fp32"))
    plain[plain.index("tile")] = "tile{sizes=16,32,32}"
    at = plain.index("tensorize") + 1
    rotated = [*plain[:at], f"multi-buffer{{depth={depth}}}", *plain[at:]]
    assert len(rings(after(text, ",".join(rotated)))) >= 2
    expected = run(plain)
    assert run(rotated[: at + 1]) == expected
    assert run(rotated) == expected
    assert run([*rotated, "loop-to-accel"]) == expected
