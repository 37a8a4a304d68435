# SPDX-License-Identifier: Apache-2.0
"""One table of a machine file: its values, where its numbers come from, and every fault on the way."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FileLineColLoc,
    IntAttr,
    StringAttr,
    f32,
    i64,
)
from xdsl.ir import Attribute, Region

from penstock.dialects.diagnostics import ExpressionFault, UserError, did_you_mean
from penstock.dialects.machine import (
    DRAM,
    IMMEDIATE,
    STRIDES,
    IntrinsicOp,
)
from penstock.lowering.machine_keys import (
    ASSUMED,
    COVERS,
    OPERAND_KEYS,
    ROLES,
    Key,
    ValueFault,
    read_extents,
    read_list,
    read_string,
    read_table,
)
from penstock.lowering.tensor_expression import (
    Behaviour,
    OperandDecl,
    build_behaviour,
)
from penstock.lowering.toml_positions import Path, Position, Positions

T = TypeVar("T")
WHOLE_TABLE = "all"
"""The key of an `origin` for all numbers that do not name their own."""


# Faults


class FaultLog:
    """The faults of a machine, each at a place in its file, or in one that it extends."""

    def __init__(self, positions: Positions):
        self.positions = positions
        self._faults: list[tuple[Position, UserError]] = []
        self._bad: set[Path] = set()

    def at_key(self, path: Path, message: str, notes: Iterable[str | None] = ()) -> None:
        """A fault of the key at `path`, or of its absence from the table around it."""
        self._add(path, self.positions.key(path), message, notes)

    def at_value(self, path: Path, message: str, notes: Iterable[str | None] = (), *, offset: int = 0) -> None:
        """A fault of the value at `path`, `offset` columns into it."""
        position = self.positions.value(path)
        self._add(path, position._replace(column=position.column + offset), message, notes)

    def read(self, path: Path, label: str, read: Callable[[object], T], value: object) -> T | None:
        """What `read` makes of the value at `path`; None, logged, where it refuses it."""
        try:
            return read(value)
        except ValueFault as fault:
            self.at_value(path, f"{label} {fault}")
            return None

    def unknown_key(self, path: Path, title: str, known: Collection[str], *, listed: bool = True) -> None:
        """A key that a table or value called `title` does not have."""
        note = did_you_mean(str(path[-1]), known) or (f"the keys of {title} are {', '.join(known)}" if listed else None)
        self.at_key(path, f'unknown key "{path[-1]}" in {title}', [note])

    def _add(self, path: Path, position: Position, message: str, notes: Iterable[str | None]) -> None:
        told = [note for note in notes if note is not None]
        self._faults.append((position, UserError(message, loc=str(position), notes=told)))
        self._bad.add(path)

    def has_fault_in(self, path: Path) -> bool:
        """Whether a fault was found at `path` or inside of it."""
        return any(bad[: len(path)] == path for bad in self._bad)

    def has_fault_at(self, path: Path) -> bool:
        """Whether a fault was found at `path` itself."""
        return path in self._bad

    def location(self, path: Path) -> FileLineColLoc:
        """The location of the table at `path`."""
        position = self.positions.key(path)
        return FileLineColLoc(StringAttr(position.file), IntAttr(position.line), IntAttr(position.column))

    def sorted(self) -> tuple[UserError, ...]:
        """The faults in the order of the text."""
        return tuple(fault for _, fault in sorted(self._faults, key=lambda entry: entry[0]))


# Tables


class PartTable:
    """
    A table of the file at `path`, written as `title` in messages.

    Reading a number from it notes in `origin` where the number comes from. In a table that overrides one of a base, a
    `ChainMap`, a number keeps the origin of the table that it is written in.
    """

    def __init__(self, log: FaultLog, path: Path, title: str, content: Mapping[str, object], sources: Collection[str]):
        self.log = log
        self.path = path
        self.title = title
        self.content = content
        self.sources = sources
        *overrides, base = content.maps if isinstance(content, ChainMap) else [content]
        self._cover = self._read_cover(base, path)
        """Of the table of the base."""
        self._covers = dict.fromkeys(base, self._cover)
        for override in reversed(overrides):
            self._covers |= dict.fromkeys(override, self._read_cover(override, path))
        self._own: dict[str, Attribute] = {}

    @property
    def origin(self) -> dict[str, Attribute]:
        """Where the numbers read so far come from: `all` for the whole table, else the number's own key."""
        return ({} if self._cover is None else {WHOLE_TABLE: self._cover}) | self._own

    def get(self, key: str) -> object | None:
        """The value of a required key, or None, logged, if it is missing."""
        if key not in self.content:
            self.log.at_key((*self.path, key), f'missing key "{key}" in {self.title}')
            return None
        return self.content[key]

    def properties(self, keys: Mapping[str, Key], others: Sequence[str] = ()) -> dict[str, Attribute]:
        """
        The properties that `keys` describes, with a stand-in for each that is required and has a fault.

        Keys that are neither in it nor in `others` are logged.
        """
        known = [*keys, *others, *COVERS]
        for key in self.content:
            if key not in known:
                self.log.unknown_key((*self.path, key), self.title, known)
        found: dict[str, Attribute] = {}
        for key, spec in keys.items():
            if key not in self.content and not spec.required:
                continue
            value = self.get(key)
            attr = None if value is None else self._property(key, spec, value)
            if attr is not None:
                found[key] = attr
            elif spec.required:
                named = StringAttr("_" + "_".join(str(step) for step in self.path))
                found[key] = named if key == "name" else spec.read_stand_in()
        return found

    def _property(self, key: str, spec: Key, value: object) -> Attribute | None:
        """The property of a key, or None, logged; what it holds of a table are the entries without a fault."""
        if not spec.has_entries:
            return self.read((key,), key, spec.read, value, is_number=spec.is_number, kinds=spec.kinds)
        entries = self.read((key,), key, read_table, value, is_number=False)
        if entries is None:
            return None
        found: dict[str, Attribute] = {}
        for name, entry in entries.items():
            attr = self.read((key, name), f"{key}.{name}", spec.read, entry, is_number=spec.is_number)
            if attr is not None:
                found[name] = attr
        return DictionaryAttr(found)

    def read(
        self,
        steps: tuple[str, ...],
        label: str,
        read: Callable[[object], T],
        value: object,
        *,
        is_number: bool = True,
        kinds: tuple[type, ...] = (int, list),
    ) -> T | None:
        """What `read` makes of the value `steps` below this table; None, logged, where it refuses it."""
        path = (*self.path, *steps)
        return self.log.read(
            path, label, lambda found: read(self._number(steps, found, kinds) if is_number else found), value
        )

    def _number(self, steps: tuple[str, ...], value: object, kinds: tuple[type, ...]) -> object:
        """
        The plain value of a number `steps` below this table, its origin noted; one is of these kinds.

        Raises ValueFault for a number written as a table that has no `value`.
        """
        path = (*self.path, *steps)
        name = steps[-1]
        cover = self._covers[steps[0]]
        origin: Attribute | None = cover
        if isinstance(value, dict):
            entries = cast(dict[str, object], value)
            if "value" not in entries:
                raise ValueFault("must be a number, or a table with a value, but is a table without one")
            known = ("value", *COVERS, "derived")
            for key in entries:
                if key not in known:
                    self.log.unknown_key((*path, key), name, known, listed=False)
            origin = cover = self._read_cover(entries, path) or cover
            derived = self.log.read((*path, "derived"), "derived", read_string, entries.get("derived", ""))
            if cover is not None and derived:
                origin = ArrayAttr([cover, StringAttr(derived)])
            value = entries["value"]
        elif type(value) not in kinds:
            return value  # What is no number at all is told so, and needs no source for it.
        if origin is None:
            self.log.at_key(path, f"{name} has neither a source nor assumed = true")
        elif origin != self._cover:
            self._own[".".join(steps)] = origin
        return value

    def _read_cover(self, entries: Mapping[str, object], path: Path) -> StringAttr | None:
        """What a table says about the origin of its numbers; a fault in it is logged, and counts as said."""
        if "source" in entries and ASSUMED in entries:
            self.log.at_key((*path, ASSUMED), "either source or assumed, not both")
        if ASSUMED in entries:
            if entries[ASSUMED] is not True:
                self.log.at_value((*path, ASSUMED), "assumed can only be true")
            return StringAttr(ASSUMED)
        if "source" not in entries:
            return None
        source = self.log.read((*path, "source"), "source", read_string, entries["source"])
        if source is None:
            return StringAttr(ASSUMED)
        if source not in self.sources:
            near = did_you_mean(source, self.sources)
            listed = f"[sources] has {', '.join(self.sources)}" if self.sources else "there is no [sources]"
            self.log.at_value((*path, "source"), f'unknown source "{source}"', [near or listed])
        return StringAttr(source)


def origin_of(origin: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """The property `origin` of an operation; none if nothing says where its numbers come from."""
    return {"origin": DictionaryAttr(origin)} if origin else {}


class IntrinsicTable(PartTable):
    """The keys of an `[[intrinsic]]` that say what it does: `behaviour`, `operands` and `shape`."""

    roles: dict[str, str]
    """The role that the file declares for each operand."""

    def read_behaviour(self) -> tuple[dict[str, Attribute], Region]:
        """
        The properties that the behaviour becomes, and its region.

        Faults are logged; a behaviour with one is replaced by a stand-in, so that the rest can be checked.
        """
        self.roles = {}
        operands = self._read_operands()
        behaviour = self._build(operands)
        shape = self._read_shape(behaviour)
        if behaviour is None:
            behaviour = build_behaviour("_[i] = 0", [OperandDecl("_", DRAM, f32, STRIDES[0])])
            shape = dict[str, list[int]]()
        strides = {decl.name: decl.strides for decl in operands or ()}
        properties: dict[str, Attribute] = {
            "operand_names": ArrayAttr(StringAttr(name) for name in behaviour.operands),
            "strides": ArrayAttr(StringAttr(strides.get(name, STRIDES[0])) for name in behaviour.operands),
            "dims": ArrayAttr(StringAttr(dim) for dim in behaviour.dims),
            "shape": ArrayAttr(DenseArrayBase.from_list(i64, shape.get(dim, [])) for dim in behaviour.dims),
        }
        return properties, behaviour.region

    def check_roles(self, part: IntrinsicOp) -> None:
        """Log every operand whose declared role is not what the behaviour does with it."""
        roles = {spec.name: spec.role for spec in part.operand_specs()}
        for place, (name, role) in enumerate(self.roles.items()):
            if (found := roles.get(name, role)) != role:
                self.log.at_value(
                    (*self.path, "operands", place, "role"),
                    f'operand "{name}" has role "{role}", but the behaviour {ROLES[found]}',
                    [f'its role is "{found}"'],
                )

    def _build(self, operands: list[OperandDecl] | None) -> Behaviour | None:
        written = self.get("behaviour")
        path = (*self.path, "behaviour")
        text = None if written is None else self.log.read(path, "behaviour", read_string, written)
        if text is None or operands is None:
            return None
        try:
            return build_behaviour(text, operands)
        except ExpressionFault as fault:
            # The text begins after the quote; where it has line breaks the fault is shown at its beginning.
            offset = 0 if "\n" in text else 1 + fault.column
            self.log.at_value(path, f"behaviour: {fault.message}", fault.notes, offset=offset)
            return None

    def _read_operands(self) -> list[OperandDecl] | None:
        """The declared operands, or None if a fault was logged."""
        listed = self.get("operands")
        path = (*self.path, "operands")
        entries = None if listed is None else self.log.read(path, "operands", read_list, listed)
        if entries is None:
            return None
        if not entries:
            self.log.at_value(path, "operands must list at least one operand")
        operands = [self._read_operand((*path, place), entry) for place, entry in enumerate(entries)]
        return None if self.log.has_fault_in(path) else [decl for decl in operands if decl is not None]

    def _read_operand(self, path: Path, value: object) -> OperandDecl | None:
        entry = self.log.read(path, "an operand", read_table, value)
        if entry is None:
            return None
        for key in entry:
            if key not in OPERAND_KEYS:
                self.log.unknown_key((*path, key), "an operand", [*OPERAND_KEYS], listed=False)
        found: dict[str, Any] = {"strides": STRIDES[0]}
        for key, declared in OPERAND_KEYS.items():
            if key in entry:
                found[key] = self.log.read((*path, key), key, declared.read, entry[key])
            elif key not in found:
                self.log.at_key((*path, key), f'missing key "{key}" in an operand')
        if self.log.has_fault_in(path):
            return None
        name, role = found["name"], found.pop("role")
        if name in self.roles or name == IMMEDIATE:
            self.log.at_value((*path, "name"), f'name "{name}" is taken')
        self.roles[name] = role
        return OperandDecl(**found)

    def _read_shape(self, behaviour: Behaviour | None) -> dict[str, list[int]]:
        """The extents of each dim, as written: one, or a range of two. `dma` intrinsics may leave dims open."""
        if "shape" not in self.content:
            if "dma" not in self.content:
                self.get("shape")
            return {}
        path = (*self.path, "shape")
        shape: dict[str, list[int]] = {}
        for dim, extent in (self.log.read(path, "shape", read_table, self.content["shape"]) or {}).items():
            if (extents := self.read(("shape", dim), f'dim "{dim}"', read_extents, extent)) is not None:
                shape[dim] = extents
        dims = shape if behaviour is None else behaviour.dims
        for dim in shape:
            if dim not in dims:
                note = did_you_mean(dim, dims) or f"its dims are {', '.join(dims)}"
                self.log.at_key((*path, dim), f'the behaviour has no dim "{dim}"', [note])
        return shape
