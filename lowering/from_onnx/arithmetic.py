"""Formulas of a node written as formulas: each method appends one op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import BinaryOp, UnaryOp, tensor_of
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.node import Node

Term: TypeAlias = "SSAValue | float"
"""A value, or a number that takes the element type of the other operand."""


class Arithmetic:
    """Appends the ops of a node's formulas. Numbers among the operands become constants, one for each and type."""

    def __init__(self, node: Node):
        self._node = node
        self._numbers: dict[tuple[float, Attribute], SSAValue] = {}

    def number(self, number: float, like: SSAValue) -> SSAValue:
        """A scalar of the element type of a value."""
        key = (number, tensor_of(like).element_type)
        if key not in self._numbers:
            self._numbers[key] = self._node.scalar(number, like)
        return self._numbers[key]

    def unary(self, op: type[UnaryOp], x: SSAValue) -> SSAValue:
        """An op of one operand without properties."""
        return self._node.emit(op(x))

    def binary(self, op: type[BinaryOp], a: Term, b: Term) -> SSAValue:
        """An op of two operands, at least one of which is a value."""
        if isinstance(a, SSAValue):
            other = b if isinstance(b, SSAValue) else self.number(b, a)
            return self._node.emit(op(a, other))
        assert isinstance(b, SSAValue)
        return self._node.emit(op(self.number(a, b), b))

    def add(self, a: Term, b: Term) -> SSAValue:
        """a + b."""
        return self.binary(graph.AddOp, a, b)

    def sub(self, a: Term, b: Term) -> SSAValue:
        """a - b."""
        return self.binary(graph.SubOp, a, b)

    def mul(self, a: Term, b: Term) -> SSAValue:
        """a * b."""
        return self.binary(graph.MulOp, a, b)

    def div(self, a: Term, b: Term) -> SSAValue:
        """a / b."""
        return self.binary(graph.DivOp, a, b)

    def less(self, a: Term, b: Term) -> SSAValue:
        """a < b."""
        return self.binary(graph.LessOp, a, b)

    def equal(self, a: Term, b: Term) -> SSAValue:
        """a = b."""
        return self.binary(graph.EqualOp, a, b)

    def either(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a or b."""
        return self._node.emit(graph.OrOp(a, b))

    def floor(self, x: SSAValue) -> SSAValue:
        """The next integral number below."""
        return self._node.emit(graph.FloorOp(x))

    def where(self, condition: SSAValue, a: Term, b: Term) -> SSAValue:
        """a where the condition holds, else b; at least one of them is a value."""
        like = a if isinstance(a, SSAValue) else b
        assert isinstance(like, SSAValue)
        a, b = (each if isinstance(each, SSAValue) else self.number(each, like) for each in (a, b))
        return self._node.emit(graph.WhereOp(condition, a, b))

    def clip(self, x: SSAValue, low: float | None, high: float | None) -> SSAValue:
        """x, but no less than `low` and no more than `high`."""
        return self._node.emit(graph.ClipOp(x, min=low, max=high))

    def cast(self, x: SSAValue, element: Attribute) -> SSAValue:
        """x in another element type."""
        return x if tensor_of(x).element_type == element else self._node.emit(graph.CastOp(x, element))

    def index(self, x: SSAValue, size: int) -> SSAValue:
        """Integral floats as indices below `size`; what is none, and NaN, is some index all the same."""
        return self.clip(self.cast(self.clip(x, 0, size - 1), i64), 0, size - 1)

    def reshape(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """x in another shape."""
        return x if tensor_of(x).get_shape() == tuple(shape) else self._node.emit(graph.ReshapeOp(x, shape))

    def transpose(self, x: SSAValue, *perm: int) -> SSAValue:
        """x with its dimensions in another order."""
        return x if list(perm) == sorted(perm) else self._node.emit(graph.TransposeOp(x, perm=perm))

    def expand(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        """x repeated to a shape that it broadcasts to."""
        return x if tensor_of(x).get_shape() == tuple(shape) else self._node.emit(graph.ExpandOp(x, shape))

    def matmul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The product of matrices."""
        return self._node.emit(graph.MatmulOp(a, b))

    def concat(self, parts: Sequence[SSAValue], axis: int) -> SSAValue:
        """Tensors one after the other along an axis."""
        return parts[0] if len(parts) == 1 else self._node.emit(graph.ConcatOp(parts, axis=axis))

    def constant(self, array: Array, what: str, element: Attribute | None = None) -> SSAValue:
        """A constant; numbers as `element` if it is given."""
        typed = array if element is None else array.astype(numpy_dtype(element))
        return self._node.constant(np.ascontiguousarray(typed).reshape(array.shape), what)
