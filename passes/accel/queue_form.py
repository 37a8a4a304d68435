"""
Pushes and pops as ops: put into a kernel beside its commands, with its loops or without them.

With loops, the pattern is read off the queues that the list of commands gets. Where a command pushes, it does so in
every round of as few of the loops around it as hold all its pushes: after a loop, if only in its last rounds. Pops
stand before commands and loops in the same way; or both only beside commands, as what stands behind a loop is issued
later than what stands in it. These are more than are needed: the first rounds pop what nobody has
pushed. So each queue is primed before everything with as many pushes as let every pop receive no earlier push than it
needs, and drained at the end of what is left over. As a push tells of all before it, more is ordered then, never less.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import func, scf
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import BarrierOp, DmaOp, ExecOp, PopOp, PushOp
from penstock.dialects.machine import TargetOp
from penstock.passes.accel.ordering.tokens import set_dependencies, strip
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program, QueueName
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.commands.tracing.recorder import Recorder
from penstock.passes.analysis.loops import loops_around

_Site = tuple[QueueName, Operation]
"""A queue, and the command or loop that a push stands behind, or a pop before."""


def place(function: func.FuncOp, assigned: Program) -> None:
    """
    Order a kernel without loops by the queues of `assigned`, in place of its tokens.

    Each op of the kernel is a command of `assigned`, in this order, with carriers in between. Tokens between commands
    of one unit stay.
    """
    strip(function)
    ops = [command.op for command in assigned.commands]
    tokens: dict[Operation, SSAValue] = {op: op.token for op in ops if isinstance(op, DmaOp | ExecOp)}
    last: Operation | None = None
    for command in assigned.commands:
        op = command.op
        pops: list[Operation] = [PopOp(command.unit, source) for source, _ in command.pops]
        pushes: list[Operation] = [PushOp(command.unit, dest) for _, dest in command.pushes]
        for each in (*pops, *pushes):
            if op is not None:
                each.location = op.location
        if command.kind is Kind.CARRIER or op is None:
            new = [*pops, *pushes]
            if new:
                at = InsertPoint.at_start(function.body.block) if last is None else InsertPoint.after(last)
                Rewriter.insert_op(new, at)
                last = new[-1]
            continue
        assert isinstance(op, DmaOp | ExecOp)
        own = [ops[number] for number in command.after]
        set_dependencies(op, [tokens[other] for other in own if other is not None])
        Rewriter.insert_op(pops, InsertPoint.before(op))
        Rewriter.insert_op(pushes, InsertPoint.after(op))
        last = pushes[-1] if pushes else op


@dataclass
class Pattern:
    """Where pushes and pops stand in a kernel with loops."""

    pushes: list[_Site]
    pops: list[_Site]

    def insert(self) -> None:
        """Put them there."""
        for (source, dest), op in self.pushes:
            push = PushOp(source, dest)
            push.location = op.location
            Rewriter.insert_op(push, InsertPoint.after(op))
        for (source, dest), op in self.pops:
            pop = PopOp(dest, source)
            pop.location = op.location
            Rewriter.insert_op(pop, InsertPoint.before(op))


def pattern_of(assigned: Program, *, pushes_outside: bool, pops_outside: bool) -> Pattern | None:
    """
    Where pushes and pops can stand so that all of `assigned` are among them; None where carriers are needed.

    They stand behind and before loops where they can, if they may.
    """
    if any(command.kind is Kind.CARRIER or command.after for command in assigned.commands):
        return None
    counters: dict[Operation, list[tuple[int, ...]]] = defaultdict(list)
    pushing: dict[_Site, list[int]] = defaultdict(list)
    popping: dict[_Site, list[int]] = defaultdict(list)
    for command in assigned.commands:
        op = command.op
        assert op is not None
        number = len(counters[op])
        counters[op].append(command.counters)
        for name in command.pushes:
            pushing[name, op].append(number)
        for name in command.pops:
            popping[name, op].append(number)
    pushes = [
        (name, _site(op, counters[op], numbers, last=True) if pushes_outside else op)
        for (name, op), numbers in pushing.items()
    ]
    pops = [
        (name, _site(op, counters[op], numbers, last=False) if pops_outside else op)
        for (name, op), numbers in popping.items()
    ]
    return Pattern(list(dict.fromkeys(pushes)), list(dict.fromkeys(pops)))


def _site(op: Operation, rounds: Sequence[tuple[int, ...]], numbers: Sequence[int], *, last: bool) -> Operation:
    """The outermost loop around `op`, or itself, in whose last or first round all of `numbers` fall."""
    loops = loops_around(op)
    step = 1 if last else -1
    for level, loop in enumerate(loops):
        if all(_leaves(rounds, number, number + step, level) for number in numbers):
            return loop
    return op


def _leaves(rounds: Sequence[tuple[int, ...]], number: int, other: int, level: int) -> bool:
    """Whether from one execution to another a round of the loops outside `level` ends."""
    return not 0 <= other < len(rounds) or rounds[number][:level] != rounds[other][:level]


class _Listener(Recorder):
    """Notes when pushes and pops are issued, too."""

    def __init__(self, machine: MachineModel, limit: int):
        super().__init__(machine, limit)
        self.events: dict[QueueName, list[bool]] = defaultdict(list)
        """For each queue its pushes and pops as they are issued; True is a push."""

    def push(self, op: Operation, unit: str, peer: str, counters: tuple[int, ...]) -> None:
        super().push(op, unit, peer, counters)
        self.events[unit, peer].append(True)

    def pop(self, op: Operation, unit: str, peer: str, counters: tuple[int, ...]) -> None:
        super().pop(op, unit, peer, counters)
        self.events[peer, unit].append(False)


def prime_and_drain(function: func.FuncOp, target: TargetOp, assigned: Program) -> bool:
    """
    Put in the pushes before everything and the pops after it that the pattern of `function` needs.

    `assigned` has the queues that the same commands need. False, with nothing changed, if there is no number of pushes
    with which every pop gets what it needs, and is issued after it.
    """
    listeners: list[_Listener] = []

    def record(machine: MachineModel, limit: int) -> Recorder:
        listeners.append(_Listener(machine, limit))
        return listeners[-1]

    traced = trace(function, target, record=record)
    events = listeners[-1].events
    real = [number for number, command in enumerate(traced.commands) if command.kind is not Kind.CARRIER]
    needs = {(name, real[pop]): real[push] for (name, pop), push in _needs(assigned).items()}
    primes: list[Operation] = []
    drains: list[Operation] = []
    for queue in traced.machine.queues:
        name = queue.name
        sequence = _Sequence.of(traced.commands, name)
        if not sequence.pushes and not sequence.pops:
            continue
        ahead = sequence.ahead([needs.get((name, pop)) for pop in sequence.pops], events[name])
        left = len(sequence.pushes) + (ahead or 0) - len(sequence.pops)
        if ahead is None or left < 0:
            return False
        primes += [PushOp(*name) for _ in range(ahead)]
        drains += [PopOp(name[1], name[0]) for _ in range(left)]
    block = function.body.block
    first = next(op for op in block.ops if isinstance(op, DmaOp | ExecOp | PushOp | PopOp | scf.ForOp))
    end = block.last_op
    assert end is not None
    if isinstance(end.prev_op, BarrierOp):
        end = end.prev_op
    for ops, where in ((primes, first), (drains, end)):
        for op in ops:
            op.location = where.location
        Rewriter.insert_op(ops, InsertPoint.before(where))
    return True


def _needs(assigned: Program) -> dict[tuple[QueueName, int], int]:
    """For a queue and the command that pops it, the command whose push it receives."""
    pushed: dict[QueueName, list[int]] = defaultdict(list)
    for number, command in enumerate(assigned.commands):
        for name in command.pushes:
            pushed[name].append(number)
    taken: dict[QueueName, int] = defaultdict(int)
    needs: dict[tuple[QueueName, int], int] = {}
    for number, command in enumerate(assigned.commands):
        for name in command.pops:
            needs[name, number] = pushed[name][taken[name]]
            taken[name] += 1
    return needs


@dataclass
class _Sequence:
    """The commands that push to a queue, and those that pop it, in order; one may do so several times."""

    pushes: list[int]
    pops: list[int]

    @staticmethod
    def of(commands: Sequence[Command], name: QueueName) -> _Sequence:
        pushes = [number for number, command in enumerate(commands) for each in command.pushes if each == name]
        pops = [number for number, command in enumerate(commands) for each in command.pops if each == name]
        return _Sequence(pushes, pops)

    def ahead(self, needs: Sequence[int | None], events: Sequence[bool]) -> int | None:
        """
        The most pushes before all others with which each pop receives the push it needs, or a later one.

        `needs` has the command that each pop must hear of. None if with so many a pop would be issued before its push.
        """
        most, least, held = len(self.pops), 0, 0
        for number, need in enumerate(needs):
            if need is not None:
                most = min(most, number - bisect_left(self.pushes, need))
        for is_push in events:
            held += 1 if is_push else -1
            least = max(least, -held)
        return most if most >= least else None
