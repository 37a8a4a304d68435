# SPDX-License-Identifier: Apache-2.0
"""
What keeps accesses inside memory where nothing has proved that they are: those at indices that data decides, and those
through views whose sizes only a run knows.

The interpreter refuses them where they happen. Generated code has fault 2: one element, or a part of a known size, is
taken from the beginning of the memory instead, so that loops have no way out in the middle; where sizes are not known
the function returns, also where an empty part begins out of bounds. What the ranges of counters prove costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xdsl.dialects import memref
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from penstock.dialects.affine_maps import linear_form
from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.text import Size
from penstock.passes.analysis.index import AffineIndex

OUTSIDE = 2
"""The fault of an access that is out of bounds."""

_MOST_APART = 1 << 30
"""Elements; of one element alone the step may be larger than the memory, but no product may leave 64 bits."""

Order = tuple[Size, Size]
"""Two numbers, of which the first has to be less than the second."""


def inside(emitter: Emitter, value: SSAValue | int, extent: Size, span: int = 1) -> Size:
    """An index from which on `span` elements are among `extent`, or 0 and a fault."""
    index, (low, high) = emitter.size(value), AffineIndex.of(value).range
    if isinstance(extent, int) and low is not None and low >= 0 and high is not None and high + span <= extent:
        return index
    return emitter.inside(index, extent, span)


def begin_of_subview(emitter: Emitter, op: memref.SubviewOp, extents: Sequence[Size]) -> list[Size]:
    """The offsets of a subview of so many elements, kept where all of it is among them."""
    numbers = ((op.static_offsets, op.offsets), (op.static_sizes, op.sizes), (op.static_strides, op.strides))
    given = [get_dynamic_index_list(known.get_values(), others, DYNAMIC_INDEX) for known, others in numbers]
    offsets: list[Size] = []
    orders: list[Order] = []
    for offset, size, step, extent in zip(*given, extents, strict=True):
        offsets.append(emitter.size(offset))
        if isinstance(size, int) and isinstance(step, int) and step > 0 and isinstance(extent, int):
            offsets[-1] = inside(emitter, offset, extent, (size - 1) * step + 1)
        elif not _is_inside(offset, size, step, extent):
            orders += part(emitter, offsets[-1], emitter.size(size), emitter.size(step), extent)
    require(emitter, orders)
    return offsets


def require(emitter: Emitter, orders: Iterable[Order]) -> None:
    """Return with a fault unless all hold; those of known numbers do, or the verifier has refused them."""
    if wrong := [order for order in orders if not all(map(_is_known, order))]:
        emitter.leave_if(emitter.any_empty(wrong), OUTSIDE)


def within(emitter: Emitter, numbers: Iterable[Size], most: Size) -> Iterator[Order]:
    """That none is negative or larger than `most`: sums of products of two do not leave 64 bits then."""
    for number in numbers:
        if number != most:
            yield -1, number
            yield number, emitter.sum_of([(most, 1)], 1)


def far(emitter: Emitter, steps: Iterable[Size], count: Size) -> Iterator[Order]:
    """That steps are not negative, nor so large that products of them with `count` could leave 64 bits."""
    yield from within(emitter, steps, max(count, _MOST_APART) if isinstance(count, int) else _MOST_APART)


def last(sizes: Sequence[Size], steps: Sequence[Size]) -> list[tuple[Size, Size]]:
    """How far the last of so many elements, so far apart in each dim, is from the first, as a sum of products."""
    return [term for size, step in zip(sizes, steps, strict=True) for term in ((size, step), (-1, step))]


def part(emitter: Emitter, offset: Size, size: Size, step: Size, extent: Size) -> Iterator[Order]:
    """That `size` elements, `step` apart, from `offset` on are among `extent`."""
    if (offset, step, size) == (0, 1, extent):
        return
    end = emitter.sum_of([(offset, 1), *last([size], [step])])
    yield from within(emitter, [offset, size], extent)
    if isinstance(step, str):
        yield from far(emitter, [step], extent)
    elif step < 0:
        yield -1, end
    yield end, extent


def domain(
    emitter: Emitter, op: Operation, index_map: AffineMap, extents: Sequence[Size], shape: Sequence[Size]
) -> Iterator[Order]:
    """That the loops of a structured op stay inside an operand, and that a loop over a dim of it has its size."""
    for result, size in zip(index_map.results, shape, strict=True):
        used = [extents[dim] for dim in sorted(result.used_dims())]
        if all(map(_is_known, (size, *used))):
            continue
        if isinstance(result, AffineDimExpr):
            if used[0] != size:
                yield used[0], emitter.sum_of([(size, 1)], 1)
                yield size, emitter.sum_of([(used[0], 1)], 1)
            continue
        form = linear_form(result, len(extents))
        if form is None:
            raise emitter.refuse(op, f"an operand at {result}, of sizes that only a run knows")
        up = [(extent, step) for extent, step in zip(extents, form[1], strict=True) if step > 0]
        down = [(extent, step) for extent, step in zip(extents, form[1], strict=True) if step < 0]
        yield emitter.sum_of(up, form[0] - sum(step for _, step in up)), size
        if down:
            yield -1, emitter.sum_of(down, form[0] - sum(step for _, step in down))


def _is_inside(offset: SSAValue | int, size: SSAValue | int, step: SSAValue | int, extent: Size) -> bool:
    """Whether a part whose size is not known is proved to be inside, as that of a last tile is."""
    begin, count = AffineIndex.of(offset), AffineIndex.of(size)
    (least, _), (fewest, _), (_, end) = begin.range, count.range, (begin + count).range
    if step != 1 or not isinstance(extent, int) or least is None or fewest is None or end is None:
        return False
    return least >= 0 and fewest >= 0 and end <= extent


def _is_known(size: Size) -> bool:
    return isinstance(size, int)
