# SPDX-License-Identifier: Apache-2.0
"""`math.fma`: how it rounds, the pass that makes it, and that a contraction with it stays a contraction."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_c import agree, needs_compiler
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.math import FmaOp

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import is_contraction
from penstock.passes.analysis.reductions import combiners
from penstock.runtime.interpreter import bits, run_module
from penstock.runtime.interpreter.generic import evaluator_of
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import passes_for
from penstock.tools.lockstep import lockstep

Array = NDArray[Any]


def exact(a: float, b: float, c: float) -> float:
    """a * b + c of finite numbers by Python's integers; a zero without its sign."""
    total = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(total)
    except OverflowError:
        return float("inf") if total > 0 else -float("inf")


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE, FINITE, FINITE)
def test_a_fused_multiply_add_of_f64_rounds_once(a: float, b: float, c: float) -> None:
    assert bits.fused_multiply_add_of_f64(a, b, c) == exact(a, b, c)


def test_products_that_nearly_cancel_round_once() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(20_000), rng.standard_normal(20_000)
    for scale in (0.0, 2.0**-53, 2.0**-60, 2.0**-100, 1.0, 2.0**60):
        c: Array = -a * b * (1 + scale * rng.integers(-2, 3, a.size)) + scale * rng.standard_normal(a.size)
        found = bits.fused_multiply_add_of_f64(a, b, c)
        assert found.tolist() == list(map(exact, a.tolist(), b.tolist(), c.tolist()))


def fma_program(element: str, count: int) -> ModuleOp:
    memref, same = f"memref<{count}x{element}>", ", ".join(["affine_map<(d0) -> (d0)>"] * 4)
    text = f"""func.func @main(%a: {memref} {{graph.input = "a"}}, %b: {memref} {{graph.input = "b"}},
        %c: {memref} {{graph.input = "c"}}, %y: {memref} {{graph.output = "y"}}) {{
      linalg.generic {{indexing_maps = [{same}], iterator_types = ["parallel"]}}
          ins(%a, %b, %c : {memref}, {memref}, {memref}) outs(%y : {memref}) {{
      ^bb0(%p: {element}, %q: {element}, %r: {element}, %old: {element}):
        %s = math.fma %p, %q, %r : {element}
        linalg.yield %s : {element}
      }}
      func.return
    }}"""
    return parse_text(make_context(), SourceText("fma.mlir", text)).module


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_c_rounds_a_fused_multiply_add_as_the_interpreter_does(dtype: Any) -> None:
    limits = np.finfo(dtype)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, limits.max, limits.tiny, limits.smallest_subnormal]
    points = np.array(np.meshgrid(special, special, special), dtype).reshape(3, -1)
    rng = np.random.default_rng(1)
    word = np.uint32 if dtype is np.float32 else np.uint64
    drawn: Array = rng.integers(0, np.iinfo(word).max, (3, 3000), word, endpoint=True).view(dtype)
    near = rng.standard_normal((2, 3000)).astype(dtype)
    near = np.stack([*near, -near[0] * near[1]])
    inputs: list[Array] = [*np.concatenate([points, drawn, near], axis=1)]
    (found,) = agree(fma_program("f32" if dtype is np.float32 else "f64", inputs[0].size), inputs)
    # What the rounded product lost.
    assert np.count_nonzero(found[-3000:]) > 2000


MATMUL = """func.func @main(%x: tensor<6x8xf32>, %w: tensor<8x40xf32>, %b: tensor<40xf32>) -> tensor<6x40xf32> {
  %p = graph.matmul %x, %w : (tensor<6x8xf32>, tensor<8x40xf32>) -> tensor<6x40xf32>
  %q = graph.sigmoid %p : tensor<6x40xf32>
  %r = graph.mul %q, %p : (tensor<6x40xf32>, tensor<6x40xf32>) -> tensor<6x40xf32>
  %y = graph.add %r, %b : (tensor<6x40xf32>, tensor<40xf32>) -> tensor<6x40xf32>
  func.return %y : tensor<6x40xf32>
}"""
PASSES = "default, +contract after math-polynomial-approximation"


def inputs_of_matmul() -> list[Array]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (8, 40), (40,))]


def contracted() -> ModuleOp:
    ctx = make_context()
    module = parse_text(ctx, SourceText("matmul.mlir", MATMUL)).module
    run_passes(ctx, module, passes_for(module, "loop", None, PASSES))
    return module


def test_a_contraction_stays_one() -> None:
    module = contracted()
    found = [op for op in module.walk() if isinstance(op, GenericOp) and is_contraction(op)]
    assert len(found) == 1
    assert any(isinstance(op, FmaOp) for op in found[0].body.walk())
    assert evaluator_of(found[0]).is_contraction
    assert combiners(found[0]) == {2: "math.fma"}
    needs_compiler()
    context = load_native(module).new_context()
    context(inputs_of_matmul())
    assert context.counters.host_macs == 6 * 40 * 8


def test_c_and_the_interpreter_agree_on_a_contracted_program() -> None:
    module, inputs = contracted(), inputs_of_matmul()
    (found,) = agree(module, inputs)
    ctx = make_context()
    plain = parse_text(ctx, SourceText("matmul.mlir", MATMUL)).module
    run_passes(ctx, plain, passes_for(plain, "loop", None))
    (before,) = run_module(plain, inputs, ctx.weights)
    np.testing.assert_allclose(found, before, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(found, before)


def test_lockstep_allows_for_the_rounding_of_both_passes() -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("matmul.mlir", MATMUL)).module
    report = lockstep(module, ctx, passes_for(module, "loop", None, PASSES), inputs_of_matmul())
    verdicts = {each.pass_name: each.verdict for each in report.comparisons}
    assert verdicts["math-polynomial-approximation"] == verdicts["contract"] == "rounding"
    assert report.culprit is None


def test_what_is_used_elsewhere_or_is_narrow_stays() -> None:
    text = """
    func.func @main(%a: f32, %b: f32, %h: f16) -> (f32, f32, f16) {
      %m = arith.mulf %a, %b : f32
      %s = arith.addf %m, %b : f32
      %n = arith.mulf %h, %h : f16
      %t = arith.addf %n, %h : f16
      func.return %m, %s, %t : f32, f32, f16
    }"""
    ctx = make_context()
    module = parse_text(ctx, SourceText("kept.mlir", text)).module
    run_passes(ctx, module, read_pipeline("contract"))
    assert "math.fma" not in str(module)
