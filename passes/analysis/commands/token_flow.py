"""Where the tokens of a program come from, and whether they come at all."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.commands.clocks import Clocks, is_alone
from penstock.passes.analysis.commands.program import Command, Kind, Program, QueueName


def ordered_after(program: Program) -> list[list[int]]:
    """
    What every command comes after, by its tokens and by the pushes that its pops receive.

    Raises UserError, located, for a pop that no push is there for.
    """
    pushed: dict[QueueName, list[int]] = defaultdict(list)
    for index, command in enumerate(program.commands):
        for name in command.pushes:
            pushed[name].append(index)
    initial = {queue.name: queue.initial for queue in program.machine.queues}
    popped: dict[QueueName, int] = defaultdict(int)
    found: list[list[int]] = []
    for command in program.commands:
        needs = list(command.after)
        for name in command.pops:
            number = popped[name] - initial.get(name, 0)
            popped[name] += 1
            if number >= len(pushed[name]):
                raise UserError(
                    f'pops token {popped[name]} of the queue from "{name[0]}" to "{name[1]}", into which '
                    f"{len(pushed[name])} are pushed",
                    loc=location_of(command.op) if command.op is not None else None,
                )
            if number >= 0:
                needs.append(pushed[name][number])
        found.append(needs)
    return found


def is_stuck(program: Program) -> bool:
    """Whether the units of a program in queue form wait for each other for ever, pushes waiting for room."""
    commands, model = program.commands, program.machine
    room = {queue.name: queue.capacity if queue.blocks else None for queue in model.queues}
    held = {queue.name: queue.initial for queue in model.queues}
    done: set[int] = set()
    numbers = {id(command): number for number, command in enumerate(commands)}
    streams: dict[str, deque[Command]] = {unit: deque() for unit in model.units}
    for command in commands:
        streams[command.unit].append(command)
    flying: dict[str, list[tuple[Command, deque[QueueName]]]] = {unit: [] for unit in model.units}

    def end_some(unit: str) -> bool:
        left: list[tuple[Command, deque[QueueName]]] = []
        moved = False
        for command, pushes in flying[unit]:
            while pushes:
                limit = room[pushes[0]]
                if limit is not None and held[pushes[0]] >= limit:
                    break
                held[pushes.popleft()] += 1
                moved = True
            if pushes:
                left.append((command, pushes))
            else:
                done.add(numbers[id(command)])
                moved = True
        flying[unit] = left
        return moved

    def start_next(unit: str) -> bool:
        stream, busy = streams[unit], flying[unit]
        if not stream:
            return False
        head = stream[0]
        wanted = {name: head.pops.count(name) for name in head.pops}
        if not done.issuperset(head.after) or any(held[name] < count for name, count in wanted.items()):
            return False
        if busy and (is_alone(head, model) or busy[-1][0].kind is not Kind.TRANSFER):
            return False
        engine = model.engines.get(head.engine or "")
        if engine is not None and len(busy) >= engine.outstanding:
            return False
        for name, count in wanted.items():
            held[name] -= count
        busy.append((stream.popleft(), deque(head.pushes)))
        return True

    moving = True
    while moving:
        moving = False
        for unit in model.units:
            while start_next(unit) or end_some(unit):
                moving = True
    return any(streams.values()) or any(flying.values())


def keeps_order(program: Program, after: Sequence[Sequence[int]]) -> bool:
    """Whether every command of a program, carriers left out, is sure to come after those that `after` names."""
    clocks = Clocks(program.machine)
    real: list[int] = []
    barriers = deque(program.barriers)
    for number, (command, needs) in enumerate(zip(program.commands, ordered_after(program), strict=True)):
        while barriers and barriers[0] <= number:
            clocks.barrier()
            barriers.popleft()
        moment = clocks.before(command)
        for need in needs:
            moment = moment.join(clocks.told(need, command.unit))
        clocks.append(command, moment)
        if command.kind is Kind.CARRIER:
            continue
        if len(real) == len(after) or not all(clocks.is_done(real[need], moment) for need in after[len(real)]):
            return False
        real.append(number)
    return len(real) == len(after)


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
    for number, (command, needs) in enumerate(zip(program.commands, ordered_after(program), strict=True)):
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
