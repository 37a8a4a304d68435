# SPDX-License-Identifier: Apache-2.0
"""
The kernel language by definition: what a text computes, element by element, from its syntax tree.

Every index runs over its range, and every element is computed by itself; a statement reads what tensors held before it,
and, where its own target holds nothing yet, the elements that it stores itself. Only for small tensors of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.lowering.from_kernel.parser import parse_source
from penstock.lowering.from_kernel.syntax import (
    Access,
    Assignment,
    Binary,
    Binding,
    Block,
    Call,
    Declaration,
    If,
    Kernel,
    Loop,
    Name,
    Node,
    Number,
    Slice,
    Unary,
    walk,
)

Array = NDArray[np.float64]
Point = Mapping[str, int]
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "==": lambda a, b: a == b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}
_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max, "min": min, "prod": math.prod}


def results_of(text: str, arguments: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """The results of the only kernel of a text; what is not stored is NaN."""
    (kernel,) = (each for each in parse_source(text).definitions if isinstance(each, Kernel))
    values = _Values(sizes)
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        values.tensors[parameter.name] = np.asarray(argument, np.float64)
    for result in kernel.results:
        values.declare(result.name, result.dims)
    values.run(kernel.body)
    return [values.tensors[result.name] for result in kernel.results]


class _Values:
    def __init__(self, sizes: Mapping[str, int]):
        self.tensors: dict[str, Array] = {}
        self.numbers: dict[str, Any] = {"inf": math.inf, **sizes}
        self._own: Callable[[str, tuple[int, ...]], float | None] = lambda name, at: None
        """The element of a tensor that the statement stores itself, if it has one there."""

    def declare(self, name: str, dims: Sequence[Node]) -> None:
        self.tensors[name] = np.full([int(self._value(dim, {})) for dim in dims], math.nan)

    def run(self, block: Block) -> None:
        for statement in block.statements:
            match statement:
                case Declaration(declared=declared, value=value):
                    self.declare(declared.name, declared.dims)
                    if value is not None:
                        self._assign(Name(declared.name), "=", value)
                case Assignment(target=target, operator=operator, value=value):
                    self._assign(target, operator, value)
                case If(condition=condition, then=then, otherwise=otherwise):
                    taken = then if self._value(condition, {}) else otherwise
                    if taken is not None:
                        self.run(taken)
                case Loop():
                    for point in self._points_of(statement):
                        self.numbers |= point
                        self._in_frame(statement.body)
                case _:
                    raise NotImplementedError(statement)

    def _in_frame(self, block: Block) -> None:
        before = set(self.tensors)
        self.run(block)
        self.tensors = {name: each for name, each in self.tensors.items() if name in before}

    def _points_of(self, loop: Loop) -> Iterator[Point]:
        spans = [
            range(*(int(self._value(end, {})) for end in (each.start, each.stop, each.step or Number("1"))))
            for each in loop.ranges
        ]
        for values in product(*spans):
            yield dict(zip((each.name for each in loop.ranges), values, strict=True))

    # statements

    def _assign(self, target: Name | Access, operator: str, value: Node) -> None:
        name = target.name if isinstance(target, Name) else target.tensor
        if isinstance(target, Name):
            shape = self.tensors[name].shape if name in self.tensors else self._shape(value)
            target = Access(name, tuple(Slice() for _ in shape))
            self.tensors.setdefault(name, np.full(shape, math.nan))
        ranges = self._ranges(target, value)
        if name not in self.tensors:
            self.tensors[name] = np.full([len(span) for span in ranges.values()], math.nan)
        tensor = self.tensors[name]
        places = {
            self._places(target, dict(zip(ranges, at, strict=True))): dict(zip(ranges, at, strict=True))
            for at in product(*ranges.values())
        }
        inside = {at: point for at, point in places.items() if _is_inside(at, tensor.shape)}
        known: dict[tuple[int, ...], float] = {}

        def stored(at: tuple[int, ...]) -> float:
            if at not in known:
                known[at] = self._value(value, inside[at]) + (tensor[at] if operator == "+=" else 0)
            return known[at]

        if np.isnan(tensor).any():
            self._own = lambda read, at: stored(at) if read == name and at in inside else None
        for at in inside:
            stored(at)
        self._own = lambda name, at: None
        self.tensors[name] = tensor.copy()
        for at, element in known.items():
            self.tensors[name][at] = element

    def _ranges(self, target: Access, value: Node) -> dict[str, range]:
        """The indices of a statement, and what they run over; those of slices are numbered."""
        found: dict[str, range] = {}
        shape = self.tensors[target.tensor].shape if target.tensor in self.tensors else [None] * len(target.indices)
        for index, size in zip(target.indices, shape, strict=True):
            match index:
                case Slice():
                    found[str(len(found))] = range(self._length(index, size or 0))
                case Binding():
                    found[index.name] = range(int(self._value(index.start, {})), int(self._value(index.stop, {})))
                case Name() if size is not None and index.name not in self.numbers:
                    found[index.name] = range(size)
                case _:
                    for name in (each.name for each in walk(index) if isinstance(each, Name)):
                        if name not in self.numbers:
                            found[name] = range(self._extent(name, value))
        return found

    def _extent(self, name: str, value: Node) -> int:
        """The size of a dim that an index runs along alone."""
        accesses = [each for each in walk(value) if isinstance(each, Access)]
        for access in sorted(accesses, key=lambda each: each.otherwise is not None):
            for index, size in zip(access.indices, self.tensors[access.tensor].shape, strict=True):
                if index == Name(name):
                    return size
        raise KeyError(name)

    def _length(self, node: Slice, size: int) -> int:
        if node.size is not None:
            return int(self._value(node.size, {}))
        start = 0 if node.start is None else int(self._value(node.start, {}))
        return (size if node.stop is None else int(self._value(node.stop, {}))) - start

    def _shape(self, value: Node) -> tuple[int, ...]:
        """The shape of whole tensors."""
        for each in walk(value):
            if isinstance(each, Name) and each.name in self.tensors and self.tensors[each.name].ndim:
                return self.tensors[each.name].shape
            if isinstance(each, Access) and any(isinstance(index, Slice) for index in each.indices):
                pairs = zip(each.indices, self.tensors[each.tensor].shape, strict=True)
                return tuple(self._length(index, size) for index, size in pairs if isinstance(index, Slice))
        return ()

    # values

    def _places(self, node: Access, point: Point) -> tuple[int, ...]:
        slices = iter(range(len(node.indices)))
        found: list[int] = []
        for index in node.indices:
            if isinstance(index, Slice):
                start = 0 if index.start is None else int(self._value(index.start, point))
                found.append(start + point[str(next(slices))])
            else:
                found.append(int(self._value(Name(index.name) if isinstance(index, Binding) else index, point)))
        return tuple(found)

    def _value(self, node: Node, point: Point) -> Any:
        match node:
            case Number():
                return float(node.text)
            case Name() if node.name in point:
                return point[node.name]
            case Name() if node.name in self.numbers:
                return self.numbers[node.name]
            case Name():
                return self._element(node.name, tuple(point[str(dim)] for dim in range(self.tensors[node.name].ndim)))
            case Access():
                at = self._places(node, point)
                if _is_inside(at, self.tensors[node.tensor].shape):
                    return self._element(node.tensor, at)
                assert node.otherwise is not None
                return self._value(node.otherwise, point)
            case Unary():
                operand = self._value(node.operand, point)
                return -operand if node.operator == "-" else not operand
            case Binary():
                return _BINARY[node.operator](self._value(node.left, point), self._value(node.right, point))
            case Call(function="cast"):
                return float(self._value(node.arguments[1], point))
            case Call(function="select"):
                condition, one, other = node.arguments
                return self._value(one if self._value(condition, point) else other, point)
            case Call(function="max" | "min") if not isinstance(node.arguments[0], Binding):
                return _REDUCTIONS[node.function]([self._value(each, point) for each in node.arguments])
            case Call():
                *own, term = node.arguments
                spans = [
                    range(int(self._value(each.start, point)), int(self._value(each.stop, point)))
                    for each in own
                    if isinstance(each, Binding)
                ]
                names = [each.name for each in own if isinstance(each, Binding)]
                points = (dict(zip(names, at, strict=True)) for at in product(*spans))
                return _REDUCTIONS[node.function]([self._value(term, {**point, **each}) for each in points])
            case _:
                raise NotImplementedError(node)

    def _element(self, name: str, at: tuple[int, ...]) -> float:
        own = self._own(name, at)
        return float(self.tensors[name][at]) if own is None else own


def _is_inside(at: tuple[int, ...], shape: Sequence[int]) -> bool:
    return all(0 <= place < size for place, size in zip(at, shape, strict=True))
