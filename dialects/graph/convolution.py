"""Convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import I64, IntegerAttr, StringAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, traits_def

from penstock.dialects.graph.accumulator import accumulated
from penstock.dialects.graph.base import (
    INTS,
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    PropertyValue,
    Tensor,
    integer,
    require,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.layout import (
    NCHW,
    Layout,
    channels_of,
    default_filters,
    filter_layout,
    image_layout,
    spatial_sizes,
    with_channels,
)
from penstock.dialects.graph.sizes import is_known, may_equal
from penstock.dialects.graph.window import fill_in_window, window_counts


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
    w [spatial..., O/16, C/16, 16, 16], its result [N, spatial..., O/16, 16] and `b` [O/16, 16]; there is one group
    then. `pads` lists all beginnings, then all ends. It is computed in the type of the operands,
    narrow floats in f32 and rounded once, or in the wider `accumulator`, to which `b` and the result then belong.
    """

    name = "graph.conv"

    x = operand_def(TENSOR)
    w = operand_def(TENSOR)
    b = opt_operand_def(TENSOR)
    strides = prop_def(INTS)
    pads = prop_def(INTS)
    dilations = prop_def(INTS)
    group = prop_def(IntegerAttr[I64], default_value=integer(1))
    layout = prop_def(StringAttr, default_value=StringAttr(NCHW))
    filters = opt_prop_def(StringAttr)
    accumulator = opt_prop_def(Attribute)

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    assembly_format = (
        "operands `strides` $strides `pads` $pads `dilations` $dilations (`group` $group^)?"
        " (`layout` $layout^)? (`filters` $filters^)? (`accumulate` $accumulator^)? attr-dict"
        " `:` functional-type(operands, results)"
    )

    @classmethod
    def fill_in(cls, values: dict[str, PropertyValue], *types: Any) -> None:
        layout = values.get("layout") or NCHW
        fill_in_window(
            values, len(spatial_sizes(types[0], layout.data if isinstance(layout, StringAttr) else str(layout)))
        )

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
        blocks = 2 * (x.get_num_dims() - rank - 2)
        require(
            w.get_num_dims() == rank + 2 + blocks,
            f"filters {w} of rank {w.get_num_dims()} do not match {x} of rank {x.get_num_dims()}",
        )
        images = image_layout(layout, x.get_num_dims())
        stored = filters_of(layout, filters, w.get_num_dims())
        block = images.block("C")
        require(
            stored.block("O") == stored.block("I") == block and (not images.is_blocked or stored.rank == rank + 4),
            f'filters "{stored}" do not go with images "{layout}": blocks of channels are of one size in both',
        )
        require(
            group == 1 or not (images.is_blocked or filters),
            f'{group} groups of channels are computed in the layouts "NCHW" and "NHWC", not in "{layout}"',
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
        vector = [outputs] if block == 1 else [outputs // block, block]
        require(
            b is None
            or (
                b.get_num_dims() == len(vector)
                and all(may_equal(*pair) for pair in zip(b.get_shape(), vector, strict=True))
            ),
            f"the bias must have the shape {'x'.join(map(str, vector))}, found {b}",
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
