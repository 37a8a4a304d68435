# SPDX-License-Identifier: Apache-2.0
"""
Reading tensors: index notation and slices become operands of a `linalg.generic` with index maps.

Every index is affine in the indices of the statement and the variables of loops. What does not move with an index of
the statement is the offset of a slice of the tensor, and what lies out of bounds comes from a pad of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from xdsl.dialects.builtin import i1
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from penstock.lowering.from_kernel.affine import affine_of
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import integer_of, number_of
from penstock.lowering.from_kernel.scalars import require_element
from penstock.lowering.from_kernel.symbols import LoopVariable, Symbols, Tensor
from penstock.lowering.from_kernel.syntax import Access, Binary, Binding, Expression, Name, Node, Slice, walk
from penstock.passes.analysis.access import linear_form
from penstock.passes.index_builder import Index, add, scale
from penstock.passes.schedule.tile_nest import DimRange
from penstock.passes.shapes import shape_of
from penstock.passes.tensor.tensor_builder import TensorBuilder


class IndexRange(NamedTuple):
    """What an index of a statement runs over, `start` to `stop` without `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many numbers that is."""
        return self.stop - self.start


Space = Mapping[str, IndexRange]
"""The indices of a statement in the order of its loops; those of a tile are called 0, 1, ..."""


@dataclass(frozen=True)
class Place:
    """An index as `constant` + the sum of coefficient times name, over indices of a statement and loop variables."""

    constant: int
    terms: Mapping[str, int]

    def bounds(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """Its least and largest value where each name lies between two numbers."""
        ends = [sorted(factor * end for end in ranges[name]) for name, factor in self.terms.items()]
        return self.constant + sum(low for low, _ in ends), self.constant + sum(high for _, high in ends)

    def within(self, space: Space) -> tuple[Mapping[str, int], int, int]:
        """What loop variables add to it, and where it begins and ends beside that in a space."""
        outer = {name: factor for name, factor in self.terms.items() if name not in space}
        inner = Place(self.constant, self.only(list(space)))
        low, high = inner.bounds({name: (range.start, range.stop - 1) for name, range in space.items()})
        return outer, low, high + 1

    def at(self, values: Mapping[str, int]) -> int:
        """Its value where each name has one."""
        return self.constant + sum(factor * values[name] for name, factor in self.terms.items())

    def only(self, names: Sequence[str]) -> dict[str, int]:
        """The terms of some names."""
        return {name: self.terms[name] for name in names if name in self.terms}


class Span(NamedTuple):
    """What a statement stores along a dim: `length` elements from a place on, `stride` apart from each other."""

    place: Place
    length: int
    stride: int = 1

    def from_start(self, start: int) -> range:
        """The elements, where the place is known."""
        return range(start, start + (self.length - 1) * self.stride + 1, self.stride)

    def window(self) -> tuple[Mapping[str, int], int, int]:
        """Beside what loop variables add, where it begins and ends."""
        return self.place.terms, self.place.constant, self.from_start(self.place.constant).stop


class Accesses:
    """Reads tensors for statements of one kernel."""

    def __init__(self, builder: TensorBuilder, symbols: Symbols):
        self._builder = builder
        self._symbols = symbols
        self._root = builder.block
        self._pads: dict[tuple[SSAValue, Block, tuple[int, ...], tuple[int, ...], str], SSAValue] = {}

    # names

    def place_of(self, node: Node, space: Space) -> Place:
        """An index as a sum. Raises Fault for one that is not affine, and for an unknown name."""
        names: list[str] = []

        def dim_of(name: Name) -> AffineExpr:
            self.require_index(name, space)
            if name.name not in names:
                names.append(name.name)
            return AffineExpr.dimension(names.index(name.name))

        expression = affine_of(node, dim_of, self._symbols.numbers)
        constants, rows = linear_form(AffineMap(len(names), 0, (expression,)))
        terms = {name: factor for name, factor in zip(names, rows[0], strict=True) if factor}
        return Place(constants[0], terms)

    def require_index(self, name: Name, space: Space) -> None:
        """Raise Fault unless a name may stand in an index."""
        if name.name in space or isinstance(self._symbols.find(name.name), LoopVariable):
            return
        what = self._symbols.meaning(name.name)
        if what is None:
            notes = ["it is neither on the left nor the index of a reduction around it", "sum(k, ...) sums over k"]
            raise Fault(f'unknown index "{name.name}"', name, notes)
        raise Fault(f'"{name.name}" is {what}, and no index', name, ["an index must be affine: it cannot be read"])

    def variables(self) -> dict[str, tuple[int, int]]:
        """The least and the largest value of every loop variable."""
        return {each.name: (each.first, each.last) for each in self._symbols.variables()}

    def decided(self, node: Binary, space: Space) -> bool | None:
        """What a comparison of indices is at every point of a space; None where it differs, or is of something else."""
        try:
            left, right = self.place_of(node.left, space), self.place_of(node.right, space)
        except Fault:
            return None
        names = [*left.terms, *(name for name in right.terms if name not in left.terms)]
        terms = {name: left.terms.get(name, 0) - right.terms.get(name, 0) for name in names}
        ranges = self.variables() | {name: (range.start, range.stop - 1) for name, range in space.items()}
        low, high = Place(left.constant - right.constant, terms).bounds(ranges)
        # For each relation: where the difference makes it hold, and where it makes it fail.
        holds, fails = {
            "<": (high < 0, low >= 0),
            "<=": (high <= 0, low > 0),
            ">": (low > 0, high <= 0),
            ">=": (low >= 0, high < 0),
            "==": (low == high == 0, low > 0 or high < 0),
            "!=": (low > 0 or high < 0, low == high == 0),
        }[node.operator]
        return True if holds else False if fails else None

    # reading

    def read(self, node: Access | Name, space: Space, along: Sequence[str]) -> tuple[SSAValue, list[AffineExpr]]:
        """
        The tensor that an operand of a generic over `space` is, and how its loops index it; the dims of a tile run
        along the indices `along`.

        Raises Fault for an unknown tensor, an index that is not affine, a wrong number of them, what is out of bounds.
        """
        if isinstance(node, Name):
            tensor = self._symbols.stored(node.name, node)
            assert tensor.value is not None
            names = list(space)
            return tensor.value, [AffineExpr.dimension(names.index(name)) for name in along]
        tensor = self._symbols.tensor(node.tensor, node)
        places = self.places(node, tensor, space, along)
        bounds = self._checked(node, tensor, places, space)
        inside = tuple(range(max(low, 0), min(high + 1, size)) for low, high, size in bounds)
        window = tuple(place.within(space) for place in places)
        self._symbols.stored(node.tensor, node, inside, window)
        value, low = self._padded(node, tensor, bounds)
        return self._sliced(value, [self._moved(place, add) for place, add in zip(places, low, strict=True)], space)

    def places(self, node: Access, tensor: Tensor, space: Space, along: Sequence[str]) -> list[Place]:
        """Where each index of an access lies; slices run along the indices `along`."""
        if len(node.indices) != tensor.rank:
            plural = "index" if tensor.rank == 1 else "indices"
            message = f'"{tensor.name}" takes {tensor.rank} {plural}, not {len(node.indices)}'
            raise Fault(message, node)
        found: list[Place] = []
        every = iter(along)
        for index, size in zip(node.indices, tensor.shape, strict=True):
            match index:
                case Slice():
                    start, _ = self.extent(index, size, space)
                    found.append(Place(start.constant, {**start.terms, next(every): 1}))
                case Binding():
                    raise Fault("the range of an index stands on the left, or in a reduction", index)
                case _:
                    found.append(self.place_of(index, space))
        return found

    def extent(self, node: Slice, size: int, space: Space) -> tuple[Place, int]:
        """Where a slice of a dim begins, and how long it is."""
        start = Place(0, {}) if node.start is None else self.place_of(node.start, space)
        if node.size is not None:
            length = integer_of(node.size, self._symbols.numbers, "the length of a slice")
        else:
            stop = Place(size, {}) if node.stop is None else self.place_of(node.stop, space)
            if stop.terms != start.terms:
                raise Fault("the length of this slice is not known when the kernel is compiled", node, ["start:+size"])
            length = stop.constant - start.constant
        if length < 1:
            raise Fault(f"this slice has {length} elements", node)
        return start, length

    def _checked(
        self, node: Access, tensor: Tensor, places: Sequence[Place], space: Space
    ) -> list[tuple[int, int, int]]:
        """The least and the largest value of each index, and the size of its dim."""
        ranges = self.variables() | {name: (range.start, range.stop - 1) for name, range in space.items()}
        found: list[tuple[int, int, int]] = []
        for index, place, size in zip(node.indices, places, tensor.shape, strict=True):
            low, high = place.bounds(ranges)
            if node.otherwise is None and (low < 0 or high >= size):
                at = index if index.at.line else node
                where = f"{low} to {high}" if low != high else str(low)
                notes = [
                    f"{name} is {first} to {last}" for name, (first, last) in ranges.items() if name in place.terms
                ]
                notes = [note for note in notes if not note[0].isdigit()]
                raise Fault(
                    f'index out of bounds: it is {where}, and the dim of "{tensor.name}" has the size {size}',
                    at,
                    [*notes, "x[... else VALUE] reads VALUE out of bounds"],
                )
            found.append((low, high, size))
        return found

    def _padded(
        self, node: Access, tensor: Tensor, bounds: Sequence[tuple[int, int, int]]
    ) -> tuple[SSAValue, list[int]]:
        """The tensor with what is read out of bounds around it, and how much lies before it."""
        assert tensor.value is not None
        if node.otherwise is None:
            return tensor.value, [0] * tensor.rank
        number = number_of(node.otherwise, self._symbols.numbers)
        if number is None:
            raise Fault("what is read out of bounds must be a number", node.otherwise)
        if tensor.element != i1 or number not in (0, 1):
            require_element(number, tensor.element, node.otherwise)
        low = [max(0, -first) for first, _, _ in bounds]
        high = [max(0, last - size + 1) for _, last, size in bounds]
        # What stands outside of all loops is padded there, once.
        inner = self._builder.block
        owner = tensor.value.owner
        is_outside = self._root in (owner, owner.parent if isinstance(owner, Operation) else None)
        block = self._root if is_outside else inner
        key = tensor.value, block, tuple(low), tuple(high), repr(number)
        if key not in self._pads:
            self._builder.block = block
            self._pads[key] = self._builder.pad(tensor.value, low, high, number)
            self._builder.block = inner
        return self._pads[key], low

    def _moved(self, place: Place, by: int) -> Place:
        return Place(place.constant + by, place.terms)

    def _sliced(self, value: SSAValue, places: Sequence[Place], space: Space) -> tuple[SSAValue, list[AffineExpr]]:
        """The part of a tensor that is read, and the map of what is read of that."""
        spans: list[DimRange] = []
        dims: list[AffineExpr] = []
        names = list(space)
        for place, size in zip(places, shape_of(value), strict=True):
            moving = place.only(names)
            reach = sum(abs(factor) * (space[name].size - 1) for name, factor in moving.items()) + 1
            backwards = sum(-factor * (space[name].size - 1) for name, factor in moving.items() if factor < 0)
            first = place.constant + sum(factor * space[name].start for name, factor in moving.items()) - backwards
            offset = self.offset(Place(first, {k: v for k, v in place.terms.items() if k not in space}))
            # A window may end before its tensor does; what an index runs along alone must be as long as its range.
            is_window = len(moving) > 1 or any(factor != 1 for factor in moving.values())
            spans.append(DimRange(0, size) if is_window and offset == 0 else DimRange(offset, reach))
            terms = [AffineExpr.dimension(names.index(name)) * factor for name, factor in moving.items() if factor != 1]
            plain = [AffineExpr.dimension(names.index(name)) for name, factor in moving.items() if factor == 1]
            total = [*terms, *plain, *([AffineExpr.constant(backwards)] if backwards else [])]
            dims.append(reduce(lambda a, b: a + b, total) if total else AffineExpr.constant(0))
        return self._builder.slice(value, spans), dims

    def offset(self, place: Place) -> Index:
        """An index that only loop variables move, as a value."""
        builder = self._builder.builder()
        total: Index = place.constant
        for name, factor in place.terms.items():
            variable = self._symbols.find(name)
            assert isinstance(variable, LoopVariable)
            total = add(builder, total, scale(builder, variable.value, factor))
        return total

    # ranges

    def alone(self, name: str, expression: Node) -> list[tuple[Access, int]]:
        """
        The dims that an index runs along alone: what reads them, and their sizes. What has an `else` may end earlier,
        and says so only where nothing else does.
        """
        accesses = [node for node in walk(expression) if isinstance(node, Access)]
        plain = self._alone(name, [node for node in accesses if node.otherwise is None])
        return plain or self._alone(name, accesses)

    def _alone(self, name: str, accesses: Sequence[Access]) -> list[tuple[Access, int]]:
        found: list[tuple[Access, int]] = []
        for node in accesses:
            tensor = self._symbols.find(node.tensor)
            if isinstance(tensor, Tensor) and len(node.indices) == tensor.rank:
                pairs = zip(node.indices, tensor.shape, strict=True)
                found += [(node, size) for index, size in pairs if isinstance(index, Name) and index.name == name]
        return found

    def range_of(self, name: Name, expression: Expression) -> IndexRange:
        """The range of an index that the dims say along which it runs alone. Raises Fault if they do not agree."""
        found = self.alone(name.name, expression)
        if not found:
            message = f'the range of "{name.name}" is not known: it indexes no dim alone'
            raise Fault(message, name, [f"say it: {name.name} in 0:SIZE"])
        first, size = found[0]
        for other, different in found[1:]:
            if different != size:
                raise Fault(
                    f'"{name.name}" runs over {size} elements of "{first.tensor}" and {different} of "{other.tensor}"',
                    other,
                    [f"say which: {name.name} in 0:SIZE"],
                )
        return IndexRange(0, size)

    def bound(self, node: Binding) -> IndexRange:
        """The range that is written at an index."""
        start = integer_of(node.start, self._symbols.numbers, "where a range begins")
        stop = integer_of(node.stop, self._symbols.numbers, "where a range ends")
        if stop <= start:
            raise Fault(f'the range of "{node.name}" is empty: {start} to {stop}', node)
        return IndexRange(start, stop)
