"""
Loops of which the rounds in the middle are all alike.

A loop is steady with a period if, `period` rounds later, each index in it is larger by a number that does not depend
on the round: the slots of rings are the same, and views have moved on by a constant. At the beginning and at the end
there may be rounds of which that is not so, where a window hangs over the edge or a minimum bites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from penstock.dialects import accel, mem
from penstock.dialects.mem import memref_of
from penstock.passes.analysis.index import AffineIndex, IndexReader, Opaque
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
        self._reader = _GrowthReader(loop, step * period, lower + first * step, lower + (end - 1) * step)

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
                reach = self._reader.read(offset).bounds
                if reach is None or reach[0] < 0 or reach[1] + size > bound:
                    return False
        return True

    def growth(self, value: SSAValue) -> int | None:
        """How much larger an index is `period` rounds later, in whichever round; None if it depends."""
        index, counter = self._reader.read(value), self.loop.body.block.args[0]
        if index.rest is not None and counter in index.rest.sources:
            return None
        return index.terms.get(counter, 0)


class _GrowthReader(IndexReader):
    """
    Indices at an iteration (p = 0) and `period` iterations later (p = 1), as affine sums of p alone.

    The counter of the loop stands for p: it is an unknown value between `first` and `last - growth`, + growth * p.
    What does not change in between is unknown; what depends on p in another way is unknown, with p as its source.
    """

    def __init__(self, loop: scf.ForOp, growth: int, first: int, last: int):
        super().__init__()
        self._loop = loop
        self._counter = loop.body.block.args[0]
        p = AffineIndex.symbol(self._counter, Opaque(0, 1))
        self._known[self._counter] = p * growth + AffineIndex(rest=Opaque(first, last - growth))

    def _depends(self) -> AffineIndex:
        return AffineIndex(rest=Opaque(sources=frozenset({self._counter})))

    def argument(self, value: BlockArgument) -> AffineIndex:
        """A counter starts again in each iteration; what another loop carries may be anything."""
        if _is_counter(value):
            return AffineIndex(rest=self.counter(value))
        owner = value.block.parent_op()
        return self._depends() if owner is not None and self._loop.is_ancestor(owner) else AffineIndex(rest=Opaque())

    def result(self, value: SSAValue, index: AffineIndex) -> AffineIndex:
        return index

    def unknown(self, value: SSAValue, op: Operation) -> AffineIndex:
        """A pure op repeats what its operands repeat."""
        if not self._loop.is_ancestor(op):
            return AffineIndex(rest=Opaque())
        operands = [self.read(operand) for operand in op.operands]
        if op.regions or not all(_is_fixed(operand) for operand in operands):
            return self._depends()
        return AffineIndex(rest=Opaque())


def _is_fixed(index: AffineIndex) -> bool:
    return not index.terms and (index.rest is None or not index.rest.sources)


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
