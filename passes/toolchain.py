# SPDX-License-Identifier: Apache-2.0
"""
The C that the compiler writes, of programs and of the inner loops of solvers: the C compiler of this machine, and
building C to a shared library, once for each content, and loading it.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from penstock.dialects.cpu import chosen_cpu, features_of_macros
from penstock.dialects.diagnostics import UserError, pip_install
from penstock.dialects.files import keep, temporary_folder, write_whole
from penstock.passes.code_cache import DIGITS, add, find, key_of, open_cache, private_folder

CANDIDATES = ("cc", "gcc", "clang")

WHEEL = "ziglang"
"""The package that brings a C compiler by pip; the extra `cc` installs it."""

# Without optimisation it traps on undefined behaviour, which would need a runtime of its own.
_WHEEL_COMMAND = (sys.executable, "-m", WHEEL, "cc", "-fno-sanitize=undefined")

NEEDED_FLAGS = ("-std=c11", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""Floats keep the arithmetic of the IR: no fused multiply-add that is not written, no reordering."""
LIBRARIES = ("-lm", "-pthread")
"""What programs are linked with: those with parallel loops have threads."""

WISHED_FLAGS = (
    # Tuned for some CPUs, GCC 12 loads an operand of several multiply-adds again for each of them.
    ("-mtune=generic",),
    # What several multiply-adds read, carried from one iteration to the next, takes the registers of the sums.
    ("-fno-predictive-commoning",),
    # Rows of a few hundred bytes are copied by vectors, not by string instructions, which take long to begin.
    ("-mmemcpy-strategy=vector_loop:2048:noalign,libcall:-1:noalign",),
    ("-mmemset-strategy=vector_loop:2048:noalign,libcall:-1:noalign",),
    # The order of the loops has been decided.
    ("-fno-loop-interchange",),
    # Sums that rest in memory between blocks are loaded as vectors: GCC would copy them in halves, which a load of the
    # whole has to wait for.
    ("-fno-tree-loop-distribute-patterns",),
    # GCC would unroll the short loops over the lanes of a block before it vectorises them, and then does not.
    ("--param", "max-completely-peel-times=7"),
    # In a function that calls none GCC 12 may misplace a local array that it reaches by a pointer, and moves vectors to
    # it as if it were aligned: the assembler takes the instructions that need no alignment, which are as fast.
    ("-Wa,-muse-unaligned-vector-move",),
)
"""Flags that make the code faster and that not every compiler knows, beside those of the CPU."""

INSTALL = f"install a C compiler (apt-get install gcc, or xcode-select --install), or: {pip_install('cc')}"
WITHOUT = f"the interpreter backend does without one, and so does llvm: {pip_install('llvm')}"


@dataclass(frozen=True)
class Compiler:
    """A C compiler."""

    command: tuple[str, ...]
    """The program and the arguments that always come first."""
    version: str

    @property
    def identity(self) -> str:
        """What compiled code depends on besides its source: the compiler, its flags and, as they say so, the CPU."""
        return "\n".join((*self.command, self.version, *NEEDED_FLAGS, *map(str, _wishes()), _processor()))

    def flags(self) -> tuple[str, ...]:
        """
        The flags that this compiler takes.

        Raises UserError if it compiles nothing at all, and if it does not know a CPU that `$PENSTOCK_CPU` names.
        """
        found, cpu = _flags(self.command, _wishes()), chosen_cpu()
        if cpu.name is not None and not set(cpu.flags) <= set(found):
            asked = " ".join(cpu.flags)
            raise UserError(f'the C compiler "{self.command[0]}" does not compile for {cpu.title}: it refuses {asked}')
        return found

    def features(self) -> tuple[str, ...]:
        """What code that it compiles needs of a CPU, see `dialects.cpu`."""
        return _features(self.command, self.flags())

    def run(self, arguments: tuple[str, ...], directory: Path) -> subprocess.CompletedProcess[str]:
        """Call it in a directory."""
        return subprocess.run([*self.command, *arguments], cwd=directory, capture_output=True, text=True, check=False)


def find_compiler() -> Compiler:
    """
    The compiler that `$CC` names, else the first of `cc`, `gcc` and `clang`, else that of the package `ziglang`.

    Raises UserError if there is none.
    """
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise UserError(f'CC names the C compiler "{named[0]}", which is not there', notes=[INSTALL])
        return Compiler((str(shutil.which(named[0])), *named[1:]), _version(tuple(named)))
    for candidate in CANDIDATES:
        if (path := shutil.which(candidate)) is not None:
            return Compiler((path,), _version((path,)))
    # Looked for without importing it: that would run the compiler.
    if find_spec(WHEEL) is not None:
        return Compiler(_WHEEL_COMMAND, _version(_WHEEL_COMMAND))
    raise UserError(
        f"no C compiler is found: none of {', '.join(CANDIDATES)}, CC is not set, and {WHEEL} is not installed",
        notes=[INSTALL, WITHOUT],
    )


def has_compiler() -> bool:
    """Whether there is one, or `$CC` names one, which then must be there."""
    if os.environ.get("CC", "").strip():
        return True
    try:
        find_compiler()
    except UserError:
        return False
    return True


@cache
def _version(command: tuple[str, ...]) -> str:
    try:
        found = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f'the C compiler "{command[0]}" does not run: {error.strerror}', notes=[INSTALL]) from None
    return (found.stdout or found.stderr).partition("\n")[0]


def _wishes() -> tuple[tuple[str, ...], ...]:
    """The flags of the CPU that code is made for, and those of every CPU."""
    return (chosen_cpu().flags, *WISHED_FLAGS)


@cache
def _flags(command: tuple[str, ...], wishes: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    everything = (*NEEDED_FLAGS, *(part for wish in wishes for part in wish))
    if not _complaint(command, everything):
        return everything
    if complaint := _complaint(command, NEEDED_FLAGS):
        raise UserError(
            f'the C compiler "{command[0]}" does not compile an empty function: {complaint}', notes=[INSTALL]
        )
    flags = NEEDED_FLAGS
    for wish in wishes:
        if not _complaint(command, (*flags, *wish)):
            flags = (*flags, *wish)
    return flags


@cache
def _features(command: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, ...]:
    words = [*command, *flags, "-dM", "-E", "-x", "c", os.devnull]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    # Lines of `#define NAME VALUE`.
    return features_of_macros(line.split()[1] for line in found.stdout.splitlines() if line.startswith("#define "))


_LINKED = ("-l", "-L", "-Wl,")
"""What options begin with that come after the files."""


def complaint(compiler: Compiler, options: Sequence[str]) -> str:
    """What a compiler says about options, of which some name libraries; empty if it takes them."""
    return _complaint(compiler.command, (*compiler.flags(), *options))


def _complaint(command: tuple[str, ...], flags: tuple[str, ...]) -> str:
    """What a compiler says about flags; empty if it takes them."""
    with temporary_folder() as directory:
        text = "#include <math.h>\n#include <stdint.h>\nint empty(void);\nint empty(void) { return 0; }\n"
        write_whole(directory / "empty.c", text)
        arguments = (*flags, "-shared", "-o", "empty.so", "empty.c", *LIBRARIES)
        found = subprocess.run([*command, *arguments], cwd=directory, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return ""
        return found.stderr.strip().partition("\n")[0] or f"exit status {found.returncode}"


@cache
def _processor() -> str:
    """The CPU, so that a cache that two machines share does not hand one the other's code."""
    parts = [platform.system(), platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    parts += list(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


# building

HIDDEN_KERNELS = '-DPENSTOCK_KERNEL=__attribute__((visibility("hidden")))'
"""Kernels of a program in several files: for the linker, but not for other libraries."""


class CompilerFault(RuntimeError):
    """The C compiler refused generated code: a fault of ours. `kept` is the folder with the files."""

    def __init__(self, message: str, kept: Path):
        super().__init__(message)
        self.kept = kept


def build_library(
    name: str,
    sources: Mapping[str, str],
    headers: Mapping[str, str] | None = None,
    *,
    content: str | None = None,
    options: Sequence[str] = (),
) -> Path:
    """
    The shared library `name` of C files, by file name, built unless the cache has it; several are compiled at once.

    `content` says what the library does where that does not depend on how it is cut into files; it is the key of
    the cache, together with the compiler and the `options` that it gets beside its own. Raises UserError without a
    working C compiler and for a cache that others may write, and CompilerFault where the compiler refuses the files,
    which are kept for a day.
    """
    compiler = find_compiler()
    headers = headers or {}
    if content is None:
        content = "\0".join(part for files in (headers, sources) for file in files.items() for part in file)
    key = key_of("\0".join((compiler.identity, content, *options)))
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
            _compile(compiler, list(sources), workplace, options)
        except CompilerFault:
            keep(workplace)
            raise
        return add(directory, name, key, workplace / "program.so")


def load(library: Path) -> ctypes.CDLL:
    """The library in this process; raises UserError where the system does not load it."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        _refuse_without_library(error)
        notes = ["PENSTOCK_CACHE names a folder for compiled code"]
        raise UserError(f"compiled code cannot be loaded: {error}", loc=str(library), notes=notes) from None


def _refuse_without_library(error: OSError) -> None:
    """Raise UserError where a library that code was linked with is not found."""
    if (missing := _MISSING.match(str(error))) is not None and missing[1].startswith("lib"):
        raise UserError(f"the code needs the library {missing[1]}, which is not found here", notes=[SEARCHED]) from None


_MISSING = re.compile(r"([^/:\s]+): cannot open shared object file")
SEARCHED = "install it, or name its folder in LD_LIBRARY_PATH"


def load_code(name: str, code: bytes | memoryview) -> ctypes.CDLL:
    """
    A shared library that is in memory, as a library of this process: by a file without a name where the system has
    such, and else by the cache. Raises UserError where the system does not load it.
    """
    digest = hashlib.sha256(code).hexdigest()
    if digest not in _LOADED:
        _LOADED[digest] = _load_code(name, code, digest)
    return _LOADED[digest]


_LOADED: dict[str, ctypes.CDLL] = {}
"""By its digest what was in memory, and stays loaded."""


def _load_code(name: str, code: bytes | memoryview, digest: str) -> ctypes.CDLL:
    try:
        handle = os.memfd_create(name)
    except (AttributeError, OSError):  # another system, or a sandbox
        handle = None
    if handle is not None:
        try:
            with open(handle, "wb", closefd=False) as file:
                file.write(code)
            # The handle stays open: the loader takes a path that it knows for the library that it knows.
            return ctypes.CDLL(f"/proc/self/fd/{handle}")
        except OSError as error:  # in a sandbox, or without /proc
            os.close(handle)
            _refuse_without_library(error)
    directory = open_cache()
    key = digest[:DIGITS]
    if (entry := find(directory, name, key)) is None:
        if not os.access(directory, os.W_OK | os.X_OK):
            directory = private_folder(directory, os.strerror(errno.EACCES))
        with temporary_folder(directory) as workplace:
            write_whole(workplace / "program.so", bytes(code))
            entry = add(directory, name, key, workplace / "program.so")
    return load(entry)


def _compile(compiler: Compiler, files: list[str], workplace: Path, options: Sequence[str]) -> None:
    flags = (*compiler.flags(), *(each for each in options if not each.startswith(_LINKED)))
    libraries = (*(each for each in options if each.startswith(_LINKED)), *LIBRARIES)
    if len(files) == 1:
        found = compiler.run((*flags, "-shared", "-o", "program.so", *files, *libraries), workplace)
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
    found = compiler.run((*flags, "-shared", "-o", "program.so", *objects, *libraries), workplace)
    _check(compiler, found, workplace / files[0])


def _check(compiler: Compiler, found: subprocess.CompletedProcess[str], file: Path) -> None:
    if found.returncode:
        raise CompilerFault(
            f"{compiler.command[0]} refused generated code, which is kept in {file}:\n{found.stderr.strip()[:4000]}",
            file.parent,
        )
