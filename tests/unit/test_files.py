# SPDX-License-Identifier: Apache-2.0
"""Writing files: for each kind of file what is kept, what is refused, and that nothing else is left behind."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import check_writable, is_special, temporary_folder, whole_file, write_whole

IS_ROOT = os.geteuid() == 0
SOMEBODY = 65_534
"""A user who is not root."""
needs_root = pytest.mark.skipif(not IS_ROOT, reason="needs root")


def listing(folder: Path) -> dict[str, str]:
    """What is in a folder: the contents of regular files, the kind of all else."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text()
        else:
            found[name] = stat.filemode(path.stat().st_mode)[0]
    return found


@contextmanager
def as_user(user: int) -> Generator[None]:
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def shared_folder() -> Generator[Path]:
    """A folder that other users reach, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


# kinds of files


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "text ü")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert listing(tmp_path) == {"new": "text ü"}


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666, 0o755])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    write_whole(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert listing(tmp_path) == {"file": "new"}


def test_while_it_is_written_only_the_user_may_read_the_data(tmp_path: Path) -> None:
    with whole_file(tmp_path / "file") as file:
        file.write(b"secret")
        (temporary,) = tmp_path.iterdir()
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600


@needs_root
def test_a_file_keeps_its_owner_and_its_group(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    os.chown(path, SOMEBODY, 12)
    write_whole(path, b"new")
    info = path.stat()
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (SOMEBODY, 12, 0o640)


@needs_root
def test_a_file_whose_owner_cannot_be_kept_by_a_rename_is_written_in_place(shared_folder: Path) -> None:
    path = shared_folder / "file"
    path.write_text("old and longer")
    path.chmod(0o666)
    with as_user(SOMEBODY):
        write_whole(path, b"new")
    info = path.stat()
    assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (0, 0o666)
    assert listing(shared_folder) == {"file": "new"}


@needs_root
def test_a_file_that_may_be_written_in_a_folder_that_may_not_is_written_in_place(shared_folder: Path) -> None:
    path = shared_folder / "file"
    path.write_text("old")
    os.chown(path, SOMEBODY, SOMEBODY)
    shared_folder.chmod(0o755)
    with as_user(SOMEBODY):
        write_whole(path, b"new")
        with pytest.raises(UserError, match="Permission denied"):
            write_whole(shared_folder / "other", b"new")
    assert listing(shared_folder) == {"file": "new"}


@needs_root
def test_a_read_only_file_is_refused_as_the_shell_refuses_it(shared_folder: Path) -> None:
    path = shared_folder / "file"
    path.write_text("old")
    path.chmod(0o444)
    os.chown(path, SOMEBODY, SOMEBODY)
    with as_user(SOMEBODY), pytest.raises(UserError, match="cannot write the file: Permission denied") as refusal:
        write_whole(path, b"new")
    assert refusal.value.loc == str(path)
    assert listing(shared_folder) == {"file": "old"}


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("old")
    (tmp_path / "middle").symlink_to("target/file")
    (tmp_path / "link").symlink_to(tmp_path / "middle")
    write_whole(tmp_path / "link", b"new")
    found = listing(tmp_path)
    assert found["target/file"] == "new"
    assert found["middle"] == "link to target/file"
    assert found["link"] == f"link to {tmp_path / 'middle'}"
    assert len(found) == 4


def test_the_target_of_a_dangling_link_is_made(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "way").symlink_to("folder")
    (tmp_path / "link").symlink_to("way/../new")
    write_whole(tmp_path / "link", b"new")
    assert listing(tmp_path) == {"folder": "d", "way": "link to folder", "link": "link to way/../new", "new": "new"}


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UserError, match="symbolic links"):
        write_whole(tmp_path / "a", b"new")
    assert listing(tmp_path) == {"a": "link to b", "b": "link to a"}


def test_a_fifo_is_written_to_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_whole(path, b"data" * 100_000)
    reader.join()
    assert read == [b"data" * 100_000]
    assert listing(tmp_path) == {"fifo": "p"}
    assert is_special(path)


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A device of the test's own that swallows what is written: what /dev/null is."""
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_bytes(b"")
    except PermissionError:
        pytest.skip("devices cannot be made here")
    return path


@pytest.mark.parametrize("by_link", [False, True])
def test_a_device_is_written_to_and_stays(device: Path, by_link: bool) -> None:
    name = device
    if by_link:
        name = device.with_name("link")
        name.symlink_to(device)
    before = os.lstat(device)
    write_whole(name, b"data")
    assert os.lstat(device).st_rdev == before.st_rdev
    assert os.lstat(device).st_mode == before.st_mode
    assert set(listing(device.parent)) <= {"null", "link"}
    assert is_special(name)


def test_a_full_device_is_an_error(device: Path) -> None:
    full = device.with_name("full")
    os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    with pytest.raises(UserError, match="cannot write the file: No space left on device"):
        write_whole(full, b"data")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / ".", tmp_path / ".."):
        with pytest.raises(UserError, match="Is a directory"):
            write_whole(path, b"new")
    assert listing(tmp_path) == {}


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(UserError, match=r"the folder .*/no: No such file or directory"):
        write_whole(tmp_path / "no" / "file", b"new")
    with pytest.raises(UserError, match=r"the folder .*/file: Not a directory"):
        write_whole(tmp_path / "file" / "file", b"new")
    assert listing(tmp_path) == {"file": "old"}


def test_a_long_name_is_written(tmp_path: Path) -> None:
    write_whole(tmp_path / ("n" * 255), b"new")
    with pytest.raises(UserError, match="File name too long"):
        write_whole(tmp_path / ("n" * 256), b"new")
    assert len(listing(tmp_path)) == 1


def test_another_name_of_a_file_keeps_the_old_contents(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    os.link(tmp_path / "file", tmp_path / "backup")
    write_whole(tmp_path / "file", b"new")
    assert listing(tmp_path) == {"backup": "old", "file": "new"}


_SCRIPT = "import sys; from penstock.dialects.files import write_whole; print('before')"


def run_script(text: str, **settings: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{_SCRIPT}\n{text}"]
    return subprocess.run(command, capture_output="stdout" not in settings, text=True, check=False, **settings)  # type: ignore


def test_a_link_to_an_open_file_of_the_process_is_that_file(tmp_path: Path) -> None:
    """What /dev/stdout is; the test has a link of its own, since a fault would replace that of the machine."""
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    if not (tmp_path / "stdout").exists():
        pytest.skip("the system has no /proc")
    name = str(tmp_path / "stdout")
    text = f"write_whole({name!r}, 'one '); write_whole('/proc/self/fd/1', 'two '); print('after')"
    assert run_script(text).stdout == "before\none two after\n"
    path = tmp_path / "log"
    path.write_text("kept ")
    with path.open("a") as file:
        assert run_script(text, stdout=file).returncode == 0
    assert listing(tmp_path) == {"log": "kept before\none two after\n", "stdout": "link to /proc/self/fd/1"}


def test_a_number_of_no_open_file_is_refused() -> None:
    with pytest.raises(UserError, match=r"Bad file descriptor"):
        write_whole("/proc/self/fd/4000", b"")


# failures


def fail(path: Path, error: type[BaseException]) -> None:
    with whole_file(path) as file:
        file.write(b"half")
        raise error


def test_what_fails_on_the_way_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for before in ({}, {"file": "old"}):
        for name, text in before.items():
            (tmp_path / name).write_text(text)
        for error in (ValueError, KeyboardInterrupt, SystemExit):
            with pytest.raises(error):
                fail(path, error)
        assert listing(tmp_path) == before


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    """A limit on the size of files is how a disk is full without being it."""
    path = tmp_path / "file"
    path.write_text("old")
    text = f"""
import resource, signal
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    write_whole({str(path)!r}, bytes(1 << 20))
except Exception as error:
    print(error)
"""
    assert "cannot write the file: File too large" in run_script(text).stdout
    assert listing(tmp_path) == {"file": "old"}


@needs_root
def test_a_file_that_is_written_in_place_stays_where_there_is_no_room(shared_folder: Path) -> None:
    path = shared_folder / "file"
    path.write_text("old")
    path.chmod(0o666)
    shared_folder.chmod(0o755)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with as_user(SOMEBODY), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(UserError, match="No space left"):
            write_whole(path, bytes(1 << 16))
    assert listing(shared_folder) == {"file": "old"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    # What starts the suite may ignore signals, and children inherit that.
    handler = "signal.default_int_handler" if number == signal.SIGINT else "signal.SIG_DFL"
    text = f"""
import os, signal, time
from pathlib import Path
from penstock.dialects.files import temporary_folder, whole_file
signal.signal({int(number)}, {handler})
with whole_file({str(path)!r}) as file, temporary_folder(Path({str(tmp_path)!r})) as folder:
    (folder / "part").write_text("half")
    file.write(b"half")
    print("ready", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 3
        process.send_signal(number)
        assert process.wait(30) == -number
    assert listing(tmp_path) == {"file": "old"}


def test_handlers_of_signals_are_those_of_the_program_afterwards(tmp_path: Path) -> None:
    def own(*_: object) -> None: ...

    before, ending = signal.signal(signal.SIGHUP, own), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with whole_file(tmp_path / "file"), temporary_folder(tmp_path):
            assert signal.getsignal(signal.SIGHUP) is own
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is own
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGTERM, ending)


def test_a_thread_writes_files(tmp_path: Path) -> None:
    thread = threading.Thread(target=write_whole, args=(tmp_path / "file", b"new"))
    thread.start()
    thread.join()
    assert listing(tmp_path) == {"file": "new"}


def test_a_reader_that_has_the_old_file_open_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with path.open("rb") as reader:
        write_whole(path, b"new and longer")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new and longer"


def test_what_cannot_be_written_is_known_before_long_work(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "file"):
        with pytest.raises(UserError, match="cannot write the file"):
            check_writable(path)
    check_writable(tmp_path / "file")
    assert listing(tmp_path) == {}
