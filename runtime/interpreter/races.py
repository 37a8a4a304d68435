"""
Races: two commands that touch the same bytes, one of them writing, and that nothing orders.

What is certain about the order of commands since the last barrier is kept as bit masks: a command happens after
the commands of the tokens it comes after and after all that these happened after; after everything that was
complete when an earlier command of its unit started; and, as an exec neither starts beside other commands of its
unit nor lets any start, after those. Transfers of one unit are ordered by their starts only, unless its engine has
one outstanding. A push happens after all earlier commands of its unit, a pop after its push. The host is ordered
after what it waited for.

The check needs no luck: it does not depend on the interleaving that is being run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.commands import Command, Kind, Token, Touch
from penstock.runtime.interpreter.domain import axis_indices
from penstock.runtime.interpreter.scopes import Buffer, array_of, describe


@dataclass
class _Unit:
    started: int = 0
    """What was complete when its last command started."""
    all: int = 0
    """All its commands, and what they happened after."""
    execs: int = 0
    """Its execs, and what they happened after."""


class _Accesses:
    """The accesses to one piece of memory, reads or writes, by the bytes between their first and last."""

    def __init__(self) -> None:
        self.count = 0
        self.first: Array = np.empty(16, np.int64)
        self.last: Array = np.empty(16, np.int64)
        self.entries: list[tuple[int, Command, Touch, Array]] = []

    def add(self, first: int, last: int, entry: tuple[int, Command, Touch, Array]) -> None:
        if self.count == len(self.first):
            self.first = np.concatenate([self.first, self.first])
            self.last = np.concatenate([self.last, self.last])
        self.first[self.count], self.last[self.count] = first, last
        self.entries.append(entry)
        self.count += 1

    def near(self, first: int, last: int) -> list[int]:
        """The accesses whose range of bytes meets this one."""
        meeting = (self.first[: self.count] < last) & (self.last[: self.count] > first)
        return np.flatnonzero(meeting).tolist()

    def drop_within(self, first: int, last: int) -> None:
        """Forget the accesses to bytes that have been overwritten since, in order."""
        keep = np.flatnonzero((self.first[: self.count] < first) | (self.last[: self.count] > last)).tolist()
        if len(keep) < self.count:
            self.first[: len(keep)], self.last[: len(keep)] = self.first[keep], self.last[keep]
            self.entries = [self.entries[index] for index in keep]
            self.count = len(keep)


@dataclass
class _Place:
    reads: _Accesses = field(default_factory=_Accesses)
    writes: _Accesses = field(default_factory=_Accesses)


class Races:
    """The commands since the last barrier, and what orders them."""

    def __init__(self) -> None:
        self._epoch = 0
        self._count = 0
        self._host = 0
        self._units: dict[str, _Unit] = {}
        self._places: dict[int, _Place] = {}

    def barrier(self) -> None:
        """All commands are complete."""
        self._epoch += 1
        self._count = self._host = 0
        self._units.clear()
        self._places.clear()

    def waited(self, tokens: Sequence[Token]) -> None:
        """The host has waited for tokens: what it issues from now on happens after them."""
        for token in tokens:
            self._host |= self._behind(token)

    def issued(self, command: Command) -> None:
        """Raises UserError if a command races with one that was issued before."""
        unit = self._units.setdefault(command.unit, _Unit())
        before = self._host | unit.started
        alone = command.kind in (Kind.EXEC, Kind.PUSH) or (command.kind is Kind.TRANSFER and command.outstanding == 1)
        before |= unit.all if alone else unit.execs
        for token in command.after:
            before |= self._behind(token)
        for touch in command.reads:
            self._visit(command, before, touch, writes=False)
        for touch in command.writes:
            self._visit(command, before, touch, writes=True)
        done = before | (1 << self._count)
        command.token.note_order(self._epoch, done)
        unit.all |= done
        if command.kind is not Kind.PUSH:
            unit.started |= before
        if command.kind is Kind.EXEC:
            unit.execs |= done
        self._count += 1

    def _behind(self, token: Token) -> int:
        return token.order(self._epoch)

    def _visit(self, command: Command, before: int, touch: Touch, *, writes: bool) -> None:
        part = touch.part()
        if part.size == 0:
            return
        place = self._places.setdefault(_memory_of(touch), _Place())
        first, last = _ends(part)
        against = (place.reads, place.writes) if writes else (place.writes,)
        for accesses in against:
            for index in accesses.near(first, last):
                number, other, theirs, their_part = accesses.entries[index]
                if number == self._count or before >> number & 1:
                    continue
                if np.shares_memory(part, their_part) and _meet(touch, theirs):
                    raise _race(command, touch, other, theirs, writes=writes, wrote=accesses is place.writes)
        entry = (self._count, command, touch, part)
        if not writes:
            place.reads.add(first, last, entry)
            return
        if part.nbytes == last - first:
            for accesses in against:
                accesses.drop_within(first, last)
        place.writes.add(first, last, entry)


def _race(command: Command, touch: Touch, other: Command, theirs: Touch, *, writes: bool, wrote: bool) -> UserError:
    return UserError(
        f"{command.op.name} on {command.unit} {'writes' if writes else 'reads'} {describe(touch.value)}, which "
        f"{other.op.name} on {other.unit} {'writes' if wrote else 'reads'} through {describe(theirs.value)}, "
        "and nothing orders the two",
        loc=location_of(command.op),
        notes=[f"let it come after the token of the {other.op.name} at {location_of(other.op)}"],
    )


def _meet(one: Touch, other: Touch) -> bool:
    """Whether two touches of arrays that overlap have an element in common; masks need a closer look."""
    if not (isinstance(one.region, np.ndarray) or isinstance(other.region, np.ndarray)):
        return True
    mine, theirs = _addresses(one), _addresses(other)
    size = max(array_of(touch.memref).itemsize for touch in (one, other))
    theirs.sort()
    next_one = np.searchsorted(theirs, mine - size, side="right")
    inside = next_one < len(theirs)
    return bool((theirs[next_one[inside]] < mine[inside] + size).any())


def _addresses(touch: Touch) -> Array:
    """The address of each element that is touched."""
    part = touch.part()
    first: int = part.__array_interface__["data"][0]
    addresses: Array = np.full(part.shape, first, np.int64)
    for dim, stride in enumerate(part.strides):
        addresses += axis_indices(dim, part.shape) * stride
    return addresses[touch.region] if isinstance(touch.region, np.ndarray) else addresses.ravel()


def _memory_of(touch: Touch) -> int:
    """The piece of memory that holds the elements; different pieces do not overlap."""
    if type(touch.memref) is Buffer:
        return id(touch.memref.scope)
    base: Any = touch.memref
    while getattr(base, "base", None) is not None:
        base = base.base
    return id(base)


def _ends(part: Array) -> tuple[int, int]:
    """The addresses of the first byte and behind the last; strides are not negative."""
    first = part.__array_interface__["data"][0]
    span = sum((size - 1) * stride for size, stride in zip(part.shape, part.strides, strict=True))
    return first, first + span + part.itemsize
