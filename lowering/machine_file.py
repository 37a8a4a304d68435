"""One machine file: from the tables that the TOML reader gives to operations, with every fault on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import cast

from xdsl.dialects.builtin import I64, DictionaryAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute, Block, Region
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.machine import IntrinsicOp, MachinePart, TargetOp
from penstock.lowering.machine_behaviour import check_roles, read_behaviour
from penstock.lowering.machine_reach import reach_faults
from penstock.lowering.machine_schema import (
    BEHAVIOUR_KEYS,
    COVERS,
    MACHINE_KEYS,
    PART_KEYS,
    PART_KINDS,
    word_for,
)
from penstock.lowering.machine_table import ASSUMED, FaultLog, Table
from penstock.lowering.toml_positions import Path

_TOP_LEVEL = ("machine", "sources", *PART_KINDS)


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
        # A key that is at fault already stands in for what the file meant: what follows from it is no news.
        found = [((*paths[part], fault.key), fault) for part, fault in target.faults()]
        for path, fault in [(path, fault) for path, fault in found if not self.log.has_fault_in(path)]:
            self.log.at_value((*path, *fault.inside), fault.message, fault.notes)
        if not self.log.has_fault_in(()):
            for part, fault in reach_faults(target):
                self.log.at_value((*paths[part], fault.key, *fault.inside), fault.message, fault.notes)
        return target

    def _check_top_level(self) -> None:
        for key in self.document:
            if key not in _TOP_LEVEL:
                near = did_you_mean(key, _TOP_LEVEL)
                note = near or f"the tables are {', '.join(_TOP_LEVEL)}"
                self.log.at_key((key,), f'unknown table "{key}"', [note])
        if "machine" not in self.document:
            self.log.at_key(("machine",), "missing table [machine]")
        elif not isinstance(self.document["machine"], dict):
            self.log.at_key(("machine",), "a file describes one machine: write [machine]")
        if "unit" not in self.document:
            self.log.at_key((), "missing table [[unit]]", ["a machine has at least one unit"])

    def _read_sources(self) -> dict[str, str]:
        value = self.document.get("sources", {})
        if not isinstance(value, dict):
            self.log.at_value(("sources",), f"sources must be a table, but is {word_for(value)}")
            return {}
        sources: dict[str, str] = {}
        for key, text in cast(dict[str, object], value).items():
            if not isinstance(text, str):
                self.log.at_value(("sources", key), f"source {key} must be a string, but is {word_for(text)}")
            elif key == ASSUMED:
                self.log.at_key(("sources", key), f'a source cannot be called "{ASSUMED}"')
            sources[key] = str(text)
        return sources

    def _table(self, path: Path, title: str, content: Mapping[str, object]) -> Table:
        return Table(self.log, path, title, content, self.sources)

    def _read_machine(self) -> dict[str, Attribute]:
        value = self.document.get("machine")
        content = cast(dict[str, object], value) if isinstance(value, dict) else {}
        if not isinstance(value, dict):
            return {"sym_name": StringAttr("_"), "frequency": IntegerAttr(1, 64)}
        table = self._table(("machine",), "[machine]", content)
        table.check_keys([*MACHINE_KEYS, *COVERS])
        read = table.properties(MACHINE_KEYS)
        name, frequency = read["name"], read["freq_mhz"]
        assert isinstance(name, StringAttr)
        assert isa(frequency, IntegerAttr[I64])
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name.data):
            self.log.at_value(
                ("machine", "name"), f'name must be letters, digits, "_", "-" and ".", but is "{name.data}"'
            )
        if frequency.value.data < 1:
            self.log.at_value(("machine", "freq_mhz"), f"freq_mhz must be at least 1, but is {frequency.value.data}")
        symbol = re.sub(r"[^A-Za-z0-9_]", "_", name.data)
        properties: dict[str, Attribute] = {"sym_name": StringAttr(symbol)}
        if symbol != name.data:
            properties["machine_name"] = name
        properties["frequency"] = frequency
        if self.sources:
            properties["sources"] = DictionaryAttr({key: StringAttr(text) for key, text in self.sources.items()})
        if table.origin is not None:
            properties["origin"] = _renamed(table.origin)
        return properties

    def _tables(self, name: str) -> Iterator[tuple[Path, Mapping[str, object]]]:
        value = self.document.get(name, [])
        if not isinstance(value, list):
            self.log.at_key((name,), f"a machine may have more than one {name}: write [[{name}]]")
            if isinstance(value, dict):
                yield (name,), cast(dict[str, object], value)
            return
        for place, content in enumerate(cast(list[object], value)):
            if isinstance(content, dict):
                yield (name, place), cast(dict[str, object], content)
            else:
                self.log.at_value((name, place), f"a {name} must be a table, but is {word_for(content)}")

    def _read_part(self, kind: type[MachinePart], path: Path, content: Mapping[str, object]) -> MachinePart:
        table = self._table(path, f"[[{kind.KIND}]]", content)
        behaviour_keys = BEHAVIOUR_KEYS if kind is IntrinsicOp else ()
        table.check_keys([*PART_KEYS[kind], *behaviour_keys, *COVERS])
        properties = table.properties(PART_KEYS[kind])
        if (name := properties.pop("name", None)) is not None:
            properties = {"sym_name": name, **properties}
        regions: list[Region] = []
        behaviour = None
        if kind is IntrinsicOp:
            behaviour = read_behaviour(table)
            # The order of the custom form, so that a machine prints as it does once parsed.
            performer = {key: properties.pop(key) for key in ("sym_name", "unit", "dma") if key in properties}
            properties = {**performer, **behaviour.properties, **properties}
            regions.append(behaviour.region)
        if table.origin is not None:
            properties["origin"] = table.origin
        part = kind.create(properties=properties, location=self.log.location(path), regions=regions)
        # A part with a fault stands in for what the file meant: its own rules would only repeat it.
        if self.log.has_fault_in(path):
            return part
        if isinstance(part, IntrinsicOp) and behaviour is not None:
            check_roles(table, behaviour.roles, part.operand_specs())
        for fault in part.faults():
            self.log.at_value((*path, fault.key, *fault.inside), fault.message, fault.notes)
        return part


def _renamed(origin: DictionaryAttr) -> DictionaryAttr:
    """The origin of the target, whose only number is called otherwise than in the file."""
    keys = {"freq_mhz": "frequency"}
    return DictionaryAttr({keys.get(key, key): value for key, value in origin.data.items()})
