# SPDX-License-Identifier: Apache-2.0
"""Machine files with a fault: one file, one misuse. A file begins with the faults that it must be told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.lowering.machine_names import shipped_machines

if TYPE_CHECKING:
    from tests.conftest import Command

HERE = Path(__file__).parent / "machines"
FILES = sorted(HERE.glob("*.toml"))
_HEADER = re.compile(r"# (?:(?P<place>\d+:\d+): (?P<message>.*)|note: (?P<note>.*))")


def expected(path: Path) -> list[str]:
    """The lines of a report that the comments at the top of a file ask for."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if (match := _HEADER.fullmatch(line)) is None:
            break
        if match["note"] is not None:
            lines.append(f"note: {match['note']}")
        else:
            lines.append(f"{path}:{match['place']}: error: {match['message']}")
    return lines


def reported(stderr: str) -> list[str]:
    """The lines of a report, without the excerpts of the file."""
    return [line for line in stderr.splitlines() if line.startswith("note: ") or ": error: " in line]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_fault_of_the_file_is_reported_at_its_place(path: Path, penstock: Command) -> None:
    wanted = expected(path)
    assert wanted, "the file says no fault, so it tests nothing"
    finished = penstock("machines", "validate", path)
    assert finished.status == 1
    assert reported(finished.err) == wanted
    assert finished.out == ""


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_showing_the_file_stops_at_its_first_fault(path: Path, penstock: Command) -> None:
    finished = penstock("machines", "show", path)
    assert finished.status == 1
    assert finished.err.splitlines()[0] == expected(path)[0]
    assert "Traceback" not in finished.err
    assert finished.out == ""


def test_a_fault_is_shown_with_its_line_and_a_caret_under_it(penstock: Command) -> None:
    path = HERE / "behaviour_names_an_unknown_operand.toml"
    finished = penstock("machines", "validate", path)
    _, line, caret, note = finished.err.splitlines()
    assert line == 'behaviour = "c[m,n] += a[m,k] * d[k,n]"'
    assert line[caret.index("^")] == "d"
    assert note == "note: the operands are a, b, c"


def test_showing_a_file_with_several_faults_says_how_to_see_the_others(penstock: Command) -> None:
    finished = penstock("machines", "show", HERE / "several_faults.toml")
    assert finished.err.splitlines()[-1] == "note: the file has 4 more faults: penstock machines validate FILE"


def test_one_faulty_file_among_several_does_not_hide_the_others(penstock: Command, repository: Path) -> None:
    good = repository / "machines" / "host.toml"
    bad = HERE / "unknown_bus.toml"
    finished = penstock("machines", "validate", "absent.toml", bad, good)
    assert finished.status == 1
    assert finished.out == f"{good}: valid\n"
    lines = reported(finished.err)
    assert lines[0] == "absent.toml: error: cannot read the file: No such file or directory"
    assert lines[1:] == expected(bad)


@pytest.mark.parametrize(("name", "nearest"), [("gemini-fp32", "gemmini-fp32"), ("nativ", "native")])
def test_an_unknown_machine_is_an_error_that_names_the_nearest(penstock: Command, name: str, nearest: str) -> None:
    finished = penstock("machines", "show", name)
    assert finished.status == 1
    assert finished.err.splitlines() == [
        f'error: unknown machine "{name}"',
        f'note: did you mean "{nearest}"?',
        f"note: the machines are {', '.join(shipped_machines())}, and native; a path must end in .toml",
    ]


def test_a_file_that_is_no_text_is_an_error(penstock: Command, tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    finished = penstock("machines", "validate", path)
    assert finished.status == 1
    assert finished.err == f"{path}: error: the file is not UTF-8 text\n"


def test_a_missing_argument_is_a_usage_error(penstock: Command) -> None:
    assert penstock("machines").status == 2
    assert penstock("machines", "validate").status == 2
