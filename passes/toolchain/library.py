"""Building C to a shared library, once for each content."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.passes.toolchain.compiler import Compiler, find_compiler

HIDDEN_KERNELS = '-DPENSTOCK_KERNEL=__attribute__((visibility("hidden")))'
"""Kernels of a program in several files: for the linker, but not for other libraries."""


class CompilerFault(RuntimeError):
    """The C compiler refused generated code: a fault of ours. `kept` is the folder with the files."""

    def __init__(self, message: str, kept: Path):
        super().__init__(message)
        self.kept = kept


def cache_directory() -> Path:
    """`$PENSTOCK_CACHE`, else the folder `penstock` in the user's cache."""
    if named := os.environ.get("PENSTOCK_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock"


def build_library(
    name: str, sources: Mapping[str, str], headers: Mapping[str, str] | None = None, *, content: str | None = None
) -> Path:
    """
    The shared library `name` of C files, by file name, built unless the cache has it; several are compiled at once.

    `content` says what the library does where that does not depend on how it is cut into files; it is the key of
    the cache, together with the compiler. Raises UserError without a working C compiler or a writable cache, and
    CompilerFault where the compiler refuses the files, which are kept.
    """
    compiler = find_compiler()
    headers = headers or {}
    if content is None:
        content = "\0".join(part for files in (headers, sources) for file in files.items() for part in file)
    digest = hashlib.sha256(f"{compiler.identity}\0{content}".encode()).hexdigest()[:40]
    directory = cache_directory()
    library = directory / f"{name}-{digest}.so"
    if library.exists():
        return library
    try:
        directory.mkdir(parents=True, exist_ok=True)
        workplace = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=directory))
    except OSError as error:
        raise UserError(
            f"the cache of compiled code cannot be written: {error.strerror}",
            loc=str(directory),
            notes=["PENSTOCK_CACHE names another folder"],
        ) from None
    try:
        for file, text in {**headers, **sources}.items():
            (workplace / file).write_text(text)
        _compile(compiler, list(sources), workplace)
        # Whole or not at all: another process may build the same.
        os.replace(workplace / "program.so", library)
    except BaseException as error:
        if not isinstance(error, CompilerFault):
            shutil.rmtree(workplace, ignore_errors=True)
        raise
    shutil.rmtree(workplace, ignore_errors=True)
    return library


def _compile(compiler: Compiler, files: list[str], workplace: Path) -> None:
    flags = compiler.flags()
    if len(files) == 1:
        found = compiler.run((*flags, "-shared", "-o", "program.so", *files, "-lm"), workplace)
        _check(compiler, found, workplace / files[0])
        return
    with ThreadPoolExecutor(len(files)) as pool:
        pending = [
            pool.submit(compiler.run, (*flags, HIDDEN_KERNELS, "-c", "-o", f"{file}.o", file), workplace)
            for file in files
        ]
        for file, future in zip(files, pending, strict=True):
            _check(compiler, future.result(), workplace / file)
    objects = [f"{file}.o" for file in files]
    found = compiler.run((*flags, "-shared", "-o", "program.so", *objects, "-lm"), workplace)
    _check(compiler, found, workplace / files[0])


def _check(compiler: Compiler, found: subprocess.CompletedProcess[str], file: Path) -> None:
    if found.returncode:
        raise CompilerFault(
            f"{compiler.command[0]} refused generated code, which is kept in {file}:\n{found.stderr.strip()[:4000]}",
            file.parent,
        )
