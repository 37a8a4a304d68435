# SPDX-License-Identifier: Apache-2.0
"""What is no plan, or one that cannot be used here: told at the file, with what helps."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from in_c import needs_compiler

from penstock.runtime.plan import checksum

if TYPE_CHECKING:
    from tests.conftest import Command

AGAIN = "note: make it again: penstock compile MODEL -o FILE\n"
WRITES = "note: penstock compile MODEL -o FILE writes one\n"


@pytest.fixture
def plan(penstock: Command, tmp_path: Path) -> Path:
    needs_compiler()
    Path("m.mlir").write_text(
        "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {\n"
        "%y = graph.relu %x : tensor<8xf32>\nfunc.return %y : tensor<8xf32>\n}"
    )
    np.save("x.npy", np.ones(8, np.float32))
    assert penstock("compile", "m.mlir", "-q").status == 0
    return Path("m.plan")


def other_format(contents: bytearray) -> None:
    contents[8:12] = struct.pack("<I", 2)
    contents[12:16] = bytes(4)
    contents[12:16] = struct.pack("<I", checksum(contents[:4096]))


FAULTS: dict[str, tuple[Callable[[bytearray], None], str]] = {
    "truncated": (lambda b: b.__delitem__(slice(5000, None)), "the plan is truncated: it has 5,000 bytes of "),
    "header truncated": (lambda b: b.__delitem__(slice(4000, None)), "the plan is truncated: it has 4000 bytes\n"),
    "longer": (lambda b: b.extend(b"\n"), "the plan is damaged: it has "),
    "header": (lambda b: b.__setitem__(2000, 1), "the plan is damaged: its header has another checksum\n"),
    "code": (lambda b: b.__setitem__(-5000, b[-5000] ^ 4), "the plan is damaged: its section "),
    "format": (other_format, "the plan has format 2, and this version of Penstock reads 1\n"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_plan_is_refused(penstock: Command, plan: Path, fault: str) -> None:
    contents = bytearray(plan.read_bytes())
    change, message = FAULTS[fault]
    change(contents)
    plan.write_bytes(contents)
    for words in (("run", "m.plan", "--input", "x.npy"), ("check", "m.plan"), ("compile", "m.plan", "--emit=loop")):
        finished = penstock(*words)
        assert finished.status == 1
        assert finished.err.startswith(f"m.plan: error: {message}")
        assert finished.err.endswith(AGAIN)


def test_what_is_no_plan_is_told_so(penstock: Command, tmp_path: Path) -> None:
    Path("text.plan").write_text("func.func @main() { func.return }")
    Path("empty.plan").write_bytes(b"")
    Path("folder.plan").mkdir()
    for name, words in (("text", "not a plan"), ("empty", "not a plan")):
        finished = penstock("run", f"{name}.plan")
        assert (finished.status, finished.err) == (1, f"{name}.plan: error: {words}\n{WRITES}")
    assert penstock("run", "folder.plan").err == "folder.plan: error: a folder, and no plan\n"
    missing = penstock("run", "missing.plan").err
    assert missing == "missing.plan: error: cannot read the plan: No such file or directory\n"


def test_a_plan_that_is_a_folder_is_told_how_to_be_made_anew(penstock: Command, tmp_path: Path) -> None:
    Path("old").mkdir()
    Path("old/plan.json").write_text('{"schema": 1}')
    finished = penstock("run", "old")
    assert (finished.status, finished.err) == (
        1,
        "old: error: a plan of an earlier version, which was a folder\n"
        "note: make a new one of the model: penstock compile MODEL -o FILE\n"
        "note: or of its text: penstock compile old/module.mlir -p '' -o FILE\n",
    )


def test_a_plan_takes_nothing_that_is_for_compiling(penstock: Command, plan: Path) -> None:
    finished = penstock("run", "m.plan", "--machine", "gemmini")
    assert (finished.status, finished.err) == (2, "error: a plan is compiled already: --machine is for compiling\n")
    finished = penstock("compile", "m.plan", "--kernel", "f")
    assert finished.status == 2
    assert finished.err == "m.plan: error: a plan is compiled already, so there are no kernels to give it\n"


def test_without_a_compiler_no_plan_is_written(penstock: Command, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    finished = penstock("compile", "m.mlir", "-o", "n.plan", "-q")
    assert finished.status == 1
    assert 'CC names the C compiler "no-such-compiler"' in finished.err
    assert "--emit=loop" in finished.err
    assert not Path("n.plan").exists()
    assert penstock("run", "m.plan", "--input", "x.npy", "-q").status == 0
