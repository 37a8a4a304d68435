# SPDX-License-Identifier: Apache-2.0
"""The stationary operands of commands: which block the array of a unit holds when the next command begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from penstock.dialects.cycles import Loop, Timing
from penstock.passes.analysis.commands.region import Region


@dataclass(frozen=True)
class Block:
    """A block of a stationary operand, as an intrinsic loads it."""

    intrinsic: str
    region: Region
    steps: tuple[tuple[int, int, int], ...]
    """
    Of the dims of the intrinsic the number, the extent and the stride in bytes: the same bytes may be read in another
    order. A dim of extent 1 is left out, as its stride says nothing.
    """

    @staticmethod
    def of(intrinsic: str, space: str, start: int, size: int, steps: Iterable[tuple[int, int, int]]) -> Block:
        """The block of these dims, of elements of `size` bytes; see `steps`."""
        taken = tuple(sorted(step for step in steps if step[1] > 1))
        return Block(intrinsic, Region.of(space, 0, start, size, [step[1:] for step in taken]), taken)

    def at(self, storage: int, start: int) -> Block:
        """The same, its region moved to a storage, and `start` bytes further."""
        region = self.region
        moved = Region(region.space, storage, region.start + start, region.length, region.dims)
        return Block(self.intrinsic, moved, self.steps)


@dataclass(frozen=True)
class StationaryOperand:
    """The operand that stays of one command, wherever it lies."""

    number: int
    """Of the operand, immediates left out."""
    first: Block
    last: Block
    first_load: int
    """The cycles that are saved where the unit holds the first block."""
    first_bytes: int
    """The bytes that it then does not read."""
    loads: int
    """Where it does not."""
    loading: int
    """The cycles of all these."""

    @staticmethod
    def of(
        intrinsic: str,
        number: int,
        timing: Timing,
        loops: Sequence[Loop],
        space: str,
        strides: Sequence[int],
        size: int,
    ) -> StationaryOperand:
        """Of a command over these loops, whose strides in the operand are in bytes; `size` is that of an element."""
        steps = [(loop, stride) for loop, stride in zip(loops, strides, strict=True) if loop.moves]
        taken = [(loop, loop.dim, stride) for loop, stride in steps if loop.dim is not None]
        first = [(dim, min(loop.extent, loop.block), stride) for loop, dim, stride in taken]
        last = [(dim, loop.extent - (loop.trips - 1) * loop.block, stride) for loop, dim, stride in taken]
        offset = sum((loop.trips - 1) * loop.block * stride for loop, stride in steps)
        begin, end = (Block.of(intrinsic, space, start, size, each) for start, each in ((0, first), (offset, last)))
        held = size * prod(extent for _, extent, _ in first)
        return StationaryOperand(
            number, begin, end, timing.first_load(loops), held, timing.loads(loops), timing.loading(loops)
        )


class Residents:
    """The block that each unit holds as commands are issued, until another is loaded or its bytes are overwritten."""

    def __init__(self) -> None:
        self._blocks: dict[str, Block] = {}

    def exchange(self, unit: str, first: Block, last: Block) -> bool:
        """Whether a unit holds the first block of a command already; it holds the last one after it."""
        held = self._blocks.get(unit) == first
        self._blocks[unit] = last
        return held

    def overwrite(self, regions: Iterable[Region]) -> None:
        """What is written is not what the units hold any more."""
        if not self._blocks:
            return
        for region in regions:
            for unit, block in list(self._blocks.items()):
                if block.region.overlaps(region):
                    del self._blocks[unit]
