# SPDX-License-Identifier: Apache-2.0
"""Integers of less than a byte that share bytes: what unpacks them, and what is computed of them, as graph ops."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.graph import CastOp, ConstantOp, GraphOp, ReshapeOp, ShiftLeftOp, ShiftRightOp, tensor_of
from penstock.dialects.graph.base import is_narrow_integer, is_unsigned, tensor_type
from penstock.dialects.graph.elementwise import PointwiseOp
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.graph.terms import Term, TermBuilder, along
from penstock.passes.graph.values import NodeBuilder, constant_of, rebuilt


def unpacked(data: Term, bits: int, axis: int) -> Term:
    """
    The integers of `bits` bits in bytes, each as wide as a byte, along `axis`, where `data` has size 1.

    Those of bytes without a sign have none; those of signed bytes have the sign of their highest bit.
    """
    rank, code = len(data.shape), data.arithmetic
    unsigned = is_unsigned(data.element_type)
    dtype = np.dtype(np.uint8 if unsigned else np.int8)
    places = np.arange(0, 8, bits, dtype=dtype)
    if unsigned:
        mask = code.number((1 << bits) - 1, data.element_type)
        shifts = code.array(along(places, axis, rank), "shifts")
        return data.apply("shift_right", shifts).apply("bitwise_and", mask)
    # The highest bit of the number to that of the byte, and back with its sign.
    top = data.apply("shift_left", code.array(along(8 - bits - places, axis, rank), "shifts"))
    return top.apply("shift_right", code.number(8 - bits, data.element_type))


def is_narrow(value: SSAValue) -> bool:
    """Whether the elements of a value have 2 or 4 bits."""
    return is_narrow_integer(tensor_of(value).element_type)


def unpacks(op: Operation) -> bool:
    """Whether an op, or one inside it, makes wider numbers of those of less than a byte, or takes bytes apart."""
    if op.regions:
        return any(unpacks(each) for region in op.regions for block in region.blocks for each in block.ops)
    if isinstance(op, ShiftLeftOp | ShiftRightOp):
        (result,), (data, _) = op.results, op.operands
        return prod(tensor_of(result).get_shape()) > prod(tensor_of(data).get_shape())
    return any(map(is_narrow, op.operands)) and not any(map(is_narrow, op.results))


def common_sizes(left: Sequence[int], right: Sequence[int]) -> list[list[int]] | None:
    """
    For each size on the right the sizes that it is split into, so that a tensor of either shape is one of all these
    sizes, in row-major order; None if there are none.
    """
    if prod(left) != prod(right) or 0 in left:
        return None
    rest, groups = [size for size in left if size != 1], list[list[int]]()
    for size in right:
        groups.append([])
        while size > 1:
            have = rest.pop(0)
            step = min(have, size)
            if max(have, size) % step:
                return None
            if have > step:
                rest.insert(0, have // step)
            groups[-1].append(step)
            size //= step
    return groups


class InPlace(TermBuilder):
    """
    Terms in the place of an op. Of those in `spread`, which are reshapes, what is elementwise is computed of the tensor
    that was reshaped, as far as the other operands can be reshaped along, and is spread itself.
    """

    def __init__(self, op: Operation, store: WeightStore, spread: set[SSAValue]):
        super().__init__()
        self._spread = spread
        self._nodes = NodeBuilder(
            op.location, store, insert=lambda each: Rewriter.insert_op(each, InsertPoint.before(op))
        )

    def emit(self, op: GraphOp) -> Term:
        if isinstance(op, PointwiseOp) and (found := self._sunk(op)) is not None:
            return found
        return self.term(self._nodes.add(op, "unpacked"))

    def array(self, array: Array, name: str) -> Term:
        return self.term(self._nodes.constant(array, name))

    def packed(self, op: ConstantOp, data: Array) -> Term:
        """A constant that holds another one packed."""
        name = f"{op.weight}/packed" if op.weight is not None else "packed"
        constant = constant_of(data, name, self._nodes.store, op.location)
        return self.term(self._nodes.add(constant, "packed"))

    def spread(self, x: Term, shape: Sequence[int]) -> Term:
        """A reshape below which elementwise ops go."""
        base = x.value.owner.x if x.value in self._spread and isinstance(x.value.owner, ReshapeOp) else x.value
        found = self.term(self._nodes.add(ReshapeOp(base, shape), "spread"))
        self._spread.add(found.value)
        return found

    def _sunk(self, op: PointwiseOp) -> Term | None:
        wide = next((each for each in op.operands if each in self._spread), None)
        if wide is None or not isinstance(wide.owner, ReshapeOp):
            return None
        shape = tensor_of(wide).get_shape()
        base = wide.owner.x
        if isinstance(op, CastOp) and isinstance(base.owner, CastOp) and is_narrow(base):
            # The byte that a number was unpacked to is that number.
            base = base.owner.x
        groups = common_sizes(tensor_of(base).get_shape(), shape)
        if groups is None or tensor_of(op.result).get_shape() != shape:
            return None
        sizes = [size for group in groups for size in group]
        of_base = common_sizes(sizes, tensor_of(base).get_shape())
        assert of_base is not None
        operands = [self._apart(base, of_base) if each is wide else self._apart(each, groups) for each in op.operands]
        inner = rebuilt(op, operands, tensor_type(tensor_of(op.result).element_type, sizes))
        op.erase()
        return self.spread(self.term(self._nodes.add(inner, "unpacked")), shape)

    def _apart(self, value: SSAValue, groups: Sequence[Sequence[int]]) -> SSAValue:
        """A value with each dim in the sizes of its group; where the value is elementwise, so are its operands."""
        sizes = tensor_of(value).get_shape()
        own = groups[len(groups) - len(sizes) :]
        split = [
            part for size, group in zip(sizes, own, strict=True) for part in (group if size != 1 else [1] * len(group))
        ]
        if split == list(sizes):
            return value
        if not isinstance(value.owner, PointwiseOp):
            return self.term(value).reshape(split).value
        operands = [self._apart(each, groups) for each in value.owner.operands]
        return self._nodes.add(
            rebuilt(value.owner, operands, tensor_type(tensor_of(value).element_type, split)), "unpacked"
        )
