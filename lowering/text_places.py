# SPDX-License-Identifier: Apache-2.0
"""Places in a text of IR: of what is wrong with it, of names, and of operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from xdsl.ir import Block, Operation, SSAValue


class Extent(NamedTuple):
    """A part of a text: where it begins, and where it ends."""

    start: int
    end: int

    def holds(self, position: int) -> bool:
        """Whether a cursor at a position is on it, or right behind it."""
        return self.start <= position <= self.end


@dataclass(frozen=True)
class TextFault:
    """What is wrong with a text, and where; `related` are places that it speaks of."""

    extent: Extent
    message: str
    notes: tuple[str, ...] = ()
    related: tuple[tuple[Extent, str], ...] = ()


Named = SSAValue | Block | Operation | str
"""What a name of a text stands for: a value, a block, an operation that defines a symbol, or an alias."""


@dataclass(frozen=True)
class NamedPlace:
    """One occurrence of a name."""

    extent: Extent
    named: Named
    """Of several values that have one name, the first."""
    is_definition: bool = False
    index: int = 0
    """Which of several values it is."""


@dataclass(frozen=True)
class OpPlace:
    """An operation in the text, and its name in it."""

    op: Operation
    extent: Extent
