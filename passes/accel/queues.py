# SPDX-License-Identifier: Apache-2.0
"""
From tokens to counted queues between in-order units: decoupled access-execute.

The k-th pop of a queue receives the k-th push. Between two units that take their commands in order, a command needs
to wait only for the latest one that it must follow, and not even for that if an earlier command of its unit already
has, or if a third unit has seen to it. What is left is monotone on both sides, so that the k-th push is for the k-th
pop: nothing is ordered that was not before, and no token can be left out.

Where transfers are in flight together, a push happens when its transfer and all before it are complete, so the same
holds of them. What needs more:

- A transfer that must follow another one in flight on its own unit still does so by a token, as no queue leads there.
- Transfers that may overtake each other, on a unit with several buses or none, leave their pushes to carriers.
- Units without a queue between them are ordered by carriers on the units of the shortest way round. Without a way
  round it is an error.
- A push into a full queue must not happen where it is an error: if the machine would not see to it anyway, the command
  that pushes waits for the one that makes room, by a token the other way. Where it comes later in the program, two
  tokens become one instead, and the earlier waiter waits for the later push.
- A push that waits for room may keep the units waiting for each other. Tokens become fewer then, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.commands.happens_before import HappensBefore, happens_before, waited_for
from penstock.passes.analysis.commands.hazards.network import deadlocks
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program, Queue, QueueName

_MAX_ITERATIONS = 64
"""How many times tokens are added or merged for the sake of capacities before giving up."""

_Edges = dict[QueueName, list[tuple[int, int]]]
"""For each queue its tokens in order: the command that pushes it, and the one that pops it."""


@dataclass
class _Draft:
    """A program on its way: its commands without tokens, and what each comes after."""

    commands: list[Command]
    after: list[set[int]]
    barriers: tuple[int, ...]


def assign_queues(program: Program) -> Program:
    """
    The same commands, ordered by pushes and pops, with carriers between them where no command can.

    Every two commands that the tokens of `program` order are ordered, through queues of the machine that never hold
    more than their capacity; `after` is left only between transfers in flight on one unit. It is exact and minimal:
    nothing else is ordered than what such queues cannot but order, unless a capacity or a way round forces it. Raises
    UserError, located, where no way leads from one unit to another, where a capacity cannot be kept, and for a queue
    that holds tokens at the beginning.
    """
    draft = _Draft(
        [replace(command, after=(), pops=(), pushes=()) for command in program.commands],
        [set(needs) for needs in waited_for(program)],
        program.barriers,
    )
    model = program.machine
    queues = {queue.name: queue for queue in model.queues}
    narrow = False
    for _ in range(_MAX_ITERATIONS):
        _route(draft, model)
        needs, relation = _reduced(draft, model)
        edges = _edges(draft, needs)
        if _merge(draft, edges, queues, narrow) or _make_room(draft, relation, edges, queues):
            continue
        result = _with_tokens(program, draft, edges, queues)
        if narrow or not deadlocks(result):
            return result
        narrow = True
    raise UserError(
        f"no order of tokens keeps within the capacities of the queues of {model.name}",
        loc=next((command.location for command in program.commands if command.op is not None), None),
    )


def _reduced(draft: _Draft, model: MachineModel) -> tuple[list[list[int]], HappensBefore]:
    """What each command must wait for, as nothing else implies it: the transitive reduction of `after`."""
    relation = HappensBefore(model.units)
    needs: list[list[int]] = []
    barriers = iter([*draft.barriers, -1])
    barrier = next(barriers)
    for index, command in enumerate(draft.commands):
        while index == barrier:
            relation.barrier()
            barrier = next(barriers)
        clock = relation.before(command.unit, alone=model.starts_alone(command))
        found, clock = relation.essential(clock, draft.after[index], pushed_to=command.unit)
        relation.start(index, command.unit, clock, executes=command.kind is not Kind.TRANSFER)
        needs.append(found)
    return needs, relation


def _route(draft: _Draft, model: MachineModel) -> None:
    """Insert the carriers without which some order has no queue, or pushes would overtake each other."""
    needs, relation = _reduced(draft, model)
    draft.after = [set(each) for each in needs]
    ways = _Ways(model)
    following: dict[int, list[Command]] = defaultdict(list)
    links: list[tuple[Command, Command]] = []
    carriers: dict[tuple[int, str], Command] = {}
    positions: dict[str, list[int]] = defaultdict(list)
    for index, command in enumerate(draft.commands):
        positions[command.unit].append(index)

    def carrier(source: Command, unit: str, position: int, op: Command) -> Command:
        found = carriers.get((id(source), unit))
        if found is None:
            found = carriers[id(source), unit] = Command(unit, Kind.CARRIER, op=op.op, counters=op.counters)
            following[position].append(found)
            if source.unit != unit:
                links.append((source, found))
        return found

    for index, command in enumerate(draft.commands):
        for need in sorted(draft.after[index]):
            source = draft.commands[need]
            if source.unit == command.unit:
                continue
            way = ways.between(source.unit, command.unit)
            if way is None:
                raise _no_queue(model, source, command)
            position = need
            if ways.may_overtake(source.unit) and not model.starts_alone(source):
                source = carrier(source, source.unit, position, source)
            for unit in way:
                # As late as it can stand without anything before it that the waiting command need not wait for.
                done = relation.complete_prefix(index, unit)
                position = max(position, positions[unit][done - 1] if done else 0)
                source = carrier(source, unit, position, command)
            if source is not draft.commands[need]:
                draft.after[index].discard(need)
                links.append((source, command))
    if following:
        _insert(draft, following, links)


def _insert(
    draft: _Draft,
    following: dict[int, list[Command]],
    links: Sequence[tuple[Command, Command]],
) -> None:
    commands: list[Command] = []
    first: list[int] = []
    for index, command in enumerate(draft.commands):
        first.append(len(commands))
        commands += [command, *following.get(index, ())]
    numbers = {id(command): number for number, command in enumerate(commands)}
    after: list[set[int]] = [set() for _ in commands]
    for command, needs in zip(draft.commands, draft.after, strict=True):
        after[numbers[id(command)]] = {numbers[id(draft.commands[need])] for need in needs}
    for source, command in links:
        after[numbers[id(command)]].add(numbers[id(source)])
    first.append(len(commands))
    draft.commands, draft.after = commands, after
    draft.barriers = tuple(first[barrier] for barrier in draft.barriers)


class _Ways:
    """The shortest ways through queues from one unit to another, earlier queues first."""

    def __init__(self, model: MachineModel):
        self._model = model
        self._next: dict[str, list[str]] = defaultdict(list)
        for queue in model.queues:
            self._next[queue.source].append(queue.destination)
        self._found: dict[QueueName, tuple[str, ...] | None] = {}
        self._overtaking = {unit: self._overtakes(unit) for unit in model.units}

    def between(self, source: str, dest: str) -> tuple[str, ...] | None:
        """The units between two; None if there is no way."""
        if (source, dest) not in self._found:
            self._found[source, dest] = self._search(source, dest)
        return self._found[source, dest]

    def _search(self, source: str, dest: str) -> tuple[str, ...] | None:
        ways: deque[tuple[str, ...]] = deque([(source,)])
        seen = {source}
        while ways:
            way = ways.popleft()
            for unit in self._next[way[-1]]:
                if unit == dest:
                    return way[1:]
                if unit not in seen:
                    seen.add(unit)
                    ways.append((*way, unit))
        return None

    def may_overtake(self, unit: str) -> bool:
        """Whether a transfer of a unit may complete before an earlier one does: on one bus none can."""
        return self._overtaking[unit]

    def _overtakes(self, unit: str) -> bool:
        engines = [engine for engine in self._model.engines.values() if engine.unit == unit]
        in_flight = any(engine.outstanding > 1 for engine in engines)
        return in_flight and (len({engine.bus for engine in engines}) > 1 or engines[0].bus is None)


def _edges(draft: _Draft, needs: Sequence[Sequence[int]]) -> _Edges:
    """The tokens of every queue: as a push tells of all earlier commands, they are ascending on both sides."""
    edges: _Edges = defaultdict(list)
    for index, command in enumerate(draft.commands):
        for need in needs[index]:
            if draft.commands[need].unit != command.unit:
                edges[draft.commands[need].unit, command.unit].append((need, index))
    return edges


def _merge(draft: _Draft, edges: _Edges, queues: dict[QueueName, Queue], narrow: bool) -> bool:
    """Let fewer tokens be in a queue in program order than it holds; whether anything was changed."""
    changed = False
    for name, found in edges.items():
        queue = queues[name]
        if queue.blocks and not narrow:
            continue
        waiting: deque[tuple[int, int]] = deque()
        for push, pop in found:
            while waiting and waiting[0][1] < push:
                waiting.popleft()
            waiting.append((push, pop))
            if len(waiting) <= queue.capacity:
                continue
            first, waiter = waiting.popleft()
            second, _ = waiting[0]
            draft.after[waiter].discard(first)
            draft.after[waiter].add(second)
            waiting[0] = second, waiter
            changed = True
    return changed


def _make_room(draft: _Draft, relation: HappensBefore, edges: _Edges, queues: dict[QueueName, Queue]) -> bool:
    """Let a push into a queue that must not overflow come after the pop that makes room; whether any was changed."""
    changed = False
    for name, found in edges.items():
        queue = queues[name]
        if queue.blocks:
            continue
        for (_, pop), (push, _) in zip(found, found[queue.capacity :], strict=False):
            if not relation.has_started(pop, push):
                draft.after[push].add(pop)
                changed = True
    return changed


def _with_tokens(program: Program, draft: _Draft, edges: _Edges, queues: dict[QueueName, Queue]) -> Program:
    pops: dict[int, list[QueueName]] = defaultdict(list)
    pushes: dict[int, list[QueueName]] = defaultdict(list)
    for name in queues:
        for push, pop in edges.get(name, ()):
            if queues[name].initial:
                raise UserError(
                    f'the queue from "{name[0]}" to "{name[1]}" of {program.machine.name} holds '
                    f"{queues[name].initial} tokens at the beginning: only empty ones can be assigned",
                    loc=draft.commands[pop].location,
                )
            pops[pop].append(name)
            pushes[push].append(name)
    own = [
        sorted(n for n in after if draft.commands[n].unit == draft.commands[number].unit)
        for number, after in enumerate(draft.after)
    ]
    commands = [
        replace(command, after=tuple(own[number]), pops=tuple(pops[number]), pushes=tuple(pushes[number]))
        for number, command in enumerate(draft.commands)
    ]
    return replace(program, commands=commands, barriers=draft.barriers)


def _no_queue(model: MachineModel, source: Command, command: Command) -> UserError:
    return UserError(
        f'a command of "{command.unit}" comes after one of "{source.unit}", and {model.name} has no queue '
        f'from "{source.unit}" to "{command.unit}", nor a way through other units',
        loc=command.location,
        notes=[f"it comes after the command at {source.location}"] if source.op is not None else [],
    )


def keeps_order(program: Program, after: Sequence[Sequence[int]]) -> bool:
    """Whether every command of a program, carriers left out, is sure to come after those that `after` names."""
    commands: list[int] = []
    for number, relation, clock, _ in happens_before(program):
        if program.commands[number].kind is Kind.CARRIER:
            continue
        at = len(commands)
        if at == len(after) or not all(relation.is_complete(commands[need], clock) for need in after[at]):
            return False
        commands.append(number)
    return len(commands) == len(after)


def least_time(program: Program) -> int:
    """The cycles that a program takes if every transfer has a bus to itself, and queues have room."""
    model = program.machine
    ends: list[int] = []
    floor = 0
    # When a unit can take its next command, and when its last one has ended.
    free = dict.fromkeys(model.units, 0)
    quiet = dict.fromkeys(model.units, 0)
    flying: dict[str, list[int]] = {unit: [] for unit in model.units}
    barriers = deque(program.barriers)
    for number, (command, needs) in enumerate(zip(program.commands, waited_for(program), strict=True)):
        while barriers and barriers[0] <= number:
            floor = max(ends[: barriers.popleft()], default=0)
        unit = command.unit
        engine = model.engines.get(command.engine or "")
        start = max([floor, free[unit], *(ends[need] for need in needs)])
        if engine is None or command.kind is not Kind.TRANSFER:
            end = start = max(start, quiet[unit])
            end += command.cycles
            free[unit] = end
        else:
            waiting = flying[unit]
            if len(waiting) >= engine.outstanding:
                start = max(start, waiting[-engine.outstanding])
            end = max(start + engine.latency, quiet[unit]) + command.cycles
            free[unit] = start
            waiting.append(end)
        quiet[unit] = max(quiet[unit], end)
        ends.append(end)
    return max(ends, default=0)
