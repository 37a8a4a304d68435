# SPDX-License-Identifier: Apache-2.0
"""
One machine file: from the tables that the TOML reader gives to operations, with every fault on the way.

The schema is that of the operations (`machine_keys`). Sizes are in bytes, times in cycles; rates are exact fractions
[bytes, cycles]. A number is covered by the `source` or the `assumed = true` of its table, or is written
`{ value = N, source = "key" }`, `{ value = N, assumed = true }`, either with an optional `derived = "..."` that
explains the arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from xdsl.dialects.builtin import (
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import Attribute, Block, Region

from penstock.dialects.diagnostics import did_you_mean, nearest_or_all
from penstock.dialects.locations import inherit_locations
from penstock.dialects.machine import (
    IntrinsicOp,
    MachinePart,
    TargetOp,
)
from penstock.lowering.machine_keys import (
    ASSUMED,
    BEHAVIOUR_KEYS,
    EXTENDS,
    MACHINE_KEYS,
    PART_KINDS,
    SINGLE_KINDS,
    part_keys,
    read_string,
    read_table,
)
from penstock.lowering.machine_reach import reach_faults
from penstock.lowering.machine_tables import (
    FaultLog,
    IntrinsicTable,
    PartTable,
    origin_of,
)
from penstock.lowering.machine_templates import TEMPLATE
from penstock.lowering.toml_positions import Path

_TOP_LEVEL = ("machine", "sources", TEMPLATE, *PART_KINDS)


# The file


class MachineFile:
    """Reads the parsed `document` of a machine file; what is wrong with it goes to `log`."""

    def __init__(self, document: Mapping[str, object], log: FaultLog):
        self.document = document
        self.log = log
        self.sources = self._read_sources()

    def target(self) -> TargetOp:
        """The machine, which is of use only if no fault was logged."""
        self._check_top_level()
        properties = self._read_machine()
        paths: dict[MachinePart, Path] = {}
        for name, kind in PART_KINDS.items():
            for path, content in self._tables(name):
                paths[self._read_part(kind, path, content)] = path
        target = TargetOp.create(
            properties=properties,
            location=self.log.location(("machine",)),
            regions=[Region(Block(list(paths)))],
        )
        # A key that is at fault already stands in for what the file meant: what follows from it is no news, nor is
        # that a part is unknown whose table could not be read.
        are_read = not any(self.log.has_fault_at((name,)) for name in PART_KINDS)
        found = [((*paths[part], fault.key), fault) for part, fault in (target.faults() if are_read else ())]
        for path, fault in [(path, fault) for path, fault in found if not self._is_stand_in(path)]:
            self.log.at_value((*path, *fault.inside), fault.message, fault.notes, offset=fault.offset)
        if not self.log.has_fault_in(()):
            for part, fault in reach_faults(target):
                self.log.at_value((*paths[part], fault.key, *fault.inside), fault.message, fault.notes)
        inherit_locations(target)
        return target

    def _is_stand_in(self, path: Path) -> bool:
        """Whether the value at a path was not usable; without a behaviour there are no operands to speak of."""
        *around, key = path
        keys = (key, "behaviour") if key == "operands" else (key,)
        return any(self.log.has_fault_in((*around, each)) for each in keys)

    def _check_top_level(self) -> None:
        for key in self.document:
            if key not in _TOP_LEVEL:
                note = did_you_mean(key, _TOP_LEVEL) or f"the tables are {', '.join(_TOP_LEVEL)}"
                self.log.at_key((key,), f'unknown table "{key}"', [note])
        if "machine" not in self.document:
            self.log.at_key(("machine",), "missing table [machine]")
        elif not isinstance(self.document["machine"], Mapping):
            self.log.at_key(("machine",), "a file describes one machine: write [machine]")
        if "unit" not in self.document:
            self.log.at_key((), "missing table [[unit]]", ["a machine has at least one unit"])

    def _read_sources(self) -> dict[str, str]:
        entries = self.log.read(("sources",), "sources", read_table, self.document.get("sources", {})) or {}
        for key, text in entries.items():
            self.log.read(("sources", key), f"source {key}", read_string, text)
            if key == ASSUMED:
                self.log.at_key(("sources", key), f'a source cannot be called "{ASSUMED}"')
        return {key: str(text) for key, text in entries.items()}

    def _read_machine(self) -> dict[str, Attribute]:
        content = self.document.get("machine")
        if not isinstance(content, Mapping):
            return {"sym_name": StringAttr("_"), "frequency": IntegerAttr(1, 64)}
        table = PartTable(self.log, ("machine",), "[machine]", cast(Mapping[str, object], content), self.sources)
        read = table.properties(MACHINE_KEYS, [EXTENDS])
        name, frequency = cast(StringAttr, read["name"]), cast(IntegerAttr, read["freq_mhz"])
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name.data):
            message = f'name must be letters, digits, "_", "-" and ".", but is "{name.data}"'
            self.log.at_value(("machine", "name"), message)
        if frequency.value.data < 1:
            self.log.at_value(("machine", "freq_mhz"), f"freq_mhz must be at least 1, but is {frequency.value.data}")
        symbol = re.sub(r"[^A-Za-z0-9_]", "_", name.data)
        properties: dict[str, Attribute] = {"sym_name": StringAttr(symbol)}
        if symbol != name.data:
            properties["machine_name"] = name
        properties["frequency"] = frequency
        if self.sources:
            properties["sources"] = DictionaryAttr({key: StringAttr(text) for key, text in self.sources.items()})
        # The only number of a machine has another name in the file.
        origin = {("frequency" if key == "freq_mhz" else key): value for key, value in table.origin.items()}
        return properties | origin_of(origin)

    def _tables(self, name: str) -> Iterator[tuple[Path, Mapping[str, object]]]:
        value = self.document.get(name, [])
        if name in SINGLE_KINDS:
            if isinstance(value, Mapping):
                yield (name,), cast(Mapping[str, object], value)
            elif value:
                self.log.at_key((name,), f"a machine has one {name}: write [{name}]")
            return
        if not isinstance(value, list):
            self.log.at_key((name,), f"a machine may have more than one {name}: write [[{name}]]")
            return
        tables = [self._read_listed((name, place), content) for place, content in enumerate(cast(list[object], value))]
        for place, table in enumerate(tables):
            if table is None:
                continue
            if table.get("remove") is True:
                names = [str(each.get("name")) for each in tables if each is not None and each is not table]
                note = did_you_mean(str(table.get("name")), names)
                self.log.at_key((name, place, "remove"), f"there is no such {name} to remove", [note])
                continue
            # Without what it lacks nothing else of it can be checked.
            if self._is_misnamed((name, place), table, tables):
                continue
            yield (name, place), table

    def _is_misnamed(
        self, path: Path, table: Mapping[str, object], parts: Sequence[Mapping[str, object] | None]
    ) -> bool:
        """Whether a part says too little for a new one, and changes none of the base; logged, with what it may mean."""
        kind, name = str(path[0]), table.get("name")
        keys = part_keys(PART_KINDS[kind])
        required = [key for key, spec in keys.items() if spec.required]
        required += ["behaviour", "operands"] if PART_KINDS[kind] is IntrinsicOp else []
        missing = [key for key in required if key not in table]
        position = self.log.positions.key
        order = position(path).order
        inherited = [
            str(part.get("name"))
            for place, part in enumerate(parts)
            if part is not None and position((kind, place)).order > order
        ]
        if not isinstance(name, str) or not missing or not inherited:
            return False
        message = f'the base has no {kind} "{name}" to change, and a new one needs {", ".join(missing)}'
        self.log.at_value((*path, "name"), message, [nearest_or_all(name, inherited, "of the base")])
        return True

    def _read_listed(self, path: Path, content: object) -> Mapping[str, object] | None:
        """One of the tables of a kind; None where there is none, or a part of the base was removed."""
        return None if content is None else self.log.read(path, f"a {path[0]}", read_table, content)

    def _read_part(self, kind: type[MachinePart], path: Path, content: Mapping[str, object]) -> MachinePart:
        is_intrinsic = kind is IntrinsicOp
        title = f"[[{kind.KIND}]]"
        table = (IntrinsicTable if is_intrinsic else PartTable)(self.log, path, title, content, self.sources)
        properties = table.properties(part_keys(kind), [*BEHAVIOUR_KEYS] if is_intrinsic else ())
        if (name := properties.pop("name", None)) is not None:
            properties = {"sym_name": name, **properties}
        regions: list[Region] = []
        if isinstance(table, IntrinsicTable):
            behaviour, region = table.read_behaviour()
            # The order of the custom form, so that a machine prints as it does once parsed.
            performer = {key: properties.pop(key) for key in ("sym_name", "unit", "dma") if key in properties}
            properties = {**performer, **behaviour, **properties}
            regions.append(region)
        part = kind.create(
            properties=properties | origin_of(table.origin), location=self.log.location(path), regions=regions
        )
        # A part with a fault stands in for what the file meant: its own rules would only repeat it.
        if self.log.has_fault_in(path):
            return part
        if isinstance(part, IntrinsicOp) and isinstance(table, IntrinsicTable):
            table.check_roles(part)
        for fault in part.faults():
            self.log.at_value((*path, fault.key, *fault.inside), fault.message, fault.notes, offset=fault.offset)
        return part
