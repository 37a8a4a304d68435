# SPDX-License-Identifier: Apache-2.0
"""
The one way in which Penstock writes files: whole or not at all, and in the place that the name leads to.

- Links are followed. `/dev/stdout` and `/dev/fd/N` are the open files of this process.
- A regular file is replaced by a rename, so that a reader sees the old contents or the new ones. It keeps its mode,
  its owner and its group. A file that the user must not write is refused, as the shell refuses it.
- What is no regular file, such as a FIFO or a device, is written to as it is. So is a regular file that cannot be
  replaced: its folder is read-only, or its owner cannot be kept.
- Data is collected in a temporary file that only the user may read, in the folder of the file where that can be
  written. It is removed on failure, and where SIGTERM or SIGHUP ends the process.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.dialects import alignment
from penstock.dialects.diagnostics import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREFIX = ".penstock-"
"""What the names of temporary files and folders begin with."""

_OWN_FILES = re.compile(r"/proc/(?P<process>\d+)(/task/\d+)?/fd|/dev/fd")
_MOST_LINKS = 40
"""As Linux has it."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What ends a process without an exception, unlike SIGINT."""
_NOT_HERE = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Why no file can be made in a folder, though one in it might be written."""
_NOT_BY_RENAME = (*_NOT_HERE, errno.EXDEV, errno.EBUSY)

_temporary: dict[Path, int] = {}
"""What is removed when this process ends, with the process that made it: a fork does not own it."""


def write_whole(path: str | Path, data: bytes | str) -> None:
    """Write `data`, text as UTF-8, to the file at `path`; raises UserError if it cannot, and changes nothing then."""
    with whole_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def whole_file(path: str | Path) -> Generator[IO[bytes]]:
    """
    A file to write to, whose contents become those of `path` at the end; after an exception `path` is unchanged.

    Raises UserError, placed at `path`, if it cannot be written. BrokenPipeError passes: no error for a shell.
    """
    with _as_user_error(str(path)):
        place = follow(path)
        require_writable(place)
        with _temporary_file(place) as name:
            with open(name, "wb") as file:
                yield file
            put(name, place)


def check_writable(path: str | Path) -> None:
    """Raise UserError, placed at `path`, if a file could not be written there: to be asked before long work."""
    with _as_user_error(str(path)):
        require_writable(follow(path))


def is_special(path: str | Path) -> bool:
    """Whether `path` leads to what is there and is no regular file, such as a FIFO, a terminal or a device."""
    with _as_user_error(str(path)):
        place = follow(path)
        return isinstance(place, int) or ((info := _stat(place)) is not None and not stat.S_ISREG(info.st_mode))


@contextmanager
def _as_user_error(place: str) -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"cannot write the file: {error.strerror or error}", loc=place) from None


def follow(path: str | Path) -> Path | int:
    """Where `path` leads: a path without links, or the number of an open file of this process. Raises OSError."""
    current = Path(os.getcwd(), path)
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(current.parent)
        here = Path(folder, current.name)
        if (found := _OWN_FILES.fullmatch(folder)) is not None:
            if found["process"] in (None, str(os.getpid())) and current.name.isdecimal():
                return int(current.name)
            return here
        if not here.is_symlink():
            return here
        current = Path(folder, os.readlink(here))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def require_writable(place: Path | int) -> None:
    """Raise OSError for a folder, for a file that this user must not write, and for one in a missing folder."""
    if isinstance(place, int):
        os.fstat(place)
        return
    info = _stat(place)
    if info is None:
        if not place.parent.is_dir():
            code = errno.ENOTDIR if place.parent.exists() else errno.ENOENT
            raise OSError(code, f"the folder {place.parent}: {os.strerror(code)}")
        if not _allowed(place.parent, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, f"the folder {place.parent}: {os.strerror(errno.EACCES)}")
    elif stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    elif not _allowed(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def put(new: Path, place: Path | int) -> None:
    """Make the contents of the file `new` those of `place`, which is free of links; `new` may be gone afterwards."""
    if isinstance(place, int):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with open(os.dup(place), "wb") as dest:
            _copy(new, dest)
        return
    info = _stat(place)
    if (info is None or (stat.S_ISREG(info.st_mode) and not place.is_symlink())) and _replaced(new, place, info):
        return
    # Not O_CREAT and not O_TRUNC: it is there, and the old contents are lost only when the new ones fit.
    with open(os.open(place, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb") as dest:
        if info is not None and stat.S_ISREG(info.st_mode):
            _reserve(dest.fileno(), info.st_size, new.stat().st_size)
        _copy(new, dest)
        if info is not None and stat.S_ISREG(info.st_mode):
            dest.truncate()


def _replaced(new: Path, place: Path, info: os.stat_result | None) -> bool:
    """Rename `new` to `place` in the mode and with the owner of the file there; whether the system allows that."""
    try:
        if info is None:
            new.chmod(0o666 & ~_umask())
        elif not _allowed(place.parent, os.W_OK | os.X_OK):
            return False
        else:
            mine = new.stat()
            if (mine.st_uid, mine.st_gid) != (info.st_uid, info.st_gid):
                os.chown(new, info.st_uid, info.st_gid)
            new.chmod(stat.S_IMODE(info.st_mode))
        os.replace(new, place)
    except OSError as error:
        if info is None or error.errno not in _NOT_BY_RENAME:
            raise
        return False
    return True


def _reserve(handle: int, old: int, size: int) -> None:
    if size > old and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError:
            os.ftruncate(handle, old)
            raise


def _copy(source: Path, dest: IO[bytes]) -> None:
    with open(source, "rb") as file:
        shutil.copyfileobj(file, dest, 1 << 20)
    dest.flush()


def _stat(place: Path) -> os.stat_result | None:
    try:
        return os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _allowed(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _umask() -> int:
    # It can only be read by setting it: to what is safe for the files that other threads make meanwhile.
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


# temporary files and folders


@contextmanager
def _temporary_file(place: Path | int) -> Generator[Path]:
    """A new file in the folder of `place`; elsewhere if `place` is no file to replace, or its folder is read-only."""

    def make(folder: Path | None) -> Path:
        handle, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
        os.close(handle)
        return Path(name)

    beside = isinstance(place, Path) and ((info := _stat(place)) is None or stat.S_ISREG(info.st_mode))
    with _temporary_in(place.parent if beside and isinstance(place, Path) else None, make) as name:
        yield name


@contextmanager
def temporary_folder(folder: Path | None = None, prefix: str = PREFIX) -> Generator[Path]:
    """A new folder that only the user may enter, in `folder` where that can be written; removed at the end."""
    with _temporary_in(folder, lambda parent: Path(tempfile.mkdtemp(prefix=prefix, dir=parent))) as name:
        yield name


@contextmanager
def _temporary_in(folder: Path | None, make: Callable[[Path | None], Path]) -> Generator[Path]:
    caught = _catch_ending()
    name: Path | None = None
    try:
        with uninterrupted():
            try:
                name = make(folder)
            except OSError as error:
                if folder is None or error.errno not in _NOT_HERE:
                    raise
                name = make(None)
            _temporary[name] = os.getpid()
        yield name
    finally:
        if name is not None and name in _temporary:
            remove(name)
            _temporary.pop(name, None)
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def keep(temporary: Path) -> None:
    """Do not remove a temporary file or folder after all."""
    _temporary.pop(temporary, None)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there and the system allows it."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def uninterrupted() -> Generator[None]:
    """Signals that end the process wait until a few system calls that belong together are done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, *_ENDING))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _catch_ending() -> list[signal.Signals]:
    """Handle the signals that would end the process at once; those that a program handles itself stay its own."""
    caught: list[signal.Signals] = []
    for number in _ENDING:
        try:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)
                caught.append(number)
        except ValueError:  # not the main thread
            return caught
    return caught


def _end(number: int, _: object) -> None:
    for path, process in tuple(_temporary.items()):
        if process == os.getpid():
            remove(path)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def release(array: NDArray[Any]) -> None:
    """
    Give the memory of an array back to the system if it is that of a mapped file, from which it is read again when
    it is needed. Other arrays stay as they are.
    """
    base = _mapping_of(array)
    if base is not None and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


def owned(array: NDArray[Any]) -> NDArray[Any]:
    """An array that does not change with a file: a copy of one that is mapped, else itself."""
    if _mapping_of(array) is None:
        return array
    copied = alignment.copied(array)
    release(array)
    return copied


def _mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The mapped file that the memory of an array is, if it is one."""
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base
