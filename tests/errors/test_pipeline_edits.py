# SPDX-License-Identifier: Apache-2.0
"""Pipelines and edits of them that make no sense: each message has its place in the text, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

PROGRAM = """func.func @main(%x: tensor<4x4xf32> {graph.name = "x"}) -> (tensor<4x4xf32> {graph.name = "y"}) {
  %y = graph.matmul %x, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}
"""

MISUSES = {
    "an unknown pipeline": ("defualt, -tile", 1, 'there is no pass or pipeline "defualt"', 'did you mean "default"?'),
    "an unknown pass": ("default, -simplfy", 10, '"default" has no pass "simplfy"', 'did you mean "simplify"?'),
    "a pass that it lacks": ("default, bind-dims{names=N}", 10, 'has no pass "bind-dims"', "+bind-dims after PASS"),
    "an unknown option": ("default, mem-plan{planer=x}", 10, 'has no option "planer"', 'did you mean "planner"?'),
    "a value of another type": ("default, mem-plan{seed=}", 24, "Unknown argument value", None),
    "an unknown replacement": ("default, layout=tlie", 17, 'there is no pass "tlie"', 'did you mean "tile"?'),
    "an option of the replacement": ("default, layout=cse{a=1}", 17, '"cse" has no option "a"', "it has no options"),
    "an unknown insertion": ("default, +cs after layout", 11, 'there is no pass "cs"', 'did you mean "cse"?'),
    "an insertion at nothing": ("default, +cse after tiel", 10, '"default" has no pass "tiel"', 'did you mean "tile"?'),
    "an insertion without a place": ("default, +cse", 10, '"+cse" is no edit', "say where: +cse before"),
    "a pass that only stands there": ("default, cse", 10, '"cse" is no edit', "say where: +cse before"),
    "an occurrence too many": ("default, -simplify#3", 10, 'no "simplify#3": the pass occurs 2 times', None),
    "occurrence 0": ("default, -layout#0", 10, 'no "layout#0": the pass occurs once', None),
    "removal with options": ("default, -tile{sizes=4}", 10, '"-tile{sizes=4}" is no edit', "edits are: PASS{"),
    "options that do not end": ("default, layout{layout=a", 25, "Malformed pass arguments", None),
    "no replacement": ("default, tile=", 10, '"tile=" is no edit', "edits are: PASS{"),
    "nothing between commas": ("default, , -layout", 10, '"" is no edit', "edits are: PASS{"),
    "an edit of nothing": ("-layout", 1, "this is an edit", 'comes first: "default, -layout"'),
    "an edit in a whole pipeline": ("cse, tile=cse", 6, "this is an edit", 'comes first: "default, tile=cse"'),
    "the name at the end": ("cse, default", 6, "the name of a pipeline comes first", None),
    "the name twice": ("default, default", 10, '"default" is no edit', "its name comes first, once"),
    "an edit of what was removed": ("default, -layout, layout{a=1}", 19, 'has no pass "layout"', None),
    "a whole pipeline with an unknown pass": ("cse, csee", 6, 'there is no pass "csee"', 'did you mean "cse"?'),
    "a pass of a machine on the host": ("default, -tensorize", 10, '"tensorize" is not in what runs', "--machine NAME"),
}


@pytest.fixture(autouse=True)
def program(tmp_path: Path) -> None:
    (tmp_path / "in.mlir").write_text(PROGRAM)
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32))


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_text_is_refused_at_its_place(misuse: str, penstock: Command) -> None:
    text, column, message, note = MISUSES[misuse]
    done = penstock("compile", "in.mlir", f"-p={text}", "-q")
    assert (done.status, done.out) == (1, "")
    first, excerpt, caret, *notes = done.err.splitlines()
    assert first.startswith(f"pass-pipeline:1:{column}: error: "), first
    assert message in first
    assert (excerpt, caret) == (text, " " * (column - 1) + "^")
    assert note is None or note in notes[0]


@pytest.mark.parametrize("command", ["compile", "run --input x.npy", "check", "simulate", "plan"])
def test_every_command_places_it(command: str, penstock: Command) -> None:
    name, *rest = command.split()
    words = (name, "in.mlir", *rest, "--machine", "gemmini-fp32", "-p", "default, mem-plan{planer=x}")
    done = penstock(*words)
    assert done.status == 1
    assert done.err.startswith('pass-pipeline:1:10: error: the pass "mem-plan" has no option "planer"\n')


def test_what_has_been_done_is_not_edited(penstock: Command) -> None:
    assert penstock("compile", "in.mlir", "--emit=tensor", "-o", "tensor.mlir", "-q").status == 0
    done = penstock("compile", "tensor.mlir", "-p", "default, -fuse-attention")
    assert done.status == 1
    assert 'error: the pass "fuse-attention" is not in what runs of the pipeline "default"' in done.err
    assert "note: the program is at tensor level already, and only the passes that remain from there run" in done.err


def test_what_will_not_be_done_is_not_edited(penstock: Command) -> None:
    done = penstock("compile", "in.mlir", "--emit=tensor", "-p", "default, mem-plan{planner=exact}")
    assert done.status == 1
    assert "note: the pipeline ends at tensor level here" in done.err


@pytest.mark.parametrize(
    ("words", "level"),
    [("compile in.mlir", "loop"), ("compile in.mlir --emit=loop", "loop"), ("run in.mlir --input x.npy", "accel")],
)
def test_passes_that_end_elsewhere_are_refused(words: str, level: str, penstock: Command) -> None:
    done = penstock(*words.split(), "-p", "graph-fuse, graph-to-tensor")
    assert done.status == 2
    assert "in.mlir: error: these passes leave the program at the tensor level" in done.err


def test_a_plan_has_no_passes(penstock: Command) -> None:
    assert penstock("compile", "in.mlir", "-o", "in.plan", "-q").status == 0
    for words in (("-p", "default"), ("--print-pipeline",), ("--set", "scope.spad.size=64K")):
        done = penstock("run", "in.plan", "--input", "x.npy", *words)
        assert done.status == 2
        assert "error: a plan is compiled already: --" in done.err
