"""
The dims of a domain that is tiled, and the tile sizes of each that are worth trying: plain data in, plain data out.

An intrinsic cuts a dim into blocks whose extents lie in a range, or are fixed; the last block is what is left. A tile
must be cut into permitted blocks. Where the dim itself cannot be, its last tile overlaps the one before, reads zeros
after the end (a reduction), or, where the whole dim is shorter than a block, the tile is longer than the dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isqrt, lcm, log, prod

MAX_SIZES_PER_DIM = 32
"""How many tile sizes of one dim are tried: enough that the best of them is near the best of all."""


@dataclass(frozen=True)
class TileDim:
    """A dim of the domain that is tiled."""

    extent: int
    parallel: bool
    step: int = 1
    """The intrinsic's own extent in this dim: sizes that are multiples of it waste nothing."""
    runs_past_end: bool = False
    """A reduction whose last tile may read zeros after its end."""
    whole: bool = False
    """Never cut: the window of a convolution, or a dim that a user wants whole."""
    blocks: tuple[tuple[int, int], ...] = ()
    """The least and the largest extent of a block, for every intrinsic that cuts this dim."""

    def takes(self, size: int) -> bool:
        """Whether a tile of that size is cut into permitted blocks."""
        return all((size - 1) % most + 1 >= least for least, most in self.blocks)

    def next_size(self, size: int) -> int:
        """The least size from `size` on that is cut into permitted blocks."""
        # Whole blocks of the largest extent are always permitted.
        period = lcm(*(most for _, most in self.blocks))
        return next(each for each in range(size, size + period) if self.takes(each))


class NoTile(Exception):
    """No tile of a kernel is cut into the blocks of the machine."""


def tile_sizes(dim: TileDim, number: int = 0) -> list[int]:
    """
    The sizes worth trying, ascending. A dim is cut where the tiles come out nearly equal, since the last one may
    overlap, or read zeros; a reduction that may not run past its end only where the tile divides it.

    Raises NoTile for dim `number` where no size will do.
    """
    extent = dim.extent
    filled = dim.next_size(extent)
    if dim.whole or extent == 1:
        sizes = [filled]
    elif not dim.parallel and not dim.runs_past_end:
        sizes = _thin([size for size in _divisors(extent) if dim.takes(size)])
    else:
        even = {*_even_sizes(extent), *_divisors(extent)}
        stepped = {min(extent, ceil(size / dim.step) * dim.step) for size in even} | {1, extent}
        rounded = {dim.next_size(size) for size in stepped}
        last = extent if dim.parallel else filled
        sizes = _thin(sorted(size for size in rounded if size <= last)) or [filled]
    if not dim.parallel and not dim.runs_past_end and (not sizes or sizes[-1] > extent):
        raise NoTile(
            f"the reduction d{number} of {extent} is not cut into blocks of {_names(dim.blocks)}, and elements "
            "after its end would count"
        )
    return sizes


def given_size(dim: TileDim, size: int, number: int) -> int:
    """
    The size of a tile that a person gives: the whole of a dim, filled up to whole blocks, if it is larger.

    Raises ValueError for what is no tile.
    """
    if size < 1:
        raise ValueError(f"tile size {size} of dim {number} is not positive")
    if size >= dim.extent:
        filled = dim.next_size(dim.extent)
        if filled > dim.extent and not dim.parallel and not dim.runs_past_end:
            raise ValueError(f"dim {number} of {dim.extent} is not cut into blocks of {_names(dim.blocks)}")
        return filled
    if not dim.parallel and not dim.runs_past_end and dim.extent % size:
        raise ValueError(f"tile size {size} does not divide the reduction dim {number} of {dim.extent}")
    if not dim.takes(size):
        raise ValueError(f"tile size {size} of dim {number} is not cut into blocks of {_names(dim.blocks)}")
    return size


def _names(blocks: Sequence[tuple[int, int]]) -> str:
    return " and ".join(str(least) if least == most else f"{least} to {most}" for least, most in blocks)


def _divisors(extent: int) -> list[int]:
    """Ascending."""
    low = [size for size in range(1, isqrt(extent) + 1) if extent % size == 0]
    return low + [extent // size for size in reversed(low) if size * size != extent]


def _even_sizes(extent: int) -> set[int]:
    """`ceil(extent / pieces)` for every number of pieces: there are about twice the root of the extent."""
    # That is `(extent - 1) // pieces + 1`, and a quotient or its divisor is at most the root.
    low = range(1, isqrt(extent - 1) + 1)
    return {1, extent} | {size + 1 for size in low} | {(extent - 1) // pieces + 1 for pieces in low}


def thinned(choices: Sequence[list[int]], most: int) -> list[list[int]]:
    """The sizes of all dims, those of the dims with the most thinned out until at most `most` tiles can be made."""
    found = list(choices)
    while prod(map(len, found)) > most and max(map(len, found)) > 2:
        longest = max(range(len(found)), key=lambda dim: len(found[dim]))
        found[longest] = _thin(found[longest], len(found[longest]) - 1)
    return found


def _thin(sizes: list[int], most: int = MAX_SIZES_PER_DIM) -> list[int]:
    """At most so many of the sizes, spread evenly over their logarithms, both ends kept."""
    if len(sizes) <= most:
        return sizes
    ratio = (sizes[-1] / sizes[0]) ** (1 / (most - 1))
    wanted = [sizes[0] * ratio**step for step in range(most)]
    return sorted({min(sizes, key=lambda size, w=w: abs(log(size / w))) for w in wanted})
