# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled code: faulty entries are built anew, folders of others refused, old entries removed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sampling import examples

from penstock.dialects.diagnostics import UserError
from penstock.passes import code_cache as caches
from penstock.passes import toolchain
from penstock.passes.toolchain import Compiler, build_library, load

SOURCES = {"answer.c": "int answer(void);\nint answer(void) { return 42; }\n"}


@pytest.fixture(scope="module")
def compiled() -> Generator[bytes]:
    """A library with one function, compiled once for all tests."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", folder)
        try:
            yield build_library("answer", SOURCES).read_bytes()
        except UserError:
            pytest.skip("no C compiler")


@pytest.fixture
def compilations(compiled: bytes) -> Generator[list[str]]:
    """The compiler stands for itself: what it is called with is noted, and what it makes was made before."""
    calls: list[str] = []

    def compile(compiler: Compiler, files: list[str], workplace: Path, options: Sequence[str]) -> None:
        calls.extend(files)
        (workplace / "program.so").write_bytes(compiled)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "_compile", compile)
        yield calls


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


def build() -> Path:
    return build_library("answer", SOURCES)


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# faulty entries


def truncated(entry: Path, number: int) -> None:
    os.truncate(entry, number % entry.stat().st_size)


def flipped(entry: Path, number: int) -> None:
    data = bytearray(entry.read_bytes())
    data[number % len(data)] ^= 1 << number % 8
    entry.write_bytes(data)


def extended(entry: Path, number: int) -> None:
    entry.write_bytes(entry.read_bytes() + bytes(number % 5 + 1))


def deleted(entry: Path, number: int) -> None:
    entry.unlink()


def a_folder(entry: Path, number: int) -> None:
    entry.unlink()
    entry.mkdir()
    if number % 2:
        (entry / "file").write_text("")


def a_link(entry: Path, number: int) -> None:
    elsewhere = entry.with_name("elsewhere")
    entry.rename(elsewhere)
    entry.symlink_to([elsewhere, "no such file", entry][number % 2])


def a_fifo(entry: Path, number: int) -> None:
    entry.unlink()
    os.mkfifo(entry)


def renamed(entry: Path, number: int) -> None:
    entry.rename(entry.with_name(entry.name[:-4] + "0.so" if entry.name[-4] != "0" else entry.name[:-4] + "1.so"))


FAULTS: list[Callable[[Path, int], None]] = [truncated, flipped, extended, deleted, a_folder, a_link, a_fifo, renamed]


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 1 << 20)), min_size=1, max_size=4))
def test_a_faulty_entry_is_built_anew(
    compilations: list[str], compiled: bytes, faults: list[tuple[Callable[[Path, int], None], int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", folder)
        entry = build()
        for fault, number in faults:
            fault(entry, number)
            before = len(compilations)
            entry = build()
            assert entry.read_bytes() == compiled
            assert not entry.is_symlink()
            assert len(compilations) == before + 1, fault.__name__
            assert build() == entry
            assert len(compilations) == before + 1, "a sound entry is used"


def test_a_library_that_was_truncated_is_loaded_after_it_was_built_anew(cache: Path, compiled: bytes) -> None:
    os.truncate(build(), 5000)
    assert load(build()).answer() == 42


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"noise")
    with pytest.raises(UserError, match="compiled code cannot be loaded") as refusal:
        load(tmp_path / "x.so")
    assert refusal.value.loc == str(tmp_path / "x.so")


# folders


def test_the_cache_is_made_for_the_user_alone(cache: Path, compilations: list[str]) -> None:
    before = os.umask(0)
    try:
        entry = build()
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write_is_refused(cache: Path, compilations: list[str], mode: int) -> None:
    build()
    cache.chmod(mode)
    with pytest.raises(UserError, match="others may write to the cache of compiled code") as refusal:
        build()
    assert refusal.value.notes == (f"chmod go-w {cache}",)
    cache.chmod(0o755)
    build()
    assert len(compilations) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_of_another_user_is_refused(cache: Path, compilations: list[str]) -> None:
    cache.mkdir(mode=0o700)
    os.chown(cache, 65_534, 65_534)
    with pytest.raises(UserError, match="others may write to the cache"):
        build()


def test_where_the_cache_cannot_be_written_a_folder_of_the_process_serves(
    tmp_path: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "cache"
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    first = build()
    assert build() == first
    assert len(compilations) == 1
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    warning = capsys.readouterr().err
    assert warning.count("warning: ") == 1
    assert f"{folder} cannot be written (Not a directory)" in warning
    assert "PENSTOCK_CACHE" in warning


def test_the_folder_of_the_process_goes_with_it(tmp_path: Path, compiled: bytes) -> None:
    (tmp_path / "file").write_text("")
    text = f"from penstock.passes.toolchain import build_library; print(build_library('answer', {SOURCES!r}))"
    environment = {**os.environ, "PENSTOCK_CACHE": str(tmp_path / "file" / "x"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path))
    assert entries(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_cache_of_root_that_is_only_read_is_used(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
        entry = build()
        folder.chmod(0o755)
        entry.chmod(0o644)
        os.seteuid(65_534)
        try:
            assert build() == entry
        finally:
            os.seteuid(0)
        assert len(compilations) == 1
    finally:
        shutil.rmtree(folder)


# growth


def entry_of(cache: Path, letter: str, size: int, idle_seconds: float) -> Path:
    path = cache / f"lib-{letter * 40}-{letter * 40}.so"
    path.write_bytes(bytes(size))
    last_use = time.time() - idle_seconds
    os.utime(path, (last_use, last_use))
    return path


def test_entries_go_by_age_and_by_size_and_other_files_stay(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MAX_TOTAL_BYTES", 250)
    cache.mkdir()
    entry_of(cache, "a", 1, caches.MAX_IDLE_SECONDS + 60)
    old, newer, newest = (entry_of(cache, letter, 100, 10_000 - 1000 * n) for n, letter in enumerate("bcd"))
    earlier = cache / f"lib-{'e' * 40}.so"
    earlier.write_bytes(b"")
    os.utime(earlier, (0, 0))
    (cache / "notes.txt").write_text("")
    os.utime(cache / "notes.txt", (0, 0))
    (cache / ".penstock-left").mkdir()
    (cache / ".penstock-left" / "main.c").write_text("")
    (cache / ".penstock-now").mkdir()
    os.utime(cache / ".penstock-left", (0, 0))
    caches.prune(cache)
    assert not old.exists()
    assert entries(cache) == sorted([newer.name, newest.name, "notes.txt", ".penstock-now"])


def test_what_may_be_in_use_is_not_removed_for_its_size(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MAX_TOTAL_BYTES", 0)
    cache.mkdir()
    kept = entry_of(cache, "a", 100, 60)
    caches.prune(cache)
    assert kept.exists()


def test_use_makes_an_entry_young_again(cache: Path, compilations: list[str]) -> None:
    entry = build()
    os.utime(entry, (0, 0))
    assert build() == entry
    caches.prune(cache)
    assert entry.exists()


def test_processes_share_a_cache_that_is_corrupted_meanwhile(cache: Path, compiled: bytes) -> None:
    text = """
import random, sys
from penstock.passes.toolchain import build_library, load
draw = random.Random(int(sys.argv[1]))
for number in range(4):
    entry = build_library("answer", {"answer.c": "int answer(void);int answer(void){return %d;}" % (number % 2)})
    assert load(entry).answer() == number % 2
    if draw.random() < 0.3:
        entry.unlink(missing_ok=True)
"""
    command = [sys.executable, "-c", text]
    running = [subprocess.Popen([*command, str(seed)], stderr=subprocess.PIPE, text=True) for seed in range(2)]
    for process in running:
        _, err = process.communicate(timeout=120)
        # An entry that another process takes away between its check and its use is an error with a place.
        assert process.returncode == 0 or "compiled code cannot be loaded" in err
    assert all(name.startswith("answer-") for name in entries(cache)), "no build is left behind"


@pytest.mark.parametrize("first", ["remove", "_touch"])
def test_what_is_found_is_not_removed_before_it_is_loaded(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    # One is about to remove what was not used for long, or to use it, and meanwhile another is about to do the other.
    entry = build()
    os.utime(entry, (0, 0))
    halves = {"remove": caches.remove, "_touch": caches._touch}  # pyright: ignore[reportPrivateUsage]
    actions: dict[str, Callable[[], object]] = {"remove": lambda: caches.prune(cache), "_touch": build}
    second = "_touch" if first == "remove" else "remove"
    reached, pending = threading.Event(), list[Future[object]]()

    def begin(path: Path) -> None:
        if not pending:
            pending.append(pool.submit(actions[second]))
            assert not reached.wait(0.1), "the other waits for the lock"
        halves[first](path)

    def follow(path: Path) -> None:
        reached.set()
        halves[second](path)

    monkeypatch.setattr(caches, first, begin)
    monkeypatch.setattr(caches, second, follow)
    with ThreadPoolExecutor(1) as pool:
        actions[first]()
        pending[0].result()
    assert entry.exists()
