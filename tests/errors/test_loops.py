# SPDX-License-Identifier: Apache-2.0
"""Loops and branches that cannot be, and runs that ask a loop for too much, at every level."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from in_c import needs_compiler, needs_llvm
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

import penstock
from penstock.dialects.diagnostics import UNSUPPORTED, UserError

if TYPE_CHECKING:
    from tests.conftest import Command

Array = NDArray[Any]
X = np.array([1, 2, 3], np.float32)


def value(name: str, kind: int = TensorProto.FLOAT, shape: tuple[int, ...] | None = (3,)) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(node: str, inputs: list[str], outputs: list[str], **graphs: Any) -> ModelProto:
    """One node with graphs inside, on `x`, the number `n` and the condition `c`; its outputs are those of the model."""
    given = {"x": value("x"), "n": value("n", TensorProto.INT64, ()), "c": value("c", TensorProto.BOOL, ())}
    made = helper.make_graph(
        [helper.make_node(node, inputs, outputs, name="it", **graphs)],
        "test",
        [given[name] for name in inputs if name in given],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.array(True), "true")],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def body(next_: str, lines: bool) -> GraphProto:
    """A body that carries `a`: on goes `twice`, which is `a + a`, or `longer`, two of `a`; `twice` may be its lines."""
    nodes = [
        helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("Add", ["a", "a"], ["twice"]),
        helper.make_node("Concat", ["a", "a"], ["longer"], axis=0),
    ]
    given = [value("i", TensorProto.INT64, ()), value("c", TensorProto.BOOL, ()), value("a", shape=None)]
    made = [value("d", TensorProto.BOOL, ()), value(next_, shape=None)]
    if lines:
        nodes.append(helper.make_node("Identity", ["twice"], ["line"]))
        made.append(value("line", shape=None))
    return helper.make_graph(nodes, "body", given, made)


def branch(op: str, **attributes: Any) -> GraphProto:
    inputs = ["x", "x"] if op == "Concat" else ["x"]
    return helper.make_graph([helper.make_node(op, inputs, ["r"], **attributes)], op, [], [value("r", shape=None)])


def test_a_body_that_changes_a_shape_is_refused_where_a_run_decides_how_often_it_runs() -> None:
    with pytest.raises(UserError) as caught:
        penstock.compile(model("Loop", ["n", "true", "x"], ["y"], body=body("longer", lines=False)))
    message = str(caught.value)
    assert caught.value.status == UNSUPPORTED
    assert 'Loop: its body changes "a" from tensor<3xf32> to tensor<6xf32>' in message
    assert 'in 1 node: "it"' in message


def test_branches_of_different_shapes_are_refused() -> None:
    graphs = {"then_branch": branch("Neg"), "else_branch": branch("Concat", axis=0)}
    made = model("If", ["c"], ["y"], **graphs)
    made.graph.input.append(value("x"))
    with pytest.raises(UserError) as caught:
        penstock.compile(made)
    message = str(caught.value)
    assert caught.value.status == UNSUPPORTED
    assert "If: its then_branch gives tensor<3xf32>, its else_branch tensor<6xf32>" in message
    assert 'in 1 node: "it"' in message


@pytest.mark.parametrize("backend", ["interpreter", "native", "llvm"])
def test_a_run_that_asks_for_too_many_iterations_stops_and_writes_nothing_beyond(backend: Any) -> None:
    {"native": needs_compiler, "llvm": needs_llvm}.get(backend, lambda: None)()
    made = model("Loop", ["n", "true", "x"], ["y", "lines"], body=body("twice", lines=True))
    engine = penstock.compile(made, max_trips=4, backend=backend)
    assert isinstance(engine, penstock.Engine)
    y, lines, count = engine.run([np.array(4, np.int64), X])
    np.testing.assert_array_equal(y, 16 * X)
    np.testing.assert_array_equal(lines[:, 0], [2, 4, 8, 16])
    assert count == 4
    with pytest.raises(UserError, match=r"more than 4 iterations|more iterations of a loop than there may be"):
        engine.run([np.array(5, np.int64), X])
    again = engine.run([np.array(2, np.int64), X])
    np.testing.assert_array_equal(again[1][:, 0], [2, 4, 0, 0])


def test_a_run_without_iterations_gives_no_lines(tmp_path: Path, penstock: Command) -> None:
    needs_compiler()
    made = model("Loop", ["n", "true", "x"], ["y", "lines"], body=body("twice", lines=True))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    np.save(tmp_path / "x.npy", X)
    for count in (0, 2):
        np.save(tmp_path / "n.npy", np.array(count, np.int64))
        given = [f"x={tmp_path / 'x.npy'}", f"n={tmp_path / 'n.npy'}"]
        finished = penstock("run", tmp_path / "m.onnx", "--output-dir", tmp_path, "-q", "--input", *given)
        assert (finished.status, finished.err) == (0, "")
        np.testing.assert_array_equal(np.load(tmp_path / "output_0.npy"), X * 2**count)
        assert np.load(tmp_path / "output_1.npy").shape == (count, 3)


ASSERTION = """
func.func @main(%x: memref<4xi32>, %y: memref<4xi32> {graph.output = "y"}) {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0 : i32
  %first = memref.load %x[%c0] : memref<4xi32>
  %holds = arith.cmpi sgt, %first, %zero : i32
  cf.assert %holds, "the first one must be positive"
  mem.copy %x to %y : memref<4xi32> to memref<4xi32>
  func.return
}
"""


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("loop", "program.mlir:7:3: error: the first one must be positive"),
        ("c", "error: the program stopped: a cf.assert of the program does not hold"),
        ("llvm", "error: the program stopped: a cf.assert of the program does not hold"),
    ],
)
def test_an_assertion_of_the_program_is_no_bound_of_a_loop(
    level: str, message: str, tmp_path: Path, penstock: Command
) -> None:
    {"c": needs_compiler, "llvm": needs_llvm}.get(level, lambda: None)()
    path = tmp_path / "program.mlir"
    path.write_text(ASSERTION)
    for first, status in ((1, 0), (-1, 1)):
        np.save(tmp_path / "x.npy", np.array([first, 2, 3, 4], np.int32))
        finished = penstock(
            "run", path, "--level", level, "--output-dir", tmp_path, "-q", "--input", tmp_path / "x.npy"
        )
        assert finished.status == status, finished.err
    assert message in finished.err


RECURSION = """
func.func @f(%x: memref<4xf32>, %y: memref<4xf32>) {
  func.call @g(%x, %y) : (memref<4xf32>, memref<4xf32>) -> ()
  func.return
}
func.func @g(%x: memref<4xf32>, %y: memref<4xf32>) {
  func.call @f(%x, %y) : (memref<4xf32>, memref<4xf32>) -> ()
  func.return
}
func.func @main(%x: memref<4xf32>, %y: memref<4xf32> {graph.output = "y"}) {
  func.call @f(%x, %y) : (memref<4xf32>, memref<4xf32>) -> ()
  func.return
}
"""


@pytest.mark.parametrize("command", [["check"], ["compile", "-o", "out.plan"], ["compile", "--emit", "c", "-o", "out"]])
def test_functions_that_call_each_other_are_refused(command: list[str], tmp_path: Path, penstock: Command) -> None:
    path = tmp_path / "program.mlir"
    path.write_text(RECURSION)
    finished = penstock(*command, path, "-q")
    assert finished.status != 0
    assert f"{path}:" in finished.err
    assert "calls itself" in finished.err
