# SPDX-License-Identifier: Apache-2.0
"""Random programs: their queue form orders what their tokens order, with the fewest tokens, and never overflows."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples

from penstock.passes.accel.queues import assign_queues
from penstock.passes.analysis.commands.happens_before import waited_for
from penstock.passes.analysis.commands.hazards.network import deadlocks
from penstock.passes.analysis.commands.program import Command, Engine, Kind, MachineModel, Program, Queue, QueueName

UNITS = ("load", "compute", "store")
VTA = (("load", "compute"), ("compute", "load"), ("compute", "store"), ("store", "compute"))
ALL = (*VTA, ("load", "store"), ("store", "load"))

Order = NDArray[np.bool_]


def machine(
    pairs: tuple[QueueName, ...] = ALL, *, outstanding: int = 1, capacity: int = 255, blocks: bool = False
) -> MachineModel:
    engines = {unit: Engine(unit, unit, "bus", 8, 1, outstanding) for unit in ("load", "store")}
    return MachineModel("toy", UNITS, {"bus": (8, 1)}, engines, tuple(Queue(*pair, capacity, blocks) for pair in pairs))


@st.composite
def programs(draw: st.DrawFn, model: MachineModel) -> Program:
    commands: list[Command] = []
    for number in range(draw(st.integers(1, 14))):
        unit = draw(st.sampled_from(UNITS))
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set[int]()
        kind = Kind.EXEC if unit == "compute" else Kind.TRANSFER
        engine = None if unit == "compute" else unit
        commands.append(Command(unit, kind, unit, engine, cycles=1, iterations=1, after=tuple(sorted(after))))
    barriers = draw(st.sets(st.integers(1, len(commands)), max_size=1))
    return Program(model, commands, tuple(sorted(barriers)))


def order_of(program: Program) -> Order:
    """Whether command i is complete before j starts, for all pairs, by closure over starts and ends."""
    commands = program.commands
    count = len(commands)
    follows = np.zeros((2 * count, 2 * count), np.bool_)  # starts, then ends
    for j, command in enumerate(commands):
        follows[j, count + j] = True
        engine = program.machine.engines.get(command.engine or "")
        one_by_one = command.kind is not Kind.TRANSFER or engine is None or engine.outstanding == 1
        for i in range(j):
            if any(i < barrier <= j for barrier in program.barriers):
                follows[count + i, j] = True
            if commands[i].unit == command.unit:
                follows[i, j] = True
                follows[count + i, j] |= one_by_one or commands[i].kind is not Kind.TRANSFER
    queued = any(command.pops for command in commands)
    for j, needs in enumerate(waited_for(program)):
        command = commands[j]
        for i in needs:
            follows[count + i, j] = True
            if queued:  # a push tells of all commands of its unit up to there
                for earlier in range(i if commands[i].unit != command.unit else 0):
                    follows[count + earlier, j] |= commands[earlier].unit == commands[i].unit
    for k in range(2 * count):
        follows |= follows[:, k : k + 1] & follows[k : k + 1, :]
    return follows[count:, :count]


def original(program: Program) -> list[int]:
    return [number for number, command in enumerate(program.commands) if command.kind is not Kind.CARRIER]


def run(program: Program, random: Random) -> list[tuple[str, int]]:
    """Starts and ends in one legal order; queues are first in, first out in time, transfers end in program order."""
    streams = {
        unit: deque(number for number, command in enumerate(program.commands) if command.unit == unit)
        for unit in program.machine.units
    }
    queues: dict[QueueName, int] = {queue.name: 0 for queue in program.machine.queues}
    limits = {queue.name: queue for queue in program.machine.queues}
    flying: dict[str, list[int]] = {unit: [] for unit in program.machine.units}
    ended: set[int] = set()
    events: list[tuple[str, int]] = []
    while True:
        choices: list[tuple[str, str]] = []
        for unit in program.machine.units:
            if flying[unit]:
                pushes = program.commands[flying[unit][0]].pushes
                if all(not limits[name].blocks or queues[name] < limits[name].capacity for name in pushes):
                    choices.append(("end", unit))
            if streams[unit] and ended.issuperset(program.commands[streams[unit][0]].after):
                head = program.commands[streams[unit][0]]
                engine = program.machine.engines.get(head.engine or "")
                most = 1 if head.kind is not Kind.TRANSFER or engine is None else engine.outstanding
                busy = flying[unit]
                fits = len(busy) < most and (not busy or program.commands[busy[-1]].kind is Kind.TRANSFER)
                due = sum(1 for barrier in program.barriers if barrier <= streams[unit][0])
                quiet = not due or all(number in ended for number in range(program.barriers[due - 1]))
                if fits and quiet and all(queues[name] >= head.pops.count(name) for name in head.pops):
                    choices.append(("start", unit))
        if not choices:
            assert not any(streams.values()), "deadlock"
            assert not any(queues.values()), "leak"
            return events
        what, unit = random.choice(choices)
        if what == "end":
            number = flying[unit].pop(0)
            ended.add(number)
            for name in program.commands[number].pushes:
                queues[name] += 1
                assert queues[name] <= limits[name].capacity, "overflow"
        else:
            number = streams[unit].popleft()
            for name in program.commands[number].pops:
                queues[name] -= 1
            flying[unit].append(number)
        events.append((what, number))


def check_runs(program: Program, assigned: Program, seed: int) -> None:
    numbers = original(assigned)
    for attempt in range(3):
        events = run(assigned, Random(seed + attempt))
        when = {event: position for position, event in enumerate(events)}
        for j, needs in enumerate(waited_for(program)):
            for i in needs:
                assert when["end", numbers[i]] < when["start", numbers[j]]


def without(program: Program, number: int) -> Program:
    """Without the token that is the pop of this number."""
    commands = list(program.commands)
    seen = 0
    for index, command in enumerate(commands):
        for place, name in enumerate(command.pops):
            if seen == number:
                which = [each for other in commands[:index] for each in other.pops].count(name)
                commands[index] = replace(command, pops=command.pops[:place] + command.pops[place + 1 :])
                for other, pusher in enumerate(commands):
                    if name in pusher.pushes:
                        if which == 0:
                            left = [each for each in pusher.pushes if each != name]
                            commands[other] = replace(pusher, pushes=tuple(left))
                            return replace(program, commands=commands)
                        which -= 1
            seen += 1
    raise AssertionError(number)


@examples(150)
@given(programs(machine()), st.integers(0, 999))
def test_the_queue_form_orders_exactly_what_the_tokens_order(program: Program, seed: int) -> None:
    assigned = assign_queues(program)
    numbers = original(assigned)
    assert numbers == list(range(len(program.commands)))
    assert np.array_equal(order_of(assigned), order_of(program))
    assert not any(command.after for command in assigned.commands)
    check_runs(program, assigned, seed)


@examples(100)
@given(programs(machine()))
def test_no_token_of_the_queue_form_can_be_left_out(program: Program) -> None:
    assigned = assign_queues(program)
    whole = order_of(assigned)
    for number in range(sum(len(command.pops) for command in assigned.commands)):
        assert not np.array_equal(order_of(without(assigned, number)), whole)


@examples(150)
@given(
    st.tuples(st.sampled_from([VTA, ALL]), st.integers(1, 4), st.integers(1, 3), st.booleans()).flatmap(
        lambda way: programs(machine(way[0], outstanding=way[1], capacity=way[2], blocks=way[3]))
    ),
    st.integers(0, 999),
)
def test_any_machine_keeps_the_order_within_its_capacities(program: Program, seed: int) -> None:
    assigned = assign_queues(program)
    numbers = original(assigned)
    assert [assigned.commands[number].name for number in numbers] == [each.name for each in program.commands]
    kept = order_of(assigned)[np.ix_(numbers, numbers)]
    assert not (order_of(program) & ~kept).any()
    assert not deadlocks(assigned)
    check_runs(program, assigned, seed)
