# SPDX-License-Identifier: Apache-2.0
"""
Runs the RUN lines of every .mlir file below this folder, one test a file.

Starting a process for every command costs about a second of imports, so pipelines of our own commands and
filecheck run in this process; lines with other commands or with shell syntax go to a shell. One test runs
lit itself on two files, so that the real commands are exercised too.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(path for path in HERE.rglob("*.mlir") if not {"Inputs", "Output"} & set(path.parts))
_RUN = re.compile(r"^\s*//\s*RUN:\s*(.*)$")
_SHELL_SYNTAX = re.compile(r"[;&<>*?$()`]|\|\|")


def run_lines(path: Path) -> list[str]:
    """The RUN lines of a file, those that end in a backslash joined with the next."""
    lines: list[str] = []
    continued = False
    for text in path.read_text(encoding="utf-8").splitlines():
        if (match := _RUN.match(text)) is None:
            continue
        line = match.group(1).rstrip()
        if continued:
            lines[-1] = lines[-1][:-1].rstrip() + " " + line
        else:
            lines.append(line)
        continued = lines[-1].endswith("\\")
    return lines


def substitute(line: str, path: Path, scratch: Path) -> str:
    """A RUN line with lit's %s, %S, %t, %T and %% replaced."""
    values = {
        "%s": str(path),
        "%S": str(path.parent),
        "%t": str(scratch / f"{path.name}.tmp"),
        "%T": str(scratch),
        "%%": "%",
    }
    return re.sub(r"%[sStT%](?![A-Za-z0-9_])", lambda match: values[match.group()], line)


def _penstock_opt(argv: Sequence[str]) -> int:
    from penstock.tools import opt

    return opt.run(argv)


def _penstock(argv: Sequence[str]) -> int:
    from penstock.tools import main

    return main.run(argv)


def _filecheck(argv: Sequence[str]) -> int:
    from filecheck.main import main

    main(["filecheck", *argv])
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "filecheck": _filecheck,
    "penstock": _penstock,
    "penstock-opt": _penstock_opt,
}


def _stages(line: str) -> list[tuple[bool, bool, list[str]]] | None:
    """(negated, stderr joined to stdout, words) of each command of a pipeline; None if it needs a shell."""
    lexer = shlex.shlex(line.replace("2>&1", " \x01 "), posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    stages: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            stages.append([])
        else:
            stages[-1].append(word)
    result: list[tuple[bool, bool, list[str]]] = []
    for words in stages:
        negated = words[:1] == ["not"]
        joined = words[-1:] == ["\x01"]
        words = words[negated : len(words) - joined]
        if not words or words[0] not in COMMANDS or "\x01" in words:
            return None
        result.append((negated, joined, words))
    return result


def _unquoted(line: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", line).replace("2>&1", "")


def _run_here(line: str) -> tuple[bool, str] | None:
    """Whether a pipeline of our commands succeeded, and what it printed; None if it needs a shell."""
    if _SHELL_SYNTAX.search(_unquoted(line)) or (stages := _stages(line)) is None:
        return None
    data, log, succeeded = "", "", True
    before = sys.stdin
    for negated, joined, words in stages:
        out, err = io.StringIO(), io.StringIO()
        sys.stdin = io.TextIOWrapper(io.BytesIO(data.encode("utf-8")), encoding="utf-8")
        try:
            with redirect_stdout(out), redirect_stderr(out if joined else err):
                try:
                    status = COMMANDS[words[0]](words[1:])
                except SystemExit as leaving:
                    status = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
        finally:
            sys.stdin = before
        data = out.getvalue()
        log += err.getvalue()
        succeeded &= (status != 0) if negated else (status == 0)
    return succeeded, log + data


def _run_in_shell(line: str, folder: Path) -> tuple[bool, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # lit's `not` is a command of LLVM, which need not be installed.
    script = f'set -o pipefail; not() {{ if "$@"; then return 1; else return 0; fi; }}; {line}'
    finished = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(HERE)) for path in FILES])
def test_run_lines_of(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = run_lines(path)
    assert lines, "the file has no RUN line, so it tests nothing"
    for line in lines:
        command = substitute(line, path, tmp_path)
        succeeded, log = _run_here(command) or _run_in_shell(command, tmp_path)
        assert succeeded, f"RUN: {line}\n{log}"


def test_lit_agrees_on_the_files_with_the_fewest_lines(tmp_path: Path) -> None:
    chosen = sorted(FILES, key=lambda path: (len(run_lines(path)), path))[:2]
    assert chosen, "there are no .mlir files"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    finished = subprocess.run(
        ["lit", "-v", f"--param=exec_root={tmp_path}", *map(str, chosen)],
        env={**os.environ, "PATH": path, "LIT_OPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
