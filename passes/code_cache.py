# SPDX-License-Identifier: Apache-2.0
"""
The cache: of compiled code, and in a folder inside of what sweeps have computed.

It has one file for each entry, whose name says what it was made from and what it must hold, `NAME-KEY-CHECKSUM.so`:
KEY is a digest of the sources and the compiler, CHECKSUM one of the file itself, so that an entry that is truncated or
changed is found before it is loaded, which would end the process. Entries come by a rename, are never changed, and are
removed under a lock, so that several processes use one cache. Code is loaded from the folder: it must be one that no
other user may write.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import PREFIX, put, remove, temporary_folder

MAX_IDLE_SECONDS = 30 * 24 * 3600
"""For which an entry is kept after its last use."""
MAX_TOTAL_BYTES = 256 << 20
"""Of all entries together; those whose last use is longest ago go first."""
IN_USE_SECONDS = 3600
"""After its last use an entry may be about to be loaded by another process, so it is not removed for its size."""

DIGITS = 40
"""Of a digest."""
_ENTRY = re.compile(rf".+-[0-9a-f]{{{DIGITS}}}(-[0-9a-f]{{{DIGITS}}})?\.(so|step|state|safetensors)")
"""With one digest: an entry of an earlier version."""
_LEFT_SECONDS = 24 * 3600
"""After which a folder of a build that was killed, or of one that the compiler refused, is removed."""


def cache_directory() -> Path:
    """`$PENSTOCK_CACHE`, else the folder `penstock` in the user's cache."""
    if named := os.environ.get("PENSTOCK_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock"


@contextmanager
def cache_in(folder: Path) -> Generator[None]:
    """Keep what is compiled in a folder of its own: what is compiled once would fill the user's cache."""
    before = os.environ.get("PENSTOCK_CACHE")
    os.environ["PENSTOCK_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PENSTOCK_CACHE"]
        else:
            os.environ["PENSTOCK_CACHE"] = before


def key_of(content: str) -> str:
    """The digest of what an entry is made from."""
    return hashlib.sha256(content.encode()).hexdigest()[:DIGITS]


def open_cache(part: str = "", what: str = "compiled code") -> Path:
    """
    The folder of the cache, or of a part of it for `what`, made if need be.

    Raises UserError if others than the user and root may write to it. Where it cannot be made, a folder that lasts as
    long as the process takes its place, with one warning.
    """
    directory = cache_directory() / part
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = directory.stat()
    except OSError as error:
        return private_folder(directory, error.strerror, what)
    writable = stat.S_IMODE(info.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if writable or info.st_uid not in (os.geteuid(), 0):
        raise UserError(
            f"others may write to the cache of {what}, so nothing is loaded from it",
            loc=str(directory),
            notes=[f"chmod go-w {directory}" if writable else "PENSTOCK_CACHE names another folder"],
        )
    return directory


@cache
def private_folder(directory: Path, reason: str, what: str = "compiled code") -> Path:
    """A folder of this process alone, for want of `directory`, with a warning."""
    print(
        f"warning: the cache of {what} {directory} cannot be written ({reason}), so what is computed lasts as long as"
        " the process; PENSTOCK_CACHE names another folder",
        file=sys.stderr,
    )
    stack = ExitStack()
    folder = stack.enter_context(temporary_folder())
    process = os.getpid()
    # A fork that ends must not take the folder with it.
    atexit.register(lambda: stack.close() if os.getpid() == process else None)
    return folder


def find(directory: Path, name: str, key: str, suffix: str = ".so") -> Path | None:
    """The entry for `key`, if there is one that holds what it must; faulty ones are removed."""
    faulty: list[Path] = []
    with _lock(directory, fcntl.LOCK_SH):
        for entry in sorted(directory.glob(f"{name}-{key}-*{suffix}")):
            if _is_sound(name, key, entry):
                _touch(entry)
                return entry
            faulty.append(entry)
    if faulty:
        with _lock(directory, fcntl.LOCK_EX):
            for entry in faulty:
                # It may have been built anew meanwhile.
                if not _is_sound(name, key, entry):
                    remove(entry)
    return None


@contextmanager
def _lock(directory: Path, kind: int) -> Generator[None]:
    """
    Entries are removed under the exclusive lock of their folder, and found and touched under the shared one: what one
    process has found to be there, and is about to load, no other takes for what was not used for long.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # Some network file systems have no locks; then two processes can, seldom, be in each other's way.
        with suppress(OSError):
            fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def _is_sound(name: str, key: str, entry: Path) -> bool:
    return entry.is_file() and not entry.is_symlink() and entry.name == _entry_name(name, key, entry, entry.suffix)


def add(directory: Path, name: str, key: str, file: Path, suffix: str = ".so", *, pruning: bool = True) -> Path:
    """Move a file that was made in `directory` to its entry, and prune the cache, unless that is done seldomer."""
    entry = directory / _entry_name(name, key, file, suffix)
    if entry.is_symlink() or entry.is_dir():
        remove(entry)
    put(file, entry)
    entry.chmod(0o600)
    if pruning:
        prune(directory)
    return entry


def _entry_name(name: str, key: str, path: Path, suffix: str) -> str:
    """The name that a file has as an entry; another one than it has if it cannot be read."""
    try:
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
    except OSError:
        checksum = ""
    return f"{name}-{key}-{checksum}{suffix}"


def _touch(entry: Path) -> None:
    try:
        os.utime(entry)
    except OSError:
        pass  # a cache that is only read


def prune(directory: Path, most: int | None = None) -> None:
    """
    Remove entries that are old or too much, oldest use first, down to `most` bytes, `MAX_TOTAL_BYTES` by default; files
    that are no entries stay.
    """
    with _lock(directory, fcntl.LOCK_EX):
        _prune(directory, MAX_TOTAL_BYTES if most is None else most)


def _prune(directory: Path, most: int) -> None:
    now = time.time()
    entries: list[tuple[float, int, Path]] = []
    for item in os.scandir(directory):
        try:
            info = item.stat(follow_symlinks=False)
        except OSError:
            continue  # removed by another process
        idle = now - info.st_mtime
        if _ENTRY.fullmatch(item.name):
            if idle > MAX_IDLE_SECONDS:
                remove(Path(item.path))
            else:
                entries.append((idle, info.st_size, Path(item.path)))
        elif item.name.startswith(PREFIX) and idle > _LEFT_SECONDS:
            remove(Path(item.path))
    total = sum(size for _, size, _ in entries)
    for idle, size, path in sorted(entries, reverse=True):
        if total <= most or idle < IN_USE_SECONDS:
            return
        remove(path)
        total -= size
