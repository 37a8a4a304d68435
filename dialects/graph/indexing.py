# SPDX-License-Identifier: Apache-2.0
"""
Operators that read or write elements at indices that other operands name.

Indices are integers. Negative ones count from the end of the dimension that they index; one that is outside it
is a fault of the program's user: the interpreter refuses it, compiled programs stop with a fault.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import I64, BoolAttr, IntegerAttr, StringAttr, i64
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def

from penstock.dialects.graph.base import (
    INTEGERS,
    NUMBERS,
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    SelectsElements,
    Tensor,
    boolean,
    check_axis,
    integer,
    require,
    same_element,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.sizes import is_known, may_equal, may_reach

REDUCTIONS = ("none", "add", "mul", "max", "min")
"""What a scatter does with an update and the element at its place; `none` overwrites it."""


def _check_same(left: Sequence[int], right: Sequence[int], message: str) -> None:
    same = len(left) == len(right) and all(may_equal(*pair) for pair in zip(left, right, strict=True))
    require(same, message)


@irdl_op_definition
class GatherOp(GraphOp):
    """
    Parts of `x` one index wide along `axis`, one for each index: the shape of `x` with that of `indices` in the
    place of `axis`.
    """

    name = "graph.gather"

    DEFAULT_AXIS: ClassVar[int | None] = 0

    x = operand_def(TENSOR)
    indices = operand_def(TENSOR)
    axis = prop_def(IntegerAttr[I64])

    traits = traits_def(SelectsElements(), HasPatternKind(PatternKind.OPAQUE))
    assembly_format = "$x `at` $indices `axis` $axis attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """`x` with the shape of `indices` instead of dimension `axis`."""
        INTEGERS.check(indices, cls.name)
        shape = x.get_shape()
        check_axis(axis, len(shape))
        return tensor_type(x.element_type, [*shape[:axis], *indices.get_shape(), *shape[axis + 1 :]])


@irdl_op_definition
class GatherElementsOp(GraphOp):
    """For each element of `indices` the element of `x` at the same place, but for its index along `axis`."""

    name = "graph.gather_elements"

    DEFAULT_AXIS: ClassVar[int | None] = 0

    x = operand_def(TENSOR)
    indices = operand_def(TENSOR)
    axis = prop_def(IntegerAttr[I64])

    traits = traits_def(HasPatternKind(PatternKind.OPAQUE))
    assembly_format = "$x `at` $indices `axis` $axis attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """The shape of `indices`, which is nowhere larger than `x` but along `axis`."""
        INTEGERS.check(indices, cls.name)
        check_axis(axis, x.get_num_dims())
        inside = x.get_num_dims() == indices.get_num_dims() and all(
            dim == axis or may_reach(size, count)
            for dim, (size, count) in enumerate(zip(x.get_shape(), indices.get_shape(), strict=True))
        )
        require(inside, f"{cls.name}: the places of {indices} are not all inside {x}")
        return tensor_type(x.element_type, indices.get_shape())


@irdl_op_definition
class GatherNdOp(GraphOp):
    """
    For each row of `indices` (its last dimension) the part of `x` at these indices of its first dimensions.

    The first `batch_dims` dimensions of both are the same, and go side by side.
    """

    name = "graph.gather_nd"

    x = operand_def(TENSOR)
    indices = operand_def(TENSOR)
    batch_dims = prop_def(IntegerAttr[I64], default_value=integer(0))

    traits = traits_def(HasPatternKind(PatternKind.OPAQUE))
    assembly_format = "$x `at` $indices (`batch_dims` $batch_dims^)? attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, x: Tensor, indices: Tensor, batch_dims: int) -> Tensor:
        """The rows of `indices`, each with what is left of `x`."""
        INTEGERS.check(indices, cls.name)
        shape, places = x.get_shape(), indices.get_shape()
        width = _row_width(cls.name, indices)
        require(0 <= batch_dims < len(places), f"{cls.name}: batch_dims {batch_dims} for {indices}")
        require(batch_dims + width <= len(shape), f"{cls.name}: {batch_dims} + {width} indices for {x}")
        _check_same(shape[:batch_dims], places[:batch_dims], f"{cls.name}: {x} and {indices} differ in their batch")
        return tensor_type(x.element_type, [*places[:-1], *shape[batch_dims + width :]])


def _row_width(name: str, indices: Tensor) -> int:
    places = indices.get_shape()
    require(len(places) > 0, f"{name}: the indices are no rows, but a scalar")
    require(is_known(places[-1]), f"{name}: the length of a row of indices must be known")
    require(places[-1] > 0, f"{name}: the rows of {indices} have no indices")
    return places[-1]


class ScatterOp(GraphOp, ABC):
    """
    `x` with elements replaced by, or combined with, those of `updates`, in the order of the updates.

    Narrow floats are summed and multiplied in f32, and the result is rounded once.
    """

    x = operand_def(TENSOR)
    indices = operand_def(TENSOR)
    """Where the updates go."""
    updates = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.OPAQUE))

    def verify_(self) -> None:
        super().verify_()
        reduction = self.properties["reduction"]
        known = isinstance(reduction, StringAttr) and reduction.data in REDUCTIONS
        require(known, f"{self.name}: the reduction is one of {', '.join(REDUCTIONS)}, not {reduction}")
        if reduction != StringAttr("none"):
            NUMBERS.check(tensor_of(self.x), self.name)


@irdl_op_definition
class ScatterElementsOp(ScatterOp):
    """For each element of `updates`, changes the element of `x` at its place, but for the index along `axis`."""

    name = "graph.scatter_elements"

    DEFAULT_AXIS: ClassVar[int | None] = 0

    axis = prop_def(IntegerAttr[I64])
    reduction = prop_def(StringAttr, default_value=StringAttr("none"))
    """How an update is combined with the element that is there: "none" replaces it, "add", "mul", "max" or "min"."""

    assembly_format = (
        "$x `at` $indices `to` $updates `axis` $axis (`reduction` $reduction^)? attr-dict `:`"
        " functional-type(operands, results)"
    )

    @classmethod
    def infer(cls, x: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
        """The type of `x`."""
        GatherElementsOp.infer(x, indices, axis)
        same_element((x, updates), cls.name)
        message = f"{cls.name}: {indices} and {updates} have different shapes"
        _check_same(indices.get_shape(), updates.get_shape(), message)
        return x


@irdl_op_definition
class ScatterNdOp(ScatterOp):
    """For each row of `indices` (its last dimension), changes the part of `x` at these indices of its dimensions."""

    name = "graph.scatter_nd"

    reduction = prop_def(StringAttr, default_value=StringAttr("none"))
    """How an update is combined with the element that is there: "none" replaces it, "add", "mul", "max" or "min"."""

    assembly_format = (
        "$x `at` $indices `to` $updates (`reduction` $reduction^)? attr-dict `:` functional-type(operands, results)"
    )

    @classmethod
    def infer(cls, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        """The type of `x`."""
        same_element((x, updates), cls.name)
        part = GatherNdOp.infer(x, indices, 0)
        message = f"{cls.name}: the updates are {updates}, {indices} names parts {part}"
        _check_same(part.get_shape(), updates.get_shape(), message)
        return x


@irdl_op_definition
class TopKOp(GraphOp):
    """
    The indices, as i64, of the `k` largest or smallest elements along `axis`, in this order.

    Of equal elements the first one comes first. A NaN is larger than any number.
    """

    name = "graph.top_k"

    DEFAULT_AXIS: ClassVar[int | None] = -1

    x = operand_def(TENSOR)
    k = prop_def(IntegerAttr[I64])
    axis = prop_def(IntegerAttr[I64])
    largest = prop_def(BoolAttr, default_value=boolean(True))

    traits = traits_def(HasPatternKind(PatternKind.OPAQUE))
    assembly_format = "$x `k` $k `axis` $axis (`largest` $largest^)? attr-dict `:` type($x) `->` type($result)"

    @classmethod
    def infer(cls, x: Tensor, k: int, axis: int) -> Tensor:
        """`x` with `k` indices along `axis`."""
        NUMBERS.check(x, cls.name)
        shape = x.get_shape()
        check_axis(axis, len(shape))
        require(k >= 0 and may_reach(shape[axis], k), f"{cls.name}: {k} of {shape[axis]} elements")
        return tensor_type(i64, [*shape[:axis], k, *shape[axis + 1 :]])
