# SPDX-License-Identifier: Apache-2.0
"""What an op writes over may be undefined: no primitive copies it, so that every byte that a plan holds is written."""

from __future__ import annotations

import numpy as np
import pytest
from programs import parsed_in_context
from schedules import apply_schedule

from penstock.dialects.mem import BufferOp, CopyOp
from penstock.dialects.weights import WeightStore
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes

SUMS = """#row = affine_map<(i) -> (i)>
func.func @main(%x: tensor<8xi32>) -> tensor<8xi32> {
  %e = tensor.empty() : tensor<8xi32>
  %zero = arith.constant 0 : i32
  %fill = linalg.generic {indexing_maps = [#row], iterator_types = ["parallel"]} outs(%e : tensor<8xi32>) {
  ^bb0(%o: i32):
    linalg.yield %zero : i32
  } -> tensor<8xi32>
  %sum = linalg.generic {indexing_maps = [#row, #row], iterator_types = ["parallel"]}
      ins(%x : tensor<8xi32>) outs(%fill : tensor<8xi32>) {
  ^bb0(%a: i32, %o: i32):
    %s = arith.addi %o, %a : i32
    linalg.yield %s : i32
  } -> tensor<8xi32>
  %f = tensor.empty() : tensor<8xi32>
  %square = linalg.generic {indexing_maps = [#row, #row], iterator_types = ["parallel"]}
      ins(%sum : tensor<8xi32>) outs(%f : tensor<8xi32>) {
  ^bb0(%a: i32, %o: i32):
    %s = arith.muli %a, %a : i32
    linalg.yield %s : i32
  } -> tensor<8xi32>
  func.return %square : tensor<8xi32>
}
"""
LOOPS = {
    name: f"%t, %l = transform.structured.tile_using_{name} %fill tile_sizes [4]"
    " : (!transform.any_op) -> (!transform.any_op, !transform.any_op)\n"
    for name in ("for", "forall")
}
PIECES = {
    "padded": '%u = schedule.tile %t sizes [6] edges ["padded"]',
    "overlapping": '%u, %m = schedule.tile %t sizes [3] edges ["overlap"]',
    "in iterations of its own": "%u, %m = transform.structured.tile_using_for %t tile_sizes [2]"
    " : (!transform.any_op) -> (!transform.any_op, !transform.any_op)\n"
    "%w, %n = transform.structured.tile_using_forall %u tile_sizes [1]"
    " : (!transform.any_op) -> (!transform.any_op, !transform.any_op)",
    "with a pad": "%u, %pads, %copy = transform.structured.pad %t pad_to_multiple_of [3] "
    '{copy_back_op = "none", padding_dimensions = [0], padding_values = [0 : i32]}'
    " : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)",
}


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_part_of_what_a_loop_carries_is_written_over_without_a_copy_of_it(loop: str, piece: str) -> None:
    ctx, module = parsed_in_context(SUMS)
    apply_schedule(ctx, module, LOOPS[loop] + PIECES[piece])
    assert "tensor.pad" not in str(module)
    run_passes(ctx, module, read_pipeline("tensor-to-loop,forall-to-for,mem-plan"))
    x = np.arange(8, dtype=np.int32)
    np.testing.assert_array_equal(run_module(module, [x], WeightStore())[0], x * x)


ACCUMULATED = """#id = affine_map<(m, n) -> (m, n)>
func.func @main(%x: memref<64x16xf32>, %y: memref<64x16xf32> {graph.output = "y"}) attributes {device = @gemmini_fp32} {
  %from = arith.constant 0 : index
  %step = arith.constant 16 : index
  %to = arith.constant 64 : index
  %zero = arith.constant 0.0 : f32
  %sum = memref.alloc() : memref<16x16xf32>
  FIRST
  scf.for %i = %from to %to step %step {
    %a = memref.subview %x[%i, 0] [16, 16] [1, 1]
        : memref<64x16xf32> to memref<16x16xf32, strided<[16, 1], offset: ?>>
    %b = memref.subview %y[%i, 0] [16, 16] [1, 1]
        : memref<64x16xf32> to memref<16x16xf32, strided<[16, 1], offset: ?>>
    EACH
    linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%a : memref<16x16xf32, strided<[16, 1], offset: ?>>) outs(%sum : memref<16x16xf32>) {
    ^bb0(%p: f32, %q: f32):
      %s = arith.addf %p, %q : f32
      linalg.yield %s : f32
    }
    mem.copy %sum to %b : memref<16x16xf32> to memref<16x16xf32, strided<[16, 1], offset: ?>>
  }
  func.return
}
"""
FILL = """linalg.generic {{indexing_maps = [#id], iterator_types = ["parallel", "parallel"]}}
    outs({} : memref<16x16xf32{}>) {{
^bb0(%q: f32):
  linalg.yield %zero : f32
}}"""
VIEW = """%view = memref.subview %sum[0, 0] [16, 16] [1, 1] : memref<16x16xf32> to memref<16x16xf32, strided<[16, 1]>>
"""
FILLS = {
    "in the loop": ("", FILL.format("%sum", "")),
    "before it": (FILL.format("%sum", ""), ""),
    "through a view": (VIEW + FILL.format("%view", ", strided<[16, 1]>"), ""),
}


@pytest.mark.parametrize("fill", FILLS)
def test_an_allocation_is_copied_into_a_scope_only_where_it_may_have_been_written(fill: str) -> None:
    first, each = FILLS[fill]
    ctx, module = parsed_in_context(ACCUMULATED.replace("FIRST", first).replace("EACH", each))
    attach_machine(module, "gemmini-fp32")
    ops = """
    %all = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %fill, %sum = transform.split_handle %all : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %copy = schedule.stage_out %sum[1] in "acc"
    """
    apply_schedule(ctx, module, ops)
    (buffer,) = (op for op in module.walk() if isinstance(op, BufferOp))
    fills = [use for use in buffer.memref.uses if isinstance(use.operation, CopyOp) and use.index == 1]
    assert len(fills) == (fill == "through a view")
    run_passes(ctx, module, read_pipeline("mem-plan"))
    x = np.arange(1024, dtype=np.float32).reshape(4, 16, 16)
    expected = (x if each else x.cumsum(0)).reshape(64, 16)
    np.testing.assert_array_equal(run_module(module, [x.reshape(64, 16)], WeightStore())[0], expected)


TWICE = """#id = affine_map<(m, n) -> (m, n)>
func.func @main(%x: memref<16x16xf32>, %y: memref<16x16xf32> {graph.output = "y"}) attributes {device = @gemmini_fp32} {
  %a = memref.subview %y[0, 0] [16, 16] [1, 1] : memref<16x16xf32> to memref<16x16xf32, strided<[16, 1]>>
  %b = memref.subview %y[0, 0] [16, 16] [1, 1] : memref<16x16xf32> to memref<16x16xf32, strided<[16, 1]>>
  mem.copy %x to %b : memref<16x16xf32> to memref<16x16xf32, strided<[16, 1]>>
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%b : memref<16x16xf32, strided<[16, 1]>>) outs(%a : memref<16x16xf32, strided<[16, 1]>>) {
  ^bb0(%p: f32, %q: f32):
    %s = arith.addf %p, %p : f32
    linalg.yield %s : f32
  }
  func.return
}
"""


def test_what_an_op_only_reads_is_not_copied_back_over_what_it_writes_through_another_view() -> None:
    ctx, module = parsed_in_context(TWICE)
    attach_machine(module, "gemmini-fp32")
    ops = """
    %double = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %copy = schedule.stage_out %double[0] in "spad"
    """
    apply_schedule(ctx, module, ops)
    run_passes(ctx, module, read_pipeline("mem-plan"))
    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    np.testing.assert_array_equal(run_module(module, [x], WeightStore())[0], 2 * x)
