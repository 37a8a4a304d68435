"""The loops that stand around the command of an intrinsic, for the dims of an op that one command cannot iterate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.dialects.machine import TargetOp
from penstock.passes.intrinsics import Match


def long_dims(extents: Sequence[int]) -> list[int]:
    """The dims that are iterated at all."""
    return [dim for dim, extent in enumerate(extents) if extent > 1]


def next_loop(match: Match, dims: Sequence[int], extents: Sequence[int], target: TargetOp) -> tuple[int, int] | None:
    """
    Of `dims`, the one that a loop around the command iterates, and how much of it a round takes; None where one
    command does all of `dims`.

    Outer dims go first: what stays keeps the order of the domain, and so the order of every sum.
    """
    blocks = match.blocks
    loops = [dim for dim in dims if dim not in blocks or extents[dim] > blocks[dim][1]]
    limit = _most_dims(match, target)
    if limit is None or len(loops) <= limit:
        return None
    dim = next((dim for dim in loops if dim not in match.dims), loops[0])
    return dim, blocks[dim][1] if dim in blocks else 1


def commands(match: Match, extents: Sequence[int], target: TargetOp) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The commands that do an op of these extents: the extents of each, and how many have them."""
    return _commands(match, long_dims(extents), tuple(extents), target)


def _commands(
    match: Match, dims: Sequence[int], extents: tuple[int, ...], target: TargetOp
) -> Iterator[tuple[int, tuple[int, ...]]]:
    loop = next_loop(match, dims, extents, target)
    if loop is None:
        yield 1, extents
        return
    dim, size = loop
    rounds, left = divmod(extents[dim], size)
    for count, part in ((rounds, size), (1, left)):
        if count and part:
            smaller = (*extents[:dim], part, *extents[dim + 1 :])
            rest = [other for other in dims if other != dim or part > 1]
            for times, inner in _commands(match, rest, smaller, target):
                yield count * times, inner


def _most_dims(match: Match, target: TargetOp) -> int | None:
    """How many dims one command iterates, over the blocks of the intrinsic's own; None if there is no limit."""
    if match.intrinsic.dma_name is not None:
        return target.dmas()[match.intrinsic.dma_name].dim_count
    return len(match.intrinsic.max_iterations) or None
