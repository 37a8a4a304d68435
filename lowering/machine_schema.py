"""
The schema of machine files: the keys of each table, and how a value becomes a property of the operation.

A key of a table is the property of the same name, except that `name` is the symbol. Sizes are in bytes, times in
cycles; rates are exact fractions [bytes, cycles]. A number is covered by the `source` or the `assumed = true` of
its table, or is written `{ value = N, source = "key" }`, `{ value = N, assumed = true }`, either with an optional
`derived = "..."` that explains the arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

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

from penstock.dialects.machine import (
    BusOp,
    DmaOp,
    IntrinsicOp,
    MachinePart,
    ProcessorOp,
    QueueOp,
    ScopeOp,
    UnitOp,
)
from penstock.lowering.scalar_expression import scalar_type

_MAX = (1 << 63) - 1
_TYPE_WORDS = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a fraction"),
    (str, "a string"),
    (list, "a list"),
    (dict, "a table"),
)


class ValueFault(Exception):
    """What is wrong with a value: the message continues the name of its key."""


def word_for(value: object) -> str:
    """What a TOML value is, in words."""
    for each, word in _TYPE_WORDS:
        if isinstance(value, each):
            return word
    return "a date"


def read_integer(value: object) -> int:
    """A whole number of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueFault(f"must be an integer, but is {word_for(value)}")
    if abs(value) > _MAX:
        raise ValueFault(f"must fit into 64 bits, but is {value}")
    return value


def read_list(value: object) -> list[object]:
    """A list of anything."""
    if not isinstance(value, list):
        raise ValueFault(f"must be a list, but is {word_for(value)}")
    return cast(list[object], value)


def read_string(value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueFault(f"must be a string, but is {word_for(value)}")
    return value


def read_name(value: object) -> str:
    """A name of a part: an identifier."""
    text = read_string(value)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueFault(f'must be letters, digits and "_", but is "{text}"')
    return text


def read_type(value: object) -> Attribute:
    """An element type."""
    text = read_string(value)
    found = scalar_type(text)
    if found is None:
        raise ValueFault(f'has the unknown element type "{text}"')
    return found


def _integer(value: object) -> Attribute:
    return IntegerAttr(read_integer(value), i64)


def _integers(value: object) -> Attribute:
    return DenseArrayBase.from_list(i64, [read_integer(each) for each in read_list(value)])


def _string(value: object) -> Attribute:
    return StringAttr(read_string(value))


def _symbol_name(value: object) -> Attribute:
    return StringAttr(read_name(value))


def _symbol(value: object) -> Attribute:
    return SymbolRefAttr(read_name(value))


def _symbols(value: object) -> Attribute:
    return ArrayAttr(SymbolRefAttr(read_name(each)) for each in read_list(value))


def _types(value: object) -> Attribute:
    return ArrayAttr(read_type(each) for each in read_list(value))


def _conversion(value: object) -> Attribute:
    if not isinstance(value, dict):
        raise ValueFault(f"must be a table, but is {word_for(value)}")
    entries = cast(dict[str, object], value)
    if sorted(entries) != ["from", "rule", "to"]:
        raise ValueFault("must have exactly the keys from, to and rule")
    return DictionaryAttr(
        {
            "from": read_type(entries["from"]),
            "to": read_type(entries["to"]),
            "rule": StringAttr(read_string(entries["rule"])),
        }
    )


Reader = Callable[[object], Attribute]

_STAND_INS: dict[Reader, object] = {
    _integer: 1,
    _integers: [],
    _string: "",
    _symbol: "_",
    _symbols: [],
    _types: [],
}


@dataclass(frozen=True)
class Key:
    """A key of a table: how its value is read, whether it must be there, and whether it is a number."""

    read: Reader
    required: bool = True

    @property
    def is_number(self) -> bool:
        """Whether the value is a number, or some, which need a source."""
        return self.read in (_integer, _integers)

    @property
    def stand_in(self) -> Attribute:
        """A value for the property where the file has no usable one, so that the rest can be checked."""
        return self.read(_STAND_INS[self.read])


def _optional(read: Reader) -> Key:
    return Key(read, required=False)


COVERS = ("source", "assumed")
"""The keys that every table may have, and a number written as a table."""

MACHINE_KEYS = {"name": Key(_string), "freq_mhz": Key(_integer)}

PART_KEYS: dict[type[MachinePart], dict[str, Key]] = {
    ScopeOp: {
        "name": Key(_symbol_name),
        "size": Key(_integer),
        "granule": Key(_integer),
        "banks": _optional(_integer),
        "dtypes": Key(_types),
        "rate": _optional(_integers),
        "parent": _optional(_symbol),
    },
    BusOp: {"name": Key(_symbol_name), "rate": Key(_integers)},
    UnitOp: {"name": Key(_symbol_name)},
    ProcessorOp: {"name": Key(_symbol_name), "ops": Key(_integers), "rate": Key(_integers)},
    DmaOp: {
        "name": Key(_symbol_name),
        "unit": Key(_symbol),
        "from": Key(_symbols),
        "to": Key(_symbols),
        "bus": _optional(_symbol),
        "dims": Key(_integer),
        "max_count": _optional(_integers),
        "max_stride": _optional(_integer),
        "pad_max": _optional(_integer),
        "align": _optional(_integer),
        "latency": Key(_integer),
        "row_overhead": Key(_integer),
        "outstanding": Key(_integer),
        "convert": _optional(_conversion),
    },
    QueueOp: {
        "from": Key(_symbol),
        "to": Key(_symbol),
        "capacity": Key(_integer),
        "on_full": Key(_string),
        "initial": _optional(_integer),
    },
    IntrinsicOp: {
        "name": Key(_symbol_name),
        "unit": _optional(_symbol),
        "dma": _optional(_symbol),
        "ii": _optional(_integer),
        "depth": _optional(_integer),
        "max_iterations": _optional(_integers),
        "micro_ops": _optional(_integer),
        "imm_bits": _optional(_integer),
    },
}
"""The keys of each kind of part; those of an intrinsic that describe its behaviour are in `BEHAVIOUR_KEYS`."""

BEHAVIOUR_KEYS = ("behaviour", "operands", "shape")
OPERAND_KEYS = ("name", "scope", "dtype", "role", "strides")

PART_KINDS: dict[str, type[MachinePart]] = {
    kind.KIND: kind for kind in (ScopeOp, BusOp, UnitOp, ProcessorOp, DmaOp, IntrinsicOp, QueueOp)
}
"""The kinds of parts by the name of their table, in the order in which the target lists them."""
