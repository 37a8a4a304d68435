# SPDX-License-Identifier: Apache-2.0
"""
Data races, found as a kernel runs: a second opinion, kept independent of the compiler's happens-before on purpose.

A race is two commands, or iterations of a loop that run at once, that access the same bytes, one of them writing,
without happens-before between them.

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
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import REGISTERS
from penstock.dialects.mem import scope_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.commands import (
    NOTHING,
    Clock,
    CommandKind,
    IssuedCommand,
    Token,
    Touch,
    holds,
    join,
    joined_clocks,
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


@dataclass(eq=False)
class Iteration:
    """One of the iterations that run at once."""

    title: str
    unit: int
    before: Clock
    """What was complete when it began, or when it last left a barrier."""
    made: int
    """The instances of buffers that there were when it began: later ones that it sees are its own."""
    phase: int = 0
    """How many barriers it has left."""


@dataclass
class _Access:
    """What a command, or an op in an iteration, does with an operand."""

    op: Operation
    by: IssuedCommand | Iteration
    touch: Touch
    unit: int
    number: int

    @property
    def title(self) -> str:
        """What does it, and where."""
        by = self.by
        return f"{self.op.name} {f'in {by.title}' if isinstance(by, Iteration) else f'on {by.unit}'}"


class Races:
    """The commands since the last barrier, and what orders them."""

    def __init__(self) -> None:
        self._epoch = 0
        self._host: Clock = ()
        self._units: dict[str, _UnitClocks] = {}
        self._numbers = 0
        """Units and iterations that have a number."""
        self._accesses: list[_Access] = []
        self._shadow = Shadow()
        self.iteration: Iteration | None = None
        """The innermost one that is being run."""

    def barrier(self) -> None:
        """All commands are complete."""
        self._epoch += 1
        self._host = ()
        self._units.clear()
        self._numbers = 0
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
            unit = self._units[command.unit] = _UnitClocks(self._number(1))
        before = join(self._host, unit.started)
        before = join(before, unit.all if command.is_alone or command.kind is CommandKind.PUSH else unit.execs)
        for token in command.after:
            before = join(before, token.clock(self._epoch))
        for touch in command.reads:
            self._reads(_Access(command.op, command, touch, unit.number, unit.count), before)
        for touch in command.writes:
            self._writes(_Access(command.op, command, touch, unit.number, unit.count), before)
        done = with_command(before, unit.number, unit.count)
        command.token.note_clock(self._epoch, done)
        unit.all = join(unit.all, done)
        if command.kind is not CommandKind.PUSH:
            unit.started = join(unit.started, before)
        if command.kind is CommandKind.EXEC:
            unit.execs = join(unit.execs, done)
        unit.count += 1

    def _number(self, count: int) -> int:
        """The first of so many new numbers."""
        self._numbers += count
        return self._numbers - count

    # iterations

    def fork(self, titles: Sequence[str], made: int) -> list[Iteration]:
        """Iterations that begin here, where so many instances of buffers have been made, and run at once."""
        outer = self.iteration
        before = self._host if outer is None else with_command(outer.before, outer.unit, outer.phase)
        first = self._number(len(titles))
        return [Iteration(title, first + number, before, made) for number, title in enumerate(titles)]

    def meet(self, iterations: Sequence[Iteration]) -> None:
        """All iterations of a loop have come to the same barrier, and leave it."""
        done = _completed(iterations)
        for each in iterations:
            each.before = done
            each.phase += 1

    def join(self, iterations: Sequence[Iteration], outer: Iteration | None) -> None:
        """All iterations of a loop have ended; `outer` is the one around it."""
        self.iteration = outer
        if outer is not None:
            outer.before = join(outer.before, _completed(iterations))
        elif self._units:
            self._host = join(self._host, _completed(iterations))
        else:
            self.barrier()  # Nothing else runs.

    def accessed(self, op: Operation, reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        """An op of the iteration that is being run accesses memory. Raises UserError for a race."""
        by = self.iteration
        assert by is not None
        for touch in reads:
            if not _is_private(touch, by):
                self._reads(_Access(op, by, touch, by.unit, by.phase), by.before)
        for touch in writes:
            if not _is_private(touch, by):
                self._writes(_Access(op, by, touch, by.unit, by.phase), by.before)

    # accesses

    def _note(self, access: _Access) -> int:
        self._accesses.append(access)
        return len(self._accesses) - 1

    def _is_before(self, number: int, access: _Access, before: Clock) -> bool:
        """Whether an earlier access is over when another one begins, or belongs to the same command or iteration."""
        other = self._accesses[number]
        return other.by is access.by or holds(before, other.unit, other.number)

    def _reads(self, access: _Access, before: Clock) -> None:
        note = self._note(access)

        def follow(state: State) -> State:
            writer, readers = state
            if writer != NO_WRITER and not self._is_before(writer, access, before):
                raise self._race(access, writer, writes=False, wrote=True)
            return writer, frozenset([note, *(each for each in readers if not self._is_before(each, access, before))])

        self._shadow.visit(access.touch, follow, one_state=False)

    def _writes(self, access: _Access, before: Clock) -> None:
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

    def _race(self, access: _Access, number: int, *, writes: bool, wrote: bool) -> UserError:
        other = self._accesses[number]
        where = f"the {other.op.name} at {location_of(other.op)}"
        if isinstance(access.by, Iteration) or isinstance(other.by, Iteration):
            note = f"iterations of scf.forall run at once: let a barrier be between this and {where}"
        else:
            note = f"let it come after the token of {where}"
        return UserError(
            f"data race: {access.title} {'writes' if writes else 'reads'} {describe(access.touch.value)}, which "
            f"{other.title} {'writes' if wrote else 'reads'} through {describe(other.touch.value)}, "
            "with no happens-before between the two",
            loc=location_of(access.op),
            notes=[note],
        )


def _instance_in_registers(touch: Touch) -> int | None:
    """The instance of a buffer in registers that is touched; None for other memory."""
    memory, type = touch.memref, touch.value.type
    if isinstance(memory, TaggedBuffer) and isa(type, MemRefType) and scope_of(type) == REGISTERS:
        return memory.tag
    return None


def _is_private(touch: Touch, by: Iteration) -> bool:
    """Whether an iteration has what is touched to itself: registers that it made a buffer of."""
    instance = _instance_in_registers(touch)
    return instance is not None and instance >= by.made


def _completed(iterations: Sequence[Iteration]) -> Clock:
    """The clock by which all that iterations have done is complete."""
    clock = list(joined_clocks(each.before for each in iterations))
    clock += [NOTHING] * (max((each.unit + 1 for each in iterations), default=0) - len(clock))
    for each in iterations:
        clock[each.unit] = (each.phase + 1, 0)
    return tuple(clock)


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
        self._pieces: dict[tuple[int, int | None], _ShadowMemory] = {}
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
        # Each instance in registers has those of one iteration, so the same bytes of two of them are not the same.
        key = id(owner), _instance_in_registers(touch)
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
            piece = self._pieces[key] = _ShadowMemory(cast(object, owner), first, end, unit)
        return piece


def _memory_of(touch: Touch) -> object:
    """The piece of memory that holds the elements; different pieces do not overlap."""
    if type(touch.memref) is TaggedBuffer:
        return touch.memref.scope
    base: Any = touch.memref
    while getattr(base, "base", None) is not None:
        base = base.base
    return base
