"""What the parts of a machine share: accessors of their properties, and how a part says what is wrong with it.

The keys of an operation are those of its table in a machine file, so nothing is lost on the way into the IR.
What a part demands of its own properties is said once, in `faults`; the verifier raises the first of them, and the
reader of machine files reports all of them. What parts demand of each other is said in `machine.target`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple, cast

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation, opt_prop_def
from xdsl.utils.exceptions import VerifyException

DRAM = "dram"
"""The name of everything off chip; no scope may be called so, and its memrefs have no memory space."""

TARGET_NAME = "machine.target"


class Fault(NamedTuple):
    """What is wrong with a part, and which of its keys is to blame."""

    key: str
    message: str
    notes: tuple[str, ...] = ()
    inside: tuple[str | int, ...] = ()
    """The way from the key's value in a machine file to the place in it that is meant."""


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


class MachinePart(IRDLOperation, ABC):
    """
    A part of a `machine.target`.

    `origin` says where its numbers come from: `all` for the whole table, else the number's own key. Each value is
    a key of the target's `sources`, or `"assumed"`; a pair adds the arithmetic by which the number was derived.
    """

    KIND: ClassVar[str]
    """The word for such a part, as in a machine file."""
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ()
    """The keys whose numbers may be zero; all others are at least one."""

    origin = opt_prop_def(DictionaryAttr)

    @property
    def title(self) -> str:
        """The part in a message: its kind and its name."""
        name = self.properties.get("sym_name")
        return f'{self.KIND} "{name.data}"' if isinstance(name, StringAttr) else self.KIND

    @abstractmethod
    def own_faults(self) -> Iterator[Fault]:
        """What is wrong with this part beyond the range of its numbers."""

    def faults(self) -> Iterator[Fault]:
        """What is wrong with this part, taken alone."""
        for key, attr in self.properties.items():
            yield from number_faults(key, attr, 0 if key in self.AT_LEAST_ZERO else 1)
        yield from self.own_faults()

    def verify_(self) -> None:
        parent = self.parent_op()
        if parent is not None and parent.name != TARGET_NAME:
            raise VerifyException(f"{self.title} must stand directly in a {TARGET_NAME}")
        for fault in self.faults():
            raise VerifyException(f"{self.title}: {fault.message}")


def number_faults(key: str, attr: Attribute, least: int) -> Iterator[Fault]:
    """The numbers of a property that are below `least`."""
    for value in numbers_of(attr):
        if value < least:
            yield Fault(key, f"{key} must be at least {least}, but is {value}")


def rate_faults(rate: DenseArrayBase[I64] | None) -> Iterator[Fault]:
    """A rate is a fraction [bytes, cycles]."""
    if rate is not None and len(rate) != 2:
        yield Fault("rate", f"rate must be [bytes, cycles], but has {len(rate)} numbers")
