# SPDX-License-Identifier: Apache-2.0
"""
The order of the loops of a structured op in C: plain data in, plain data out.

Sums keep their order: the sequential dims (reductions) stay nested as they are, and nothing is split among
accumulators. Parallel dims may go anywhere, so one of them, along which the output is contiguous, becomes the
innermost: the C compiler vectorises it although it must not reassociate. A contraction is computed in blocks of
`rows` x `lanes` outputs that stay in registers, so that a lane of one operand is used for several rows; where that
operand is reused often, the part of it that a block needs is packed first, and a long reduction is cut, its outputs
resting in memory from one piece to the next. Adjacent dims in which every operand has the same strides are merged.

The scheme is that of Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from penstock.passes.planning.register_blocks import Domain, parallel_dims

LANES = (32, 64, 48, 40, 56, 24, 16)
"""Widths of a block, best first: multiples of a vector, wide enough to be worth one."""

ROWS = (7, 8, 6, 5, 4)
"""Heights of a block, best first."""

OPEN_LANES, OPEN_ROWS = 16, 4
"""Of a block along a dim whose extent only a run knows: what is left over is computed line by line."""

ACCUMULATORS = 256
"""The most outputs of a block: 32 vectors of 8."""

PANEL = 1 << 14
"""The most elements of a packed panel: 64 KiB of f32."""

REUSE = 4
"""How often a panel is used at least, for packing it to pay."""


@dataclass(frozen=True)
class NestLoop:
    """One loop: a dim, or several merged ones, outermost first."""

    dims: tuple[int, ...]
    extent: int
    strides: tuple[int, ...]
    """For each operand."""

    @property
    def suffix(self) -> str:
        """What tells the loop's counter from others."""
        return "_".join(str(dim) for dim in self.dims)


@dataclass(frozen=True)
class Strip:
    """A loop in steps of `size`; the last step is smaller where that does not divide."""

    loop: NestLoop
    size: int = 1

    @property
    def tail(self) -> int:
        return self.loop.extent % self.size


@dataclass(frozen=True)
class LoopNest:
    """
    The loops of one structured op, outermost first: those of `outer`; the packing of operand `packed`; those of
    `inner`; then a block of outputs, with `sequential` around its `rows` and its `lanes`.

    `rows`, `lanes`, and the first of `sequential` where the reduction is cut, are steps of `outer` or `inner` too.
    """

    outer: tuple[Strip, ...]
    inner: tuple[Strip, ...]
    sequential: tuple[NestLoop, ...]
    rows: Strip | None
    lanes: Strip | None
    packed: int | None = None


def plan_nest(domain: Domain, *, in_registers: bool = False) -> LoopNest | None:
    """
    The loops of a domain without empty dims; None where only the order of the dims themselves is right.

    With `in_registers` the outputs are local variables already: they are one block, whatever its size.
    """
    domain = _without_single_dims(domain)
    parallel = parallel_dims(domain)
    if parallel is None:
        return None
    loops = [
        NestLoop((dim,), extent, tuple(strides[dim] for strides in domain.strides))
        for dim, extent in enumerate(domain.extents)
        if extent > 1
    ]
    free = sorted((loop for loop in loops if loop.dims[0] in parallel), key=lambda loop: -abs(loop.strides[-1]))
    free = _merged(free, domain)
    sequential = _merged([loop for loop in loops if loop.dims[0] not in parallel], domain)
    lanes = _lanes(free, domain.inputs)
    if not sequential or lanes is None:
        outer = tuple(Strip(loop) for loop in free if loop is not lanes)
        return LoopNest(outer, (), tuple(sequential), None, None if lanes is None else Strip(lanes, lanes.extent))
    if in_registers and len(free) <= 2:
        steps = tuple(Strip(loop, loop.extent) for loop in free)
        block = {step.loop: step for step in steps}
        return LoopNest(
            steps, (), tuple(sequential), next((block[loop] for loop in free if loop is not lanes), None), block[lanes]
        )
    width = Strip(lanes, OPEN_LANES if domain.open.intersection(lanes.dims) else _width(lanes.extent))
    rows = _rows(free, width, domain)
    if rows is None:
        return LoopNest(
            tuple(width if loop is lanes else Strip(loop) for loop in free), (), tuple(sequential), None, width
        )
    return _contraction(free, sequential, rows, width, domain)


def _without_single_dims(domain: Domain) -> Domain:
    """The domain with strides 0 along dims of extent 1, which do not move."""
    strides = tuple(
        tuple(stride if extent > 1 else 0 for stride, extent in zip(each, domain.extents, strict=True))
        for each in domain.strides
    )
    return Domain(domain.extents, strides, domain.outputs, domain.indexed, domain.open)


def _merged(loops: list[NestLoop], domain: Domain) -> list[NestLoop]:
    """The loops with neighbours merged where every operand walks the two as one, however far the outer one runs."""
    merged: list[NestLoop] = []
    for loop in loops:
        last = merged[-1] if merged else None
        if (
            last is not None
            and not domain.indexed & {*last.dims, *loop.dims}
            and not domain.open.intersection(loop.dims)
            and all(outer == inner * loop.extent for outer, inner in zip(last.strides, loop.strides, strict=True))
        ):
            merged[-1] = NestLoop((*last.dims, *loop.dims), last.extent * loop.extent, loop.strides)
        else:
            merged.append(loop)
    return merged


def _lanes(free: Sequence[NestLoop], inputs: int) -> NestLoop | None:
    """The parallel loop that becomes the innermost: contiguous in the output, then in most inputs."""

    def cost(loop: NestLoop) -> tuple[int, int, int]:
        scattered = sum(stride not in (0, 1) for stride in loop.strides[:inputs])
        return (int(abs(loop.strides[-1]) != 1), scattered, -loop.extent)

    return min(free, key=cost, default=None)


def _width(extent: int) -> int:
    """The width of a block along lanes of that extent."""
    for width in LANES:
        if extent % width == 0:
            return width
    return extent if extent <= max(LANES) else LANES[0]


def _rows(free: Sequence[NestLoop], lanes: Strip, domain: Domain) -> Strip | None:
    """The parallel loop that shares a block with the lanes: an input that the lanes read does not move along it."""
    inputs = domain.inputs
    limit = max(1, ACCUMULATORS // lanes.size)
    fitting = [rows for rows in ROWS if rows <= limit] or [1]

    def height(loop: NestLoop) -> int:
        if domain.open.intersection(loop.dims):
            return OPEN_ROWS
        extent = loop.extent
        if extent <= min(limit, max(ROWS)):
            return extent
        return next((rows for rows in fitting if extent % rows == 0), fitting[0])

    def reuses(loop: NestLoop) -> bool:
        pairs = zip(loop.strides[:inputs], lanes.loop.strides[:inputs], strict=True)
        return any(along == 0 and across != 0 for along, across in pairs)

    steps = [Strip(loop, height(loop)) for loop in free if loop is not lanes.loop and reuses(loop)]
    steps = [step for step in steps if step.size > 1]
    # The innermost of the best.
    return max(reversed(steps), key=lambda step: (min(step.size, 4), -step.tail), default=None)


def _contraction(
    free: Sequence[NestLoop], sequential: Sequence[NestLoop], rows: Strip, lanes: Strip, domain: Domain
) -> LoopNest:
    """A block of rows and lanes; what is reused along the rows moves as seldom as possible."""
    reused = [n for n in range(domain.inputs) if rows.loop.strides[n] == 0 and lanes.loop.strides[n] != 0]
    steps = [rows if loop is rows.loop else lanes if loop is lanes.loop else Strip(loop) for loop in free]
    outer = [step for step in steps if any(step.loop.strides[n] for n in reused)]
    inner = [step for step in steps if step not in outer]
    # How often a loop runs that only a run knows may be once.
    known = [step for step in inner if not domain.open.intersection(step.loop.dims)]
    blocks = prod(-(-step.loop.extent // step.size) for step in known)
    is_open = any(domain.open.intersection(loop.dims) for loop in sequential)
    if len(reused) != 1 or blocks < REUSE or is_open:
        return LoopNest(tuple(outer), tuple(inner), tuple(sequential), rows, lanes)
    outside, inside = _cut(sequential, PANEL // lanes.size)
    return LoopNest((*outer, *outside), tuple(inner), tuple(inside), rows, lanes, reused[0])


def _cut(sequential: Sequence[NestLoop], limit: int) -> tuple[list[Strip], list[NestLoop]]:
    """The steps around a panel of at most `limit` points, and the loops in it, which end in the innermost."""
    inside: list[NestLoop] = []
    remaining = list(sequential)
    while remaining and prod(loop.extent for loop in inside) * remaining[-1].extent <= limit:
        inside.insert(0, remaining.pop())
    outside = [Strip(loop) for loop in remaining]
    if not inside:
        # Even the innermost is too long: it is cut, where possible without a rest.
        pieces = -(-remaining[-1].extent // limit)
        whole = next((n for n in range(pieces, 2 * pieces + 1) if remaining[-1].extent % n == 0), pieces)
        outside[-1] = Strip(remaining[-1], -(-remaining[-1].extent // whole))
        inside = [remaining[-1]]
    return outside, inside
