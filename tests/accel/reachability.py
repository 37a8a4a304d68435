# SPDX-License-Identifier: Apache-2.0
"""
A second opinion on order and hazards, independent on purpose: a graph of starts and ends, searched from every node.

Slow; what the compiler decides is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.passes.analysis.commands.program import Kind, MachineModel, Program, QueueName
from penstock.passes.analysis.commands.region import Region

Graph = list[set[int]]
"""
Of each event those that come after it: 3n is the start of command n, 3n + 1 the moment when it has read and written
all, 3n + 2 its end, when it has made its pushes; after those of all commands come the pushes, one by one.
"""


def alone(model: MachineModel, program: Program, number: int) -> bool:
    command = program.commands[number]
    return command.kind is not Kind.TRANSFER or model.engines[command.engine or ""].outstanding == 1


def pushes_and_pops(program: Program) -> tuple[dict[QueueName, list[int]], dict[QueueName, list[int]]]:
    pushes: dict[QueueName, list[int]] = {queue.name: [] for queue in program.machine.queues}
    pops: dict[QueueName, list[int]] = {queue.name: [] for queue in program.machine.queues}
    for number, command in enumerate(program.commands):
        for name in command.pushes:
            pushes[name].append(number)
        for name in command.pops:
            pops[name].append(number)
    return pushes, pops


def push_events(program: Program) -> dict[QueueName, list[int]]:
    """For each queue the events of its pushes, in their order."""
    found: dict[QueueName, list[int]] = {queue.name: [] for queue in program.machine.queues}
    event = 3 * len(program.commands)
    for command in program.commands:
        for name in command.pushes:
            found[name].append(event)
            event += 1
    return found


def events(program: Program, after: Sequence[Sequence[int]] | None = None, *, room: bool = False) -> Graph | None:
    """The order of events; None if a token is never signalled. With `room`, pushes wait until there is room."""
    commands = program.commands
    graph: Graph = [set() for _ in range(3 * len(commands) + sum(len(command.pushes) for command in commands))]
    push = 3 * len(commands)
    for number, command in enumerate(commands):
        start, complete, end = 3 * number, 3 * number + 1, 3 * number + 2
        graph[start].add(complete)
        graph[complete].add(end)
        before = [other for other in range(number) if commands[other].unit == command.unit]
        for other in before:
            graph[3 * other].add(start)
            if alone(program.machine, program, number) or commands[other].kind is not Kind.TRANSFER:
                graph[3 * other + 2].add(start)
        for other in command.after if after is None else after[number]:
            graph[3 * other + 2].add(start)
        last = complete
        for _ in command.pushes:
            # Tokens go into a queue in the order of the commands of the unit, one after the other.
            graph[last].add(push)
            for other in before:
                graph[3 * other + 2].add(push)
            last, push = push, push + 1
        graph[last].add(end)
    for barrier in program.barriers:
        for other in range(barrier):
            for number in range(barrier, len(commands)):
                graph[3 * other + 2].add(3 * number)
    pushes, (_, pops) = push_events(program), pushes_and_pops(program)
    for queue in program.machine.queues:
        into, out = pushes[queue.name], pops[queue.name]
        if len(out) > len(into) + queue.initial:
            return None
        for number, taker in enumerate(out[queue.initial :]):
            graph[into[number]].add(3 * taker)
        if room and queue.blocks:
            for number, event in enumerate(into):
                taker = queue.initial + number - queue.capacity
                if taker >= len(out):
                    return None
                if taker >= 0:
                    graph[3 * out[taker]].add(event)
    return graph


def has_cycle(graph: Graph) -> bool:
    left = [0] * len(graph)
    for following in graph:
        for event in following:
            left[event] += 1
    free = [event for event, count in enumerate(left) if count == 0]
    seen = 0
    while free:
        seen += 1
        for event in graph[free.pop()]:
            left[event] -= 1
            if left[event] == 0:
                free.append(event)
    return seen < len(graph)


def reached(graph: Graph) -> NDArray[np.bool_]:
    """Whether an event certainly comes before another, by rows and columns; the graph has no cycle."""
    found = np.zeros((len(graph), len(graph)), np.bool_)
    done = [False] * len(graph)
    for root in range(len(graph)):
        stack = [root]
        while stack:
            event = stack[-1]
            waiting = [other for other in graph[event] if not done[other]]
            if waiting and not done[event]:
                stack.extend(waiting)
                continue
            stack.pop()
            if not done[event]:
                done[event] = True
                for other in graph[event]:
                    found[event] |= found[other]
                    found[event, other] = True
    return found


def ordered(graph: Graph, count: int) -> NDArray[np.bool_]:
    """Whether a command has read and written all before another starts."""
    return reached(graph)[1 : 3 * count : 3, 0 : 3 * count : 3]


def touched(region: Region) -> set[tuple[str, int, int]]:
    """Its bytes, one by one."""
    starts = [region.start]
    for count, stride in region.dims:
        starts = [start + index * stride for start in starts for index in range(count)]
    return {(region.space, region.storage, start + byte) for start in starts for byte in range(region.length)}


def races(program: Program, graph: Graph) -> set[tuple[int, int]]:
    """The pairs of commands that touch a common byte in no order, one of them writing; the earlier one first."""
    before = ordered(graph, len(program.commands))
    reads = [set[tuple[str, int, int]]().union(*map(touched, command.reads)) for command in program.commands]
    writes = [set[tuple[str, int, int]]().union(*map(touched, command.writes)) for command in program.commands]
    return {
        (one, two)
        for two in range(len(reads))
        for one in range(two)
        if not before[one, two]
        and not before[two, one]
        and (writes[one] & (reads[two] | writes[two]) or reads[one] & writes[two])
    }


def overflows(program: Program, graph: Graph) -> set[QueueName]:
    """The queues of the kind that must never be full into which a push may come too early."""
    before = reached(graph)
    pushes, (_, pops) = push_events(program), pushes_and_pops(program)
    found: set[QueueName] = set()
    for queue in program.machine.queues:
        for number, event in enumerate(pushes[queue.name]):
            taker = queue.initial + number - queue.capacity
            if queue.blocks or taker < 0:
                continue
            out = pops[queue.name]
            if taker >= len(out) or not before[3 * out[taker], event]:
                found.add(queue.name)
    return found


def redundant(program: Program, changed: Sequence[Sequence[int]]) -> bool:
    """Whether the order of all commands stays as it is if they come after `changed` in place of what they do."""
    mine, theirs = events(program), events(program, changed)
    assert mine is not None
    assert theirs is not None
    return bool(np.array_equal(ordered(mine, len(changed)), ordered(theirs, len(changed))))
