# SPDX-License-Identifier: Apache-2.0
"""
Deadlocks, leaks and overflows: the units of a program as a Kahn network.

Units take their commands in order and meet only in tokens, so whether all of them complete does not depend on how long
anything takes (Kahn 1974): one run decides it. How many tokens a queue holds at most does depend on it, and is bounded
by the pops that happen before a push.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.commands.happens_before import happens_before
from penstock.passes.analysis.commands.program import Command, Kind, Program, QueueName


class HazardKind(Enum):
    """What can be wrong with the order of a program."""

    DEADLOCK = "deadlock"
    """The units wait for each other, or for a token that is never signalled."""
    LEAK = "leak"
    """A queue does not end with the tokens that it had at the beginning."""
    OVERFLOW = "overflow"
    """A push can find its queue full, where that is an error."""
    WRONG_UNIT = "wrong-unit"
    """A queue is used that the machine lacks, or by a unit that it does not belong to."""
    RACE = "race"
    """Two accesses to the same bytes, one of which writes, have no happens-before between them."""


@dataclass(frozen=True)
class Hazard:
    """One thing that is wrong, with the commands that it is about."""

    fault: HazardKind
    message: str
    commands: tuple[int, ...] = ()
    """By their numbers; the first is where the message belongs."""
    ops: tuple[Operation, ...] = field(default=(), compare=False)
    """Where these come from, as far as that is known."""
    notes: tuple[str, ...] = ()

    def error(self) -> UserError:
        """The hazard as an error of the user."""
        return UserError(self.message, loc=location_of(self.ops[0]) if self.ops else None, notes=self.notes)


def title(command: Command) -> str:
    """What a command is: its op and what performs it."""
    name = command.op.name if command.op is not None else command.kind.value
    if command.kind is Kind.CARRIER or not command.name:
        return f"{name} on {command.unit}"
    return f'{name} "{command.name}" on {command.unit}'


def iteration(command: Command) -> str:
    """The iterations of the loops around a command, after a blank; empty outside loops."""
    return f" in iteration {', '.join(map(str, command.counters))}" if command.counters else ""


def origin(command: Command) -> str:
    """Where a command comes from, with its iteration, after a blank."""
    return (f" at {command.location}" if command.op is not None else "") + iteration(command)


def queue_title(name: QueueName) -> str:
    """A queue in a message."""
    return f'the queue from "{name[0]}" to "{name[1]}"'


def ops_of(commands: Sequence[Command], numbers: Sequence[int]) -> tuple[Operation, ...]:
    """The ops of the commands of these numbers, where they are known."""
    return tuple(op for number in numbers if (op := commands[number].op) is not None)


def run(program: Program) -> tuple[list[int], list[Hazard]]:
    """
    The commands in an order in which they can start, program order if that is one, and hazards other than races.

    There is no order if the program deadlocks, or uses queues that it may not.
    """
    if wrong := _wrong_units(program):
        return [], wrong
    order = list(range(len(program.commands)))
    if not _runs_in_program_order(program):
        network = _Network(program)
        if not network.completes():
            return [], [network.deadlock()]
        order = network.order
    return order, _leaks(program) + _overflows(program, order)


def deadlocks(program: Program) -> bool:
    """Whether the units of a program come to wait for each other."""
    return not _runs_in_program_order(program) and not _Network(program).completes()


def _wrong_units(program: Program) -> list[Hazard]:
    known = {queue.name for queue in program.machine.queues}
    found: list[Hazard] = []
    for number, command in enumerate(program.commands):
        for verb, end, names in (("pops", 1, command.pops), ("pushes to", 0, command.pushes)):
            for name in names:
                if name not in known:
                    why = f"{program.machine.name} has no such queue"
                elif name[end] != command.unit:
                    why = f'only "{name[end]}" may do that'
                else:
                    continue
                message = f"{title(command)} {verb} {queue_title(name)}, but {why}"
                found.append(Hazard(HazardKind.WRONG_UNIT, message, (number,), ops_of(program.commands, (number,))))
    return found


def _runs_in_program_order(program: Program) -> bool:
    """Whether each command can complete before the next one starts."""
    held = {queue.name: queue.initial for queue in program.machine.queues}
    room = {queue.name: queue.capacity for queue in program.machine.queues if queue.blocks}
    for number, command in enumerate(program.commands):
        if command.after and max(command.after) >= number:
            return False
        for name in command.pops:
            held[name] -= 1
            if held[name] < 0:
                return False
        for name in command.pushes:
            held[name] += 1
            if name in room and held[name] > room[name]:
                return False
    return True


class _Network:
    """A run in any order: every unit that can proceed does."""

    def __init__(self, program: Program):
        self.program = program
        self.streams: dict[str, deque[int]] = {unit: deque() for unit in program.machine.units}
        for number, command in enumerate(program.commands):
            self.streams[command.unit].append(number)
        self.in_flight: dict[str, list[int]] = {unit: [] for unit in program.machine.units}
        self.unpushed: dict[int, deque[QueueName]] = {}
        """The pushes that are still to be made, by a command in flight."""
        self.queues = {queue.name: queue for queue in program.machine.queues}
        self.held = Counter({name: queue.initial for name, queue in self.queues.items()})
        self.done: set[int] = set()
        self.order: list[int] = []
        self.barriers = deque(program.barriers)

    def completes(self) -> bool:
        """Let the units run until none can proceed: whether all commands are complete."""
        progress = True
        while progress:
            progress = False
            for unit in self.streams:
                while self._end(unit) or self._start(unit):
                    progress = True
            while self.barriers and len(self.done) >= self.barriers[0]:
                self.barriers.popleft()
                progress = True
        return len(self.done) == len(self.program.commands)

    def _start(self, unit: str) -> bool:
        stream, in_flight = self.streams[unit], self.in_flight[unit]
        if not stream:
            return False
        number = stream[0]
        command = self.program.commands[number]
        if in_flight and (
            len(in_flight) >= self.program.machine.outstanding(command)
            or self.program.commands[in_flight[-1]].kind is not Kind.TRANSFER
        ):
            return False
        if self._waits_for(number):
            return False
        self.held.subtract(command.pops)
        in_flight.append(stream.popleft())
        self.unpushed[number] = deque(command.pushes)
        self.order.append(number)
        return True

    def _waits_for(self, number: int) -> list[int | QueueName | None]:
        """Tokens and queues that a command waits for before it can start, None for a barrier."""
        command = self.program.commands[number]
        found: list[int | QueueName | None] = []
        if self.barriers and number >= self.barriers[0]:
            found.append(None)
        found += [other for other in command.after if other not in self.done]
        found += [name for name, count in Counter(command.pops).items() if self.held[name] < count]
        return found

    def _end(self, unit: str) -> bool:
        in_flight = self.in_flight[unit]
        for at, number in enumerate(in_flight):
            unpushed = self.unpushed[number]
            # Tokens go into a queue in the order of the commands.
            if unpushed and at > 0:
                continue
            while unpushed and not self._is_full(unpushed[0]):
                self.held[unpushed.popleft()] += 1
            if not unpushed:
                del in_flight[at]
                del self.unpushed[number]
                self.done.add(number)
                return True
        return False

    def _is_full(self, name: QueueName) -> bool:
        queue = self.queues[name]
        return queue.blocks and self.held[name] >= queue.capacity

    def deadlock(self) -> Hazard:
        """What each unit waits for when none can proceed."""
        commands = self.program.commands
        notes: list[str] = []
        numbers: list[int] = []
        is_signalled = True
        for unit, stream in self.streams.items():
            pushing = [number for number in self.in_flight[unit] if self.unpushed[number]]
            if pushing:
                number, what = pushing[0], f"room in {queue_title(self.unpushed[pushing[0]][0])}"
            elif stream:
                number = stream[0]
                waits = self._waits_for(number)
                is_signalled = is_signalled and all(each is None or self._is_signalled(each) for each in waits)
                what = " and ".join(map(self._title, waits)) or "the commands before it"
            else:
                continue
            numbers.append(number)
            notes.append(f"{unit} is at {title(commands[number])}{origin(commands[number])}, which waits for {what}")
        why = "the units wait for each other" if is_signalled else "token is never signalled"
        return Hazard(HazardKind.DEADLOCK, f"deadlock: {why}", tuple(numbers), ops_of(commands, numbers), tuple(notes))

    def _is_signalled(self, token: int | QueueName) -> bool:
        """Whether a command is left that signals a token."""
        if isinstance(token, int):
            return 0 <= token < len(self.program.commands)
        unit = token[0]
        return any(token in self.program.commands[other].pushes for other in self.streams[unit]) or any(
            token in self.unpushed[other] for other in self.in_flight[unit]
        )

    def _title(self, token: int | QueueName | None) -> str:
        commands = self.program.commands
        if token is None:
            return "the barrier before it"
        if isinstance(token, int):
            if not self._is_signalled(token):
                return f"a token that is never signalled ({token})"
            return f"{title(commands[token])}{origin(commands[token])}"
        if self._is_signalled(token):
            return f"a token of {queue_title(token)}"
        pops = sum(command.pops.count(token) for command in commands)
        pushes = sum(command.pushes.count(token) for command in commands)
        initial = self.queues[token].initial
        holds = f" and holds {initial} at the beginning" if initial else ""
        return f"a token of {queue_title(token)}, which is popped {pops} times and pushed {pushes}{holds}"


def _leaks(program: Program) -> list[Hazard]:
    found: list[Hazard] = []
    pushes: Counter[QueueName] = Counter()
    pops: Counter[QueueName] = Counter()
    last: dict[QueueName, int] = {}
    for number, command in enumerate(program.commands):
        if command.pushes or command.pops:
            pushes.update(command.pushes)
            pops.update(command.pops)
            last.update(dict.fromkeys((*command.pushes, *command.pops), number))
    for queue in program.machine.queues:
        name = queue.name
        if pushes[name] != pops[name]:
            message = (
                f"{queue_title(name)} ends with {queue.initial + pushes[name] - pops[name]} tokens and began with "
                f"{queue.initial}: it is pushed {pushes[name]} times and popped {pops[name]}"
            )
            found.append(Hazard(HazardKind.LEAK, message, (last[name],), ops_of(program.commands, (last[name],))))
    return found


def _overflows(program: Program, order: Sequence[int]) -> list[Hazard]:
    """Pushes into a queue where a full one is an error, without happens-before from the pop that makes room."""
    checked = {queue.name: queue for queue in program.machine.queues if not queue.blocks}
    commands = program.commands
    if not any(name in checked for command in commands for name in command.pushes):
        return []
    poppers: dict[QueueName, list[int]] = defaultdict(list)
    for number, command in enumerate(commands):
        for name in command.pops:
            poppers[name].append(number)
    pushed: Counter[QueueName] = Counter()
    found: dict[QueueName, Hazard] = {}
    for number, relation, _, _ in happens_before(program, order):
        for name in commands[number].pushes:
            if name not in checked:
                continue
            queue = checked[name]
            pop = queue.initial + pushed[name] - queue.capacity
            pushed[name] += 1
            if pop < 0 or name in found:
                continue
            popper = poppers[name][pop] if pop < len(poppers[name]) else None
            if popper is None or not relation.has_started(popper, number):
                message = (
                    f"{title(commands[number])}{origin(commands[number])} may push into {queue_title(name)} when that "
                    f"holds {queue.capacity} tokens, which is all it can hold"
                )
                notes: tuple[str, ...] = ()
                if popper is not None:
                    other = commands[popper]
                    notes = (f"no happens-before from the pop by {title(other)}{origin(other)}",)
                found[name] = Hazard(HazardKind.OVERFLOW, message, (number,), ops_of(commands, (number,)), notes)
    return list(found.values())
