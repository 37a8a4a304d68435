# SPDX-License-Identifier: Apache-2.0
"""
Into the IR: a machine file (TOML, `machines/*.toml`) becomes a `machine.target`.

The schema is in `penstock.lowering.machine_keys`, the behaviour of intrinsics in
`penstock.lowering.tensor_expression`. A file is checked whole: every fault is reported, with file, line and column.

`extends = "vta-pynq"` in `[machine]` names a base, a shipped machine or a path from the folder of the file. The machine
is the base, in which

1. the keys of `[machine]`, of `[sources]`, and of each part that has the name of one of the base (a queue: the ends)
   replace those of the base; a `source` or `assumed` covers the numbers beside it, and those of the base keep theirs,
2. a part of the base with `remove = true` is left out,
3. all other parts come after those of their kind.

Families of parts share a table: `penstock.lowering.machine_templates`.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import cast

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.machine import IntrinsicOp, TargetOp
from penstock.lowering.machine_file import MachineFile
from penstock.lowering.machine_keys import (
    BEHAVIOUR_KEYS,
    COVERS,
    EXTENDS,
    MACHINE_KEYS,
    PART_KINDS,
    SINGLE_KINDS,
    part_keys,
)
from penstock.lowering.machine_names import SUFFIX, machine_text, of_cpu
from penstock.lowering.machine_options import with_options
from penstock.lowering.machine_tables import FaultLog
from penstock.lowering.machine_templates import with_families
from penstock.lowering.toml_positions import Path as KeyPath
from penstock.lowering.toml_positions import Positions, locate, read_toml


class MachineFileError(UserError):
    """A machine file with faults. It shows the first as its own message, and all of them as text."""

    def __init__(self, faults: Sequence[UserError], *, has_options: bool = False):
        first, *others = faults
        notes = list(first.notes)
        if others:
            # The file alone may have none.
            where = "with these options it" if has_options else "the file"
            notes.append(
                f"{where} has {len(others)} more faults" + ("" if has_options else ": penstock machines validate FILE")
            )
        super().__init__(first.message, loc=first.loc, notes=notes)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


def read_machine(
    file: str, text: str, options: Mapping[str, object] | None = None
) -> tuple[TargetOp | None, tuple[UserError, ...]]:
    """
    The machine that `text` describes, and its faults, in the order of the text; `file` names it in them. `options` set
    numbers of it, see `machine_options`; their faults come first.
    """
    try:
        document, positions = machine_document(file, text)
        if options:
            document = with_options(document, positions, options)
    except UserError as fault:
        return None, (fault,)
    log = FaultLog(positions)
    target = MachineFile(document, log).target()
    return target, log.sorted()


def validate(name_or_path: str) -> tuple[UserError, ...]:
    """All faults of a machine file; none means that it is valid. Raises UserError if it cannot be read."""
    return read_machine(*machine_text(name_or_path))[1]


def load_machine(name_or_path: str, options: Mapping[str, object] | None = None) -> TargetOp:
    """
    The `machine.target` of a shipped machine, by name, or of a machine file, by a path that ends in `.toml`. `options`
    set numbers of it for this run: `{"scope.spad.size": 65536}`, see `machine_options`.

    Raises UserError for an unknown name or an unreadable file, MachineFileError for a file or options with faults.
    """
    if options or name_or_path.endswith(SUFFIX):
        return _load(name_or_path, options)
    return _shipped(of_cpu(name_or_path)).clone()


@cache
def _shipped(name: str) -> TargetOp:
    """A machine whose file is a part of this program, to be cloned."""
    return _load(name, None)


def _load(name_or_path: str, options: Mapping[str, object] | None) -> TargetOp:
    target, faults = read_machine(*machine_text(name_or_path), options)
    if faults:
        raise MachineFileError(faults, has_options=bool(options))
    assert target is not None
    target.verify()
    return target


Document = dict[str, object]
Table = Mapping[str, object]


def machine_document(file: str, text: str, extending: tuple[str, ...] = ()) -> tuple[Document, Positions]:
    """
    The document of a file, with what it extends in it and each part a table of its own; `extending` are the texts that
    extend this one.

    Raises UserError for what is not TOML, and for a base that is unknown, cannot be read or extends itself.
    """
    try:
        document = read_toml(file, text)
    except UserError as fault:
        raise UserError(fault.message, loc=fault.loc, notes=_several(text)) from None
    positions = locate(text, file, len(extending))
    machine = cast(object, document.get("machine"))
    if not isinstance(machine, dict):
        return _with_families(document, positions), positions
    if EXTENDS not in machine:
        hint = f'did you mean "{EXTENDS}"?'
        for key in cast(Document, machine):
            # Without its base nothing of the file makes sense.
            if key not in MACHINE_KEYS and did_you_mean(key, (EXTENDS, *MACHINE_KEYS, *COVERS)) == hint:
                loc = str(positions.key(("machine", key)))
                raise UserError(f'unknown key "{key}" in [machine]', loc=loc, notes=[hint])
        return _with_families(document, positions), positions
    name = cast(Document, machine).pop(EXTENDS)
    loc = str(positions.value(("machine", EXTENDS)))
    if not isinstance(name, str):
        raise UserError("extends must be the name or the path of a machine", loc=loc)
    try:
        base_file, base_text = machine_text(str(Path(file).parent / name) if name.endswith(SUFFIX) else name)
    except UserError as fault:
        raise UserError(f"extends: {fault.message}", loc=loc, notes=fault.notes) from None
    if base_text in (*extending, text):
        raise UserError("extends leads back to the file itself", loc=loc)
    base, base_positions = machine_document(base_file, base_text, (*extending, text))
    document = _with_families(document, positions, base, base_positions)
    return _extend(base, base_positions, document, positions), base_positions


def _with_families(
    document: Document, positions: Positions, base: Table | None = None, base_positions: Positions | None = None
) -> Document:
    """The document in which each part is a table of its own."""
    kinds = {
        name: (*part_keys(kind), *(BEHAVIOUR_KEYS if kind is IntrinsicOp else ()), *COVERS)
        for name, kind in PART_KINDS.items()
        if name not in SINGLE_KINDS
    }
    return with_families(document, positions, kinds, base or {}, base_positions or positions)


def _extend(base: Document, base_positions: Positions, own: Document, positions: Positions) -> Document:
    """The base, in which the tables of `own` replace what they say anew; its positions are brought up to date."""
    extended = dict(base)
    paths: dict[KeyPath, KeyPath] = {}
    for kind, value in own.items():
        old = extended.get(kind)
        if isinstance(value, dict) and isinstance(old, Mapping):
            extended[kind] = _over(cast(Table, old), cast(Document, value))
        elif isinstance(value, list) and isinstance(old, list):
            parts = cast(list[object], [*old])
            identities = [_identity(part) for part in parts]
            for number, part in enumerate(cast(list[object], value)):
                identity = _identity(part)
                at = identities.index(identity) if identity in identities and identity is not None else len(parts)
                paths[kind, number] = kind, at
                table = cast(Document, part)
                if at == len(parts):
                    parts.append(table)  # what is no table is refused when it is read
                else:
                    parts[at] = None if table.get("remove") is True else _over(cast(Table, parts[at] or {}), table)
            extended[kind] = parts
        elif kind in PART_KINDS and kind not in SINGLE_KINDS and isinstance(value, dict):
            message = f"a machine may have more than one {kind}: write [[{kind}]]"
            raise UserError(message, loc=str(positions.key((kind,))))
        else:
            extended[kind] = value
    for old, new in ((base_positions.keys, positions.keys), (base_positions.values, positions.values)):
        old.update({(*paths.get(path[:2], path[:2]), *path[2:]): position for path, position in new.items()})
    return extended


def _identity(part: object) -> object:
    """What a part is known by: its name, or the ends of a queue; None for what is no table."""
    if not isinstance(part, Mapping):
        return None
    table = cast(Table, part)
    return table.get("name") or (table.get("from"), table.get("to"))


def _over(base: Table, own: Table) -> Table:
    """A table of the base under one of `own`."""
    layers = [each.maps if isinstance(each, ChainMap) else [each] for each in (own, base)]
    return ChainMap(*(cast(Document, layer) for each in layers for layer in each))


def _several(text: str) -> list[str]:
    """The note on a text that is not TOML where it has a part as a table of which a machine may have several."""
    several = [kind for kind in PART_KINDS if kind not in SINGLE_KINDS]
    single = re.search(rf"^\[({'|'.join(several)})\]", text, re.MULTILINE)
    return [f"a machine may have more than one {single[1]}: write [[{single[1]}]]"] if single is not None else []
