"""Building generated C to a shared library, once for each content."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_c import CSource
from penstock.runtime.native.compiler import Compiler, find_compiler

SPLIT_LENGTH = 60_000
"""Characters of C from which on several files, compiled at the same time, are faster than one."""


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


def build(source: CSource) -> Path:
    """
    The shared library of a program, built unless the cache has it.

    Raises UserError without a working C compiler or a writable cache, and CompilerFault where the compiler
    refuses the program, whose files are kept.
    """
    compiler = find_compiler()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    units = source.units(cores if len(source.source) >= SPLIT_LENGTH else 1)
    # How the program is cut does not change what it does, so it is not part of the key.
    content = "\0".join((compiler.identity, source.header, source.source))
    digest = hashlib.sha256(content.encode()).hexdigest()[:40]
    directory = cache_directory()
    library = directory / f"{source.name}-{digest}.so"
    if library.exists():
        return library
    try:
        directory.mkdir(parents=True, exist_ok=True)
        workplace = Path(tempfile.mkdtemp(prefix=f".{source.name}-", dir=directory))
    except OSError as error:
        raise UserError(
            f"the cache of compiled code cannot be written: {error.strerror}",
            loc=str(directory),
            notes=["PENSTOCK_CACHE names another folder"],
        ) from None
    try:
        _compile(compiler, source, units, workplace)
        # Whole or not at all: another process may build the same.
        os.replace(workplace / "program.so", library)
    except BaseException as error:
        if not isinstance(error, CompilerFault):
            shutil.rmtree(workplace, ignore_errors=True)
        raise
    shutil.rmtree(workplace, ignore_errors=True)
    return library


def _compile(compiler: Compiler, source: CSource, units: tuple[str, ...], workplace: Path) -> None:
    flags = compiler.flags()
    (workplace / source.header_name).write_text(source.header)
    files = [f"{source.name}.c"] if len(units) == 1 else [f"{source.name}_{n}.c" for n in range(len(units))]
    for file, text in zip(files, units, strict=True):
        (workplace / file).write_text(text)
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
