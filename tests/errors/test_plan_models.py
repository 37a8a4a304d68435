# SPDX-License-Identifier: Apache-2.0
"""What `penstock plan` says of several programs that cannot share a memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a.onnx", "b.onnx"), "several programs are planned only in one memory\nnote: --share time"),
        (("a.csv", "b.onnx", "--share", "time"), "--share is for models and files of IR, which a.csv is not"),
        (("a.onnx", "x/a.onnx", "--share", "time"), '2 models are called "a"\nnote: give them other file names'),
        (("a.onnx", "b.onnx", "--share", "space", "--verify"), "--verify is for one program, and --share for several"),
        (("a.onnx", "b.onnx", "--share", "space", "--map", "m.svg"), "--map is for one program"),
    ],
)
def test_what_makes_no_sense_is_refused(penstock: Command, words: tuple[str, ...], message: str) -> None:
    found = penstock("plan", *words)
    assert (found.status, found.out) == (2, "")
    assert f"error: {message}" in found.err


def test_models_that_do_not_fit_side_by_side_are_told_what_they_take_in_turn(penstock: Command) -> None:
    for name in ("a.onnx", "b.onnx"):
        shutil.copy(DIGITS, name)
    words = ("a.onnx", "b.onnx", "--machine", "gemmini-fp32", "--set", "scope.acc.size=2048")
    assert penstock("plan", *words, "--share", "time").status == 0
    found = penstock("plan", *words, "--share", "space", "-o", "plans")
    assert found.status == 1
    assert "side by side the models take 4,096 of 2,048 bytes of acc" in found.err
    assert "one after the other, --share time, they take 2,048 bytes" in found.err
    assert not Path("plans").exists()
