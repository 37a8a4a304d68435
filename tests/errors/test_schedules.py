# SPDX-License-Identifier: Apache-2.0
"""
Schedules, and parts named by hand, with a fault: one file, one misuse.

A file of `schedules` begins with the command that is given it as `%s`, and with the lines that it has to say; where
one ends in `...`, more may follow.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

HERE = Path(__file__).parent / "schedules"
FILES = sorted(HERE.glob("*.mlir"))
COMMAND, SAID = "// $ ", "// "


def reported(stderr: str) -> list[str]:
    """The lines of a report, without the excerpts of the file."""
    return [line for line in stderr.splitlines() if line.startswith("note: ") or " error: " in line]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_misuse_is_refused_at_its_place(path: Path, penstock: Command, penstock_opt: Command) -> None:
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith(COMMAND)
    count = next(number for number, line in enumerate(lines) if not line.startswith(SAID))
    wanted = [line.removeprefix(SAID) for line in lines[:count]]
    assert wanted, "the file says no message, so it tests nothing"
    shutil.copytree(HERE / "programs", "programs")
    shutil.copy(path, path.name)
    name, *words = shlex.split(first.removeprefix(COMMAND).replace("%s", path.name))
    given = {"penstock": penstock, "penstock-opt": penstock_opt}[name](*words, "-o", "out")
    said = reported(given.err)
    assert len(said) == len(wanted), given.err
    for found, line in zip(said, wanted, strict=True):
        assert found == line or (line.endswith("...") and found.startswith(line[:-3]))
    assert (given.status, given.out) == (1, "")
    assert not Path("out").exists()
