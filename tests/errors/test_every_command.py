# SPDX-License-Identifier: Apache-2.0
"""Every command with files that it cannot read or write and values that make no sense: refused, and no crash."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from tests.conftest import Command

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
DEVICE = "--machine gemmini-fp32"

READERS = {
    "onnx": ["import {}", "compile {} -o o", "run {}", "check {}", "quantize {} --calibration x.npy", "plan {}"],
    "mlir": [
        "import {}",
        "compile {} -o o",
        "run {}",
        "check {}",
        f"simulate {{}} {DEVICE}",
        "plan {}",
        "opt {}",
        f"test-tiler largest {{}} {DEVICE}",
    ],
    "csv": ["plan {}"],
    "npy": ["run m.mlir --input {}", "check m.mlir --input {}", "quantize m.onnx --calibration {} -o o.mlir"],
    "npz": ["run m.mlir --input {}", "quantize m.onnx --calibration {} -o o.mlir"],
    "pb": ["run m.mlir --input x={}"],
    "json": ["quantize m.onnx --ranges {} -o o.mlir"],
    "toml": ["compile m.mlir --machine {}", "machines show {}", "machines validate {}", "opt m.mlir --machine {}"],
}
WRITERS = [
    "import m.onnx -o {}",
    "import m.onnx -o o.mlir --weights {}",
    "compile m.onnx --emit=graph -o {}",
    "compile m.onnx --emit=graph -o o.mlir --report {}",
    "quantize m.onnx --calibration x.npy -o o.mlir --save-ranges {}",
    "opt m.mlir -o {}",
    "plan p.csv -o {}",
    "plan p.csv --map {}",
]
VALUES = ["-1", "nan", "1e999", "9" * 25, "1" * 5000, "é", "N=", "\u0663", "a b", "{", "cse{a=1}", "cse,,"]
EDITS = [
    "default, {",
    'default, tile{"',
    "default, -",
    "default, +",
    "default, = a",
    "default, a#9=",
    "default, \u0663=cse",
]
SETTINGS = [
    "=",
    "a=",
    "scope=1",
    "scope.spad.size=\u0663",
    "scope.spad.size=[{",
    "dma.mvin.latency=inf",
    "scope.spad.x=é",
]
_MACHINE = ("--set", "--set scope.spad.size=1 --set")
OPTIONS = [
    *(
        f"plan p.csv {option}"
        for option in ("--capacity", "--planner", "--compare", "--time-limit", "--steps", "--seed")
    ),
    *(f"check m.mlir {option}" for option in ("--dim", "--seed", "--interleaving", "--until", "-p")),
    *(f"opt m.mlir {option}" for option in ("-p", "--print-ir-after", "--help-pass")),
    *(f"test-planner first-fit-by-size {option}" for option in ("--problems", "--steps", "--seed")),
    *(f"test-tiler largest {option}" for option in ("--random", "--seed", "--machine", "m.mlir --dim")),
    *(
        f"{command} --machine gemmini-fp32 {option}"
        for command in ("compile m.mlir -o o", "opt m.mlir")
        for option in _MACHINE
    ),
    *(f"compile m.mlir -o o {option}" for option in ("-p", "--schedule", "--knob")),
    "machines show vta-pynq --set",
    "run m.mlir --level",
    "simulate m.mlir --window",
    "simulate m.mlir --machine gemmini-fp32 --map",
    "quantize m.onnx --calibration x.npy -o o.mlir --method percentile --percentile",
]


@pytest.fixture
def call(penstock: Command, penstock_opt: Command, tmp_path: Path) -> Callable[[list[str]], tuple[int, str]]:
    """A command in a folder with one good file of each kind and many bad ones: status and stderr."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(model)
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    np.savez(tmp_path / "whole.npz", a=WEIGHT)
    (tmp_path / "p.csv").write_text("id,lower,upper,size\na,0,3,4\nb,2,6,4\n")
    assert penstock("import", "m.onnx", "-q").status == 0
    whole = {"onnx": model, "npy": (tmp_path / "x.npy").read_bytes(), "npz": (tmp_path / "whole.npz").read_bytes()}
    for kind in READERS:
        (tmp_path / f"empty.{kind}").touch()
        (tmp_path / f"noise.{kind}").write_bytes(bytes(range(256)) * 4)
        (tmp_path / f"text.{kind}").write_text('hello {world} "of = [text\n' * 9)
        (tmp_path / f"deep.{kind}").write_text("[" * 100_000 if kind == "json" else "builtin.module {" * 1000)
        (tmp_path / f"folder.{kind}").mkdir()
        (tmp_path / f"loop.{kind}").symlink_to(f"loop.{kind}")
        data = whole.get(kind, b"")
        (tmp_path / f"half.{kind}").write_bytes(data[: len(data) // 2])

    def run(words: list[str]) -> tuple[int, str]:
        name, *rest = words
        done = penstock_opt(*rest) if name == "opt" else penstock(*words)
        assert "Traceback" not in done.err, (words, done.err)
        return done.status, done.err

    return run


@pytest.mark.parametrize("kind", READERS)
def test_what_cannot_be_read_is_named(call: Callable[[list[str]], tuple[int, str]], kind: str) -> None:
    bad = [
        f"{name}.{kind}" for name in ("noise", "text", "deep", "folder", "loop", "half", "missing", "no/x", "x" * 300)
    ]
    for name in [*bad, f"empty.{kind}", f"m.onnx/x.{kind}"]:
        for words in READERS[kind]:
            status, err = call(words.format(name).split())
            # An empty text is an empty module for some commands, and a name of no file that of a machine.
            assert status == 1 or (status in (0, 2, 3) and name.startswith(("empty", "half"))), (words, name, err)
            assert status == 0 or err.rstrip()
            assert name[:200] in err or status != 1 or kind == "npz", (words, name, err)


@pytest.mark.parametrize("name", ["folder.mlir", "no/o", "m.onnx/o", "loop.mlir", "x" * 300])
def test_what_cannot_be_written_is_named(
    call: Callable[[list[str]], tuple[int, str]], tmp_path: Path, name: str
) -> None:
    for words in WRITERS:
        status, err = call(words.format(name).split())
        assert status == 1, (words, err)
        assert f"{name}: error: " in err
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("option", OPTIONS)
def test_values_that_make_no_sense_are_refused(call: Callable[[list[str]], tuple[int, str]], option: str) -> None:
    more = SETTINGS if option.endswith("--set") else EDITS if option.endswith("-p") else []
    for value in [*VALUES, *more]:
        if option.endswith("--seed") and value == "9" * 25:
            continue
        status, err = call([*option.split(), value])
        assert status in (0, 1, 2), (option, value, err)
        assert status == 0 or "error" in err


# streams


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [
        ("- <&-", 1, "<stdin>"),
        ("m.mlir >&-", 1, "<stdout>: error: Bad file descriptor"),
        ("m.mlir >/dev/full", 1, "<stdout>: error: No space left on device"),
        ("missing.mlir 2>&-", 1, None),
        ("m.mlir -o o.mlir <&- >&- 2>&-", 0, None),
    ],
)
def test_streams_may_be_closed_or_full(
    script: Callable[[str], str], tmp_path: Path, redirection: str, status: int, message: str | None
) -> None:
    if "/dev/full" in redirection and not os.path.exists("/dev/full"):
        pytest.skip("the system has no full device")
    (tmp_path / "m.mlir").write_text("func.func @f() { func.return }\n")
    line = f"{script('penstock-opt')} {redirection}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stdout == ""
    if message is not None:
        assert done.stderr.startswith(message)
    else:
        assert done.stderr == ""
    if "-o" in redirection:
        assert (tmp_path / "o.mlir").read_text().startswith("builtin.module {\n")
