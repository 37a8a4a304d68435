# SPDX-License-Identifier: Apache-2.0
"""The rule that files are written in one place, checked on the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Generator
from pathlib import Path

import pytest

ANYWHERE = {"write_text", "write_bytes", "rename", "renames", "symlink_to", "hardlink_to", "touch", "tofile"} | {
    "mkstemp",
    "mkdtemp",
    "NamedTemporaryFile",
    "TemporaryDirectory",
    "TemporaryFile",
    "save_file",
}
OF_MODULES = {
    "os": {"open", "replace", "link", "symlink", "truncate", "mknod", "mkfifo"},
    "np": {"save", "savez", "savez_compressed", "savetxt"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move", "make_archive"},
    "onnx": {"save"},
}
BY_MODE = {"open", "fdopen"}
CANDIDATE = re.compile(rf"\b({'|'.join(sorted(ANYWHERE.union(*OF_MODULES.values()) | BY_MODE))})\(")

THE_WRITERS = {"dialects/files.py", "runtime/folders.py"}
NOT_TO_A_FILE = {
    ("tools/tensors.py", "np.save"),
    ("tools/fuzz/corrupt.py", "np.save"),
    ("tools/skeleton/tests/test_research.py", "source.write_text"),
    ("passes/toolchain.py", "open"),
    ("passes/code_cache.py", "os.open"),
    ("tools/errors.py", "os.open"),
}
"""
Into memory, in a test of a package of its own, a folder to be locked, and /dev/null in the place of a stdout that is
gone.
"""


def _is_for_writing(mode: ast.expr) -> bool:
    match mode:
        case ast.Constant(str(text)):
            return bool(re.fullmatch("[rwaxbt+]*", text) and re.search("[wax+]", text))
        case _:
            return False


def writes(text: str) -> Generator[tuple[int, str]]:
    """The calls that write to the file system, by line and name."""
    for node in ast.walk(ast.parse(text)) if CANDIDATE.search(text) else ():
        match node:
            case ast.Call(func=ast.Name(name)):
                owner = ""
            case ast.Call(func=ast.Attribute(of, name)):
                owner = of.id if isinstance(of, ast.Name) else "?"
            case _:
                continue
        # The mode of `open(path, mode)` comes second, that of `path.open(mode)` first.
        modes = node.args[1:2] if owner in ("", "os", "io") else node.args[:1]
        modes += [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
        if (
            name in ANYWHERE
            or name in OF_MODULES.get(owner, ())
            or (name in BY_MODE and any(map(_is_for_writing, modes)))
            # A path is replaced by one argument, the letters of a string by two.
            or (name == "replace" and owner != "" and len(node.args) == 1 and not node.keywords)
        ):
            yield node.lineno, f"{owner}.{name}".lstrip(".")


def test_files_are_written_in_one_place(repository: Path) -> None:
    found: list[str] = []
    for floor in ("dialects", "passes", "lowering", "runtime", "tools"):
        for path in sorted((repository / floor).rglob("*.py")):
            name = str(path.relative_to(repository))
            for line, call in writes(path.read_text()):
                if name not in THE_WRITERS and (name, call) not in NOT_TO_A_FILE:
                    found.append(f"{name}:{line}: {call}")
    assert found == [], "write by penstock.dialects.files, or penstock.runtime.folders for a folder"


@pytest.mark.parametrize(
    "text",
    [
        *("open('x', 'w')", "open(name, mode='ab')", "path.open('x')", "(folder / name).write_text(text)"),
        *("np.save(path, array)", "array.tofile(path)", "save_file(tensors, path)", "temporary.replace(path)"),
        *("os.replace(old, new)", "shutil.move(old, new)", "os.fdopen(handle, 'wb')", "tempfile.mkstemp()"),
    ],
)
def test_the_rule_sees_a_writer(text: str) -> None:
    assert list(writes(text))


def test_the_rule_lets_readers_pass() -> None:
    assert not list(writes("open('x'); path.open('rb'); text.replace('a', 'b'); plan.replace(); replace(plan)"))
