# SPDX-License-Identifier: Apache-2.0
"""Contractions: sums of products, and convolution, the one over windows."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.dialects import graph
from penstock.dialects.graph.base import holds, is_float, is_integer, is_unsigned, summed_in
from penstock.dialects.graph.layout import Layout, LayoutPart, image_layout, spatial_dims
from penstock.lowering.accumulation import SUM, accumulate
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.passes.scalar_body import Body, Compute
from penstock.passes.shapes import Dims, Split, element_of, loops, shape_of, signless, windowed


def stored_factor(value: SSAValue) -> SSAValue:
    """A factor of a contraction before the casts that lose nothing."""
    while isinstance(value.owner, graph.CastOp) and _widens(value.owner):
        value = value.owner.x
    return value


def _widens(op: graph.CastOp) -> bool:
    if not isinstance(op.parent_op(), graph.FusedOp):
        return False  # outside groups every op is a kernel of its own
    source, target = element_of(op.x), element_of(op.result)
    same_kind = (is_float(source) and is_float(target)) or (is_integer(source) and is_integer(target))
    return same_kind and holds(target, source)


def multiply_add(unsigned: tuple[bool, bool]) -> Compute:
    """
    The body of every contraction: `accumulator + a * b`, the factors widened to the accumulator's type first.

    `unsigned` says of `a` and of `b` whether its integers are.
    """

    def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        *factors, accumulator = elements
        return body.add(accumulator, _product(body, factors, unsigned, accumulator.type))

    return compute


def _product(body: Body, factors: Sequence[SSAValue], unsigned: tuple[bool, bool], wide: Attribute) -> SSAValue:
    left, right = (body.widen(factor, wide, each) for factor, each in zip(factors, unsigned, strict=True))
    return body.mul(left, right)


def contract(
    kernel: KernelBuilder,
    op: graph.ConvOp | graph.GemmOp | graph.MatmulOp,
    a: tuple[SSAValue, Dims],
    b: tuple[SSAValue, Dims],
    shape: Sequence[int],
    reductions: int,
) -> SSAValue:
    """
    The sum of products of `a` and `b`, the tensors of the first two operands of `op`, over `reductions` loops, for
    each element of `shape`, in the type in which `op` sums.
    """
    left, right = (is_unsigned(element_of(stored_factor(factor))) for factor in op.operands[:2])
    wide = signless(summed_in(op))

    def product(body: Body, factors: Sequence[SSAValue]) -> SSAValue:
        return _product(body, factors, (left, right), wide)

    return accumulate(kernel, SUM, wide, [a, b], shape, reductions, term=product)


Loops = dict[LayoutPart, list[AffineExpr]]
"""For each part of a layout the loops that index it: one, or two where groups split the channels."""


def _number(parts: Sequence[LayoutPart], first: int, split: str | None) -> Loops:
    """Loops for `parts` from loop `first` on, in their order; the dim `split`, or its blocks, has two."""
    places: Loops = {}
    for part in parts:
        count = 2 if part.dim == split and part.block is None else 1
        places[part] = loops(count, first)
        first += count
    return places


def convolution_maps(
    op: graph.ConvOp, images: Layout, results: Layout, filters: Layout
) -> tuple[list[AffineExpr], list[AffineExpr]]:
    """
    How a convolution indexes its input and its filters: the parallel loops are in the order of the result, the
    reductions after them in that of the filters. With the channels last that is (n, o..., g, oc, k..., ic), with them
    first (n, g, oc, o..., ic, k...); blocks of "NHWC16c" and "HWOI16o16i" make it
    (n, o..., oc, o, k..., ic, i), o and i being the places in the blocks.
    """
    grouped = op.group.value.data > 1
    result = _number(results.parts, 0, "C" if grouped else None)
    inner = [part for part in filters.parts if part.dim != "O"]
    within = _number(inner, sum(map(len, result.values())), None)
    spatial = [LayoutPart(dim) for dim in images.dims if dim in "DHW"]
    read = windowed(
        [result[part][0] for part in spatial],
        [within[part][0] for part in spatial],
        op.strides.get_values(),
        op.dilations.get_values(),
    )
    windows = dict(zip(spatial, read, strict=True))
    x: list[AffineExpr] = []
    for part in images.parts:
        if part in windows:
            x.append(windows[part])
        elif part.dim == "C":
            x += [*(result[part][:-1] if grouped else []), *within[LayoutPart("I", part.block)]]
        else:
            x += result[part]
    w: list[AffineExpr] = []
    for part in filters.parts:
        w += result[LayoutPart("C", part.block)] if part.dim == "O" else within[part]
    return x, w


def _in_blocks(images: Layout, shape: Sequence[int], block: int) -> tuple[Layout, Split | None]:
    """The layout of images with their channels, which are innermost, in blocks, and the view that has them."""
    if block == 1:
        return images, None
    axis = images.axis("C")
    return Layout((*images.parts, LayoutPart("C", block))), Split(axis, shape[axis] // block)


@lowers(graph.ConvOp)
def conv(kernel: KernelBuilder, op: graph.ConvOp) -> SSAValue:
    """
    A contraction over windows of the padded input, then the bias.

    With groups the channels are split in two dims, (group, channel of it); the caller passes views.
    """
    rank, groups = len(op.kernel_shape), op.group.value.data
    images, filters = image_layout(op.layout.data, len(shape_of(op.x))), op.filter_layout
    axis = images.axis("C")
    read, x_split = (images, Split(axis, groups) if groups > 1 else None)
    results, split = read, x_split
    if filters.is_blocked and not images.is_blocked:
        # Channels that are innermost are blocks of any size that divides them, with another index.
        read, x_split = _in_blocks(images, shape_of(op.x), filters.block("I"))
        results, split = _in_blocks(images, shape_of(op.result), filters.block("O"))
    x = kernel.value(stored_factor(op.x), x_split)
    w = kernel.value(stored_factor(op.w), Split(filters.axis("O"), groups) if groups > 1 else None)
    pads = op.pads.get_values()
    # The groups stand before the spatial dims where the channels do.
    first = spatial_dims(op.layout.data, images.rank).start + (split is not None and axis == 1)
    x = kernel.pad_spatial(x, first, pads[:rank], pads[rank:], 0)

    x_dims, w_dims = convolution_maps(op, read, results, filters)
    shape = shape_of(op.result) if split is None else split.shape(shape_of(op.result))
    reductions = sum(part.dim != "O" for part in filters.parts)
    result = contract(kernel, op, (x, x_dims), (w, w_dims), shape, reductions)
    if op.b is None:
        return kernel.rounded(op.result, result, split)
    kernel.define(op.result, result, split)
    along = [at for at, part in enumerate(images.parts) if part.dim == "C"]

    def biased(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        return body.add(elements[0], body.widen(elements[1], elements[0].type))

    return kernel.pointwise([op.result, op.b], op.result, biased, along={1: along})
