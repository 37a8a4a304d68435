"""
Into the IR: a machine file (TOML, `machines/*.toml`) becomes a `machine.target`.

The schema is in `penstock.lowering.machine_file`, the behaviour of intrinsics in
`penstock.lowering.tensor_expression`. A file is checked whole: every fault is reported, with file, line and column.

`extends = "vta-pynq"` in `[machine]` names a base, a shipped machine or a path from the folder of the file. The machine
is the base, in which

1. the keys of `[machine]`, of `[sources]`, and of each part that has the name of one of the base (a queue: the ends)
   replace those of the base; a `source` or `assumed` replaces either,
2. a part of the base with `remove = true` is left out,
3. all other parts come after those of their kind.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import cast

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.machine import TargetOp
from penstock.lowering.machine_file import COVERS, FaultLog, MachineFile
from penstock.lowering.toml_positions import Path as KeyPath
from penstock.lowering.toml_positions import Positions, locate

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
        document, positions = _parse(file, text)
    except UserError as fault:
        return None, (fault,)
    log = FaultLog(positions)
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


Document = dict[str, object]


def _parse(file: str, text: str, extending: tuple[str, ...] = ()) -> tuple[Document, Positions]:
    """
    The document of a file, with what it extends in it; `extending` are the texts that extend this one.

    Raises UserError for what is not TOML, and for a base that is unknown, cannot be read or extends itself.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_fault(file, text, error) from None
    positions = locate(text, file, len(extending))
    machine = document.get("machine")
    if not isinstance(machine, dict) or "extends" not in machine:
        return document, positions
    name = cast(Document, machine).pop("extends")
    loc = str(positions.value(("machine", "extends")))
    if not isinstance(name, str):
        raise UserError("extends must be the name or the path of a machine", loc=loc)
    try:
        base_file, base_text = machine_text(str(Path(file).parent / name) if name.endswith(_SUFFIX) else name)
    except UserError as fault:
        raise UserError(f"extends: {fault.message}", loc=loc, notes=fault.notes) from None
    if base_text in (*extending, text):
        raise UserError("extends leads back to the file itself", loc=loc)
    base, base_positions = _parse(base_file, base_text, (*extending, text))
    return _extend(base, base_positions, document, positions), base_positions


def _extend(base: Document, base_positions: Positions, own: Document, positions: Positions) -> Document:
    """The base, in which the tables of `own` replace what they say anew; its positions are brought up to date."""
    extended = dict(base)
    paths: dict[KeyPath, KeyPath] = {}
    for kind, value in own.items():
        old = extended.get(kind)
        if isinstance(value, dict) and isinstance(old, dict):
            extended[kind] = _with_keys(cast(Document, old), cast(Document, value))
        elif isinstance(value, list) and isinstance(old, list):
            parts = cast(list[Document | None], [*old])
            identities = [_identity(part) if isinstance(part, dict) else None for part in parts]
            for place, part in enumerate(cast(list[Document], value)):
                if not isinstance(part, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                    parts.append(part)  # is refused when it is read
                    continue
                identity = _identity(part)
                at = identities.index(identity) if identity in identities else len(parts)
                paths[kind, place] = kind, at
                if at < len(identities) and part.get("remove") is True:
                    parts[at] = None
                else:
                    parts[at : at + 1] = [_with_keys((parts[at] if at < len(identities) else None) or {}, part)]
            extended[kind] = parts
        else:
            extended[kind] = value
    for old, new in ((base_positions.keys, positions.keys), (base_positions.values, positions.values)):
        old.update({(*paths.get(path[:2], path[:2]), *path[2:]): position for path, position in new.items()})
    return extended


def _identity(part: object) -> object:
    """What a part is known by: its name, or the ends of a queue."""
    table = cast(Document, part) if isinstance(part, dict) else {}
    return table.get("name") or (table.get("from"), table.get("to"))


def _with_keys(base: Document, own: Document) -> Document:
    covered = any(key in own for key in COVERS)
    return {key: value for key, value in base.items() if not (covered and key in COVERS)} | own


def _syntax_fault(file: str, text: str, error: tomllib.TOMLDecodeError) -> UserError:
    message = str(error)
    place = _PLACE.search(message)
    line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    if place is not None and place.group(1) is not None:
        line, column = int(place.group(1)), int(place.group(2))
    what = _PLACE.sub("", message)
    return UserError(f"not TOML: {what}", loc=f"{file}:{line}:{column}")
