# SPDX-License-Identifier: Apache-2.0
"""The rule of every op, and the rules of its adjoint code, against central finite differences in f64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.tensors import tensor_type_of
from xdsl.dialects.builtin import ModuleOp, f32, f64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from penstock.dialects import graph
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.gradient import GraphGradientPass
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import run_passes

Array = NDArray[Any]
Unary = Callable[[SSAValue], Operation]
Binary = Callable[[SSAValue, SSAValue], Operation]
Ternary = Callable[[SSAValue, SSAValue, SSAValue], Operation]
Build = Callable[..., Operation]

STEP = 1e-5
FEW = 8
DIRECTIONS = 3


@overload
def program(build: Unary, arrays: Sequence[Array]) -> tuple[PenstockContext, ModuleOp]: ...
@overload
def program(build: Binary, arrays: Sequence[Array]) -> tuple[PenstockContext, ModuleOp]: ...
@overload
def program(build: Ternary, arrays: Sequence[Array]) -> tuple[PenstockContext, ModuleOp]: ...
@overload
def program(build: Build, arrays: Sequence[Array]) -> tuple[PenstockContext, ModuleOp]: ...
def program(build: Build, arrays: Sequence[Array]) -> tuple[PenstockContext, ModuleOp]:
    """@main with arguments of the types of the arrays, and what is built on them as its result."""
    block = Block(arg_types=[tensor_type_of(array) for array in arrays])
    made = build(*block.args)
    ops: list[Operation] = []
    pending = [made]
    while pending:  # the ops that `build` has nested in one another
        op = pending.pop()
        ops.append(op)
        pending += [operand.owner for operand in op.operands if isinstance(operand.owner, Operation)]
    for op in reversed(ops):
        if op.parent is None:
            block.add_op(op)
    block.add_op(ReturnOp(made.results[0]))
    types = list(block.arg_types), [made.results[0].type]
    return make_context(), ModuleOp([FuncOp("main", types, Region(block))])


def functions(module: ModuleOp) -> list[FuncOp]:
    return [op for op in module.body.block.ops if isinstance(op, FuncOp)]


def directions(shape: Sequence[int]) -> Iterator[Array]:
    """Each element alone where there are few; else all of them at once, each by a random length, a few times."""
    count = int(np.prod(shape))
    if count <= FEW:
        yield from (each.reshape(shape) for each in np.eye(count))
        return
    rng = np.random.default_rng(3)
    for _ in range(DIRECTIONS):
        yield rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape)


def difference(
    run: Callable[[Sequence[Array]], Array], arrays: Sequence[Array], at: int, seed: Array, direction: Array
) -> float:
    """The derivative of sum(seed * run(arrays)) by input `at` in a direction, by a central difference."""
    ends = [
        run([array + sign * STEP * direction if index == at else array for index, array in enumerate(arrays)])
        for sign in (1, -1)
    ]
    # the difference first: sums of large numbers would lose it
    return float(np.sum(seed * (ends[0] - ends[1])) / (2 * STEP))


def check(ctx: PenstockContext, module: ModuleOp, arrays: Sequence[Array], seeds: int = 1) -> None:
    """The gradients of @main, and `seeds - 1` times those of its gradient, are what finite differences give."""
    rng = np.random.default_rng(7)
    given = list(arrays)
    name = "main"
    for _ in range(seeds):
        run_passes(ctx, module, [GraphGradientPass(of=name)])
        (primal,) = [func for func in functions(module) if func.sym_name.data == name]
        name += "_gradient"
        (func,) = [func for func in functions(module) if func.sym_name.data == name]
        outputs = run_graph(primal, given, ctx.weights)
        shifts = [rng.uniform(0.5, 1.5, output.shape) for output in outputs]
        gradients = run_graph(func, [*given, *shifts], ctx.weights)
        floats = [index for index, array in enumerate(given) if array.dtype.kind == "f"]

        def run(values: Sequence[Array], primal: FuncOp = primal) -> Array:
            return np.concatenate([each.ravel() for each in run_graph(primal, values, ctx.weights)])

        seed = np.concatenate([shift.ravel() for shift in shifts])
        for index, gradient in zip(floats, gradients, strict=True):
            assert gradient.shape == given[index].shape
            for direction in directions(gradient.shape):
                expected, parts = difference(run, given, index, seed, direction), gradient * direction
                tolerance = 2e-6 * np.abs(parts).sum() + 2e-7
                assert abs(parts.sum() - expected) <= tolerance, f"input {index} of @{name}"
        given += shifts


def numbers(*shape: int, low: float = -1.5, high: float = 1.5, seed: int = 0) -> Array:
    """Numbers in an interval, none near 0 or near another one."""
    count = int(np.prod(shape))
    rng = np.random.default_rng(seed)
    grid = low + (high - low) * (np.arange(count) + rng.uniform(0.3, 0.7, count)) / count
    return np.asarray(rng.permutation(grid).reshape(shape))


X = numbers(2, 3)
IMAGE = numbers(2, 4, 5, 6)
POSITIVE = numbers(2, 3, low=0.3, high=2.0)
INDICES = np.array([[2, 0], [-1, 2]], np.int64)
TRUTH = np.array([[True, False, True], [False, True, False]])

UNARY: list[tuple[Unary, Array]] = [
    *((op, X) for op in (graph.AbsOp, graph.NegOp, graph.ExpOp, graph.ErfOp, graph.ReluOp, graph.SigmoidOp)),
    *((op, X) for op in (graph.TanhOp, graph.SoftplusOp, graph.HardSwishOp, graph.IdentityOp, graph.LeakyReluOp)),
    *((op, X) for op in (graph.EluOp, graph.SeluOp, graph.GeluOp, graph.SinOp, graph.CosOp, graph.TanOp)),
    *((op, X) for op in (graph.SinhOp, graph.CoshOp, graph.AsinhOp, graph.AtanOp, graph.HardSigmoidOp)),
    *((op, X * 0.6) for op in (graph.AsinOp, graph.AcosOp, graph.AtanhOp)),
    *((op, POSITIVE) for op in (graph.LogOp, graph.SqrtOp, graph.ReciprocalOp)),
    (graph.AcoshOp, POSITIVE + 1),
    (graph.HardSwishOp, 4 * X),
    (graph.HardSigmoidOp, 4 * X),
    (lambda x: graph.GeluOp(x, approximate="tanh"), X),
    (lambda x: graph.LeakyReluOp(x, alpha=0.3), X),
    (lambda x: graph.EluOp(x, alpha=0.7), X),
    (lambda x: graph.ClipOp(x, min=-0.7, max=0.5), X),
    (lambda x: graph.ClipOp(x, max=0.5), X),
]

SHAPES: list[tuple[Unary, Array]] = [
    (lambda x: graph.ReshapeOp(x, [3, 2]), X),
    (lambda x: graph.TransposeOp(x, perm=[2, 0, 3, 1]), numbers(2, 3, 2, 2)),
    (lambda x: graph.ExpandOp(x, [2, 2, 3, 4]), numbers(2, 3, 1)),
    (lambda x: graph.PadOp(x, pads=[1, 0, 0, 2], value=3.0), X),
    (lambda x: graph.LayoutTransformOp(x, source="NCHW", target="NHWC2c"), numbers(2, 3, 2, 1)),
    (lambda x: graph.SliceOp(x, starts=[0, 1], sizes=[1, 2]), X),
    (lambda x: graph.SliceOp(x, starts=[1, 6], sizes=[3, 3], steps=[2, -3]), numbers(6, 8)),
    (lambda x: graph.SliceOp(x, starts=[5, 0], sizes=[6, 2], steps=[-1, 7]), numbers(6, 8)),
    (lambda x: graph.ConcatOp([x, x, graph.NegOp(x)], axis=1), X),
]

REDUCTIONS: list[tuple[Unary, Array]] = [
    *(
        (lambda x, op=op, axes=axes, keepdims=keepdims: op(x, axes=axes, keepdims=keepdims), numbers(2, 3, 2))
        for op in (graph.ReduceSumOp, graph.ReduceMeanOp, graph.ReduceMaxOp, graph.ReduceMinOp, graph.ReduceProdOp)
        for axes, keepdims in (([1], True), ([0, 2], False), (None, False))
    ),
    (lambda x: graph.SoftmaxOp(x, axis=1), X),
    (lambda x: graph.SoftmaxOp(x, axis=0), X),
    (lambda x: graph.LogSoftmaxOp(x, axis=1), X),
    (graph.GlobalAveragePoolOp, IMAGE),
    (graph.GlobalMaxPoolOp, IMAGE),
    (lambda x: graph.GlobalAveragePoolOp(x, layout="NHWC"), IMAGE),
    (lambda x: graph.GlobalMaxPoolOp(x, layout="NHWC"), IMAGE),
    (lambda x: graph.LrnOp(x, size=3, alpha=0.5, beta=0.6, bias=0.8), numbers(1, 5, 2)),
    (lambda x: graph.LrnOp(x, size=4, alpha=0.5, layout="NHWC"), numbers(1, 2, 5)),
]


@pytest.mark.parametrize(("build", "x"), [*UNARY, *SHAPES, *REDUCTIONS])
def test_the_derivative_of_an_op_of_one_operand_and_the_derivative_of_that(build: Unary, x: Array) -> None:
    check(*program(build, [x]), [x], seeds=2)


@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "more"),
    [
        ([2, 3], [2, 3], [0, 0, 0, 0], {}),  # tiles, which leave a row out
        ([1, 2], [1, 2], [0, 0, 0, 0], {}),  # tiles
        ([3, 2], [1, 2], [1, 0, 1, 1], {}),
        ([2, 2], [2, 2], [0, 0, 0, 0], {"ceil_mode": True}),
        ([2, 2], [3, 1], [1, 1, 0, 0], {"dilations": [2, 3]}),
        ([1, 1], [3, 4], [0, 0, 0, 0], {}),  # most elements are in no window
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_derivative_of_pooling(
    kernel: list[int], strides: list[int], pads: list[int], more: dict[str, Any], layout: str
) -> None:
    image = numbers(1, 2, 5, 6)
    image = image if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(image, 1, -1))
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads, "layout": layout, **more}
    check(*program(lambda x: graph.MaxPoolOp(x, **given), [image]), [image])
    for include in (False, True):
        check(*program(lambda x: graph.AveragePoolOp(x, count_include_pad=include, **given), [image]), [image])


BINARY: list[Binary] = [graph.AddOp, graph.SubOp, graph.MulOp, graph.DivOp, graph.MaxOp, graph.MinOp]


@pytest.mark.parametrize("build", [*BINARY, graph.PreluOp])
@pytest.mark.parametrize(("left", "right"), [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), (2, 1)), ((4, 2, 3), ())])
def test_the_derivative_of_an_op_that_broadcasts(build: Build, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    arrays = [numbers(*left, seed=1), np.asarray(numbers(*right, seed=2) + 1.7)]
    check(*program(build, arrays), arrays, seeds=2 if left == (2, 3) else 1)
    if build in BINARY:
        check(*program(lambda a, b: build(b, a), [1 / arrays[0], arrays[1]]), [1 / arrays[0], arrays[1]])


def test_the_derivative_of_the_remainder_of_a_division() -> None:
    arrays = [8 * X, numbers(3, low=1, high=2)]
    check(*program(graph.ModOp, arrays), arrays)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, 0.0, -1.0])
def test_the_derivative_of_a_power_with_a_number_as_exponent(exponent: float) -> None:
    dense = graph.dense_of(np.asarray(exponent))
    assert dense is not None
    check(*program(lambda x: graph.PowOp(x, graph.ConstantOp(dense)), [POSITIVE]), [POSITIVE], seeds=2)


def test_the_derivative_of_a_power_with_an_exponent_that_is_computed() -> None:
    arrays = [POSITIVE, numbers(3)]
    check(*program(graph.PowOp, arrays), arrays, seeds=2)


def test_a_power_of_zero_has_a_finite_derivative_where_there_is_one() -> None:
    a, b = np.zeros(4), np.array([0.0, 1.0, 2.0, 3.0])
    ctx, module = program(graph.PowOp, [a, b])
    run_passes(ctx, module, [GraphGradientPass()])
    by_base, by_exponent = run_graph(functions(module)[1], [a, b, np.ones(4)], ctx.weights)
    np.testing.assert_array_equal(by_base, [0, 1, 0, 0])
    np.testing.assert_array_equal(by_exponent, np.zeros(4))


def test_the_derivative_of_where_and_of_an_operand_used_twice() -> None:
    arrays = [TRUTH, X, numbers(3)]
    check(*program(graph.WhereOp, arrays), arrays, seeds=2)
    check(*program(lambda x: graph.MulOp(x, x), [X]), [X], seeds=2)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3), (3, 4)),
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((2, 2, 3), (3, 2)),
        ((2, 3), (2, 3, 2)),
        ((2, 1, 2, 3), (3, 3, 1)),
        ((2, 2, 3), (3,)),
        ((3,), (2, 3, 2)),
    ],
)
def test_the_derivative_of_a_matrix_product(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    arrays = [numbers(*left, seed=1), numbers(*right, seed=2)]
    check(*program(graph.MatmulOp, arrays), arrays, seeds=2)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("c", [(2, 4), (4,), (2, 1), ()])
def test_the_derivative_of_gemm(trans_a: bool, trans_b: bool, c: tuple[int, ...]) -> None:
    a, b = (numbers(3, 2) if trans_a else numbers(2, 3)), (numbers(4, 3) if trans_b else numbers(3, 4))
    arrays = [a, b, numbers(*c, seed=3)]
    given: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "trans_a": trans_a, "trans_b": trans_b}
    check(*program(lambda a, b, c: graph.GemmOp(a, b, c, **given), arrays), arrays, seeds=2 if c == (4,) else 1)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 2, 5), (3, 2, 3), {}),
    ((2, 2, 8), (2, 2, 2), {"strides": [3], "pads": [1, 0], "dilations": [2]}),
    ((1, 2, 4, 5), (2, 2, 3, 2), {"pads": [1, 1, 1, 0]}),
    ((1, 2, 5, 4), (2, 2, 1, 2), {"strides": [2, 3]}),
    ((2, 4, 3, 3), (6, 2, 2, 2), {"group": 2}),
    ((1, 3, 5, 4), (6, 1, 3, 3), {"group": 3, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 5, 4), (4, 3, 1, 1), {"strides": [2, 3]}),
    ((1, 4, 4, 5), (4, 2, 1, 1), {"group": 2, "strides": [3, 1], "pads": [1, 0, 1, 2]}),
    ((1, 1, 3, 3), (1, 1, 1, 1), {"pads": [2, 0, 1, 1]}),  # more padding than window
    ((1, 1, 3), (1, 1, 1), {"pads": [5, 0], "strides": [10]}),  # one window, which sees no element
    ((1, 2, 3, 3, 3), (2, 2, 2, 1, 2), {"strides": [1, 2, 1], "pads": [0, 0, 1, 1, 0, 0]}),
]


@pytest.mark.parametrize(("image", "filters", "given"), CONVOLUTIONS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_derivative_of_a_convolution(
    image: tuple[int, ...], filters: tuple[int, ...], given: dict[str, Any], layout: str
) -> None:
    x, w, b = numbers(*image, seed=1), numbers(*filters, seed=2), numbers(filters[0], seed=3)
    if layout == "NHWC":
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        w = np.ascontiguousarray(np.moveaxis(np.moveaxis(w, 1, -1), 0, -1))
    check(*program(lambda x, w: graph.ConvOp(x, w, layout=layout, **given), [x, w]), [x, w])
    check(*program(lambda x, w, b: graph.ConvOp(x, w, b, layout=layout, **given), [x, w, b]), [x, w, b])


@pytest.mark.parametrize("window", [(3, 2), (1, 1)])
def test_the_second_derivative_of_a_convolution(window: tuple[int, int]) -> None:
    arrays = [numbers(1, 2, 4, 4, seed=1), numbers(2, 2, *window, seed=2)]
    given: dict[str, Any] = {"strides": [1, 2], "pads": [1, 0, 0, 1]}
    check(*program(lambda x, w: graph.ConvOp(x, w, **given), arrays), arrays, seeds=2)


@pytest.mark.parametrize("axis", [1, 2])
def test_the_derivative_of_batch_normalization(axis: int) -> None:
    size = (2, 3, 4)
    vectors = [numbers(size[axis], seed=seed) for seed in range(3)]
    arrays = [numbers(*size), *vectors, numbers(size[axis], low=0.5, high=2)]

    def build(*values: SSAValue) -> Operation:
        x, scale, bias, mean, var = values
        return graph.BatchNormalizationOp(x, scale, bias, mean, var, axis=axis)

    check(*program(build, arrays), arrays, seeds=2)


READS: list[tuple[Binary, list[Array]]] = [
    (lambda x, at: graph.GatherOp(x, at, axis=0), [numbers(3, 2), INDICES]),
    (lambda x, at: graph.GatherOp(x, at, axis=1), [numbers(2, 3, 2), INDICES]),
    (lambda x, at: graph.GatherElementsOp(x, at, axis=1), [numbers(3, 3), INDICES]),
    (graph.GatherNdOp, [numbers(3, 3, 2), INDICES]),
]
WRITES: list[tuple[Ternary, list[Array]]] = [
    (lambda x, at, u: graph.ScatterNdOp(x, at, u, reduction="add"), [numbers(3, 3), INDICES, numbers(2)]),
    (graph.ScatterNdOp, [numbers(3, 3, 2), INDICES, numbers(2, 2)]),
    (
        lambda x, at, u: graph.ScatterElementsOp(x, at, u, axis=1, reduction="add"),
        [numbers(3, 3), np.array([[0, 0], [1, 2]], np.int64), numbers(2, 2)],
    ),
    (
        lambda x, at, u: graph.ScatterElementsOp(x, at, u, axis=0),
        [numbers(3, 3), np.array([[0, 1], [1, 2]], np.int64), numbers(2, 2)],
    ),
]


@pytest.mark.parametrize(("build", "arrays"), [*READS, *WRITES])
def test_the_derivative_of_reading_and_writing_at_indices(build: Build, arrays: list[Array]) -> None:
    check(*program(build, arrays), arrays, seeds=2)


def test_a_cast_between_floats_lets_the_adjoint_through_and_one_to_integers_does_not() -> None:
    x = X.astype(np.float32)
    ctx, module = program(lambda x: graph.MulOp(graph.CastOp(x, f64), graph.CastOp(x, f64)), [x])
    run_passes(ctx, module, [GraphGradientPass()])
    (gradient,) = run_graph(functions(module)[1], [x, np.ones_like(X)], ctx.weights)
    assert gradient.dtype == np.float32
    np.testing.assert_array_equal(gradient, 2 * x)

    ctx, module = program(lambda x: graph.CastOp(graph.GreaterOp(x, x), f32), [x])
    run_passes(ctx, module, [GraphGradientPass()])
    (gradient,) = run_graph(functions(module)[1], [x, x], ctx.weights)
    np.testing.assert_array_equal(gradient, np.zeros_like(x))


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_a_product_with_zeros_has_a_derivative(zeros: int) -> None:
    x = numbers(4)
    x[:zeros] = 0
    check(*program(graph.ReduceProdOp, [x]), [x])


def test_equal_maxima_share_the_adjoint() -> None:
    x = np.array([[[[1.0, 3, 3, 0], [3, 2, 0, 0]]]])

    def gradients(made: tuple[PenstockContext, ModuleOp], *arrays: Array) -> list[Array]:
        ctx, module = made
        run_passes(ctx, module, [GraphGradientPass()])
        shape = tensor_of(functions(module)[1].body.block.args[-1]).get_shape()
        return run_graph(functions(module)[1], [*arrays, np.ones(shape)], ctx.weights)

    (tiles,) = gradients(program(lambda x: graph.MaxPoolOp(x, kernel_shape=[2, 2], strides=[2, 2]), [x]), x)
    np.testing.assert_array_equal(tiles[0, 0], [[0, 0.5, 1, 0], [0.5, 0, 0, 0]])
    (overlapping,) = gradients(program(lambda x: graph.MaxPoolOp(x, kernel_shape=[2, 2]), [x]), x)
    np.testing.assert_array_equal(overlapping[0, 0], [[0, 1, 1.5, 0], [0.5, 0, 0, 0]])
    (reduced,) = gradients(program(lambda x: graph.ReduceMaxOp(x, axes=[2], keepdims=False), [x]), x)
    np.testing.assert_array_equal(reduced[0, 0], [[0, 1, 1, 0.5], [1, 0, 0, 0.5]])
    for halves in gradients(program(graph.MaxOp, [x, x]), x, x):
        np.testing.assert_array_equal(halves, np.full_like(x, 0.5))
