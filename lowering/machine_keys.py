# SPDX-License-Identifier: Apache-2.0
"""
The keys of the tables of a machine file, and what their values are.

A key of a table is the property of the same name of an operation, required or optional as it is declared there, except
that `name` is the symbol; an `[[intrinsic]]` has `behaviour`, `operands` and `shape` instead of the properties that its
behaviour becomes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    i64,
)
from xdsl.ir import Attribute
from xdsl.irdl import OptionalDef

from penstock.dialects.machine import (
    DRAM,
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
    UnitOp,
)
from penstock.dialects.machine.energy import ENERGY_TABLES
from penstock.lowering.tensor_expression import (
    operand_type,
    scalar_type,
)

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

BEHAVIOUR_KEYS = {
    "behaviour": "A tensor expression: one assignment, `=` or `+=`.",
    "operands": "A table for each operand of the behaviour, the written one last.",
    "shape": "For a dim the extents of one application, one or a range `[min, max]`; an engine needs none.",
}
"""The keys of an `[[intrinsic]]` that its behaviour is made of, with what they say."""
_BEHAVIOUR_PROPERTIES = ("operand_names", "strides", "dims", "shape")
ROLES = {"in": "reads it", "out": "writes it without reading", "inout": "reads and writes it"}
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


def read_list(value: object) -> list[object]:
    return cast(list[object], _expect(list, value))


def read_table(value: object) -> Mapping[str, object]:
    return cast(Mapping[str, object], _expect(Mapping, value))


def read_string(value: object) -> str:
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


def read_extents(value: object) -> list[int]:
    """The extent of a dim, or a range of two."""
    if not isinstance(value, list):
        return [_read_integer(value)]
    extents = [_read_integer(each) for each in cast(list[object], value)]
    if len(extents) != 2:
        raise ValueFault(f"must be an extent or a range of two, but has {len(extents)} numbers")
    return extents


def _read_cycles(value: object) -> Attribute:
    """A number of cycles, or the text of an expression of the dims."""
    return StringAttr(value) if isinstance(value, str) else IntegerAttr(_read_integer(value), i64)


def _read_conversion(value: object) -> Attribute:
    entries = read_table(value)
    if sorted(entries) != ["from", "rule", "to"]:
        raise ValueFault("must have exactly the keys from, to and rule")
    rule = StringAttr(read_string(entries["rule"]))
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
    return DictionaryAttr({key: _read_entry(each) for key, each in read_table(value).items()})


def _read_strings(value: object) -> Attribute:
    return ArrayAttr(StringAttr(read_string(each)) for each in read_list(value))


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
    kinds: tuple[type, ...] = (int, list)
    """What a number is in the file."""
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
        lambda value: DenseArrayBase.from_list(i64, [_read_integer(each) for each in read_list(value)]),
        [],
        is_number=True,
    ),
    StringAttr: Key("string", lambda value: StringAttr(read_string(value)), ""),
    SymbolRefAttr: Key("name", lambda value: SymbolRefAttr(_read_name(value)), "_"),
    ArrayAttr: Key(
        "list of names", lambda value: ArrayAttr(SymbolRefAttr(_read_name(each)) for each in read_list(value)), []
    ),
    DictionaryAttr: Key("table", _read_conversion, {}),
}
"""The keys by the attributes that the operations declare for them."""
_ENERGIES = Key("table of [pJ, count]", _KEYS[DenseArrayBase].read, {}, is_number=True, has_entries=True)
_CYCLES = Key("integer or expression", _read_cycles, 1, is_number=True, kinds=(int, str))
_NAMED_KEYS: dict[str, Key] = {
    "ii": _CYCLES,
    "load": _CYCLES,
    "name": Key("name", lambda value: StringAttr(_read_name(value)), "_", meaning="The symbol of the part."),
    "dtypes": Key("list of element types", lambda value: ArrayAttr(map(_read_type, read_list(value))), []),
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
        f"one of {', '.join(ROLES)}",
        lambda value: _read_choice(value, ROLES),
        "What the behaviour does with it: " + "; ".join(f"`{role}` {what}" for role, what in ROLES.items()) + ".",
    ),
    "strides": OperandKey(
        f"one of {', '.join(STRIDES)}",
        lambda value: _read_choice(value, STRIDES),
        "Which strides it permits: `dense`, the default, has no gaps; with `row` rows may be any multiple of the"
        " granule apart, with `granule` every outer dim.",
    ),
}
"""The keys of an operand, all but `strides` required."""


@cache
def part_keys(kind: type[MachinePart]) -> Mapping[str, Key]:
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
