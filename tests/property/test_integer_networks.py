# SPDX-License-Identifier: Apache-2.0
"""Quantised layers against the same arithmetic in NumPy's 64-bit integers: random shapes, scales and zero points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from byte_products import convolved
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples
from xdsl.dialects.builtin import FunctionType, ModuleOp, f32, i8
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from penstock.dialects import graph
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.element_types import element_type
from penstock.dialects.graph import WeightAttr, tensor_of
from penstock.passes.graph.quantize import quantize_module
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One convolution: its shape, and a seed for its numbers."""

    channels: int
    outputs: int
    group: int
    size: int
    kernel: int
    stride: int
    dilation: int
    pads: tuple[int, int, int, int]
    relu: bool
    bias: bool
    seed: int

    @property
    def window(self) -> dict[str, Any]:
        return {
            "strides": [self.stride] * 2,
            "pads": list(self.pads),
            "dilations": [self.dilation] * 2,
            "group": self.group,
        }

    def weights(self, rng: np.random.Generator) -> Array:
        return rng.standard_normal((self.outputs, self.channels // self.group, self.kernel, self.kernel))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    group = draw(st.sampled_from([1, 1, 2]))
    kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    reach = (kernel - 1) * dilation + 1
    return Case(
        channels=group * draw(st.integers(1, 3)),
        outputs=group * draw(st.integers(1, 3)),
        group=group,
        size=draw(st.integers(reach, reach + 4)),
        kernel=kernel,
        stride=draw(st.integers(1, 2)),
        dilation=dilation,
        pads=draw(st.tuples(*[st.integers(0, 2)] * 4)),
        relu=draw(st.booleans()),
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 1 << 30)),
    )


class Program:
    """A function under construction, with its weights."""

    def __init__(self, shape: tuple[int, ...], element: Attribute) -> None:
        self.ctx: PenstockContext = make_context()
        self.block = Block(arg_types=[graph.Tensor(element, shape)])

    @property
    def x(self) -> SSAValue:
        return self.block.args[0]

    def emit(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def weight(self, name: str, array: Array) -> SSAValue:
        key = self.ctx.weights.add(name, array)
        return self.emit(graph.ConstantOp(WeightAttr(key), graph.Tensor(element_type(array.dtype), array.shape)))

    def module(self, result: SSAValue) -> ModuleOp:
        self.block.add_op(ReturnOp(result))
        types = FunctionType.from_lists([self.x.type], [result.type])
        return ModuleOp([FuncOp("main", types, Region(self.block))])


def of_kind(module: ModuleOp, kind: type[Operation]) -> Any:
    (found,) = [op for op in module.walk() if isinstance(op, kind)]
    return found


def array_of(program: Program, value: SSAValue) -> Array:
    op = value.owner
    assert isinstance(op, graph.ConstantOp)
    module = ModuleOp([])
    block = Block([copy := op.clone()])
    block.add_op(ReturnOp(copy.result))
    module.body.block.add_op(FuncOp("main", ([], [copy.result.type]), Region(block)))
    return run_graph(module, [], program.ctx.weights)[0]


@examples(30)
@given(cases())
def test_a_layer_with_shifts_is_that_of_64_bit_integers(case: Case) -> None:
    rng = np.random.default_rng(case.seed)
    x = rng.standard_normal((1, case.channels, case.size, case.size)).astype(np.float32)
    w = case.weights(rng).astype(np.float32)
    b = rng.standard_normal(case.outputs).astype(np.float32)
    program = Program(x.shape, f32)
    addend = program.weight("b", b) if case.bias else None
    real = program.emit(graph.ConvOp(program.x, program.weight("w", w), addend, **case.window))
    exact = convolved(x.astype(np.float64), w.astype(np.float64), **case.window)
    if case.bias:
        exact += b.astype(np.float64).reshape(-1, 1, 1)
    if case.relu:
        real, exact = program.emit(graph.ReluOp(real)), np.maximum(exact, 0)
    real.name_hint = "y"
    module = program.module(real)
    ranges = {"arg0": (float(x.min()), float(x.max())), "y": (float(exact.min()), float(exact.max()))}
    done = quantize_module(module, ranges, program.ctx.weights, "power-of-two")
    verify(module)

    of_x, of_y = (layer.scale.factor for layer in done.layers)
    shift = done.layers[-1].shift
    assert shift is not None
    assert 0 <= shift <= 31
    stored = array_of(program, of_kind(module, graph.ConvOp).w)
    step = of_y / 2**shift  # of the sums
    whole = np.clip(np.rint(x.astype(np.float64) / of_x), -128, 127).astype(np.int64)
    sums = convolved(whole, stored.astype(np.int64), **case.window)
    if case.bias:
        sums += np.rint(b.astype(np.float64) / step).astype(np.int64).reshape(-1, 1, 1)
    half = 1 << (shift - 1) if shift else 0
    expected = np.clip((sums + half) >> shift, 0 if case.relu else -128, 127)

    (found,) = run_graph(module, [x], program.ctx.weights)
    np.testing.assert_array_equal(found, (expected * of_y).astype(np.float32))
    # Half a step of the result, and what rounding the operands moves each product by.
    length = w[0].size
    error = of_y * 1.01 + length * (of_x * np.abs(w).max() + step / of_x * np.abs(x).max()) + step
    assert np.abs(found - exact).max() <= error
    if case.seed % 3 == 0:
        compile_module(module, program.ctx, None, "loop")
        (lowered,) = run_module(module, [x], program.ctx.weights)
        np.testing.assert_array_equal(lowered, found)


@examples(40)
@given(cases(), st.sampled_from(["i1", "u1"]), st.sampled_from(["i1", "u1"]), st.booleans(), st.data())
def test_integer_arithmetic_is_exact_for_all_zero_points(
    case: Case, of_x: str, of_w: str, per_channel: bool, data: st.DataObject
) -> None:
    rng = np.random.default_rng(case.seed)
    dtypes = np.dtype(of_x), np.dtype(of_w)
    bounds = [np.iinfo(dtype) for dtype in dtypes]
    x = rng.integers(bounds[0].min, bounds[0].max, (1, case.channels, case.size, case.size), dtypes[0], endpoint=True)
    w = rng.integers(bounds[1].min, bounds[1].max, case.weights(rng).shape, dtypes[1], endpoint=True)
    zx = np.asarray(data.draw(st.integers(int(bounds[0].min), int(bounds[0].max))), dtypes[0])
    shape = (case.outputs,) if per_channel else ()
    zw = rng.integers(bounds[1].min, bounds[1].max, shape, dtypes[1], endpoint=True)
    sx, sw = np.float32(0.5), rng.uniform(0.01, 0.02, shape).astype(np.float32)
    sy, zy = np.float32(data.draw(st.floats(1, 16, width=32))), np.asarray(rng.integers(-128, 127), np.int8)
    b = rng.integers(-9999, 9999, case.outputs, np.int32)

    program = Program(x.shape, element_type(dtypes[0]))
    constant = program.weight
    left = program.emit(
        graph.DequantizeLinearOp(program.x, constant("sx", np.asarray(sx)), constant("zx", np.asarray(zx)))
    )
    zero = constant("zw", np.asarray(zw))
    right = program.emit(graph.DequantizeLinearOp(constant("w", w), constant("sw", np.asarray(sw)), zero, axis=0))
    addend = None
    if case.bias:
        scales = np.broadcast_to(sx * sw, (case.outputs,)).astype(np.float32)
        addend = program.emit(graph.DequantizeLinearOp(constant("b", b), constant("sb", scales), axis=0))
    real = program.emit(graph.ConvOp(left, right, addend, **case.window))
    if case.relu:
        real = program.emit(graph.ReluOp(real))
    scale, point = constant("sy", np.asarray(sy)), constant("zy", zy)
    module = program.module(program.emit(graph.QuantizeLinearOp(real, scale, point, element_type=i8)))
    (before,) = run_graph(module, [x], program.ctx.weights)
    run_passes(program.ctx, module, read_pipeline("integer-arithmetic"))

    products = [op for op in module.walk() if isinstance(op, graph.ConvOp)]
    assert products
    assert all(tensor_of(operand).element_type == i8 for op in products for operand in op.operands[:2])
    centred = w.astype(np.int64) - zw.astype(np.int64).reshape([-1, 1, 1, 1] if per_channel else [])
    sums = convolved(x.astype(np.int64) - int(zx), centred, **case.window)
    if case.bias:
        sums += b.reshape(-1, 1, 1)
    factor = np.asarray(sx * sw / sy, np.float32).reshape([-1, 1, 1] if per_channel else [])
    whole = np.rint(sums.astype(np.float32) * factor) + np.float32(zy)
    expected = np.clip(whole, int(zy) if case.relu else -128, 127).astype(np.int8)
    (found,) = run_graph(module, [x], program.ctx.weights)
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found.astype(int) - before.astype(int)).max(initial=0) <= 1
    if case.seed % 3 == 0:
        compile_module(module, program.ctx, None, "loop")
        (lowered,) = run_module(module, [x], program.ctx.weights)
        np.testing.assert_array_equal(lowered, found)


@examples(40)
@given(st.integers(0, 1 << 30), st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_a_product_of_two_computed_matrices_loses_its_zero_points(
    seed: int, rows: int, inner: int, columns: int, batched: bool
) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 255, (2, rows, inner), np.uint8, endpoint=True)
    program = Program(a.shape, element_type(a.dtype))
    za, zb = (int(each) for each in rng.integers(0, 255, 2))
    zero_a, zero_b = (program.weight(name, np.asarray(zero, np.uint8)) for name, zero in (("za", za), ("zb", zb)))
    scale = program.weight("s", np.asarray(0.25, np.float32))
    # The second factor is computed from the first: its rows, cut off or repeated.
    b = program.emit(graph.TransposeOp(program.x, perm=[0, 2, 1]))
    if not batched:
        b = program.emit(graph.SliceOp(b, starts=[0, 0, 0], sizes=[1, inner, rows], steps=[1, 1, 1]))
    left = program.emit(graph.DequantizeLinearOp(program.x, scale, zero_a))
    right = program.emit(graph.DequantizeLinearOp(b, scale, zero_b))
    module = program.module(program.emit(graph.MatmulOp(left, right)))
    run_passes(program.ctx, module, read_pipeline("integer-arithmetic"))
    matmul = of_kind(module, graph.MatmulOp)
    assert [tensor_of(operand).element_type for operand in matmul.operands] == [i8, i8]
    whole = a.astype(np.int64)
    second = whole.transpose(0, 2, 1)[: 2 if batched else 1]
    expected = ((whole - za) @ (second - zb)).astype(np.float32) * np.float32(1 / 16)
    (found,) = run_graph(module, [a], program.ctx.weights)
    np.testing.assert_array_equal(found, expected)
    assert math.prod(found.shape) == 2 * rows * rows
