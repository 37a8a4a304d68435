"""
Which tokens say nothing: what they stand for is complete anyway when the command starts.

That is the transitive reduction of the order of all commands. An operand of an op is many tokens, one each time the op
is issued, and each stands for one command or, as a join, for several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import func
from xdsl.ir import Operation

from penstock.dialects import accel
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.commands.hazards.network import Flow, run
from penstock.passes.analysis.commands.hazards.order import Order
from penstock.passes.analysis.commands.program import Command, MachineModel, Program
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.commands.tracing.recorder import NOTHING, Recorder, Token

Operand = tuple[Operation, int]
"""A command op and which of its `dependencies` is meant."""


@dataclass(frozen=True)
class Redundancy:
    """The tokens of a kernel."""

    tokens: int
    """How many token operands its commands have."""
    redundant: tuple[Operand, ...]
    """Those that can all be left out together, in program order."""


def redundancy(function: func.FuncOp, target: TargetOp, *, limit: int = 1_000_000) -> Redundancy:
    """How many token operands a kernel at the accelerator level has, and which are redundant."""
    tokens = sum(len(op.dependencies) for op in function.walk() if isinstance(op, (accel.DmaOp, accel.ExecOp)))
    return Redundancy(tokens, tuple(redundant_operands(function, target, limit=limit)))


def redundant_operands(function: func.FuncOp, target: TargetOp, *, limit: int = 1_000_000) -> list[Operand]:
    """
    The token operands of the commands of a kernel that can be left out together without changing what is ordered.

    An operand is redundant if, every time its op is issued, all the commands that it stands for are complete by the
    order of the unit, by what the host waited for, by queues and by the operands that remain. Each is given as its
    op and its position in `dependencies`, in program order. Raises UserError as `trace` does, and if the units do not
    get through the kernel.
    """
    recorder = _Recorder(MachineModel.of(target), limit)
    program = trace(function, target, limit=limit, record=lambda model, most: recorder)
    flow = run(program)
    if len(flow.order) < len(program.commands):
        raise flow.hazards[0].error()
    found: list[Operand] = []
    coverage = _coverage(program, flow, recorder)
    for op in function.walk():
        if isinstance(op, (accel.DmaOp, accel.ExecOp)) and op.dependencies:
            # An op that is never issued waits for nothing.
            covers = coverage.get(op, {number: set() for number in range(len(op.dependencies))})
            found += [(op, number) for number in _removable(len(op.dependencies), covers)]
    return found


class _Recorder(Recorder):
    """Also keeps what each operand of a command stands for."""

    def __init__(self, machine: MachineModel, limit: int):
        super().__init__(machine, limit)
        self.operands: list[list[tuple[int, ...]]] = []
        self.waited: list[tuple[int, ...]] = []

    def issue(self, command: Command, tokens: Sequence[Token], *, closes: bool) -> int:
        waits = self._waits.get(command.unit, NOTHING)
        number = super().issue(command, tokens, closes=closes)
        self.operands.append([self._members(token) for token in tokens])
        self.waited.append(self._members(waits))
        return number

    def _members(self, token: Token) -> tuple[int, ...]:
        return (token,) if isinstance(token, int) else self._numbers(token)


_Coverage = dict[int, set[int]]
"""
Of an op: for each operand that some command needs in some round, the masks of other operands that imply it then, one
mask for each command that it stands for. An operand that is missing is implied by none of them, but always.
"""


def _coverage(program: Program, flow: Flow, recorder: _Recorder) -> dict[Operation, _Coverage]:
    order = Order(program, flow)
    asked = Counter(other for operands in recorder.operands for members in operands for other in members)
    found: dict[Operation, _Coverage] = {}
    barriers = iter([*program.barriers, -1])
    barrier = next(barriers)
    for at, number in enumerate(flow.order):
        while at == barrier:
            order.barrier()
            barrier = next(barriers)
        operands, op = recorder.operands[number], program.commands[number].op
        if operands and op is not None:
            implied = order.without_tokens(number)
            for other in recorder.waited[number]:
                implied |= order.end(other)
            covers = found.setdefault(op, {})
            for operand, cover in _needs(order, implied, operands):
                covers.setdefault(operand, set()).add(cover)
            for members in operands:
                asked.subtract(members)
        order.start(number)
        if not at & 255:
            order.tidy(lambda number: asked[number] > 0)
    return found


def _needs(order: Order, implied: int, operands: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """The operands that are not implied without tokens, with the masks of the others that imply them."""
    known = [0] * len(operands)
    for operand, members in enumerate(operands):
        for other in members:
            known[operand] |= order.end(other)
    for operand, members in enumerate(operands):
        for other in members:
            at = order.bit.get(other)
            if at is None or implied >> at & 1:
                continue
            yield operand, sum(1 << each for each, mask in enumerate(known) if each != operand and mask >> at & 1)


def _removable(count: int, covers: _Coverage) -> list[int]:
    removed = 0
    for operand in range(count):
        without = removed | 1 << operand
        if all(cover & ~without for each in range(count) if without >> each & 1 for cover in covers.get(each, ())):
            removed = without
    return [operand for operand in range(count) if removed >> operand & 1]
