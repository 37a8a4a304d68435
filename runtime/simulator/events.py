# SPDX-License-Identifier: Apache-2.0
"""
The units, buses and queues of a machine, played event by event.

At one cycle: what ends, with its pushes; what starts, unit by unit until nothing can; what gets a bus. All that
happens in the middle, such as a push that a pop lets through, happens at once.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from penstock.passes.analysis.commands.program import Kind, Program
from penstock.runtime.simulator.timeline import Cause, Deadlock, IndexedProgram, Overflow, Simulation, Stuck

_FREE = Cause("")
"""Of a command that waited for nothing but its own unit."""
_FINISH, _REQUEST = 0, 1
"""What a heap of (time, which of them, unit, command) holds: at one time, first all that finishes."""


def simulate(program: Program) -> Simulation:
    """
    The times at which the commands of a kernel start and end on its machine, to the cycle.

    A program that deadlocks, or overfills a queue that does not block, has a `fault` and no figures. Raises UserError
    for commands that the machine does not have.
    """
    return _Simulator(IndexedProgram(program)).run()


class _Full(Exception):
    """A push into a full queue that does not block."""

    def __init__(self, command: int, queue: int):
        super().__init__()
        self.command, self.queue = command, queue


class _Simulator:
    """The state of the machine at one cycle."""

    def __init__(self, index: IndexedProgram):
        self.index = index
        self.commands = commands = index.program.commands
        self.machine = machine = index.program.machine
        self.unit_of, self.pops, self.pushes = index.unit_of, index.pops, index.pushes
        self.is_transfer = [command.kind is Kind.TRANSFER for command in commands]
        self.cycles = [0 if command.kind is Kind.CARRIER else command.cycles for command in commands]
        self.latency = [0 if engine is None else engine.latency for engine in index.engines]
        self.outstanding = [0 if engine is None else engine.outstanding for engine in index.engines]
        total = len(commands)
        self.now = 0
        self.starts, self.requests, self.grants = [-1] * total, [-1] * total, [-1] * total
        self.finishes, self.ends = [-1] * total, [-1] * total
        self.causes = [_FREE] * total
        self.events: list[tuple[int, int, int, int]] = []
        # Units.
        self.next = [0] * len(machine.units)
        self.in_flight = [0] * len(machine.units)
        self.alone = [False] * len(machine.units)
        """Whether an exec or a carrier is incomplete."""
        self.changed = set(range(len(machine.units)))
        """Units whose next command may have become able to start."""
        # Tokens.
        self.missing = [len(command.after) for command in commands]
        self.dependants: list[list[int]] = [[] for _ in commands]
        for number, command in enumerate(commands):
            for other in command.after:
                self.dependants[other].append(number)
        unit_numbers = {name: number for number, name in enumerate(machine.units)}
        self.tokens = [deque([0] * queue.initial) for queue in machine.queues]
        """For each queue, when its tokens were pushed."""
        self.capacity = [queue.capacity for queue in machine.queues]
        self.popper = [unit_numbers[queue.destination] for queue in machine.queues]
        self.blocked: list[deque[int]] = [deque() for _ in machine.queues]
        """For each queue, the commands that wait for room in it."""
        self.pushed = [0] * total
        """How many of its pushes a command has made."""
        # Barriers.
        self.phase = 0
        """How many barriers have been passed."""
        self.passed = [0]
        """When each phase began."""
        self.unfinished = [0] * (len(index.program.barriers) + 1)
        for phase in index.phases:
            self.unfinished[phase] += 1
        # Buses.
        self.is_free = [True] * len(index.buses)
        self.waiting: list[dict[int, deque[int]]] = [{} for _ in index.buses]
        """For each bus and unit, the transfers that have started and not been granted, in program order."""
        self.token_causes = [Cause("token", name) for name in machine.units]
        self.queue_causes = [Cause("queue", f"{queue.source} -> {queue.destination}") for queue in machine.queues]

    def run(self) -> Simulation:
        fault: Deadlock | Overflow | None = None
        try:
            self._pass_barriers()
            self._play()
        except _Full as full:
            fault = Overflow(self.now, full.command, self.machine.queues[full.queue].name)
        times = (self.starts, self.requests, self.grants, self.finishes, self.ends)
        if fault is None and -1 in self.ends:
            fault = Deadlock(self.now, tuple(self._stuck()))
        return Simulation(self.index, *times, self.causes, fault)

    def _play(self) -> None:
        events = self.events
        while True:
            self._play_cycle()
            if not events:
                return
            self.now = events[0][0]

    def _play_cycle(self) -> None:
        """All that happens now."""
        events, now = self.events, self.now
        while True:
            while events and events[0][0] == now:
                _, kind, _, number = heappop(events)
                if kind == _FINISH:
                    self._finish(number)
                else:
                    self.requests[number] = now
            self._start_all()
            # What took no time ends before the buses are given away.
            if (events and events[0][0] == now) or self._grant_all():
                continue
            return

    # starts

    def _start_all(self) -> None:
        while self.changed:
            # In the order of the units, until nothing can start.
            unit = min(self.changed)
            self.changed.discard(unit)
            while self._can_start(unit):
                self._start(unit)

    def _can_start(self, unit: int) -> bool:
        stream = self.index.streams[unit]
        if self.next[unit] == len(stream) or self.alone[unit]:
            return False
        number = stream[self.next[unit]]
        limit = self.outstanding[number] if self.is_transfer[number] else 1
        if self.in_flight[unit] >= limit or self.missing[number] or self.index.phases[number] > self.phase:
            return False
        pops = self.pops[number]
        return all(len(self.tokens[queue]) >= pops.count(queue) for queue in pops)

    def _start(self, unit: int) -> None:
        number, now = self.index.streams[unit][self.next[unit]], self.now
        self.next[unit] += 1
        self.starts[number] = now
        self._note_cause(number)
        if self.is_transfer[number]:
            self.in_flight[unit] += 1
            self.waiting[self.index.bus_of[number]].setdefault(unit, deque()).append(number)
            heappush(self.events, (now + self.latency[number], _REQUEST, unit, number))
        else:
            self.alone[unit] = True
            self.requests[number] = self.grants[number] = now
            heappush(self.events, (now + self.cycles[number], _FINISH, unit, number))
        for queue in self.pops[number]:
            self._let_through(queue)

    def _note_cause(self, number: int) -> None:
        """Remember what it waited for last, and take its tokens."""
        latest = self.passed[self.index.phases[number]]
        cause = Cause("barrier") if latest else _FREE
        for other in self.commands[number].after:
            if self.ends[other] > latest:
                latest, cause = self.ends[other], self.token_causes[self.unit_of[other]]
        for queue in self.pops[number]:
            if (pushed := self.tokens[queue].popleft()) > latest:
                latest, cause = pushed, self.queue_causes[queue]
        self.causes[number] = cause

    # ends

    def _finish(self, number: int) -> None:
        self.finishes[number] = self.now
        if self.is_transfer[number]:
            self.is_free[self.index.bus_of[number]] = True
        self._push(number)

    def _push(self, number: int, again: int = -1) -> None:
        """
        Make the pushes of a command that are left, in their order, as far as there is room. If it has waited for
        room in the queue `again`, and does once more, no other command goes before it.
        """
        pushes = self.pushes[number]
        while self.pushed[number] < len(pushes):
            queue = pushes[self.pushed[number]]
            if len(self.tokens[queue]) >= self.capacity[queue]:
                if not self.machine.queues[queue].blocks:
                    raise _Full(number, queue)
                if queue == again:
                    self.blocked[queue].appendleft(number)
                else:
                    self.blocked[queue].append(number)
                return
            self.tokens[queue].append(self.now)
            self.changed.add(self.popper[queue])
            self.pushed[number] += 1
        self._end(number)

    def _let_through(self, queue: int) -> None:
        """Where there may be room, the command that has waited longest for it goes on with its pushes."""
        if self.blocked[queue]:
            self._push(self.blocked[queue].popleft(), again=queue)

    def _end(self, number: int) -> None:
        unit = self.unit_of[number]
        self.ends[number] = self.now
        if self.is_transfer[number]:
            self.in_flight[unit] -= 1
        else:
            self.alone[unit] = False
        self.changed.add(unit)
        for other in self.dependants[number]:
            self.missing[other] -= 1
            if not self.missing[other]:
                self.changed.add(self.unit_of[other])
        self.unfinished[self.index.phases[number]] -= 1
        self._pass_barriers()

    def _pass_barriers(self) -> None:
        while self.phase < len(self.index.program.barriers) and not self.unfinished[self.phase]:
            self.phase += 1
            self.passed.append(self.now)
            self.changed.update(range(len(self.next)))

    # buses

    def _grant_all(self) -> bool:
        """Give every free bus to the unit that asked first; whether any was given."""
        granted = False
        for bus, queues in enumerate(self.waiting):
            if not self.is_free[bus]:
                continue
            # Transfers of one unit go in program order; only the first of each can be next.
            heads = [(self.requests[line[0]], unit) for unit, line in queues.items() if line]
            arrived = [head for head in heads if head[0] >= 0]
            if not arrived:
                continue
            _, unit = min(arrived)
            number = queues[unit].popleft()
            self.is_free[bus] = False
            self.grants[number] = self.now
            heappush(self.events, (self.now + self.cycles[number], _FINISH, unit, number))
            granted = True
        return granted

    # deadlock

    def _stuck(self) -> list[Stuck]:
        """For each unit that is not done, what it does not get past."""
        found: list[Stuck] = []
        full = {number: queue for queue, numbers in enumerate(self.blocked) for number in numbers}
        for unit, name in enumerate(self.machine.units):
            own = [number for number in full if self.unit_of[number] == unit]
            for number in own:
                queue = self.machine.queues[full[number]]
                found.append(Stuck(name, number, (f'room in the queue from "{name}" to "{queue.destination}"',)))
            stream = self.index.streams[unit]
            if self.next[unit] < len(stream):
                number = stream[self.next[unit]]
                if waits := self._waits(number):
                    found.append(Stuck(name, number, tuple(waits)))
        return found

    def _waits(self, number: int) -> list[str]:
        waits: list[str] = []
        for other in self.commands[number].after:
            if self.ends[other] < 0:
                waits.append(f'command {other} of "{self.machine.units[self.unit_of[other]]}"')
        pops = self.pops[number]
        for queue in dict.fromkeys(pops):
            if len(self.tokens[queue]) < pops.count(queue):
                waits.append(f'a token in the queue from "{self.machine.queues[queue].source}"')
        if self.index.phases[number] > self.phase:
            waits.append("a barrier")
        return waits
