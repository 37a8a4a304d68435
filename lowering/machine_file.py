"""
One machine file: from the tables that the TOML reader gives to operations, with every fault on the way.

The schema is that of the operations. A key of a table is the property of the same name, required or optional as it is
declared there, except that `name` is the symbol; an `[[intrinsic]]` has `behaviour`, `operands` and `shape` instead of
the properties that its behaviour becomes. Sizes are in bytes, times in cycles; rates are exact fractions [bytes,
cycles]. A number is covered by the `source` or the `assumed = true` of its table, or is written
`{ value = N, source = "key" }`, `{ value = N, assumed = true }`, either with an optional `derived = "..."` that
explains the arithmetic.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FileLineColLoc,
    IntAttr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    f32,
    i64,
)
from xdsl.ir import Attribute, Block, Region
from xdsl.irdl import OptionalDef

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.locations import inherit_locations
from penstock.dialects.machine import (
    DRAM,
    IMMEDIATE,
    STRIDES,
    BusOp,
    CodeOp,
    DmaOp,
    EnergyOp,
    IntrinsicOp,
    MachinePart,
    MemoryOp,
    ProcessorOp,
    QueueOp,
    ScopeOp,
    StateOp,
    TargetOp,
    UnitOp,
)
from penstock.dialects.machine.energy import ENERGY_TABLES
from penstock.lowering.machine_reach import reach_faults
from penstock.lowering.tensor_expression import (
    Behaviour,
    ExpressionFault,
    OperandDecl,
    build_behaviour,
    operand_type,
    scalar_type,
)
from penstock.lowering.toml_positions import Path, Position, Positions

PART_KINDS: dict[str, type[MachinePart]] = {
    kind.KIND: kind
    for kind in (ScopeOp, BusOp, MemoryOp, UnitOp, ProcessorOp, DmaOp, IntrinsicOp, QueueOp, StateOp, EnergyOp, CodeOp)
}
"""The kinds of parts by the name of their table, in the order in which the target lists them."""

SINGLE_KINDS = (EnergyOp.KIND, CodeOp.KIND)
"""The kinds of which a machine has one, written `[kind]`."""

ASSUMED = "assumed"
EXTENDS = "extends"
COVERS = {
    "source": "The key in `[sources]` of the document that the numbers beside it are from.",
    ASSUMED: "`true` where no document says the numbers beside it.",
}
"""The keys that every table may have, and a number written as a table, with what they say."""
WHOLE_TABLE = "all"
"""The key of an `origin` for all numbers that do not name their own."""

_TOP_LEVEL = ("machine", "sources", *PART_KINDS)
BEHAVIOUR_KEYS = {
    "behaviour": "A tensor expression: one assignment, `=` or `+=`.",
    "operands": "A table for each operand of the behaviour, the written one last.",
    "shape": "For a dim the extents of one application, one or a range `[min, max]`; an engine needs none.",
}
"""The keys of an `[[intrinsic]]` that its behaviour is made of, with what they say."""
_BEHAVIOUR_PROPERTIES = ("operand_names", "strides", "dims", "shape")
_ROLES = {"in": "reads it", "out": "writes it without reading", "inout": "reads and writes it"}
"""The roles of an operand, and what a behaviour does with one."""

_MAX = (1 << 63) - 1
_WORDS: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a fraction",
    str: "a string",
    list: "a list",
    Mapping: "a table",
}

T = TypeVar("T")


# Values


class ValueFault(Exception):
    """What is wrong with a value: the message continues the name of its key."""


def _word_for(value: object) -> str:
    """What a TOML value is, in words."""
    return next((word for kind, word in _WORDS.items() if isinstance(value, kind)), "a date")


def _expect(kind: type[T], value: object) -> T:
    """A value that must be of this kind."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueFault(f"must be {_WORDS[kind]}, but is {_word_for(value)}")
    return value


def _read_integer(value: object) -> int:
    """A whole number of 64 bits."""
    number = _expect(int, value)
    if abs(number) > _MAX:
        raise ValueFault(f"must fit into 64 bits, but is {number}")
    return number


def _read_list(value: object) -> list[object]:
    return cast(list[object], _expect(list, value))


def _read_table(value: object) -> Mapping[str, object]:
    return cast(Mapping[str, object], _expect(Mapping, value))


def _read_string(value: object) -> str:
    return _expect(str, value)


def _read_name(value: object) -> str:
    """A name of a part: an identifier."""
    text = _expect(str, value)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueFault(f'must be letters, digits and "_", but is "{text}"')
    return text


def _read_choice(value: object, choices: Collection[str]) -> str:
    text = _expect(str, value)
    if text not in choices:
        raise ValueFault(f'must be one of {", ".join(choices)}, but is "{text}"')
    return text


def _read_type(value: object) -> Attribute:
    """An element type."""
    text = _expect(str, value)
    found = scalar_type(text)
    if found is None:
        raise ValueFault(f'has the unknown element type "{text}"')
    return found


def _read_operand_type(value: object) -> Attribute:
    """An element type, with or without a sign."""
    text = _expect(str, value)
    return operand_type(text) or _read_type(text)


def _read_extents(value: object) -> list[int]:
    """The extent of a dim, or a range of two."""
    if not isinstance(value, list):
        return [_read_integer(value)]
    extents = [_read_integer(each) for each in cast(list[object], value)]
    if len(extents) != 2:
        raise ValueFault(f"must be an extent or a range of two, but has {len(extents)} numbers")
    return extents


def _read_conversion(value: object) -> Attribute:
    entries = _read_table(value)
    if sorted(entries) != ["from", "rule", "to"]:
        raise ValueFault("must have exactly the keys from, to and rule")
    rule = StringAttr(_read_string(entries["rule"]))
    return DictionaryAttr({"from": _read_type(entries["from"]), "to": _read_type(entries["to"]), "rule": rule})


def _read_entry(value: object) -> Attribute:
    """A number or a text, or a table of them."""
    match value:
        case int() if not isinstance(value, bool):
            return IntegerAttr(_read_integer(value), i64)
        case str():
            return StringAttr(value)
        case _:
            return _read_entries(value)


def _read_entries(value: object) -> Attribute:
    return DictionaryAttr({key: _read_entry(each) for key, each in _read_table(value).items()})


def _read_strings(value: object) -> Attribute:
    return ArrayAttr(StringAttr(_read_string(each)) for each in _read_list(value))


@dataclass(frozen=True)
class Key:
    """A key of a table that is a property."""

    form: str
    """What it holds, in words."""
    read: Callable[[object], Attribute]
    """Makes the property of its value."""
    stand_in: object
    """A value for where the file has no usable one, so that the rest can be checked."""
    is_number: bool = False
    """Whether it needs a source."""
    has_entries: bool = False
    """Whether it is a table, each entry of which is so: `read` makes the property of one."""
    required: bool = True
    """Whether the table must have it."""
    meaning: str = ""
    """What it says, where the property of its name does not."""

    def read_stand_in(self) -> Attribute:
        """The property of the stand-in."""
        return DictionaryAttr({}) if self.has_entries else self.read(self.stand_in)


_KEYS: dict[type[Attribute], Key] = {
    IntegerAttr: Key("integer", lambda value: IntegerAttr(_read_integer(value), i64), 1, is_number=True),
    DenseArrayBase: Key(
        "list of integers",
        lambda value: DenseArrayBase.from_list(i64, [_read_integer(each) for each in _read_list(value)]),
        [],
        is_number=True,
    ),
    StringAttr: Key("string", lambda value: StringAttr(_read_string(value)), ""),
    SymbolRefAttr: Key("name", lambda value: SymbolRefAttr(_read_name(value)), "_"),
    ArrayAttr: Key(
        "list of names", lambda value: ArrayAttr(SymbolRefAttr(_read_name(each)) for each in _read_list(value)), []
    ),
    DictionaryAttr: Key("table", _read_conversion, {}),
}
"""The keys by the attributes that the operations declare for them."""
_ENERGIES = Key("table of [pJ, count]", _KEYS[DenseArrayBase].read, {}, is_number=True, has_entries=True)
_NAMED_KEYS: dict[str, Key] = {
    "name": Key("name", lambda value: StringAttr(_read_name(value)), "_", meaning="The symbol of the part."),
    "dtypes": Key("list of element types", lambda value: ArrayAttr(map(_read_type, _read_list(value))), []),
    "headers": Key("list of strings", _read_strings, []),
    "files": Key("list of strings", _read_strings, []),
    "holds": Key("list of strings", _read_strings, []),
    "block": Key("table", _read_entries, {}),
    "requires": Key("list of strings", _read_strings, []),
    "settings": Key("table of tables", _read_entries, {}),
    "costs": Key("table of integers", _KEYS[IntegerAttr].read, {}, is_number=True, has_entries=True),
    **dict.fromkeys(ENERGY_TABLES, _ENERGIES),
}
"""The keys that say more than the declared attribute."""
MACHINE_KEYS = {
    "name": replace(_KEYS[StringAttr], meaning="Of the machine; its symbol has `_` for what a symbol cannot hold."),
    "freq_mhz": replace(_KEYS[IntegerAttr], meaning="The frequency in MHz of the clock that all cycles count."),
}
"""The keys of `[machine]`, besides `extends`."""


@dataclass(frozen=True)
class OperandKey:
    """A key of an operand of a behaviour."""

    form: str
    """What it holds, in words."""
    read: Callable[[object], Any]
    """Makes the field of its value."""
    meaning: str
    """What it says."""


OPERAND_KEYS: dict[str, OperandKey] = {
    "name": OperandKey("name", _read_name, "As the behaviour calls it."),
    "scope": OperandKey("name", _read_name, f'The scope that it lies in, or `"{DRAM}"`, which only an engine reaches.'),
    "dtype": OperandKey("element type", _read_operand_type, "Of its elements; `ui8` has no sign."),
    "role": OperandKey(
        f"one of {', '.join(_ROLES)}",
        lambda value: _read_choice(value, _ROLES),
        "What the behaviour does with it: " + "; ".join(f"`{role}` {what}" for role, what in _ROLES.items()) + ".",
    ),
    "strides": OperandKey(
        f"one of {', '.join(STRIDES)}",
        lambda value: _read_choice(value, STRIDES),
        "Which strides it permits: `dense`, the default, has no gaps; with `row` rows may be any multiple of the"
        " granule apart, with `granule` every outer dim.",
    ),
}
"""The keys of an operand, all but `strides` required."""


def part_keys(kind: type[MachinePart]) -> dict[str, Key]:
    """The keys of a kind of part that are properties of its operation, in the order of their declaration."""
    apart = ("origin", "sym_name", *(_BEHAVIOUR_PROPERTIES if kind is IntrinsicOp else ()))
    properties = kind.get_irdl_definition().properties
    keys = {"name": _NAMED_KEYS["name"]} if "sym_name" in properties else {}
    for key, declared in properties.items():
        if key not in apart:
            found = _NAMED_KEYS.get(key) or _KEYS[next(iter(declared.constr.get_bases() or ()))]
            keys[key] = replace(found, required=not isinstance(declared, OptionalDef))
    return keys


def is_number(kind: str, keys: Sequence[str]) -> bool:
    """Whether what `keys` lead to in a part of a kind, or in `machine`, is a number, which needs a source."""
    if kind == "machine":
        return len(keys) == 1 and keys[0] in MACHINE_KEYS and MACHINE_KEYS[keys[0]].is_number
    if kind == IntrinsicOp.KIND and keys[0] == "shape":
        return len(keys) <= 2
    found = part_keys(PART_KINDS[kind]).get(keys[0])
    return found is not None and found.is_number and len(keys) == 1 + found.has_entries


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
            return self.read((key,), key, spec.read, value, is_number=spec.is_number)
        entries = self.read((key,), key, _read_table, value, is_number=False)
        if entries is None:
            return None
        found: dict[str, Attribute] = {}
        for name, entry in entries.items():
            attr = self.read((key, name), f"{key}.{name}", spec.read, entry, is_number=spec.is_number)
            if attr is not None:
                found[name] = attr
        return DictionaryAttr(found)

    def read(
        self, steps: tuple[str, ...], label: str, read: Callable[[object], T], value: object, *, is_number: bool = True
    ) -> T | None:
        """What `read` makes of the value `steps` below this table; None, logged, where it refuses it."""
        path = (*self.path, *steps)
        return self.log.read(path, label, lambda found: read(self._number(steps, found) if is_number else found), value)

    def _number(self, steps: tuple[str, ...], value: object) -> object:
        """
        The plain value of a number `steps` below this table, its origin noted.

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
            derived = self.log.read((*path, "derived"), "derived", _read_string, entries.get("derived", ""))
            if cover is not None and derived:
                origin = ArrayAttr([cover, StringAttr(derived)])
            value = entries["value"]
        elif type(value) not in (int, list):
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
        source = self.log.read((*path, "source"), "source", _read_string, entries["source"])
        if source is None:
            return StringAttr(ASSUMED)
        if source not in self.sources:
            near = did_you_mean(source, self.sources)
            listed = f"[sources] has {', '.join(self.sources)}" if self.sources else "there is no [sources]"
            self.log.at_value((*path, "source"), f'unknown source "{source}"', [near or listed])
        return StringAttr(source)


def _origin(origin: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """The property `origin` of an operation; none if nothing says where its numbers come from."""
    return {"origin": DictionaryAttr(origin)} if origin else {}


class _IntrinsicTable(PartTable):
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
                    f'operand "{name}" has role "{role}", but the behaviour {_ROLES[found]}',
                    [f'its role is "{found}"'],
                )

    def _build(self, operands: list[OperandDecl] | None) -> Behaviour | None:
        written = self.get("behaviour")
        path = (*self.path, "behaviour")
        text = None if written is None else self.log.read(path, "behaviour", _read_string, written)
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
        entries = None if listed is None else self.log.read(path, "operands", _read_list, listed)
        if entries is None:
            return None
        if not entries:
            self.log.at_value(path, "operands must list at least one operand")
        operands = [self._read_operand((*path, place), entry) for place, entry in enumerate(entries)]
        return None if self.log.has_fault_in(path) else [decl for decl in operands if decl is not None]

    def _read_operand(self, path: Path, value: object) -> OperandDecl | None:
        entry = self.log.read(path, "an operand", _read_table, value)
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
        for dim, extent in (self.log.read(path, "shape", _read_table, self.content["shape"]) or {}).items():
            if (extents := self.read(("shape", dim), f'dim "{dim}"', _read_extents, extent)) is not None:
                shape[dim] = extents
        dims = shape if behaviour is None else behaviour.dims
        for dim in shape:
            if dim not in dims:
                note = did_you_mean(dim, dims) or f"its dims are {', '.join(dims)}"
                self.log.at_key((*path, dim), f'the behaviour has no dim "{dim}"', [note])
        return shape


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
        entries = self.log.read(("sources",), "sources", _read_table, self.document.get("sources", {})) or {}
        for key, text in entries.items():
            self.log.read(("sources", key), f"source {key}", _read_string, text)
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
        return properties | _origin(origin)

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
            yield (name, place), table

    def _read_listed(self, path: Path, content: object) -> Mapping[str, object] | None:
        """One of the tables of a kind; None where there is none, or a part of the base was removed."""
        return None if content is None else self.log.read(path, f"a {path[0]}", _read_table, content)

    def _read_part(self, kind: type[MachinePart], path: Path, content: Mapping[str, object]) -> MachinePart:
        is_intrinsic = kind is IntrinsicOp
        title = f"[[{kind.KIND}]]"
        table = (_IntrinsicTable if is_intrinsic else PartTable)(self.log, path, title, content, self.sources)
        properties = table.properties(part_keys(kind), [*BEHAVIOUR_KEYS] if is_intrinsic else ())
        if (name := properties.pop("name", None)) is not None:
            properties = {"sym_name": name, **properties}
        regions: list[Region] = []
        if isinstance(table, _IntrinsicTable):
            behaviour, region = table.read_behaviour()
            # The order of the custom form, so that a machine prints as it does once parsed.
            performer = {key: properties.pop(key) for key in ("sym_name", "unit", "dma") if key in properties}
            properties = {**performer, **behaviour, **properties}
            regions.append(region)
        part = kind.create(
            properties=properties | _origin(table.origin), location=self.log.location(path), regions=regions
        )
        # A part with a fault stands in for what the file meant: its own rules would only repeat it.
        if self.log.has_fault_in(path):
            return part
        if isinstance(part, IntrinsicOp) and isinstance(table, _IntrinsicTable):
            table.check_roles(part)
        for fault in part.faults():
            self.log.at_value((*path, fault.key, *fault.inside), fault.message, fault.notes, offset=fault.offset)
        return part
