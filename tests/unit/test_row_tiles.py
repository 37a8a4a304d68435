# SPDX-License-Identifier: Apache-2.0
"""Kernels of the host that reduce rows, and products of a matrix and a vector, beside onnxruntime."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from one_node import onnxruntime_of
from onnx import TensorProto, helper, numpy_helper

import penstock
from penstock.lowering.to_c.module import emit_c
from penstock.passes.analysis.kernels import TILING, kernels
from penstock.runtime.interpreter import run_module

MACHINES = ("host-avx2", "host-avx512-vnni", "host-neon")
EXTENTS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 67, 100, 130, 257, 1000, 1031)

Arrays = dict[str, NDArray[Any]]


def model(
    nodes: list[onnx.NodeProto], inputs: Arrays, weights: Arrays, output: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in inputs.items()],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def rows_model(draw: random.Random) -> tuple[onnx.ModelProto, Arrays]:
    """Something that reduces rows of random lengths, along the last axis or another one."""
    rank = draw.choice([1, 2, 2, 2, 3, 4])
    shape = [draw.choice(EXTENTS[:10]) for _ in range(rank)]
    axis = rank - 1 if draw.random() < 0.7 else draw.randrange(rank)
    shape[axis] = draw.choice(EXTENTS)
    while np.prod(shape) > 60_000:
        largest = max((dim for dim in range(rank) if dim != axis), key=lambda dim: shape[dim])
        shape[largest] = shape[largest] // 2 or 1
    values = np.random.default_rng(draw.randrange(1 << 30))
    x = values.standard_normal(shape).astype(np.float32)
    axes: Arrays = {"axes": np.array([axis], np.int64)}
    keep, output = draw.choice([0, 1]), TensorProto.FLOAT
    match draw.choice(["softmax", "log", "norm", "lse", "arg", "one", "residual", "masked", "less", "less"]):
        case "softmax":
            nodes, weights = [helper.make_node("Softmax", ["x"], ["y"], axis=axis)], {}
        case "log":
            nodes, weights = [helper.make_node("LogSoftmax", ["x"], ["y"], axis=axis)], {}
        case "norm":
            size = shape[axis:]
            weights = {name: values.standard_normal(size).astype(np.float32) for name in "gb"}
            nodes = [helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"], axis=axis)]
        case "lse":
            nodes, weights = [helper.make_node("ReduceLogSumExp", ["x", "axes"], ["y"], keepdims=keep)], axes
        case "arg":
            kind, output = draw.choice(["ArgMax", "ArgMin"]), TensorProto.INT64
            x = np.round(x * 2)
            nodes = [
                helper.make_node(kind, ["x"], ["y"], axis=axis, keepdims=keep, select_last_index=draw.choice([0, 1]))
            ]
            weights = {}
        case "one":
            kind = draw.choice(["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL2", "ReduceProd"])
            nodes, weights = [helper.make_node(kind, ["x", "axes"], ["y"], keepdims=keep)], axes
        case "less":
            kind = draw.choice(["ReduceSum", "ReduceMax", "ReduceMean"])
            nodes, weights = (
                [helper.make_node(kind, ["x", "axes"], ["r"]), helper.make_node("Sub", ["x", "r"], ["y"])],
                axes,
            )
        case "residual":
            weights = {"g": values.standard_normal(shape[-1]).astype(np.float32), "r": x[::-1].copy()}
            nodes = [
                helper.make_node("Add", ["x", "r"], ["s"]),
                helper.make_node("LayerNormalization", ["s", "g"], ["n"], axis=-1),
                helper.make_node("Relu", ["n"], ["y"]),
            ]
        case _:
            weights = {
                "m": np.where(values.random(shape[axis:]) < 0.3, -np.inf, 0).astype(np.float32),
                "h": np.float32(0.5),
            }
            nodes = [
                helper.make_node("Mul", ["x", "h"], ["s"]),
                helper.make_node("Add", ["s", "m"], ["t"]),
                helper.make_node("Softmax", ["t"], ["y"], axis=axis),
            ]
    return model(nodes, {"x": x}, {name: np.asarray(value) for name, value in weights.items()}, output), {"x": x}


def matvec_model(draw: random.Random) -> tuple[onnx.ModelProto, Arrays]:
    """A product of a vector and a matrix, transposed or not, a weight or not, with what is computed after it."""
    k, n = draw.choice(EXTENTS), draw.choice(EXTENTS)
    values = np.random.default_rng(draw.randrange(1 << 30))
    transposed, is_weight = draw.choice([0, 1]), draw.random() < 0.4
    x = values.standard_normal((1, k)).astype(np.float32)
    w = values.standard_normal((n, k) if transposed else (k, n)).astype(np.float32)
    bias = values.standard_normal(n).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["s"], transB=transposed),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    inputs, weights = {"x": x}, {"b": bias}
    (weights if is_weight else inputs)["w"] = w
    return model(nodes, inputs, weights), inputs


def check(given: onnx.ModelProto, inputs: Arrays, machine: str) -> penstock.Engine:
    """C and the interpreter have the same bits, and are near onnxruntime."""
    engine = penstock.compile(given, machine)
    assert isinstance(engine, penstock.Engine)
    (found,) = engine.run(list(inputs.values()))
    # Products alone are summed in an order of their own, unless it is asked for.
    ordered = any(node.op_type == "Gemm" for node in given.graph.node)
    (interpreted,) = run_module(engine.module, list(inputs.values()), engine.ctx.weights, ordered=ordered)
    np.testing.assert_array_equal(found, interpreted)
    (expected,) = onnxruntime_of(given, inputs)
    np.testing.assert_allclose(found, expected, 1e-4, 2e-4)
    return engine


@pytest.mark.parametrize("seed", range(6))
def test_rows(seed: int) -> None:
    check(*rows_model(random.Random(seed)), MACHINES[seed % 3])


@pytest.mark.parametrize("seed", range(4))
def test_matrix_times_vector(seed: int) -> None:
    check(*matvec_model(random.Random(seed)), MACHINES[seed % 3])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 20))
def test_many_rows(first: int) -> None:
    for seed in range(first, first + 20):
        build = rows_model if seed % 3 else matvec_model
        given, inputs = build(random.Random(seed))
        check(given, inputs, MACHINES[seed % 3])


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_a_row_with_a_number_that_is_none(special: float) -> None:
    """Only that row changes; NaN is handed on by maxima and sums."""
    x = np.random.default_rng(0).standard_normal((5, 77)).astype(np.float32)
    for kind in ("Softmax", "ReduceMax", "ReduceLogSumExp"):
        x[2, 40] = special
        attributes: dict[str, Any] = {"axis": -1} if kind == "Softmax" else {"keepdims": 1}
        operands = ["x"] if kind == "Softmax" else ["x", "axes"]
        weights: Arrays = {} if kind == "Softmax" else {"axes": np.array([1], np.int64)}
        given = model([helper.make_node(kind, operands, ["y"], **attributes)], {"x": x}, weights)
        engine = penstock.compile(given, "host-avx2")
        assert isinstance(engine, penstock.Engine)
        (found,) = engine.run([x])
        (interpreted,) = run_module(engine.module, [x], engine.ctx.weights)
        np.testing.assert_array_equal(found, interpreted)
        assert np.isfinite(np.delete(found, 2, 0)).all()
        if np.isnan(special):
            assert np.isnan(found[2]).all()


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize(("kind", "numpy"), [("ReduceMax", np.maximum), ("ReduceMin", np.minimum)])
def test_extrema_of_special_numbers(machine: str, kind: str, numpy: np.ufunc) -> None:
    """Vectors of each beside each: NaN is handed on, and -0 is below +0."""
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45], np.float32)
    first, second = (each.reshape(-1, 1) for each in np.meshgrid(special, special))
    x = np.concatenate([np.tile(first, 256), np.tile(second, 256)], 1)
    given = model([helper.make_node(kind, ["x", "axes"], ["y"])], {"x": x}, {"axes": np.array([1], np.int64)})
    engine = penstock.compile(given, machine)
    assert isinstance(engine, penstock.Engine)
    (found,) = engine.run([x])
    assert f"pen_{kind[6:].lower()}imum_f32x" in emit_c(engine.module).source
    expected = numpy(first, second)
    zeros = (first == 0) & (second == 0)
    both = np.signbit(first) & np.signbit(second), np.signbit(first) | np.signbit(second)
    expected[zeros] = np.where(both[kind == "ReduceMin"], np.float32(-0.0), np.float32(0))[zeros]
    np.testing.assert_array_equal(found, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[is_number]), np.signbit(expected[is_number]))


def test_a_normalization_is_one_kernel_of_tiles() -> None:
    x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    weights = {name: np.ones(1024, np.float32) for name in "gb"}
    engine = check(
        model([helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"])], {"x": x}, weights),
        {"x": x},
        "host-avx2",
    )
    (kernel,) = kernels(engine.module)
    assert "d0 parallel, 32 tiles of 2 in 64" in str(kernel.attributes[TILING])


@pytest.mark.parametrize(("machine", "bits"), [(None, 256), ("host-avx2", 256), ("host-avx512", 512)])
def test_loops_have_the_vectors_of_the_machine(machine: str | None, bits: int) -> None:
    x = np.zeros((3, 40), np.float32)
    given = model([helper.make_node("Gelu", ["x"], ["y"])], {"x": x}, {})
    given.opset_import[0].version = 20
    engine = penstock.compile(given, machine)
    assert isinstance(engine, penstock.Engine)
    assert f'prefer-vector-width={bits}"' in emit_c(engine.module).source


@pytest.mark.parametrize("machine", ["fe310-like", "cortex-m7-like"])
def test_rows_compile_for_processors_with_vectors_of_64_bits(machine: str) -> None:
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    engine = penstock.compile(model([helper.make_node("Softmax", ["x"], ["y"])], {"x": x}, {}), machine)
    assert isinstance(engine, penstock.Engine)
    assert "prefer-vector-width" not in emit_c(engine.module).source
    powers = np.exp(x)
    np.testing.assert_allclose(engine(x)[0], powers / powers.sum(1, keepdims=True), rtol=1e-6)
