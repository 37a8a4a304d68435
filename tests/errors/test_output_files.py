# SPDX-License-Identifier: Apache-2.0
"""What the commands do not overwrite, and how they say so: the weights and the files of others."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from penstock.dialects.weights import WeightStore

if TYPE_CHECKING:
    from tests.conftest import Command

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x @ w."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("own", [{"theirs": WEIGHT}, {"w": WEIGHT}, None])
@pytest.mark.parametrize("command", [("import",), ("compile", "--emit=graph"), ("compile", "--emit=loop")])
def test_somebodys_weights_are_not_replaced(
    penstock: Command, model: Path, tmp_path: Path, own: dict[str, object] | None, command: tuple[str, ...]
) -> None:
    theirs = tmp_path / "m.safetensors"
    if own is None:
        theirs.write_bytes(b"of an unknown kind")
    else:
        save_file(own, theirs, metadata={"format": "pt"})  # pyright: ignore
    before = contents(tmp_path)
    finished = penstock(*command, model, "-o", "m.mlir", "-q")
    assert finished.status == 1
    assert finished.err == (
        "m.safetensors: error: the file was not written by Penstock, so it is not replaced by these weights\n"
        "note: --weights FILE writes the weights to another file\n"
    )
    assert contents(tmp_path) == before
    (tmp_path / "sub").mkdir()
    assert penstock(*command, model, "-o", "m.mlir", "--weights", "sub/w.safetensors", "-q").status == 0
    assert 'graph.weights = "sub/w.safetensors"' in (tmp_path / "m.mlir").read_text()
    assert theirs.read_bytes() == before["m.safetensors"]
    assert penstock("run", "m.mlir", "--input", "x.npy", "--output-dir", "out").status == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "output_0.npy"), np.ones((2, 4), np.float32) @ WEIGHT)


def test_our_own_weights_are_replaced(penstock: Command, model: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert penstock("import", model, "-q").status == 0
    assert WeightStore.open(tmp_path / "m.safetensors").names() == ("w",)


def test_weights_that_a_pass_makes_do_not_replace_those_of_somebody(
    penstock: Command, penstock_opt: Command, model: Path, tmp_path: Path
) -> None:
    assert penstock("import", model, "-q").status == 0
    # The text of a person, whose weights come from elsewhere.
    save_file({"w": WEIGHT}, tmp_path / "m.safetensors")
    text = (tmp_path / "m.mlir").read_text()
    sum_of_weights = "%ww = graph.add %w, %w : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>"
    doubled = text.replace("%y = graph.matmul %x, %w", f"{sum_of_weights}\n    %y = graph.matmul %x, %ww")
    assert doubled != text
    (tmp_path / "m.mlir").write_text(doubled)
    before = contents(tmp_path)
    folded = ("m.mlir", "-p", "fold-constants,dce", "-o", "m.mlir")
    finished = penstock_opt(*folded)
    assert (finished.status, finished.out) == (1, "")
    assert "m.safetensors: error: the file was not written by Penstock" in finished.err
    assert contents(tmp_path) == before
    assert penstock_opt(*folded, "--weights", "new.safetensors").status == 0
    assert penstock("run", "m.mlir", "--input", "x.npy").status == 0
    np.testing.assert_array_equal(np.load(tmp_path / "output_0.npy"), np.ones((2, 4), np.float32) @ (2 * WEIGHT))


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["-o", "m.safetensors"], 1, "the weights and the text would be one file"),
        (["-o", "m.mlir", "--weights", "./m.mlir"], 2, "--weights and -o would be one file: ./m.mlir"),
    ],
)
def test_the_text_and_its_weights_are_two_files(
    penstock: Command, model: Path, tmp_path: Path, words: list[str], status: int, message: str
) -> None:
    before = contents(tmp_path)
    finished = penstock("import", model, *words)
    assert finished.status == status
    assert f"error: {message}" in finished.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("output", [".", "no/m.mlir", "m.onnx/m.mlir"])
def test_an_output_that_cannot_be_written_leaves_no_weights_either(
    penstock: Command, model: Path, tmp_path: Path, output: str
) -> None:
    before = contents(tmp_path)
    finished = penstock("import", model, "-o", output)
    assert finished.status == 1
    assert f"{output}: error: cannot write the file: " in finished.err
    assert contents(tmp_path) == before


def test_weights_are_not_written_beside_a_device(penstock: Command, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    folder.mkdir()
    try:
        os.mknod(folder / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (folder / "null").write_bytes(b"")
    except PermissionError:
        pytest.skip("devices cannot be made here")
    finished = penstock("import", model, "-o", "dev/null")
    assert finished.status == 0
    assert "warning: 1 new weights are lost on dev/null" in finished.err
    assert [path.name for path in folder.iterdir()] == ["null"]
    assert stat.S_ISCHR((folder / "null").stat().st_mode)


def test_weights_go_to_a_named_file_where_the_text_goes_to_stdout(
    penstock: Command, penstock_opt: Command, model: Path, tmp_path: Path
) -> None:
    finished = penstock("import", model, "-o", "-", "--weights", "w.safetensors", "-q")
    assert (finished.status, finished.err) == (0, "")
    assert 'graph.weights = "w.safetensors"' in finished.out
    assert penstock_opt("-", stdin=finished.out).status == 0


def test_weights_are_for_a_file_of_ir(penstock: Command, model: Path) -> None:
    finished = penstock("compile", model, "--weights", "w.safetensors")
    assert (finished.status, finished.out) == (2, "")
    assert "--weights is for a file of IR, not for --emit=plan" in finished.err


# folders


def test_generated_c_does_not_replace_the_c_of_somebody(penstock: Command, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "main.c").write_text("int main(void) { return 0; }\n")
    words = ("compile", model, "--emit=c", "-o", "src", "-q")
    assert penstock(*words).status == 0
    assert penstock(*words).status == 0, "what was generated is replaced"
    assert sorted(path.name for path in folder.iterdir()) == ["m.c", "m.h", "m.weights", "m_main.c", "main.c"]
    (folder / "m.c").write_text("int mine;\n")
    (folder / "m.h").unlink()
    before = contents(folder)
    finished = penstock(*words)
    assert finished.status == 1
    assert "src/m.c: error: exists and is no file of a generated program, so it is not replaced" in finished.err
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["folder", "notes.txt"])
def test_what_is_no_plan_is_not_replaced_by_one(penstock: Command, model: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    finished = penstock("compile", model, "-o", name, "-q")
    assert (finished.status, finished.err) == (1, f"{name}: error: exists and is no plan, so it is not replaced\n")
    assert contents(tmp_path) == before


def test_the_weights_of_a_text_behind_a_link_are_beside_the_text(
    penstock: Command, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link.mlir").symlink_to("far/real.mlir")
    assert penstock("import", model, "-o", "link.mlir", "-q").status == 0
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["real.mlir", "real.safetensors"]
    for name in ("link.mlir", "far/real.mlir"):
        assert (
            penstock("compile", name, "--emit=tensor", "-o", "out.mlir", "--weights", "w.safetensors", "-q").status == 0
        )
