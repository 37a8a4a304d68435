# SPDX-License-Identifier: Apache-2.0
"""
The loops that stand around the command of an intrinsic, for the dims of an op that one command cannot iterate.

A command has counted loops and, on some machines, a list of micro-operations that they go over: the dims that no
loop counts are spelled in the list, one entry for each of their points. What the lists of counts and entries hold is
one command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import CompileTimeFixedBitwidthType

from penstock.dialects.machine import IMMEDIATE, DmaOp, TargetOp
from penstock.passes.analysis.commands.descriptor import descriptor_dims, entry_elements
from penstock.passes.analysis.intrinsics import Match


def long_dims(extents: Sequence[int]) -> list[int]:
    """The dims that are iterated at all."""
    return [dim for dim, extent in enumerate(extents) if extent > 1]


def counted_dims(iterations: Mapping[int, int], loops: int) -> tuple[int, ...]:
    """
    Of the dims that a command iterates so often each, those that its `loops` loops count: the longest, in the order
    of the domain, and of equals the outer ones. The others are listed.
    """
    longest = sorted(iterations, key=lambda dim: (-iterations[dim], dim))[:loops]
    return tuple(sorted(longest))


def next_cut(
    engine: DmaOp,
    box: Sequence[int],
    strides: Sequence[Sequence[int]],
    entry: int,
    pads: Mapping[int, int] | None = None,
    pad_max: int | None = None,
) -> tuple[int, int] | None:
    """
    The dim in which a box is cut for a descriptor of `engine` to hold it, and the size of a piece; None if one holds
    it all. The strides are those of each side, in elements; for the others see `descriptor_dims`.
    """
    out_of_bounds = {dim: pad for dim, pad in (pads or {}).items() if box[dim] > 1}
    limits = engine.max_counts
    spelled = descriptor_dims(
        box, strides, max_counts=limits, out_of_bounds=out_of_bounds, entry=entry, pad_max=pad_max
    )
    if len(spelled) > engine.dim_count:
        # A descriptor's dims end in the innermost: the outermost that it would have to spell is iterated.
        return spelled[-1][-1], 1
    for number, (dims, limit) in enumerate(zip(spelled, reversed(limits), strict=False)):
        unit = entry if number == 0 else 1
        if dims and (count := -(-box[dims[0]] // unit)) > limit:
            return dims[0], unit * _piece(count, limit)
    return None


def descriptors(
    engine: DmaOp,
    box: Sequence[int],
    strides: Sequence[Sequence[int]],
    entry: int,
    pads: Mapping[int, int] | None = None,
) -> tuple[int, int]:
    """How many descriptors of `engine` move a box, and how many rows they have together; see `next_cut`."""
    cut = next_cut(engine, box, strides, entry, pads, engine.pad_limit)
    if cut is None:
        out_of_bounds = {dim: pad for dim, pad in (pads or {}).items() if box[dim] > 1}
        spelled = descriptor_dims(
            box,
            strides,
            max_counts=engine.max_counts,
            out_of_bounds=out_of_bounds,
            entry=entry,
            pad_max=engine.pad_limit,
        )
        return 1, prod(box) // prod(box[dim] for dim in (spelled[0] if spelled else ()))
    dim, size = cut
    pieces, left = divmod(box[dim], size)
    count = rows = 0
    for times, part in ((pieces, size), (1, left)):
        if part:
            found = descriptors(engine, [*box[:dim], part, *box[dim + 1 :]], strides, entry, pads)
            count, rows = count + times * found[0], rows + times * found[1]
    return count, rows


def next_loop(
    match: Match,
    dims: Sequence[int],
    extents: Sequence[int],
    target: TargetOp,
    steps: Sequence[Sequence[int]],
) -> tuple[int, int] | None:
    """
    Of `dims`, the one that a loop around the command iterates, and how much of it an iteration takes; None where one
    command does all of `dims`. `steps` are the elements that a step of each dim moves each buffer, in their order.

    Outer dims go first: what stays keeps the order of the domain, and so the order of every sum.
    """
    intrinsic = match.intrinsic
    if intrinsic.dma_name is not None:
        types = {spec.scope: spec.dtype for spec in intrinsic.operand_specs() if spec.role != IMMEDIATE}
        sizes = [each.compile_time_size for each in types.values() if isinstance(each, CompileTimeFixedBitwidthType)]
        entry = entry_elements(target, list(types), sizes)
        box = [extent if dim in dims else 1 for dim, extent in enumerate(extents)]
        return next_cut(target.dmas()[intrinsic.dma_name], box, steps, entry)
    limits = intrinsic.max_iterations
    if not limits:
        return None
    iterations = iterations_of(match, dims, extents)
    blocks = match.blocks
    counted = counted_dims(iterations, len(limits))
    listed = [dim for dim in iterations if dim not in counted]
    most = match.intrinsic.micro_ops
    entries = prod(iterations[dim] for dim in listed)
    if listed and entries > most:
        outside = listed if most else list(iterations)
        dim = next((dim for dim in outside if dim not in match.dims), outside[0])
        least = blocks[dim][1] if dim in blocks else 1
        if not most:
            return dim, least
        return dim, least * _piece(iterations[dim], most * iterations[dim] // entries)
    # The innermost loops of a command are those that its dims use.
    for dim, limit in zip(reversed(counted), reversed(limits), strict=False):
        if iterations[dim] > limit:
            return dim, (blocks[dim][1] if dim in blocks else 1) * _piece(iterations[dim], limit)
    return None


def _piece(count: int, most: int) -> int:
    """The largest of the fewest pieces, as equal as they can be, of at most `most` each."""
    pieces = -(-count // max(1, most))
    return -(-count // pieces)


def iterations_of(match: Match, dims: Sequence[int], extents: Sequence[int]) -> dict[int, int]:
    """How often a command iterates each dim, in blocks of the intrinsic's own, without those that are one block."""
    blocks = match.blocks
    iterations = {dim: -(-extents[dim] // blocks[dim][1]) if dim in blocks else extents[dim] for dim in dims}
    return {dim: count for dim, count in iterations.items() if count > 1}


def commands(
    match: Match, extents: Sequence[int], target: TargetOp, steps: Sequence[Sequence[int]]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The commands that do an op of these extents: the extents of each, and how many have them."""
    return _commands(match, long_dims(extents), tuple(extents), target, steps)


def _commands(
    match: Match,
    dims: Sequence[int],
    extents: tuple[int, ...],
    target: TargetOp,
    steps: Sequence[Sequence[int]],
) -> Iterator[tuple[int, tuple[int, ...]]]:
    loop = next_loop(match, dims, extents, target, steps)
    if loop is None:
        yield 1, extents
        return
    dim, size = loop
    whole, left = divmod(extents[dim], size)
    for count, part in ((whole, size), (1, left)):
        if count and part:
            smaller = (*extents[:dim], part, *extents[dim + 1 :])
            rest = [other for other in dims if other != dim or part > 1]
            for times, inner in _commands(match, rest, smaller, target, steps):
                yield count * times, inner
