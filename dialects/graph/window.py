# SPDX-License-Identifier: Apache-2.0
"""Operators on windows over the spatial dimensions, or on all of them: pooling and convolution."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import I64, BoolAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, traits_def

from penstock.dialects.graph.base import (
    FLOATS,
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
    accumulated,
    boolean,
    integer,
    require,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.layout import (
    NCHW,
    NHWC,
    Layout,
    channels_of,
    default_filters,
    filter_layout,
    image_layout,
    parse_layout,
    spatial_sizes,
    with_channels,
)
from penstock.dialects.graph.sizes import is_known, may_equal, may_reach, unknown_size


def window_counts(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: bool = False,
) -> list[int]:
    """
    The number of positions of a window along each spatial dimension; raises VerifyException if it fits none.

    With `ceil_mode` a last window may be partly out of bounds, if it begins inside the data or the padding
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


def _with_spatial(x: Tensor, sizes: Sequence[int], layout: str) -> Tensor:
    """The type of a batch of images with other spatial sizes."""
    return tensor_type(x.element_type, with_channels(x.get_shape()[0], channels_of(x, layout), sizes, layout))


class PoolOp(GraphOp, ABC):
    """
    An op that combines each window of `kernel_shape` of each channel; the padding takes no part.

    Narrow floats are summed in f32, and the mean is rounded once.
    """

    ACCEPTS: ClassVar[Elements] = NUMBERS
    """The element types it is defined on."""

    x = operand_def(TENSOR)
    kernel_shape = prop_def(INTS)
    """The size of the window along each spatial dimension."""
    strides = prop_def(INTS)
    """The step of the window along each spatial dimension."""
    pads = prop_def(INTS)
    """Elements before each spatial dimension, then after each."""
    dilations = prop_def(INTS)
    """The distance of neighbouring elements of the window along each spatial dimension."""
    ceil_mode = prop_def(BoolAttr, default_value=boolean(False))
    """Whether a last window may be partly out of bounds, if it begins inside."""
    layout = prop_def(StringAttr, default_value=StringAttr(NCHW))
    """The order of the dimensions of `x` and of the result: "NCHW", "NHWC", or with blocks of channels, "NHWC16c"."""

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
        return _with_spatial(x, window_counts(spatial, kernel_shape, strides, pads, dilations, ceil_mode), layout)


@irdl_op_definition
class MaxPoolOp(PoolOp):
    """The largest element of each window."""

    name = "graph.max_pool"
    traits = traits_def(SelectsElements())


@irdl_op_definition
class AveragePoolOp(PoolOp):
    """
    The mean of each window: its sum divided by the number of its elements that lie inside `x`, or, with
    `count_include_pad`, inside `x` or its padding. What is beyond the padding (`ceil_mode`) never counts.
    """

    name = "graph.average_pool"
    ACCEPTS: ClassVar[Elements] = FLOATS
    traits = traits_def(HasQuantizedForm())

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
    """The order of the dimensions of `x` and of the result: "NCHW", "NHWC", or with blocks of channels, "NHWC16c"."""

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    assembly_format = "$x (`layout` $layout^)? attr-dict `:` type($x) `->` type($result)"

    @classmethod
    def infer(cls, x: Tensor, layout: str) -> Tensor:
        """`x` with spatial sizes of 1."""
        cls.ACCEPTS.check(x, cls.name)
        return _with_spatial(x, [1] * len(spatial_sizes(x, layout)), layout)


@irdl_op_definition
class GlobalAveragePoolOp(GlobalPoolOp):
    """The mean of each channel."""

    name = "graph.global_average_pool"
    ACCEPTS: ClassVar[Elements] = FLOATS
    traits = traits_def(HasQuantizedForm())


@irdl_op_definition
class GlobalMaxPoolOp(GlobalPoolOp):
    """The largest element of each channel."""

    name = "graph.global_max_pool"
    traits = traits_def(SelectsElements())


def filters_of(layout: str, filters: str | None, rank: int) -> Layout:
    """How filters of `rank` are stored for images in `layout`; raises VerifyException if that has to be said."""
    text = filters or default_filters(layout)
    require(text is not None, f'images in the layout "{layout}" need `filters`, the layout of the weights')
    assert text is not None
    return filter_layout(text, rank)


@irdl_op_definition
class ConvOp(GraphOp):
    """
    Convolution of `x` with the filters `w`, plus the bias `b` of each output channel.

    Layout "NCHW": x is [N, C, spatial...], w is [O, C / group, spatial...]. Layout "NHWC": x is
    [N, spatial..., C], w is [spatial..., C / group, O]. `filters` names another layout of `w`, and must where the
    images have blocks of channels: "NHWC16c" with "HWOI16o16i" is x [N, spatial..., C/16, 16] and
    w [spatial..., O/16, C/16, 16, 16], its result [N, spatial..., O/16, 16] and `b` [O/16, 16]; blocks divide the
    channels of each group then. Images "NHWC" of one group may have filters in blocks that divide the channels, as
    "OHWI16o4i". `pads` lists all beginnings, then all ends. It is computed in the type of the operands,
    narrow floats in f32 and rounded once, or in the wider `accumulator`, to which `b` and the result then belong.
    """

    name = "graph.conv"

    x = operand_def(TENSOR)
    w = operand_def(TENSOR)
    b = opt_operand_def(TENSOR)
    strides = prop_def(INTS)
    """The step of the window along each spatial dimension."""
    pads = prop_def(INTS)
    """Elements before each spatial dimension, then after each."""
    dilations = prop_def(INTS)
    """The distance of neighbouring elements of the window along each spatial dimension."""
    group = prop_def(IntegerAttr[I64], default_value=integer(1))
    """Groups of channels that are convolved apart."""
    layout = prop_def(StringAttr, default_value=StringAttr(NCHW))
    """The order of the dimensions of `x` and of the result: "NCHW", "NHWC", or with blocks of channels, "NHWC16c"."""
    filters = opt_prop_def(StringAttr)
    """The order of the dimensions of `w`, where it does not follow from `layout`."""
    accumulator = opt_prop_def(Attribute)
    """The wider type that it sums in."""

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    assembly_format = (
        "operands `strides` $strides `pads` $pads `dilations` $dilations (`group` $group^)?"
        " (`layout` $layout^)? (`filters` $filters^)? (`accumulate` $accumulator^)? attr-dict"
        " `:` functional-type(operands, results)"
    )

    @classmethod
    def fill_in(cls, values: dict[str, PropertyValue], *types: Any) -> None:
        fill_in_window(values, len(spatial_sizes(types[0], str(values.get("layout") or NCHW))))

    @classmethod
    def infer(
        cls,
        x: Tensor,
        w: Tensor,
        b: Tensor | None = None,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        group: int,
        layout: str,
        filters: str | None = None,
        accumulator: Attribute | None = None,
    ) -> Tensor:
        """The images of `x` with the outputs as channels and the number of windows as spatial sizes."""
        element = accumulated((x, w), b, accumulator, cls.name)
        spatial = spatial_sizes(x, layout)
        rank = len(spatial)
        images = image_layout(layout, x.get_num_dims())
        # Filters in blocks go with images without: they are as many channels there as the blocks hold.
        named = () if filters is None else parse_layout(filters).parts
        blocks = 2 if images.is_blocked else sum(part.block is not None for part in named)
        require(
            w.get_num_dims() == rank + 2 + blocks,
            lambda: f"filters {w} of rank {w.get_num_dims()} do not match {x} of rank {x.get_num_dims()}",
        )
        stored = filters_of(layout, filters, w.get_num_dims())
        block = images.block("C")
        require(
            not images.is_blocked or (stored.block("O") == stored.block("I") == block and stored.rank == rank + 4),
            lambda: f'filters "{stored}" do not go with images "{layout}": blocks of channels are of one size in both',
        )
        require(
            images.is_blocked or not stored.is_blocked or layout == NHWC,
            f'filters "{stored}" in blocks go with images in "{NHWC}" or in blocks, not with "{layout}"',
        )
        require(
            group == 1 or images.is_blocked or not filters,
            f"the filters of {group} groups of channels are in a layout of their own only where channels have blocks",
        )
        sizes = stored.extents(w.get_shape())
        outputs, inputs, kernel = sizes["O"], sizes["I"], [sizes[dim] for dim in stored.dims if dim in "DHW"]
        channels = channels_of(x, layout)
        require(group >= 1, f"group is {group}, must be at least 1")
        require(
            may_equal(inputs * group, channels),
            f"{channels} input channels do not match {inputs} in the filters times {group} group(s)",
        )
        require(
            not is_known(outputs) or outputs % group == 0,
            f"{outputs} output channels do not divide into {group} groups",
        )
        require(
            group == 1
            or not (is_known(outputs) and is_known(inputs))
            or not (outputs // group % block or inputs % block),
            lambda: f"groups of {inputs} and {outputs // group} channels do not divide into blocks of {block}",
        )
        vector = [outputs] if block == 1 else [outputs // block, block]
        require(
            b is None
            or (
                b.get_num_dims() == len(vector)
                and all(may_equal(*pair) for pair in zip(b.get_shape(), vector, strict=True))
            ),
            lambda: f"the bias must have the shape {'x'.join(map(str, vector))}, found {b}",
        )
        counts = window_counts(spatial, kernel, strides, pads, dilations)
        return tensor_type(element, with_channels(x.get_shape()[0], outputs, counts, layout))

    @property
    def filter_layout(self) -> Layout:
        """How the filters are stored."""
        filters = None if self.filters is None else self.filters.data
        return filters_of(self.layout.data, filters, tensor_of(self.w).get_num_dims())

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """The spatial sizes of the filters."""
        sizes = self.filter_layout.extents(tensor_of(self.w).get_shape())
        return tuple(size for dim, size in sizes.items() if dim in "DHW")
