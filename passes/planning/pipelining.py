# SPDX-License-Identifier: Apache-2.0
"""
Latency hiding as arithmetic: how long a nest of loops takes on units that run beside each other. Plain data in and out.

An iteration loads, computes and stores; each unit takes its commands in order, and a buffer with B slots lets B
iterations be under way. Then n iterations take fill + (n - 1) x II + drain, and the initiation interval II is the
larger of two bounds (Rau, MICRO 1994; the max-plus view is that of marked graphs):

- ResMII: what one iteration asks of the busiest unit or bus.
- RecMII: the largest ratio of delay to distance over the cycles of dependences. The slots make such cycles: a load may
  refill the slot that the computation of B iterations before has released, so (latency + transfer + compute) / B <= II,
  and likewise (compute + epilogue + latency + store) / B for accumulators.

`time_of` evaluates the max-plus recurrence itself, nested loops and short ones included, and goes on in steps of II
when a loop has reached its steady state. Times are cycles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from numpy.typing import NDArray

STEADY_ITERATIONS = 48
"""After so many iterations of a loop, and the part of a period, its rate is taken for settled."""
PERIOD = 24
"""The iterations that take as long again: slots take turns, most of them 2, 3, 4, 6 or 8 of them."""

Cycles = TypeVar("Cycles", int, NDArray[Any])


@dataclass(frozen=True)
class TransferCost:
    """How long transfers of an engine occupy its bus."""

    rate: tuple[int, int] = (1, 0)
    """Bytes in so many cycles: of the bus, or of the engine if that is slower. Without a bus bytes take no time."""
    row_overhead: int = 0
    """Cycles for each row, besides its bytes."""
    burst: tuple[int, int] | None = None
    """The most bytes of a burst, and the cycles that each takes besides them; None where rows are not cut."""
    padding: tuple[int, int] | None = None
    """Bytes of padding in so many cycles; None where it takes no time."""

    def cycles(self, rows: Cycles, row_bytes: Cycles, padded_bytes: Cycles | int = 0) -> Cycles:
        """
        Of a transfer, or of each of many: of each row its bytes at the rate, rounded up, its overhead, and that of its
        bursts; and all padding, rounded up.
        """
        size, cycles = self.rate
        row = -(-row_bytes * cycles // size) + self.row_overhead
        if self.burst is not None:
            longest, more = self.burst
            row = row + -(-row_bytes // longest) * more
        size, cycles = self.padding or (1, 0)
        return rows * row + -(-padded_bytes * cycles // size)


@dataclass(frozen=True)
class TimedStep:
    """A command, or `count` equal ones in a row, of an iteration."""

    unit: str
    cycles: int
    """Of one: the whole duration of an exec; how long a transfer occupies its bus."""
    bus: str | None = None
    latency: int = 0
    """From the start of a transfer to its request of the bus."""
    outstanding: int = 1
    """Transfers of the engine that may be in flight; 1 for an exec."""
    count: int = 1
    reads: tuple[str, ...] = ()
    """Buffers."""
    writes: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    """The buffers among `writes` whose next slot it takes: what was in there is no longer needed."""
    leaves: bool = False
    """Whether it takes results away: nothing but a slot waits for it."""
    stream: str | None = None
    """What waits until it may begin, and begins others: a processor; None for its unit."""
    runs_on: bool = True
    """Whether that goes on before it has ended."""
    ages: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many slots of a buffer have been taken after the one that it accesses; none where it is not named."""

    @property
    def occupied(self) -> int:
        """The cycles that its unit cannot do without: see T* of the machine's semantics."""
        return -(-self.count * (self.latency + self.cycles) // self.outstanding)


@dataclass(frozen=True)
class TimedLoop:
    """Iterations of a body, in program order."""

    trips: int
    body: tuple[TimedStep | TimedLoop, ...]
    opens: tuple[str, ...] = ()
    """The buffers whose next slot is taken by it as a whole."""


@dataclass(frozen=True)
class NestTime:
    """How long a nest takes, and what it cannot go below."""

    cycles: int
    busy: Mapping[str, int]
    """The cycles asked of each unit ("unit load") and each bus ("bus axi_rd")."""
    unskewed_cycles: int | None = None
    """How long it takes with no loop skewed, where that was asked."""

    @property
    def bound(self) -> int:
        """What the busiest resource needs alone: T*."""
        return max(self.busy.values(), default=0)

    @property
    def limit(self) -> str:
        """The busiest resource, or "latency" where a tenth of the time or more is spent waiting."""
        busiest = max(self.busy, key=lambda name: self.busy[name], default="latency")
        return busiest if self.bound * 10 > self.cycles * 9 else "latency"


def busy_of(nest: TimedStep | TimedLoop | Sequence[TimedStep | TimedLoop]) -> dict[str, int]:
    """The cycles that a nest asks of each unit and bus."""
    total: dict[str, int] = {}

    def add(part: TimedStep | TimedLoop, times: int) -> None:
        if isinstance(part, TimedLoop):
            for inner in part.body:
                add(inner, times * part.trips)
            return
        total[f"unit {part.unit}"] = total.get(f"unit {part.unit}", 0) + times * part.occupied
        if part.bus is not None:
            total[f"bus {part.bus}"] = total.get(f"bus {part.bus}", 0) + times * part.count * part.cycles

    for part in [nest] if isinstance(nest, TimedStep | TimedLoop) else nest:
        add(part, 1)
    return total


def time_of(nest: Sequence[TimedStep | TimedLoop], slots: Mapping[str, int] | None = None) -> NestTime:
    """
    How long `nest` takes from an idle machine, where buffer b has `slots[b]` slots (1 where it is not named).

    What units on one bus ask for takes the sum of its times, and a long transfer holds up the others on its bus; only
    in which order requests come that are in each other's way is not followed to the cycle.
    A transfer of a unit that computes goes first, as `passes.schedule.ordering` makes the order.
    """
    steps = list(steps_of(nest))
    computing = frozenset(step.unit for step in steps if step.bus is None and not step.latency)
    nest = _with_bus_priority(nest, computing, _prefetched(nest, computing))
    state = _State(dict(slots or {}), _shared_buses(nest), computing)
    for part in nest:
        state.run(part)
    state.finish()
    busy = busy_of(nest)
    return NestTime(max(state.end, max(busy.values(), default=0)), busy)


def steps_of(nest: Sequence[TimedStep | TimedLoop]) -> Iterator[TimedStep]:
    """All steps of a nest, each once."""
    for part in nest:
        if isinstance(part, TimedLoop):
            yield from steps_of(part.body)
        else:
            yield part


def _shared_buses(nest: Sequence[TimedStep | TimedLoop]) -> frozenset[str | None]:
    """The buses that several units are on."""
    units: dict[str, set[str]] = {}
    for step in steps_of(nest):
        if step.bus is not None:
            units.setdefault(step.bus, set()).add(step.unit)
    return frozenset(bus for bus, users in units.items() if len(users) > 1)


def _prefetched(nest: Sequence[TimedStep | TimedLoop], computing: frozenset[str]) -> Mapping[str, frozenset[str]]:
    """By bus: the buffers that units bring over it which do not compute."""
    found: dict[str, set[str]] = {}
    for step in steps_of(nest):
        if step.bus is not None and step.unit not in computing:
            found.setdefault(step.bus, set()).update(step.writes)
    return {bus: frozenset(names) for bus, names in found.items()}


def _with_bus_priority(
    body: Sequence[TimedStep | TimedLoop], computing: frozenset[str], prefetched: Mapping[str, frozenset[str]]
) -> tuple[TimedStep | TimedLoop, ...]:
    """The nest, each transfer of a computing unit keeping what the unit has read before it in the same iteration."""
    found: list[TimedStep | TimedLoop] = []
    released: dict[str, tuple[str, ...]] = {}
    for part in body:
        if isinstance(part, TimedLoop):
            released = {}
            found.append(_merged(replace(part, body=_with_bus_priority(part.body, computing, prefetched))))
            continue
        if part.unit in computing and part.bus is not None:
            kept = [name for name in released.get(part.unit, ()) if name in prefetched.get(part.bus, ())]
            part = replace(part, reads=tuple(dict.fromkeys((*part.reads, *kept))))
        elif part.unit in computing:
            released[part.unit] = (*released.get(part.unit, ()), *part.reads)
        found.append(part)
    return tuple(found)


def _merged(loop: TimedLoop) -> TimedLoop:
    """A loop and the one that is all its body, as one."""
    match loop.body:
        case (TimedLoop(trips, body, ()),):
            return replace(loop, trips=loop.trips * trips, body=body)
        case _:
            return loop


@dataclass(eq=False)
class _Slot:
    """When a slot is written, and when its last reader is done."""

    written: int = 0
    read: int = 0


@dataclass
class _State:
    """
    When everything is free; `clock` names units and buses, `flight` the ends of transfers in flight.

    Commands are followed in program order. Only what leaves over a shared bus waits in `leaving` until another command
    of its unit comes, or a request that is later, since units that load run ahead of those that store.
    """

    slots: dict[str, int]
    shared: frozenset[str | None] = frozenset()
    """The buses that several units use."""
    computing: frozenset[str] = frozenset()
    """The units that compute: they do not run ahead, and their own transfers hold up none."""
    end: int = 0
    clock: dict[str, int] = field(default_factory=dict[str, int])
    flight: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    buffers: dict[str, list[_Slot]] = field(default_factory=dict[str, list[_Slot]])
    """The slots of each buffer by age, the present one last."""
    leaving: list[tuple[TimedStep, list[_Slot], list[_Slot]]] = field(
        default_factory=list[tuple[TimedStep, list[_Slot], list[_Slot]]]
    )

    def run(self, part: TimedStep | TimedLoop) -> None:
        if isinstance(part, TimedLoop):
            self._loop(part)
            return
        if part.opens:
            self._open(part.opens)
        reads = [self._slots(name)[-1 - part.ages.get(name, 0)] for name in part.reads]
        writes = [self._slots(name)[-1 - part.ages.get(name, 0)] for name in part.writes]
        if part.leaves and self.shared:
            self.leaving.append((part, reads, writes))
        else:
            while self.leaving and any(step.unit == part.unit for step, _, _ in self.leaving):
                self._leave()
            self._step(part, reads, writes)

    def _open(self, names: Sequence[str]) -> None:
        for name in names:
            slots = self._slots(name)
            if len(slots) > 1:
                slots.append(slots.pop(0))
            while self.leaving and any(slots[-1] in reads for _, reads, _ in self.leaving):
                self._leave()

    def finish(self) -> None:
        """Let all leave that has to."""
        while self.leaving:
            self._leave()

    def _leave(self) -> None:
        self._step(*self.leaving.pop(0))

    def _slots(self, name: str) -> list[_Slot]:
        found = self.buffers.get(name)
        if found is None:
            found = self.buffers[name] = [_Slot() for _ in range(self.slots.get(name, 1))]
        return found

    def _ready(self, step: TimedStep, reads: list[_Slot], writes: list[_Slot]) -> int:
        """When the unit is free, and everything that the step waits for is done."""
        found = self.clock.get(step.unit, 0)
        if step.stream is not None:
            found = max(found, self.clock.get(f"stream {step.stream}", 0))
        for slot in reads:
            if slot.written > found:
                found = slot.written
        for slot in writes:
            found = max(found, slot.written, slot.read)
        return found

    def _step(self, step: TimedStep, reads: list[_Slot], writes: list[_Slot]) -> None:
        start = self._ready(step, reads, writes)
        if step.bus in self.shared and not step.leaves:
            while self.leaving and self._ready(*self.leaving[0]) + self.leaving[0][0].latency < start + step.latency:
                self._leave()
        end = self._transfers(step, start) if step.outstanding > 1 else self._in_order(step, start)
        if step.stream is not None:
            self.clock[f"stream {step.stream}"] = start if step.runs_on else end
        for slot in reads:
            slot.read = max(slot.read, end)
        for slot in writes:
            slot.written = end
        self.end = max(self.end, end)

    def _in_order(self, step: TimedStep, start: int) -> int:
        """Each command begins when the one before has ended."""
        whole = step.count * (step.latency + step.cycles)
        end = self._on_bus(step, start + step.latency, whole - step.latency)
        self.clock[step.unit] = end
        return end

    def _transfers(self, step: TimedStep, start: int) -> int:
        """Each begins when the one before has begun, and few enough are in flight; the bus takes them in turn."""
        flight = self.flight.setdefault(step.unit, [0] * step.outstanding)
        bus = f"{step.unit} on {step.bus}"
        begin, end = max(start, self.clock.get(step.unit, 0)), self.clock.get(bus, 0)
        shared = f"bus {step.bus}" if self._waits_for_bus(step) else bus
        free = self.clock.get(shared, 0)
        for _ in range(step.count):
            begin = max(begin, flight[-step.outstanding])
            end = free = max(begin + step.latency, end, free) + step.cycles
            flight.append(end)
            del flight[0]
        self.clock[step.unit], self.clock[bus], self.clock[shared] = begin, end, free
        return end

    def _waits_for_bus(self, step: TimedStep) -> bool:
        """Whether a step takes turns with other units on its bus."""
        return step.bus in self.shared and step.unit not in self.computing

    def _on_bus(self, step: TimedStep, request: int, cycles: int) -> int:
        """When a transfer ends that requests its bus at a time."""
        if not self._waits_for_bus(step):
            return request + cycles
        end = max(request, self.clock.get(f"bus {step.bus}", 0)) + cycles
        self.clock[f"bus {step.bus}"] = end
        return end

    def _loop(self, loop: TimedLoop) -> None:
        self._open(loop.opens)
        middle = before = self._times()
        # What is left then is whole periods: a mean of one hides which of its iterations are the slow ones.
        steady = STEADY_ITERATIONS + (loop.trips - STEADY_ITERATIONS) % PERIOD
        for number in range(loop.trips):
            for part in loop.body:
                self.run(part)
            after = self._times()
            left = loop.trips - number - 1
            if number + 1 == steady - PERIOD:
                middle = after
            if left and len(after) == len(before):
                if number and _is_steady(before, after):
                    self._advance([(new - old) * left for new, old in zip(after, before, strict=True)])
                    return
                if number + 1 == steady and len(after) == len(middle):
                    self._advance([(new - old) * (left // PERIOD) for new, old in zip(after, middle, strict=True)])
                    return
            before = after

    def _times(self) -> list[int]:
        found = [self.end, *self.clock.values()]
        for ends in self.flight.values():
            found += ends
        for slots in self.buffers.values():
            for slot in slots:
                found += (slot.written, slot.read)
        return found

    def _advance(self, by: list[int]) -> None:
        """Add to all times, in the order of `_times`."""
        steps = iter(by)
        self.end += next(steps)
        for name in self.clock:
            self.clock[name] += next(steps)
        for ends in self.flight.values():
            ends[:] = [time + next(steps) for time in ends]
        for slots in self.buffers.values():
            for slot in slots:
                slot.written += next(steps)
                slot.read += next(steps)


def _is_steady(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether all times that have moved have moved by as much."""
    moved = 0
    for old, new in zip(before, after, strict=True):
        if new != old:
            if moved and new - old != moved:
                return False
            moved = new - old
    return True
