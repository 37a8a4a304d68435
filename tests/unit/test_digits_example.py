"""The digits example: its files are what they claim to be, and its demonstration runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from penstock.runtime.compiler import load_input
from penstock.runtime.interpreter import run_module


@pytest.fixture
def folder(repository: Path) -> Path:
    return repository / "examples" / "digits"


@pytest.fixture
def demo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demonstration as a module; it is a script, in no package."""
    spec = importlib.util.spec_from_file_location("digits_demo", folder / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


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


def test_the_demonstration_agrees_at_every_level_and_shows_its_decisions(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.demonstrate("gemmini-fp32", tmp_path / "out", 4, 2)
    out = capsys.readouterr().out
    for level in ("graph, interpreted", "tensor, interpreted", "loop, as C", "accel, interpreted", "accel, as C"):
        assert level in out
    for word in ("lower bound", "compulsory", "multiply-accumulates", '"relu1"', "spad", "acc"):
        assert word in out
    written = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    assert {"graph.mlir", "tensor.mlir", "loop.mlir", "accel.mlir", "accel_c/main.c", "accel_c/main.h"} <= written


def test_a_level_that_disagrees_is_reported(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.asarray([0, 1])
    right = np.asarray([[5.0, 0.0], [0.0, 5.0]], np.float32)
    good = demo.Result("graph", "interpreted", right, 0.1)
    assert demo.print_agreement([good, demo.Result("loop", "as C", right, 0.1)], labels)
    off = demo.Result("loop", "as C", right + np.float32(0.01), 0.1)
    assert not demo.print_agreement([good, off], labels)
    wrong = demo.Result("graph", "interpreted", right[::-1], 0.1)
    assert not demo.print_agreement([wrong], labels)
    assert "1.00e-02" in capsys.readouterr().out


def test_without_a_c_compiler_the_demonstration_says_so_and_interprets(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    assert demo.demonstrate("gemmini-fp32", tmp_path / "out", 4, 1)
    printed = capsys.readouterr()
    assert "accel level is not run as C" in printed.err
    assert "install a C compiler" in printed.err
    assert "accel, interpreted" in printed.out
    assert "as C" not in printed.out
