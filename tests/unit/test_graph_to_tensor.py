# SPDX-License-Identifier: Apache-2.0
"""Lowering to the tensor level: every graph op computes there what it computes at graph level."""

# The builders are lambdas of one to four values.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import examples
from tests.support.tensors import tensor_type_of
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    ModuleOp,
    NameLoc,
    StringAttr,
    TensorType,
    UnknownLoc,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i32,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.test import TestOp as UnknownOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl import irdl_op_definition

from penstock.dialects import graph
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.element_types import element_type
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.graph_to_tensor import Body, GraphToTensorPass, pointwise
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph

Build = Callable[..., SSAValue | Operation]
few = examples(20)
"""Each example lowers and runs several modules."""


def graph_module(inputs: Sequence[Array], build: Build) -> ModuleOp:
    """A module whose @main returns what `build` makes of arguments of the types of `inputs`."""
    block = Block(arg_types=[tensor_type_of(array) for array in inputs])
    result = SSAValue.get(_adopt(block, build(*block.args)))
    block.add_op(ReturnOp(result))
    types = (block.arg_types, [result.type])
    return ModuleOp([FuncOp("main", types, Region(block))])


def _adopt(block: Block, value: SSAValue | Operation) -> SSAValue | Operation:
    """Put the ops that `value` depends on into the block, in order."""
    op = value if isinstance(value, Operation) else value.owner
    if isinstance(op, Operation) and op.parent is None:
        for operand in op.operands:
            _adopt(block, operand)
        block.add_op(op)
    return value


def lower(module: ModuleOp) -> ModuleOp:
    """A lowered copy, verified."""
    module.verify()
    lowered = module.clone()
    GraphToTensorPass().apply(make_context(), lowered)
    lowered.verify()
    return lowered


def both(inputs: Sequence[Array], build: Build, weights: WeightStore | None = None) -> tuple[Array, Array]:
    """What the graph level and the tensor level compute."""
    module = graph_module(inputs, build)
    store = weights or WeightStore()
    (wanted,) = run_graph(module, inputs, store)
    (found,) = run_module(lower(module), inputs, store)
    if wanted.dtype.kind == "u":
        assert found.dtype.kind == "i"
        found = found.view(wanted.dtype)  # integers are signless below graph level
    assert found.dtype == wanted.dtype
    return wanted, found


def agree_exactly(inputs: Sequence[Array], build: Build, weights: WeightStore | None = None) -> None:
    """Both levels compute the same numbers."""
    wanted, found = both(inputs, build, weights)
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def agree_closely(inputs: Sequence[Array], build: Build, tolerance: float = 1e-5) -> None:
    """Both levels compute the same numbers up to rounding."""
    wanted, found = both(inputs, build)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def integers(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    """Small integers, whose sums of products are exact in any float type used here."""
    return rng.integers(-3, 4, shape).astype(dtype)


def reals(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    """Numbers around 0, with both signs."""
    return rng.standard_normal(shape).astype(dtype)


def agree(rng: np.random.Generator, shapes: Sequence[Sequence[int]], build: Build) -> None:
    """Agreement on integers exactly, and on reals up to rounding."""
    agree_exactly([integers(rng, *shape) for shape in shapes], build)
    agree_closely([reals(rng, *shape) for shape in shapes], build)


def generics(module: ModuleOp) -> list[GenericOp]:
    """The generics of a module, in order."""
    return [op for op in module.walk() if isinstance(op, GenericOp)]


seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)

FLOAT_UNARY = [
    graph.AbsOp,
    graph.NegOp,
    graph.ExpOp,
    graph.LogOp,
    graph.SqrtOp,
    graph.ReciprocalOp,
    graph.FloorOp,
    graph.CeilOp,
    graph.SignOp,
    graph.ErfOp,
    graph.ReluOp,
    graph.SigmoidOp,
    graph.TanhOp,
    graph.SoftplusOp,
    graph.HardSwishOp,
    graph.LeakyReluOp,
    graph.EluOp,
    graph.SeluOp,
    graph.HardSigmoidOp,
    graph.GeluOp,
    graph.IdentityOp,
]


@pytest.mark.parametrize("op_class", FLOAT_UNARY, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_unary_op_agrees_on_ordinary_and_on_special_numbers(op_class: Callable[..., Operation], dtype: Any) -> None:
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 30.0, -30.0, 200.0, -200.0]
    special += [math.inf, -math.inf, math.nan]
    x = np.concatenate([np.asarray(special), reals(np.random.default_rng(0), 51)]).astype(dtype)
    agree_closely([x.reshape(4, 16)], op_class, 1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: graph.LeakyReluOp(x, alpha=0.25),
        lambda x: graph.EluOp(x, alpha=2.0),
        lambda x: graph.SeluOp(x, alpha=0.5, gamma=3.0),
        lambda x: graph.HardSigmoidOp(x, alpha=0.5, beta=0.25),
        lambda x: graph.GeluOp(x, approximate="tanh"),
        lambda x: graph.ClipOp(x, min=-1.0, max=0.5),
        lambda x: graph.ClipOp(x, min=0.25),
        lambda x: graph.ClipOp(x, max=math.inf),
        lambda x: graph.ClipOp(x),
    ],
)
def test_the_parameters_of_a_unary_op_are_obeyed(build: Build) -> None:
    agree_closely([reals(np.random.default_rng(1), 3, 5)], build, 1e-6)


INTEGER_TYPES = [np.int8, np.int32, np.int64, np.uint8, np.uint32]


def corners(dtype: Any) -> Array:
    """The ends of an integer type and numbers near 0."""
    info = np.iinfo(dtype)
    near = range(-3 if info.min < 0 else 0, 6)
    return np.asarray([info.min, info.max, info.max - 1, *near], dtype)


@pytest.mark.parametrize("dtype", INTEGER_TYPES)
def test_integers_keep_their_signedness(dtype: Any) -> None:
    numbers = corners(dtype)
    a, b = numbers[:, None], numbers[None, :]
    for op_class in (
        graph.AddOp,
        graph.SubOp,
        graph.MulOp,
        graph.MaxOp,
        graph.MinOp,
        graph.LessOp,
        graph.GreaterOp,
        graph.EqualOp,
    ):
        agree_exactly([a, b], op_class)
    agree_exactly([a, b[b != 0][None, 1:]], graph.DivOp)
    agree_exactly([numbers[3:, None], np.asarray([0, 1, 2, 3], dtype)], graph.PowOp)
    agree_exactly([numbers], lambda x: graph.ClipOp(x, min=-1e30, max=100.0))
    agree_exactly([numbers], graph.SignOp)
    agree_exactly([numbers.reshape(3, -1)], lambda x: graph.ReduceMaxOp(x, axes=[1]))
    agree_exactly([numbers.reshape(3, -1)], lambda x: graph.ReduceMinOp(x, axes=[0]))
    agree_exactly([numbers], lambda x: graph.PadOp(x, pads=[2, 1], value=7.0))
    agree_exactly(
        [numbers.reshape(1, 1, -1)],
        lambda x: graph.MaxPoolOp(x, kernel_shape=[3], strides=[2], pads=[1, 1]),
    )


@pytest.mark.parametrize("dtype", INTEGER_TYPES)
def test_a_cast_between_any_two_types_agrees(dtype: Any) -> None:
    targets = [np.bool_, np.int8, np.uint8, np.int32, np.uint32, np.int64, np.float32, np.float64]
    for target in targets:
        element = element_type(np.dtype(target))
        agree_exactly([corners(dtype)], lambda x, e=element: graph.CastOp(x, e))


def test_a_cast_of_floats_truncates_and_of_truth_values_gives_0_or_1() -> None:
    x = np.asarray([0.0, -0.0, 0.7, -0.7, 99.99, -99.99, 2.0], np.float32)
    for element in (i1, i32, i64, f16, f64):
        agree_exactly([x], lambda x, e=element: graph.CastOp(x, e))
    agree_exactly([np.asarray([math.nan, 0.0], np.float32)], lambda x: graph.CastOp(x, i1))
    for element in (i32, f32, element_type(np.dtype(np.uint8))):
        agree_exactly([np.asarray([True, False])], lambda x, e=element: graph.CastOp(x, e))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_floats_of_16_bits_compute_in_their_own_arithmetic(dtype: Any) -> None:
    rng = np.random.default_rng(7)
    a, b = reals(rng, 4, 6, dtype=dtype), reals(rng, 6, dtype=dtype)
    for op_class in (graph.AddOp, graph.MulOp, graph.DivOp, graph.MaxOp, graph.LessOp):
        agree_exactly([a, b], op_class)
    for element in (f16, bf16, f32, f64, i32):
        agree_exactly([a], lambda x, e=element: graph.CastOp(x, e))
    pooled = [integers(rng, 1, 2, 5, 5, dtype=dtype)]
    agree_exactly(pooled, lambda x: graph.MaxPoolOp(x, kernel_shape=[3, 3], pads=[1] * 4))
    matrices = [integers(rng, 3, 4, dtype=dtype), integers(rng, 4, 2, dtype=dtype)]
    agree_exactly(matrices, graph.MatmulOp)


def test_logic_agrees() -> None:
    a = np.asarray([[True], [False]])
    b = np.asarray([True, False])
    for op_class in (graph.AndOp, graph.OrOp, graph.EqualOp):
        agree_exactly([a, b], op_class)
    agree_exactly([a], graph.NotOp)


@st.composite
def broadcast_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast."""
    whole = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))

    def part() -> tuple[int, ...]:
        kept = draw(st.integers(0, len(whole)))
        sizes = [size if draw(st.booleans()) else 1 for size in whole]
        return tuple(sizes[len(whole) - kept :])

    return part(), part()


@few
@given(seeds, broadcast_shapes())
def test_binary_ops_broadcast_as_numpy_does(
    rng: np.random.Generator, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    for op_class in (graph.AddOp, graph.SubOp, graph.MulOp, graph.MaxOp, graph.MinOp):
        agree(rng, shapes, op_class)
    a, b = (reals(rng, *shape) for shape in shapes)
    agree_exactly([a, b], graph.LessOp)
    agree_closely([a, np.abs(b) + 1], graph.DivOp)
    agree_closely([np.abs(a), b], graph.PowOp)
    condition = rng.integers(0, 2, shapes[0]).astype(np.bool_)
    agree_exactly([condition, a, b], graph.WhereOp)
    shape = np.broadcast_shapes(*shapes)
    agree_exactly([reals(rng, *shape), b], graph.PreluOp)
    agree_exactly([a], lambda x: graph.ExpandOp(x, shape))


def test_the_larger_of_a_number_and_nan_is_nan() -> None:
    a = np.asarray([math.nan, 1.0, math.nan], np.float32)
    b = np.asarray([1.0, math.nan, math.nan], np.float32)
    agree_exactly([a, b], graph.MaxOp)
    agree_exactly([a, b], graph.MinOp)
    agree_exactly([a.reshape(1, 1, 3)], lambda x: graph.MaxPoolOp(x, kernel_shape=[2]))


@st.composite
def windows(draw: st.DrawFn) -> dict[str, Any]:
    """Spatial sizes and the parameters of a window that fits them."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    window: dict[str, Any] = {
        "spatial": each(1, 6 if rank < 3 else 4),
        "kernel_shape": each(1, 3),
        "strides": each(1, 3),
        "dilations": each(1, 2),
    }
    # A window that lies wholly in the padding holds nothing.
    window["pads"] = [draw(st.integers(0, size - 1)) for size in window["kernel_shape"] * 2]
    for dim, size in enumerate(window["spatial"]):
        padded = size + window["pads"][dim] + window["pads"][rank + dim]
        assume(padded > (window["kernel_shape"][dim] - 1) * window["dilations"][dim])
    return window


def layout_shape(layout: str, batch: int, channels: int, spatial: Sequence[int]) -> list[int]:
    return [batch, channels, *spatial] if layout == graph.NCHW else [batch, *spatial, channels]


@few
@given(
    seeds,
    windows(),
    st.sampled_from([graph.NCHW, graph.NHWC]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.booleans(),
)
def test_a_convolution_agrees(
    rng: np.random.Generator,
    window: dict[str, Any],
    layout: str,
    group: int,
    inputs: int,
    outputs: int,
    biased: bool,
) -> None:
    kernel = window["kernel_shape"]
    filters = [group * outputs, inputs, *kernel]
    if layout == graph.NHWC:
        filters = [*kernel, inputs, group * outputs]
    shapes = [layout_shape(layout, 2, group * inputs, window["spatial"]), filters]
    if biased:
        shapes.append([group * outputs])
    options = {name: window[name] for name in ("strides", "pads", "dilations")}
    agree(rng, shapes, lambda *args: graph.ConvOp(*args, group=group, layout=layout, **options))


@few
@given(
    seeds,
    windows(),
    st.sampled_from([graph.NCHW, graph.NHWC]),
    st.booleans(),
    st.booleans(),
)
def test_pooling_agrees(
    rng: np.random.Generator, window: dict[str, Any], layout: str, ceil: bool, include: bool
) -> None:
    shape = layout_shape(layout, 2, 3, window.pop("spatial"))
    options: dict[str, Any] = {**window, "layout": layout, "ceil_mode": ceil}
    agree(rng, [shape], lambda x: graph.MaxPoolOp(x, **options))
    agree(rng, [shape], lambda x: graph.AveragePoolOp(x, count_include_pad=include, **options))
    agree(rng, [shape], lambda x: graph.GlobalMaxPoolOp(x, layout=layout))
    agree(rng, [shape], lambda x: graph.GlobalAveragePoolOp(x, layout=layout))


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 1]])
def test_pools_whose_last_window_is_partly_outside_agree(pads: list[int]) -> None:
    rng = np.random.default_rng(0)
    options: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": pads, "ceil_mode": True}
    agree(rng, [(1, 2, 6, 6)], lambda x: graph.MaxPoolOp(x, **options))
    for include in (False, True):
        agree(rng, [(1, 2, 6, 6)], lambda x: graph.AveragePoolOp(x, count_include_pad=include, **options))


@few
@given(seeds, st.data())
def test_a_matrix_product_of_any_ranks_agrees(rng: np.random.Generator, data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, 4)) for _ in range(3))
    left, right = data.draw(broadcast_shapes())
    a = data.draw(st.sampled_from([(k,), (m, k), (*left, m, k)]))
    b = data.draw(st.sampled_from([(k,), (k, n), (*right, k, n)]))
    agree(rng, [a, b], graph.MatmulOp)


@few
@given(
    seeds,
    st.booleans(),
    st.booleans(),
    st.sampled_from([1.0, 0.5, -2.0]),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([None, (), (4,), (1, 4), (3, 1), (3, 4)]),
)
def test_gemm_agrees(
    rng: np.random.Generator,
    trans_a: bool,
    trans_b: bool,
    alpha: float,
    beta: float,
    c: tuple[int, ...] | None,
) -> None:
    shapes: list[tuple[int, ...]] = [(5, 3) if trans_a else (3, 5), (4, 5) if trans_b else (5, 4)]
    if c is not None:
        shapes.append(c)
    options: dict[str, Any] = {"alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b}
    agree(rng, shapes, lambda *args: graph.GemmOp(*args, **options))


def test_integers_are_contracted() -> None:
    rng = np.random.default_rng(2)
    a, b = integers(rng, 3, 4, dtype=np.int32), integers(rng, 4, 2, dtype=np.int32)
    agree_exactly([a, b], graph.MatmulOp)
    agree_exactly([a, b], graph.GemmOp)
    x, w = integers(rng, 1, 2, 5, dtype=np.int32), integers(rng, 3, 2, 2, dtype=np.int32)
    agree_exactly([x, w], lambda x, w: graph.ConvOp(x, w, pads=[1, 0]))


@few
@given(seeds, st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_reductions_agree(rng: np.random.Generator, shape: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    keep = data.draw(st.booleans())
    for op_class in (
        graph.ReduceSumOp,
        graph.ReduceMeanOp,
        graph.ReduceMaxOp,
        graph.ReduceMinOp,
        graph.ReduceProdOp,
    ):
        agree(rng, [shape], lambda x, c=op_class: c(x, axes=axes, keepdims=keep))


@few
@given(seeds, st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data())
def test_normalisations_agree(rng: np.random.Generator, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = reals(rng, *shape)
    agree_closely([x], lambda x: graph.SoftmaxOp(x, axis=axis))
    agree_closely([x + 300], lambda x: graph.LogSoftmaxOp(x, axis=axis), 1e-4)
    size, layout = data.draw(st.integers(1, 5)), data.draw(st.sampled_from(["NCHW", "NHWC"]))
    agree_closely([x], lambda x: graph.LrnOp(x, size=size, alpha=0.5, beta=0.6, bias=1.5, layout=layout))
    channels = shape[axis]
    vectors = [reals(rng, channels) for _ in range(3)]
    variance = np.abs(reals(rng, channels)) + np.float32(0.1)
    agree_exactly(
        [x, *vectors, variance],
        lambda *args: graph.BatchNormalizationOp(*args, epsilon=1e-3, axis=axis),
    )


def test_an_even_window_of_channels_reaches_further_behind_than_before() -> None:
    x = reals(np.random.default_rng(0), 1, 6, 2)
    agree_closely([x], lambda x: graph.LrnOp(x, size=4, alpha=0.5, beta=0.6, bias=1.5, layout="NCHW"))


@few
@given(seeds, st.lists(st.integers(1, 5), max_size=4), st.data())
def test_data_movement_agrees(rng: np.random.Generator, shape: list[int], data: st.DataObject) -> None:
    rank = len(shape)
    x = reals(rng, *shape)
    perm = data.draw(st.permutations(range(rank)))
    agree_exactly([x], lambda x: graph.TransposeOp(x, perm=perm))
    pads = data.draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank))
    agree_exactly([x], lambda x: graph.PadOp(x, pads=pads, value=-1.5))

    starts: list[int] = []
    sizes: list[int] = []
    steps: list[int] = []
    for size in shape:
        step = data.draw(st.sampled_from([1, 2, 3, -1, -2]))
        start = data.draw(st.integers(0, size - 1))
        room = (size - 1 - start) // step if step > 0 else start // -step
        starts.append(start)
        steps.append(step)
        sizes.append(data.draw(st.integers(0 if size > 4 else 1, room + 1)))
    agree_exactly([x], lambda x: graph.SliceOp(x, starts=starts, sizes=sizes, steps=steps))

    if rank:
        axis = data.draw(st.integers(0, rank - 1))
        others = [reals(rng, *shape[:axis], size, *shape[axis + 1 :]) for size in (2, 1)]
        agree_exactly([x, *others], lambda *args: graph.ConcatOp(args, axis=axis))


@few
@given(seeds, st.lists(st.integers(0, 4), max_size=4), st.data())
def test_a_reshape_is_at_most_two_views(rng: np.random.Generator, shape: list[int], data: st.DataObject) -> None:
    x = reals(rng, *shape)
    factors = [size for size in shape for size in ((2, 2) if size == 4 else (size,))]
    if 0 not in factors:
        factors = data.draw(st.permutations(factors))
    target: list[int] = []
    for factor in [*factors, *data.draw(st.lists(st.just(1), max_size=2))]:
        if target and data.draw(st.booleans()):
            target[-1] *= factor
        else:
            target.append(factor)
    agree_exactly([x], lambda x: graph.ReshapeOp(x, target))
    lowered = lower(graph_module([x], lambda x: graph.ReshapeOp(x, target)))
    main = next(op for op in lowered.walk() if isinstance(op, FuncOp))
    views = [op.name for op in main.body.block.ops][:-1]
    assert views in (
        [],
        ["tensor.collapse_shape"],
        ["tensor.expand_shape"],
        ["tensor.collapse_shape", "tensor.expand_shape"],
        ["arith.constant", "tensor.reshape"],
    )


def test_a_tensor_without_elements_is_lowered() -> None:
    empty = np.zeros((2, 0, 3), np.float32)
    agree_exactly([empty], graph.ReluOp)
    agree_exactly([empty], lambda x: graph.ReduceSumOp(x, axes=[1]))
    agree_exactly([empty, np.ones((2, 1, 3), np.float32)], lambda *a: graph.ConcatOp(a, axis=1))


def group(inputs: Sequence[SSAValue], build: Build) -> graph.FusedOp:
    """A fused group of what `build` makes of its arguments."""
    block = Block(arg_types=[value.type for value in inputs])
    result = SSAValue.get(_adopt(block, build(*block.args)))
    block.add_op(graph.YieldOp(result))
    return graph.FusedOp(inputs, block, pattern=graph.PatternKind.COMPLEX_OUT_FUSABLE)


def functions(module: ModuleOp) -> tuple[FuncOp, list[FuncOp]]:
    """@main and the kernels."""
    main, *kernels = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    return main, kernels


def names(ops: Operation) -> set[str]:
    """The names of the ops directly in a function."""
    return {op.name for region in ops.regions for op in region.block.ops}


def weight(name: str, *shape: int) -> graph.ConstantOp:
    return graph.ConstantOp(graph.WeightAttr(name), TensorType(f32, shape))


def splat(number: float) -> graph.ConstantOp:
    return graph.ConstantOp(DenseIntOrFPElementsAttr.from_list(TensorType(f32, []), [number]))


def test_a_group_with_an_epilogue_agrees_and_is_one_kernel_of_generics() -> None:
    rng = np.random.default_rng(3)

    def build(x: SSAValue, w: SSAValue, b: SSAValue, r: SSAValue) -> Operation:
        def members(x: SSAValue, w: SSAValue, b: SSAValue, r: SSAValue) -> Operation:
            y = graph.ConvOp(x, w, b, pads=[1] * 4, layout=graph.NHWC)
            return graph.ReluOp(graph.AddOp(y, r))

        return group([x, w, b, r], members)

    shapes = [(1, 5, 5, 3), (3, 3, 3, 4), (4,), (1, 5, 5, 4)]
    agree(rng, shapes, build)
    main, (kernel,) = functions(lower(graph_module([reals(rng, *s) for s in shapes], build)))
    assert names(main) == {"func.call", "func.return"}
    assert names(kernel) == {
        "arith.constant",
        "tensor.pad",
        "tensor.empty",
        "linalg.generic",
        "func.return",
    }
    assert kernel.sym_visibility == StringAttr("private")
    fill, product, bias, residual, relu = generics(lower(graph_module([reals(rng, *s) for s in shapes], build)))
    assert not fill.inputs
    assert [op.name for op in product.body.block.ops] == ["arith.mulf", "arith.addf", "linalg.yield"]
    assert [kind.data.value for kind in product.iterator_types] == ["parallel"] * 4 + ["reduction"] * 3
    assert [str(each.data) for each in product.indexing_maps] == [
        "(d0, d1, d2, d3, d4, d5, d6) -> (d0, (d1 + d4), (d2 + d5), d6)",
        "(d0, d1, d2, d3, d4, d5, d6) -> (d4, d5, d6, d3)",
        "(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)",
    ]
    assert [op.name for op in bias.body.block.ops] == ["arith.addf", "linalg.yield"]
    assert [op.name for op in residual.body.block.ops] == ["arith.addf", "linalg.yield"]
    assert "arith.maximumf" in [op.name for op in relu.body.block.ops]


@pytest.mark.parametrize("layout", [graph.NCHW, graph.NHWC])
def test_a_grouped_convolution_gets_views_from_its_caller_and_keeps_its_epilogue_split(
    layout: str,
) -> None:
    rng = np.random.default_rng(4)

    def build(x: SSAValue, w: SSAValue, b: SSAValue, scale: SSAValue) -> Operation:
        def members(x: SSAValue, w: SSAValue, b: SSAValue, scale: SSAValue) -> Operation:
            y = graph.ConvOp(x, w, b, pads=[1] * 4, group=3, layout=layout)
            z = graph.AddOp(graph.MulOp(y, splat(0.5)), x)
            return graph.ReluOp(graph.MulOp(scale, z))

        return group([x, w, b, scale], members)

    if layout == graph.NCHW:
        shapes = [(2, 6, 4, 4), (6, 2, 3, 3), (6,), (6, 1, 1)]
    else:
        shapes = [(2, 4, 4, 6), (3, 3, 2, 6), (6,), (6,)]
    agree(rng, shapes, build)
    main, (kernel,) = functions(lower(graph_module([reals(rng, *s) for s in shapes], build)))
    assert names(main) == {
        "func.call",
        "tensor.expand_shape",
        "tensor.collapse_shape",
        "func.return",
    }
    assert not names(kernel) & {"tensor.expand_shape", "tensor.collapse_shape"}


def test_ops_of_all_kinds_chain_inside_one_group() -> None:
    rng = np.random.default_rng(5)

    def members(x: SSAValue, w: SSAValue) -> Operation:
        y = graph.ConvOp(x, w, group=2, pads=[0, 1])
        moved = graph.TransposeOp(graph.ReshapeOp(graph.IdentityOp(y), [2, 20]), perm=[1, 0])
        total = graph.ReduceSumOp(graph.SoftmaxOp(moved, axis=0), axes=[1])
        both = graph.ConcatOp([moved, graph.NegOp(moved)], axis=1)
        return graph.AddOp(both, graph.ReshapeOp(total, [20, 1]))

    shapes = [(2, 4, 5), (4, 2, 2)]
    inputs = [reals(rng, *shape) for shape in shapes]
    agree_closely(inputs, lambda *values: group(values, members))


def test_identical_groups_share_a_kernel_and_others_do_not() -> None:
    def build(x: SSAValue) -> Operation:
        a = graph.ReluOp(graph.MatmulOp(x, weight("a", 4, 4)))
        b = graph.ReluOp(graph.MatmulOp(a, weight("b", 4, 4)))
        c = graph.MulOp(graph.MulOp(b, splat(2.0)), splat(2.0))
        return graph.MulOp(c, splat(3.0))

    main, kernels = functions(lower(graph_module([np.zeros((4, 4), np.float32)], build)))
    calls = [op.callee.string_value() for op in main.body.block.ops if isinstance(op, CallOp)]
    assert calls == ["fused_0", "fused_1", "fused_0", "fused_1", "fused_2", "fused_2", "fused_3"]
    assert [kernel.sym_name.data for kernel in kernels] == [f"fused_{n}" for n in range(4)]


def test_the_name_of_a_kernel_does_not_clash_with_another_symbol() -> None:
    module = graph_module([np.zeros(3, np.float32)], graph.ReluOp)
    module.body.block.add_op(FuncOp("fused_0", ([], []), Region(), "private"))
    lowered = lower(module)
    (call,) = (op for op in lowered.walk() if isinstance(op, CallOp))
    assert call.callee.string_value() == "fused_1"


def test_weights_become_arguments_after_the_inputs_one_a_name() -> None:
    rng = np.random.default_rng(6)
    store = WeightStore()
    for name in ("v", "w"):
        store.add(name, reals(rng, 4))

    def build(x: SSAValue) -> Operation:
        def members(x: SSAValue) -> Operation:
            return graph.AddOp(graph.MulOp(x, weight("v", 4)), weight("w", 4))

        inner = group([graph.SubOp(x, weight("w", 4)).result], members)
        return graph.ConcatOp([inner.outputs[0], weight("v", 4)], axis=0)

    x = reals(rng, 4)
    agree_exactly([x], build, store)
    module = graph_module([x], build)
    main, _ = functions(module)
    main.arg_attrs = ArrayAttr([DictionaryAttr({"graph.name": StringAttr("x")})])
    main.res_attrs = ArrayAttr([DictionaryAttr({"graph.name": StringAttr("y")})])
    main, _ = functions(lower(module))
    assert main.arg_attrs is not None
    assert [dict(each.data) for each in main.arg_attrs] == [
        {"graph.name": StringAttr("x")},
        {"graph.weight": StringAttr("w")},
        {"graph.weight": StringAttr("v")},
    ]
    assert main.res_attrs is not None
    assert main.res_attrs.data[0].data == {"graph.name": StringAttr("y")}


def test_a_weight_of_two_shapes_is_refused() -> None:
    def build(x: SSAValue) -> Operation:
        return graph.AddOp(graph.AddOp(x, weight("w", 4)), weight("w", 1))

    with pytest.raises(UserError, match='the weight "w" is used as a tensor<4xf32> and as a'):
        lower(graph_module([np.zeros(4, np.float32)], build))


def test_inline_numbers_stand_in_the_bodies_and_other_constants_in_main() -> None:
    table = DenseIntOrFPElementsAttr.from_list(TensorType(i64, [3]), [5, -1, 7])

    def build(x: SSAValue, y: SSAValue) -> Operation:
        def members(x: SSAValue, two: SSAValue) -> Operation:
            return graph.MulOp(graph.AddOp(x, two), splat(0.5))

        scaled = group([x, splat(2.0).result], members).outputs[0]
        moved = graph.AddOp(y, graph.ConstantOp(table))
        return graph.ConcatOp([graph.CastOp(scaled, i64), moved], axis=0)

    inputs = [np.asarray([1.0, 4.0], np.float32), np.asarray([10, 20, 30])]
    agree_exactly(inputs, build)
    main, kernels = functions(lower(graph_module(inputs, build)))
    assert [op.value for op in main.body.block.ops if op.name == "arith.constant"] == [table]  # pyright: ignore
    assert [len(kernel.body.block.args) for kernel in kernels] == [1, 1, 2]


def test_a_constant_operand_of_an_op_that_is_not_elementwise_is_filled() -> None:
    twos = graph.ConstantOp(DenseIntOrFPElementsAttr.from_list(TensorType(f32, [3, 2]), [2.0]))
    agree_exactly([np.ones((4, 3), np.float32)], lambda x: graph.MatmulOp(x, twos))


def test_what_returns_an_argument_or_a_constant_is_lowered() -> None:
    x = np.asarray([1.0, -2.0], np.float32)
    agree_exactly([x], lambda x: x)
    agree_exactly([x], graph.IdentityOp)
    agree_exactly([x], lambda x: group([x], lambda x: x))
    agree_exactly([x], lambda x: group([x], graph.IdentityOp))
    agree_exactly([x], lambda x: group([x], lambda x: splat(1.5)))
    agree_exactly([x], lambda x: splat(1.5))


def test_locations_go_from_graph_ops_to_their_generics_and_calls() -> None:
    def named(op: Operation, name: str) -> Operation:
        op.location = NameLoc(StringAttr(name), UnknownLoc())
        return op

    def members(x: SSAValue, w: SSAValue) -> Operation:
        return named(graph.ReluOp(named(graph.MatmulOp(x, w), "fc")), "act")

    inputs = [np.zeros((2, 2), np.float32)] * 2
    lowered = lower(graph_module(inputs, lambda *values: group(values, members)))

    def place(op: Operation) -> str:
        assert isinstance(op.location, NameLoc)
        return op.location.desc.data

    assert [place(op) for op in generics(lowered)] == ["fc", "fc", "act"]
    assert [place(op) for op in lowered.walk() if isinstance(op, CallOp)] == ["act"]


def test_the_text_of_the_tensor_level_round_trips() -> None:
    def build(x: SSAValue) -> Operation:
        pooled = graph.MaxPoolOp(x, kernel_shape=[2, 2], pads=[1] * 4, ceil_mode=True)
        return graph.SoftmaxOp(graph.ReshapeOp(pooled, [-1, 7]), axis=1)

    text = str(lower(graph_module([np.zeros((1, 7, 3, 3), np.float32)], build)))
    again = parse_text(make_context(), SourceText("t.mlir", text)).module
    again.verify()
    assert str(again) == text


def test_lowering_twice_changes_nothing() -> None:
    once = lower(graph_module([np.zeros(3, np.float32)], graph.ReluOp))
    assert str(lower(once)) == str(once)


@irdl_op_definition
class CubeOp(graph.UnaryOp):
    """x to the third: an op of a plug-in."""

    name = "graph.cube_of_a_plug_in"


def test_an_op_without_a_lowering_is_unsupported_until_a_plug_in_registers_one() -> None:
    module = graph_module([np.zeros(3, np.float32)], CubeOp)
    with pytest.raises(UserError, match="cube_of_a_plug_in has no lowering") as caught:
        lower(module)
    assert caught.value.status == UNSUPPORTED

    @pointwise(CubeOp)
    def cube(body: Body, op: CubeOp, x: SSAValue) -> SSAValue:  # pyright: ignore[reportUnusedFunction]
        return body.mul(x, body.mul(x, x))

    x = np.asarray([2.0, -3.0, 0.5], np.float32)
    (found,) = run_module(lower(graph_module([x], CubeOp)), [x], WeightStore())
    np.testing.assert_array_equal(found, x**3)


def test_graph_ops_in_another_region_and_called_functions_are_refused() -> None:
    inner = Block([graph.ConstantOp(DenseIntOrFPElementsAttr.from_list(TensorType(f32, []), [1.0]))])
    strange = UnknownOp(regions=[Region(inner)])
    module = ModuleOp([FuncOp("main", ([], []), Region(Block([strange, ReturnOp()])))])
    with pytest.raises(UserError, match="stands inside"):
        GraphToTensorPass().apply(make_context(), module)

    callee = graph_module([np.zeros(3, np.float32)], graph.ReluOp)
    called, _ = functions(callee)
    called.sym_name = StringAttr("part")
    block = Block(arg_types=called.function_type.inputs)
    call = CallOp("part", block.args, called.function_type.outputs.data)
    block.add_ops([call, ReturnOp(*call.results)])
    main = FuncOp("main", called.function_type, Region(block))
    callee.body.block.add_op(main)
    with pytest.raises(UserError, match="@part holds graph ops and is called"):
        GraphToTensorPass().apply(make_context(), callee)
