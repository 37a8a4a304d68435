# SPDX-License-Identifier: Apache-2.0
"""How many queries and keys an attention holds on chip at once: plain numbers in, plain numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_BLOCK = 64
"""Queries and keys of a block where nothing else limits it: its scores are 16 KiB of f32, within a first cache."""

LANES = 8
"""Blocks that do not divide are multiples of this, which vectors and rows of a scope divide mostly."""


@dataclass(frozen=True)
class BlockScope:
    """The scope that holds all of a block."""

    size: int
    """In bytes."""
    granule: int
    """Rows are rounded up to multiples of this many bytes."""


@dataclass(frozen=True)
class Widths:
    """The sizes of one attention that a block does not cut, and the bytes of elements."""

    keys: int
    """The elements of a query and of a key."""
    values: int
    """The elements of a value."""
    stored: int
    """The bytes of an element of q, k and v."""
    summed: int
    """The bytes of an element of the scores."""


def even_blocks(extent: int, most: int) -> int:
    """
    A size of at most `most` for the blocks of `extent`: one that divides it and is no less than half of `most`, or
    else a multiple of LANES that leaves as little over as the number of blocks allows.
    """
    if extent <= most:
        return max(1, extent)
    dividing = [size for size in range(most, most // 2, -1) if extent % size == 0]
    if dividing:
        return dividing[0]
    count = -(-extent // most)
    even = -(-extent // count)
    return min(-(-even // LANES) * LANES, most)


def bytes_held(queries: int, keys: int, widths: Widths, granule: int) -> int:
    """
    What a block of `queries` x `keys` has on chip, each buffer by itself.

    q^T, k, v^T, the scores, their pairwise maxima and sums, the powers in the stored type (twice, where they have to
    be brought to another scope), the sums and the result, and numbers of each query: the largest score, the sum, the
    factor, the share, and a few on the way.
    """

    def rows(count: int, length: int, element: int) -> int:
        return count * -(-length * element // granule) * granule

    held = [
        rows(widths.keys, queries, widths.stored),
        rows(keys, widths.keys, widths.stored),
        rows(widths.values, keys, widths.stored),
        3 * rows(keys, queries, widths.summed),
        2 * rows(keys, queries, widths.stored),
        2 * rows(widths.values, queries, widths.summed),
        rows(widths.values, queries, widths.stored),
        12 * rows(1, queries, widths.summed),
    ]
    return sum(held)


def blocks_in(
    queries: int, keys: int, widths: Widths, scope: BlockScope, choices: Sequence[int]
) -> tuple[int, int] | None:
    """
    The largest of the blocks with sizes up to `choices` that the scope holds: first many queries, since k and v
    are read once for each block of these, then many keys. None if none fits.
    """
    for most_queries in choices:
        for most_keys in choices:
            block = even_blocks(queries, most_queries), even_blocks(keys, most_keys)
            # What the blocks of keys leave over is a smaller block with buffers of its own.
            held = block[1] + keys % block[1]
            if bytes_held(block[0], held, widths, scope.granule) <= scope.size:
                return block
    return None
