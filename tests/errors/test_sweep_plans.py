# SPDX-License-Identifier: Apache-2.0
"""Plans of sweeps, and flags, that make no sense: each message has its place, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

HEAD = 'inputs = ["layer.mlir"]\nmachines = ["gemmini-fp32"]\n'

PLANS = {
    "an unknown key": (f'{HEAD}planer = ["exact"]', "3:1", 'unknown key "planer"', 'did you mean "planner"?'),
    "no TOML": (f"{HEAD}planner = [", "3:12", "not TOML", None),
    "no inputs": ("planner = []", "1:1", "the plan has no inputs", 'inputs = ["model.onnx"]'),
    "an input that is not there": (
        'inputs = ["layr.mlir"]',
        "1:11",
        'no file "layr.mlir"',
        'did you mean "layer.mlir"?',
    ),
    "an unknown machine": (
        'inputs = "layer.mlir"\nmachines = "gemini"',
        "2:12",
        'unknown machine "gemini"',
        '"gemmini"?',
    ),
    "an unknown planner": (f'{HEAD}planner = ["exact",\n  "exat"]', "4:3", 'no planner is called "exat"', '"exact"?'),
    "an unknown tiler": (f'{HEAD}tiler = ["largst"]', "3:10", 'no tiler is called "largst"', '"largest"?'),
    "an unknown strategy": (f'{HEAD}on-chip = ["gredy"]', "3:12", 'strategy is called "gredy"', '"greedy"?'),
    "a depth of nothing": (
        f"{HEAD}depth = [1, 0]",
        "3:13",
        "or a number of slots from 1, not 0",
        None,
    ),
    "an unknown pass": (f'{HEAD}passes = ["mem-promot"]', "3:11", 'no pass "mem-promot"', '"mem-promote"?'),
    "an edit of nothing": (f'{HEAD}[edits.a]\nb = "-tlie"', "4:5", 'no pass "tlie"', 'did you mean "tile"?'),
    "an option that there is not": (f'{HEAD}[edits.a]\nb = "tile{{sze=1}}"', "4:5", 'no option "sze"', '"sizes"?'),
    "a number that there is not": (f"{HEAD}[set]\nscope.spda.size = 1", "4:1", 'no scope "spda"', '"spad"?'),
    "a key that there is not": (f"{HEAD}[set]\nscope.spad.sze = 1", "4:1", 'unknown key "sze"', '"size"?'),
    "a number that does not fit": (f"{HEAD}[set]\nscope.spad.size = [64, 7]", "4:24", "not a multiple", "gemmini-fp32"),
    "numbers of no machine": ('inputs = "layer.mlir"\n[set]\nscope.spad.size = 64', "3:1", "there is no machine", None),
    "a schedule that is not there": (f'{HEAD}schedule = ["s.mlir"]', "3:13", 'there is no file "s.mlir"', None),
    "a value twice": (f'{HEAD}planner = ["exact", "exact"]', "3:21", '"exact" is there twice', None),
    "no values": (f"{HEAD}planner = []", "3:1", '"planner" has no values', None),
    "a table for a list": (f"{HEAD}[planner]\na = 1", "3:1", 'a value of "planner" must be', None),
    "a list for a table": (f"{HEAD}set = [1]", "3:7", '"set" must be a table', None),
    "a size of nothing": (f'{HEAD}[dims]\nN = "1"', "4:5", "the size of N must be an integer from 1", None),
    "two columns of a name": (f'{HEAD}planner = "exact"\n[edits.planner]\na = ""', "1:1", 'called "planner"', None),
}

FLAGS = {
    "an unknown planner": ("--planner exact,exat", "--planner:1:7: error: no planner", 'did you mean "exact"?'),
    "an unknown machine": ("--machines gemini", '--machines:1:1: error: unknown machine "gemini"', '"gemmini"?'),
    "a number without values": ("--set scope.spad.size", "--set:1:16: error: there are no values", "=32K,64K"),
    "a value that does not fit": ("--set scope.spad.size=64,7", "--set:1:20: error: size 7 is not", "gemmini-fp32"),
    "a table of no kind": ("-o table.xls", "a table ends in .csv, .parquet, .md, .tex", None),
    "one file twice": ("-o a.csv -o ./a.csv", "would be one file", None),
    "no process": ("--jobs 0", "at least one process", None),
    "a store in no folder": ("--store no/x.sqlite", "no/x.sqlite: error: the store of results cannot be used", None),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("layer.mlir").write_text(
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  func.return %x : tensor<4xf32>\n}\n"
    )


@pytest.mark.parametrize("misuse", PLANS)
def test_a_plan_is_refused_at_its_place(misuse: str, penstock: Command) -> None:
    text, place, message, note = PLANS[misuse]
    Path("plan.toml").write_text(text)
    done = penstock("sweep", "plan.toml")
    assert (done.status, done.out) == (1, "")
    first, *notes = done.err.splitlines()
    assert first.startswith(f"plan.toml:{place}: error: "), done.err
    assert message in first
    assert note is None or any(note in line for line in notes if line.startswith("note: ")), done.err
    assert not Path("plan.sqlite").exists()


@pytest.mark.parametrize("misuse", FLAGS)
def test_flags_are_refused_at_their_place(misuse: str, penstock: Command) -> None:
    words, message, note = FLAGS[misuse]
    machine = [] if "--machines" in words else ["--machines", "gemmini-fp32"]
    done = penstock("sweep", "layer.mlir", *machine, *words.split())
    assert done.status in (1, 2)
    assert message in done.err
    assert note is None or note in done.err


def test_a_plan_that_cannot_be_read_is_refused(penstock: Command) -> None:
    done = penstock("sweep", "plan.toml")
    assert (done.status, done.err) == (1, "plan.toml: error: cannot read the plan: No such file or directory\n")
    done = penstock("sweep", "layr.mlir")
    assert (done.status, done.err) == (1, 'error: there is no file "layr.mlir"\nnote: did you mean "layer.mlir"?\n')
