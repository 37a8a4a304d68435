"""
The times that a command has been issued, as few classes as tell apart what tokens tell apart.

Of all its times so far, the last is one class and those before it are another; and both are divided by the loops
around the command: those since the innermost was last entered, those before that since the one around it was, and so
on. So where a loop begins a token that stands for nothing, and joins that of each round to it, the token at its end is
known to stand for all the rounds, whatever is still in flight from when the loop ran before.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func, scf
from xdsl.ir import Operation

Loop = scf.ForOp | scf.WhileOp


class Generations:
    """Sets of times of commands, as masks: of a command two bits for each loop around it, and two for none."""

    def __init__(self, commands: Sequence[Operation]):
        self._every: list[int] = []
        self._last: list[int] = []
        self._now: list[int] = []
        self._entered: dict[Loop, dict[int, int]] = {}
        base = 0
        for command in commands:
            loops = _loops_around(command)
            levels = len(loops) + 1
            self._every.append(((1 << 2 * levels) - 1) << base)
            self._last.append(sum(1 << (base + 2 * level) for level in range(levels)))
            self._now.append(1 << (base + 2 * len(loops)))
            for outer, loop in enumerate(loops):
                moves = self._entered.setdefault(loop, {})
                for level in range(outer + 1, levels):
                    shift = 2 * (level - outer)
                    moves[shift] = moves.get(shift, 0) | 0b11 << (base + 2 * level)
            base += 2 * levels

    def every(self, number: int) -> int:
        """All times that a command was issued."""
        return self._every[number]

    def now(self, number: int) -> int:
        """The time that a command has just been issued."""
        return self._now[number]

    def aged(self, times: int, number: int) -> int:
        """The set once a command is issued again: what was its last time is one before that."""
        last = times & self._last[number]
        return (times ^ last) | (last << 1)

    def entered(self, times: int, loop: Loop) -> int:
        """The set once a loop begins: what was since it had begun is before that."""
        for shift, mask in sorted(self._entered.get(loop, {}).items()):
            moved = times & mask
            times = (times ^ moved) | (moved >> shift)
        return times


def _loops_around(op: Operation) -> list[Loop]:
    """The loops around an op of a function, from the outermost."""
    loops: list[Loop] = []
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, func.FuncOp):
        if isinstance(parent, Loop):
            loops.insert(0, parent)
        parent = parent.parent_op()
    return loops
