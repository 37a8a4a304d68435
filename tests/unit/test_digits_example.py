# SPDX-License-Identifier: Apache-2.0
"""The digits example: its files are what they claim to be, and its demonstration runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from penstock.runtime.compiler import load_input
from penstock.runtime.interpreter import run_module
from penstock.tools import demo_command

if TYPE_CHECKING:
    from tests.conftest import Command


@pytest.fixture
def folder(repository: Path) -> Path:
    return repository / "examples" / "digits"


def test_the_committed_model_recognises_97_percent_of_the_held_out_digits(folder: Path) -> None:
    with np.load(folder / "test_images.npz") as file:
        images, labels = file["images"], file["labels"]
    assert images.dtype == np.float32
    assert images.shape == (360, 1, 8, 8)
    program = load_input(folder / "digits.onnx")
    scores = [run_module(program.module, [image[None]], program.ctx.weights)[0] for image in images]
    assert (np.concatenate(scores).argmax(1) == labels).mean() >= 0.97


def test_the_committed_files_are_small_and_the_network_is_the_documented_one(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) < 1_000_000
    model = onnx.ModelProto.FromString((folder / "digits.onnx").read_bytes())
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == ["Conv", "Relu", "MaxPool", "Conv", "Relu", "Flatten", "Gemm"]


def test_the_demonstration_agrees_at_every_level_and_shows_its_decisions(penstock: Command, tmp_path: Path) -> None:
    done = penstock("demo", "-o", tmp_path / "out", "--images", "4", "--interpret", "2")
    assert done.status == 0, done.err
    for level in ("graph, interpreted", "tensor, interpreted", "loop, as C", "accel, interpreted", "accel, as C"):
        assert level in done.out
    for word in ("lower bound", "compulsory", "multiply-accumulates", '"relu1"', "all levels agree"):
        assert word in done.out
    *_, spad, acc = re.split(r"\n(?=\w+: [\d,]+ bytes upwards)", done.out)
    assert spad.startswith("spad: 5,760 bytes upwards, 11,126 cycles to the right\n")
    assert "%w_ring[0] of @fused_2" in spad, "slots take turns"
    assert acc.startswith("acc: 2,048 bytes")
    assert "accel level, as C" in done.err, "how it goes on"
    written = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    assert {"digits.onnx", "graph.mlir", "tensor.mlir", "loop.mlir", "accel.mlir"} <= written
    assert {"accel_c/main.c", "accel_c/main.h"} <= written
    assert written == set(re.findall(r"^  (\S+) +[\d,]+ bytes$", done.out, re.MULTILINE))


def test_the_demonstration_of_a_cpu_has_no_scratchpads_and_a_folder_of_others_stays(
    penstock: Command, tmp_path: Path
) -> None:
    few = ("--images", "1", "--interpret", "1", "-q")
    assert penstock("demo", "-o", tmp_path / "out", *few).status == 0
    done = penstock("demo", "-o", tmp_path / "out", "--machine", "host-avx2", *few)
    assert (done.status, done.err) == (0, "")
    assert "What runs where" in done.out
    assert not re.search("scratchpads|What the machine does|upwards", done.out)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "digits.onnx").write_text("mine")
    assert "is no folder of penstock demo" in penstock("demo", "-o", tmp_path / "own", *few).err
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["digits.onnx"]
    done = penstock("demo", "-o", tmp_path / "own" / "digits.onnx")
    assert done.err == f"{tmp_path / 'own' / 'digits.onnx'}: error: expected a folder, and found a file\n"
    assert 'unknown machine "gemini"' in penstock("demo", "--machine", "gemini", "-o", tmp_path / "out").err


def test_a_level_that_disagrees_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.asarray([0, 1])
    right = np.asarray([[5.0, 0.0], [0.0, 5.0]], np.float32)
    good = demo_command.Result("graph", "interpreted", right, 0.1)
    assert demo_command.print_agreement([good, demo_command.Result("loop", "as C", right, 0.1)], labels)
    off = demo_command.Result("loop", "as C", right + np.float32(0.01), 0.1)
    assert not demo_command.print_agreement([good, off], labels)
    wrong = demo_command.Result("graph", "interpreted", right[::-1], 0.1)
    assert not demo_command.print_agreement([wrong], labels)
    assert "1.00e-02" in capsys.readouterr().out


def test_without_a_c_compiler_the_demonstration_says_so_and_interprets(
    penstock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    done = penstock("demo", "-o", tmp_path / "out", "--images", "4", "--interpret", "1", "-q")
    assert done.status == 0
    assert "accel level are not run as C" in done.err
    assert "install a C compiler" in done.err
    assert "accel, interpreted" in done.out
    assert "as C" not in done.out
