# SPDX-License-Identifier: Apache-2.0
"""`penstock.runtime.onnx_backend`: ONNX's backend interface, apart from the cases that drive it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.upgrade import upgraded
from penstock.runtime import onnx_backend
from penstock.runtime.onnx_backend import PenstockBackend, Target

INTERPRETER: dict[str, Any] = {"backend": "interpreter", "level": "graph"}
X = (np.arange(6, dtype=np.float32) - 2).reshape(2, 3)


def model_of(
    *nodes: NodeProto, inputs: dict[str, list[int | str]], output: list[int | str] | None, opset: int = 17
) -> ModelProto:
    """Nodes on float inputs, except that inputs called `shape` are int64; the output is `y`."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "shape" else TensorProto.FLOAT, shape)
        for name, shape in inputs.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, output)
    graph = helper.make_graph(list(nodes), "small", values, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def doubled(size: int | str = 2) -> ModelProto:
    return model_of(helper.make_node("Add", ["x", "x"], ["y"]), inputs={"x": [size, 3]}, output=[size, 3])


def reshaped() -> ModelProto:
    return model_of(helper.make_node("Reshape", ["x", "shape"], ["y"]), inputs={"x": [2, 3], "shape": [2]}, output=None)


@pytest.mark.parametrize("options", [{}, INTERPRETER, {"backend": "interpreter"}, {"machine": "gemmini-fp32"}])
def test_a_model_runs_where_it_is_told_to(options: dict[str, Any]) -> None:
    model = model_of(
        helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"]),
        inputs={"x": [2, 3], "w": [3, 2]}, output=[2, 2],
    )  # fmt: skip
    w = X.reshape(3, 2)
    outputs = onnx_backend.run_model(model, [X, w], **options)
    np.testing.assert_array_equal(outputs[0], np.maximum(X @ w, 0))
    by_name = onnx_backend.run_model(model, {"w": w, "x": X}, **options)
    (y,) = by_name
    np.testing.assert_array_equal(y, outputs[0])


def test_one_array_alone_is_the_one_input() -> None:
    (y,) = onnx_backend.prepare(doubled(), **INTERPRETER).run(X)
    np.testing.assert_array_equal(y, 2 * X)


def count_engines(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """A list that grows by the sizes of dimensions whenever a model is made ready."""
    made: list[dict[str, int]] = []
    original = Target.engine

    def engine(self: Target, model: ModelProto, dims: dict[str, int], name: str) -> Any:
        made.append(dims)
        return original(self, model, dims, name)

    monkeypatch.setattr(Target, "engine", engine)
    return made


def test_a_model_whose_shapes_are_inputs_is_compiled_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_engines(monkeypatch)
    prepared = onnx_backend.prepare(reshaped(), **INTERPRETER)
    assert made == []
    for shape in ([3, 2], [6, 1], [3, 2], [-1, 2]):
        (y,) = prepared.run([X, np.array(shape)])
        np.testing.assert_array_equal(y, X.reshape(shape))
    assert len(made) == 3


def test_a_model_with_symbolic_dimensions_is_compiled_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_engines(monkeypatch)
    prepared = onnx_backend.prepare(doubled("N"), **INTERPRETER)
    for size in (1, 5, 1):
        assert prepared.run([np.ones((size, 3), np.float32)])[0].shape == (size, 3)
    assert made == [{"N": 1}, {"N": 5}]


def test_a_model_that_needs_nothing_from_its_inputs_is_compiled_when_it_is_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = count_engines(monkeypatch)
    prepared = onnx_backend.prepare(doubled(), **INTERPRETER)
    assert len(made) == 1
    prepared.run([X])
    assert len(made) == 1


def test_the_specialisation_that_was_not_used_for_longest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_backend, "KEPT_ENGINES", 2)
    made = count_engines(monkeypatch)
    prepared = onnx_backend.prepare(doubled("N"), **INTERPRETER)
    for size in (1, 2, 1, 3, 1, 2):
        prepared.run([np.ones((size, 3), np.float32)])
    assert [each["N"] for each in made] == [1, 2, 3, 2]


def test_one_node_runs_alone_in_the_operator_set_it_is_told() -> None:
    softmax = helper.make_node("Softmax", ["x"], ["y"])
    (new,) = onnx_backend.run_node(softmax, [X.reshape(1, 2, 3)], **INTERPRETER)
    (old,) = onnx_backend.run_node(softmax, [X.reshape(1, 2, 3)], opset_version=11, **INTERPRETER)
    np.testing.assert_allclose(new.sum(-1), np.ones((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(old.sum(), 1, rtol=1e-6)


def test_a_node_that_reads_one_value_twice_takes_it_once() -> None:
    (y,) = onnx_backend.run_node(helper.make_node("Mul", ["x", "x"], ["y"]), [X], **INTERPRETER)
    np.testing.assert_array_equal(y, X * X)


def test_the_devices_are_those_that_there_are() -> None:
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA:1")
    with pytest.raises(UserError, match='there is no device "CUDA"'):
        onnx_backend.prepare(doubled(), "CUDA")
    assert not onnx_backend.is_compatible(doubled(), "CUDA")


def test_models_with_unsupported_operators_are_incompatible_and_refused_by_name() -> None:
    model = model_of(helper.make_node("Unique", ["x"], ["y"]), inputs={"x": [4]}, output=None)
    assert not onnx_backend.is_compatible(model)
    assert onnx_backend.is_compatible(doubled(), **INTERPRETER)
    with pytest.raises(UserError, match="not supported: Unique") as raised:
        onnx_backend.prepare(model)
    assert raised.value.status == UNSUPPORTED


def test_arguments_without_a_meaning_are_refused() -> None:
    onnx_backend.prepare(doubled(), rtol=1e-3, atol=1e-7, **INTERPRETER)
    with pytest.raises(TypeError, match="bakend"):
        onnx_backend.prepare(doubled(), bakend="native")
    with pytest.raises(UserError, match="at graph level a model runs in the interpreter only"):
        onnx_backend.prepare(doubled(), level="graph")
    with pytest.raises(UserError, match='there is no backend "nativ"'):
        onnx_backend.prepare(doubled(), backend="nativ")


def test_a_subclass_chooses_for_all_its_models() -> None:
    class Interpreted(PenstockBackend):
        target = Target("interpreter", level="graph")

    assert Interpreted.prepare(doubled()).target.level == "graph"
    assert PenstockBackend.prepare(doubled(), **INTERPRETER).target == Interpreted.target


def test_an_input_that_is_no_array_is_refused() -> None:
    prepared = onnx_backend.prepare(doubled(), **INTERPRETER)
    with pytest.raises(UserError, match="an input is no array but a list") as raised:
        prepared.run([[X, X]])
    assert raised.value.status == UNSUPPORTED


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (np.array([3, 2], np.int32), 'the input "shape" has elements of type int32, and the program takes int64'),
        (np.array([3, 2, 1]), r'the input "shape" has the shape \(3,\), and the program takes \(2,\)'),
    ],
)
def test_an_input_that_shapes_are_made_of_is_checked_as_others_are(shape: Array, message: str) -> None:
    with pytest.raises(UserError, match=message):
        onnx_backend.run_model(reshaped(), [X, shape], **INTERPRETER)


def test_shapes_may_be_computed_from_inputs() -> None:
    """The result has twice the rows that an input says, which is data as well."""
    model = model_of(
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.array([2, 1]))),
        helper.make_node("Mul", ["shape", "two"], ["larger"]),
        helper.make_node("Expand", ["x", "larger"], ["wide"]),
        helper.make_node("Cast", ["shape"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["wide", "number"], ["y"]),
        inputs={"x": [1, 2], "shape": [2]}, output=None,
    )  # fmt: skip
    x, shape = np.array([[5, 7]], np.float32), np.array([2, 2])
    (y,) = onnx_backend.run_model(model, [x, shape], **INTERPRETER)
    np.testing.assert_array_equal(y, np.broadcast_to(x, (4, 2)) + 2)


@pytest.mark.parametrize("rank", [3, 4])
def test_slopes_of_old_models_are_one_number_a_channel(rank: int) -> None:
    sizes = [2, 3, 3, 3][:rank]
    model = model_of(
        helper.make_node("PRelu", ["x", "slope"], ["y"]), inputs={"x": [*sizes], "slope": [3]}, output=[*sizes], opset=6
    )
    x = -np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    slope = np.array([1, 2, 3], np.float32)
    (y,) = onnx_backend.run_model(model, [x, slope], **INTERPRETER)
    np.testing.assert_array_equal(y, x * slope.reshape(3, *[1] * (rank - 2)))


def test_a_model_that_is_new_enough_stays_what_it_is() -> None:
    model = doubled()
    assert upgraded(model, "small") is model


def test_an_old_model_that_cannot_be_brought_up_to_date_is_refused() -> None:
    crop = helper.make_node("Crop", ["x"], ["y"], border=[0, 0, 0, 0])
    model = model_of(crop, inputs={"x": [1, 1, 2, 2]}, output=None, opset=6)
    with pytest.raises(UserError, match="small: error: the model cannot be brought to operator set 13") as raised:
        onnx_backend.prepare(model)
    assert raised.value.status == UNSUPPORTED
