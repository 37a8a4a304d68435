# SPDX-License-Identifier: Apache-2.0
"""Inputs that are fixed by `--value`: what they do, and what is said about values that they cannot have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import penstock
from penstock.dialects.diagnostics import UserError

if TYPE_CHECKING:
    from tests.conftest import Command


def branching(kind: int = TensorProto.INT64, shape: tuple[Any, ...] = ()) -> ModelProto:
    """-x if the mode is 3, else |x|, and the mode as a float added to it."""

    def branch(name: str, operator: str) -> Any:
        result = helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, [4])
        return helper.make_graph([helper.make_node(operator, ["x"], [f"{name}.y"], name)], name, [], [result])

    nodes = [
        helper.make_node("Cast", ["mode"], ["real"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["real", "none"], ["scalar"], "scalar"),
        helper.make_node("Equal", ["scalar", "three"], ["is_three"], "compare"),
        helper.make_node(
            "If", ["is_three"], ["z"], "choose", then_branch=branch("a", "Neg"), else_branch=branch("b", "Abs")
        ),
        helper.make_node("Add", ["z", "scalar"], ["y"], "sum"),
    ]
    graph = helper.make_graph(
        nodes,
        "modes",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("mode", kind, shape),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [
            helper.make_tensor("three", TensorProto.FLOAT, [], [3.0]),
            helper.make_tensor("none", TensorProto.INT64, [0], []),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.array([1, -2, 3, -4], np.float32)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("mode", [3, 2])
def test_a_fixed_input_decides_a_branch_and_is_no_input_any_more(mode: int, shape: tuple[int, ...]) -> None:
    for value in (mode, np.full(shape, mode, np.int64)):
        engine = penstock.compile(branching(shape=shape), values={"mode": value})
        np.testing.assert_array_equal(engine(X)[0], (-X if mode == 3 else abs(X)) + mode)
        with pytest.raises(UserError, match="mode"):
            engine(x=X, mode=np.int64(mode))


def test_commands_fix_an_input(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "modes.onnx").write_bytes(branching().SerializeToString())
    np.save(tmp_path / "x.npy", X)
    assert penstock("import", "modes.onnx", "--value", "mode=3", "-q").status == 0
    assert "graph.if" not in (tmp_path / "modes.mlir").read_text()
    for given in (["--input", "x.npy"], ["--input", "x=x.npy"]):
        ran = penstock("run", "modes.onnx", "--value", "mode=3", *given, "--output-dir", "out", "-q")
        assert ran.status == 0, ran.err
        np.testing.assert_array_equal(np.load(tmp_path / "out/output_0.npy"), 3 - X)
    assert penstock("check", "modes.onnx", "--value", "mode=2", "-q").status == 0


def test_a_fixed_input_may_have_a_symbolic_dimension_of_size_1() -> None:
    model = branching(shape=("batch",))
    helper_input = helper.make_tensor_value_info("w", TensorProto.FLOAT, ["batch", 4])
    model.graph.input.append(helper_input)
    engine = penstock.compile(model, values={"mode": 3}, dims={"batch": 1})
    np.testing.assert_array_equal(engine(X, np.zeros((1, 4), np.float32))[0], 3 - X)
    with pytest.raises(UserError, match=r'"mode" has the shape batch, and a number fixes one element'):
        penstock.compile(model, values={"mode": 3})


@pytest.mark.parametrize(
    ("kind", "shape", "value", "message"),
    [
        (TensorProto.INT64, (), 0.5, "holds elements of type int64, and 0.5 is no integer"),
        (TensorProto.INT64, (), True, "and True is no integer"),
        (TensorProto.INT64, (), float("nan"), "nan is no integer"),
        (TensorProto.UINT8, (), 256, "256 is not from 0 to 255"),
        (TensorProto.INT8, (), -129, "-129 is not from -128 to 127"),
        (TensorProto.FLOAT, (), True, "True is a truth value"),
        (TensorProto.BOOL, (), 2, "2 is no truth value"),
        (TensorProto.INT64, (2,), 1, 'input "mode" has the shape 2, and a number fixes one element'),
        (TensorProto.INT64, (), np.ones(1, np.float32), "elements of type float32, and the program takes int64"),
        (TensorProto.INT64, (2,), np.arange(3), "has the shape (3,), and the program takes (2,)"),
        (TensorProto.STRING, (), 1, "cannot be fixed: elements of type STRING are not supported"),
    ],
)
def test_a_value_that_the_input_cannot_have_is_refused(
    kind: int, shape: tuple[int, ...], value: Any, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        penstock.compile(branching(kind, shape), values={"mode": value})
    assert message in caught.value.message
    assert caught.value.loc is not None


def test_a_value_for_no_input_is_refused() -> None:
    with pytest.raises(UserError, match='there is no input "mood" to fix') as caught:
        penstock.compile(branching(), values={"mood": 3})
    assert caught.value.notes == ('did you mean "mode"?',)
    with pytest.raises(UserError, match='there is no input "three" to fix'):
        penstock.compile(branching(), values={"three": 3})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mode"], '--value:1:1: error: "mode" fixes no input'),
        (["=3"], '--value:1:1: error: "=3" fixes no input'),
        (["mode=three"], '--value:1:6: error: "mode=three" fixes no input'),
        (["mode=1_000"], '--value:1:6: error: "mode=1_000" fixes no input'),
        (["mode=3", "mode=3"], '--value:2:1: error: the input "mode" is fixed twice'),
    ],
)
def test_words_that_fix_nothing_are_refused_at_their_place(
    words: list[str], message: str, penstock: Command, tmp_path: Path
) -> None:
    (tmp_path / "modes.onnx").write_bytes(branching().SerializeToString())
    finished = penstock("compile", "modes.onnx", *(part for word in words for part in ("--value", word)))
    assert finished.status == 2
    assert message in finished.err


def test_only_inputs_of_models_are_fixed(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "modes.onnx").write_bytes(branching().SerializeToString())
    assert penstock("import", "modes.onnx", "-q").status == 0
    for command in ("compile", "run"):
        finished = penstock(command, "modes.mlir", "--value", "mode=3")
        assert finished.status == 2
        assert "modes.mlir: error: only the inputs of an ONNX model can be fixed to values" in finished.err
