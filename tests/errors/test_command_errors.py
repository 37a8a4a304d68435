# SPDX-License-Identifier: Apache-2.0
"""What a misuse of the commands says: one line with a place, a note that helps, a status, and never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

from penstock.dialects.weights import Array, WeightStore
from penstock.passes import toolchain as compiler
from penstock.runtime import llvm

if TYPE_CHECKING:
    from tests.conftest import Command, Finished

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def model_bytes(graph: GraphProto) -> bytes:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """relu(x @ w) with x: Nx4, the batch N symbolic."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"], "product"),
            helper.make_node("Relu", ["xw"], ["y"], "clamp"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    path = tmp_path / "small.onnx"
    path.write_bytes(model_bytes(graph))
    return path


@pytest.fixture
def text(model: Path, penstock: Command) -> Path:
    """The model, imported: small.mlir and small.safetensors."""
    assert penstock("import", model, "--dim", "N=2", "-q").status == 0
    return model.with_suffix(".mlir")


def refused(finished: Finished, *parts: str, status: int = 1) -> None:
    """The command left with `status`, said all `parts` on stderr, and had no traceback."""
    assert finished.status == status, finished.err
    assert "Traceback" not in finished.err
    for part in parts:
        assert part in finished.err
    assert finished.out == ""


def save(path: Path, array: object) -> Path:
    np.save(path, np.asarray(array))
    return path


# models


def test_a_file_that_is_no_model_is_named(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "noise.onnx").write_bytes(b"\xff\xfe not a protocol buffer")
    refused(penstock("import", "noise.onnx"), "noise.onnx: error: the file is not an ONNX model, or it is truncated")


def test_a_truncated_model_is_refused_and_nothing_is_written(penstock: Command, model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    (tmp_path / "half.onnx").write_bytes(data[: len(data) // 2])
    refused(penstock("import", "half.onnx", "--dim", "N=2"), "half.onnx: error: ")
    assert not (tmp_path / "half.mlir").exists()
    assert not (tmp_path / "half.safetensors").exists()


def test_a_missing_model_is_named(penstock: Command) -> None:
    refused(penstock("import", "nowhere.onnx"), "nowhere.onnx: error: cannot read", "No such file")


def test_a_file_of_an_unknown_kind_is_refused(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "model.h5").write_bytes(b"")
    refused(penstock("compile", "model.h5"), "model.h5: error: ", "a model ends in .onnx")


@pytest.mark.parametrize("command", ["compile", "run", "check"])
def test_an_open_dimension_is_named_with_the_remedy(penstock: Command, model: Path, command: str) -> None:
    assert penstock("import", model, "-q").status == 0
    for program in (model, model.with_suffix(".mlir")):
        refused(
            penstock(command, program),
            'error: the symbolic dimension is not bound: "N"',
            'note: "N" is dimension 0 of "x"',
            "note: bind it: --dim N=SIZE",
        )


def test_a_misspelt_dimension_is_refused(penstock: Command, model: Path) -> None:
    refused(penstock("import", model, "--dim", "M=2"), "M")


@pytest.mark.parametrize("word", ["N", "N=two", "N=0", "=3"])
def test_a_malformed_dimension_is_a_usage_fault(penstock: Command, model: Path, word: str) -> None:
    refused(penstock("import", model, "--dim", word), f'"{word}" is no size of a dimension', status=2)


def test_an_unsupported_operator_has_a_status_of_its_own(penstock: Command, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("RandomNormalLike", ["x"], ["y"], "noise")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
    )
    (tmp_path / "noise.onnx").write_bytes(model_bytes(graph))
    refused(penstock("import", "noise.onnx"), "RandomNormalLike", "noise", status=3)


# inputs


def test_a_wrong_shape_names_the_input_and_both_shapes(penstock: Command, text: Path, tmp_path: Path) -> None:
    given = save(tmp_path / "x.npy", np.zeros((2, 5), np.float32))
    refused(penstock("run", text, "--input", given), 'the input "x" has the shape (2, 5), and the program takes (2, 4)')


def test_a_wrong_type_names_the_input_and_both_types(penstock: Command, text: Path, tmp_path: Path) -> None:
    given = save(tmp_path / "x.npy", np.zeros((2, 4), np.float64))
    refused(
        penstock("run", text, "--input", given),
        'the input "x" has elements of type float64, and the program takes float32',
        "astype('float32')",
    )


def test_a_wrong_name_gets_the_nearest_one(penstock: Command, model: Path, tmp_path: Path) -> None:
    given = save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    refused(
        penstock("run", model, "--dim", "N=2", "--input", f"xx={given}"),
        'there is no input "xx"',
        'did you mean "x"?',
    )


def test_a_missing_input_is_described(penstock: Command, text: Path) -> None:
    refused(penstock("run", text), 'an input is missing: "x": 2x4 float32')


def test_too_many_inputs_are_counted(penstock: Command, text: Path, tmp_path: Path) -> None:
    given = save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    refused(penstock("run", text, "--input", given, given), "the program takes 1 inputs, and 2 were given")


def test_an_input_given_twice_is_refused(penstock: Command, text: Path, tmp_path: Path) -> None:
    given = save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    refused(penstock("run", text, "--input", given, f"x={given}"), 'the input "x" is given twice')


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.pb"])
def test_a_file_that_is_no_tensor_is_named(penstock: Command, text: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x93NUMPY or not")
    refused(penstock("run", text, "--input", name), f"{name}: error: not ")


def test_a_missing_tensor_is_named(penstock: Command, text: Path) -> None:
    refused(penstock("run", text, "--input", "x.npy"), "x.npy: error: cannot read the file: No such file")


def test_an_unknown_kind_of_tensor_is_refused(penstock: Command, text: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2")
    refused(penstock("run", text, "--input", "x.csv"), "x.csv: error: ", "tensors are .npy, .npz or ONNX .pb files")


def test_a_pickle_is_never_loaded(penstock: Command, text: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    refused(penstock("run", text, "--input", "x.npy"), "x.npy: error: ", "allow_pickle=False")


# weights


def replace_weights(text: Path, name: str, array: Array) -> None:
    store = WeightStore()
    store.add(name, array)
    store.save(text.with_suffix(".safetensors"))


def test_a_missing_weights_file_is_named(penstock_opt: Command, text: Path) -> None:
    text.with_suffix(".safetensors").unlink()
    refused(penstock_opt(text), "small.safetensors: error: the weights file does not exist")


def test_a_file_that_is_no_weights_is_named(penstock_opt: Command, text: Path) -> None:
    text.with_suffix(".safetensors").write_bytes(b"not weights")
    refused(penstock_opt(text), "small.safetensors: error: not a readable safetensors file")


def test_a_missing_weight_is_reported_where_it_is_used(penstock_opt: Command, text: Path) -> None:
    replace_weights(text, "v", WEIGHT)
    line = next(n for n, words in enumerate(text.read_text().splitlines(), 1) if "graph.constant" in words)
    refused(penstock_opt(text), f"small.mlir:{line}:", 'error: "w": no weight is called "w"', "^")


@pytest.mark.parametrize("array", [WEIGHT.T.copy(), WEIGHT.astype(np.float64)], ids=["shape", "type"])
def test_a_weight_of_another_shape_or_type_is_reported_where_it_is_used(
    penstock_opt: Command, text: Path, array: Array
) -> None:
    replace_weights(text, "w", array)
    refused(penstock_opt(text), 'the weight "w" is used as tensor<4x3xf32>, but the weights file has')


# names


def test_a_misspelt_command_gets_the_nearest_one(penstock: Command) -> None:
    refused(penstock("complie", "x.onnx"), 'there is no command "complie"', 'did you mean "compile"?', status=2)


def test_an_unknown_flag_is_a_usage_fault(penstock: Command, model: Path) -> None:
    refused(penstock("compile", model, "--fast"), "--fast", status=2)


def test_a_misspelt_machine_gets_the_nearest_one(penstock: Command, penstock_opt: Command, text: Path) -> None:
    for finished in (
        penstock("compile", text, "--machine", "gemini-fp32"),
        penstock_opt(text, "--machine", "gemini-fp32"),
    ):
        refused(finished, 'unknown machine "gemini-fp32"', 'did you mean "gemmini-fp32"?')


def test_a_module_without_main_says_what_it_has(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "f.mlir").write_text("func.func @kernel() { func.return }\n")
    refused(penstock("run", "f.mlir"), "f.mlir:1:1: error: ", "no function @main", "@kernel")


def test_a_fault_in_the_text_is_located_by_every_command(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "f.mlir").write_text("func.func @main() {\n  func.return %y : i32\n}\n")
    for command in ("run", "compile", "check"):
        refused(penstock(command, "f.mlir"), "f.mlir:2:15: error: use of the undefined value %y", "^")


# outputs


def test_a_failing_import_leaves_both_files_as_they_were(penstock: Command, text: Path, model: Path) -> None:
    files = (text, text.with_suffix(".safetensors"))
    before = [path.read_bytes() for path in files]
    model.write_bytes(model.read_bytes()[:60])
    refused(penstock("import", model, "--dim", "N=2"), "error: ")
    assert [path.read_bytes() for path in files] == before
    assert sorted(path.name for path in text.parent.iterdir()) == ["small.mlir", "small.onnx", "small.safetensors"]


def test_an_output_folder_that_is_missing_is_named(penstock: Command, model: Path) -> None:
    refused(penstock("import", model, "--dim", "N=2", "-o", "nowhere/out.mlir"), "nowhere/out", "No such file")


def test_a_plan_does_not_replace_what_is_no_plan(penstock: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "keep.txt").write_text("mine")
    refused(penstock("compile", model, "--dim", "N=2", "-o", "notes"), "notes: error: exists and is no plan")
    assert (tmp_path / "notes" / "keep.txt").read_text() == "mine"


# the C compiler


def test_without_a_c_compiler_the_remedy_is_named_and_the_interpreter_still_runs(
    penstock: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)  # pyright: ignore
    monkeypatch.setattr(llvm, "find_spec", lambda name: None)  # pyright: ignore
    words = ("run", model, "--dim", "N=2", "--input", given, "-q")
    refused(penstock(*words), "no C compiler", "CC", "pip install 'penstock-compiler[cc]'", "--level accel")
    assert penstock(*words, "--level", "loop").status == 0
    np.testing.assert_array_equal(
        np.load(tmp_path / "output_0.npy"), np.maximum(np.ones((2, 4), np.float32) @ WEIGHT, 0)
    )
