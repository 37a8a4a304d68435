"""
Loops of which the rounds in the middle are all alike.

A loop is steady with a period if, `period` rounds later, each index in it is larger by a number that does not depend
on the round: the slots of rings are the same, and views have moved on by a constant. At the beginning and at the end
there may be rounds of which that is not so, where a window hangs over the edge or a minimum bites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from penstock.dialects import accel, mem
from penstock.dialects.mem import memref_of
from penstock.passes.analysis.loops import constant_of, trip_count

_PERIODS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 30, 32, 48, 60, 64)
_EDGES = (0, 1, 2, 3, 4, 8, 16, 32)


@dataclass(frozen=True)
class Steady:
    """The rounds of a loop."""

    trips: int
    first: int
    """The rounds from this one on are alike, but for the last `last`."""
    last: int
    period: int
    depth: int
    """After so many rounds no token is carried that was made before the loop; one carried unchanged does not count."""


def steady(loop: scf.ForOp) -> Steady | None:
    """What is known of a loop; None if its rounds cannot be said to be alike."""
    trips = trip_count(loop)
    depth = _depth(loop)
    if not trips or depth is None:
        return None
    if any(isinstance(op, (accel.PushOp, accel.PopOp)) for op in loop.walk()):
        return None
    edges = sorted(((first, last) for first in _EDGES for last in _EDGES if first + last < trips), key=sum)
    for period in _PERIODS:
        if trips < 2 * period:
            break
        # What is not so in the middle is not so with more of the edges either.
        middle = (trips - 2 * period) // 2
        if not _Rounds(loop, period, min(middle, _EDGES[-1]), trips - min(middle, _EDGES[-1])).alike():
            continue
        for first, last in edges:
            if trips - first - last >= 2 * period and _Rounds(loop, period, first, trips - last).alike():
                return Steady(trips, first, last, period, depth)
    return None


class _Rounds:
    """The rounds of a loop from `first` to before `end`, and those `period` later."""

    def __init__(self, loop: scf.ForOp, period: int, first: int, end: int):
        self.loop = loop
        self.bounds = first, end
        step, lower = constant_of(loop.step), constant_of(loop.lb)
        assert step is not None
        assert lower is not None
        self.step = step * period
        self.range = lower + first * step, lower + (end - 1) * step
        self._growth: dict[SSAValue, int | None] = {}
        self._ranges: dict[SSAValue, tuple[int, int] | None] = {}

    def alike(self) -> bool:
        return all(self._is_alike(op) for op in self.loop.body.walk())

    def _is_alike(self, op: Operation) -> bool:
        match op:
            case scf.ForOp():
                return trip_count(op) is not None
            case scf.IfOp():
                # Rounds that are made of different commands are not alike, however regularly they alternate.
                return _Rounds(self.loop, 1, *self.bounds).growth(op.cond) == 0
            case mem.SlotOp():
                ring = op.ring.owner
                growth = self.growth(op.index)
                return isinstance(ring, mem.RingOp) and growth is not None and growth % ring.slot_count == 0
            case memref.SubviewOp():
                return all(self.growth(value) is not None for value in op.offsets)
            case accel.DmaOp():
                return self._is_alike_window(op)
            case _:
                return True

    def _is_alike_window(self, op: accel.DmaOp) -> bool:
        side = op.window_side
        if side is None:
            return True
        offsets = op.mixed_source_offsets() if side == "source" else op.mixed_dest_offsets()
        shape = memref_of(op.source if side == "source" else op.dest).get_shape()
        for offset, size, bound in zip(offsets, op.box, shape, strict=True):
            growth = 0 if isinstance(offset, int) else self.growth(offset)
            if growth is None:
                return False
            if growth and not isinstance(offset, int):
                reach = self.reach(offset)
                if reach is None or reach[0] < 0 or reach[1] + size > bound:
                    return False
        return True

    def growth(self, value: SSAValue) -> int | None:
        """How much larger an index is `period` rounds later, in whichever round; None if it depends."""
        if value not in self._growth:
            self._growth[value] = self._find_growth(value)
        return self._growth[value]

    def _find_growth(self, value: SSAValue) -> int | None:
        if isinstance(value, BlockArgument):
            if value.block is self.loop.body.block and value.index == 0:
                return self.step
            return 0 if _is_counter(value) or not self.loop.is_ancestor(value.block.parent_op() or self.loop) else None
        op = value.owner
        assert isinstance(op, Operation)
        if not self.loop.is_ancestor(op):
            return 0
        grown = [self.growth(operand) for operand in op.operands]
        if any(each is None for each in grown) or op.regions:
            return None
        known = [each for each in grown if each is not None]
        match op:
            case arith.AddiOp():
                return known[0] + known[1]
            case arith.SubiOp():
                return known[0] - known[1]
            case arith.MuliOp() if known[0] or known[1]:
                constants = [constant_of(operand) for operand in op.operands]
                if constants[1] is not None:
                    return known[0] * constants[1]
                return known[1] * constants[0] if constants[0] is not None else None
            case arith.RemUIOp() | arith.RemSIOp() | arith.DivUIOp() | arith.DivSIOp() if any(known):
                return self._find_quotient(op, known[0])
            case arith.MinSIOp() | arith.MaxSIOp() if any(known):
                return self._find_extreme(op, known)
            case _:
                return None if any(known) else 0

    def _find_quotient(self, op: Operation, growth: int) -> int | None:
        divisor, reach = constant_of(op.operands[1]), self.reach(op.operands[0])
        if not divisor or divisor < 0 or growth % divisor or reach is None or reach[0] < 0:
            return None
        return growth // divisor if isinstance(op, (arith.DivUIOp, arith.DivSIOp)) else 0

    def _find_extreme(self, op: arith.MinSIOp | arith.MaxSIOp, growth: list[int]) -> int | None:
        if growth[0] == growth[1]:
            return growth[0]
        one, two = (self.reach(operand) for operand in op.operands)
        if one is None or two is None:
            return None
        least = 0 if one[1] <= two[0] else 1 if two[1] <= one[0] else None
        if least is None:
            return None
        return growth[least if isinstance(op, arith.MinSIOp) else 1 - least]

    def reach(self, value: SSAValue) -> tuple[int, int] | None:
        """The least and the largest value of an index in these rounds, or values beyond them."""
        if value not in self._ranges:
            self._ranges[value] = self._find_reach(value)
        return self._ranges[value]

    def _find_reach(self, value: SSAValue) -> tuple[int, int] | None:
        if (constant := constant_of(value)) is not None:
            return constant, constant
        if isinstance(value, BlockArgument):
            if value.block is self.loop.body.block and value.index == 0:
                return self.range
            if not _is_counter(value):
                return None
            loop = value.block.parent_op()
            assert isinstance(loop, scf.ForOp)
            lower, step, trips = constant_of(loop.lb), constant_of(loop.step), trip_count(loop)
            if lower is None or step is None or not trips:
                return None
            return lower, lower + (trips - 1) * step
        op = value.owner
        assert isinstance(op, Operation)
        if len(op.operands) != 2:
            return None
        one, two = (self.reach(operand) for operand in op.operands)
        if one is None or two is None:
            return None
        (a, b), (c, d) = one, two
        match op:
            case arith.AddiOp():
                return a + c, b + d
            case arith.SubiOp():
                return a - d, b - c
            case arith.MuliOp():
                corners = a * c, a * d, b * c, b * d
                return min(corners), max(corners)
            case arith.MinSIOp():
                return min(a, c), min(b, d)
            case arith.MaxSIOp():
                return max(a, c), max(b, d)
            case arith.RemUIOp() | arith.RemSIOp() if a >= 0 and c == d > 0:
                return 0, min(b, d - 1)
            case arith.DivUIOp() | arith.DivSIOp() if a >= 0 and c == d > 0:
                return a // c, b // c
            case _:
                return None


def _is_counter(value: BlockArgument) -> bool:
    return isinstance(value.block.parent_op(), scf.ForOp) and value.index == 0 and isinstance(value.type, IndexType)


def _depth(loop: scf.ForOp) -> int | None:
    """How many rounds a token can be carried on before a newer one has taken its place; None if for ever."""
    carried = loop.body.block.args[1:]
    if any(not isinstance(value.type, accel.TokenType) for value in carried):
        return None
    terminator = loop.body.block.last_op
    assert isinstance(terminator, scf.YieldOp)
    behind: list[set[int]] = []
    for number, value in enumerate(terminator.operands):
        if value is carried[number]:
            behind.append(set())
            continue
        sources = set(_sources(value, loop.body.block))
        behind.append({source for source in sources if terminator.operands[source] is not carried[source]})
    depth = 0
    current = set(range(len(carried)))
    while current:
        depth += 1
        if depth > len(carried) + 1:
            return None
        current = {source for number in current for source in behind[number]}
    return depth


def _carried(loop: scf.ForOp, number: int) -> list[SSAValue]:
    """What a token that a loop carries can be behind the loop: its first one no more, if that has been replaced."""
    terminator = loop.body.block.last_op
    assert isinstance(terminator, scf.YieldOp)
    first, later = loop.iter_args[number], terminator.operands[number]
    if later is loop.body.block.args[number + 1]:
        return [first]
    trips, depth = trip_count(loop), _depth(loop)
    is_replaced = trips is not None and depth is not None and trips >= depth
    return [later] if is_replaced else [first, later]


def _sources(value: SSAValue, block: Block) -> Iterator[int]:
    """The tokens carried into `block` that `value` may be, or be joined of; by their numbers."""
    seen: set[SSAValue] = set()
    pending = [value]
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if isinstance(each, BlockArgument):
            loop = each.block.parent_op()
            if each.block is block:
                yield each.index - 1
            elif isinstance(loop, scf.ForOp) and each.index > 0:
                pending += _carried(loop, each.index - 1)
            continue
        op = each.owner
        if isinstance(op, accel.ReadyOp):
            pending += op.dependencies
        elif isinstance(op, scf.ForOp):
            pending += _carried(op, each.index if isinstance(each, OpResult) else 0)
        elif isinstance(op, scf.IfOp):
            for region in op.regions:
                if (last := region.block.last_op) is not None:
                    pending += last.operands
