"""Derivatives of matrix products and convolutions, which are matrix products and convolutions again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.dialects import graph
from penstock.dialects.graph import NCHW, tensor_of
from penstock.passes.graph.gradients.code import AdjointCode, Term, gradient, refuse, refuse_other_layouts
from penstock.passes.graph.gradients.geometry import padded, reversed_along, spread


def _matmul(a: Term, b: Term) -> Term:
    return a.with_(graph.MatmulOp, b)


def _turned(matrix: Term) -> Term:
    """The last two dimensions exchanged."""
    rank = len(matrix.shape)
    return matrix.transpose([*range(rank - 2), rank - 1, rank - 2])


def _refuse_accumulator(op: graph.MatmulOp | graph.GemmOp | graph.ConvOp) -> None:
    if op.accumulator is not None:
        refuse(op, f"that accumulates in {op.accumulator}", "differentiate before the element types are narrowed")


@gradient(graph.MatmulOp)
def matmul(code: AdjointCode, op: graph.MatmulOp) -> None:
    """seed B' and A' seed; a vector is a matrix of one row or column. What was repeated along the batch is summed."""
    _refuse_accumulator(op)
    left, right = tensor_of(op.a).get_shape(), tensor_of(op.b).get_shape()
    row, column = len(left) == 1, len(right) == 1
    a_shape, b_shape = (1, *left) if row else left, (*right, 1) if column else right
    rows, columns, inner = a_shape[-2], b_shape[-1], a_shape[-1]
    batch = code.seed.shape[: len(code.seed.shape) - 2 + row + column]

    def seed() -> Term:
        return code.seed.reshape([*batch, rows, columns])

    def of_a() -> Term:
        found = _matmul(seed(), _turned(code.term(op.b).reshape(b_shape)))
        return found.fit(a_shape).reshape(left)

    def of_b() -> Term:
        a = code.term(op.a).reshape(a_shape)
        if len(b_shape) == 2 and len(a_shape) > 2:  # one product whose inner dimension holds the batch
            found = _matmul(_turned(a.reshape([-1, inner])), seed().reshape([-1, columns]))
        else:
            found = _matmul(_turned(a), seed())
        return found.fit(b_shape).reshape(right)

    code.add(op.a, of_a)
    code.add(op.b, of_b)


@gradient(graph.GemmOp)
def gemm(code: AdjointCode, op: graph.GemmOp) -> None:
    """alpha seed B' and alpha A' seed, with the operands turned as they were, and beta times the seed."""
    _refuse_accumulator(op)
    alpha, beta = op.alpha.value.data, op.beta.value.data
    trans_a, trans_b = bool(op.trans_a), bool(op.trans_b)

    def product(a: Term, b: Term, trans_a: bool, trans_b: bool) -> Term:
        return code.emit(graph.GemmOp(a.value, b.value, alpha=alpha, trans_a=trans_a, trans_b=trans_b))

    a, b, seed = code.term(op.a), code.term(op.b), code.seed
    code.add(op.a, lambda: product(b, seed, trans_b, True) if trans_a else product(seed, b, False, not trans_b))
    code.add(op.b, lambda: product(seed, a, True, trans_a) if trans_b else product(a, seed, not trans_a, False))
    if op.c is not None:
        c = tensor_of(op.c).get_shape()
        code.add(op.c, lambda: seed.fit(c) if beta == 1 else seed.fit(c) * beta)


@dataclass(frozen=True)
class ConvGeometry:
    """What a convolution says about its spatial dimensions, one entry for each."""

    size: Sequence[int]
    """The sizes of the image."""
    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    before: Sequence[int]
    """The padding before the image. That after it follows from the rest."""
    group: int = 1

    @property
    def reach(self) -> list[int]:
        """The distance from the first to the last element of a window."""
        return [dilation * (size - 1) for size, dilation in zip(self.kernel, self.dilations, strict=True)]

    def after(self, counts: Sequence[int]) -> list[int]:
        """The padding after the image that so many windows reach; negative for elements that are in no window."""
        return [
            reach + stride * (count - 1) + 1 - size - pad
            for reach, stride, count, size, pad in zip(
                self.reach, self.strides, counts, self.size, self.before, strict=True
            )
        ]


def adjoint_of_image(seed: Term, filters: Term, geometry: ConvGeometry, layout: str = NCHW) -> Term:
    """
    The adjoint of the image of a convolution: the seed, spread apart by the strides, convolved with the filters,
    which have been turned (see `turned_filters`). With a window of one element the convolution comes first.

    See Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", arXiv:1603.07285, chapter 4.
    """
    rank = len(geometry.size)
    first, rest = (2, 0) if layout == NCHW else (1, 1)
    given: dict[str, Any] = {"group": geometry.group, "layout": layout}
    is_point = set(geometry.kernel) == {1}
    if is_point:
        seed = seed.code.emit(graph.ConvOp(seed.value, filters.value, **given))
    apart = spread(seed, [*[1] * first, *geometry.strides, *[1] * rest])
    low = [reach - pad for reach, pad in zip(geometry.reach, geometry.before, strict=True)]
    high = [
        size + reach - extent - before
        for size, reach, extent, before in zip(
            geometry.size, geometry.reach, apart.shape[first : first + rank], low, strict=True
        )
    ]
    if is_point:
        return padded(apart, [*[0] * first, *low, *[0] * rest], [*[0] * first, *high, *[0] * rest])
    cut_low, cut_high = ([*[0] * first, *(min(each, 0) for each in side), *[0] * rest] for side in (low, high))
    if any(sum(extents) <= 0 for extents in zip(apart.shape, cut_low, cut_high, strict=True)):
        # Every window lies in the padding.
        channels = filters.shape[0] if layout == NCHW else filters.shape[-1]
        sizes = [channels, *geometry.size] if layout == NCHW else [*geometry.size, channels]
        return seed.code.number(0.0, seed.element_type).expand([seed.shape[0], *sizes])
    image = padded(apart, cut_low, cut_high)
    return seed.code.emit(
        graph.ConvOp(
            image.value,
            filters.value,
            pads=[max(each, 0) for each in (*low, *high)],
            dilations=geometry.dilations,
            **given,
        )
    )


def turned_filters(filters: Term, group: int) -> Term:
    """Filters [O, C / group, window...] as [C, O / group, window...] with the window backwards."""
    outputs, inputs, *window = filters.shape
    spatial = range(2, 2 + len(window))
    if group == 1:
        turned = filters.transpose([1, 0, *spatial])
    else:
        turned = filters.reshape([group, outputs // group, inputs, *window])
        turned = turned.transpose([0, 2, 1, *(dim + 1 for dim in spatial)])
        turned = turned.reshape([group * inputs, outputs // group, *window])
    return reversed_along(turned, spatial)


def adjoint_of_filters(image: Term, seed: Term, geometry: ConvGeometry) -> Term:
    """
    The adjoint of the filters of a convolution: the image convolved with the seed as filters, batch and channels
    exchanged, stride and dilation exchanged. With a window of one element and one group it is a matrix product.
    """
    group, rank = geometry.group, len(geometry.size)
    batch, channels, *_ = image.shape
    outputs, out = seed.shape[1], seed.shape[2:]
    spatial = range(2, 2 + rank)
    if set(geometry.kernel) == {1} and group == 1:
        return _adjoint_of_points(image, seed, geometry)
    if group == 1:
        images = image.transpose([1, 0, *spatial])
    else:
        images = image.reshape([batch, group, channels // group, *geometry.size])
        images = images.transpose([2, 1, 0, *(dim + 1 for dim in spatial)])
        images = images.reshape([channels // group, group * batch, *geometry.size])
    filters = seed.transpose([1, 0, *spatial])
    after = geometry.after(out)
    if any(size + cut <= 0 for size, cut in zip(geometry.size, after, strict=True)):
        # Every window lies in the padding.
        return seed.code.number(0.0, seed.element_type).expand([outputs, channels // group, *geometry.kernel])
    images = padded(images, [0] * (2 + rank), [0, 0, *(min(each, 0) for each in after)])
    found = image.code.emit(
        graph.ConvOp(
            images.value,
            filters.value,
            strides=geometry.dilations,
            pads=[*geometry.before, *(max(each, 0) for each in after)],
            dilations=geometry.strides,
            group=group,
        )
    )
    assert found.shape == (channels // group, outputs, *geometry.kernel)
    return found.transpose([1, 0, *spatial])


def _adjoint_of_points(image: Term, seed: Term, geometry: ConvGeometry) -> Term:
    """The adjoint of filters of one element each: the seed times the elements that were read, over all places."""
    rank, counts = len(geometry.size), seed.shape[2:]
    batch_last = [1, 0, *range(2, 2 + rank)]
    image = padded(image, [0, 0, *geometry.before], [0, 0, *geometry.after(counts)])
    if image.shape[2:] != counts:
        steps, sizes = [1, 1, *geometry.strides], [*image.shape[:2], *counts]
        image = seed.code.emit(graph.SliceOp(image.value, starts=[0] * (2 + rank), sizes=sizes, steps=steps))
    rows, columns = (each.transpose(batch_last).reshape([each.shape[1], -1]) for each in (seed, image))
    found = seed.code.emit(graph.GemmOp(rows.value, columns.value, trans_b=True))
    return found.reshape([*found.shape, *geometry.kernel])


@gradient(graph.ConvOp)
def conv(code: AdjointCode, op: graph.ConvOp) -> None:
    """Two convolutions, and the sums of the seed over each channel. Another layout than NCHW is left and entered."""
    _refuse_accumulator(op)
    refuse_other_layouts(op, op.layout.data)
    if op.filters is not None:
        refuse(op, f'with filters in the layout "{op.filters.data}"', "differentiate before the pass layout")
    rank, plain = len(op.kernel_shape), op.layout.data == NCHW
    images = list(range(2 + rank)) if plain else [0, rank + 1, *range(1, rank + 1)]
    filters = list(range(2 + rank)) if plain else [rank + 1, rank, *range(rank)]

    def out_of(value: Term, perm: list[int]) -> Term:
        return value.transpose(perm)

    def into(value: Term, perm: list[int]) -> Term:
        return value.transpose([perm.index(dim) for dim in range(len(perm))])

    geometry = ConvGeometry(
        size=[tensor_of(op.x).get_shape()[dim] for dim in images[2:]],
        kernel=op.kernel_shape,
        strides=op.strides.get_values(),
        dilations=op.dilations.get_values(),
        before=op.pads.get_values()[:rank],
        group=op.group.value.data,
    )

    def of_image() -> Term:
        turned = turned_filters(out_of(code.term(op.w), filters), geometry.group)
        return into(adjoint_of_image(out_of(code.seed, images), turned, geometry), images)

    def of_filters() -> Term:
        found = adjoint_of_filters(out_of(code.term(op.x), images), out_of(code.seed, images), geometry)
        return into(found, filters)

    code.add(op.x, of_image)
    code.add(op.w, of_filters)
    code.add(op.b, lambda: code.seed.sum([0, *images[2:]], keepdims=False))
