# SPDX-License-Identifier: Apache-2.0
"""What running a graph promises beyond the values of single ops."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from programs import verified
from xdsl.dialects import test
from xdsl.dialects.builtin import ModuleOp, NameLoc, StringAttr, TensorType, UnknownLoc, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region
from xdsl.irdl import irdl_op_definition

from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.graph.elementwise import UnaryOp
from penstock.dialects.weights import Array, WeightStore
from penstock.runtime.interpreter.graph import IMPLEMENTATIONS, evaluate_op, implementation_of, implements, run_graph

Interpret = Callable[..., Array]

CHAIN = """
func.func @main(%x: tensor<2x3xf32> {graph.name = "x"}) -> tensor<2x3xf32> {
  %w = graph.constant #graph.weight<"w"> : tensor<3xf32>
  %one = graph.constant dense<1.0> : tensor<f32>
  %0 = graph.mul %x, %w : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %1 = graph.add %0, %one : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %2 = graph.relu %1 : tensor<2x3xf32>
  func.return %2 : tensor<2x3xf32>
}
"""

FUSED = """
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %w = graph.constant #graph.weight<"w"> : tensor<3xf32>
  %y = graph.fused(%x, %w) pattern broadcast {
  ^bb0(%a: tensor<2x3xf32>, %b: tensor<3xf32>):
    %one = graph.constant dense<1.0> : tensor<f32>
    %0 = graph.mul %a, %b : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    %1 = graph.add %0, %one : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
    %2 = graph.relu %1 : tensor<2x3xf32>
    graph.yield %2 : tensor<2x3xf32>
  } : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  func.return %y : tensor<2x3xf32>
}
"""


def store() -> WeightStore:
    weights = WeightStore()
    weights.add("w", np.array([1, -2, 3], np.float32))
    return weights


X = np.array([[1, 2, 3], [-4, -5, -6]], np.float32)


@pytest.mark.parametrize("text", [CHAIN, FUSED])
def test_constants_weights_and_groups_are_evaluated(text: str) -> None:
    (found,) = run_graph(verified(text), [X], store())
    np.testing.assert_array_equal(found, [[2, 0, 10], [0, 11, 0]])


def test_the_listener_sees_each_op_with_its_results_groups_included() -> None:
    seen: list[tuple[str, int]] = []

    def listen(op: Operation, results: Sequence[Array]) -> None:
        seen.append((op.name, results[0].size))

    run_graph(verified(FUSED), [X], store(), listener=listen)
    assert seen == [
        ("graph.constant", 3),
        ("graph.constant", 1),
        ("graph.mul", 6),
        ("graph.add", 6),
        ("graph.relu", 6),
        ("graph.fused", 6),
    ]


def test_a_value_is_freed_after_its_last_use() -> None:
    alive: list[Callable[[], Array | None]] = []
    counts: list[int] = []

    def listen(op: Operation, results: Sequence[Array]) -> None:
        if not isinstance(op, graph.ConstantOp):
            alive.append(weakref.ref(results[0]))
        counts.append(sum(value() is not None for value in alive))

    run_graph(verified(CHAIN), [X], store(), listener=listen)
    # of the chain mul, add, relu, two values exist at a time: the operand (held by the call) and the result
    assert counts == [0, 0, 1, 2, 2]


def test_results_belong_to_the_caller() -> None:
    text = """
    func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
      %w = graph.constant #graph.weight<"w"> : tensor<3xf32>
      func.return %x, %w : tensor<3xf32>, tensor<3xf32>
    }
    """
    weights, x = store(), np.zeros(3, np.float32)
    first, second = run_graph(verified(text), [x], weights)
    first += 1
    second += 1
    np.testing.assert_array_equal(x, [0, 0, 0])
    np.testing.assert_array_equal(weights["w"], [1, -2, 3])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "@main takes 1 inputs, 0 are given"),
        ([X.astype(np.float64)], r'input 0 \("x"\) must be float32\[2, 3\], found float64\[2, 3\]'),
        ([X.T], r'input 0 \("x"\) must be float32\[2, 3\], found float32\[3, 2\]'),
    ],
)
def test_inputs_of_another_type_are_the_users_fault(inputs: list[Array], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_graph(verified(CHAIN), inputs, store())


def test_a_weight_of_another_shape_is_the_users_fault() -> None:
    weights = WeightStore()
    weights.add("w", np.zeros(4, np.float32))
    with pytest.raises(UserError, match=r'weight "w" is float32\[4\] in the store'):
        run_graph(verified(CHAIN), [X], weights)


def test_a_module_without_main_is_the_users_fault() -> None:
    with pytest.raises(UserError, match=r"no func\.func @main"):
        run_graph(ModuleOp([]), [], WeightStore())


def test_an_op_without_semantics_is_unsupported_and_located() -> None:
    block = Block(arg_types=[TensorType(f32, [2])])
    op = test.TestPureOp([block.args[0]], [block.args[0].type])
    op.location = NameLoc(StringAttr("layer7"), UnknownLoc())
    block.add_ops([op, ReturnOp(op.results[0])])
    func = FuncOp("main", ([block.args[0].type], [op.results[0].type]), Region(block))
    with pytest.raises(UserError, match=r"test\.pureop") as caught:
        run_graph(func, [np.zeros(2, np.float32)], WeightStore())
    assert caught.value.status == UNSUPPORTED
    assert caught.value.loc == '"layer7"'


@irdl_op_definition
class CubeOp(UnaryOp):
    """x^3: what a plug-in might add."""

    name = "mine.cube"


@pytest.fixture
def cube() -> Iterator[None]:
    @implements(CubeOp)
    def evaluate(op: CubeOp, operands: Sequence[Array]) -> Array:  # pyright: ignore[reportUnusedFunction]
        return operands[0] ** 3

    yield
    del IMPLEMENTATIONS[CubeOp]


@pytest.mark.usefixtures("cube")
def test_a_plug_in_adds_the_semantics_of_its_ops(interpret: Interpret) -> None:
    np.testing.assert_array_equal(interpret([X], CubeOp), X**3)


def test_an_implementation_that_computes_another_type_is_found_out() -> None:
    block = Block(arg_types=[TensorType(f32, [2])])
    op = CubeOp(block.args[0])

    @implements(CubeOp)
    def evaluate(op: CubeOp, operands: Sequence[Array]) -> Array:  # pyright: ignore[reportUnusedFunction]
        return operands[0].astype(np.float64)

    try:
        with pytest.raises(TypeError, match=r"mine\.cube computed float64"):
            evaluate_op(op, [np.zeros(2, np.float32)])
    finally:
        del IMPLEMENTATIONS[CubeOp]


def test_every_op_but_constants_and_those_with_regions_has_semantics() -> None:
    apart = {graph.ConstantOp, graph.FusedOp, graph.IfOp, graph.LoopOp, graph.YieldOp}
    assert [op.name for op in graph.OPS if op not in apart and implementation_of(op) is None] == []


FLOAT_OPS: list[tuple[Any, dict[str, Any], int]] = [
    (graph.SigmoidOp, {}, 1),
    (graph.SoftplusOp, {}, 1),
    (graph.ErfOp, {}, 1),
    (graph.GeluOp, {}, 1),
    (graph.GeluOp, {"approximate": "tanh"}, 1),
    (graph.HardSwishOp, {}, 1),
    (graph.HardSigmoidOp, {}, 1),
    (graph.SeluOp, {}, 1),
    (graph.EluOp, {}, 1),
    (graph.LeakyReluOp, {}, 1),
    (graph.ClipOp, {"min": -0.3}, 1),
    (graph.ReduceMeanOp, {"axes": [1]}, 1),
    (graph.SoftmaxOp, {}, 1),
    (graph.LogSoftmaxOp, {}, 1),
    (graph.AddOp, {}, 2),
    (graph.ModOp, {}, 2),
    (graph.PowOp, {}, 2),
    (graph.PreluOp, {}, 2),
    (graph.MatmulOp, {}, 2),
    (graph.GemmOp, {"alpha": 0.5}, 2),
    (graph.LrnOp, {"size": 3}, 1),
    (graph.PadOp, {"pads": [1, 0, 0, 1]}, 1),
]


EPSILON = {
    np.dtype(np.float16): 2.0**-10,
    np.dtype(ml_dtypes.bfloat16): 2.0**-7,
    np.dtype(np.float32): 2.0**-23,
    np.dtype(np.float64): 2.0**-52,
}


@pytest.mark.parametrize(("build", "properties", "count"), FLOAT_OPS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_every_op_stays_in_the_element_type(
    interpret: Interpret, build: Any, properties: dict[str, Any], count: int, dtype: Any
) -> None:
    values = [np.random.default_rng(seed).uniform(0.1, 1, (3, 3)) for seed in range(count)]
    found = interpret([value.astype(dtype) for value in values], build, **properties)
    assert found.dtype == dtype
    exact = interpret(values, build, **properties)
    tolerance = 32 * EPSILON[np.dtype(dtype)]
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=tolerance, atol=tolerance)


def test_float32_sums_are_rounded_to_float32(interpret: Interpret) -> None:
    a, b = np.array([0.1], np.float32), np.array([0.2], np.float32)
    assert interpret([a, b], graph.AddOp)[0] == np.float32(0.1) + np.float32(0.2)
    large = np.array([2.0**24, 1.0], np.float32)
    assert interpret([large], graph.ReduceSumOp, keepdims=False) == np.float32(2.0**24)


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        ("dense<[true, false]> : tensor<2xi1>", np.array([True, False])),
        ("dense<[[1, -2], [3, 4]]> : tensor<2x2xi8>", np.array([[1, -2], [3, 4]], np.int8)),
        ("dense<[250, 3]> : tensor<2xui8>", np.array([250, 3], np.uint8)),
        ("dense<-9007199254740993> : tensor<i64>", np.array(-9007199254740993)),
        ("dense<1.5> : tensor<2x3xbf16>", np.full((2, 3), 1.5, ml_dtypes.bfloat16)),
        ("dense<0.1> : tensor<4xf64>", np.full(4, 0.1)),
    ],
)
def test_constants_in_the_text_have_their_exact_values(constant: str, expected: Array) -> None:
    type_text = constant.split(" : ")[1]
    text = f"func.func @main() -> {type_text} {{ %c = graph.constant {constant} func.return %c : {type_text} }}"
    (found,) = run_graph(verified(text), [], WeightStore())
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
