# SPDX-License-Identifier: Apache-2.0
"""The graph interpreter against onnxruntime, op by op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.support.tensors import tensor_type_of
from xdsl.ir import Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.bits import erf

Build = Callable[..., Operation]
Interpret = Callable[..., Array]
Reference = Callable[..., Array]


def random(*shape: int, seed: int = 0, low: float = -3.0, high: float = 3.0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def random_ints(*shape: int, seed: int = 0, low: int = -9, high: int = 10, dtype: Any = np.int32) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def assert_close(found: Array, expected: Array, tolerance: float = 1e-5) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# Elementwise


UNARY: list[tuple[Build, str, dict[str, Any]]] = [
    (graph.AbsOp, "Abs", {}),
    (graph.NegOp, "Neg", {}),
    (graph.ExpOp, "Exp", {}),
    (graph.LogOp, "Log", {}),
    (graph.SqrtOp, "Sqrt", {}),
    (graph.ReciprocalOp, "Reciprocal", {}),
    (graph.FloorOp, "Floor", {}),
    (graph.CeilOp, "Ceil", {}),
    (graph.SignOp, "Sign", {}),
    (graph.ErfOp, "Erf", {}),
    (graph.ReluOp, "Relu", {}),
    (graph.SigmoidOp, "Sigmoid", {}),
    (graph.TanhOp, "Tanh", {}),
    (graph.SoftplusOp, "Softplus", {}),
    (graph.IdentityOp, "Identity", {}),
    (graph.HardSwishOp, "HardSwish", {}),
    (graph.LeakyReluOp, "LeakyRelu", {"alpha": 0.3}),
    (graph.LeakyReluOp, "LeakyRelu", {}),
    (graph.EluOp, "Elu", {"alpha": 0.7}),
    (graph.SeluOp, "Selu", {}),
    (graph.SeluOp, "Selu", {"alpha": 1.2, "gamma": 0.9}),
    (graph.HardSigmoidOp, "HardSigmoid", {}),
    (graph.HardSigmoidOp, "HardSigmoid", {"alpha": 0.4, "beta": 0.1}),
    (graph.GeluOp, "Gelu", {"approximate": "none"}),
    (graph.GeluOp, "Gelu", {"approximate": "tanh"}),
]


@pytest.mark.parametrize(("build", "name", "attributes"), UNARY)
def test_unary_ops_match_onnxruntime(
    interpret: Interpret, onnx_result: Reference, build: Build, name: str, attributes: dict[str, Any]
) -> None:
    x = random(2, 3, 50, low=-8, high=8)
    x.flat[:3] = (0.0, -0.5, 20.0)
    if name in ("Log", "Sqrt"):
        x = np.abs(x)
    found = interpret([x], build, **attributes)
    assert_close(found, onnx_result(name, [x], **attributes))


@pytest.mark.parametrize("name", ["Abs", "Neg", "Sign", "Relu"])
def test_unary_ops_on_integers_match_onnxruntime(interpret: Interpret, onnx_result: Reference, name: str) -> None:
    x = random_ints(4, 5, dtype=np.int32)
    build = next(build for build, onnx_name, _ in UNARY if onnx_name == name)
    np.testing.assert_array_equal(interpret([x], build), onnx_result(name, [x]))


BROADCAST = [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((2, 1, 4), (3, 1)), ((), (2, 3)), ((1,), ())]


@pytest.mark.parametrize("shapes", BROADCAST)
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (graph.AddOp, "Add"),
        (graph.SubOp, "Sub"),
        (graph.MulOp, "Mul"),
        (graph.DivOp, "Div"),
        (graph.MaxOp, "Max"),
        (graph.MinOp, "Min"),
        (graph.EqualOp, "Equal"),
        (graph.LessOp, "Less"),
        (graph.GreaterOp, "Greater"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_binary_ops_match_onnxruntime(
    interpret: Interpret,
    onnx_result: Reference,
    build: Build,
    name: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: Any,
) -> None:
    a = random_ints(*shapes[0], seed=1, dtype=dtype)
    b = random_ints(*shapes[1], seed=2, dtype=dtype)
    if name == "Div":
        b = np.asarray(b + (b == 0).astype(dtype))
    found, expected = interpret([a, b], build), onnx_result(name, [a, b])
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_integer_division_truncates_towards_zero(interpret: Interpret) -> None:
    a = np.array([7, -7, 7, -7, 6, -128], np.int8)
    b = np.array([2, 2, -2, -2, -3, 3], np.int8)
    np.testing.assert_array_equal(interpret([a, b], graph.DivOp), [3, -3, -3, 3, -2, -42])


def test_unsigned_division_and_maximum_read_unsigned_numbers(interpret: Interpret) -> None:
    a, b = np.array([250, 7], np.uint8), np.array([7, 250], np.uint8)
    np.testing.assert_array_equal(interpret([a, b], graph.DivOp), [35, 0])
    np.testing.assert_array_equal(interpret([a, b], graph.MaxOp), [250, 250])


def test_powers_match_onnxruntime(interpret: Interpret, onnx_result: Reference) -> None:
    a, b = random(3, 4, seed=1, low=0.1), random(4, seed=2)
    assert_close(interpret([a, b], graph.PowOp), onnx_result("Pow", [a, b]))
    a, b = random_ints(3, 4, dtype=np.int64), random_ints(4, low=0, high=7, dtype=np.int64)
    np.testing.assert_array_equal(interpret([a, b], graph.PowOp), onnx_result("Pow", [a, b]))


def test_integers_to_negative_powers_truncate_towards_zero(interpret: Interpret) -> None:
    a = np.array([1, -1, -1, 2, -3, 5], np.int32)
    b = np.array([-4, -3, -2, -1, -2, 0], np.int32)
    np.testing.assert_array_equal(interpret([a, b], graph.PowOp), [1, -1, 1, 0, 0, 1])


def test_prelu_where_and_logic_match_onnxruntime(interpret: Interpret, onnx_result: Reference) -> None:
    x, slope = random(2, 3, 4, seed=1), random(3, 1, seed=2)
    assert_close(interpret([x, slope], graph.PreluOp), onnx_result("PRelu", [x, slope]))
    condition, other = random(4) > 0, random(2, 1, 4, seed=3)
    assert_close(
        interpret([condition, x, other], graph.WhereOp),
        onnx_result("Where", [condition, x, other]),
    )
    a, b = random(3, 4, seed=4) > 0, random(4, seed=5) > 0
    for build, name in ((graph.AndOp, "And"), (graph.OrOp, "Or")):
        np.testing.assert_array_equal(interpret([a, b], build), onnx_result(name, [a, b]))
    np.testing.assert_array_equal(interpret([a], graph.NotOp), onnx_result("Not", [a]))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (None, 0.5), (0.0, None), (None, None)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_clip_matches_onnxruntime(
    interpret: Interpret, onnx_result: Reference, low: float | None, high: float | None, dtype: Any
) -> None:
    x = random_ints(40, dtype=dtype)
    bounds = [None if bound is None else np.asarray(bound, dtype) for bound in (low, high)]
    found = interpret([x], graph.ClipOp, min=low, max=high)
    np.testing.assert_array_equal(found, onnx_result("Clip", [x, *bounds]))


def test_clip_bounds_beyond_an_integer_type_do_not_bind(interpret: Interpret) -> None:
    x = np.array([-128, 0, 127], np.int8)
    found = interpret([x], graph.ClipOp, min=-math.inf, max=1e30)
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("source", [np.float32, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("target", [np.float32, np.float64, np.int64, np.int32, np.bool_])
def test_casts_match_onnxruntime(interpret: Interpret, onnx_result: Reference, source: Any, target: Any) -> None:
    x = (random(30, low=0, high=6) if source == np.uint8 else random(30)).astype(source)
    element = tensor_type_of(np.zeros(1, target)).element_type
    found = interpret([x], graph.CastOp, element)
    expected = onnx_result("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_is_within_two_units_in_the_last_place(dtype: Any) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), np.logspace(-30, 0.9, 3000), [0.0, -0.0]])
    x = x.astype(dtype)
    expected = np.array([math.erf(float(value)) for value in x]).astype(dtype)
    found = erf(x)
    assert found.dtype == dtype
    assert np.max(np.abs(found - expected) / np.spacing(np.abs(expected))) <= 2
    np.testing.assert_array_equal(erf(np.array([np.inf, -np.inf, np.nan], dtype)), np.array([1, -1, np.nan], dtype))


# Products, normalisations


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4,)),
    ],
)
def test_matrix_products_match_onnxruntime(
    interpret: Interpret, onnx_result: Reference, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = random(*left, seed=1), random(*right, seed=2)
    assert_close(interpret([a, b], graph.MatmulOp), onnx_result("MatMul", [a, b]))


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("c_shape", [None, (), (5,), (3, 1), (3, 5)])
def test_gemm_matches_onnxruntime(
    interpret: Interpret, onnx_result: Reference, trans_a: bool, trans_b: bool, c_shape: tuple[int, ...] | None
) -> None:
    a = random(*((4, 3) if trans_a else (3, 4)), seed=1)
    b = random(*((5, 4) if trans_b else (4, 5)), seed=2)
    arrays = [a, b] if c_shape is None else [a, b, random(*c_shape, seed=3)]
    found = interpret(
        arrays,
        graph.GemmOp,
        alpha=0.5,
        beta=1.5,
        trans_a=trans_a,
        trans_b=trans_b,
    )
    expected = onnx_result("Gemm", arrays, alpha=0.5, beta=1.5, transA=int(trans_a), transB=int(trans_b))
    assert_close(found, expected)


@pytest.mark.parametrize(("build", "name"), [(graph.SoftmaxOp, "Softmax"), (graph.LogSoftmaxOp, "LogSoftmax")])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_matches_onnxruntime_and_does_not_overflow(
    interpret: Interpret, onnx_result: Reference, build: Build, name: str, axis: int
) -> None:
    x = random(3, 4, 5, low=-50, high=200)
    found = interpret([x], build, axis=axis)
    assert np.isfinite(found).all()
    assert_close(found, onnx_result(name, [x], axis=axis))


# Reductions


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (graph.ReduceSumOp, "ReduceSum"),
        (graph.ReduceMeanOp, "ReduceMean"),
        (graph.ReduceMaxOp, "ReduceMax"),
        (graph.ReduceMinOp, "ReduceMin"),
        (graph.ReduceProdOp, "ReduceProd"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_reductions_match_onnxruntime(
    interpret: Interpret,
    onnx_result: Reference,
    build: Build,
    name: str,
    axes: tuple[int, ...],
    keepdims: bool,
    dtype: Any,
) -> None:
    x = random_ints(2, 3, 4, low=-4, high=5, dtype=dtype)
    found = interpret([x], build, axes=axes, keepdims=keepdims)
    expected = onnx_result(name, [x, np.array(axes, np.int64)], keepdims=int(keepdims))
    assert found.dtype == expected.dtype
    if dtype == np.int32 and name == "ReduceMean":
        expected = np.trunc(x.astype(np.float64).mean(axis=axes, keepdims=keepdims))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_reductions_of_no_elements_give_the_neutral_element(interpret: Interpret) -> None:
    x = np.zeros((2, 0), np.float32)
    for build, neutral in (
        (graph.ReduceSumOp, 0.0),
        (graph.ReduceProdOp, 1.0),
        (graph.ReduceMaxOp, -np.inf),
        (graph.ReduceMinOp, np.inf),
    ):
        found = interpret([x], build, axes=[1])
        np.testing.assert_array_equal(found, np.full((2, 1), neutral, np.float32))


# Shapes


def test_moves_of_elements_match_onnxruntime(interpret: Interpret, onnx_result: Reference) -> None:
    x, y = random(2, 3, 4, seed=1), random(2, 5, 4, seed=2)
    column = x[:, :1]

    def concat(a: SSAValue, b: SSAValue) -> Operation:
        return graph.ConcatOp([a, b], axis=1)

    pairs = [
        (interpret([x], graph.TransposeOp, perm=[2, 0, 1]), onnx_result("Transpose", [x], perm=[2, 0, 1])),
        (interpret([x], graph.ReshapeOp, [4, -1]), onnx_result("Reshape", [x, np.array([4, -1])])),
        (
            interpret([column], graph.ExpandOp, [7, 1, 6, 1]),
            onnx_result("Expand", [column, np.array([7, 1, 6, 1])]),
        ),
        (interpret([x, y], concat), onnx_result("Concat", [x, y], axis=1)),
        (
            interpret([x], graph.PadOp, pads=[1, 0, 2, 0, 3, 1], value=-1.5),
            onnx_result("Pad", [x, np.array([1, 0, 2, 0, 3, 1]), np.array(-1.5, np.float32)]),
        ),
    ]
    for found, expected in pairs:
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


def test_slices_with_negative_steps_match_onnxruntime(interpret: Interpret, onnx_result: Reference) -> None:
    x = random(2, 3, 4)
    found = interpret([x], graph.SliceOp, starts=[1, 2, 3], sizes=[1, 3, 2], steps=[1, -1, -2])
    places = ([1, 2, 3], [2, -9, -9], [0, 1, 2], [1, -1, -2])
    expected = onnx_result("Slice", [x, *(np.array(each) for each in places)])
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)
