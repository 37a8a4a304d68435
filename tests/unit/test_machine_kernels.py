# SPDX-License-Identifier: Apache-2.0
"""One layer on each machine that multiplies: which of its commands it takes, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.accel import ExecOp
from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import partition, share_on_machine
from penstock.runtime.compiler import compile_module
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module

Array = NDArray[Any]
M, N, K = 37, 50, 29
"""No multiple of any block."""

FLOATS = f"""
func.func @main(%a: tensor<{M}x{K}xf16>, %b: tensor<{K}x{N}xf16>, %c: tensor<{N}xf32>) -> tensor<{M}x{N}xf16> {{
  %ab = graph.matmul %a, %b accumulate f32 : (tensor<{M}x{K}xf16>, tensor<{K}x{N}xf16>) -> tensor<{M}x{N}xf32>
  %s = graph.add %ab, %c : (tensor<{M}x{N}xf32>, tensor<{N}xf32>) -> tensor<{M}x{N}xf32>
  %r = graph.relu %s : tensor<{M}x{N}xf32>
  %y = graph.cast %r : tensor<{M}x{N}xf32> -> tensor<{M}x{N}xf16>
  func.return %y : tensor<{M}x{N}xf16>
}}
"""

INTEGERS = f"""
func.func @main(%a: tensor<{M}x{K}xi8>, %b: tensor<{K}x{N}xi8>) -> tensor<{M}x{N}xi32> {{
  %y = graph.matmul %a, %b accumulate i32 : (tensor<{M}x{K}xi8>, tensor<{K}x{N}xi8>) -> tensor<{M}x{N}xi32>
  func.return %y : tensor<{M}x{N}xi32>
}}
"""

# A bias, and results narrowed to 8 bits in one op, as at the tensor level: between bounds LOW and 127.
NARROWED = f"""
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#sum = affine_map<(m, n, k) -> (m, n)>
#mn = affine_map<(m, n) -> (m, n)>
#n = affine_map<(m, n) -> (n)>
func.func @main(%a: tensor<{M}x{K}xi8>, %b: tensor<{K}x{N}xi8>, %c: tensor<{N}xi32>) -> tensor<{M}x{N}xi8> {{
  %y = func.call @layer(%a, %b, %c) : (tensor<{M}x{K}xi8>, tensor<{K}x{N}xi8>, tensor<{N}xi32>) -> tensor<{M}x{N}xi8>
  func.return %y : tensor<{M}x{N}xi8>
}}
func.func private @layer(%a: tensor<{M}x{K}xi8>, %b: tensor<{K}x{N}xi8>, %c: tensor<{N}xi32>) -> tensor<{M}x{N}xi8> {{
  %zero = arith.constant 0 : i32
  %low = arith.constant LOW : i32
  %high = arith.constant 127 : i32
  %e = tensor.empty() : tensor<{M}x{N}xi32>
  %f = linalg.generic {{indexing_maps = [#mn], iterator_types = ["parallel", "parallel"]}}
      outs(%e : tensor<{M}x{N}xi32>) {{
  ^bb0(%o: i32):
    linalg.yield %zero : i32
  }} -> tensor<{M}x{N}xi32>
  %ab = linalg.generic {{indexing_maps = [#mk, #kn, #sum], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%a, %b : tensor<{M}x{K}xi8>, tensor<{K}x{N}xi8>) outs(%f : tensor<{M}x{N}xi32>) {{
  ^bb0(%x: i8, %y: i8, %o: i32):
    %xw = arith.extsi %x : i8 to i32
    %yw = arith.extsi %y : i8 to i32
    %p = arith.muli %xw, %yw : i32
    %s = arith.addi %o, %p : i32
    linalg.yield %s : i32
  }} -> tensor<{M}x{N}xi32>
  %e1 = tensor.empty() : tensor<{M}x{N}xi32>
  %biased = linalg.generic {{indexing_maps = [#mn, #n, #mn], iterator_types = ["parallel", "parallel"]}}
      ins(%ab, %c : tensor<{M}x{N}xi32>, tensor<{N}xi32>) outs(%e1 : tensor<{M}x{N}xi32>) {{
  ^bb0(%x: i32, %y: i32, %o: i32):
    %s = arith.addi %x, %y : i32
    linalg.yield %s : i32
  }} -> tensor<{M}x{N}xi32>
  %e2 = tensor.empty() : tensor<{M}x{N}xi8>
  %narrow = linalg.generic {{indexing_maps = [#mn, #mn], iterator_types = ["parallel", "parallel"]}}
      ins(%biased : tensor<{M}x{N}xi32>) outs(%e2 : tensor<{M}x{N}xi8>) {{
  ^bb0(%x: i32, %o: i8):
    %above = arith.maxsi %x, %low : i32
    %within = arith.minsi %above, %high : i32
    %t = arith.trunci %within : i32 to i8
    linalg.yield %t : i8
  }} -> tensor<{M}x{N}xi8>
  func.return %narrow : tensor<{M}x{N}xi8>
}}
"""


def run(text: str, machine: str, inputs: list[Array]) -> tuple[ModuleOp, list[Array]]:
    """The program compiled for a machine, and its result by the interpreter in two orders and by C."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("layer.mlir", text)).module
    compile_module(module, ctx, machine, "accel")
    found = [run_module(module, inputs, ctx.weights, seed=seed)[0] for seed in (None, 7)]
    return module, [*found, Engine(module, ctx, backend="native")(*inputs)[0]]


def commands(module: ModuleOp) -> set[str]:
    """The intrinsics that the program issues."""
    assert share_on_machine(partition(module)) == 1.0
    return {op.intrinsic_name for op in module.walk() if isinstance(op, ExecOp)}


def integers(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("h100-sm", {"zero", "wgmma", "add", "relu", "narrow"}),
        ("smaug-smv", {"zero_outputs", "macc", "vec_add", "vec_relu", "store_narrow"}),
    ],
)
def test_a_layer_in_16_bits_stays_on_the_chip_until_it_is_narrowed(machine: str, expected: set[str]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((M, K), (K, N)))
    c = rng.standard_normal(N).astype(np.float32)
    module, results = run(FLOATS, machine, [a, b, c])
    assert expected <= commands(module)
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + c, 0)
    for result in results:
        # f32 sums, then one rounding to f16.
        np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=2**-10, atol=1e-5)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [("gemmini", {"zero_acc", "gemm"}), ("snax-opengemm", {"zero_d", "zero_ab", "gemm_8x8x8"})],
)
def test_a_product_in_8_bits_is_summed_in_32(machine: str, expected: set[str]) -> None:
    rng = np.random.default_rng(0)
    a, b = integers(rng, M, K), integers(rng, K, N)
    module, results = run(INTEGERS, machine, [a, b])
    assert commands(module) >= expected
    wanted = a.astype(np.int32) @ b.astype(np.int32)
    assert np.abs(wanted).max() > 2**15
    for result in results:
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(("low", "narrowing"), [(-128, "mvout_narrow"), (0, "mvout_narrow_relu")])
def test_gemmini_adds_the_bias_on_the_way_in_and_narrows_on_the_way_out(low: int, narrowing: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (M, K)).astype(np.int8), rng.integers(-9, 10, (K, N)).astype(np.int8)
    c = rng.integers(-50, 51, N).astype(np.int32)
    module, results = run(NARROWED.replace("LOW", str(low)), "gemmini", [a, b, c])
    # Zeros stand behind the end of a reduction, where a tile does not divide it.
    assert commands(module) - {"zero_spad"} == {"zero_acc", "gemm", "mvin_add", narrowing}
    exact = a.astype(np.int32) @ b.astype(np.int32) + c
    assert exact.min() < -128
    assert exact.max() > 127
    for result in results:
        np.testing.assert_array_equal(result, np.clip(exact, low, 127))
