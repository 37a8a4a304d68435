# SPDX-License-Identifier: Apache-2.0
"""
Redundant tokens: what they stand for is complete anyway when the command starts.

An operand of an op is many tokens, one each time the op is issued, and each stands for one command or, as a join, for
several. Where those are not complete without tokens, other operands may imply them: by operand, which others suffice.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func
from xdsl.ir import Operation

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.commands.happens_before import happens_before, join
from penstock.passes.analysis.commands.hazards.network import run
from penstock.passes.analysis.commands.program import Command, MachineModel
from penstock.passes.analysis.commands.recorder import NOTHING, Recorder, Token
from penstock.passes.analysis.commands.trace import trace

_Coverage = dict[int, set[int]]
"""
Of an op: for each operand that some command waits for in some iteration, the masks of other operands that imply it
then, one mask for each command that it stands for. An operand that is missing is always implied.
"""


def redundant_operands(
    function: func.FuncOp, target: TargetOp, *, limit: int = 1_000_000
) -> list[tuple[Operation, int]]:
    """
    The token operands of the commands of a kernel that can be left out together without changing what is ordered.

    An operand is redundant if, every time its op is issued, all the commands that it stands for are complete by the
    order of the unit, by what the host waited for, by queues and by the operands that remain. Each is given as its
    op and its position in `dependencies`, in program order. Raises UserError as `trace` does, and for deadlocks.
    """
    recorder = _Recorder(MachineModel.of(target), limit)
    program = trace(function, target, limit=limit, record=lambda model, most: recorder)
    order, hazards = run(program)
    if len(order) < len(program.commands):
        raise hazards[0].error()
    coverage: dict[Operation, _Coverage] = {}
    for number, relation, _, implied in happens_before(program, order):
        operands, op = recorder.operands[number], program.commands[number].op
        if not operands or op is None:
            continue
        implied = join(implied, relation.ends(recorder.waited[number]))
        known = [relation.ends(members) for members in operands]
        covers = coverage.setdefault(op, {})
        for operand, members in enumerate(operands):
            for other in members:
                if not relation.is_complete(other, implied):
                    implying = [
                        n for n, clock in enumerate(known) if n != operand and relation.is_complete(other, clock)
                    ]
                    covers.setdefault(operand, set()).add(sum(1 << each for each in implying))
    found: list[tuple[Operation, int]] = []
    for op in function.walk():
        if isinstance(op, DmaOp | ExecOp):
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

    def issue(self, command: Command, tokens: Sequence[Token]) -> int:
        waits = self._waits.get(command.unit, NOTHING)
        number = super().issue(command, tokens)
        self.operands.append([self._members(token) for token in tokens])
        self.waited.append(self._members(waits))
        return number

    def _members(self, token: Token) -> tuple[int, ...]:
        return (token,) if isinstance(token, int) else self._numbers(token)


def _removable(count: int, covers: _Coverage) -> list[int]:
    removed = 0
    for operand in range(count):
        without = removed | 1 << operand
        if all(cover & ~without for each in range(count) if without >> each & 1 for cover in covers.get(each, ())):
            removed = without
    return [operand for operand in range(count) if removed >> operand & 1]
