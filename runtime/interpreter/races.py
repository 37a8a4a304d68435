"""
Data races, found as a kernel runs: a second opinion, kept independent of the compiler's happens-before on purpose.

A race is two commands that access the same bytes, one of them writing, without happens-before between them.

What is certain about the order of commands since the last barrier is kept in vector clocks: a command happens after
the commands of the tokens it comes after and after all that these happened after; after everything that was
complete when an earlier command of its unit started; and, as an exec neither starts beside other commands of its
unit nor lets any start, after those. Transfers of one unit are ordered by their starts only, unless its engine has
one outstanding. A push happens after all earlier commands of its unit, a pop after its push. The host is ordered
after what it waited for.

Every byte remembers the commands that touched it last (shadow memory). The check needs no luck: it does not depend on
the interleaving that is being run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.commands import (
    Clock,
    CommandKind,
    IssuedCommand,
    Token,
    Touch,
    holds,
    join,
    with_command,
)
from penstock.runtime.interpreter.scopes import TaggedBuffer, array_of, describe


@dataclass
class _UnitClocks:
    number: int
    count: int = 0
    started: Clock = ()
    """What was complete when its last command started."""
    all: Clock = ()
    """All its commands, and what they happened after."""
    execs: Clock = ()
    """Its execs, and what they happened after."""


@dataclass
class _CommandAccess:
    """What a command does with an operand."""

    command: IssuedCommand
    touch: Touch
    unit: int
    number: int


class Races:
    """The commands since the last barrier, and what orders them."""

    def __init__(self) -> None:
        self._epoch = 0
        self._host: Clock = ()
        self._units: dict[str, _UnitClocks] = {}
        self._accesses: list[_CommandAccess] = []
        self._shadow = Shadow()

    def barrier(self) -> None:
        """All commands are complete."""
        self._epoch += 1
        self._host = ()
        self._units.clear()
        self._accesses.clear()
        self._shadow.forget()

    def waited(self, tokens: Sequence[Token]) -> None:
        """The host has waited for tokens: what it issues from now on happens after them."""
        for token in tokens:
            self._host = join(self._host, token.clock(self._epoch))

    def issued(self, command: IssuedCommand) -> None:
        """Raises UserError if a command races with one that was issued before."""
        unit = self._units.get(command.unit)
        if unit is None:
            unit = self._units[command.unit] = _UnitClocks(len(self._units))
        before = join(self._host, unit.started)
        before = join(before, unit.all if command.is_alone or command.kind is CommandKind.PUSH else unit.execs)
        for token in command.after:
            before = join(before, token.clock(self._epoch))
        for touch in command.reads:
            self._reads(_CommandAccess(command, touch, unit.number, unit.count), before)
        for touch in command.writes:
            self._writes(_CommandAccess(command, touch, unit.number, unit.count), before)
        done = with_command(before, unit.number, unit.count)
        command.token.note_clock(self._epoch, done)
        unit.all = join(unit.all, done)
        if command.kind is not CommandKind.PUSH:
            unit.started = join(unit.started, before)
        if command.kind is CommandKind.EXEC:
            unit.execs = join(unit.execs, done)
        unit.count += 1

    def _note(self, access: _CommandAccess) -> int:
        self._accesses.append(access)
        return len(self._accesses) - 1

    def _is_before(self, number: int, access: _CommandAccess, before: Clock) -> bool:
        """Whether an earlier access is over when another one begins, or belongs to the same command."""
        other = self._accesses[number]
        return other.command is access.command or holds(before, other.unit, other.number)

    def _reads(self, access: _CommandAccess, before: Clock) -> None:
        note = self._note(access)

        def follow(state: State) -> State:
            writer, readers = state
            if writer != NO_WRITER and not self._is_before(writer, access, before):
                raise self._race(access, writer, writes=False, wrote=True)
            return writer, frozenset([note, *(each for each in readers if not self._is_before(each, access, before))])

        self._shadow.visit(access.touch, follow, one_state=False)

    def _writes(self, access: _CommandAccess, before: Clock) -> None:
        after: State = (self._note(access), frozenset())

        def follow(state: State) -> State:
            writer, readers = state
            for reader in sorted(readers):
                if not self._is_before(reader, access, before):
                    raise self._race(access, reader, writes=True, wrote=False)
            if writer != NO_WRITER and not self._is_before(writer, access, before):
                raise self._race(access, writer, writes=True, wrote=True)
            return after

        self._shadow.visit(access.touch, follow, one_state=True)

    def _race(self, access: _CommandAccess, number: int, *, writes: bool, wrote: bool) -> UserError:
        command, other = access.command, self._accesses[number]
        return UserError(
            f"data race: {command.op.name} on {command.unit} {'writes' if writes else 'reads'} "
            f"{describe(access.touch.value)}, which {other.command.op.name} on {other.command.unit} "
            f"{'writes' if wrote else 'reads'} through {describe(other.touch.value)}, "
            "with no happens-before between the two",
            loc=location_of(command.op),
            notes=[f"let it come after the token of the {other.command.op.name} at {location_of(other.command.op)}"],
        )


NO_WRITER = -1

State = tuple[int, frozenset[int]]
"""The access that wrote last, `NO_WRITER` for none, and those that have read since."""


class _ShadowMemory:
    """The shadow of one piece of memory."""

    def __init__(self, owner: object, first: int, end: int, unit: int):
        self.owner = owner
        """Kept, so that no other memory takes its address."""
        self._first, self._unit = first, unit
        self._states: Array = np.zeros(-(-(end - first) // unit), np.int32)

    def view(self, part: Array) -> Array:
        """The numbers of the states of an array's elements: its shape and, where an element has several, one dim."""
        first: int = part.__array_interface__["data"][0]
        last = first + sum((size - 1) * stride for size, stride in zip(part.shape, part.strides, strict=True))
        self._cover(first, last + part.itemsize)
        unit = gcd(self._unit, part.itemsize, first - self._first, *part.strides)
        if unit < self._unit:
            self._states = np.repeat(self._states, self._unit // unit)
            self._unit = unit
        each, start = part.itemsize // unit, (first - self._first) // unit
        if part.flags.c_contiguous:
            shape = part.shape if each == 1 else (*part.shape, each)
            return self._states[start : start + part.size * each].reshape(shape)
        size = self._states.itemsize
        strides = [stride // unit * size for stride in part.strides]
        if each == 1:
            return as_strided(self._states[start:], part.shape, strides)
        return as_strided(self._states[start:], (*part.shape, each), [*strides, size])

    def _cover(self, first: int, end: int) -> None:
        """Grow, if memory that several arrays share is larger than was known."""
        before = max(0, -(-(self._first - first) // self._unit))
        after = max(0, -(-(end - self._first) // self._unit) - len(self._states))
        if before or after:
            self._states = np.pad(self._states, (before, after))
            self._first -= before * self._unit


class Shadow:
    """The states of all bytes that are touched, since all were last forgotten."""

    def __init__(self) -> None:
        self._pieces: dict[int, _ShadowMemory] = {}
        self._clean = 0
        """States with a number up to this one are older than the last barrier: the byte has not been accessed since."""
        self._known: list[State] = [(NO_WRITER, frozenset())]

    def forget(self) -> None:
        """No access yet."""
        self._clean += len(self._known)
        self._known = [(NO_WRITER, frozenset())]

    def visit(self, touch: Touch, follow: Callable[[State], State], *, one_state: bool) -> None:
        """Let `follow` say what becomes of every state; with `one_state` it is the same for all."""
        part = array_of(touch.memref) if isinstance(touch.region, np.ndarray) else touch.part()
        if part.size == 0:
            return
        view = self._piece(touch, part).view(part)
        old: Array = view[touch.region] if isinstance(touch.region, np.ndarray) else view
        if old.size == 0:
            return
        numbers: Array = np.array([old.flat[0]]) if (old == old.flat[0]).all() else np.unique(old)
        new = [follow(self._known[max(int(number) - self._clean, 0)]) for number in numbers]
        fresh: Any
        if one_state or len(numbers) == 1:
            fresh = self._add(new[0])
        else:
            fresh = np.array([self._add(state) for state in new], np.int32)[np.searchsorted(numbers, old)]
        if isinstance(touch.region, np.ndarray):
            view[touch.region] = fresh
        else:
            view[...] = fresh

    def _add(self, state: State) -> int:
        self._known.append(state)
        return self._clean + len(self._known) - 1

    def _piece(self, touch: Touch, part: Array) -> _ShadowMemory:
        owner = _memory_of(touch)
        key = id(owner)
        piece = self._pieces.get(key)
        if piece is None:
            whole, unit = part, part.itemsize
            if type(touch.memref) is TaggedBuffer:
                whole, unit = touch.memref.scope.data, touch.memref.scope.unit
            elif isinstance(owner, np.ndarray):
                whole = cast("Array", owner)
            first: int = whole.__array_interface__["data"][0]
            strides = zip(whole.shape, whole.strides, strict=True)
            end = first + sum((size - 1) * stride for size, stride in strides) + whole.itemsize
            piece = self._pieces[key] = _ShadowMemory(whole, first, end, unit)
        return piece


def _memory_of(touch: Touch) -> object:
    """The piece of memory that holds the elements; different pieces do not overlap."""
    if type(touch.memref) is TaggedBuffer:
        return touch.memref.scope
    base: Any = touch.memref
    while getattr(base, "base", None) is not None:
        base = base.base
    return base
