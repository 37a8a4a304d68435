# SPDX-License-Identifier: Apache-2.0
"""
Pushes and pops as ops: put into a kernel beside its commands, with its loops or without them.

With loops:

1. `assign_queues` decides on the list of commands. Where one of them pushes, its op pushes in every iteration, or after
   the outermost loop in whose last iteration all its pushes fall (`_site`). Pops stand before ops and loops likewise.
2. These are more than are needed: the first iterations pop what is not pushed yet. So each queue is primed with as many
   pushes as let every pop receive no earlier push than it needs (`_pushes_ahead`), and drained of the rest at the end.

As a push implies all commands before it, more is ordered then, never less.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from xdsl.dialects import func, scf
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import BarrierOp, DmaOp, ExecOp, PopOp, PushOp
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.commands.happens_before import pushers
from penstock.passes.analysis.commands.program import Kind, MachineModel, Program, QueueName
from penstock.passes.analysis.commands.recorder import Recorder
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.loops import loops_around
from penstock.passes.schedule.ordering.tokens import set_dependencies, strip

_Site = tuple[QueueName, Operation]
"""A queue, and the command or loop that a push stands after, or a pop before."""


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


def insert_pattern(assigned: Program, *, pushes_outside: bool, pops_outside: bool) -> bool:
    """
    Insert pushes and pops so that all of `assigned` are among them; False, with nothing changed, if it has carriers.

    Pushes stand after loops and pops before them where they can, if they may.
    """
    if any(command.kind is Kind.CARRIER or command.after for command in assigned.commands):
        return False
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

    def sites(used: dict[_Site, list[int]], *, outside: bool, last: bool) -> Iterable[_Site]:
        return dict.fromkeys(
            (name, _site(op, counters[op], numbers, last=last) if outside else op)
            for (name, op), numbers in used.items()
        )

    for (source, dest), op in sites(pushing, outside=pushes_outside, last=True):
        push = PushOp(source, dest)
        push.location = op.location
        Rewriter.insert_op(push, InsertPoint.after(op))
    for (source, dest), op in sites(popping, outside=pops_outside, last=False):
        pop = PopOp(dest, source)
        pop.location = op.location
        Rewriter.insert_op(pop, InsertPoint.before(op))
    return True


def _site(op: Operation, counters: Sequence[tuple[int, ...]], numbers: Sequence[int], *, last: bool) -> Operation:
    """The outermost loop around `op`, or itself, in whose last or first iteration all of `numbers` fall."""
    step = 1 if last else -1
    for level, loop in enumerate(loops_around(op)):
        if all(_leaves(counters, number, number + step, level) for number in numbers):
            return loop
    return op


def _leaves(counters: Sequence[tuple[int, ...]], number: int, other: int, level: int) -> bool:
    """Whether from one execution to another an iteration of the loops outside `level` ends."""
    return not 0 <= other < len(counters) or counters[number][:level] != counters[other][:level]


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
    needs: dict[tuple[QueueName, int], int] = {}
    for number, received in enumerate(pushers(assigned)):
        for name, push in zip(assigned.commands[number].pops, received, strict=True):
            assert push is not None
            needs[name, real[number]] = real[push]
    pushes: dict[QueueName, list[int]] = defaultdict(list)
    pops: dict[QueueName, list[int]] = defaultdict(list)
    for number, command in enumerate(traced.commands):
        for name in command.pushes:
            pushes[name].append(number)
        for name in command.pops:
            pops[name].append(number)
    primes: list[Operation] = []
    drains: list[Operation] = []
    for queue in traced.machine.queues:
        name = queue.name
        needed = [needs.get((name, pop)) for pop in pops[name]]
        ahead = _pushes_ahead(pushes[name], needed, events[name])
        left = len(pushes[name]) + (ahead or 0) - len(pops[name])
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


def _pushes_ahead(pushes: Sequence[int], needs: Sequence[int | None], events: Sequence[bool]) -> int | None:
    """
    The most pushes before all others with which each pop receives the push it needs, or a later one.

    `needs` has, for each pop, the command whose push it must receive. None if with so many a pop would be issued before
    its push.
    """
    most, least, held = len(needs), 0, 0
    for number, need in enumerate(needs):
        if need is not None:
            most = min(most, number - bisect_left(pushes, need))
    for is_push in events:
        held += 1 if is_push else -1
        least = max(least, -held)
    return most if most >= least else None
