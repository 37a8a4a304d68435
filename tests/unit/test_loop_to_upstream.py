# SPDX-License-Identifier: Apache-2.0
"""Programs of the loop level in MLIR's own dialects: memory, copies, and what MLIR's tools compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from programs import parsed, parsed_in_context
from sampling import sweep
from upstream_tools import needs_tools, run_by_mlir

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.loop_to_upstream import LowerToUpstreamPass
from penstock.runtime.interpreter import run_module
from penstock.tools.fuzz.loop_programs import BUFFERS, SIZE, loop_program

RING = """func.func @main(%x: memref<8x3xf32>, %y: memref<8x3xf32> {graph.output = "y"},
                %z: memref<3x3xf32> {graph.output = "z"}) {
  %zero = arith.constant 0.000000e+00 : f32
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c10 = arith.constant 10 : index
  %ring = mem.ring 3 pitch 64 at 32 : !mem.ring<memref<3x3xf32, strided<[4, 1]>, "spad">>
  %held = mem.buffer at 4 : memref<3x3xf32>
  scf.for %i = %c0 to %c10 step %c2 {
    %at = arith.subi %i, %c3 : index
    %slot = mem.slot %ring[%i] : !mem.ring<memref<3x3xf32, strided<[4, 1]>, "spad">>
    mem.copy %x[%at, -1] to %slot else %zero : memref<8x3xf32> to memref<3x3xf32, strided<[4, 1]>, "spad">
    "memref.copy"(%slot, %held) : (memref<3x3xf32, strided<[4, 1]>, "spad">, memref<3x3xf32>) -> ()
    mem.copy %held to %y[%at, 1] : memref<3x3xf32> to memref<8x3xf32>
    mem.copy %held to %y[%at, -1] : memref<3x3xf32> to memref<8x3xf32>
  }
  %before = mem.slot %ring[%c10] : !mem.ring<memref<3x3xf32, strided<[4, 1]>, "spad">>
  mem.copy %before to %z : memref<3x3xf32, strided<[4, 1]>, "spad"> to memref<3x3xf32>
  func.return
}"""


def test_rings_pitches_and_windows_that_leave_both_sides(tmp_path: Path) -> None:
    needs_tools()
    ctx, module = parsed_in_context(RING)
    x = np.arange(1, 25, dtype=np.float32).reshape(8, 3)
    expected = run_module(module, [x], WeightStore())
    for ours, theirs in zip(expected, run_by_mlir(module, ctx, [x], tmp_path), strict=True):
        written = np.isfinite(ours)
        assert written.sum() >= 9
        np.testing.assert_array_equal(theirs[written], ours[written])


@pytest.mark.parametrize("seed", sweep(range(200), range(3)))
def test_random_programs_compute_the_same_by_mlir(seed: int, tmp_path: Path) -> None:
    needs_tools()
    ctx, module = parsed_in_context(loop_program(seed))
    random = np.random.default_rng(seed)
    inputs = [random.integers(-9, 9, (SIZE, SIZE)).astype(np.int32) for _ in range(BUFFERS)]
    expected = run_module(module, inputs, WeightStore())
    for ours, theirs in zip(expected, run_by_mlir(module, ctx, inputs, tmp_path), strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_names_that_are_taken_stay_with_what_has_them() -> None:
    text = """func.func @spad(%x: memref<4xf32>) {
  %b = mem.buffer at 8 : memref<4xf32, "spad">
  mem.copy %x to %b : memref<4xf32> to memref<4xf32, "spad">
  func.return
}"""
    module = parsed(text)
    LowerToUpstreamPass().apply(make_context(), module)
    module.verify()
    names = [op.properties["sym_name"].data for op in module.ops]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    assert names == ["spad_", "spad"]


REFUSED = {
    "no offset": ("%b = mem.buffer : memref<4xf32>", "run `mem-plan` first"),
    "a graph op": ("%y = graph.relu %t : tensor<4xf32>", "graph.relu is not lowered to MLIR's own dialects"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_lowered_is_refused_in_place(case: str) -> None:
    operation, message = REFUSED[case]
    text = f"func.func @f(%t: tensor<4xf32>) {{\n  {operation}\n  func.return\n}}"
    module = parse_text(make_context(), SourceText("f.mlir", text)).module
    with pytest.raises(UserError) as refusal:
        LowerToUpstreamPass().apply(make_context(), module)
    assert message in " ".join((str(refusal.value), *refusal.value.notes))
    assert "f.mlir:2:" in str(refusal.value)
