"""Programs for the real machine, on the model that comes with them, and their instructions executed a second time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from in_c import needs_compiler

from penstock.runtime.gemmini import Counts, Log, read_log, replay


def run_on_model(folder: Path, *, lazy: bool = False) -> Log:
    """Build a folder for Gemmini against its model and run it: it must pass. Returns what the model has logged."""
    needs_compiler()
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    subprocess.run(["make", "-s", "model"], cwd=folder, check=True)
    log = folder / "log"
    environment = {**os.environ, "GEMMINI_LOG": str(log), "GEMMINI_LAZY": str(int(lazy))}
    ran = subprocess.run(["./model"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "PASS\n", "")
    return read_log(log)


def run_twice(folder: Path, *, orders: int = 1) -> Counts:
    """
    On the model, whose instructions are executed at the fences; and by the executor of its log, in order and in
    `orders` others that the hardware permits.
    """
    log = run_on_model(folder, lazy=True)
    counts = replay(log)
    for seed in range(orders):
        assert replay(log, seed=seed) == counts
    return counts
