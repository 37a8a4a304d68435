# SPDX-License-Identifier: Apache-2.0
"""Operators that search, gather, scatter, resize and rearrange compute what onnxruntime does, at every level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from one_node import LEVELS, check, onnxruntime_of, run, run_at
from onnx import ModelProto, TensorProto, helper, numpy_helper
from sampling import combinations, every_other, sweep

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import Array
from penstock.runtime.compiler import import_program

MACHINES = ("epiphany-iii", "gemmini-fp32", "h100-sm", "neural-accelerator", "smaug-smv", "vta-pynq")


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-3, 3, shape).astype(np.float32)


def model_of(
    operator: str,
    inputs: Mapping[str, Array],
    outputs: int = 1,
    *,
    opset: int = 21,
    weights: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> ModelProto:
    """A model of one node, whose operands are `inputs` and `weights` in the order of their names."""
    weights = weights or {}
    names = [f"y{index}" for index in range(outputs)]
    operands = sorted([*inputs, *weights])
    node = helper.make_node(operator, operands, names, name="node", **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in sorted(inputs.items())
    ]
    graph = helper.make_graph(
        [node],
        "test",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in names],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def agree(model: ModelProto, inputs: Mapping[str, Array]) -> None:
    """Check every level against onnxruntime."""
    check(model, dict(sorted(inputs.items())))


CONV_TRANSPOSES: list[dict[str, Any]] = [
    {},
    {"strides": [2, 2]},
    {"strides": [3, 2], "pads": [1, 0, 1, 2]},
    {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]},
    {"strides": [2, 3], "dilations": [2, 1], "pads": [2, 1, 0, 0]},
    {"group": 2, "strides": [2, 2]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    {"strides": [3, 3], "output_shape": [13, 12]},
    {"pads": [2, 2, 2, 2]},
]


@pytest.mark.parametrize("attributes", every_other(CONV_TRANSPOSES), ids=str)
def test_a_transposed_convolution_is_a_convolution_of_a_stuffed_input(attributes: dict[str, Any]) -> None:
    inputs = {"a": floats(2, 4, 4, 5)}
    outputs = 6 // attributes.get("group", 1)
    weights = {"b": floats(4, outputs, 3, 4, seed=1), "c": floats(6, seed=2)}
    agree(model_of("ConvTranspose", inputs, weights=weights, **attributes), inputs)


@pytest.mark.parametrize("as_input", [False, True])
def test_a_transposed_convolution_whose_windows_lie_side_by_side_needs_no_zeros(as_input: bool) -> None:
    x, w, b = floats(1, 3, 4, 5), floats(3, 2, 2, 3, seed=1), floats(2, seed=2)
    inputs = {"a": x, "b": w, "c": b} if as_input else {"a": x}
    weights = {} if as_input else {"b": w, "c": b}
    model = model_of("ConvTranspose", inputs, weights=weights, strides=[2, 3])
    agree(model, inputs)
    text = str(import_program(model, {}, name="test").module)
    assert "graph.conv" in text
    assert "graph.pad" not in text


RESIZES: list[tuple[str, dict[str, Any]]] = [
    (mode, {"coordinate_transformation_mode": coordinates, **more})
    for mode in ("nearest", "linear", "cubic")
    for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    for more in ([{}] if mode != "nearest" else [{"nearest_mode": each} for each in ("floor", "ceil")])
]


@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.8, 1.5)], ids=str)
@pytest.mark.parametrize("case", sweep(range(len(RESIZES)), quick=range(0, len(RESIZES), 6)))
def test_a_resize_interpolates_as_its_coordinates_say(case: int, scales: tuple[float, float]) -> None:
    mode, attributes = RESIZES[case]
    inputs = {"a": floats(1, 2, 5, 8)}
    weights = {"b": np.zeros(0, np.float32), "c": np.array([1, 1, *scales], np.float32)}
    agree(model_of("Resize", inputs, weights=weights, mode=mode, opset=18, **attributes), inputs)


def test_an_enlargement_by_a_whole_number_only_repeats_elements() -> None:
    inputs = {"a": floats(1, 2, 3, 4)}
    weights = {"b": np.array([1, 1, 2, 2], np.float32)}
    model = model_of("Upsample", inputs, weights=weights, mode="nearest", opset=9)
    agree(model, inputs)
    text = str(import_program(model, {}, name="test").module)
    assert "graph.gather" not in text
    assert "graph.concat" not in text


@pytest.mark.parametrize(
    ("operator", "last", "dtype"), combinations(["ArgMax", "ArgMin"], [0, 1], [np.float32, np.int32, np.uint8])
)
def test_the_place_of_an_extremum_is_the_first_or_the_last(operator: str, last: int, dtype: Any) -> None:
    inputs = {"a": np.random.default_rng(0).integers(0, 3, (3, 6, 4)).astype(dtype)}
    agree(model_of(operator, inputs, axis=1, keepdims=0, select_last_index=last), inputs)


@pytest.mark.parametrize(("largest", "k", "dtype"), combinations([0, 1], [1, 3, 6], [np.float32, np.int64]))
def test_the_top_elements_come_in_order_and_equal_ones_in_theirs(largest: int, k: int, dtype: Any) -> None:
    inputs = {"a": np.random.default_rng(k).integers(-2, 3, (2, 6, 3)).astype(dtype)}
    weights = {"b": np.array([k], np.int64)}
    agree(model_of("TopK", inputs, 2, weights=weights, axis=1, largest=largest), inputs)


def test_a_nan_is_at_the_top_at_every_level() -> None:
    x = np.array([1, np.nan, 3, np.nan, 2, -np.inf], np.float32)
    for largest, wanted in ((1, [1, 3, 2, 4]), (0, [5, 0, 4, 2])):
        model = model_of("TopK", {"a": x}, 2, weights={"b": np.array([4], np.int64)}, largest=largest)
        for level, found in run_at(model, [x]):
            np.testing.assert_array_equal(found[1], wanted, err_msg=level)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_a_gather_takes_the_parts_at_its_indices(axis: int, shape: tuple[int, ...]) -> None:
    inputs = {"a": floats(3, 4, 5), "b": np.asarray(np.random.default_rng(0).integers(-3, 3, shape))}
    agree(model_of("Gather", inputs, axis=axis), inputs)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("width", [1, 2])
def test_a_gather_takes_the_parts_at_rows_of_indices(batch: int, width: int) -> None:
    inputs = {"a": floats(2, 3, 4), "b": np.random.default_rng(0).integers(-2, 2, (2, 5, width))}
    agree(model_of("GatherND", inputs, batch_dims=batch), inputs)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_a_scatter_changes_the_elements_at_its_indices(reduction: str) -> None:
    places = np.array([[0, 2], [2, -1]]) if reduction != "none" else np.array([[0, 2], [1, -1]])
    inputs = {"a": floats(3, 3), "b": places, "c": floats(2, 2, seed=1)}
    agree(model_of("ScatterElements", inputs, axis=1, reduction=reduction), inputs)
    rows = {"a": floats(3, 3, 2), "b": np.array([[0], [2]]), "c": floats(2, 3, 2, seed=1)}
    agree(model_of("ScatterND", rows, reduction=reduction), rows)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("index", [3, -4])
@pytest.mark.parametrize("operator", ["Gather", "GatherElements", "GatherND"])
def test_an_index_outside_is_refused_when_the_program_runs(operator: str, index: int, level: str) -> None:
    x, places = floats(3, 2), np.array([[0, 1], [index, 0]])
    places = places if operator != "GatherND" else np.array([[index]])
    model = model_of(operator, {"a": x, "b": places})
    with pytest.raises(UserError, match=r"outside|out of bounds|in dim 0, which has 3"):
        run(model, [x, places], level)


@pytest.mark.parametrize(("operator", "exclusive", "reverse"), combinations(["CumSum", "CumProd"], [0, 1], [0, 1]))
def test_running_totals_are_those_of_numpy(operator: str, exclusive: int, reverse: int) -> None:
    x = floats(3, 5)
    model = model_of(
        operator, {"a": x}, weights={"b": np.array(1)}, opset=26 if operator == "CumProd" else 14,
        exclusive=exclusive, reverse=reverse,
    )  # fmt: skip
    turned = x[:, ::-1] if reverse else x
    if exclusive:
        start = np.full((3, 1), operator == "CumProd", np.float32)
        turned = np.concatenate([start, turned[:, :-1]], axis=1)
    wanted = (np.cumprod if operator == "CumProd" else np.cumsum)(turned, axis=1)
    for _, (found,) in run_at(model, [x]):
        np.testing.assert_allclose(found, wanted[:, ::-1] if reverse else wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bhij,bhjd->bihd", [(2, 3, 4, 6), (2, 3, 6, 5)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ii->i", [(4, 4)]),
        ("ij", [(3, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ],
)
def test_an_einsum_is_matrix_products_or_sums_of_products(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = {name: floats(*shape, seed=seed) for seed, (name, shape) in enumerate(zip("abc", shapes, strict=False))}
    agree(model_of("Einsum", inputs, equation=equation), inputs)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_a_one_hot_encoding_has_its_values_from_an_input(axis: int) -> None:
    inputs = {"a": np.array([[0, 2], [-1, 5]]), "c": np.array([0.5, 4], np.float32)}
    weights = {"b": np.array(4)}
    agree(model_of("OneHot", inputs, weights=weights, axis=axis), inputs)


def test_a_padding_value_may_come_from_an_input() -> None:
    inputs = {"a": floats(2, 3), "c": np.array(7, np.float32)}
    weights = {"b": np.array([1, 0, 0, -1])}
    agree(model_of("Pad", inputs, weights=weights), inputs)


@pytest.mark.parametrize("machine", sweep(MACHINES, MACHINES[:1]))
def test_an_embedding_and_a_classifier_run_on_every_machine(machine: str) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"], name="embed"),
        helper.make_node("MatMul", ["e", "w"], ["h"], name="project"),
        helper.make_node("ArgMax", ["h"], ["y"], name="choose", axis=-1, keepdims=0),
    ]
    random = np.random.default_rng(0)
    table = random.integers(-3, 4, (20, 16)).astype(np.float32)
    w = random.integers(-3, 4, (16, 8)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, [2, 5])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2, 5])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    engine = penstock.compile(model, machine=machine)
    tokens = random.integers(0, 20, (2, 5))
    (found,) = engine.run([tokens], {})
    np.testing.assert_array_equal(found, np.argmax(table[tokens] @ w, axis=-1))


def test_what_names_no_size_leaves_the_batch_open() -> None:
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["large"], mode="nearest"),
        helper.make_node("ConvTranspose", ["large", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("ArgMax", ["c"], ["a"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "a"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 3, 3])],
        [helper.make_empty_tensor_value_info("y")],
        [
            numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
            numpy_helper.from_array(floats(2, 3, 4, 4), "w"),
            numpy_helper.from_array(floats(3, 5), "table"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module = import_program(model, {}, name="test").module
    module.verify()
    assert "tensor<?x12x12x5xf32>" in str(module)


POOLS: list[tuple[str, int, dict[str, Any]]] = [
    ("MaxPool", 2, {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ("MaxPool", 2, {"kernel_shape": [2, 2], "storage_order": 1}),
    ("LpPool", 1, {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "p": 3}),
    ("LpPool", 1, {"kernel_shape": [2, 2], "p": 1}),
]


@pytest.mark.parametrize(("operator", "outputs", "attributes"), POOLS, ids=str)
def test_pools_tell_where_the_largest_is_and_take_norms(
    operator: str, outputs: int, attributes: dict[str, Any]
) -> None:
    inputs = {"a": floats(2, 3, 5, 6)}
    agree(model_of(operator, inputs, outputs, opset=18, **attributes), inputs)


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"])
def test_a_segmentation_network_compiles_and_agrees(machine: str | None) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["skip"], pads=[1] * 4),
        helper.make_node("MaxPool", ["skip"], ["small"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("ConvTranspose", ["small", "w2"], ["tiled"], strides=[2, 2]),
        helper.make_node("ConvTranspose", ["small", "w3"], ["stuffed"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Resize", ["small", "", "scales"], ["linear"], mode="linear"),
        helper.make_node("Resize", ["small", "", "scales"], ["nearest"], mode="nearest"),
        helper.make_node("Concat", ["skip", "tiled", "stuffed", "linear", "nearest"], ["all"], axis=1),
        helper.make_node("Conv", ["all", "w4"], ["scores"]),
    ]
    weights = {
        "w1": floats(4, 3, 3, 3, seed=1),
        "w2": floats(4, 4, 2, 2, seed=2),
        "w3": floats(4, 4, 4, 4, seed=3),
        "w4": floats(5, 20, 1, 1, seed=4) / 20,
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_empty_tensor_value_info("scores")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = floats(1, 3, 8, 8)
    (wanted,) = onnxruntime_of(model, {"x": x})
    engine = penstock.compile(model) if machine is None else penstock.compile(model, machine=machine)
    (found,) = engine.run([x], {})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
