"""
Into the IR: a machine file (TOML, `machines/*.toml`) becomes a `machine.target`.

The schema is in `penstock.lowering.machine_schema`, the behaviour of intrinsics in
`penstock.lowering.tensor_expression`. A file is checked whole: every fault is reported, with file, line and column.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.machine import TargetOp
from penstock.lowering.machine_file import FaultLog, MachineFile
from penstock.lowering.toml_positions import locate

_SUFFIX = ".toml"
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class MachineFileError(UserError):
    """A machine file with faults. It shows the first as its own message, and all of them as text."""

    def __init__(self, faults: Sequence[UserError]):
        first, *others = faults
        notes = list(first.notes)
        if others:
            notes.append(f"the file has {len(others)} more faults: penstock machines validate FILE")
        super().__init__(first.message, loc=first.loc, notes=notes)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


def shipped_machines() -> list[str]:
    """The names of the machines that come with Penstock, in alphabetical order."""
    files = resources.files("penstock.machines").iterdir()
    return sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX))


def machine_text(name_or_path: str) -> tuple[str, str]:
    """
    The name to report and the text of a machine file: a shipped machine, or a path that ends in `.toml`.

    Raises UserError for a name that is not shipped and for a file that cannot be read.
    """
    if not name_or_path.endswith(_SUFFIX):
        shipped = shipped_machines()
        if name_or_path not in shipped:
            near = did_you_mean(name_or_path, shipped)
            listed = f"the machines are {', '.join(shipped)}; a path must end in {_SUFFIX}"
            raise UserError(f'unknown machine "{name_or_path}"', notes=[near, listed] if near else [listed])
        file = name_or_path + _SUFFIX
        return file, (resources.files("penstock.machines") / file).read_text(encoding="utf-8")
    try:
        return name_or_path, Path(name_or_path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", loc=name_or_path) from None
    except UnicodeDecodeError:
        raise UserError("the file is not UTF-8 text", loc=name_or_path) from None


def read_machine(file: str, text: str) -> tuple[TargetOp | None, tuple[UserError, ...]]:
    """The machine that `text` describes, and its faults, in the order of the text; `file` names it in them."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return None, (_syntax_fault(file, text, error),)
    log = FaultLog(file, locate(text))
    target = MachineFile(document, log).target()
    return target, log.sorted()


def validate(name_or_path: str) -> tuple[UserError, ...]:
    """All faults of a machine file; none means that it is valid. Raises UserError if it cannot be read."""
    return read_machine(*machine_text(name_or_path))[1]


def load_machine(name_or_path: str) -> TargetOp:
    """
    The `machine.target` of a shipped machine, by name, or of a machine file, by a path that ends in `.toml`.

    Raises UserError for an unknown name or an unreadable file, MachineFileError for a file with faults.
    """
    target, faults = read_machine(*machine_text(name_or_path))
    if faults:
        raise MachineFileError(faults)
    assert target is not None
    target.verify()
    return target


def _syntax_fault(file: str, text: str, error: tomllib.TOMLDecodeError) -> UserError:
    message = str(error)
    place = _PLACE.search(message)
    line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    if place is not None and place.group(1) is not None:
        line, column = int(place.group(1)), int(place.group(2))
    what = _PLACE.sub("", message)
    return UserError(f"not TOML: {what}", loc=f"{file}:{line}:{column}")
