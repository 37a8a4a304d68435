# SPDX-License-Identifier: Apache-2.0
"""Operators that onnxruntime defines: their forms, what is refused, and what is more than onnxruntime shows."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import contrib_cases as cases
import numpy as np
import onnx
import pytest
from contrib_cases import Array, Case, Draw, model_of
from one_node import agree, onnxruntime_of, run
from onnx import TensorProto, helper

from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.lowering.from_onnx.forms import FORMS
from penstock.runtime.compiler import import_program


def schemas() -> dict[str, Any]:
    """What onnxruntime says of the operators that have a form here."""
    found: dict[str, Any] = {}
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    for schema in state.get_all_operator_schema():
        name = f"{schema.domain}.{schema.name}" if schema.domain else schema.name
        if name in FORMS and (name not in found or schema.since_version > found[name].since_version):
            found[name] = schema
    return found


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_form_is_that_of_onnxruntime(name: str) -> None:
    schema, form = schemas()[name], FORMS[name]
    given = [word.rstrip("?*") for word in form.inputs]
    assert len(given) <= len(schema.inputs)
    for word, formal in zip(form.inputs, schema.inputs, strict=False):
        option = str(formal.option).rpartition(".")[2]
        assert {"?": "Optional", "*": "Variadic"}.get(word[-1], "Single") == option, word
    missing = [formal for formal in schema.inputs[len(given) :] if "Optional" not in str(formal.option)]
    assert not missing
    assert len(form.outputs) <= len(schema.outputs)
    assert set(form.attributes) <= set(schema.attributes) | {"precision", "saturate", "output_dtype", "block_size"}


def of(case: Case) -> str:
    """What is said of a case that is refused."""
    with pytest.raises(UserError) as caught:
        import_program(model_of([case])[0], {}, name="model")
    assert caught.value.loc == "model"
    return "\n".join([caught.value.message, *caught.value.notes])


def drawn() -> Draw:
    return Draw(np.random.default_rng(0))


X = np.ones((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("operator", "operands", "outputs", "attributes", "message"),
    [
        ("Gelu", [X, X], 1, {}, "com.microsoft.Gelu takes 1 inputs, and has 2"),
        ("BiasGelu", [X], 1, {}, "com.microsoft.BiasGelu needs its input 1, b"),
        ("BiasGelu", [X, X[..., :3]], 1, {}, "do not broadcast"),
        ("QuickGelu", [X], 1, {"alpa": 1.0}, "its attribute alpa (did you mean"),
        ("QuickGelu", [X], 2, {}, "com.microsoft.QuickGelu has 1 output, not 2"),
        ("FusedConv", [X, X], 1, {"activation": "Swoosh"}, "the activation Swoosh"),
        ("FusedMatMul", [X, X], 1, {}, "the inner sizes 4"),
        ("SkipLayerNormalization", [X, X, X[0, 0]], [True, True], {}, 'its output "c0.y1"'),
        ("SkipLayerNormalization", [X, X[:, :, :2], X[0, 0]], 1, {}, "do not broadcast"),
        ("SkipLayerNormalization", [np.float32(1), np.float32(1), X[0, 0]], 1, {}, "SkipLayerNormalization"),
        ("MultiHeadAttention", [X, X, X], 1, {"num_heads": 3}, "4 numbers for 3 heads"),
        ("MultiHeadAttention", [X], 1, {"num_heads": 2}, "queries, keys and values in one tensor"),
        ("Attention", [X, X[0]], 1, {"num_heads": 2, "do_rotary": 1}, "do_rotary"),
        ("QLinearConcat", [np.float32(1), np.uint8(0), np.zeros(3, np.uint8)], 1, {"axis": 0}, "triples"),
        ("BeamSearch", [X], 1, {}, "com.microsoft.BeamSearch"),
    ],
)
def test_what_is_wrong_with_a_node_is_said_in_a_line(
    operator: str, operands: Sequence[Any], outputs: Any, attributes: Mapping[str, Any], message: str
) -> None:
    operands = [np.asarray(each) for each in operands]
    assert message in of(drawn().case(operator, operands, outputs, attributes=attributes))


def test_the_length_of_all_keys_must_be_known() -> None:
    case = cases.group_query_attention(drawn())
    case.inputs["x6"] = case.weights.pop("x6")
    assert "the total_sequence_length must be constant" in of(case)
    model, inputs = model_of([case])
    total = {"c0.x6": inputs.pop("c0.x6")}
    found = import_program(model, {}, values=total, name="model")
    assert "c0.x6" not in str(found.module)


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("ZipMap", {"classlabels_int64s": [0, 1]}, "skl2onnx leaves ZipMap out with options={'zipmap': False}"),
        ("SVMRegressor", {"coefficients": [1.0]}, "support vectors"),
        ("Normalizer", {"norm": "L3"}, "norm is MAX, L1 or L2"),
        ("Scaler", {"scale": [1.0, 2.0], "offset": [0.0]}, "scale has 2 numbers for 4 features"),
        ("OneHotEncoder", {"cats_strings": ["a"]}, "categories that are strings"),
        ("OneHotEncoder", {"cats_int64s": [1], "zeros": 0}, "zeros=0"),
        ("LabelEncoder", {"keys_floats": [1.0], "values_strings": ["a"]}, "values that are strings"),
        ("LabelEncoder", {"keys_floats": [1.0], "values_int64s": [1, 2]}, "1 keys and 2 values"),
        ("LinearClassifier", {"coefficients": [1.0] * 4, "classlabels_strings": ["a", "b"]}, "labels that are strings"),
        ("LinearRegressor", {"coefficients": [1.0] * 3}, "3 coefficients for 4 features"),
        ("TreeEnsembleRegressor", {"nodes_values": [1.0]}, "0 nodes_modes, 1 nodes_values"),
    ],
)
def test_what_classical_models_cannot_have_is_said_in_a_line(
    operator: str, attributes: Mapping[str, Any], message: str
) -> None:
    outputs = 2 if "Classifier" in operator else 1
    case = drawn().case(operator, [X[0]], outputs, domain="ai.onnx.ml", attributes=attributes)
    assert message in of(case)


def _trees(**changes: Any) -> Case:
    attributes: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.0, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }
    return drawn().case("TreeEnsembleRegressor", [X[0]], domain="ai.onnx.ml", attributes=attributes | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_truenodeids": [3, 0, 0]}, "node 3 of tree 0 is not there"),
        (
            {"nodes_modes": ["BRANCH_LEQ"] * 3, "nodes_truenodeids": [1, 2, 0], "nodes_falsenodeids": [1, 2, 0]},
            "tree 0 has no root",
        ),
        ({"nodes_nodeids": [0, 1, 1]}, "two nodes of a tree have one number"),
        ({"nodes_featureids": [4, 0, 0]}, "feature 4 of 4"),
        ({"nodes_modes": ["BRANCH_NEAR", "LEAF", "LEAF"]}, "nodes of the mode BRANCH_NEAR"),
        ({"nodes_values": [0.0]}, "3 nodes_modes, 1 nodes_values"),
        ({"target_ids": [0, 1]}, "target_ids has 1, of 1"),
        ({"post_transform": "CUBE"}, "none of ONNX's"),
        (
            {"nodes_modes": ["BRANCH_LEQ"] * 3, "nodes_truenodeids": [1, 2, 1], "nodes_falsenodeids": [2, 2, 1]},
            "or a cycle",
        ),
    ],
)
def test_what_is_wrong_with_a_tree_is_said_in_a_line(changes: Mapping[str, Any], message: str) -> None:
    if "post_transform" in changes:
        changes = {**changes, "n_targets": 2}
    assert message in of(_trees(**changes))


def test_labels_that_are_strings_need_not_be_read() -> None:
    attributes = {"coefficients": [1.0, 2.0] * 4, "intercepts": [0.5, 0.25], "classlabels_strings": ["a", "b"]}
    case = drawn().case("LinearClassifier", [X[0]], 2, domain="ai.onnx.ml", attributes=attributes)
    model, inputs = model_of([case])
    del model.graph.output[0]
    (found,) = run(model, list(inputs.values()), "graph")
    np.testing.assert_allclose(found, onnxruntime_of(model, inputs)[0], rtol=1e-6)


@pytest.mark.parametrize("opset", [7, 12, 16])
def test_a_layer_normalisation_is_taken_in_operator_sets_before_its_own(opset: int) -> None:
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 8), (8,), (8,))]
    agree("LayerNormalization", operands, opset=opset, axis=-1, epsilon=1e-5, at=["graph"])
    with pytest.raises(UserError, match="GroupNormalization") as caught:
        import_program(helper_model("GroupNormalization", opset), {}, name="model")
    assert caught.value.status == UNSUPPORTED


def helper_model(operator: str, opset: int) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xsby"]
    node = helper.make_node(operator, ["x", "s", "b"], ["y"], "node", num_groups=2)
    graph = helper.make_graph([node], "old", values[:3], values[3:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("seed", range(6))
def test_a_dynamically_quantised_lstm_is_one_of_the_numbers_of_its_weights(seed: int) -> None:
    case = cases.dynamic_quantize_lstm(Draw(np.random.default_rng(seed)))
    arrays: dict[str, Array] = case.inputs | case.weights
    real: dict[str, Array] = {}
    for name, scale, zero in (("x1", "x8", "x9"), ("x2", "x10", "x11")):
        steps, zeros = (arrays[each].reshape(arrays[name].shape[0], 1, -1) for each in (scale, zero))
        numbers = (arrays[name].astype(np.float32) - zeros.astype(np.float32)) * steps
        real[name] = np.ascontiguousarray(numbers.transpose(0, 2, 1))
    operands = [real.get(name, arrays.get(name)) for name in [f"x{index}" for index in range(8)]]
    attributes = {each.name: helper.get_attribute_value(each) for each in case.node.attribute}
    plain = drawn().case("LSTM", operands, 3, domain="", attributes=attributes)
    model, inputs = model_of([case])
    for ours, theirs in zip(
        run(model, list(inputs.values()), "graph"), onnxruntime_of(*model_of([plain])), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("accuracy", [0, 4])
def test_a_product_with_packed_weights_is_exact_whatever_is_allowed(accuracy: int) -> None:
    """In f32 with integers for x and powers of two for scales; onnxruntime rounds x to bytes at level 4."""
    draw = drawn()
    inner, columns, block = 64, 6, 16
    data = draw.bytes(columns, inner // block, block // 2, dtype=np.uint8)
    scales = np.exp2(draw.integers(-3, 3, columns, inner // block)).astype(np.float32)
    x = draw.integers(-4, 4, 3, inner).astype(np.float32)
    attributes = {"K": inner, "N": columns, "bits": 4, "block_size": block, "accuracy_level": accuracy}
    case = draw.case("MatMulNBits", [x, data, scales.ravel()], known=[1, 2], attributes=attributes)
    nibbles = np.stack([data & 15, data >> 4], -1).reshape(columns, inner // block, block).astype(np.float64)
    weights = ((nibbles - 8) * scales[..., np.newaxis]).reshape(columns, inner)
    model, _ = model_of([case])
    np.testing.assert_array_equal(run(model, [x], "graph")[0], x @ weights.T)


def test_a_model_may_still_define_an_operator_of_this_name_itself() -> None:
    body = helper.make_function(
        "com.microsoft", "Gelu", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], [helper.make_opsetid("", 21)]
    )
    model, _ = model_of([drawn().case("Gelu", [X])])
    model.functions.append(body)
    np.testing.assert_array_equal(run(model, [X], "graph")[0], -X)
