# SPDX-License-Identifier: Apache-2.0
"""Quantised ONNX operators against onnxruntime, at graph level, at loop level and in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from byte_products import byte_factors, convolved
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper
from sampling import every_other, examples

from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.passes.analysis.kernels import kernels, multiply_accumulates
from penstock.passes.toolchain import find_compiler
from penstock.runtime.compiler import LoadedProgram, compile_module, import_program
from penstock.runtime.engine import Backend, Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.signature import signature_of

Array = NDArray[Any]
ort: Any = onnxruntime


def backends() -> tuple[Backend, ...]:
    try:
        find_compiler()
    except UserError:
        return ("interpreter",)
    return ("interpreter", "native")


BACKENDS = backends()


def model_of(nodes: Sequence[NodeProto], constants: dict[str, Any], opset: int, **inputs: Array) -> ModelProto:
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in nodes[-1].output]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph_proto = helper.make_graph(list(nodes), "quantised", given, outputs, initializers)
    return helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def reference(model: ModelProto, inputs: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, inputs)


def agree(
    op_type: str, operands: Sequence[Any], constant: Sequence[int] = (), opset: int = 19, **attributes: Any
) -> LoadedProgram:
    """
    A node's outputs at every level are onnxruntime's, bit for bit; the operands numbered by `constant` are
    initializers. Returns the imported program.
    """
    names = ["" if operand is None else f"x{index}" for index, operand in enumerate(operands)]
    outputs = ["y", "scale", "zero"] if op_type == "DynamicQuantizeLinear" else ["y"]
    node = helper.make_node(op_type, names, outputs, **attributes)
    given = {name: np.asarray(array) for name, array in zip(names, operands, strict=True) if array is not None}
    constants = {f"x{index}": given.pop(f"x{index}") for index in constant}
    model = model_of([node], constants, opset, **given)
    expected = reference(model, given)
    imported = import_program(model, {}, name="model")
    compare(run_module(imported.module, list(given.values()), imported.ctx.weights), expected)
    program = import_program(model, {}, name="model")
    signature = signature_of(program.module)
    compile_module(program.module, program.ctx, None, "loop")
    for backend in BACKENDS:
        compare(Engine(program.module, program.ctx, signature, backend).run(list(given.values())), expected)
    return imported


def compare(found: Sequence[Array], expected: Sequence[Array]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


def count(program: LoadedProgram, *classes: type[Any]) -> int:
    return sum(isinstance(op, classes) for op in program.module.walk())


HALVES = np.array([-1e9, -2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 126.5, 127.5, 254.5, 255.5, 1e9, np.inf], np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("zero", [0, 7])
def test_quantisation_rounds_halves_to_even_and_saturates(dtype: Any, zero: int) -> None:
    opset = 21 if np.dtype(dtype).itemsize > 1 else 13
    agree("QuantizeLinear", [HALVES, np.float32(1), np.asarray(zero, dtype)], [1, 2], opset=opset)


def test_quantisation_without_a_zero_point_gives_bytes() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    agree("QuantizeLinear", [x, np.float32(0.017)], [1], opset=10)


def test_each_index_along_the_axis_has_its_own_scale() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32) * 9
    scale = rng.random(3).astype(np.float32) / 8 + 0.01
    zero = rng.integers(-9, 9, 3).astype(np.int8)
    agree("QuantizeLinear", [x, scale, zero], [1, 2], opset=13)
    agree("QuantizeLinear", [x.transpose(0, 2, 3, 1).copy(), scale, zero], [1, 2], opset=13, axis=-1)
    q = rng.integers(-128, 128, x.shape).astype(np.int8)
    agree("DequantizeLinear", [q, scale, zero], [1, 2], opset=13)
    agree("DequantizeLinear", [q.transpose(1, 0, 2, 3).copy(), scale, zero], [1, 2], opset=19, axis=0)


def test_scales_and_zero_points_may_be_computed() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    agree("QuantizeLinear", [x, np.array([0.02], np.float32), np.array([3], np.uint8)])
    agree("DequantizeLinear", [rng.integers(0, 256, (4, 6)).astype(np.uint8), np.float32(0.3), np.uint8(200)])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32], ids=lambda dtype: np.dtype(dtype).name)
def test_dequantisation_of_every_integer_type(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(3).integers(info.min, info.max, 64, np.int64).astype(dtype)
    zero = None if dtype == np.int32 else np.asarray(100, dtype)
    agree("DequantizeLinear", [x, np.float32(0.37), zero][: 2 if zero is None else 3], [1], opset=10)


@pytest.mark.parametrize("x", [np.linspace(-3, 9, 24), np.linspace(1, 2, 24), np.linspace(-2, -1, 24)])
def test_dynamic_quantisation_expands_into_operators_that_are_there(x: Array) -> None:
    agree("DynamicQuantizeLinear", [x.reshape(4, 6).astype(np.float32)], opset=11)


TYPES = [(np.int8, np.int8), (np.uint8, np.int8), (np.uint8, np.uint8)]
"""What onnxruntime multiplies; a narrower choice than ours."""


@pytest.mark.parametrize("types", TYPES, ids=lambda types: "-".join(np.dtype(each).name for each in types))
@pytest.mark.parametrize("zeros", every_other([((),), ((0, 0),), ((5, 0),), ((0, 3),), ((5, 3),)]), ids=str)
def test_products_of_integer_matrices(types: tuple[Any, Any], zeros: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    a, b = byte_factors(rng, types[0], (3, 4, 6)), byte_factors(rng, types[1], (6, 5))
    points = [np.asarray(zero, dtype) for zero, dtype in zip(zeros, types, strict=False)]
    program = agree("MatMulInteger", [a, b, *points], range(1, 2 + len(points)))
    assert count(program, graph.SubOp) == sum(zero != 0 for zero in zeros)


def test_a_zero_point_for_each_column() -> None:
    rng = np.random.default_rng(5)
    a, b, zero = (
        byte_factors(rng, np.uint8, (4, 6)),
        byte_factors(rng, np.uint8, (6, 5)),
        byte_factors(rng, np.uint8, (5,)),
    )
    agree("MatMulInteger", [a, b, np.uint8(9), zero], [1, 2, 3])


@pytest.mark.parametrize("zero", [0, 11])
@pytest.mark.parametrize(
    "attributes", [{"pads": [1, 1, 1, 1]}, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, {"group": 2}]
)
def test_convolutions_of_integers_pad_with_the_zero_point(zero: int, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    inputs = 4 // attributes.get("group", 1)
    x, w = byte_factors(rng, np.uint8, (1, 4, 7, 7)), byte_factors(rng, np.uint8, (6, inputs, 3, 3))
    agree("ConvInteger", [x, w, np.uint8(zero)], [1, 2], **attributes)


def test_narrow_operands_without_zero_points_stay_narrow_down_to_the_kernel() -> None:
    rng = np.random.default_rng(7)
    program = agree("MatMulInteger", [byte_factors(rng, np.uint8, (4, 6)), byte_factors(rng, np.int8, (6, 5))], [1])
    (matmul,) = [op for op in program.module.walk() if isinstance(op, graph.MatmulOp)]
    assert [str(operand.type) for operand in matmul.operands] == ["tensor<4x6xui8>", "tensor<6x5xi8>"]
    run_passes(program.ctx, program.module, read_pipeline("graph-fuse,graph-to-tensor"))
    (kernel,) = kernels(program.module)
    assert multiply_accumulates(kernel) == 4 * 6 * 5
    assert [str(type) for type in kernel.function_type.inputs] == ["tensor<4x6xi8>", "tensor<6x5xi8>"]


def test_the_products_of_quantised_matrices_are_quantised_again() -> None:
    rng = np.random.default_rng(8)
    a, b = byte_factors(rng, np.uint8, (4, 6)), byte_factors(rng, np.int8, (6, 5))
    scales = [np.float32(0.02), np.float32(0.05), np.float32(0.11)]
    operands = [a, scales[0], np.uint8(113), b, scales[1], np.int8(-4), scales[2], np.uint8(118)]
    program = agree("QLinearMatMul", operands, range(1, 8))
    assert count(program, graph.QuantizeLinearOp) == 1


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantised_convolutions_with_a_bias(per_channel: bool) -> None:
    rng = np.random.default_rng(9)
    x, w = byte_factors(rng, np.uint8, (1, 3, 6, 6)), byte_factors(rng, np.int8, (4, 3, 3, 3))
    scale = rng.random(4).astype(np.float32) / 64 + 0.01 if per_channel else np.float32(0.013)
    zero = np.zeros(4, np.int8) if per_channel else np.int8(0)
    bias = rng.integers(-5000, 5000, 4).astype(np.int32)
    operands = [x, np.float32(0.02), np.uint8(120), w, scale, zero, np.float32(0.4), np.uint8(128), bias]
    agree("QLinearConv", operands, range(1, 9), pads=[1, 1, 1, 1])


@pytest.mark.parametrize(
    ("op_type", "operands", "opset", "attributes", "message"),
    [
        ("QuantizeLinear", [np.ones((4, 6)), np.ones(())], 21, {"output_dtype": 6}, "to elements of type i32"),
        ("DequantizeLinear", [np.ones((4, 6)), np.ones(())], 21, {}, "from elements of type f32"),
    ],
)
def test_what_is_not_supported_is_said(
    op_type: str, operands: Sequence[Array], opset: int, attributes: dict[str, Any], message: str
) -> None:
    given = {f"x{index}": array.astype(np.float32) for index, array in enumerate(operands)}
    node = helper.make_node(op_type, list(given), ["y"], **attributes)
    with pytest.raises(UserError) as caught:
        import_program(model_of([node], {}, opset, **given), {}, name="model")
    assert caught.value.status == UNSUPPORTED
    assert message in " ".join(caught.value.notes)


@examples(20)
@given(
    seed=st.integers(0, 1 << 16),
    channels=st.sampled_from([(1, 1, 1), (3, 4, 1), (4, 6, 2), (4, 4, 4)]),
    size=st.integers(3, 9),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    signed=st.booleans(),
)
def test_integer_convolutions_are_exact_at_every_level(
    seed: int, channels: tuple[int, int, int], size: int, stride: int, dilation: int, signed: bool
) -> None:
    inputs, outputs, group = channels
    rng = np.random.default_rng(seed)
    dtype = np.int8 if signed else np.uint8
    x, w = (
        byte_factors(rng, dtype, (1, inputs, size, size)),
        byte_factors(rng, np.int8, (outputs, inputs // group, 3, 3)),
    )
    attributes: dict[str, Any] = {"pads": [2] * 4, "strides": [stride] * 2, "dilations": [dilation] * 2, "group": group}
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], **attributes)
    expected = convolved(x.astype(np.int32), w.astype(np.int32), **attributes)
    model = model_of([node], {"w": w}, 10, x=x)
    program = import_program(model, {}, name="model")
    compare(run_module(program.module, [x], program.ctx.weights), [expected])
    compile_module(program.module, program.ctx, None, "loop")
    compare(run_module(program.module, [x], program.ctx.weights), [expected])
