"""
Which tokens are of no use where they are: what loops carry, joins collect and commands wait for, judged path by path.

A token that is needed by one command may be carried to others, or further, for nothing: an outer loop, or another
path, has seen to their order. A rehearsal of the kernel with its tokens shows what each command gets from them that
nothing else implies, and by which operands it came there. All other operands are left out: no order changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import func, scf
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.accel import BarrierOp, ReadyOp, TokenType
from penstock.dialects.mem import RingOp
from penstock.passes.accel.ordering.accesses import CommandInfo, CommandOp
from penstock.passes.accel.ordering.progress import Progress
from penstock.passes.accel.ordering.reduction import rounds_of

Operand = tuple[Operation, int]
"""An operand of an op by its number."""


@dataclass(frozen=True, eq=False)
class _Token:
    """What one token stands for at one moment."""

    commands: int
    """As a mask."""
    parts: tuple[tuple[Operand, _Token], ...] = ()
    """What it was made of, each by the operand that it came by; nothing for that of a command."""


def leave_out(
    function: func.FuncOp,
    commands: Sequence[CommandInfo],
    steps: Mapping[RingOp, Mapping[Block, int]],
    never: SSAValue,
) -> None:
    """
    Put `never`, for which nobody has to wait, in the place of each token operand of a kernel that says nothing.

    `steps` is by how many slots of a ring each loop moves on in a round. Kernels that are too long to be rehearsed
    stay as they are.
    """
    rounds = rounds_of(function, commands, steps)
    if rounds is None:
        return
    paths = _Paths({info.op: info for info in commands}, rounds)
    paths.run(function.body.block)
    needed = _operands_needed(paths.needs)
    for op in function.walk():
        for number, value in enumerate(op.operands):
            if isinstance(value.type, TokenType) and (op, number) not in needed:
                op.operands[number] = never


@dataclass
class _Paths:
    """The rehearsal of a kernel."""

    infos: Mapping[CommandOp, CommandInfo]
    rounds: Mapping[Block, int]
    progress: Progress = field(default_factory=Progress)
    values: dict[SSAValue, _Token] = field(default_factory=dict[SSAValue, _Token])
    needs: list[tuple[_Token, int]] = field(default_factory=list[tuple[_Token, int]])
    """What a command waits for, and the number of a command that only this says is complete."""

    def run(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                self._for(op)
            elif isinstance(op, BarrierOp):
                self.progress.barrier()
            elif isinstance(op, ReadyOp):
                self.values[op.token] = self._all(op)
            elif isinstance(op, CommandOp):
                self._command(op)

    def _for(self, loop: scf.ForOp) -> None:
        body = loop.body.block
        carried = [n for n, value in enumerate(loop.iter_args) if isinstance(value.type, TokenType)]
        now = [self._by(loop, 3 + number) for number in carried]
        terminator = body.last_op
        assert terminator is not None
        for _ in range(self.rounds[body]):
            for number, token in zip(carried, now, strict=True):
                self.values[body.args[1 + number]] = token
            self.run(body)
            now = [self._by(terminator, number) for number in carried]
        for number, token in zip(carried, now, strict=True):
            self.values[loop.results[number]] = token

    def _command(self, op: CommandOp) -> None:
        info, token = self.infos[op], self._all(op)
        covered = self.progress.before(info)
        while left := token.commands & ~covered:
            latest = left.bit_length() - 1
            self.needs.append((token, latest))
            covered |= self.progress.done[latest]
        self.values[op.token] = _Token(1 << self.progress.issue(info, covered))

    def _by(self, op: Operation, number: int) -> _Token:
        token = self.values[op.operands[number]]
        return _Token(token.commands, (((op, number), token),))

    def _all(self, op: Operation) -> _Token:
        parts = tuple(
            ((op, number), self.values[value])
            for number, value in enumerate(op.operands)
            if isinstance(value.type, TokenType)
        )
        commands = 0
        for _, token in parts:
            commands |= token.commands
        return _Token(commands, parts)


def _operands_needed(needs: Sequence[tuple[_Token, int]]) -> set[Operand]:
    """The operands by which commands got there that a command needs; of several ways those that serve others, too."""
    needed: set[Operand] = set()
    seen: set[tuple[_Token, int]] = set()
    pending = list(needs)
    open: list[tuple[int, list[tuple[Operand, _Token]]]] = []
    while pending or open:
        if pending:
            token, command = pending.pop()
            if (token, command) in seen:
                continue
            seen.add((token, command))
            ways = [part for part in token.parts if part[1].commands >> command & 1]
            if len(ways) > 1:
                open.append((command, ways))
                continue
        else:
            command, ways = open.pop(0)
        if ways:
            operand, part = next((way for way in ways if way[0] in needed), ways[0])
            needed.add(operand)
            pending.append((part, command))
    return needed
