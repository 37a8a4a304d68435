"""
Hazards of loops with many rounds, decided on a few of them.

What orders two commands is a chain of commands between them, in program order. In a steady loop (see `steady`) the
rounds after the first few are made of the same commands, with the same tokens at the same distances, so such a chain
may be moved by whole rounds. Therefore

- whether a command of one round comes after one of another depends, after the first few rounds, on their distance only;
- being ordered is kept by what comes later: at larger distances the answer can only change from no to yes, and once
  it has been the same for as many rounds as a token is carried, it never does.

So the loop is gone through with its first rounds only, enough for the answer to have settled, and with its last ones,
where addresses need not be alike. Each pair of commands in these stands for all those pairs of the whole loop that lie
alike. Accesses that are at the same bytes again after a period are compared as they are. Those that have moved on are
compared by arithmetic: whether the bytes of any of the pairs that two unordered commands stand for ever meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects import func, scf
from xdsl.ir import Operation

from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.commands.hazards.check import MOST, check
from penstock.passes.analysis.commands.hazards.cuts import Cut, Passage, commands_of, passages, rounds_of
from penstock.passes.analysis.commands.hazards.far import UndecidedError
from penstock.passes.analysis.commands.hazards.hazard import Hazard
from penstock.passes.analysis.commands.hazards.moving import Moving
from penstock.passes.analysis.commands.hazards.network import run
from penstock.passes.analysis.commands.hazards.order import Order
from penstock.passes.analysis.commands.hazards.steady import Steady, steady
from penstock.passes.analysis.commands.program import Program, View
from penstock.passes.analysis.commands.trace import trace


def decide(
    function: func.FuncOp,
    target: TargetOp,
    *,
    most: int = MOST,
    limit: int = 10_000,
    arguments: Sequence[View | None] | None = None,
) -> tuple[list[Hazard], Program]:
    """
    The hazards of a kernel, as `check` names them, without going through all rounds of its long loops.

    With them comes the part of the kernel that was gone through. Raises UndecidedError if that does not settle within
    `limit` commands, and UserError as `trace` does.
    """
    known: dict[Operation, Steady] = {
        loop: found for loop in function.walk() if isinstance(loop, scf.ForOp) and (found := steady(loop))
    }
    more = 0
    while True:
        cuts: dict[Operation, Cut] = {
            loop: cut for loop, each in known.items() if (cut := Cut.of(each, more)) is not None
        }
        if not cuts or commands_of(function, cuts) > limit:
            raise UndecidedError
        program = trace(function, target, limit=2 * limit, rounds=rounds_of(cuts), arguments=arguments)
        before = _closure(program)
        if all(_has_settled(passage, before) for passage in passages(program, cuts)):
            break
        more = 2 * more + 4
    moving = Moving(program, before, cuts)
    return (check(_without(program, moving), most=most) + list(moving.hazards()))[:most], program


def _closure(program: Program) -> list[int]:
    """Of each command the mask of those that are complete when it starts."""
    flow = run(program)
    if flow.order != list(range(len(program.commands))):
        raise UndecidedError
    order = Order(program, flow)
    found: list[int] = []
    barriers = iter([*program.barriers, -1])
    barrier, floor = next(barriers), 0
    for number in range(len(program.commands)):
        while number == barrier:
            order.barrier()
            floor, barrier = number, next(barriers)
        found.append(order.start(number) << floor | (1 << floor) - 1)
    return found


def _has_settled(passage: Passage, before: Sequence[int]) -> bool:
    """Whether what the rounds in front of a cut know of the first ones is the same in all of them."""
    cut, starts = passage.cut, [*passage.starts, passage.end]
    old = (1 << starts[cut.settled]) - 1
    last = cut.head - 1
    length = starts[last + 1] - starts[last]
    for back in range(1, max(cut.steady.depth + 2, cut.steady.period)):
        if starts[last - back + 1] - starts[last - back] != length:
            return False
        for at in range(length):
            if (before[starts[last] + at] ^ before[starts[last - back] + at]) & old:
                return False
    # What comes after the loop knows as much of one of the first alike rounds as of the next.
    one, two, three = starts[cut.alike : cut.alike + 3]
    if two - one != three - two:
        return False
    mask = (1 << two - one) - 1
    return all((mine >> one ^ mine >> two) & mask == 0 for mine in before[passage.end :])


def _without(program: Program, moving: Moving) -> Program:
    """The program with the accesses only that are at the same bytes after each period."""
    commands = [
        replace(
            command,
            reads=tuple(region for at, region in enumerate(command.reads) if not moving.is_moving(command, False, at)),
            writes=tuple(region for at, region in enumerate(command.writes) if not moving.is_moving(command, True, at)),
            counters=moving.named_counters(command),
        )
        for command in program.commands
    ]
    return replace(program, commands=commands)
