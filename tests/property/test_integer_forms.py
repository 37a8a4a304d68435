# SPDX-License-Identifier: Apache-2.0
"""Ops between layers on integers with scales that are powers of two: each is within half a step of the exact result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples
from xdsl.dialects.builtin import FunctionType, ModuleOp, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from penstock.dialects import graph
from penstock.dialects.context import make_context
from penstock.dialects.graph import WeightAttr
from penstock.passes.graph.quantization.quantizer import REMARK
from penstock.passes.graph.quantize import quantize_module
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import verify

Array = NDArray[Any]
SHAPE = (1, 2, 4, 4)


@dataclass(frozen=True)
class Form:
    """An op of two values, what it computes, and the largest factors by which it passes the operands' errors on."""

    build: Callable[[SSAValue, SSAValue], graph.GraphOp]
    exact: Callable[[Array, Array], Array]
    gains: Callable[[Array, Array], tuple[float, float]] = lambda a, b: (1, 1)


def pooled(x: Array, rows: int, columns: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, (rows, columns), axis=(2, 3))
    return windows.mean(axis=(-1, -2))


FORMS: dict[str, Form] = {
    "add": Form(graph.AddOp, np.add),
    "sub": Form(graph.SubOp, np.subtract),
    "mul": Form(graph.MulOp, np.multiply, lambda a, b: (float(np.abs(b).max()) * 1.1, float(np.abs(a).max()) * 1.1)),
    "max": Form(graph.MaxOp, np.maximum),
    "min": Form(graph.MinOp, np.minimum),
    "concat": Form(lambda a, b: graph.ConcatOp([a, b], axis=1), lambda a, b: np.concatenate([a, b], 1)),
    "relu": Form(lambda a, b: graph.ReluOp(a), lambda a, b: np.maximum(a, 0)),
    "clip": Form(
        lambda a, b: graph.ClipOp(a, min=-0.3, max=0.7), lambda a, b: np.clip(a, -0.3, 0.7), lambda a, b: (2, 0)
    ),
    "pad": Form(
        lambda a, b: graph.PadOp(a, pads=[0, 0, 1, 0, 0, 0, 0, 2]),
        lambda a, b: np.pad(a, ((0, 0), (0, 0), (1, 0), (0, 2))),
    ),
    "max_pool": Form(
        lambda a, b: graph.MaxPoolOp(a, kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4, dilations=[1, 1]),
        lambda a, b: a.reshape(1, 2, 2, 2, 2, 2).max((3, 5)),
    ),
    "global_average_pool": Form(lambda a, b: graph.GlobalAveragePoolOp(a), lambda a, b: pooled(a, 4, 4)),
    "average_pool": Form(
        lambda a, b: graph.AveragePoolOp(a, kernel_shape=[3, 1], strides=[1, 1], pads=[0] * 4, dilations=[1, 1]),
        lambda a, b: pooled(a, 3, 1),
    ),
    "reduce_mean": Form(lambda a, b: graph.ReduceMeanOp(a, axes=[1, 3], keepdims=False), lambda a, b: a.mean((1, 3))),
    "transpose": Form(lambda a, b: graph.TransposeOp(a, perm=[3, 0, 2, 1]), lambda a, b: a.transpose(3, 0, 2, 1)),
}


@pytest.mark.parametrize("name", FORMS)
@examples(12)
@given(seed=st.integers(0, 1 << 30), sizes=st.tuples(st.integers(-6, 6), st.integers(-6, 6)), same=st.booleans())
def test_an_op_on_integers_is_within_half_a_step(name: str, seed: int, sizes: tuple[int, int], same: bool) -> None:
    form = FORMS[name]
    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(-1, 1, SHAPE).astype(np.float32) * np.float32(2.0**size) for size in sizes)
    ctx = make_context()
    block = Block(arg_types=[graph.Tensor(f32, SHAPE)] * 2)

    def emit(op: Operation, hint: str) -> SSAValue:
        block.add_op(op)
        op.results[0].name_hint = hint
        return op.results[0]

    # A layer that changes nothing turns each input into integers.
    one = np.eye(4, dtype=np.float32)
    weights = emit(graph.ConstantOp(WeightAttr(ctx.weights.add("one", one)), graph.Tensor(f32, (4, 4))), "one")
    left, right = (
        emit(graph.MatmulOp(value, weights), hint) for value, hint in zip(block.args, ("a", "b"), strict=True)
    )
    if same:
        right, b = left, a
    result = emit(form.build(left, right), "y")
    block.add_op(ReturnOp(result))
    types = FunctionType.from_lists([value.type for value in block.args], [result.type])
    module = ModuleOp([FuncOp("main", types, Region(block))])
    exact = form.exact(a.astype(np.float64), b.astype(np.float64))

    def span(array: Array) -> tuple[float, float]:
        return float(array.min()), float(array.max())

    inputs = [a, rng.uniform(-1, 1, SHAPE).astype(np.float32) if same else b]
    ranges = {"arg0": span(a), "arg1": span(inputs[1]), "a": span(a), "b": span(inputs[1]), "y": span(exact)}
    done = quantize_module(module, ranges, ctx.weights, "power-of-two")
    verify(module)
    assert not done.remarks
    assert not any(REMARK in op.attributes for op in module.walk())
    scale = {layer.name: layer.scale.factor for layer in done.layers}
    gains = form.gains(a.astype(np.float64), b.astype(np.float64))
    of_a = scale.get("a", scale["arg0"])  # relu and clip are part of the layer
    of_b = of_a if same else scale.get("b", scale["arg0"])
    bound = 0.501 * (gains[0] * of_a + gains[1] * of_b + scale["y"])
    if name in ("max", "min", "concat"):
        bound += 0.5 * scale["y"]  # the finer of the two is rounded once more, and may be cut off by half a step
    (found,) = run_graph(module, inputs, ctx.weights)
    assert np.abs(found - exact).max() <= bound
    if seed % 8 == 0:
        compile_module(module, ctx, None, "loop")
        np.testing.assert_array_equal(run_module(module, inputs, ctx.weights)[0], found)
