# SPDX-License-Identifier: Apache-2.0
"""`penstock quantize`: what it writes and reports, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import penstock
from penstock.passes.graph.quantize import Scheme
from penstock.runtime.compiler import load_input
from penstock.runtime.interpreter.graph import run_graph

if TYPE_CHECKING:
    from tests.conftest import Command

Array = NDArray[Any]
SCHEMES: tuple[Scheme, ...] = ("qdq", "symmetric", "power-of-two")


def network() -> ModelProto:
    """A convolution, a matrix, and a softmax, which stays in float."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal((4, 3, 3, 3)), "f": rng.standard_normal((4, 5))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="c"),
        helper.make_node("Relu", ["c"], ["r"], name="r"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], name="g"),
        helper.make_node("Flatten", ["g"], ["flat"], name="flat"),
        helper.make_node("MatMul", ["flat", "f"], ["y"], name="y"),
        helper.make_node("Softmax", ["y"], ["s"], name="s"),
    ]
    proto = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])],
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images(count: int) -> Array:
    return np.random.default_rng(1).standard_normal((count, 3, 6, 6)).astype(np.float32)


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Command:
    """`penstock` as a command; the module has that name here."""
    return request.getfixturevalue("penstock")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.onnx").write_bytes(network().SerializeToString())
    np.savez(tmp_path / "cal.npz", x=images(8))
    np.save(tmp_path / "cal.npy", images(8))
    return tmp_path


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_command_writes_ir_that_runs_as_the_program_does(command: Command, folder: Path, scheme: Scheme) -> None:
    done = command("quantize", "net.onnx", "--calibration", "cal.npz", "--scheme", scheme, "-o", "q.mlir")
    assert done.status == 0
    assert done.out == ""
    assert "worst SQNR" in done.err
    assert "in float: s: graph.softmax: it has no integer form" in done.err
    program = load_input(folder / "q.mlir")
    (found,) = run_graph(program.module, [images(1)], program.ctx.weights)
    (expected,) = penstock.quantize(folder / "net.onnx", images(8), scheme=scheme)(images(1))
    np.testing.assert_array_equal(found, expected)


def test_a_table_that_was_saved_gives_the_same_program(command: Command, folder: Path) -> None:
    first = command("quantize", "net.onnx", "--calibration", "x=cal.npy", "--save-ranges", "r.json", "-q")
    second = command("quantize", "net.onnx", "--ranges", "r.json", "-o", "again.mlir", "-q")
    assert (first.status, first.err, second.status) == (0, "", 0)
    text = (folder / "net_int8.mlir").read_text()
    assert text.replace("net_int8", "again") == (folder / "again.mlir").read_text()
    assert (folder / "net_int8.safetensors").read_bytes() == (folder / "again.safetensors").read_bytes()


def test_the_command_writes_products_of_integers_when_asked(command: Command, folder: Path) -> None:
    words = ["quantize", "net.onnx", "--calibration", "cal.npy", "--no-per-channel", "--integer", "-o", "q.mlir"]
    assert command(*words).status == 0
    assert (folder / "q.mlir").read_text().count("accumulate i32") == 2


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "there is nothing to calibrate with"),
        (["--calibration", "none.npy"], 1, "none.npy: error: cannot read the file"),
        (["--ranges", "none.json"], 1, "none.json: error: cannot read the ranges"),
        (["--calibration", "bad.npy"], 1, "holds NaN or infinities"),
        (["--calibration", "y=cal.npy"], 1, 'there is no input "y"'),
    ],
)
def test_a_fault_of_the_user_is_told_and_nothing_is_written(
    command: Command, folder: Path, words: list[str], status: int, message: str
) -> None:
    np.save(folder / "bad.npy", np.full((1, 3, 6, 6), np.nan, np.float32))
    done = command("quantize", "net.onnx", *words)
    assert done.status == status
    assert message in done.err
    assert not list(folder.glob("*.mlir"))
    assert not list(folder.glob("*.safetensors"))
