# SPDX-License-Identifier: Apache-2.0
"""What loops of `@main` carry and read again stays on chip between their iterations, and the checks know it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import BufferOp, CopyOp
from penstock.passes.analysis.commands.loop_domain import iteration_domain, sum_over_loops
from penstock.passes.loop.on_chip.prediction import on_chip_remarks, predicted_traffic
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import signature_of

Array = NDArray[Any]

STEPS, ROWS, COLUMNS = 5, 8, 32
STATE, LINES, SQUARE = f"tensor<{ROWS}x{COLUMNS}xf32>", f"tensor<{STEPS}x{ROWS}x{COLUMNS}xf32>", "tensor<32x32xf32>"
LINE_BYTES = ROWS * COLUMNS * 4

SCAN = f"""
func.func @main(%h: {STATE}, %xs: {LINES}, %w: {SQUARE}) -> ({STATE}, {LINES}) {{
  %last, %all = graph.loop carry(%h : {STATE}) slices(%xs : {LINES}) reads(%w : {SQUARE}) {{
  ^bb0(%i: tensor<i64>, %a: {STATE}, %x: {STATE}, %v: {SQUARE}):
    %m = graph.matmul %a, %v : ({STATE}, {SQUARE}) -> {STATE}
    %s = graph.add %m, %x : ({STATE}, {STATE}) -> {STATE}
    %t = graph.relu %s : {STATE}
    graph.yield %t, %t : {STATE}, {STATE}
  }} -> {STATE}, {LINES}
  func.return %last, %all : {STATE}, {LINES}
}}
"""

ROTATED = """
func.func @main(
    %h: memref<16xf32>, %y: memref<16xf32> {graph.output = "y"}, %z: memref<5x16xf32> {graph.output = "z"}) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c5 = arith.constant 5 : index
  mem.copy %h to %y : memref<16xf32> to memref<16xf32>
  scf.for %i = %c0 to %c5 step %c1 {
    %new = memref.alloc() : memref<16xf32>
    func.call @k(%y, %new) : (memref<16xf32>, memref<16xf32>) -> ()
    %line = memref.subview %z[%i, 0] [1, 16] [1, 1] : memref<5x16xf32> to memref<16xf32, strided<[1], offset: ?>>
    mem.copy %new to %line : memref<16xf32> to memref<16xf32, strided<[1], offset: ?>>
    mem.copy %new to %y : memref<16xf32> to memref<16xf32>
  }
  func.return
}
func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @gemmini_fp32} {
  %c = arith.constant 2.0 : f32
  linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%x : memref<16xf32>) outs(%y : memref<16xf32>) {
  ^bb0(%a: f32, %b: f32):
    %d = arith.mulf %a, %c : f32
    linalg.yield %d : f32
  }
  func.return
}
"""


def lowered(text: str, machine: str, passes: str) -> ModuleOp:
    """A graph after the passes before `rotate-carried`, and these."""
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, machine)
    before = ",".join(pipeline("accel", machine)).split(",rotate-carried")[0]
    run_passes(ctx, module, read_pipeline(f"{before},{passes}"))
    return module


def after(text: str, passes: str = "rotate-carried") -> ModuleOp:
    """A program at the loop level after a pass."""
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, "gemmini-fp32")
    run_passes(ctx, module, read_pipeline(passes))
    return module


def run(module: ModuleOp) -> tuple[list[Array], int]:
    """What it computes of small integers, and the bytes that cross the edge of the chip."""
    rng, counters = np.random.default_rng(0), Counters()
    inputs = [rng.integers(-1, 2, spec.shape).astype(spec.dtype) for spec in signature_of(module).inputs]
    found = run_module(module, inputs, make_context().weights, counters=counters, seed=1)
    return found, counters.bytes_in + counters.bytes_out


def main_of(module: ModuleOp) -> func.FuncOp:
    return next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")


@pytest.mark.parametrize("machine", ["rapid-core-like", "neural-cluster"])
def test_the_state_and_the_weights_of_a_scan_cross_the_edge_once(machine: str) -> None:
    expected, most = run(lowered(SCAN, machine, "mem-plan"))
    module = lowered(SCAN, machine, "rotate-carried,mem-promote,mem-plan,mem-verify")
    prediction = predicted_traffic(module)
    assert prediction is not None
    runs = [run(module)]
    run_passes(make_context(), module, read_pipeline("loop-to-accel,cse,mem-verify,accel-check-hazards"))
    runs.append(run(module))
    for found, moved in runs:
        assert moved == prediction.total < most
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    # The first state and the last, each line in and out, and the matrix.
    assert prediction.total == 2 * LINE_BYTES + 2 * STEPS * LINE_BYTES + 32 * 32 * 4
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-1, 2, spec.shape).astype(spec.dtype) for spec in signature_of(module).inputs]
    for ours, theirs in zip(load_native(module).new_context()(inputs), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_without_a_way_into_the_scratchpad_the_state_goes_off_chip_and_the_weights_stay() -> None:
    module = lowered(SCAN, "gemmini-fp32", "rotate-carried,mem-promote,mem-plan,mem-verify")
    stays = [remark for remark in on_chip_remarks(module) if " stays in " in remark]
    (remark,) = stays
    assert remark.startswith("%w stays in ")
    assert "fill 4,096, 16,384 of 20,480 bytes saved" in remark


def buffers(function: Operation, name: str) -> list[BufferOp]:
    """The buffers in a scope that are called so."""
    found = (op for op in function.walk() if isinstance(op, BufferOp) and op.scope is not None)
    return [op for op in found if op.memref.name_hint == name]


@pytest.mark.parametrize("other", ["first state", "second state", "kernel"])
def test_bytes_that_every_iteration_reads_are_nobody_elses_in_the_loop(other: str) -> None:
    module = lowered(SCAN, "rapid-core-like", "rotate-carried,mem-promote,mem-plan")
    run_passes(make_context(), module, read_pipeline("mem-verify"))
    main = main_of(module)
    (weights,) = buffers(main, "w")
    first, second = buffers(main, "last")
    (own,) = buffers(module, "b")
    writer = {"first state": first, "second state": second, "kernel": own}[other]
    writer.offset = IntegerAttr(weights.byte_offset or 0, i64)
    with pytest.raises(UserError, match="share bytes"):
        run_passes(make_context(), module, read_pipeline("mem-verify"))
    # The interpreter, which knows nothing of liveness, finds it as well.
    with pytest.raises(UserError, match=r"overwritten|was written|undefined|another"):
        run(module)


def test_buffers_take_turns_and_the_copies_are_gone() -> None:
    expected, _ = run(after(ROTATED, "mem-plan"))
    module = after(ROTATED)
    (loop,) = (op for op in main_of(module).body.block.ops if isinstance(op, scf.ForOp))
    first, second = (op for op in loop.body.block.ops if isinstance(op, func.CallOp))
    assert list(first.arguments) == list(reversed(second.arguments))
    assert not [op for op in loop.walk() if isinstance(op, memref.AllocOp)]
    run_passes(make_context(), module, read_pipeline("mem-plan,mem-verify"))
    for ours, theirs in zip(run(module)[0], expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


OFTEN = """
func.func @main(%h: memref<16xf32>, %s: memref<100x16xf32> {graph.output = "s"},
    %z: memref<16xf32> {graph.output = "z"}) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c100 = arith.constant 100 : index
  %t = memref.alloc() : memref<16xf32>
  func.call @k(%h, %t) : (memref<16xf32>, memref<16xf32>) -> ()
  scf.for %i = %c0 to %c100 step %c1 {
    %line = memref.subview %s[%i, 0] [1, 16] [1, 1] : memref<100x16xf32> to memref<16xf32, strided<[1], offset: ?>>
    mem.copy %t to %line : memref<16xf32> to memref<16xf32, strided<[1], offset: ?>>
  }
  scf.for %i = %c0 to %c2 step %c1 {
    mem.copy %h to %z : memref<16xf32> to memref<16xf32>
    func.call @k(%t, %z) : (memref<16xf32>, memref<16xf32>) -> ()
  }
  func.return
}
func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @gemmini_fp32} {
  %tile = mem.buffer : memref<16xf32, "spad">
  mem.copy %x to %tile : memref<16xf32> to memref<16xf32, "spad">
  mem.copy %tile to %y : memref<16xf32, "spad"> to memref<16xf32>
  func.return
}
"""


def test_what_the_host_copies_often_is_written_back_for_it() -> None:
    expected, streamed = run(after(OFTEN, "mem-plan"))
    module = after(OFTEN, "mem-promote,mem-plan,mem-verify")
    found, moved = run(module)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # Made, written back once, and read in two iterations, of 64 bytes each.
    assert (streamed, moved) == (64 * 6, 64 * 4)
    (remark,) = (each for each in on_chip_remarks(module) if each.startswith("%t "))
    assert remark.endswith("from @k to @k: write-back 64, 128 of 192 bytes saved")


def test_a_tensor_stays_off_chip_where_the_copies_of_the_host_outweigh_what_its_kernels_save() -> None:
    make = OFTEN[OFTEN.index("  func.call") : OFTEN.index("  scf.for")]
    copies = OFTEN[OFTEN.index("  scf.for") : OFTEN.index("  scf.for %i = %c0 to %c2")].replace("%c100", "%c2")
    last = (
        f"  scf.for %i = %c0 to %c1 step %c1 {{\n{make}  }}\n  mem.copy %t to %z : memref<16xf32> to memref<16xf32>\n"
    )
    # Of three inputs none gains anything on chip.
    parts = make, copies, make.replace("%h", "%g"), copies, last.replace("%h", "%f")
    text = OFTEN[: OFTEN.index(make)] + "".join(parts) + OFTEN[OFTEN.index("  func.return") :]
    text = text.replace("%h: memref<16xf32>,", "%h: memref<16xf32>, %g: memref<16xf32>, %f: memref<16xf32>,")
    text = text.replace("100x", "2x")
    expected, streamed = run(after(text, "mem-plan"))
    module = after(text, "mem-promote,mem-plan,mem-verify")
    found, moved = run(module)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert moved == streamed == 64 * 6
    (remark,) = (each for each in on_chip_remarks(module) if each.startswith("%t "))
    assert remark.startswith("%t streams, 192 bytes: ")


PARTS = """
func.func @main(
    %h: memref<16xf32>, %y: memref<16xf32> {graph.output = "y"}, %s: memref<3x16xf32> {graph.output = "s"}) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  mem.copy %h to %y : memref<16xf32> to memref<16xf32>
  scf.for %i = %c0 to %c3 step %c1 {
    %line = memref.subview %s[%i, 0] [1, 16] [1, 1] : memref<3x16xf32> to memref<16xf32, strided<[1], offset: ?>>
    func.call @k(%y, %line) : (memref<16xf32>, memref<16xf32, strided<[1], offset: ?>>) -> ()
    mem.copy %line to %y : memref<16xf32, strided<[1], offset: ?>> to memref<16xf32>
  }
  func.return
}
func.func private @k(%x: memref<16xf32>, %y: memref<16xf32, strided<[1], offset: ?>>)
    attributes {device = @gemmini_fp32} {
  %tile = mem.buffer : memref<16xf32, "spad">
  mem.copy %x to %tile : memref<16xf32> to memref<16xf32, "spad">
  mem.copy %tile to %y : memref<16xf32, "spad"> to memref<16xf32, strided<[1], offset: ?>>
  func.return
}
"""


@pytest.mark.parametrize(("text", "before", "behind"), [(PARTS, 4, 5), (ROTATED, 11, 7)], ids=["parts", "buffers"])
def test_a_part_of_a_tensor_is_copied_as_often_as_before_and_a_buffer_at_the_ends_alone(
    text: str, before: int, behind: int
) -> None:
    def copies(module: ModuleOp) -> int:
        found = (op for op in main_of(module).walk() if isinstance(op, CopyOp))
        return sum(sum_over_loops(iteration_domain(op)) for op in found)

    plain, module = after(text, ""), after(text)
    assert (copies(plain), copies(module)) == (before, behind)
    for each in (plain, module):
        run_passes(make_context(), each, read_pipeline("mem-plan,mem-verify"))
    for ours, theirs in zip(run(module)[0], run(plain)[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)


UNTOUCHED = {
    "one iteration": ("%c5 step", "%c1 step"),
    "it is written again": (
        "    mem.copy %new to %y :",
        "    func.call @k(%new, %y) : (memref<16xf32>, memref<16xf32>) -> ()\n    mem.copy %new to %y :",
    ),
    "it is read behind the copy": (
        "  }\n  func.return\n}\nfunc.func private",
        "    func.call @k(%y, %h) : (memref<16xf32>, memref<16xf32>) -> ()\n  }\n  func.return\n}\nfunc.func private",
    ),
    "what is handed on changes behind the copy": (
        "  }\n  func.return\n}\nfunc.func private",
        "    mem.copy %h to %new : memref<16xf32> to memref<16xf32>\n  }\n  func.return\n}\nfunc.func private",
    ),
    "the host makes it": ("@gemmini_fp32", "@host"),
    "nothing makes it": ("func.call @k(%y, %new)", "func.call @k(%y, %h)"),
}


@pytest.mark.parametrize("why", UNTOUCHED)
def test_what_cannot_take_turns_is_left_alone(why: str) -> None:
    old, new = UNTOUCHED[why]
    assert old in ROTATED
    text = ROTATED.replace(old, new, 1)
    (loop,) = (op for op in main_of(after(text)).body.block.ops if isinstance(op, scf.ForOp))
    assert sum(isinstance(op, memref.AllocOp) for op in loop.walk()) == 1
