# SPDX-License-Identifier: Apache-2.0
"""`make hunt`: its order is that of its seed, and each failure is a line that reruns it alone."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests import hunt
from tests.known_faults import KNOWN_FAULTS

from penstock.tools.fuzz.corrupt import KINDS
from penstock.tools.fuzz_command import LEVELS

if TYPE_CHECKING:
    from tests.conftest import Command

IDS = [f"tests/test_{file}.py::test_it[{number}]" for file in "abc" for number in range(14)]

FILES = {
    "pytest.ini": "[pytest]",
    "conftest.py": """\
from hypothesis import settings

settings.register_profile("exhaustive", database=None, print_blob=True)

def pytest_configure(config):
    config.addinivalue_line("markers", "slow: left to a hunt")
""",
    "test_toy.py": """\
import pytest
from hypothesis import given, strategies

@given(strategies.integers())
def test_drawn(number):
    assert number < 1000, f"drew {number}"

@pytest.mark.slow
@pytest.mark.parametrize("text", ["it's $HOME [1]", "right"])
def test_text(text):
    assert text == "right"

def test_quick():
    raise AssertionError("a hunt does not run it")
""",
}
BREAKS = """\
import os, sys

for each in sys.argv[1:]:
    if "::" in each:
        if "breaks" in each:
            os._exit(7)
        print(each, "PASSED")
"""
"""In place of pytest: what some tests do to their process."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tests of its own."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(hunt, "PYTEST", (sys.executable, "-m", "pytest"))
    return tmp_path


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hunt.Hunt:
    """A hunt on two cores, until it is stopped."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return hunt.Hunt(tmp_path, tmp_path / "build", math.inf)


def test_a_seed_has_one_order() -> None:
    first, again, other = (list(islice(hunt.plan(lambda: IDS, seed, Path("out")), 60)) for seed in (1, 1, 2))
    assert first == again
    tests = [[piece.ids for piece in plan if isinstance(piece, hunt.Tests)] for plan in (first, other)]
    assert tests[0] != tests[1]
    inputs = [{piece.words for piece in plan if isinstance(piece, hunt.Fuzz)} for plan in (first, other)]
    assert not inputs[0] & inputs[1]


def test_tests_come_once_and_in_turn_with_inputs_of_all_levels() -> None:
    pieces = list(islice(hunt.plan(lambda: IDS, 1, Path("out")), 100))
    tests = [piece for piece in pieces if isinstance(piece, hunt.Tests)]
    assert sorted(each for piece in tests for each in piece.ids) == sorted(IDS)
    assert tests == pieces[1 : 2 * len(tests) : 2]
    files = [tuple({each.partition("::")[0] for each in piece.ids}) for piece in tests]
    each_once = [(f"tests/test_{file}.py",) for file in "abc"]
    assert sorted(files[:3]) == sorted(files[3:6]) == each_once
    inputs = [piece for piece in pieces if isinstance(piece, hunt.Fuzz)]
    assert sorted(piece.level for piece in inputs[: len(LEVELS)]) == sorted(LEVELS)
    seeds = [(piece.level, piece.first + at) for piece in inputs for at in range(piece.count)]
    assert len(set(seeds)) == len(seeds)


def test_each_failure_is_a_line_that_reruns_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = hunt.hunt(root, 1, minutes=60, levels=())
    lines = capsys.readouterr().out.splitlines()
    assert status == 1
    text, drawn = sorted(line for line in lines if "--hypothesis-seed=1" in line)
    said = re.fullmatch(r".* test_toy.py::test_drawn .*  # AssertionError: drew 1000; see (.*)", drawn)
    assert said is not None
    assert "test_drawn(" in Path(said[1]).read_text()
    assert re.fullmatch(r"seed 1: ran 3 tests, \d+ examples, 0 inputs in \d+ CPU seconds, 2 failures", lines[-1])
    again = subprocess.run(["sh", "-c", text], cwd=root, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert re.search(r"^FAILED test_toy.py::test_text\[it's \$HOME \[1\]\]", again.stdout, re.MULTILINE)
    assert "1 failed in" in again.stdout


def test_what_breaks_its_process_is_found_by_itself(
    search: hunt.Hunt, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hunt, "PYTEST", (sys.executable, "-S", "-c", BREAKS))
    search.run(iter([hunt.Tests(("test_a.py::test_is", "test_a.py::test_breaks", "test_a.py::test_too"), 1)]))
    assert list(search.found.failures) == [shlex.join(hunt.Tests(("test_a.py::test_breaks",), 1).words)]
    assert search.found.counts["tests"] == 2
    assert "# ended with status 7; see " in capsys.readouterr().out


def test_tests_that_cannot_be_collected_are_a_failure(search: hunt.Hunt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "PYTEST", (sys.executable, "-S", "-c", "exit(2)"))
    pieces = hunt.plan(lambda: search.ids, 1, Path("out"), levels=())
    search.run(pieces)
    assert list(search.found.failures) == [shlex.join(hunt.Collection().words)]


def test_in_no_time_nothing_is_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hunt.hunt(root, 1, minutes=0) == 0
    assert re.search(r"^seed 1: ran nothing in \d+ CPU seconds, 0 failures$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_runs_at_the_end_is_stopped_and_is_no_failure(
    search: hunt.Hunt, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    monkeypatch.setattr(hunt, "PYTEST", (sys.executable, "-S", "-c", "import time; time.sleep(100_000)"))
    piece = hunt.Tests(("test_a.py::test_is",), 1)

    def pieces() -> Iterator[hunt.Piece]:
        yield piece
        if interrupted:
            raise KeyboardInterrupt
        search.until = 0

    search.run(pieces())
    assert capsys.readouterr().out == f"stopped, which is no failure: {shlex.join(piece.words)}\n"
    assert search.found == hunt.Found()


def test_what_was_said_before_the_end_counts() -> None:
    piece = hunt.Tests(tuple(IDS[:3]), 1)
    found = piece.found(f"{IDS[0]} PASSED [ 33%]\n{IDS[1]} FAILED [ 66%]\n{IDS[2]} ")
    assert found == hunt.Found({shlex.join(hunt.Tests((IDS[1],), 1).words): "failed"}, Counter(tests=2))


def test_a_failure_of_fuzz_is_a_line_that_reruns_it(
    penstock: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def crash(*_: object) -> None:
        raise IndexError("planted")

    monkeypatch.setattr("penstock.tools.plan_command.execute", crash)
    number = list(KINDS).index("problem")
    piece = hunt.Fuzz("corrupt", number - 1, 2, tmp_path / "wrong")
    finished = penstock(*piece.words[1:])
    found = piece.found(finished.err + finished.out)
    assert found.counts["inputs"] == 2
    ((line, message),) = found.failures.items()
    assert message.startswith("problem file saved as ")
    assert line == shlex.join(hunt.Fuzz("corrupt", number, 1, tmp_path / "wrong").words)


def not_collected(root: Path, ids: Iterable[str]) -> str:
    """What pytest says if one of the ids is not that of a test."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *ids]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def test_every_known_fault_is_a_test_and_has_a_reason(repository: Path) -> None:
    assert all(reason.strip() for reason in KNOWN_FAULTS.values())
    if KNOWN_FAULTS:
        assert not not_collected(repository, KNOWN_FAULTS)


def test_a_known_fault_that_is_no_test_is_said_to_be_none(root: Path) -> None:
    said = not_collected(root, ["test_toy.py::test_drawn", "test_toy.py::test_text[left]"])
    assert re.search(r"^ERROR: not found: .*::test_text", said, re.MULTILINE)


MARKED = """\
import pytest
from tests.known_faults import KNOWN_FAULTS

KNOWN_FAULTS["test_toy.py::test_text"] = KNOWN_FAULTS["test_toy.py::test_quick"] = "It is planted."
pytest.main(["-p", "tests.conftest", "-p", "no:cacheprovider", "-v", "-k", "text or quick"])
"""


def test_known_faults_are_expected_to_fail_and_fail_when_they_pass(root: Path, repository: Path) -> None:
    path = os.pathsep.join(map(str, (repository, repository / "tests" / "support")))
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", MARKED], cwd=root, env=env, capture_output=True, text=True, check=False
    )
    outcomes = dict(re.findall(r"^test_toy.py::(\S+).* (XFAIL|FAILED) ", done.stdout, re.MULTILINE))
    assert outcomes == {"test_text[it's": "XFAIL", "test_text[right]": "FAILED", "test_quick": "XFAIL"}, done.stdout
    assert f"known faults: {2 + len(KNOWN_FAULTS)}" in done.stdout
