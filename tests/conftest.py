# SPDX-License-Identifier: Apache-2.0
"""What tests share: the commands run in this process, and settings that make every run the same."""

from __future__ import annotations

import argparse
import gc
import io
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from zlib import crc32

# Before NumPy is imported: the suite runs a process a core, and BLAS threads of one spin against those of another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from sampling import register_profiles
from tests.known_faults import KNOWN_FAULTS

register_profiles()

# What is imported and collected stays, so it is not looked through for garbage on the way.
gc.disable()

REPOSITORY = Path(__file__).parent.parent


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported stays: collection does not look through it again. IR is mostly garbage in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left to `make exhaustive`")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", action="store_true", help="durations are CPU seconds, not those of a clock")
    help = "K/N: of the selected tests, run those whose name's CRC-32 is K modulo N"
    parser.addoption("--share", type=_share, metavar="K/N", help=help)


def _share(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not int(found[1]) < int(found[2]):
        raise argparse.ArgumentTypeError(f"--share takes K/N with K below N, such as 0/8, got {text}")
    return int(found[1]), int(found[2])


def pytest_report_header() -> str:
    return f"known faults: {len(KNOWN_FAULTS)}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        reason = KNOWN_FAULTS.get(item.nodeid) or KNOWN_FAULTS.get(item.nodeid.partition("[")[0])
        if reason is not None:
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))
    share: tuple[int, int] | None = config.getoption("share")
    if share is None:
        return
    number, count = share
    is_in = [crc32(item.nodeid.encode()) % count == number for item in items]
    config.hook.pytest_deselected(items=[item for item, chosen in zip(items, is_in, strict=True) if not chosen])
    items[:] = [item for item, chosen in zip(items, is_in, strict=True) if chosen]


_measured_until = pytest.StashKey[float]()


def _cpu_seconds() -> float:
    """Of this process and the children it waited for."""
    return time.process_time() + sum(os.times()[2:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_measured_until] = _cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With `--cpu`, what `--durations` and `--junit-xml` say does not depend on the load of the machine."""
    report = yield
    if item.config.getoption("cpu"):
        now = _cpu_seconds()
        report.duration = now - item.stash[_measured_until]
        item.stash[_measured_until] = now
    return report


@dataclass(frozen=True)
class Finished:
    """A finished command: its exit status and what it wrote."""

    status: int
    out: str
    err: str


class _Stdin(io.TextIOWrapper):
    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode("utf-8")), encoding="utf-8")


class Command(Protocol):
    """A command: words in, what it did out."""

    def __call__(self, *argv: str | Path, stdin: str = "") -> Finished: ...


def run_here(run: Callable[[Sequence[str]], int], argv: Sequence[str], stdin: str = "") -> Finished:
    """Run a command's `run(argv)` in this process, as a shell would: streams captured, exits turned to a status."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.stdin
    sys.stdin = _Stdin(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            try:
                status = run(argv)
            except SystemExit as leaving:
                status = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        sys.stdin = before
    return Finished(status, out.getvalue(), err.getvalue())


def _command(run: Callable[[Sequence[str]], int]) -> Command:
    def call(*argv: str | Path, stdin: str = "") -> Finished:
        return run_here(run, [str(word) for word in argv], stdin)

    return call


@pytest.fixture
def temporary_files(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a command keeps temporary files, and reproducers of its own faults."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def penstock_opt(tmp_path: Path, temporary_files: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`penstock_opt("-p", "cse", stdin=text)` in an empty folder of its own."""
    from penstock.tools import opt

    monkeypatch.chdir(tmp_path)
    return _command(opt.run)


@pytest.fixture
def penstock(tmp_path: Path, temporary_files: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`penstock("run", "model.onnx")` in an empty folder of its own."""
    from penstock.tools import main

    monkeypatch.chdir(tmp_path)
    return _command(main.run)


@pytest.fixture
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture
def script() -> Callable[[str], str]:
    """The path of an installed command, for the few tests that start a real process."""

    def find(name: str) -> str:
        beside = Path(sys.executable).parent / name
        found = str(beside) if beside.exists() else shutil.which(name)
        assert found is not None, f"{name} is not installed"
        return found

    return find
