# SPDX-License-Identifier: Apache-2.0
"""`penstock import|compile|run|check` on a small model, at every level."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

import penstock as package
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import Array, WeightStore
from penstock.runtime.plan import open_plan
from penstock.runtime.tensor_specs import TensorSpec

if TYPE_CHECKING:
    from tests.conftest import Command

WEIGHT = (np.arange(12, dtype=np.float32) % 5 - 2).reshape(4, 3)
BIAS = np.array([1, -2, 3], np.float32)
X = (np.arange(8, dtype=np.float32) % 3 - 1).reshape(2, 4)
Y = np.maximum(X @ WEIGHT + BIAS, 0)
LEVELS = ("graph", "tensor", "loop", "accel")


def model_bytes(graph: GraphProto) -> bytes:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """relu(x @ w + b) with x: Nx4."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"], "product"),
            helper.make_node("Add", ["xw", "b"], ["s"], "shift"),
            helper.make_node("Relu", ["s"], ["y"], "clamp"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(BIAS, "b")],
    )
    path = tmp_path / "small.onnx"
    path.write_bytes(model_bytes(graph))
    np.save(tmp_path / "x.npy", X)
    return path


def output(folder: Path) -> Array:
    return np.load(folder / "output_0.npy")


# import


def test_import_writes_the_text_and_the_weights_beside_it(penstock: Command, model: Path, tmp_path: Path) -> None:
    finished = penstock("import", model, "--dim", "N=2", "-o", "text.mlir")
    assert (finished.status, finished.out) == (0, "")
    assert "2 weights in text.safetensors" in finished.err
    text = (tmp_path / "text.mlir").read_text()
    assert 'graph.weights = "text.safetensors"' in text
    assert 'loc("product")' in text, "the names of the nodes survive"
    assert "loc(unknown)" not in text
    store = WeightStore.open(tmp_path / "text.safetensors")
    np.testing.assert_array_equal(store["w"], WEIGHT)


def test_quiet_says_nothing(penstock: Command, model: Path) -> None:
    finished = penstock("import", model, "--dim", "N=2", "-q")
    assert (finished.status, finished.out, finished.err) == (0, "", "")


def test_text_written_elsewhere_still_finds_its_weights(penstock: Command, model: Path, tmp_path: Path) -> None:
    penstock("import", model, "--dim", "N=2", "-o", "text.mlir")
    (tmp_path / "deep").mkdir()
    assert penstock("compile", "text.mlir", "--emit=tensor", "-o", "deep/low.mlir").status == 0
    assert penstock("run", "deep/low.mlir", "--input", "x.npy", "--output-dir", "out").status == 0
    np.testing.assert_array_equal(output(tmp_path / "out"), Y)


def test_weights_that_a_pass_makes_are_written_beside_the_output(
    penstock: Command, penstock_opt: Command, model: Path, tmp_path: Path
) -> None:
    penstock("import", model, "--dim", "N=2", "-o", "text.mlir")
    text = (tmp_path / "text.mlir").read_text()
    doubled = text.replace(
        "%xw = graph.matmul %x, %w",
        "%ww = graph.add %w, %w : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>\n"
        "    %xw = graph.matmul %x, %ww",
    )
    assert doubled != text
    (tmp_path / "doubled.mlir").write_text(doubled)
    assert penstock_opt("doubled.mlir", "-p", "fold-constants,dce", "-o", "folded.mlir").status == 0
    assert (tmp_path / "folded.safetensors").exists()
    assert "graph.add %w" not in (tmp_path / "folded.mlir").read_text()
    assert penstock("run", "folded.mlir", "--input", "x.npy", "--output-dir", "out").status == 0
    np.testing.assert_array_equal(output(tmp_path / "out"), np.maximum(X @ (2 * WEIGHT) + BIAS, 0))
    lost = penstock_opt("doubled.mlir", "-p", "fold-constants,dce")
    assert "warning: 1 new weights are lost on stdout; give -o FILE or --weights FILE to keep them" in lost.err


# run


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("machine", [None, "gemmini-fp32"], ids=["host", "gemmini-fp32"])
def test_every_level_of_the_model_runs_to_the_same_result(
    penstock: Command, model: Path, tmp_path: Path, level: str, machine: str | None
) -> None:
    words = ["--machine", machine] if machine else []
    finished = penstock("run", model, "--input", "x.npy", "--level", level, "--output-dir", "out", *words)
    assert finished.status == 0, finished.err
    assert 'output_0.npy: "y": 2x3 float32' in finished.err
    np.testing.assert_array_equal(output(tmp_path / "out"), Y)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("machine", [None, "gemmini-fp32"], ids=["host", "gemmini-fp32"])
def test_the_text_of_every_level_runs_as_it_stands(
    penstock: Command, model: Path, tmp_path: Path, level: str, machine: str | None
) -> None:
    words = ["--machine", machine] if machine else []
    emitted = penstock("compile", model, "--dim", "N=2", f"--emit={level}", "-o", "low.mlir", *words)
    assert emitted.status == 0, emitted.err
    finished = penstock("run", "low.mlir", "--input", "x.npy", "--output-dir", "out")
    assert finished.status == 0, finished.err
    np.testing.assert_array_equal(output(tmp_path / "out"), Y)


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"], ids=["host", "gemmini-fp32"])
def test_compiled_c_runs_to_the_same_result(
    penstock: Command, model: Path, tmp_path: Path, machine: str | None
) -> None:
    words = ["--machine", machine] if machine else []
    finished = penstock("run", model, "--input", "x.npy", "--level", "c", *words)
    assert finished.status == 0, finished.err
    np.testing.assert_array_equal(output(tmp_path), Y)


def test_inputs_are_taken_by_name_from_npz_and_from_onnx_tensors(
    penstock: Command, model: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "all.npz", x=X)
    (tmp_path / "x.pb").write_bytes(numpy_helper.from_array(X, "x").SerializeToString())
    for word in ("x=x.npy", "all.npz", "x.pb", "x=x.pb"):
        assert penstock("run", model, "--level", "graph", "--input", word, "--output-dir", word[:3]).status == 0
        np.testing.assert_array_equal(output(tmp_path / word[:3]), Y)


def test_outputs_are_written_as_onnx_tensors_on_request(penstock: Command, model: Path, tmp_path: Path) -> None:
    words = ("run", model, "--level", "graph", "--input", "x.npy", "--output-format", "pb")
    assert penstock(*words).status == 0
    tensor = TensorProto.FromString((tmp_path / "output_0.pb").read_bytes())
    assert tensor.name == "y"
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), Y)


def test_the_size_of_a_symbolic_dimension_is_taken_from_the_input(
    penstock: Command, model: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "five.npy", np.tile(X, (3, 1))[:5])
    assert penstock("run", model, "--level", "graph", "--input", "five.npy").status == 0
    assert output(tmp_path).shape == (5, 3)


def test_an_input_that_only_gives_a_shape_becomes_a_constant(penstock: Command, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    (tmp_path / "reshape.onnx").write_bytes(model_bytes(graph))
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "shape.npy", np.array([4, -1], np.int64))
    finished = penstock("run", "reshape.onnx", "--level", "graph", "--input", "x.npy", "shape.npy")
    assert finished.status == 0, finished.err
    np.testing.assert_array_equal(output(tmp_path), X.reshape(4, 2))


# plans


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"], ids=["host", "gemmini-fp32"])
def test_a_plan_is_compiled_once_and_runs_without_the_model(
    penstock: Command, model: Path, tmp_path: Path, machine: str | None
) -> None:
    words = ["--machine", machine] if machine else []
    finished = penstock("compile", model, "--dim", "N=2", *words)
    assert finished.status == 0, finished.err
    plan = open_plan("small.plan")
    assert plan.about["machine"] == machine
    assert plan.signature.inputs == (TensorSpec("x", (2, 4), np.dtype(np.float32)),)
    model.unlink()
    for level in ([], ["--level", "c"], ["--level", plan.about["level"]]):
        assert penstock("run", "small.plan", "--input", "x.npy", *level).status == 0
        np.testing.assert_array_equal(output(tmp_path), Y)


def test_a_plan_replaces_the_plan_before_it(penstock: Command, model: Path, tmp_path: Path) -> None:
    for size in ("N=2", "N=3"):
        assert penstock("compile", model, "--dim", size, "-o", "p").status == 0
    assert open_plan("p").signature.inputs[0].shape == (3, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "small.onnx", "x.npy"]


# check


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"], ids=["host", "gemmini-fp32"])
def test_check_finds_every_pass_equal_on_integers(penstock: Command, model: Path, machine: str | None) -> None:
    words = ["--machine", machine] if machine else []
    finished = penstock("check", model, "--dim", "N=2", *words)
    assert finished.status == 0, finished.err
    lines = finished.out.splitlines()
    assert "graph-to-tensor: equal, bit for bit" in lines
    assert all(line.endswith("equal, bit for bit") for line in lines)


def test_check_runs_on_real_numbers_too(penstock: Command, model: Path) -> None:
    assert penstock("check", model, "--dim", "N=2", "--real", "--seed", "7").status == 0


def test_check_runs_the_passes_it_is_given(penstock: Command, model: Path) -> None:
    finished = penstock("check", model, "--dim", "N=2", "-p", "graph-fuse,graph-to-tensor")
    assert finished.out == "graph-fuse: equal, bit for bit\ngraph-to-tensor: equal, bit for bit\n"


# the command itself


def test_versions_are_printed(penstock: Command) -> None:
    assert penstock("--version").out.startswith(f"penstock {package.__version__}, xdsl ")


def test_without_a_command_the_help_is_shown_as_a_usage_fault(penstock: Command) -> None:
    finished = penstock()
    assert finished.status == 2
    assert "import" in finished.err
    assert finished.out == ""


def test_verbose_says_which_passes_ran_and_how_long_they_took(penstock: Command, model: Path) -> None:
    finished = penstock("compile", model, "--dim", "N=2", "--emit=loop", "-v")
    assert "] graph-to-tensor\n" in finished.err
    assert "total" in finished.err


def test_a_crash_in_a_pass_is_repeated_by_one_command(
    penstock: Command, penstock_opt: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.passes.graph.fuse import GraphFusePass

    def crash(self: object, ctx: object, op: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(GraphFusePass, "apply", crash)
    finished = penstock("compile", model, "--dim", "N=2", "--machine", "gemmini-fp32")
    assert finished.status == 70
    assert "KeyError: 'lost'" in finished.err
    assert not list(tmp_path.glob("*reproducer*")), "it is not where the user works"
    said = next(line for line in finished.err.splitlines() if line.startswith("note: repeat it with: "))
    words = shlex.split(said.removeprefix("note: repeat it with: "))
    assert words[0] == "penstock-opt"
    again = penstock_opt(*words[1:])
    assert again.status == 70
    assert "KeyError: 'lost'" in again.err


# from Python, and as a process


@pytest.mark.parametrize("backend", ["interpreter", "native"])
def test_the_engine_is_called_with_arrays_in_order_or_by_name(model: Path, backend: str) -> None:
    engine = package.compile(model, machine="gemmini-fp32", backend=backend, dims={"N": 2})  # pyright: ignore
    (first,) = engine(X)
    (second,) = engine(x=X)
    np.testing.assert_array_equal(first, Y)
    np.testing.assert_array_equal(second, Y)
    assert [str(spec) for spec in engine.signature.outputs] == ['"y": 2x3 float32']
    with pytest.raises(UserError, match=r'the input "x" has the shape'):
        engine(X.T)


def test_contexts_of_one_engine_do_not_share_memory(model: Path) -> None:
    engine = package.compile(model, dims={"N": 2})
    assert isinstance(engine, package.Engine)
    one, other = engine.context(), engine.context()
    (first,) = one(X)
    (second,) = other(-X)
    np.testing.assert_array_equal(first, Y, "a later run elsewhere leaves an earlier result alone")
    np.testing.assert_array_equal(second, np.maximum(-X @ WEIGHT + BIAS, 0))


def test_the_installed_command_runs(script: Callable[[str], str], model: Path, tmp_path: Path) -> None:
    words = [script("penstock"), "run", str(model), "--input", "x.npy", "--level", "graph"]
    finished = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (0, ""), finished.stderr
    np.testing.assert_array_equal(output(tmp_path), Y)


def test_inputs_of_a_text_are_called_as_it_names_them(penstock: Command, tmp_path: Path) -> None:
    text = "func.func @main(%left: tensor<2xf32>, %1: tensor<2xf32>) -> tensor<2xf32> {\n  %y = graph.sub %left, %1 : "
    text += "(tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>\n  func.return %y : tensor<2xf32>\n}\n"
    (tmp_path / "in.mlir").write_text(text)
    np.savez(tmp_path / "in.npz", left=np.array([3, 4], np.float32), input_1=np.array([1, 1], np.float32))
    for emit in ("graph", "tensor", "loop", "accel"):
        assert penstock("compile", "in.mlir", f"--emit={emit}", "-o", f"{emit}.mlir", "-q").status == 0
        finished = penstock("run", f"{emit}.mlir", "--input", "in.npz")
        assert finished.status == 0, finished.err
        assert np.load("output_0.npy").tolist() == [2, 3]
    np.savez(tmp_path / "in.npz", right=np.array([3, 4], np.float32))
    finished = penstock("run", "in.mlir", "--input", "in.npz")
    assert 'the inputs are "left": 2 float32, "input_1": 2 float32' in finished.err
