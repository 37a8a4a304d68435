"""Building C to a shared library, once for each content."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import keep, temporary_folder, write_whole
from penstock.passes.toolchain.cache import add, find, key_of, open_cache, private_folder
from penstock.passes.toolchain.compiler import Compiler, find_compiler

HIDDEN_KERNELS = '-DPENSTOCK_KERNEL=__attribute__((visibility("hidden")))'
"""Kernels of a program in several files: for the linker, but not for other libraries."""


class CompilerFault(RuntimeError):
    """The C compiler refused generated code: a fault of ours. `kept` is the folder with the files."""

    def __init__(self, message: str, kept: Path):
        super().__init__(message)
        self.kept = kept


def build_library(
    name: str, sources: Mapping[str, str], headers: Mapping[str, str] | None = None, *, content: str | None = None
) -> Path:
    """
    The shared library `name` of C files, by file name, built unless the cache has it; several are compiled at once.

    `content` says what the library does where that does not depend on how it is cut into files; it is the key of
    the cache, together with the compiler. Raises UserError without a working C compiler and for a cache that others
    may write, and CompilerFault where the compiler refuses the files, which are kept for a day.
    """
    compiler = find_compiler()
    headers = headers or {}
    if content is None:
        content = "\0".join(part for files in (headers, sources) for file in files.items() for part in file)
    key = key_of(f"{compiler.identity}\0{content}")
    directory = open_cache()
    if (entry := find(directory, name, key)) is not None:
        return entry
    with ExitStack() as stack:
        try:
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            workplace = stack.enter_context(temporary_folder(directory))
        except OSError as error:
            directory = private_folder(directory, error.strerror)
            if (entry := find(directory, name, key)) is not None:
                return entry
            workplace = stack.enter_context(temporary_folder(directory))
        for file, text in {**headers, **sources}.items():
            write_whole(workplace / file, text)
        try:
            _compile(compiler, list(sources), workplace)
        except CompilerFault:
            keep(workplace)
            raise
        return add(directory, name, key, workplace / "program.so")


def load(library: Path) -> ctypes.CDLL:
    """The library in this process; raises UserError where the system does not load it."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        notes = ["PENSTOCK_CACHE names a folder for compiled code"]
        raise UserError(f"compiled code cannot be loaded: {error}", loc=str(library), notes=notes) from None


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
