# SPDX-License-Identifier: Apache-2.0
"""A reduction may only run past its end into zeros where zeros there change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import is_contraction
from penstock.passes.schedule.zero_pads import may_run_past_its_end
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes

PRODUCT = "%p = arith.mulf %x, %y : f32 %s = arith.addf %z, %p : f32"
SWAPPED = "%p = arith.mulf %y, %x : f32 %s = arith.addf %p, %z : f32"
EXPONENTIAL = "%q = arith.mulf %x, %y : f32 %p = math.exp %q : f32 %s = arith.addf %z, %p : f32"
HORNER = "%p = arith.mulf %z, %x : f32 %s = arith.addf %p, %y : f32"
DIFFERENCE = "%q = arith.mulf %x, %y : f32 %p = arith.addf %q, %z : f32 %s = arith.subf %p, %x : f32"


def program(body: str, right: str = "(m, k) -> (k)", type: str = "tensor<5xf32>") -> str:
    return f"""
    func.func private @k(%a: tensor<4x5xf32>, %b: {type}, %c: tensor<4xf32>) -> tensor<4xf32> {{
      %r = linalg.generic {{indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<{right}>,
          affine_map<(m, k) -> (m)>], iterator_types = ["parallel", "reduction"]}}
          ins(%a, %b : tensor<4x5xf32>, {type}) outs(%c : tensor<4xf32>) {{
      ^bb0(%x: f32, %y: f32, %z: f32):
        {body}
        linalg.yield %s : f32
      }} -> tensor<4xf32>
      func.return %r : tensor<4xf32>
    }}
    func.func @main(%a: tensor<4x5xf32>, %b: {type}, %c: tensor<4xf32>) -> tensor<4xf32> {{
      %r = func.call @k(%a, %b, %c) : (tensor<4x5xf32>, {type}, tensor<4xf32>) -> tensor<4xf32>
      func.return %r : tensor<4xf32>
    }}"""


def generic(text: str) -> GenericOp:
    module = parse_text(make_context(), SourceText("in.mlir", text)).module
    return next(op for op in module.walk() if isinstance(op, GenericOp))


@pytest.mark.parametrize(
    ("body", "expected"),
    [(PRODUCT, True), (SWAPPED, True), (EXPONENTIAL, False), (HORNER, False), (DIFFERENCE, False)],
    ids=["product", "swapped", "exponential", "horner", "difference"],
)
def test_only_sums_of_products_are_contractions(body: str, expected: bool) -> None:
    op = generic(program(body))
    assert is_contraction(op) is expected
    assert may_run_past_its_end(op, 1) is expected


def test_a_factor_that_stands_still_could_be_infinite() -> None:
    assert not may_run_past_its_end(generic(program(PRODUCT, "(m, k) -> (m)", "tensor<4xf32>")), 1)


@pytest.mark.parametrize("body", [EXPONENTIAL, HORNER, DIFFERENCE], ids=["exponential", "horner", "difference"])
def test_a_tile_that_does_not_divide_is_refused_where_zeros_count(body: str) -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", program(body))).module
    with pytest.raises(UserError, match="tile size 2 does not divide the reduction dim 1 of 5"):
        run_passes(ctx, module, read_pipeline("tile{sizes=4,2}"))


def test_a_sum_of_products_is_the_same_with_zeros_behind_its_end() -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", program(PRODUCT))).module
    run_passes(ctx, module, read_pipeline("tile{sizes=4,2}"))
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((4, 5), (5,), (4,)))
    np.testing.assert_array_equal(run_module(module, [a, b, c], WeightStore())[0], c + a @ b)
