# SPDX-License-Identifier: Apache-2.0
"""Schedules of tensor-level primitives go down to a machine: every level computes what the program does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from programs import parsed_in_context
from xdsl.dialects.func import FuncOp

from penstock.passes.analysis.kernels import multiply_accumulates
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.schedules import read_schedules

PROGRAM = """#id = affine_map<(m, n) -> (m, n)>
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func private @layer(%x: tensor<32x64xf32>, %w: tensor<64x48xf32>, %y: tensor<32x48xf32>) -> tensor<32x48xf32> {
  %e = tensor.empty() : tensor<32x48xf32>
  %zero = arith.constant 0.0 : f32
  %fill = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<32x48xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<32x48xf32>
  %mm = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<32x64xf32>, tensor<64x48xf32>) outs(%fill : tensor<32x48xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %m = arith.mulf %p, %q : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  } -> tensor<32x48xf32>
  %f = tensor.empty() : tensor<32x48xf32>
  %sum = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%mm, %y : tensor<32x48xf32>, tensor<32x48xf32>) outs(%f : tensor<32x48xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.addf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<32x48xf32>
  func.return %sum : tensor<32x48xf32>
}
func.func @main(%x: tensor<32x64xf32>, %w: tensor<64x48xf32>, %y: tensor<32x48xf32>) -> tensor<32x48xf32> {
  %r = func.call @layer(%x, %w, %y) : (tensor<32x64xf32>, tensor<64x48xf32>, tensor<32x48xf32>) -> tensor<32x48xf32>
  func.return %r : tensor<32x48xf32>
}
"""

HANDLE = "!transform.any_op"
HEAD = f"""transform.named_sequence @layer(%kernel: {HANDLE} {{transform.readonly}}) {{
  %all = transform.structured.match ops{{["linalg.generic"]}} in %kernel : ({HANDLE}) -> {HANDLE}
  %fill, %mm, %sum = transform.split_handle %all : ({HANDLE}) -> ({HANDLE}, {HANDLE}, {HANDLE})
"""


def typed(line: str, inputs: int, outputs: int) -> str:
    """An op with its type: so many handles to so many."""
    results = ", ".join([HANDLE] * outputs)
    return f"{line} : ({', '.join([HANDLE] * inputs)}) -> ({results})"


SCHEDULES = {
    "all in one tile": ["%t:6 = schedule.tile %mm fusing(%fill, %sum) sizes [16, 16, 32]"],
    "in two steps": [
        typed("%t, %i, %j = transform.structured.tile_using_for %sum tile_sizes [16, 16]", 1, 3),
        "%m = schedule.compute_at %mm at %j",
        "%f = schedule.compute_at %fill at %j",
        typed("%u, %k = transform.structured.tile_using_for %m tile_sizes [0, 0, 32]", 1, 2),
    ],
    "fuse": [
        typed("%t, %i, %j = transform.structured.fuse %sum [16, 48]", 1, 3),
    ],
    "two levels": [
        typed("%t, %i = transform.structured.fuse %sum [16]", 1, 2),
        typed('%inner = transform.structured.match ops{["linalg.generic"]} in %i', 1, 1),
        typed("%f, %m, %s = transform.split_handle %inner", 1, 3),
        "%u:6 = schedule.tile %m fusing(%f, %s) sizes [8, 24, 16]",
    ],
    "the product twice": [
        typed("%t, %i, %j = transform.structured.tile_using_for %mm tile_sizes [16, 24]", 1, 3),
        typed("%u, %k = transform.structured.tile_using_for %t tile_sizes [0, 0, 16]", 1, 2),
        typed("%v, %l = transform.structured.tile_using_for %sum tile_sizes [16]", 1, 2),
        typed("%w, %n = transform.structured.tile_using_for %fill tile_sizes [16]", 1, 2),
    ],
    "the sum follows the product": [
        typed("%t, %i, %j = transform.structured.tile_using_for %mm tile_sizes [16, 16]", 1, 3),
        "%f = schedule.compute_at %fill at %j",
        "%s = schedule.reverse_compute_at %sum at %j",
    ],
    "tiles at once": [
        typed("%t, %i = transform.structured.tile_using_forall %sum tile_sizes [16, 16]", 1, 2),
        "%m = schedule.compute_at %mm at %i",
        "%f = schedule.compute_at %fill at %i",
        typed("%u, %k = transform.structured.tile_using_for %m tile_sizes [0, 0, 32]", 1, 2),
    ],
    "sums outside": [
        typed(
            "%t, %l:2 = transform.structured.tile_using_for %mm tile_sizes [0, 16, 32] interchange = [2, 1, 0]", 1, 3
        ),
    ],
    "interchanged": [
        f"%t = transform.structured.interchange %mm iterator_interchange = [1, 0, 2] : ({HANDLE}) -> {HANDLE}",
        "%u:6 = schedule.tile %t fusing(%fill, %sum) sizes [16, 16, 32]",
    ],
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_by_hand_runs_on_a_machine(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((32, 64), (64, 48), (32, 48))]
    expected = inputs[0] @ inputs[1] + inputs[2]
    path = tmp_path / "s.mlir"
    path.write_text(HEAD + "\n".join(SCHEDULES[name]) + "\n  transform.yield\n}\n")
    for level in ("tensor", "loop", "accel"):
        ctx, module = parsed_in_context(PROGRAM)
        ctx.schedules.given = read_schedules(path)
        compile_module(module, ctx, "gemmini-fp32", level)
        np.testing.assert_array_equal(run_module(module, inputs, ctx.weights)[0], expected, err_msg=level)
        if level == "accel":
            assert any(op.name == "accel.exec" for op in module.walk())


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_keeps_the_work_of_a_product(name: str, tmp_path: Path) -> None:
    path = tmp_path / "s.mlir"
    path.write_text(HEAD + "\n".join(SCHEDULES[name]) + "\n  transform.yield\n}\n")
    ctx, module = parsed_in_context(PROGRAM)
    ctx.schedules.given = read_schedules(path)
    run_passes(ctx, module, read_pipeline("tile"))
    (layer,) = (op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "layer")
    assert multiply_accumulates(layer) == 32 * 48 * 64
