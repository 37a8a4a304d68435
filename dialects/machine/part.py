# SPDX-License-Identifier: Apache-2.0
"""What parts of a machine are: their numbers, where those come from, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
)
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation, opt_prop_def, prop_def, traits_def
from xdsl.traits import SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

DRAM = "dram"
"""The name of everything off chip; no scope may be called so, and its memrefs have no memory space."""

HOST = "host"
"""The device that is always there: what no machine runs, the host does."""

REGISTERS = "registers"
"""The scope of a processor's vector registers: its buffers are local variables of generated C."""

DENSE = "dense"
STRIDES = (DENSE, "row", "granule")
"""What an operand permits: no gaps; rows any multiple of the granule apart; the same for every outer dim."""

IMMEDIATE = "imm"
"""The role, and in a machine file the name, of a scalar that travels in the instruction."""

CONVERT_RULES = ("truncate", "saturate")
FULL_POLICIES = ("error", "block")

TARGET = "machine.target"
"""The name of the op around all parts."""


class PartFault(NamedTuple):
    """What is wrong with a part, and which of its keys is to blame."""

    key: str
    message: str
    notes: tuple[str, ...] = ()
    inside: tuple[str | int, ...] = ()
    """The way from the key's value in a machine file to the place in it that is meant."""
    offset: int = 0
    """Columns from the beginning of that place."""


def int_of(attr: IntegerAttr[I64] | None, default: int = 0) -> int:
    """The value of an integer property, or `default` where it is absent."""
    return default if attr is None else attr.value.data


def ints_of(attr: DenseArrayBase[I64] | None) -> tuple[int, ...]:
    """The values of a list property, or none where it is absent."""
    return () if attr is None else tuple(attr.iter_values())


def names_of(refs: ArrayAttr[SymbolRefAttr]) -> tuple[str, ...]:
    """The names that a list of symbol references refers to."""
    return tuple(ref.root_reference.data for ref in refs)


def name_of(ref: SymbolRefAttr | None) -> str | None:
    """The name that a symbol reference refers to."""
    return None if ref is None else ref.root_reference.data


def numbers_of(attr: Attribute) -> tuple[int, ...]:
    """The numbers in a property: one, several, or none where it holds something else."""
    # Every verification comes here: `isa` on the full types would take most of its time.
    if isinstance(attr, IntegerAttr):
        return (attr.value.data,)
    if isinstance(attr, DenseArrayBase):
        return tuple(cast(DenseArrayBase[I64], attr).iter_values())
    return ()


class IntegerProperty(property):
    """An integer property of an op as a number; `default` where it is absent."""

    def __init__(self, key: str, default: int = 0):
        super().__init__(lambda op: numbers_of(op.properties[key])[0] if key in op.properties else default)

    if TYPE_CHECKING:

        def __get__(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, instance: object, owner: type | None = None, /
        ) -> int: ...


class MachinePart(IRDLOperation):
    """
    A part of a `machine.target`.

    `origin` says where its numbers come from: `all` for the whole table, else the number's own key. Each value is
    a key of the target's `sources`, or `"assumed"`; a pair adds the arithmetic by which the number was derived. The
    string under a property is what the reference says of its key in a machine file.
    """

    KIND: ClassVar[str]
    """The word for such a part, as in a machine file."""
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ()
    """The keys whose numbers may be zero; all others are at least one."""

    origin = opt_prop_def(DictionaryAttr)
    """Where its numbers come from; in a machine file `source` and `assumed` say so."""

    @property
    def title(self) -> str:
        """The part in a message: its kind and its name."""
        name = self.properties.get("sym_name")
        return f'{self.KIND} "{name.data}"' if isinstance(name, StringAttr) else self.KIND

    def own_faults(self) -> Iterator[PartFault]:
        """What is wrong with this part beyond the range of its numbers."""
        return iter(())

    def faults(self) -> Iterator[PartFault]:
        """What is wrong with this part, taken alone."""
        for key, attr in self.properties.items():
            yield from number_faults(key, attr, 0 if key in self.AT_LEAST_ZERO else 1)
        yield from self.own_faults()

    def verify_(self) -> None:
        parent = self.parent_op()
        if parent is not None and parent.name != TARGET:
            raise VerifyException(f"{self.title} must be directly in a {TARGET}")
        for fault in self.faults():
            raise VerifyException(f"{self.title}: {fault.message}")


class NamedPart(MachinePart):
    """A part that others refer to by its symbol."""

    sym_name = prop_def(SymbolNameConstraint())
    """What others call it."""
    traits = traits_def(SymbolOpInterface())


def number_faults(key: str, attr: Attribute, least: int) -> Iterator[PartFault]:
    """The numbers of a property that are below `least`."""
    for value in numbers_of(attr):
        if value < least:
            yield PartFault(key, f"{key} must be at least {least}, but is {value}")


def rate_faults(rate: DenseArrayBase[I64] | None, key: str = "rate") -> Iterator[PartFault]:
    """A rate is a fraction [bytes, cycles]."""
    if rate is not None and len(rate) != 2:
        yield PartFault(key, f"{key} must be [bytes, cycles], but has {len(rate)} numbers")
