# SPDX-License-Identifier: Apache-2.0
"""-q with every command and every output: stderr is empty, and stdout has what was asked for and nothing else."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock.tools import main

if TYPE_CHECKING:
    from tests.conftest import Command

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
MACHINE = ("--machine", "gemmini-fp32")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `files` copies."""
    folder = tmp_path_factory.mktemp("made")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    np.save(folder / "x.npy", np.ones((2, 4), np.float32))
    (folder / "p.csv").write_text("id,lower,upper,size\na,0,3,4\nb,2,6,4\n")
    with chdir(folder):
        for words in (("import", "m.onnx"), ("compile", "m.onnx", *MACHINE, "--emit=accel", "-o", "a.mlir")):
            assert main.run([*words, "-q"]) == 0
    return folder


@pytest.fixture
def files(made: Path, tmp_path: Path) -> Path:
    """A model `m.onnx`, its text `m.mlir` with one of the accel level, an input and a planning problem."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def is_ir(text: str) -> bool:
    is_module = re.fullmatch(r'builtin\.module.*\n\}( loc\("\w+"\))?\n', text, re.DOTALL) is not None
    return is_module and text.count("builtin.module") == 1


def is_json(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def is_csv(text: str) -> bool:
    return len({line.count(",") for line in text.splitlines()}) == 1


def is_svg(text: str) -> bool:
    return text.startswith("<svg ") and text.rstrip().endswith("</svg>") and text.count("<svg ") == 1


def is_nothing(text: str) -> bool:
    return text == ""


def is_table(text: str) -> bool:
    return text.splitlines()[0].split()[0] in ("planner", "function", "gemmini-fp32:")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("import m.onnx", is_nothing),
        ("import m.onnx -o - --weights w.safetensors", is_ir),
        ("import m.onnx -o i.mlir", is_nothing),
        ("compile m.onnx", is_nothing),
        ("compile m.onnx --report -", is_json),
        ("compile m.onnx --report r.json", is_nothing),
        ("compile m.mlir --emit=loop", is_nothing),
        ("compile m.mlir --emit=graph -o -", is_ir),
        ("compile m.mlir --emit=graph --report - -o g.mlir", is_json),
        ("compile m.mlir --emit=c", is_nothing),
        ("run m.mlir --input x.npy", is_nothing),
        ("check m.mlir --until tensor", is_nothing),
        ("quantize m.onnx --calibration x.npy", is_nothing),
        ("quantize m.onnx --calibration x.npy -o - --weights w.safetensors", is_ir),
        ("quantize m.onnx --calibration x.npy --save-ranges -", is_json),
        ("plan p.csv", is_nothing),
        ("plan p.csv -o -", is_csv),
        ("plan p.csv --map -", is_svg),
        ("plan p.csv -o p.plan.csv --map p.svg", is_nothing),
        ("plan p.csv --compare first-fit-by-size", is_table),
        ("plan a.mlir", is_table),
        ("plan a.mlir --compare first-fit-by-size", is_table),
        ("plan a.mlir --scope spad -o -", is_csv),
        ("plan a.mlir --scope spad --map -", is_svg),
        ("plan a.mlir -o problems", is_nothing),
        ("simulate a.mlir", is_table),
        *((f"simulate a.mlir --{kind} f", is_nothing) for kind in ("csv", "json", "trace", "svg")),
        ("simulate a.mlir --csv -", is_csv),
        ("simulate a.mlir --json -", is_json),
        ("simulate a.mlir --trace - --csv f", is_json),
        ("simulate a.mlir --svg -", is_svg),
    ],
)
def test_stdout_has_what_was_asked_for(penstock: Command, files: Path, words: str, expected: object) -> None:
    assert callable(expected)
    done = penstock(*words.split(), "-q")
    assert (done.status, done.err) == (0, "")
    assert expected(done.out), done.out
    assert not (files / "-").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("import m.onnx -o m.onnx", "-o and the model would be one file: m.onnx"),
        ("import m.onnx -o ./m.mlir --weights m.mlir", "--weights and -o would be one file: m.mlir"),
        ("compile m.onnx --emit=graph -o ./m.onnx", "-o and the model would be one file: m.onnx"),
        ("compile m.onnx --emit=graph -o - --report -", "--report and -o would be one file: -"),
        ("compile m.onnx -o -", "--emit=plan is a file to be mapped, which stdout cannot be"),
        ("quantize m.onnx --calibration x.npy -o r --save-ranges r", "--save-ranges and -o would be one file: r"),
        ("plan p.csv -o - --map -", "--map and -o would be one file: -"),
        ("plan p.csv --map p.csv", "--map and the problem would be one file: p.csv"),
        ("simulate a.mlir --csv f --svg ./f", "--svg and --csv would be one file: ./f"),
        ("simulate a.mlir --map spad=a.mlir", "--map spad and the model would be one file: a.mlir"),
        ("simulate a.mlir --map spad=s --trace s --map spad=t", '--map is given twice for "spad"'),
        ("report m.onnx --compare a.mlir -o a.mlir", "-o and the model would be one file: a.mlir"),
        ("compile m.mlir --emit=plan -o m.mlir", "-o and the model would be one file: m.mlir"),
    ],
)
def test_two_outputs_are_two_files(penstock: Command, files: Path, words: str, message: str) -> None:
    before = {path: path.read_bytes() for path in files.iterdir()}
    done = penstock(*words.split(), "-q")
    assert (done.status, done.out, done.err) == (2, "", f"error: {message}\n")
    assert {path: path.read_bytes() for path in files.iterdir()} == before


def test_a_table_is_not_mixed_with_a_plan_on_stdout(penstock: Command, files: Path) -> None:
    done = penstock("plan", "p.csv", "--compare", "first-fit-by-size", "-o", "-")
    assert done.status == 0
    assert is_csv(done.out)
    assert is_table(done.err)
