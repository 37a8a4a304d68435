"""Operators that combine the elements of windows over the spatial dimensions, or over all of them: pooling."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import BoolAttr, StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def

from penstock.dialects.graph.base import (
    FLOATS,
    INTS,
    NUMBERS,
    TENSOR,
    Elements,
    GraphOp,
    HasPatternKind,
    PatternKind,
    PropertyValue,
    Tensor,
    boolean,
    require,
    tensor_type,
)
from penstock.dialects.graph.layout import NCHW, channels_of, spatial_sizes, with_channels
from penstock.dialects.graph.sizes import is_known, may_reach, unknown_size


def window_counts(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: bool = False,
) -> list[int]:
    """
    The number of places of a window along each spatial dimension; raises VerifyException if it fits none.

    With `ceil_mode` a last window may hang over the end, if it begins inside the data or the padding
    before them. Along a dimension of unknown size it is unknown too.
    """
    rank = len(spatial)
    for name, values, length in (
        ("kernel_shape", kernel, rank),
        ("strides", strides, rank),
        ("pads", pads, 2 * rank),
        ("dilations", dilations, rank),
    ):
        require(
            len(values) == length,
            f"{name} {list(values)} must have {length} entries for {rank} spatial dimensions",
        )
        least = 0 if name == "pads" else 1
        require(min(values) >= least, f"{name} {list(values)} must be at least {least}")
    counts: list[int] = []
    for dim, size in enumerate(spatial):
        extent = dilations[dim] * (kernel[dim] - 1) + 1
        padded = size + pads[dim] + pads[dim + rank]
        require(
            may_reach(padded, extent),
            f"a window of {extent} does not fit spatial dimension {dim}, which has {padded} elements with its padding",
        )
        steps = padded - extent
        if ceil_mode and strides[dim] > 1 and not is_known(size):
            counts.append(unknown_size())
            continue
        count = -(-steps // strides[dim]) if ceil_mode else steps // strides[dim]
        if ceil_mode and count * strides[dim] >= size + pads[dim]:
            count -= 1
        counts.append(count + 1)
    return counts


def fill_in_window(values: dict[str, PropertyValue], rank: int) -> None:
    """Give the window over `rank` spatial dimensions that `values` describe a step of 1 and no padding by default."""
    for name, default in (("strides", [1] * rank), ("pads", [0] * (2 * rank)), ("dilations", [1] * rank)):
        if values.get(name) is None:
            values[name] = default


class PoolOp(GraphOp, ABC):
    """
    An op that combines each window of `kernel_shape` of each channel; the padding takes no part.

    Narrow floats are summed in f32, and the mean is rounded once.
    """

    ACCEPTS: ClassVar[Elements] = NUMBERS
    """The element types it is defined on."""

    x = operand_def(TENSOR)
    kernel_shape = prop_def(INTS)
    strides = prop_def(INTS)
    pads = prop_def(INTS)
    dilations = prop_def(INTS)
    ceil_mode = prop_def(BoolAttr, default_value=boolean(False))
    layout = prop_def(StringAttr, default_value=StringAttr(NCHW))

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    assembly_format = (
        "$x `kernel_shape` $kernel_shape `strides` $strides `pads` $pads `dilations` $dilations"
        " (`ceil_mode` $ceil_mode^)? (`layout` $layout^)? attr-dict"
        " `:` type($x) `->` type($result)"
    )

    @classmethod
    def fill_in(cls, values: dict[str, PropertyValue], *types: Any) -> None:
        fill_in_window(values, len(cast(Sequence[int], values["kernel_shape"])))

    @classmethod
    def infer(
        cls,
        x: Tensor,
        *,
        kernel_shape: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        ceil_mode: bool,
        layout: str,
    ) -> Tensor:
        """`x` with the number of windows as spatial sizes."""
        cls.ACCEPTS.check(x, cls.name)
        spatial = spatial_sizes(x, layout)
        counts = window_counts(spatial, kernel_shape, strides, pads, dilations, ceil_mode)
        channels = channels_of(x, layout)
        shape = with_channels(x.get_shape()[0], channels, counts, layout)
        return tensor_type(x.element_type, shape)


@irdl_op_definition
class MaxPoolOp(PoolOp):
    """The largest element of each window."""

    name = "graph.max_pool"


@irdl_op_definition
class AveragePoolOp(PoolOp):
    """
    The mean of each window: its sum divided by the number of its elements that lie inside `x`, or, with
    `count_include_pad`, inside `x` or its padding. What hangs over the padding (`ceil_mode`) never counts.
    """

    name = "graph.average_pool"
    ACCEPTS: ClassVar[Elements] = FLOATS

    count_include_pad = prop_def(BoolAttr, default_value=boolean(False))
    assembly_format = (
        "$x `kernel_shape` $kernel_shape `strides` $strides `pads` $pads `dilations` $dilations"
        " (`ceil_mode` $ceil_mode^)? (`count_include_pad` $count_include_pad^)?"
        " (`layout` $layout^)? attr-dict `:` type($x) `->` type($result)"
    )


class GlobalPoolOp(GraphOp, ABC):
    """An op that combines all elements of each channel; spatial sizes become 1."""

    ACCEPTS: ClassVar[Elements] = NUMBERS
    """The element types it is defined on."""

    x = operand_def(TENSOR)
    layout = prop_def(StringAttr, default_value=StringAttr(NCHW))

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    assembly_format = "$x (`layout` $layout^)? attr-dict `:` type($x) `->` type($result)"

    @classmethod
    def infer(cls, x: Tensor, layout: str) -> Tensor:
        """`x` with spatial sizes of 1."""
        cls.ACCEPTS.check(x, cls.name)
        ones = [1] * len(spatial_sizes(x, layout))
        channels = channels_of(x, layout)
        shape = with_channels(x.get_shape()[0], channels, ones, layout)
        return tensor_type(x.element_type, shape)


@irdl_op_definition
class GlobalAveragePoolOp(GlobalPoolOp):
    """The mean of each channel."""

    name = "graph.global_average_pool"
    ACCEPTS: ClassVar[Elements] = FLOATS


@irdl_op_definition
class GlobalMaxPoolOp(GlobalPoolOp):
    """The largest element of each channel."""

    name = "graph.global_max_pool"
