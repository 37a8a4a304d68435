# SPDX-License-Identifier: Apache-2.0
"""Gradients of branches and loops, beside differences of what they compute, and beside the same written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.func import FuncOp

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]

LOOP = """
func.func @main(%h: tensor<2x3xf64>, %xs: tensor<4x2x3xf64>, %w: tensor<3x3xf64>, %n: tensor<2x3xf64>)
    -> (tensor<2x3xf64>, tensor<4x2x3xf64>) {{
  %r, %k, %ys = graph.loop {reverse} carry(%h, %n : tensor<2x3xf64>, tensor<2x3xf64>)
      slices(%xs : tensor<4x2x3xf64>) reads(%w : tensor<3x3xf64>) {{
  ^bb0(%i: tensor<i64>, %a: tensor<2x3xf64>, %b: tensor<2x3xf64>, %x: tensor<2x3xf64>, %m: tensor<3x3xf64>):
    %v = graph.constant #graph.weight<"v"> : tensor<3xf64>
    %f = graph.cast %i : tensor<i64> -> tensor<f64>
    %p = graph.matmul %a, %m : (tensor<2x3xf64>, tensor<3x3xf64>) -> tensor<2x3xf64>
    %q = graph.mul %x, %v : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>
    %s = graph.add %p, %q : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
    %t = graph.tanh %s : tensor<2x3xf64>
    %u = graph.mul %t, %b : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
    %y = graph.add %u, %f : (tensor<2x3xf64>, tensor<f64>) -> tensor<2x3xf64>
    %z = graph.mul %y, %y : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
    graph.yield %t, %u, %z : tensor<2x3xf64>, tensor<2x3xf64>, tensor<2x3xf64>
  }} -> tensor<2x3xf64>, tensor<2x3xf64>, tensor<4x2x3xf64>
  %end = graph.mul %k, %h : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>
  func.return %end, %ys : tensor<2x3xf64>, tensor<4x2x3xf64>
}}
"""
BRANCH = """
func.func @main(%c: tensor<i1>, %x: tensor<3xf64>, %y: tensor<3xf64>) -> tensor<3xf64> {
  %e = graph.exp %x : tensor<3xf64>
  %r = graph.if %c(%e, %y) {
  ^bb0(%a: tensor<3xf64>, %b: tensor<3xf64>):
    %v = graph.constant #graph.weight<"v"> : tensor<3xf64>
    %s = graph.mul %a, %b : (tensor<3xf64>, tensor<3xf64>) -> tensor<3xf64>
    %t = graph.mul %s, %v : (tensor<3xf64>, tensor<3xf64>) -> tensor<3xf64>
    graph.yield %t : tensor<3xf64>
  } else {
  ^bb0(%a: tensor<3xf64>, %b: tensor<3xf64>):
    %t = graph.tanh %a : tensor<3xf64>
    graph.yield %t : tensor<3xf64>
  } : tensor<i1>, (tensor<3xf64>, tensor<3xf64>) -> tensor<3xf64>
  func.return %r : tensor<3xf64>
}
"""


def _program(text: str, passes: str = "", weight: Array | None = None) -> tuple[FuncOp, WeightStore]:
    ctx: PenstockContext = make_context()
    module = parse_text(ctx, SourceText("test.mlir", text)).module
    if weight is not None:
        ctx.weights.add("v", weight)
    run_passes(ctx, module, read_pipeline(passes) if passes else ())
    (func,) = (op for op in module.ops if isinstance(op, FuncOp))
    return func, ctx.weights


def _check(text: str, inputs: list[Array], weight: Array, wrt: str) -> None:
    """The gradients of a random sum of the results are those of differences, the last one that by the weight."""
    func, store = _program(text, weight=weight)
    rng = np.random.default_rng(1)
    seeds = [rng.normal(size=each.shape) for each in run_graph(func, inputs, store)]

    def total(arrays: list[Array], held: Array) -> float:
        found = run_graph(*_swap(text, arrays, held))
        return sum(float(np.sum(seed * each)) for seed, each in zip(seeds, found, strict=True))

    def _swap(text: str, arrays: list[Array], held: Array) -> tuple[FuncOp, list[Array], WeightStore]:
        changed, weights = _program(text, weight=held)
        return changed, arrays, weights

    derived, store = _program(text, f"graph-gradient{{wrt={wrt} replace=true}},simplify,value-dce", weight)
    found = run_graph(derived, [*inputs, *seeds], store)
    places = [(number, each) for number, each in enumerate([*inputs, weight]) if each.dtype == np.float64]
    assert len(found) == len(places)
    step = 1e-6
    for gradient, (number, array) in zip(found, places, strict=True):
        for at in list(np.ndindex(array.shape))[::3]:
            moved = [array.copy(), array.copy()]
            moved[0][at] += step
            moved[1][at] -= step
            ends = [
                total(inputs, each)
                if number == len(inputs)
                else total([*inputs[:number], each, *inputs[number + 1 :]], weight)
                for each in moved
            ]
            np.testing.assert_allclose(gradient[at], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reverse", ["", "reverse"])
def test_a_loop_is_differentiated_by_what_it_carries_slices_and_reads(reverse: str) -> None:
    rng = np.random.default_rng(0)
    inputs: list[Array] = [rng.normal(size=shape) for shape in ((2, 3), (4, 2, 3), (3, 3), (2, 3))]
    _check(LOOP.format(reverse=reverse), inputs, rng.normal(size=3), '0,1,2,3,"v"')


@pytest.mark.parametrize("taken", [True, False])
def test_of_a_branch_the_one_that_is_taken_has_gradients(taken: bool) -> None:
    rng = np.random.default_rng(0)
    _check(BRANCH, [np.asarray(taken), rng.normal(size=3), rng.normal(size=3)], rng.normal(size=3), '1,2,"v"')


def test_a_loop_that_a_run_ends_is_refused() -> None:
    text = """
func.func @main(%n: tensor<i64>, %x: tensor<3xf64>) -> tensor<3xf64> {
  %r = graph.loop count(%n : tensor<i64>) carry(%x : tensor<3xf64>) {
  ^bb0(%i: tensor<i64>, %a: tensor<3xf64>):
    %t = graph.tanh %a : tensor<3xf64>
    graph.yield %t : tensor<3xf64>
  } -> tensor<3xf64>
  func.return %r : tensor<3xf64>
}
"""
    with pytest.raises(UserError, match="trip count a run decides has no derivative") as found:
        _program(text, "graph-gradient")
    assert found.value.status == UNSUPPORTED
