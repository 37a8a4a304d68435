# SPDX-License-Identifier: Apache-2.0
"""
The tests find bugs: each mutant of mutants.txt fails one of the quick tests that are named with it.

A mutant whose text is no longer in its file is stale. The quick suite says so; anchor it anew, or plant another bug of
the same kind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mutant_table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
FOUND = (
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.INTERRUPTED,
    *(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)),
)
"""A test fails, a file of tests cannot even be imported, or C that is wrong ends the process."""


def test_there_are_mutants_of_every_kind_of_code() -> None:
    assert len(set(MUTANTS)) >= 40
    folders = {"/".join(mutant.file.split("/")[:2]) for mutant in MUTANTS}
    assert {
        "passes/analysis",
        "passes/planning",
        "passes/graph",
        "passes/tensor",
        "passes/loop",
        "passes/accel",
    } <= folders
    assert sum(mutant.file.startswith("lowering/") for mutant in MUTANTS) >= 10


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_a_change_of_one_place_that_compiles(mutant: Mutant) -> None:
    compile(mutant.changed((ROOT / mutant.file).read_text(encoding="utf-8")), mutant.file, "exec")
    assert all((ROOT / test.split("::")[0]).exists() for test in mutant.tests)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=[str(mutant) for mutant in MUTANTS])
def test_a_mutant_is_found(number: int) -> None:
    words = ["-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "plant", "-m", "not slow"]
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *words, *MUTANTS[number].tests],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_MUTANT": str(number), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in FOUND, done.stdout + done.stderr
