# SPDX-License-Identifier: Apache-2.0
"""
Commands, tokens and queues of an execution: a second opinion, kept independent of the compiler's command program.

Each command holds the values that it reads and writes; `passes` is not imported.

Vector clocks say what is certainly complete, by unit. Commands of a unit are numbered from 0 as they are issued. As
transfers in flight complete in any order, what is complete of a unit is a number, below which all are, and a mask of
those from there on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest

import numpy as np
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.scopes import (
    IN_FLIGHT,
    MemRef,
    Region,
    array_of,
    copied,
    leave_undefined,
    mark,
    readable,
    written,
)
from penstock.runtime.interpreter.values import poison, undefined

Done = tuple[int, int]
"""Commands of one unit: all below a number, and those that the bits of a mask count from there on."""
Clock = tuple[Done, ...]
"""Commands of all units, in the order in which these were first used; those left out have none."""

NOTHING: Done = (0, 0)


def _union(one: Done, other: Done) -> Done:
    if one == other:
        return one
    if one[0] < other[0]:
        one, other = other, one
    base, mask = one[0], one[1] | other[1] >> (one[0] - other[0])
    while mask & 1:
        base, mask = base + 1, mask >> 1
    return base, mask


def join(one: Clock, other: Clock) -> Clock:
    """What is complete by either."""
    if one is other or not other:
        return one
    if not one:
        return other
    return tuple(_union(a, b) for a, b in zip_longest(one, other, fillvalue=NOTHING))


def joined_clocks(clocks: Iterable[Clock]) -> Clock:
    """What is complete by any."""
    result: Clock = ()
    for clock in clocks:
        result = join(result, clock)
    return result


def with_command(clock: Clock, unit: int, number: int) -> Clock:
    """The clock with one command more."""
    padded = clock + (NOTHING,) * (unit + 1 - len(clock))
    base, mask = padded[unit]
    if number < base:
        return clock
    return (*padded[:unit], _union((base, mask), (base, 1 << (number - base))), *padded[unit + 1 :])


def holds(clock: Clock, unit: int, number: int) -> bool:
    """Whether a command is complete."""
    if unit >= len(clock):
        return False
    base, mask = clock[unit]
    return number < base or bool(mask >> (number - base) & 1)


class Token:
    """The completion of a command, or of all of several."""

    __slots__ = ("_clock", "_complete", "_epoch", "_parts", "_pending")

    def __init__(self, parts: Sequence[Token] = (), *, complete: bool = False):
        self._parts = tuple(parts)
        self._complete = complete
        self._epoch = -1
        self._clock: Clock = ()
        self._pending = 0

    @property
    def parts(self) -> Sequence[Token]:
        """Of a token of several: those."""
        return self._parts

    @property
    def complete(self) -> bool:
        """Whether it has happened."""
        parts = self._parts
        if not self._complete and parts:
            while self._pending < len(parts) and parts[self._pending].complete:
                self._pending += 1
            self._complete = self._pending == len(parts)
        return self._complete

    def happen(self) -> None:
        """Complete it."""
        self._complete = True

    def note_clock(self, epoch: int, clock: Clock) -> None:
        """Note which commands since the barrier `epoch` are complete when it is."""
        self._epoch, self._clock = epoch, clock

    def clock(self, epoch: int) -> Clock:
        """The commands since the barrier `epoch` that are complete when it is."""
        if self._parts and self._epoch != epoch:
            self.note_clock(epoch, joined_clocks(part.clock(epoch) for part in self._parts))
        return self._clock if self._epoch == epoch else ()


DONE = Token(complete=True)


def joined(tokens: Sequence[Token]) -> Token:
    """The token that completes when all of `tokens` have."""
    parts = [token for token in tokens if token is not DONE]
    return Token(parts) if parts else DONE


@dataclass(eq=False)
class TokenQueue:
    """A queue between two units."""

    title: str
    capacity: int
    blocks: bool
    """Whether a push waits for room; otherwise a full queue is an error."""
    initial: int
    count: int = 0
    issued: deque[Token] = field(default_factory=deque[Token])
    """The pushes that no pop has been issued for."""

    def __post_init__(self) -> None:
        self.count = self.initial
        self.issued.extend([DONE] * self.initial)

    @property
    def is_full(self) -> bool:
        return self.count >= self.capacity

    def next_push(self, op: Operation) -> Token:
        """The push that a pop issued by `op` receives; raises UserError if none has been issued."""
        if not self.issued:
            raise UserError(
                f"pops a token from {self.title} that was not pushed before it",
                loc=location_of(op),
                notes=["issue the push first, or let the queue hold initial tokens"],
            )
        return self.issued.popleft()

    def push(self, op: Operation) -> None:
        """Raises UserError if the queue is full."""
        if self.is_full:
            raise UserError(f"pushes into {self.title}, which is full with {self.count}", loc=location_of(op))
        self.count += 1


@dataclass(eq=False)
class Touch:
    """Elements of an operand that a command reads or writes."""

    memref: MemRef
    region: Region
    value: SSAValue
    """The operand, for messages."""

    def part(self) -> Array:
        """The elements, or all of the operand's where they are no box."""
        array = array_of(self.memref)
        if self.region is None or isinstance(self.region, np.ndarray):
            return array
        return array[self.region]

    def is_in_place_of(self, other: Touch) -> bool:
        """Whether its operand is that of another one: the same value, or another view of the same elements."""
        if self.value is other.value:
            return True
        one, two = array_of(self.memref), array_of(other.memref)
        return one.strides == two.strides and one.shape == two.shape and _address(one) == _address(two)

    def poison(self) -> None:
        """Make the elements undefined, integers too."""
        if isinstance(self.region, np.ndarray):
            array = array_of(self.memref)
            array[self.region] = undefined([1], array.dtype)[0]
        else:
            poison(self.part())


def _address(array: Array) -> int:
    return array.__array_interface__["data"][0]


@dataclass(eq=False)
class Copied:
    """Elements that a transfer copies: those that are undefined are undefined at the destination, too."""

    source: Touch
    dest: Touch
    undefined: Array | None = None
    """Which elements were undefined at the start; None if none."""

    def start(self, op: Operation) -> None:
        """Raises UserError if a command in flight writes the source, or the destination cannot hold undefined ones."""
        self.undefined = self._undefined(op)

    def end(self, op: Operation) -> None:
        """Raises UserError if an element is no longer defined; the destination has been written."""
        now = self._undefined(op)
        if now is not None and (self.undefined is None or (now & ~self.undefined).any()):
            readable(self.source.memref, op, self.source.region)
        leave_undefined(self.dest.memref, self.dest.region, self.undefined)

    def _undefined(self, op: Operation) -> Array | None:
        return copied(self.source.memref, op, self.source.region, self.dest.memref)


class CommandKind(Enum):
    """How a command passes its unit."""

    TRANSFER = "transfer"
    """Several may be in flight."""
    EXEC = "exec"
    """Alone on the unit."""
    PUSH = "push"
    """Happens when the unit's earlier commands are complete, and holds up none."""
    POP = "pop"
    """Holds up the unit until its token is there."""


@dataclass(eq=False)
class IssuedCommand:
    """A command that has been issued."""

    op: Operation
    unit: str
    kind: CommandKind
    after: Sequence[Token] = ()
    outstanding: int = 1
    """How many transfers its engine can have in flight."""
    reads: Sequence[Touch] = ()
    writes: Sequence[Touch] = ()
    copied: Copied | None = None
    """What a transfer copies: its only read, which may be undefined."""
    perform: Callable[[], None] | None = None
    """Compute the result and store it."""
    overwrites: bool = False
    """Whether the writes do not depend on what was there, so that it may be poisoned in the meantime."""
    queue: TokenQueue | None = None
    token: Token = field(default_factory=Token)

    @property
    def is_alone(self) -> bool:
        """Whether it starts only when all earlier commands of its unit are complete."""
        return self.kind is CommandKind.EXEC or (self.kind is CommandKind.TRANSFER and self.outstanding == 1)

    def start(self) -> None:
        """Check what is read; what is written is in flight from now on."""
        self._start_reads()
        for touch in self.writes:
            mark(touch.memref, IN_FLIGHT, touch.region)
            if self.overwrites:
                touch.poison()

    def end(self) -> None:
        """Perform it; what it reads must be as it was at the start."""
        if self.copied is None:
            self._check_reads([each for each in self.reads if not any(map(each.is_in_place_of, self.writes))])
        self._finish()

    def at_once(self) -> None:
        """Start and end."""
        self._start_reads()
        self._finish()

    def _start_reads(self) -> None:
        if self.copied is not None:
            self.copied.start(self.op)
        else:
            self._check_reads(self.reads)

    def _check_reads(self, touches: Sequence[Touch]) -> None:
        for touch in touches:
            readable(touch.memref, self.op, touch.region)

    def _finish(self) -> None:
        if self.perform is not None:
            self.perform()
        for touch in self.writes:
            written(touch.memref, touch.region)
        if self.copied is not None:
            self.copied.end(self.op)
        if self.queue is not None and self.kind is CommandKind.PUSH:
            self.queue.push(self.op)
        if self.queue is not None and self.kind is CommandKind.POP:
            self.queue.count -= 1
        self.token.happen()
