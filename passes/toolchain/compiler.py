"""The C compiler of this machine: which one it is, and how it is called."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import temporary_folder, write_whole

CANDIDATES = ("cc", "gcc", "clang")

WHEEL = "ziglang"
"""The package that brings a C compiler by pip; the extra `cc` installs it."""

# Without optimisation it traps on undefined behaviour, which would need a runtime of its own.
_WHEEL_COMMAND = (sys.executable, "-m", WHEEL, "cc", "-fno-sanitize=undefined")

NEEDED_FLAGS = ("-std=c11", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""Floats keep the arithmetic of the IR: no fused multiply-add that is not written, no reordering."""

WISHED_FLAGS = (
    ("-march=native",),
    # Wider vectors are not faster on the CPUs at hand, and lower the clock of others.
    ("-mprefer-vector-width=256",),
    # The order of the loops has been decided.
    ("-fno-loop-interchange",),
    # GCC would unroll the short loops over the lanes of a block before it vectorises them, and then does not.
    ("--param", "max-completely-peel-times=7"),
)
"""Flags that make the code faster and that not every compiler knows."""

INSTALL = "install a C compiler (apt-get install gcc, or xcode-select --install), or: pip install 'penstock[cc]'"
WITHOUT = "the interpreter backend does without one"


@dataclass(frozen=True)
class Compiler:
    """A C compiler."""

    command: tuple[str, ...]
    """The program and the arguments that always come first."""
    version: str

    @property
    def identity(self) -> str:
        """What compiled code depends on besides its source: the compiler, its flags and, as they say so, the CPU."""
        return "\n".join((*self.command, self.version, *NEEDED_FLAGS, *map(str, WISHED_FLAGS), _processor()))

    def flags(self) -> tuple[str, ...]:
        """The flags that this compiler takes; raises UserError if it compiles nothing at all."""
        return _flags(self.command)

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


@cache
def _version(command: tuple[str, ...]) -> str:
    try:
        found = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f'the C compiler "{command[0]}" does not run: {error.strerror}', notes=[INSTALL]) from None
    return (found.stdout or found.stderr).partition("\n")[0]


@cache
def _flags(command: tuple[str, ...]) -> tuple[str, ...]:
    everything = (*NEEDED_FLAGS, *(part for wish in WISHED_FLAGS for part in wish))
    if not _complaint(command, everything):
        return everything
    if complaint := _complaint(command, NEEDED_FLAGS):
        raise UserError(
            f'the C compiler "{command[0]}" does not compile an empty function: {complaint}', notes=[INSTALL]
        )
    flags = NEEDED_FLAGS
    for wish in WISHED_FLAGS:
        if not _complaint(command, (*flags, *wish)):
            flags = (*flags, *wish)
    return flags


def _complaint(command: tuple[str, ...], flags: tuple[str, ...]) -> str:
    """What a compiler says about flags; empty if it takes them."""
    with temporary_folder() as directory:
        text = "#include <math.h>\n#include <stdint.h>\nint empty(void);\nint empty(void) { return 0; }\n"
        write_whole(directory / "empty.c", text)
        arguments = (*flags, "-shared", "-o", "empty.so", "empty.c", "-lm")
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
