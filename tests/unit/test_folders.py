# SPDX-License-Identifier: Apache-2.0
"""Folders of files: written as a whole or not at all, with files of others in them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import write_whole
from penstock.runtime.folders import write_folder


def listing(folder: Path) -> dict[str, str]:
    """What is in a folder: the contents of files, where links lead, and folders."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        else:
            found[name] = path.read_text() if path.is_file() else "folder"
    return found


def fill_with(**contents: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        for name, text in contents.items():
            write_whole(folder / name, text)

    return fill


NAMES = ("a", "b", "marker", "notes")


@examples(40)
@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES[:3]), st.text("xyz"), min_size=1), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(NAMES), st.text("uvw")),
    st.booleans(),
)
def test_files_of_others_stay_in_a_folder_however_often_it_is_written(
    rounds: list[dict[str, str]], foreign: dict[str, str], fails: bool
) -> None:
    """A model of the folder: what is ours is replaced as a whole, what is not stays, a clash changes nothing."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "out"
        theirs, ours = dict[str, str](), dict[str, str]()
        for number, contents in enumerate(rounds):
            contents = {each: text for each, text in contents.items() if each != "marker"}
            listed = sorted([*contents, "marker"])
            marker = f'{{"penstock": "1", "files": {listed}}}'.replace("'", '"')
            before = {**theirs, **ours}
            clash = bool(theirs) and (not ours or any(each in theirs for each in listed))
            try:
                write_folder(path, "thing", fill_with(**contents, marker=marker), marker="marker")
            except UserError:
                assert clash
                assert listing(path) == before
            else:
                assert not clash
                ours = {**contents, "marker": marker}
            if fails:
                with pytest.raises(ZeroDivisionError):
                    write_folder(path, "thing", lambda folder: write_whole(folder / "a", str(1 // 0)), marker="marker")
            if number == 0:
                theirs = {each: text for each, text in foreign.items() if each not in ours}
                for each, text in theirs.items():
                    (path / each).write_text(text)
            assert listing(path) == {**theirs, **ours}
        assert [each.name for each in Path(name).iterdir()] == ["out"]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    for number, text in enumerate(["", "[]", "{}", '{"schema": 1}', '{"files": ["a"]}']):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "marker").write_text(text)
        with pytest.raises(UserError, match="exists and is no thing, so it is not replaced"):
            write_folder(folder, "thing", fill_with(marker="new"), marker="marker")
        assert listing(folder) == {"marker": text}
    write_whole(tmp_path / "file", "text")
    with pytest.raises(UserError, match="exists and is no thing"):
        write_folder(tmp_path / "file", "thing", fill_with(marker="new"))


def test_names_in_a_marker_that_lead_elsewhere_are_not_followed(tmp_path: Path) -> None:
    write_whole(tmp_path / "precious", "text")
    folder = tmp_path / "folder"
    folder.mkdir()
    write_whole(folder / "marker", '{"penstock": "1", "files": ["../precious", "marker", "/etc/x", "sub", ""]}')
    (folder / "sub").mkdir()
    write_folder(folder, "thing", fill_with(marker="{}"), marker="marker")
    assert listing(tmp_path) == {"precious": "text", "folder": "folder", "folder/marker": "{}", "folder/sub": "folder"}


def test_a_new_folder_is_made_with_those_above_it_and_a_linked_one_is_followed(tmp_path: Path) -> None:
    write_folder(tmp_path / "a" / "b", "thing", fill_with(x="1"))
    (tmp_path / "link").symlink_to("a/b")
    (tmp_path / "dangling").symlink_to("c")
    for name in ("link", "dangling"):
        write_folder(tmp_path / name, "thing", fill_with(x="2", y="3"))
    assert listing(tmp_path) == {
        "a": "folder", "a/b": "folder", "a/b/x": "2", "a/b/y": "3", "c": "folder", "c/x": "2", "c/y": "3",
        "link": "link to a/b", "dangling": "link to c",
    }  # fmt: skip
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o777 & ~umask


def test_a_fault_in_a_folder_names_the_folder_and_not_its_temporary_one(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        write_folder(tmp_path / "out", "thing", lambda folder: write_whole(folder / "no" / "file", ""))
    assert refusal.value.loc == str(tmp_path / "out" / "no" / "file")
    assert listing(tmp_path) == {}
