# SPDX-License-Identifier: Apache-2.0
"""A division by a power of two that a graph writes in f64 is a shift; what only looks like one is not."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

EXTREMES = [-(2**31), -(2**31) + 1, -257, -256, -255, -1, 0, 1, 255, 256, 2**31 - 1]


def text(scale: str, *, op: str = "mul", order: str = "%r, %c", wide: str = "f64", floor: str = "floor") -> str:
    real = f"tensor<11x{wide}>"
    types = (real, f"tensor<{wide}>") if order == "%r, %c" else (f"tensor<{wide}>", real)
    return f"""func.func @main(%x: tensor<11xi32>) -> tensor<11xi32> {{
      %c = graph.constant dense<{scale}> : tensor<{wide}>
      %r = graph.cast %x : tensor<11xi32> -> {real}
      %m = graph.{op} {order} : ({types[0]}, {types[1]}) -> {real}
      %f = graph.{floor} %m : {real}
      %y = graph.cast %f : {real} -> tensor<11xi32>
      func.return %y : tensor<11xi32>
    }}"""


def rewritten(program: str) -> tuple[str, np.ndarray, np.ndarray]:
    ctx = make_context()
    module = parse_text(ctx, SourceText("shift.mlir", program)).module
    x = np.array(EXTREMES, np.int32)
    (before,) = run_graph(module, [x], ctx.weights)
    run_passes(ctx, module, read_pipeline("integer-arithmetic"))
    (after,) = run_graph(module, [x], ctx.weights)
    return str(module), before, after


@pytest.mark.parametrize("places", [1, 8, 18])
@pytest.mark.parametrize("how", ["mul", "mul, the other way round", "div"])
def test_it_becomes_a_shift_of_every_number(places: int, how: str) -> None:
    scale = f"{2.0 ** (places if how == 'div' else -places):.20e}"
    order = "%c, %r" if how.endswith("round") else "%r, %c"
    module, before, after = rewritten(text(scale, op=how[:3], order=order))
    assert "graph.shift_right" in module
    assert "f64" not in module
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(after, np.array(EXTREMES) >> places)


def test_by_one_it_is_nothing() -> None:
    module, before, after = rewritten(text("1.0"))
    assert "graph.cast" not in module
    assert "shift" not in module
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(
    "program",
    [
        text("0.3"),
        text("2.0"),
        text("-0.5"),
        text("0.5", wide="f32"),
        text("0.5", floor="ceil"),
        text("0.5", op="div", order="%c, %r"),
        text("0.5", op="add"),
    ],
    ids=["no power of two", "to the left", "negative", "f32", "ceil", "divided by", "a sum"],
)
def test_anything_else_stays(program: str) -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("shift.mlir", program)).module
    run_passes(ctx, module, read_pipeline("integer-arithmetic"))
    assert "shift" not in str(module)
