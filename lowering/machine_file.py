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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

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
from penstock.dialects.machine import (
    DRAM,
    IMMEDIATE,
    STRIDES,
    BusOp,
    DmaOp,
    IntrinsicOp,
    MachinePart,
    ProcessorOp,
    QueueOp,
    ScopeOp,
    TargetOp,
    UnitOp,
)
from penstock.lowering.machine_reach import reach_faults
from penstock.lowering.tensor_expression import (
    Behaviour,
    ExpressionFault,
    OperandDecl,
    build_behaviour,
    scalar_type,
)
from penstock.lowering.toml_positions import Path, Position, Positions

PART_KINDS: dict[str, type[MachinePart]] = {
    kind.KIND: kind for kind in (ScopeOp, BusOp, UnitOp, ProcessorOp, DmaOp, IntrinsicOp, QueueOp)
}
"""The kinds of parts by the name of their table, in the order in which the target lists them."""

ASSUMED = "assumed"
COVERS = ("source", ASSUMED)
"""The keys that every table may have, and a number written as a table."""
WHOLE_TABLE = "all"
"""The key of an `origin` for all numbers that do not name their own."""

_TOP_LEVEL = ("machine", "sources", *PART_KINDS)
_BEHAVIOUR_KEYS = ("behaviour", "operands", "shape")
_BEHAVIOUR_PROPERTIES = ("operand_names", "strides", "dims", "shape")
_OPERAND_KEYS = ("name", "scope", "dtype", "role", "strides")
_ROLES = {"in": "reads it", "out": "writes it without reading", "inout": "reads and writes it"}
"""The roles of an operand, and what a behaviour does with one."""

_MAX = (1 << 63) - 1
_TYPE_WORDS = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a fraction"),
    (str, "a string"),
    (list, "a list"),
    (dict, "a table"),
)


# Values


class ValueFault(Exception):
    """What is wrong with a value: the message continues the name of its key."""


def _word_for(value: object) -> str:
    """What a TOML value is, in words."""
    return next((word for kind, word in _TYPE_WORDS if isinstance(value, kind)), "a date")


def _read_integer(value: object) -> int:
    """A whole number of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueFault(f"must be an integer, but is {_word_for(value)}")
    if abs(value) > _MAX:
        raise ValueFault(f"must fit into 64 bits, but is {value}")
    return value


def _read_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueFault(f"must be a list, but is {_word_for(value)}")
    return cast(list[object], value)


def _read_table(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueFault(f"must be a table, but is {_word_for(value)}")
    return cast(dict[str, object], value)


def _read_string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueFault(f"must be a string, but is {_word_for(value)}")
    return value


def _read_name(value: object) -> str:
    """A name of a part: an identifier."""
    text = _read_string(value)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueFault(f'must be letters, digits and "_", but is "{text}"')
    return text


def _read_choice(value: object, choices: Collection[str]) -> str:
    text = _read_string(value)
    if text not in choices:
        raise ValueFault(f'must be one of {", ".join(choices)}, but is "{text}"')
    return text


def _read_type(value: object) -> Attribute:
    """An element type."""
    text = _read_string(value)
    found = scalar_type(text)
    if found is None:
        raise ValueFault(f'has the unknown element type "{text}"')
    return found


def _read_extents(value: object) -> list[int]:
    """The extent of a dim, or a range of two."""
    if not isinstance(value, list):
        return [_read_integer(value)]
    extents = [_read_integer(each) for each in cast(list[object], value)]
    if len(extents) != 2:
        raise ValueFault(f"must be an extent or a range of two, but has {len(extents)} numbers")
    return extents


def _conversion(value: object) -> Attribute:
    entries = _read_table(value)
    if sorted(entries) != ["from", "rule", "to"]:
        raise ValueFault("must have exactly the keys from, to and rule")
    rule = StringAttr(_read_string(entries["rule"]))
    return DictionaryAttr({"from": _read_type(entries["from"]), "to": _read_type(entries["to"]), "rule": rule})


def _integer(value: object) -> Attribute:
    return IntegerAttr(_read_integer(value), i64)


def _integers(value: object) -> Attribute:
    return DenseArrayBase.from_list(i64, [_read_integer(each) for each in _read_list(value)])


def _string(value: object) -> Attribute:
    return StringAttr(_read_string(value))


def _name(value: object) -> Attribute:
    return StringAttr(_read_name(value))


def _symbol(value: object) -> Attribute:
    return SymbolRefAttr(_read_name(value))


def _symbols(value: object) -> Attribute:
    return ArrayAttr(SymbolRefAttr(_read_name(each)) for each in _read_list(value))


def _types(value: object) -> Attribute:
    return ArrayAttr(_read_type(each) for each in _read_list(value))


Reader = Callable[[object], Attribute]
"""How the value of a key becomes a property."""

_READERS: dict[type[Attribute], Reader] = {
    IntegerAttr: _integer,
    DenseArrayBase: _integers,
    StringAttr: _string,
    SymbolRefAttr: _symbol,
    ArrayAttr: _symbols,
    DictionaryAttr: _conversion,
}
"""The readers of properties, by the attributes that the operations declare."""
_NAMED_READERS: dict[str, Reader] = {"name": _name, "dtypes": _types}
"""The readers of keys that say more than the declared attribute."""
_STAND_INS: dict[Reader, object] = {_integer: 1, _integers: [], _string: "", _symbol: "_", _symbols: [], _types: []}
"""Values for where the file has no usable one, so that the rest can be checked."""


class Key(NamedTuple):
    """A key of a table: how its value is read, whether it must be there, and whether its numbers need a source."""

    read: Reader
    required: bool = True

    @property
    def is_number(self) -> bool:
        return self.read in (_integer, _integers)


_MACHINE_KEYS = {"name": Key(_string), "freq_mhz": Key(_integer)}


def _part_keys(kind: type[MachinePart]) -> dict[str, Key]:
    """The keys of a kind of part that are properties of its operation, in the order of their declaration."""
    apart = ("origin", *(_BEHAVIOUR_PROPERTIES if kind is IntrinsicOp else ()))
    keys: dict[str, Key] = {}
    for name, declared in kind.get_irdl_definition().properties.items():
        if name in apart:
            continue
        key = "name" if name == "sym_name" else name
        base = next(iter(declared.constr.get_bases() or ()))
        keys[key] = Key(_NAMED_READERS.get(key) or _READERS[base], not isinstance(declared, OptionalDef))
    return keys


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

    def location(self, path: Path) -> FileLineColLoc:
        """The location of the table at `path`."""
        position = self.positions.key(path)
        return FileLineColLoc(StringAttr(position.file), IntAttr(position.line), IntAttr(position.column))

    def sorted(self) -> tuple[UserError, ...]:
        """The faults in the order of the text."""
        return tuple(fault for _, fault in sorted(self._faults, key=lambda entry: entry[0]))


# Tables


class Table:
    """
    A table of the file at `path`, written as `title` in messages.

    Reading a number from it notes in `origin` where the number comes from.
    """

    def __init__(self, log: FaultLog, path: Path, title: str, content: Mapping[str, object], sources: Collection[str]):
        self.log = log
        self.path = path
        self.title = title
        self.content = content
        self.sources = sources
        self._cover = self._read_cover(content, path)
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
            attr = self._property(key, spec)
            if attr is not None:
                found[key] = attr
            elif spec.required:
                named = StringAttr("_" + "_".join(str(step) for step in self.path))
                found[key] = named if key == "name" else spec.read(_STAND_INS[spec.read])
        return found

    def _property(self, key: str, spec: Key) -> Attribute | None:
        value = self.get(key)
        if value is None:
            return None
        try:
            return spec.read(self.number((key,), value) if spec.is_number else value)
        except ValueFault as fault:
            self.log.at_value((*self.path, key), f"{key} {fault}")
            return None

    def number(self, steps: tuple[str, ...], value: object) -> object:
        """
        The plain value of a number `steps` below this table, its origin noted.

        Raises ValueFault for a number written as a table that has no `value`.
        """
        path = (*self.path, *steps)
        name = steps[-1]
        if not isinstance(value, dict):
            # What is no number at all is told so, and needs no source for it.
            if self._cover is None and type(value) in (int, list):
                self.log.at_key(path, f"{name} has neither a source nor assumed = true")
            return value
        entries = cast(dict[str, object], value)
        if "value" not in entries:
            raise ValueFault("must be a number, or a table with a value, but is a table without one")
        known = ("value", *COVERS, "derived")
        for key in entries:
            if key not in known:
                self.log.unknown_key((*path, key), name, known, listed=False)
        cover = self._read_cover(entries, path) or self._cover
        if cover is None:
            self.log.at_key(path, f"{name} has neither a source nor assumed = true")
            return entries["value"]
        own: Attribute = cover
        if isinstance(derived := entries.get("derived", ""), str):
            own = ArrayAttr([cover, StringAttr(derived)]) if derived else cover
        else:
            self.log.at_value((*path, "derived"), f"derived must be a string, but is {_word_for(derived)}")
        if own != self._cover:
            self._own[".".join(steps)] = own
        return entries["value"]

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
        source = entries["source"]
        if not isinstance(source, str):
            self.log.at_value((*path, "source"), f"source must be a string, but is {_word_for(source)}")
            return StringAttr(ASSUMED)
        if source not in self.sources:
            near = did_you_mean(source, self.sources)
            listed = f"[sources] has {', '.join(self.sources)}" if self.sources else "there is no [sources]"
            self.log.at_value((*path, "source"), f'unknown source "{source}"', [near or listed])
        return StringAttr(source)


def _origin(origin: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """The property `origin` of an operation; none if nothing says where its numbers come from."""
    return {"origin": DictionaryAttr(origin)} if origin else {}


class _IntrinsicTable(Table):
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
        text = self.get("behaviour")
        path = (*self.path, "behaviour")
        if text is None:
            return None
        if not isinstance(text, str):
            self.log.at_value(path, f"behaviour must be a string, but is {_word_for(text)}")
            return None
        if operands is None:
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
        if listed is None:
            return None
        try:
            entries = _read_list(listed)
        except ValueFault as fault:
            self.log.at_value(path, f"operands {fault}")
            return None
        if not entries:
            self.log.at_value(path, "operands must list at least one operand")
        operands = [self._read_operand((*path, place), entry) for place, entry in enumerate(entries)]
        return None if self.log.has_fault_in(path) else [decl for decl in operands if decl is not None]

    def _read_operand(self, path: Path, value: object) -> OperandDecl | None:
        if not isinstance(value, dict):
            self.log.at_value(path, f"an operand must be a table, but is {_word_for(value)}")
            return None
        entry = cast(dict[str, object], value)
        for key in entry:
            if key not in _OPERAND_KEYS:
                self.log.unknown_key((*path, key), "an operand", _OPERAND_KEYS, listed=False)
        missing = [key for key in _OPERAND_KEYS[:-1] if key not in entry]
        for key in missing:
            self.log.at_key((*path, key), f'missing key "{key}" in an operand')
        if missing:
            return None
        key = "name"
        try:
            name = _read_name(entry[key])
            if name in self.roles or name == IMMEDIATE:
                raise ValueFault(f'"{name}" is taken')
            key = "scope"
            scope = _read_name(entry[key])
            key = "dtype"
            dtype = _read_type(entry[key])
            key = "role"
            role = _read_choice(entry[key], _ROLES)
            key = "strides"
            strides = _read_choice(entry.get(key, STRIDES[0]), STRIDES)
        except ValueFault as fault:
            self.log.at_value((*path, key), f"{key} {fault}")
            return None
        self.roles[name] = role
        return OperandDecl(name, scope, dtype, strides)

    def _read_shape(self, behaviour: Behaviour | None) -> dict[str, list[int]]:
        """The extents of each dim, as written: one, or a range of two. `dma` intrinsics may leave dims open."""
        if "shape" not in self.content:
            if "dma" not in self.content:
                self.get("shape")
            return {}
        path = (*self.path, "shape")
        shape: dict[str, list[int]] = {}
        try:
            entries = _read_table(self.content["shape"])
        except ValueFault as fault:
            self.log.at_value(path, f"shape {fault}")
            return {}
        for dim, extent in entries.items():
            try:
                shape[dim] = _read_extents(self.number(("shape", dim), extent))
            except ValueFault as fault:
                self.log.at_value((*path, dim), f'dim "{dim}" {fault}')
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
                note = did_you_mean(key, _TOP_LEVEL) or f"the tables are {', '.join(_TOP_LEVEL)}"
                self.log.at_key((key,), f'unknown table "{key}"', [note])
        if "machine" not in self.document:
            self.log.at_key(("machine",), "missing table [machine]")
        elif not isinstance(self.document["machine"], dict):
            self.log.at_key(("machine",), "a file describes one machine: write [machine]")
        if "unit" not in self.document:
            self.log.at_key((), "missing table [[unit]]", ["a machine has at least one unit"])

    def _read_sources(self) -> dict[str, str]:
        try:
            entries = _read_table(self.document.get("sources", {}))
        except ValueFault as fault:
            self.log.at_value(("sources",), f"sources {fault}")
            return {}
        for key, text in entries.items():
            if not isinstance(text, str):
                self.log.at_value(("sources", key), f"source {key} must be a string, but is {_word_for(text)}")
            elif key == ASSUMED:
                self.log.at_key(("sources", key), f'a source cannot be called "{ASSUMED}"')
        return {key: str(text) for key, text in entries.items()}

    def _read_machine(self) -> dict[str, Attribute]:
        content = self.document.get("machine")
        if not isinstance(content, dict):
            return {"sym_name": StringAttr("_"), "frequency": IntegerAttr(1, 64)}
        table = Table(self.log, ("machine",), "[machine]", cast(dict[str, object], content), self.sources)
        read = table.properties(_MACHINE_KEYS)
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
        if not isinstance(value, list):
            self.log.at_key((name,), f"a machine may have more than one {name}: write [[{name}]]")
            if isinstance(value, dict):
                yield (name,), cast(dict[str, object], value)
            return
        for place, content in enumerate(cast(list[object], value)):
            if content is None:
                continue  # a part of the base that is left out
            if isinstance(content, dict):
                yield (name, place), cast(dict[str, object], content)
            else:
                self.log.at_value((name, place), f"a {name} must be a table, but is {_word_for(content)}")

    def _read_part(self, kind: type[MachinePart], path: Path, content: Mapping[str, object]) -> MachinePart:
        is_intrinsic = kind is IntrinsicOp
        title = f"[[{kind.KIND}]]"
        table = (_IntrinsicTable if is_intrinsic else Table)(self.log, path, title, content, self.sources)
        properties = table.properties(_part_keys(kind), _BEHAVIOUR_KEYS if is_intrinsic else ())
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
            self.log.at_value((*path, fault.key, *fault.inside), fault.message, fault.notes)
        return part
