# SPDX-License-Identifier: Apache-2.0
"""Programs for the real machine, on the model that comes with them, and their instructions executed a second time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from in_c import needs_compiler

from penstock.runtime.gemmini import Counts, read_log, replay


def run_on_model(folder: Path, *, lazy: bool = False, logged: bool = True) -> None:
    """Build a folder for Gemmini against its model and run it: it must pass. `logged` writes the file `log` there."""
    needs_compiler()
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    subprocess.run(["make", "-s", "model"], cwd=folder, check=True)
    environment = {**os.environ, "GEMMINI_LAZY": str(int(lazy))}
    if logged:
        environment["GEMMINI_LOG"] = "log"
    ran = subprocess.run(["./model"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "PASS\n", "")


def run_twice(folder: Path, *, orders: int = 1) -> Counts:
    """
    On the model, whose instructions are executed at the fences; and by the executor of its log, in order and in
    `orders` others that the hardware permits.
    """
    run_on_model(folder, lazy=True)
    log = read_log(folder / "log")
    counts = replay(log)
    for seed in range(orders):
        assert replay(log, seed=seed) == counts
    return counts
