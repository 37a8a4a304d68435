# SPDX-License-Identifier: Apache-2.0
"""ONNX models written from the IR: what is not an operator by name, names, sizes that are open, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_onnx import export_model
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.signature import main_function

if TYPE_CHECKING:
    from tests.conftest import Command

onnxruntime: Any = pytest.importorskip("onnxruntime")
Array = NDArray[Any]


def model_of(text: str) -> ModelProto:
    module = parse_text(make_context(), SourceText("graph.mlir", text)).module
    model = export_model(main_function(module), WeightStore())
    onnx.checker.check_model(model, full_check=True)  # pyright: ignore[reportUnknownMemberType]
    return model


def onnxruntime_of(model: ModelProto, arrays: Sequence[Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((value.name for value in model.graph.input), arrays, strict=True)))


def function(arguments: Sequence[str], body: str, result: str) -> str:
    inputs = ", ".join(f"%x{index}: tensor<{type}>" for index, type in enumerate(arguments))
    return f"func.func @main({inputs}) -> tensor<{result}> {{ {body} func.return %y : tensor<{result}> }}"


CASES = {
    "integer_convolution": function(
        ["1x4x7x6xi8", "6x2x3x2xi8", "6xi32"],
        "%y = graph.conv %x0, %x1, %x2 strides [2, 1] pads [1, 0, 2, 1] dilations [1, 2] group 2 accumulate i32"
        " : (tensor<1x4x7x6xi8>, tensor<6x2x3x2xi8>, tensor<6xi32>) -> tensor<1x6x4x5xi32>",
        "1x6x4x5xi32",
    ),
    "unsigned_convolution": function(
        ["1x4x7x6xui8", "6x4x3x2xi8"],
        "%y = graph.conv %x0, %x1 strides [1, 1] pads [1, 0, 1, 0] dilations [1, 1] accumulate i32"
        " : (tensor<1x4x7x6xui8>, tensor<6x4x3x2xi8>) -> tensor<1x6x7x5xi32>",
        "1x6x7x5xi32",
    ),
    "half_product_summed_in_single": function(
        ["5x64xf16", "64x3xf16"],
        "%y = graph.matmul %x0, %x1 accumulate f32 : (tensor<5x64xf16>, tensor<64x3xf16>) -> tensor<5x3xf32>",
        "5x3xf32",
    ),
    "integer_gemm": function(
        ["7x5xi8", "3x7xi8", "3xi32"],
        "%y = graph.gemm %x0, %x1, %x2 trans_a true trans_b true accumulate i32"
        " : (tensor<7x5xi8>, tensor<3x7xi8>, tensor<3xi32>) -> tensor<5x3xi32>",
        "5x3xi32",
    ),
    "blocked_convolution": function(
        ["1x5x5x2x4xf32", "3x3x2x2x4x4xf32", "2x4xf32"],
        '%y = graph.conv %x0, %x1, %x2 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC4c"'
        ' filters "HWOI4o4i" : (tensor<1x5x5x2x4xf32>, tensor<3x3x2x2x4x4xf32>, tensor<2x4xf32>)'
        " -> tensor<1x5x5x2x4xf32>",
        "1x5x5x2x4xf32",
    ),
    "blocks_that_are_padded": function(
        ["2x3x3x6xf32"],
        '%y = graph.layout_transform %x0 from "NHWC" to "NHWC4c" : tensor<2x3x3x6xf32> -> tensor<2x3x3x2x4xf32>',
        "2x3x3x2x4xf32",
    ),
    "blocks_without_their_padding": function(
        ["2x3x3x2x4xf32"],
        '%y = graph.layout_transform %x0 from "NHWC4c" to "NCHW" : tensor<2x3x3x2x4xf32> -> tensor<2x6x3x3xf32>',
        "2x6x3x3xf32",
    ),
    "pool_of_volumes_channels_last": function(
        ["1x4x5x6x3xf32"],
        "%y = graph.max_pool %x0 kernel_shape [2, 3, 2] strides [1, 2, 2] pads [0, 1, 0, 0, 1, 0] dilations [1, 1, 1]"
        ' layout "NHWC" : tensor<1x4x5x6x3xf32> -> tensor<1x3x3x3x3xf32>',
        "1x3x3x3x3xf32",
    ),
    "normalisation_of_the_last_dimension": function(
        ["2x3x5xf32", "5xf32", "5xf32", "5xf32", "5xf32"],
        "%v = graph.mul %x4, %x4 : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>"
        "%y = graph.batch_normalization %x0, %x1, %x2, %x3, %v axis 2 : (tensor<2x3x5xf32>, tensor<5xf32>,"
        " tensor<5xf32>, tensor<5xf32>, tensor<5xf32>) -> tensor<2x3x5xf32>",
        "2x3x5xf32",
    ),
    "attention_that_stores_its_operands_otherwise": function(
        ["2x6x3x4xf32", "2x3x4x5xf32", "2x3x5x7xf32", "6x5xf32"],
        "%y = graph.attention %x0, %x1, %x2, %x3 scale 0.5 q_perm [0, 2, 1, 3] k_perm [0, 1, 3, 2]"
        " result_perm [0, 2, 1, 3] zero_masked true"
        " : (tensor<2x6x3x4xf32>, tensor<2x3x4x5xf32>, tensor<2x3x5x7xf32>, tensor<6x5xf32>) -> tensor<2x6x3x7xf32>",
        "2x6x3x7xf32",
    ),
    "slice_backwards": function(
        ["7x5xf32"],
        "%y = graph.slice %x0 starts [6, 1] sizes [4, 3] steps [-2, 1] : tensor<7x5xf32> -> tensor<4x3xf32>",
        "4x3xf32",
    ),
    "reduction_along_nothing": function(
        ["3x4xf32"], "%y = graph.reduce_sum %x0 axes [] : tensor<3x4xf32> -> tensor<3x4xf32>", "3x4xf32"
    ),
    "shift_of_negative_numbers": function(
        ["40xi32", "40xi32"],
        "%y = graph.shift_right %x0, %x1 : (tensor<40xi32>, tensor<40xi32>) -> tensor<40xi32>",
        "40xi32",
    ),
    "argument_that_is_returned": (
        "func.func @main(%x0: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<2xi64>) {"
        " %c = graph.constant dense<[4, 5]> : tensor<2xi64> func.return %x0, %x0, %c :"
        " tensor<3xf32>, tensor<3xf32>, tensor<2xi64> }"
    ),
    "branches": (
        "func.func @main(%x0: tensor<i1>, %x1: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {"
        " %n = graph.neg %x1 : tensor<3xf32>"
        " %a, %b = graph.if %x0 (%x1, %n) { ^bb0(%p: tensor<3xf32>, %q: tensor<3xf32>):"
        " %s = graph.exp %p : tensor<3xf32> graph.yield %s, %q : tensor<3xf32>, tensor<3xf32> }"
        " else { ^bb1(%p: tensor<3xf32>, %q: tensor<3xf32>): graph.yield %q, %q : tensor<3xf32>, tensor<3xf32> }"
        " : tensor<i1>, (tensor<3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)"
        " func.return %a, %b : tensor<3xf32>, tensor<3xf32> }"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_computes_what_the_interpreter_does(name: str) -> None:
    model = model_of(CASES[name])
    rng = np.random.default_rng(0)
    arrays: list[Array] = []
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        numbers = rng.integers(-40, 41, shape) if dtype.kind == "i" else rng.integers(0, 200, shape)
        arrays.append(np.asarray(rng.standard_normal(shape) if dtype.kind == "f" else numbers).astype(dtype))
    module = parse_text(make_context(), SourceText("graph.mlir", CASES[name])).module
    expected = run_graph(module, arrays, WeightStore())
    found = onnxruntime_of(model, arrays)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5)


def test_groups_are_written_as_what_stands_in_them() -> None:
    text = (
        "func.func @main(%x0: tensor<4xf32>) -> tensor<4xf32> {"
        " %y = graph.fused(%x0) pattern elementwise { ^bb0(%a: tensor<4xf32>): %b = graph.exp %a : tensor<4xf32>"
        " %c = graph.neg %b : tensor<4xf32> graph.yield %c : tensor<4xf32> } : (tensor<4xf32>) -> tensor<4xf32>"
        " func.return %y : tensor<4xf32> }"
    )
    assert [node.op_type for node in model_of(text).graph.node] == ["Exp", "Neg"]


def test_inputs_outputs_and_nodes_keep_their_names() -> None:
    text = (
        'func.func @main(%x0: tensor<4xf32> {graph.name = "pixels/in"}) -> (tensor<4xf32> {graph.name = "out:0"}) {'
        ' %y = graph.exp %x0 : tensor<4xf32> loc("layer1/Exp") func.return %y : tensor<4xf32> }'
    )
    graph = model_of(text).graph
    assert [value.name for value in (*graph.input, *graph.output)] == ["pixels/in", "out:0"]
    assert [(node.name, *node.output) for node in graph.node] == [("layer1/Exp", "out:0")]


def test_sizes_that_are_open_stay_open() -> None:
    text = (
        'func.func @main(%x: tensor<?x?x6xf32> {graph.dims = ["N", "T", ""]}, %b: tensor<1x1x1x3xf32>)'
        ' -> (tensor<?x?x2x3xf32> {graph.dims = ["N", "T", "", ""]}) {'
        ' %r = graph.reshape %x dims ["N", "", "", ""] : tensor<?x?x6xf32> -> tensor<?x?x2x3xf32>'
        ' %e = graph.expand %b dims ["N", "T", "", ""] : tensor<1x1x1x3xf32> -> tensor<?x?x2x3xf32>'
        " %y = graph.add %r, %e : (tensor<?x?x2x3xf32>, tensor<?x?x2x3xf32>) -> tensor<?x?x2x3xf32>"
        " func.return %y : tensor<?x?x2x3xf32> }"
    )
    model = model_of(text)
    assert [dim.dim_param for dim in model.graph.output[0].type.tensor_type.shape.dim][:2] == ["N", "T"]
    for shape in ((2, 3, 6), (1, 5, 6)):
        x, b = np.arange(np.prod(shape), dtype=np.float32).reshape(shape), np.ones((1, 1, 1, 3), np.float32)
        (found,) = onnxruntime_of(model, [x, b])
        np.testing.assert_array_equal(found, x.reshape(*shape[:2], 2, 3) + 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "func.func @main(%x0: tensor<4xi16>) -> tensor<4xi16> {\n"
            "  %y = graph.prelu %x0, %x0 : (tensor<4xi16>, tensor<4xi16>) -> tensor<4xi16>\n"
            "  func.return %y : tensor<4xi16> }",
            "graph.mlir:2:3: error: graph.prelu has no form in ONNX: PRelu takes no tensor(int16) as input 0",
        ),
        (
            "func.func @main(%x0: tensor<4xf32>) -> tensor<4xf32> {\n"
            "  %y = graph.kernel @twice(%x0) : (tensor<4xf32>) -> tensor<4xf32>\n  func.return %y : tensor<4xf32> }",
            "graph.mlir:2:3: error: graph.kernel has no form in ONNX",
        ),
        (
            "func.func @main(%x0: tensor<4xf32>) -> tensor<4xf32> {\n"
            "  %y = linalg.generic {indexing_maps = [], iterator_types = []} outs(%x0 : tensor<4xf32>) {\n"
            "  ^bb0(%a: f32): linalg.yield %a : f32 } -> tensor<4xf32>\n  func.return %y : tensor<4xf32> }",
            "graph.mlir:2:3: error: linalg.generic has no form in ONNX",
        ),
    ],
)
def test_what_has_no_form_in_onnx_is_refused_where_it_stands(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        model_of(text)
    assert str(refused.value).splitlines()[0] == words
    assert refused.value.status == UNSUPPORTED


def test_the_command_writes_a_model_that_is_imported_again(penstock: Command, tmp_path: Path) -> None:
    weights = np.arange(12 * 40, dtype=np.float32).reshape(12, 40)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"], "layer"),
            helper.make_node("Relu", ["product"], ["y"], "act"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 40])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), tmp_path / "model.onnx")  # pyright: ignore[reportUnknownMemberType]
    assert penstock("import", "model.onnx").status == 0
    finished = penstock("export", "model.mlir", "-o", "again.onnx")
    assert finished.status == 0
    assert finished.err == "again.onnx: 2 nodes, 1 initializers\n"
    again = onnx.load(tmp_path / "again.onnx")  # pyright: ignore[reportUnknownMemberType]
    assert [(node.op_type, node.name) for node in again.graph.node] == [("MatMul", "layer"), ("Relu", "act")]
    x = np.ones((3, 12), np.float32)
    np.testing.assert_array_equal(onnxruntime_of(again, [x])[0], x @ weights)
    assert penstock("export", "model.onnx", "-o", "model.onnx").status == 2
    assert penstock("compile", "again.onnx", "--dim", "batch=2", "--emit", "loop", "-o", "low.mlir").status == 0
    refused = penstock("export", "low.mlir", "-o", "low.onnx")
    assert refused.status == UNSUPPORTED
    assert "ONNX holds what is at graph level" in refused.err
    assert not (tmp_path / "low.onnx").exists()
