# SPDX-License-Identifier: Apache-2.0
"""Pointwise kernels of the machine lose their dims of size 1, in what they hold as well."""

from __future__ import annotations

import numpy as np
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.weights import WeightStore
from penstock.passes.tensor.unit_dims import drop_unit_dims
from penstock.runtime.interpreter import run_module

TEXT = """
func.func @main(%x: tensor<6x1xf32>) -> tensor<6x1xf32> {
  %y = func.call @kernel(%x) : (tensor<6x1xf32>) -> tensor<6x1xf32>
  func.return %y : tensor<6x1xf32>
}
func.func private @kernel(%x: tensor<6x1xf32>) -> tensor<6x1xf32> {
  %c = arith.constant dense<[[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]]> : tensor<6x1xf32>
  %e = tensor.empty() : tensor<6x1xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%x, %c : tensor<6x1xf32>, tensor<6x1xf32>) outs(%e : tensor<6x1xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.mulf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<6x1xf32>
  func.return %y : tensor<6x1xf32>
}
"""


def parsed() -> ModuleOp:
    return Parser(make_context(), TEXT).parse_module()


def test_a_constant_of_the_kernel_loses_them_with_its_values() -> None:
    before, after = parsed(), parsed()
    kernel = [op for op in after.ops if isinstance(op, func.FuncOp)][1]
    drop_unit_dims(kernel, after)
    after.verify()
    (constant,) = [op for op in kernel.walk() if isinstance(op, arith.ConstantOp)]
    assert str(constant.result.type) == "tensor<6xf32>"
    x = np.arange(6, dtype=np.float32).reshape(6, 1)
    found, expected = (run_module(module, [x], WeightStore())[0] for module in (after, before))
    np.testing.assert_array_equal(found, expected)
