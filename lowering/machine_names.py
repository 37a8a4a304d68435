# SPDX-License-Identifier: Apache-2.0
"""
Machines by name: those that come with Penstock, those of installed packages, the CPU at hand, and files; each as the
text that `penstock.lowering.from_machine_toml` reads. Nothing here imports the IR.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from penstock.dialects.cpu import chosen_cpu
from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.plugins import installed

MACHINES = "penstock.machines"
"""The group of entry points of machine files: each is the path of one."""
NATIVE = "native"
"""The name that asks for the host with the registers of the CPU that code is made for, see `dialects.cpu`."""
SUFFIX = ".toml"
"""The end of the name of a machine file."""


def shipped_machines() -> list[str]:
    """The names of the machines that come with Penstock, in alphabetical order."""
    files = resources.files("penstock.machines").iterdir()
    return sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX))


def known_machines() -> list[str]:
    """The names of the machines that come with Penstock, and then of those that installed packages offer."""
    return [*shipped_machines(), *(entry.name for entry in installed(MACHINES))]


def _installed_machine(name: str) -> str:
    """The path of the machine file that an installed package offers under this name, in the group `MACHINES`."""
    offered = {entry.name: entry for entry in installed(MACHINES)}
    if name not in offered:
        known = known_machines()
        near = did_you_mean(name, [*known, NATIVE])
        listed = f"the machines are {', '.join(known)}, and {NATIVE}; a path must end in {SUFFIX}"
        raise UserError(f'unknown machine "{name}"', notes=[near, listed] if near else [listed])
    try:
        return str(offered[name].load())
    except Exception as error:
        message = f'the package that offers the machine "{name}" does not load: {type(error).__name__}: {error}'
        raise UserError(message) from error


def of_cpu(name: str) -> str:
    """A name, or that of the shipped machine that "native" is."""
    return chosen_cpu().machine if name == NATIVE else name


def machine_text(name_or_path: str) -> tuple[str, str]:
    """
    The name to report and the text of a machine file: a shipped machine, one of an installed package, "native", or a
    path that ends in `.toml`.

    Raises UserError for a name that is none of these and for a file that cannot be read.
    """
    name_or_path = of_cpu(name_or_path)
    if not name_or_path.endswith(SUFFIX):
        if name_or_path in shipped_machines():
            file = name_or_path + SUFFIX
            return file, (resources.files("penstock.machines") / file).read_text(encoding="utf-8")
        name_or_path = _installed_machine(name_or_path)
    try:
        return name_or_path, Path(name_or_path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", loc=name_or_path) from None
    except UnicodeDecodeError:
        raise UserError("the file is not UTF-8 text", loc=name_or_path) from None
