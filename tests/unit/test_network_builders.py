# SPDX-License-Identifier: Apache-2.0
"""The networks of examples/networks: what they are made of, and that their seeded weights say something."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

onnxruntime: Any = pytest.importorskip("onnxruntime")
Array = NDArray[Any]


def _zoo() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "networks" / "zoo.py"
    spec = importlib.util.spec_from_file_location("networks_zoo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ZOO: Any = _zoo()
BUILT = ("mobilenet_v1", "mobilenet_v2", "bert_layer", "lstm", "int8_cnn", "resnet18_int8")
"""The networks that are built here; the graphs of the others are those of the onnx wheel."""
LARGE = ("inception_v3", "inception_v4", "resnext50", "ssd300")
"""Those built here for a study."""
QUICK = (*BUILT, "squeezenet", "shufflenet")


def run(model: ModelProto, feeds: dict[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def operators(model: ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def test_the_registry_has_the_published_and_the_built_networks() -> None:
    assert set(ZOO.NETWORKS) == {*ZOO.light.LIGHT_MODELS, *BUILT, *LARGE}
    assert set(ZOO.LIGHT_SMALL) == set(ZOO.light.LIGHT_MODELS)


@pytest.mark.parametrize("name", QUICK)
def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(name: str) -> None:
    build = ZOO.NETWORKS[name]
    data = build(seed=3, small=True).SerializeToString()
    assert build(seed=3, small=True).SerializeToString() == data
    assert build(seed=4, small=True).SerializeToString() != data


@pytest.mark.parametrize("name", BUILT)
def test_the_small_network_has_every_operator_of_the_full_one(name: str) -> None:
    full, small = (ZOO.NETWORKS[name](small=small) for small in (False, True))
    assert operators(small) == operators(full)
    assert [node.op_type for node in small.graph.node] == [node.op_type for node in full.graph.node]
    assert small.ByteSize() < full.ByteSize()


@pytest.mark.parametrize("name", QUICK)
def test_outputs_differ_from_each_other_and_with_the_input(name: str) -> None:
    model = ZOO.NETWORKS[name](small=True)
    first, second = (run(model, ZOO.inputs(model, seed))[0] for seed in (1, 2))
    scale = np.abs(first).max()
    assert first.std() > 0.02 * scale
    assert np.abs(first - second).max() > 0.02 * scale
    if name in BUILT:
        assert first.std() > 0.1


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2"])
def test_hardly_a_channel_of_a_mobilenet_is_dead_and_none_grows(name: str) -> None:
    model = ZOO.NETWORKS[name]()
    kinds = {node.output[0]: node.op_type for node in model.graph.node}
    rectified = [value for value, kind in kinds.items() if kind in ("Relu", "Clip")]
    model.graph.output.extend(helper.make_empty_tensor_value_info(value) for value in rectified)
    maps = run(model, ZOO.inputs(model, 1))[1:]
    tops: list[Array] = [each.max(axis=(0, 2, 3)) for each in maps]
    largest = np.concatenate(tops)
    assert len(maps) == len(rectified) > 25
    assert (largest == 0).mean() < 0.001
    assert largest.max() < 100
    assert min(float(np.median(each)) for each in tops) > 0.5


def test_mobilenets_have_the_sizes_of_their_publications() -> None:
    def parameters(model: ModelProto) -> int:
        skipped = ("running_mean", "running_var")
        return sum(math.prod(each.dims) for each in model.graph.initializer if not each.name.endswith(skipped))

    assert round(parameters(ZOO.mobilenet_v1()) / 1e6, 1) == 4.2
    assert round(parameters(ZOO.mobilenet_v2()) / 1e6, 1) == 3.5
    narrow = ZOO.mobilenet_v2(input_size=32, width=0.5)
    last = [node for node in narrow.graph.node if node.op_type == "Conv"][-1]
    assert next(each.dims for each in narrow.graph.initializer if each.name == last.input[1]) == [1280, 160, 1, 1]


def test_a_bert_layer_has_the_parameters_of_bert_base() -> None:
    model = ZOO.NETWORKS["bert_layer"]()
    assert sum(math.prod(each.dims) for each in model.graph.initializer) == 7_087_872


SMALL_BERT: dict[str, Any] = {"sequence": 8, "hidden": 16, "heads": 2, "feed_forward": 32}


def test_the_newer_operators_compute_what_their_parts_do() -> None:
    spelled = ZOO.bert(0, layers=2, **SMALL_BERT)
    feeds = ZOO.inputs(spelled, 1)
    expected = run(spelled, feeds)[0]
    for options, operator in (({"layer_norm_op": True}, "LayerNormalization"), ({"gelu_op": True}, "Gelu")):
        newer = ZOO.bert(0, layers=2, **options, **SMALL_BERT)
        assert operator in operators(newer)
        assert operator not in operators(spelled)
        np.testing.assert_allclose(run(newer, feeds)[0], expected, rtol=1e-3, atol=1e-4)


def test_a_masked_token_does_not_change_the_others() -> None:
    model = ZOO.bert(0, **SMALL_BERT)
    feeds = ZOO.inputs(model, 1)
    assert (feeds["attention_mask"] == ZOO.MASKED).sum() == 2
    changed = {name: array.copy() for name, array in feeds.items()}
    changed["hidden_states"][:, -1] += 1.0
    before, after = run(model, feeds)[0], run(model, changed)[0]
    np.testing.assert_allclose(after[:, :-1], before[:, :-1], atol=1e-5)
    assert np.abs(after[:, -1] - before[:, -1]).max() > 0.1


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_symbolic_batch_computes_each_sequence_as_alone(bidirectional: bool) -> None:
    sizes: dict[str, Any] = {"sequence": 5, "features": 4, "hidden": 6, "bidirectional": bidirectional}
    one, any_batch = ZOO.lstm(0, **sizes), ZOO.lstm(0, batch="N", **sizes)
    assert any_batch.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "N"
    feeds = ZOO.inputs(any_batch, 1, {"N": 3})
    together = run(any_batch, feeds)[0]
    for index in range(3):
        alone = run(one, {"input": feeds["input"][:, index : index + 1]})[0]
        np.testing.assert_allclose(together[index], alone[0], rtol=1e-4, atol=1e-5)


def test_a_symbolic_batch_of_a_bert_layer_computes_each_as_alone() -> None:
    one, any_batch = ZOO.bert(0, **SMALL_BERT), ZOO.bert(0, batch="N", **SMALL_BERT)
    feeds = ZOO.inputs(any_batch, 1, {"N": 2})
    together = run(any_batch, feeds)[0]
    for index in range(2):
        alone = run(one, {name: array[index : index + 1] for name, array in feeds.items()})[0]
        np.testing.assert_allclose(together[index], alone[0], rtol=1e-4, atol=1e-5)


def test_the_integer_network_multiplies_signed_bytes_without_zero_points() -> None:
    model = ZOO.NETWORKS["int8_cnn"](small=True)
    products = [node for node in model.graph.node if node.op_type.endswith("Integer")]
    weights = {each.name: each.data_type for each in model.graph.initializer}
    assert len(products) == 6
    assert all(len(node.input) == 2 and weights[node.input[1]] == TensorProto.INT8 for node in products)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ZOO.mobilenet_v1(input_size=16), "16 pixels"),
        (lambda: ZOO.bert(hidden=10, heads=4), "4 heads do not divide"),
        (lambda: ZOO.int8_cnn(input_size=30), "no multiple of 4"),
        (lambda: ZOO.resnet18_int8(input_size=48), "no multiple of 32"),
    ],
    ids=["mobilenet", "bert", "int8_cnn", "resnet18_int8"],
)
def test_sizes_that_do_not_fit_are_refused(build: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()
