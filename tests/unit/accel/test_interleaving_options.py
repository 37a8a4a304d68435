# SPDX-License-Identifier: Apache-2.0
"""`--interleaving` of `penstock run` and `penstock check`, and an engine's interleaving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.runtime.compiler import load_input
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import Order
from penstock.runtime.pass_manager import read_pipeline
from penstock.tools.lockstep import lockstep
from penstock.tools.main import run

KERNEL = """
func.func @main(%x: memref<4x16xi8> {graph.name = "x"}, %y: memref<4x16xi8> {graph.output = "y"}) {
  func.call @k(%x, %y) : (memref<4x16xi8>, memref<4x16xi8>) -> ()
  func.return
}
func.func private @k(%x: memref<4x16xi8>, %y: memref<4x16xi8>) attributes {device = @gemmini} {
  %a = mem.buffer at 0 : memref<4x16xi8, "spad">
  %t = accel.dma %x to %a on "mvin" : memref<4x16xi8> to memref<4x16xi8, "spad">
  %u = accel.dma %a to %y on "mvout" AFTER : memref<4x16xi8, "spad"> to memref<4x16xi8>
  accel.barrier
  func.return
}
"""


def write(folder: Path, after: str) -> str:
    """The path of a program with its machine, and beside it an input."""
    from penstock.tools.opt import run as opt

    (folder / "k.mlir").write_text(KERNEL.replace("AFTER", after))
    path = str(folder / "accel.mlir")
    assert opt([str(folder / "k.mlir"), "--machine", "gemmini", "-o", path]) == 0
    np.save(folder / "x.npy", np.arange(64, dtype=np.int8).reshape(4, 16))
    return path


@pytest.mark.parametrize("interleaving", ["program", "asap", "alap", "11"])
def test_run_takes_the_order_of_commands(tmp_path: Path, interleaving: str) -> None:
    path = write(tmp_path, "after (%t)")
    words = [
        "run",
        path,
        "--input",
        str(tmp_path / "x.npy"),
        "--output-dir",
        str(tmp_path),
        "--interleaving",
        interleaving,
    ]
    assert run(words) == 0
    assert np.array_equal(np.load(tmp_path / "output_0.npy"), np.arange(64, dtype=np.int8).reshape(4, 16))


@pytest.mark.parametrize("interleaving", ["asap", "alap", "11"])
def test_run_refuses_a_race(tmp_path: Path, interleaving: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "")
    words = ["run", path, "--input", str(tmp_path / "x.npy"), "--output-dir", str(tmp_path), "--no-verify"]
    assert run(words) == 0
    assert "accel.mlir: warning: neither its memory plan nor its hazards are verified" in capsys.readouterr().err
    assert run([*words, "--interleaving", interleaving]) == 1
    assert "no happens-before between the two" in capsys.readouterr().err


def test_an_unknown_order_is_a_fault_of_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "after (%t)")
    assert run(["run", path, "--input", str(tmp_path / "x.npy"), "--interleaving", "asp"]) == 2
    assert run(["check", path, "-p", "cse", "--interleaving", "asap,later"]) == 2
    errors = capsys.readouterr().err
    assert 'there is no interleaving "asp"' in errors
    assert 'there is no interleaving "later"' in errors


def test_compiled_code_has_no_interleaving(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "after (%t)")
    words = ["run", path, "--level", "c", "--input", str(tmp_path / "x.npy"), "--output-dir", str(tmp_path)]
    assert run([*words, "--interleaving", "asap"]) == 2
    assert "--interleaving is for the interpreter: add --level accel" in capsys.readouterr().err


def test_check_runs_every_step_in_all_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", write(tmp_path, "after (%t)"), "-p", "cse,dce", "--interleaving", "program,asap,alap,3"]) == 0
    assert run(["check", write(tmp_path, ""), "-p", "cse,dce"]) == 1
    assert "no happens-before between the two" in capsys.readouterr().err


def test_lockstep_compares_the_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_otherwise(*args: object, interleaving: Order = "program", **options: object) -> list[NDArray[np.int8]]:
        return [np.full((4, 16), interleaving == "alap", np.int8)]

    program = load_input(write(tmp_path, "after (%t)"))
    monkeypatch.setattr("penstock.tools.lockstep.run_module", run_otherwise)
    with pytest.raises(UserError, match='the interleavings "program" and "alap" give different outputs'):
        lockstep(program.module, program.ctx, read_pipeline("cse"), interleavings=("program", "alap"))


def test_an_engine_has_an_interleaving(tmp_path: Path) -> None:
    program = load_input(write(tmp_path, ""))
    with pytest.raises(UserError, match="no happens-before between the two"):
        Engine(program.module, program.ctx, backend="interpreter")
    engine = Engine(program.module, program.ctx, backend="interpreter", verify=False)
    x = np.arange(64, dtype=np.int8).reshape(4, 16)
    assert np.array_equal(engine(x)[0], x)
    engine.interleaving = "asap"
    with pytest.raises(UserError, match="no happens-before between the two"):
        engine(x)
