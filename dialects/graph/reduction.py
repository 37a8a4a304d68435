# SPDX-License-Identifier: Apache-2.0
"""Operators that combine the elements along given dimensions."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import BoolAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def

from penstock.dialects.graph.base import (
    INTS,
    NUMBERS,
    TENSOR,
    Elements,
    GraphOp,
    HasPatternKind,
    HasQuantizedForm,
    PatternKind,
    PropertyValue,
    SelectsElements,
    Tensor,
    boolean,
    check_axis,
    normalized_axis,
    require,
    tensor_type,
)


class ReductionOp(GraphOp, ABC):
    """
    An op that combines the elements of `x` along `axes`, which ascend and count from the front.

    The dimensions stay with size 1 if `keepdims`, else they go. Without axes, `x` is the result. Floats of fewer than
    32 bits are combined in f32, and the result is rounded once.
    """

    ACCEPTS: ClassVar[Elements] = NUMBERS
    """The element types it is defined on."""

    x = operand_def(TENSOR)
    axes = prop_def(INTS)
    """The dimensions that are combined."""
    keepdims = prop_def(BoolAttr, default_value=boolean(True))
    """Whether they stay, with size 1."""

    traits = traits_def(HasPatternKind(PatternKind.REDUCTION))
    assembly_format = "$x `axes` $axes (`keepdims` $keepdims^)? attr-dict `:` type($x) `->` type($result)"

    @classmethod
    def fill_in(cls, values: dict[str, PropertyValue], *types: Any) -> None:
        rank = types[0].get_num_dims()
        chosen = cast("Sequence[int] | None", values.get("axes"))
        values["axes"] = sorted({normalized_axis(axis, rank) for axis in (range(rank) if chosen is None else chosen)})

    @classmethod
    def infer(cls, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
        """`x` with size 1 along `axes`, or without them."""
        cls.ACCEPTS.check(x, cls.name)
        require(sorted(set(axes)) == list(axes), f"axes {list(axes)} must ascend")
        for axis in axes:
            check_axis(axis, x.get_num_dims())
        sizes = [1 if dim in axes else size for dim, size in enumerate(x.get_shape()) if keepdims or dim not in axes]
        return tensor_type(x.element_type, sizes)


@irdl_op_definition
class ReduceSumOp(ReductionOp):
    """The sum; 0 of no elements."""

    name = "graph.reduce_sum"


@irdl_op_definition
class ReduceMeanOp(ReductionOp):
    """The mean: the sum, of integers in 64 bits, divided by the number of elements; integers truncate towards zero."""

    name = "graph.reduce_mean"
    traits = traits_def(HasQuantizedForm())


@irdl_op_definition
class ReduceMaxOp(ReductionOp):
    """The largest; NaN if one of them is."""

    name = "graph.reduce_max"
    traits = traits_def(SelectsElements())


@irdl_op_definition
class ReduceMinOp(ReductionOp):
    """The smallest; NaN if one of them is."""

    name = "graph.reduce_min"
    traits = traits_def(SelectsElements())


@irdl_op_definition
class ReduceProdOp(ReductionOp):
    """The product; 1 of no elements."""

    name = "graph.reduce_prod"
