"""What the names of a kernel stand for where it is lowered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Attribute, SSAValue

from penstock.dialects.diagnostics import nearest_or_all
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import NAMED, Value
from penstock.lowering.from_kernel.scalars import SCALAR_NAMES
from penstock.lowering.from_kernel.syntax import Function, Node, Reducer


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

    boxes: list[tuple[tuple[int, int], ...]] = field(default_factory=list[tuple[tuple[int, int], ...]])
    """The parts that are stored, while some are missing."""

    @property
    def rank(self) -> int:
        """How many dims it has."""
        return len(self.shape)


@dataclass(frozen=True)
class LoopVariable:
    """The variable of a loop: its value, and the least and the largest that it takes."""

    name: str
    value: SSAValue | int
    first: int
    last: int


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

    def stored(self, name: str, at: Node) -> Tensor:
        """The tensor of a name, which is read. Raises Fault for one that nothing was stored to, or not all of it."""
        tensor = self.tensor(name, at)
        if tensor.value is None:
            raise Fault(f'"{name}" is read before anything is stored to it', at)
        if tensor.missing is not None:
            raise Fault(f'"{name}" is read before all of it is stored', at, [tensor.missing])
        return tensor

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, from the outermost frame."""
        for frame in self._frames:
            for symbol in frame.values():
                if isinstance(symbol, Tensor):
                    yield symbol

    def variables(self) -> Iterator[LoopVariable]:
        """The variables of all loops around."""
        for frame in self._frames:
            for symbol in frame.values():
                if isinstance(symbol, LoopVariable):
                    yield symbol

    def enter(self) -> None:
        """Open a frame."""
        self._frames.append({})

    def leave(self) -> None:
        """Close the innermost frame."""
        self._frames.pop()


def dims_text(shape: Sequence[int]) -> str:
    """A shape in words."""
    return "x".join(map(str, shape)) or "a scalar"
