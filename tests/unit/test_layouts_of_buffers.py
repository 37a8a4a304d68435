# SPDX-License-Identifier: Apache-2.0
"""`schedule.layout`: the order in which a buffer is stored changes no value, and what cannot follow it is refused."""

from __future__ import annotations

import numpy as np
import pytest
from in_c import agree
from programs import parsed_in_context
from schedules import apply_schedule
from xdsl.dialects import memref

from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import memref_of, static_strides
from penstock.dialects.weights import WeightStore
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify

PROGRAM = """#id = affine_map<(i, j, k) -> (i, j, k)>
func.func @main(%x: memref<4x6x8xf32>, %y: memref<4x6x8xf32> {graph.output = "y"}) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %b = memref.alloc() : memref<4x6x8xf32>
  mem.copy %x to %b : memref<4x6x8xf32> to memref<4x6x8xf32>
  scf.for %i = %c0 to %c4 step %c1 {
    %page = memref.subview %b[%i, 0, 0] [1, 6, 8] [1, 1, 1]
        : memref<4x6x8xf32> to memref<6x8xf32, strided<[8, 1], offset: ?>>
    linalg.generic {
        indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
        outs(%page : memref<6x8xf32, strided<[8, 1], offset: ?>>) {
    ^bb0(%old: f32):
      %twice = arith.addf %old, %old : f32
      linalg.yield %twice : f32
    }
    %v = memref.load %b[%i, %c1, %c4] : memref<4x6x8xf32>
    memref.store %v, %b[%i, %c0, %c4] : memref<4x6x8xf32>
  }
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%b : memref<4x6x8xf32>) outs(%y : memref<4x6x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    linalg.yield %a : f32
  }
  func.return
}
"""


@pytest.mark.parametrize(
    ("order", "strides"),
    [((0, 1, 2), (48, 8, 1)), ((2, 1, 0), (1, 4, 24)), ((1, 2, 0), (1, 32, 4)), ((0, 2, 1), (48, 1, 6))],
)
def test_another_order_of_the_dims_changes_no_value(order: tuple[int, ...], strides: tuple[int, ...]) -> None:
    ctx, module = parsed_in_context(PROGRAM)
    inputs = [np.arange(4 * 6 * 8, dtype=np.float32).reshape(4, 6, 8)]
    expected = run_module(module.clone(), inputs, WeightStore())
    apply_schedule(ctx, module, f"schedule.layout %b order {list(order)}")
    verify(module)
    (buffer,) = (op for op in module.walk() if isinstance(op, memref.AllocOp))
    assert static_strides(memref_of(buffer.memref)) == strides
    np.testing.assert_array_equal(run_module(module.clone(), inputs, WeightStore())[0], expected[0])
    run_passes(ctx, module, read_pipeline("mem-plan"))
    np.testing.assert_array_equal(agree(module, inputs)[0], expected[0])


ON_CHIP = """#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func private @k(%x: memref<8x4xf32>) attributes {device = @gemmini_fp32} {
  %a = mem.buffer : memref<8x4xf32, "spad">
  %b = mem.buffer : memref<4x4xf32, "spad">
  %c = mem.buffer : memref<8x4xf32, "acc">
  %d = mem.buffer : memref<8x4xf32, "spad">
  %e = mem.buffer at 0 : memref<8x4xf32, "spad">
  mem.copy %x to %d : memref<8x4xf32> to memref<8x4xf32, "spad">
  linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"],
      library_call = "gemm"}
      ins(%a, %b : memref<8x4xf32, "spad">, memref<4x4xf32, "spad">) outs(%c : memref<8x4xf32, "acc">) {
  ^bb0(%p: f32, %q: f32, %r: f32):
    %s = arith.mulf %p, %q : f32
    %t = arith.addf %r, %s : f32
    linalg.yield %t : f32
  }
  %f = mem.buffer : memref<4x4xf32, "spad">
  %g = memref.collapse_shape %f [[0, 1]] : memref<4x4xf32, "spad"> into memref<16xf32, "spad">
  func.return
}
"""


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("schedule.layout %a order [1, 0]", "this op is not @gemm: .* does not move operand a by one element"),
        ("schedule.layout %d order [1, 0]", 'would move single elements, and a granule of "spad" is 16 bytes'),
        ("schedule.layout %e order [1, 0]", "this buffer has its place already"),
        ("schedule.layout %f order [1, 0]", "memref.collapse_shape needs the layout that this buffer has"),
        ("schedule.layout %a order [2, 1, 0]", "is no order of the dims of memref<8x4xf32"),
        ("schedule.layout %a order [1, 1]", "is no order of the dims of memref<8x4xf32"),
        ("schedule.layout %copy order [1, 0]", "a layout is that of a memref.alloc or a mem.buffer, not of mem.copy"),
    ],
)
def test_what_cannot_follow_is_refused_and_nothing_changes(op: str, message: str) -> None:
    ctx, module = parsed_in_context(ON_CHIP)
    attach_machine(module, "gemmini-fp32")
    before = str(module)
    with pytest.raises(UserError, match=message):
        apply_schedule(ctx, module, op)
    assert str(module) == before
