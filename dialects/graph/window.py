"""Operators that combine the elements of windows over the spatial dimensions, or over all of them: pooling."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import BoolAttr, DenseArrayBase, IntegerType, StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def

from penstock.dialects.graph.base import (
    FLOATS,
    NUMBERS,
    TENSOR,
    Elements,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    Value,
    boolean,
    ints,
    require,
    tensor_of,
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


class PoolOp(GraphOp, ABC):
    """
    An op that combines each window of `kernel_shape` of each channel; the padding takes no part.

    Narrow floats are summed in f32, and the mean is rounded once.
    """

    ACCEPTS: ClassVar[Elements] = NUMBERS
    """The element types it is defined on."""

    x = operand_def(TENSOR)
    kernel_shape = prop_def(DenseArrayBase.constr(IntegerType(64)))
    strides = prop_def(DenseArrayBase.constr(IntegerType(64)))
    pads = prop_def(DenseArrayBase.constr(IntegerType(64)))
    dilations = prop_def(DenseArrayBase.constr(IntegerType(64)))
    ceil_mode = prop_def(BoolAttr, default_value=boolean(False))
    layout = prop_def(StringAttr, default_value=StringAttr(NCHW))

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    assembly_format = (
        "$x `kernel_shape` $kernel_shape `strides` $strides `pads` $pads `dilations` $dilations"
        " (`ceil_mode` $ceil_mode^)? (`layout` $layout^)? attr-dict"
        " `:` type($x) `->` type($result)"
    )

    def __init__(
        self,
        x: Value,
        *,
        kernel_shape: Sequence[int],
        strides: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        ceil_mode: bool = False,
        layout: str = NCHW,
        result_type: Tensor | None = None,
    ):
        rank = len(kernel_shape)
        strides = [1] * rank if strides is None else strides
        pads = [0] * (2 * rank) if pads is None else pads
        dilations = [1] * rank if dilations is None else dilations
        inferred = self.infer(
            tensor_of(x),
            kernel_shape=kernel_shape,
            strides=strides,
            pads=pads,
            dilations=dilations,
            ceil_mode=ceil_mode,
            layout=layout,
        )
        properties = {
            "kernel_shape": ints(kernel_shape),
            "strides": ints(strides),
            "pads": ints(pads),
            "dilations": ints(dilations),
            "ceil_mode": boolean(ceil_mode),
            "layout": StringAttr(layout),
        }
        super().__init__([x], result_type or inferred, properties)

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

    def infer_type(self) -> Tensor:
        return self.infer(
            tensor_of(self.x),
            kernel_shape=self.kernel_shape.get_values(),
            strides=self.strides.get_values(),
            pads=self.pads.get_values(),
            dilations=self.dilations.get_values(),
            ceil_mode=bool(self.ceil_mode),
            layout=self.layout.data,
        )


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

    def __init__(
        self,
        x: Value,
        *,
        kernel_shape: Sequence[int],
        strides: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = NCHW,
        result_type: Tensor | None = None,
    ):
        super().__init__(
            x,
            kernel_shape=kernel_shape,
            strides=strides,
            pads=pads,
            dilations=dilations,
            ceil_mode=ceil_mode,
            layout=layout,
            result_type=result_type,
        )
        self.properties["count_include_pad"] = boolean(count_include_pad)


class GlobalPoolOp(GraphOp, ABC):
    """An op that combines all elements of each channel; spatial sizes become 1."""

    ACCEPTS: ClassVar[Elements] = NUMBERS
    """The element types it is defined on."""

    x = operand_def(TENSOR)
    layout = prop_def(StringAttr, default_value=StringAttr(NCHW))

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    assembly_format = "$x (`layout` $layout^)? attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, *, layout: str = NCHW, result_type: Tensor | None = None):
        inferred = self.infer(tensor_of(x), layout)
        super().__init__([x], result_type or inferred, {"layout": StringAttr(layout)})

    @classmethod
    def infer(cls, x: Tensor, layout: str) -> Tensor:
        """`x` with spatial sizes of 1."""
        cls.ACCEPTS.check(x, cls.name)
        ones = [1] * len(spatial_sizes(x, layout))
        channels = channels_of(x, layout)
        shape = with_channels(x.get_shape()[0], channels, ones, layout)
        return tensor_type(x.element_type, shape)

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.layout.data)


@irdl_op_definition
class GlobalAveragePoolOp(GlobalPoolOp):
    """The mean of each channel."""

    name = "graph.global_average_pool"
    ACCEPTS: ClassVar[Elements] = FLOATS


@irdl_op_definition
class GlobalMaxPoolOp(GlobalPoolOp):
    """The largest element of each channel."""

    name = "graph.global_max_pool"
