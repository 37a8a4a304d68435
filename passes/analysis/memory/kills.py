# SPDX-License-Identifier: Apache-2.0
"""
Which writes are certain: what the writes of a block leave nothing of, box by box, all iterations of a loop counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from xdsl.dialects import arith, scf
from xdsl.ir import Block, Operation, SSAValue

from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.loops import constant_of, is_inside, trip_count
from penstock.passes.analysis.memory.aliases import IndexBox, RootBox, bits
from penstock.passes.analysis.memory.effects import Effect
from penstock.passes.analysis.memory.graph import CONTROL, Concurrent, FlowGraph
from penstock.passes.analysis.memory.strips import Strips

_MAX_PIECES = 64
"""What is left of a root is followed through that many boxes."""


def certain_kills(graph: FlowGraph, effects: Mapping[Operation, Effect], strips: Strips) -> dict[Operation, int]:
    """
    For each node the strips of which nothing that was there before it is read after; `effects` are by strips.

    Within a block, a run of writes none of which is followed by a read before all elements are written kills what was
    there before its first write. A write in a loop counts for all its iterations, if they are known to take place, and
    if the boxes of the iterations lie side by side or overlap: offsets are affine in the counter, or such a sum limited
    by a constant, as that of a last tile which is shifted inwards.
    """
    finder = _Finder(effects, strips, strips.certain, {})
    for region in graph.function.regions:
        for block in region.blocks:
            finder.scan(block)
    return finder.kills


@dataclass
class _Run:
    """Writes to one strip, none of which has been followed by a read."""

    start: Operation
    missing: list[IndexBox]


@dataclass
class _Scanned:
    """What is done in a block: strips it may read, and boxes it writes whenever it is executed."""

    reads: int
    fills: list[RootBox]


@dataclass
class _Finder:
    effects: Mapping[Operation, Effect]
    strips: Strips
    certain: int
    """The roots that may be written completely."""
    kills: dict[Operation, int]

    def scan(self, block: Block) -> _Scanned:
        """Find the kills in a block, and in the blocks inside its ops."""
        reads = 0
        fills: list[RootBox] = []
        runs: dict[int, _Run] = {}
        for op in block.ops:
            found = self._of(op)
            reads |= found.reads
            for number in bits(found.reads):
                runs.pop(number, None)
            for part in found.fills:
                if self.certain >> part.root & 1:
                    fills.append(part)
                    self._extend(runs, op, part)
        return _Scanned(reads, fills)

    def _of(self, op: Operation) -> _Scanned:
        if not isinstance(op, CONTROL):
            effect = self.effects[op]
            return _Scanned(effect.reads, list(effect.fills))
        if isinstance(op, Concurrent):
            return self._concurrently(op)
        inside = [self.scan(block) for region in op.regions for block in region.blocks]
        reads = 0
        for each in inside:
            reads |= each.reads
        if isinstance(op, scf.ExecuteRegionOp) and len(inside) == 1:
            fills = inside[0].fills
        elif isinstance(op, scf.ForOp):
            fills = [lifted for part in inside[0].fills if (lifted := over_iterations(part, op)) is not None]
        else:
            fills = []
        # In which order the reads and the writes inside come to pass is not known here.
        return _Scanned(reads, [part for part in fills if not reads & self.strips.touched(part)])

    def _concurrently(self, op: Concurrent) -> _Scanned:
        """Of iterations that run at once none kills what another may still read."""
        finder = _Finder(self.effects, self.strips, 0, self.kills)
        reads = 0
        for block in op.regions[0].blocks:
            reads |= finder.scan(block).reads
        return _Scanned(reads, [])

    def _extend(self, runs: dict[int, _Run], op: Operation, part: RootBox) -> None:
        box = constant_box(part)
        if box is None:
            return
        for number in bits(self.strips.touched(part)):
            run = runs.get(number)
            if run is None:
                run = runs[number] = _Run(op, [self.strips.strips[number].box(part.shape)])
            run.missing = [piece for missing in run.missing for piece in _without(missing, box)]
            if not run.missing:
                self.kills[run.start] = self.kills.get(run.start, 0) | 1 << number
            if not run.missing or len(run.missing) > _MAX_PIECES:
                del runs[number]


def constant_box(part: RootBox) -> IndexBox | None:
    if any(at.terms for at in part.offsets):
        return None
    return tuple((at.base, at.base + size) for at, size in zip(part.offsets, part.sizes, strict=True))


def _without(box: IndexBox, other: IndexBox) -> list[IndexBox]:
    """What is left of a box without another, as disjoint boxes."""
    if any(size <= 0 for low, high in box for size in (high - low,)):
        return []
    if any(high <= start or end <= low for (low, high), (start, end) in zip(box, other, strict=True)):
        return [box]
    left: list[IndexBox] = []
    inner = list(box)
    for dim, ((low, high), (start, end)) in enumerate(zip(box, other, strict=True)):
        if low < start:
            left.append((*inner[:dim], (low, start), *inner[dim + 1 :]))
        if end < high:
            left.append((*inner[:dim], (end, high), *inner[dim + 1 :]))
        inner[dim] = (max(low, start), min(high, end))
    return left


def over_iterations(part: RootBox, loop: scf.ForOp) -> RootBox | None:
    """What all iterations of a loop write that writes `part` in each; None if that is not known to be a box."""
    trips, lower, step = trip_count(loop), constant_of(loop.lb), constant_of(loop.step)
    if not trips or lower is None or step is None or step < 1:
        return None
    counter = loop.body.block.args[0]
    offsets, sizes = list(part.offsets), list(part.sizes)
    moving = 0
    for dim, at in enumerate(part.offsets):
        inside = [atom for atom in at.terms if is_inside(atom, loop)]
        if not inside:
            continue
        moving += 1
        if len(inside) > 1 or moving > 1:
            return None
        reach = _reach(inside[0], counter, lower, step, trips)
        if reach is None:
            return None
        factor = at.terms[inside[0]]
        stride = abs(factor) * reach.stride
        if trips > 1 and stride > sizes[dim]:
            return None
        ends = sorted((factor * reach.first, factor * reach.last))
        offsets[dim] = at - at.only(inside) + ends[0]
        sizes[dim] += ends[1] - ends[0]
    return replace(part, offsets=tuple(offsets), sizes=tuple(sizes))


@dataclass(frozen=True)
class _Reach:
    first: int
    last: int
    stride: int
    """The most that it changes from iteration to iteration, always in the same direction."""


def _reach(atom: SSAValue, counter: SSAValue, lower: int, step: int, trips: int) -> _Reach | None:
    """How an index moves with the counter of a loop; None unless it is the counter, or a limited sum of it."""
    if atom is counter:
        return _Reach(lower, lower + (trips - 1) * step, step)
    owner = atom.owner
    if not isinstance(owner, arith.MinSIOp | arith.MaxSIOp):
        return None
    value, limit = AffineIndex.of(owner.lhs), AffineIndex.of(owner.rhs)
    if limit.constant is None:
        value, limit = limit, value
    if limit.constant is None or set(value.terms) != {counter}:
        return None
    factor, end = value.terms[counter], limit.constant
    choose = min if isinstance(owner, arith.MinSIOp) else max
    first, last = (value.base + factor * at for at in (lower, lower + (trips - 1) * step))
    return _Reach(choose(first, end), choose(last, end), abs(factor) * step)
