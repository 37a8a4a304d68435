# SPDX-License-Identifier: Apache-2.0
"""What the names of a kernel stand for where it is lowered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import lcm

from xdsl.ir import Attribute, SSAValue

from penstock.dialects.diagnostics import nearest_or_all
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import NAMED, Value
from penstock.lowering.from_kernel.scalars import SCALAR_NAMES
from penstock.lowering.from_kernel.syntax import Function, Node, Reducer

Box = tuple[range, ...]
"""A part of a tensor: the places along each dim."""

Window = tuple[tuple[Mapping[str, int], int, int], ...]
"""
A part of a tensor in one iteration of loops: along each dim the factors of their variables, and where it begins and
ends beside these.
"""

NOTHING_STORED = "nothing of it is stored yet"


@dataclass
class Tensor:
    """A parameter, a result or a local, with the value that it has where the lowering stands."""

    name: str
    kind: str
    """`parameter`, `result` or `local`."""
    element: Attribute
    """With the sign of integers."""
    shape: tuple[int, ...]
    declared: Node
    value: SSAValue | None = None
    """None before anything is stored."""
    missing: str | None = None
    """What of it has not been stored yet, in words; None for nothing."""

    depth: int = 0
    """In how many frames it is declared."""
    boxes: list[Box] = field(default_factory=list[Box])
    """The parts that are stored, while some are missing."""
    scope: str | None = None
    """The scope that it is declared in."""
    windows: list[tuple[int, Window]] = field(default_factory=list[tuple[int, Window]])
    """The parts that are stored in the iterations of loops in which the lowering stands, and in how many frames."""

    @property
    def rank(self) -> int:
        """How many dims it has."""
        return len(self.shape)

    def note_stored(self) -> None:
        """Say what is missing, after all iterations of the loops in which parts are stored."""
        if self.missing is not None and self.boxes:
            hole = _hole(tuple(range(size) for size in self.shape), self.boxes)
            self.missing = (
                None if hole is None else f"the element [{', '.join(map(str, hole))}] is not known to be stored"
            )

    def holds_window(self, window: Window) -> bool:
        """Whether one of the statements before it in the same iterations has stored a part."""
        return any(
            all(
                ours[0] == theirs[0] and ours[1] <= theirs[1] and theirs[2] <= ours[2]
                for ours, theirs in zip(stored, window, strict=True)
            )
            for _, stored in self.windows
        )

    def holds(self, part: Box) -> bool:
        """Whether a part has been stored, by statements in no loop that is within what the tensor is declared in."""
        return self.missing is None or _hole(part, self.boxes) is None


@dataclass(frozen=True)
class LoopVariable:
    """The variable of a loop: its value, and the least and the largest that it takes."""

    name: str
    value: SSAValue | int
    first: int
    last: int
    step: int = 1
    is_last: bool = False
    """Whether it is the last iteration alone, which may pass the end of its range."""

    @property
    def values(self) -> range:
        """All that it is."""
        return range(self.first, self.last + 1, self.step)


Symbol = Tensor | LoopVariable
"""What is no number."""


@dataclass
class Symbols:
    """The names of one kernel; those of a loop are in a frame of their own."""

    functions: dict[str, Function]
    reducers: dict[str, Reducer]
    numbers: dict[str, Value]
    """Sizes and constants."""
    _frames: list[dict[str, Symbol]] = field(default_factory=lambda: [{}])

    def declare(self, symbol: Symbol, at: Node) -> None:
        """Add a name to the innermost frame. Raises Fault for one that is taken."""
        self.require_free(symbol.name, at)
        if isinstance(symbol, Tensor):
            symbol.depth = self.depth
        self._frames[-1][symbol.name] = symbol

    def require_free(self, name: str, at: Node) -> None:
        """Raise Fault if a name stands for something already."""
        what = self.meaning(name)
        if what is not None:
            raise Fault(f'"{name}" is {what} already', at, ["a name is bound once: choose another one"])

    def meaning(self, name: str) -> str | None:
        """What a name stands for, in words; None for nothing."""
        match self.find(name):
            case Tensor() as tensor:
                return f"a {tensor.kind}"
            case LoopVariable():
                return "the variable of a loop"
            case None:
                pass
        if name in self.numbers:
            return "a size or a constant"
        if name in NAMED:
            return "a number"
        if name in self.functions:
            return "a function"
        if name in self.reducers:
            return "a reducer"
        return "a function of the language" if name in SCALAR_NAMES else None

    def find(self, name: str) -> Symbol | None:
        """The tensor or the loop variable of a name."""
        for frame in reversed(self._frames):
            if (found := frame.get(name)) is not None:
                return found
        return None

    def tensor(self, name: str, at: Node) -> Tensor:
        """The tensor of a name. Raises Fault for another name."""
        found = self.find(name)
        if isinstance(found, Tensor):
            return found
        if (what := self.meaning(name)) is not None:
            raise Fault(f'"{name}" is {what}, and no tensor', at)
        tensors = [each.name for each in self.tensors()]
        raise Fault(f'unknown tensor "{name}"', at, [nearest_or_all(name, tensors, "tensors")])

    def stored(self, name: str, at: Node, part: Box | None = None, window: Window | None = None) -> Tensor:
        """
        The tensor of a name, of which a part is read, or all. Raises Fault where not all of that is known to be stored.
        """
        tensor = self.tensor(name, at)
        if tensor.value is None:
            raise Fault(f'"{tensor.name}" is read before anything is stored to it', at)
        # What statements in a loop store, other iterations of it may store after this one.
        known = part is not None and not list(self.variables(tensor.depth)) and tensor.holds(part)
        known = known or (window is not None and tensor.holds_window(window))
        if tensor.missing is not None and not known:
            raise Fault(f'"{tensor.name}" is read before all of it is stored', at, [tensor.missing])
        return tensor

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, from the outermost frame."""
        for frame in self._frames:
            for symbol in frame.values():
                if isinstance(symbol, Tensor):
                    yield symbol

    @property
    def depth(self) -> int:
        """How many frames there are."""
        return len(self._frames)

    def variables(self, below: int = 0) -> Iterator[LoopVariable]:
        """The variables of the loops around, without those of the first frames."""
        for frame in self._frames[below:]:
            for symbol in frame.values():
                if isinstance(symbol, LoopVariable):
                    yield symbol

    def enter(self) -> None:
        """Open a frame."""
        self._frames.append({})

    def leave(self) -> None:
        """Close the innermost frame."""
        self._frames.pop()
        for tensor in self.tensors():
            tensor.windows = [each for each in tensor.windows if each[0] <= self.depth]


def dims_text(shape: Sequence[int]) -> str:
    """A shape in words."""
    return "x".join(map(str, shape)) or "a scalar"


def _hole(part: Box, boxes: Sequence[Box]) -> tuple[int, ...] | None:
    """The first place of a part of a tensor that no box has; None if they cover it."""
    places: list[list[int]] = []
    for dim, span in enumerate(part):
        # Between two ends of boxes the places are alike that have the same remainder.
        period = lcm(*(box[dim].step for box in boxes))
        ends = {span.start, *(end for box in boxes for end in (box[dim].start, box[dim].stop))}
        places.append(sorted({end + k for end in ends for k in range(period) if end + k in span}))
    for place in product(*places):
        if not any(all(at in span for at, span in zip(place, box, strict=True)) for box in boxes):
            return place
    return None
