# SPDX-License-Identifier: Apache-2.0
"""Graph ops written as expressions: values with arithmetic, each step of which appends an op."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.graph.formula import Scalar
from penstock.dialects.graph.sizes import is_known
from penstock.dialects.weights import Array

_OPS = {op.name.removeprefix("graph."): op for op in graph.OPS}


class TermBuilder(ABC):
    """Appends the ops of terms. Numbers become constants, one for each number and element type."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[float, Attribute], Term] = {}

    @abstractmethod
    def emit(self, op: GraphOp) -> Term:
        """Append an op, for its result."""

    @abstractmethod
    def array(self, array: Array, name: str) -> Term:
        """A constant; `name` is that of the weight, if it does not fit into the text."""

    def term(self, value: SSAValue) -> Term:
        """A value of the program."""
        return Term(value, self)

    def number(self, number: float, element: Attribute) -> Term:
        """A scalar."""
        key = (number, element)
        if key not in self._numbers:
            self._numbers[key] = self.array(np.asarray(number, numpy_dtype(element)), "number")
        return self._numbers[key]

    def zeros(self, like: SSAValue) -> Term:
        """Zeros of the type of a value."""
        tensor = tensor_of(like)
        return self.number(0.0, tensor.element_type).expand(tensor.get_shape())

    def like(self, value: float, other: SSAValue) -> SSAValue:
        """A scalar of the element type of `other`."""
        return self.number(value, tensor_of(other).element_type).value

    def apply(self, function: str, *elements: SSAValue) -> SSAValue:
        """The op that is called `graph.<function>`."""
        return self.emit(_OPS[function](*elements)).value


@dataclass(frozen=True)
class Term(Scalar[SSAValue]):
    """A value of the graph. Python numbers in its arithmetic become scalars of its element type."""

    KNOWN: ClassVar[Mapping[str, object]] = _OPS
    """The functions that there are: each is an op."""

    arithmetic: TermBuilder
    """What appends the ops."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tensor_of(self.value).get_shape()

    @property
    def element_type(self) -> Attribute:
        return tensor_of(self.value).element_type

    def emit(self, op: GraphOp) -> Term:
        """Append an op, for its result."""
        return self.arithmetic.emit(op)

    def __matmul__(self, other: Self) -> Term:
        return self.emit(graph.MatmulOp(self.value, other.value))

    def __or__(self, other: Self) -> Self:
        return self.apply("or", other)

    def equal(self, other: Self | float) -> Self:
        """Whether each element is that of another value."""
        return self.apply("equal", other)

    def cast(self, element: Attribute) -> Term:
        """The elements in another type, truth values as 0 or 1; this very value if it has it."""
        return self if element == self.element_type else self.emit(graph.CastOp(self.value, element))

    def clip(self, low: float | None, high: float | None) -> Term:
        """No less than `low` and no more than `high`."""
        return self.emit(graph.ClipOp(self.value, min=low, max=high))

    def reshape(self, shape: Sequence[int]) -> Term:
        """The same elements in another shape; this very value if it has it."""
        return self if tuple(shape) == self.shape else self.emit(graph.ReshapeOp(self.value, shape))

    def transpose(self, perm: Sequence[int]) -> Term:
        """The dimensions in another order; this very value if they are in it."""
        return self if list(perm) == sorted(perm) else self.emit(graph.TransposeOp(self.value, perm=perm))

    def moved(self, axis: int, to: int) -> Term:
        """With dimension `axis`, which may be counted from the end, in the place `to` of it among the others."""
        rank = len(self.shape)
        others = [dim for dim in range(rank) if dim != axis % rank]
        others.insert(to % rank, axis % rank)
        return self.transpose(others)

    def expand(self, shape: Sequence[int]) -> Term:
        """Repeated to a shape; this very value if it has it."""
        return self if tuple(shape) == self.shape else self.emit(graph.ExpandOp(self.value, shape))

    def sum(self, axes: Sequence[int], *, keepdims: bool = True) -> Term:
        """The sum along axes; this very value if there are none."""
        return self.emit(graph.ReduceSumOp(self.value, axes=axes, keepdims=keepdims)) if axes else self

    def fit(self, shape: Sequence[int]) -> Term:
        """The adjoint of a value of `shape` that was broadcast to that of this term: sums along what was repeated."""
        leading = len(self.shape) - len(shape)
        assert leading >= 0
        if self.shape[leading:] == tuple(shape):
            return self.sum(range(leading), keepdims=False)
        repeated = [dim for dim, size in enumerate(shape, leading) if size == 1 and self.shape[dim] != 1]
        summed = self.sum([*range(leading), *repeated])
        return summed.reshape(summed.shape[leading:]).expand(shape)

    def slice(self, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] | None = None) -> Term:
        """The part that `graph.slice` takes."""
        return self.emit(graph.SliceOp(self.value, starts=starts, sizes=sizes, steps=steps))

    def cut(self, axis: int, start: int, size: int, step: int = 1) -> Term:
        """`size` elements along `axis` from `start` on, `step` apart; this very value if these are all."""
        if size == self.shape[axis] and step == 1:
            return self
        starts = [start if dim == axis else 0 for dim in range(len(self.shape))]
        sizes = [size if dim == axis else extent for dim, extent in enumerate(self.shape)]
        return self.slice(starts, sizes, [step if dim == axis else 1 for dim in range(len(self.shape))])

    def padded(self, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Term:
        """With so many elements of `value` around it; what is negative is cut off instead."""
        starts = [max(-each, 0) for each in before]
        sizes = [size - low - max(-high, 0) for size, low, high in zip(self.shape, starts, after, strict=True)]
        if any(is_known(size) and size <= 0 for size in sizes):
            final = [size + low + high for size, low, high in zip(self.shape, before, after, strict=True)]
            return self.number(value).expand(final)
        inner = self if sizes == list(self.shape) else self.slice(starts, sizes)
        pads = [max(each, 0) for each in (*before, *after)]
        return self.emit(graph.PadOp(inner.value, pads=pads, value=value)) if any(pads) else inner

    def spread(self, steps: Sequence[int], *, tail: bool = False) -> Term:
        """With `step - 1` zeros between the elements of each dimension, with `tail` after the last one too."""
        apart = [dim for dim, step in enumerate(steps) if step > 1 and self.shape[dim] != 1]
        if not apart:
            return self
        sizes, pads, joined, final = list[int](), list[int](), list[int](), list[int]()
        for dim, (size, step) in enumerate(zip(self.shape, steps, strict=True)):
            factor = step if dim in apart else 1
            sizes += [size, 1] if dim in apart else [size]
            pads += [0, factor - 1] if dim in apart else [0]
            joined.append(size * factor)
            final.append((size - 1) * factor + 1)
        grown = self.reshape(sizes).padded([0] * len(sizes), pads).reshape(joined)
        return grown if tail else grown.slice([0] * len(final), final)

    def reversed(self, axes: Sequence[int]) -> Term:
        """Backwards along some dimensions."""
        moving = [axis for axis in axes if self.shape[axis] > 1]
        if not moving:
            return self
        starts = [size - 1 if dim in moving else 0 for dim, size in enumerate(self.shape)]
        return self.slice(starts, self.shape, [-1 if dim in moving else 1 for dim in range(len(self.shape))])


def along(array: Array, axis: int, rank: int) -> Array:
    """Numbers along one axis of a tensor of `rank`, to broadcast along all others."""
    return array.reshape([-1 if dim == axis else 1 for dim in range(rank)])
