"""
The units as a Kahn network: in which order commands can start, and what the queues hold.

Units take their commands in order and meet only in tokens, so whether all of them get through does not depend on how
long anything takes: one run decides it. What a queue holds at most does, and is bounded by what is certain to have
been taken out of it when a token is put in.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.passes.analysis.commands.hazards.hazard import Fault, Hazard, ops_of, place, queue_title, title
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program, Queue, QueueName


def outstanding(model: MachineModel, command: Command) -> int:
    """How many transfers of its unit may be incomplete when a transfer has started, itself included."""
    engine = model.engines.get(command.engine or "")
    return 1 if engine is None else engine.outstanding


def is_alone(model: MachineModel, command: Command) -> bool:
    """Whether a command starts only when all earlier ones of its unit are complete."""
    return command.kind is not Kind.TRANSFER or outstanding(model, command) <= 1


@dataclass
class Flow:
    """How the commands of a program can get through."""

    order: list[int]
    """The commands in an order in which they can start; all of them, if there are no hazards."""
    sources: dict[int, list[int]]
    """For a command that pops, the commands whose pushes it receives."""
    hazards: list[Hazard] = field(default_factory=list[Hazard])


def run(program: Program) -> Flow:
    """Let the units of a program run; hazards are wrong queues, deadlocks, leaks and overflows."""
    wrong = _wrong_units(program)
    if wrong:
        return Flow([], {}, wrong)
    matched = _in_program_order(program)
    if matched is None:
        order, matched, stuck = _Network(program).run()
        if stuck:
            return Flow(order, matched, stuck)
    else:
        order = list(range(len(program.commands)))
    flow = Flow(order, matched)
    flow.hazards.extend(_leaks(program))
    flow.hazards.extend(_overflows(program, flow))
    return flow


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
                found.append(Hazard(Fault.WRONG_UNIT, message, (number,), ops_of(program.commands, (number,))))
    return found


def _in_program_order(program: Program) -> dict[int, list[int]] | None:
    """The sources of all pops if the commands can simply run one after the other; None if they cannot."""
    holds: dict[QueueName, deque[int]] = {}
    room: dict[QueueName, int | None] = {}
    for queue in program.machine.queues:
        holds[queue.name] = deque([-1] * queue.initial)
        room[queue.name] = queue.capacity if queue.blocks else None
    sources: dict[int, list[int]] = {}
    for number, command in enumerate(program.commands):
        if command.after and (command.after[-1] >= number or max(command.after) >= number):
            return None
        for name in command.pops:
            if not holds[name]:
                return None
            if (source := holds[name].popleft()) >= 0:
                sources.setdefault(number, []).append(source)
        for name in command.pushes:
            holds[name].append(number)
            limit = room[name]
            if limit is not None and len(holds[name]) > limit:
                return None
    return sources


class _Network:
    """A run in any order: whoever can get on does."""

    def __init__(self, program: Program):
        self.program = program
        self.streams: dict[str, deque[int]] = {unit: deque() for unit in program.machine.units}
        for number, command in enumerate(program.commands):
            self.streams[command.unit].append(number)
        self.flying: dict[str, list[int]] = {unit: [] for unit in program.machine.units}
        self.left: dict[int, deque[QueueName]] = {}
        """The pushes that are still to be made, by a command in flight."""
        self.queues: dict[QueueName, Queue] = {queue.name: queue for queue in program.machine.queues}
        self.holds = {name: deque([-1] * queue.initial) for name, queue in self.queues.items()}
        self.done: set[int] = set()
        self.order: list[int] = []
        self.sources: dict[int, list[int]] = {}
        self.barriers = deque(program.barriers)

    def run(self) -> tuple[list[int], dict[int, list[int]], list[Hazard]]:
        commands = self.program.commands
        while len(self.done) < len(commands):
            moving = False
            for unit in self.streams:
                while self._end(unit) or self._start(unit):
                    moving = True
            while self.barriers and len(self.done) >= self.barriers[0]:
                self.barriers.popleft()
                moving = True
            if not moving:
                return self.order, self.sources, [self._deadlock()]
        return self.order, self.sources, []

    def _start(self, unit: str) -> bool:
        stream, flying = self.streams[unit], self.flying[unit]
        if not stream:
            return False
        number = stream[0]
        command = self.program.commands[number]
        if flying and (
            is_alone(self.program.machine, command)
            or any(self.program.commands[other].kind is not Kind.TRANSFER for other in flying)
            or len(flying) >= outstanding(self.program.machine, command)
        ):
            return False
        if self._lacks(number):
            return False
        for name in command.pops:
            if (source := self.holds[name].popleft()) >= 0:
                self.sources.setdefault(number, []).append(source)
        stream.popleft()
        flying.append(number)
        self.left[number] = deque(command.pushes)
        self.order.append(number)
        return True

    def _lacks(self, number: int) -> list[str]:
        """What a command waits for before it can start, apart from its unit."""
        command = self.program.commands[number]
        found: list[str] = []
        if self.barriers and number >= self.barriers[0]:
            found.append("the barrier before it")
        for other in command.after:
            if other not in self.done:
                known = 0 <= other < len(self.program.commands)
                source = self.program.commands[other] if known else None
                found.append(
                    f"{title(source)}{place(source)}"
                    if source is not None
                    else f"a token that nobody signals ({other})"
                )
        for name, wanted in Counter(command.pops).items():
            if len(self.holds[name]) < wanted:
                found.append(f"a token of {queue_title(name)}" + self._why_empty(name))
        return found

    def _why_empty(self, name: QueueName) -> str:
        unit = name[0]
        coming = any(name in self.program.commands[other].pushes for other in self.streams[unit])
        coming = coming or any(name in self.left[other] for other in self.flying[unit])
        if coming:
            return ""
        pops = sum(command.pops.count(name) for command in self.program.commands)
        pushes = sum(command.pushes.count(name) for command in self.program.commands)
        initial = self.queues[name].initial
        held = f" and holds {initial} at the beginning" if initial else ""
        return f", which is popped {pops} times and pushed {pushes}{held}"

    def _end(self, unit: str) -> bool:
        flying = self.flying[unit]
        for at, number in enumerate(flying):
            left = self.left[number]
            # Tokens go into a queue in the order of the commands.
            if left and at > 0:
                continue
            while left and not self._is_full(left[0]):
                self.holds[left.popleft()].append(number)
            if not left:
                del flying[at]
                del self.left[number]
                self.done.add(number)
                return True
        return False

    def _is_full(self, name: QueueName) -> bool:
        queue = self.queues[name]
        return queue.blocks and len(self.holds[name]) >= queue.capacity

    def _deadlock(self) -> Hazard:
        commands = self.program.commands
        notes: list[str] = []
        numbers: list[int] = []
        never = False
        for unit, stream in self.streams.items():
            flying = [number for number in self.flying[unit] if self.left[number]]
            if flying:
                number, what = flying[0], f"room in {queue_title(self.left[flying[0]][0])}"
            elif stream:
                number = stream[0]
                lacks = self._lacks(number)
                never = never or any("which is popped" in each or "nobody" in each for each in lacks)
                what = " and ".join(lacks) or "the commands before it"
            else:
                continue
            numbers.append(number)
            notes.append(f"{unit} is at {title(commands[number])}{place(commands[number])}, which waits for {what}")
        message = "a token that is waited for never comes" if never else "the units wait for each other for ever"
        return Hazard(Fault.DEADLOCK, message, tuple(numbers), ops_of(commands, numbers), tuple(notes))


def _leaks(program: Program) -> list[Hazard]:
    found: list[Hazard] = []
    pushes: Counter[QueueName] = Counter()
    pops: Counter[QueueName] = Counter()
    last: dict[QueueName, int] = {}
    for number, command in enumerate(program.commands):
        for name in command.pushes:
            pushes[name] += 1
            last[name] = number
        for name in command.pops:
            pops[name] += 1
            last[name] = number
    for queue in program.machine.queues:
        name = queue.name
        if pushes[name] != pops[name]:
            message = (
                f"{queue_title(name)} ends with {queue.initial + pushes[name] - pops[name]} tokens and began with "
                f"{queue.initial}: it is pushed {pushes[name]} times and popped {pops[name]}"
            )
            found.append(Hazard(Fault.LEAK, message, (last[name],), ops_of(program.commands, (last[name],))))
    return found


def _overflows(program: Program, flow: Flow) -> list[Hazard]:
    """Pushes into queues where a full one is an error, and that may come before room has certainly been made."""
    watched = {queue.name: queue for queue in program.machine.queues if not queue.blocks}
    if not any(name in watched for command in program.commands for name in command.pushes):
        return []
    poppers: dict[QueueName, list[int]] = defaultdict(list)
    for number, command in enumerate(program.commands):
        for name in command.pops:
            poppers[name].append(number)
    pushed: Counter[QueueName] = Counter()
    found: dict[QueueName, Hazard] = {}
    for number, started in _started(program, flow):
        command = program.commands[number]
        for name in command.pushes:
            if name not in watched:
                continue
            queue = watched[name]
            pop = queue.initial + pushed[name] - queue.capacity
            pushed[name] += 1
            if pop < 0 or name in found:
                continue
            taker = poppers[name][pop] if pop < len(poppers[name]) else None
            if taker is None or not started(taker):
                message = (
                    f"{title(command)}{place(command)} may push into {queue_title(name)} when that holds "
                    f"{queue.capacity} tokens, which is all it can hold"
                )
                notes: tuple[str, ...] = ()
                if taker is not None:
                    other = program.commands[taker]
                    notes = (f"nothing says that {title(other)}{place(other)} has taken one before",)
                found[name] = Hazard(Fault.OVERFLOW, message, (number,), ops_of(program.commands, (number,)), notes)
    return list(found.values())


class _Started:
    """Which commands have certainly started when a command ends: those of every unit below a number."""

    def __init__(self, unit: Sequence[int], position: Sequence[int], clock: Sequence[int]):
        self.unit, self.position, self.clock = unit, position, clock

    def __call__(self, command: int) -> bool:
        return self.position[command] < self.clock[self.unit[command]]


def _started(program: Program, flow: Flow):
    """The commands in the order of `flow`, each with what has started when it ends."""
    units = {name: number for number, name in enumerate(program.machine.units)}
    unit = [units[command.unit] for command in program.commands]
    position = [0] * len(unit)
    counts = [0] * len(units)
    for number, where in enumerate(unit):
        position[number] = counts[where]
        counts[where] += 1
    last: list[list[int]] = [[0] * len(units) for _ in units]
    ends: dict[int, list[int]] = {}
    barriers = deque(program.barriers)
    seen = 0
    for number in flow.order:
        if barriers and seen >= barriers[0]:
            barriers.popleft()
            floor = [0] * len(units)
            for clock in last:
                floor = [max(a, b) for a, b in zip(floor, clock, strict=True)]
            last = [list(floor) for _ in units]
        seen += 1
        clock = last[unit[number]]
        for source in (*program.commands[number].after, *flow.sources.get(number, ())):
            clock = [max(a, b) for a, b in zip(clock, ends[source], strict=True)]
        clock = list(clock)
        clock[unit[number]] = position[number] + 1
        last[unit[number]] = ends[number] = clock
        yield number, _Started(unit, position, clock)
