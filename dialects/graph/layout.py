# SPDX-License-Identifier: Apache-2.0
"""
Layouts: how the dimensions of a tensor are stored, as a word such as "NCHW", "NHWC16c" or "HWOI16o16i".

An upper-case letter is a dimension. A number and a lower-case letter is a block of that dimension: it is cut in
blocks of so many elements, the upper-case letter counts the blocks and the block holds the place in one. Dimensions
are given from the outermost to the innermost. The letters are those of the field: images have N, C and the spatial
D, H, W, filters O, I and the spatial ones; any others serve as well. In layouts of images and filters `HW` means
all spatial dimensions, whatever their number. See Liu et al., "Optimizing CNN Model Inference on CPUs", ATC 2019.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def

from penstock.dialects.graph.base import (
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    Value,
    is_static,
    require,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.sizes import is_known

NCHW = "NCHW"
"""The layout with the channels before the spatial dimensions, whatever their number."""
NHWC = "NHWC"
"""The layout with the channels innermost."""

_PART = re.compile(r"([A-Z])|([1-9][0-9]*)([a-z])")
_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
_FILTERS = {NCHW: "OIHW", NHWC: "HWIO"}


class LayoutPart(NamedTuple):
    """One dimension of the stored tensor: a dimension of the original, or, with a number, a block of it."""

    dim: str
    block: int | None = None


@dataclass(frozen=True)
class Layout:
    """A layout, part by part from the outermost to the innermost."""

    parts: tuple[LayoutPart, ...]

    def __str__(self) -> str:
        return "".join(dim if block is None else f"{block}{dim.lower()}" for dim, block in self.parts)

    @property
    def rank(self) -> int:
        """The rank of what is stored."""
        return len(self.parts)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of the original, in the order in which they are stored."""
        return tuple(part.dim for part in self.parts if part.block is None)

    @property
    def is_blocked(self) -> bool:
        """Whether a dimension has blocks."""
        return any(part.block is not None for part in self.parts)

    def blocks(self, dim: str) -> list[int]:
        """The sizes of the blocks of a dimension, from the outermost to the innermost."""
        return [part.block for part in self.parts if part.dim == dim and part.block is not None]

    def block(self, dim: str) -> int:
        """The elements of a dimension that its upper-case letter counts as one."""
        return prod(self.blocks(dim))

    def axis(self, dim: str) -> int:
        """Where the dimension is stored, or, if it has blocks, their number."""
        return self.parts.index(LayoutPart(dim))

    def shape(self, sizes: Mapping[str, int]) -> list[int]:
        """The shape of what is stored of a tensor with these sizes; the last block of a dimension may be padded."""
        shape: list[int] = []
        for dim, block in self.parts:
            whole = self.block(dim)
            size = sizes[dim]
            require(whole == 1 or is_known(size), f"blocks of {dim} need a size that is known")
            shape.append(block if block is not None else size if whole == 1 else -(-size // whole))
        return shape

    def extents(self, shape: Sequence[int]) -> dict[str, int]:
        """How many elements what is stored has of each dimension; raises VerifyException if it is not stored so."""
        require(len(shape) == self.rank, f'the layout "{self}" has {self.rank} dimensions, and here are {len(shape)}')
        sizes: dict[str, int] = {}
        for (dim, block), size in zip(self.parts, shape, strict=True):
            if block is None:
                whole = self.block(dim)
                sizes[dim] = size if whole == 1 else size * whole
            else:
                require(size == block, f'the layout "{self}" has blocks of {block} elements of {dim}, not of {size}')
        return sizes


@lru_cache(maxsize=1024)
def parse_layout(text: str) -> Layout:
    """Read a layout; raises VerifyException if `text` is none."""
    parts: list[LayoutPart] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        require(found is not None, f'"{text}" is no layout: letters for dimensions, numbers with letters for blocks')
        assert found is not None
        dim, block, blocked = found.groups()
        parts.append(LayoutPart(dim) if dim else LayoutPart(blocked.upper(), int(block)))
        at = found.end()
    whole = [part.dim for part in parts if part.block is None]
    require(len(set(whole)) == len(whole) > 0, f'the layout "{text}" names a dimension twice, or none')
    for number, part in enumerate(parts):
        if part.block is not None:
            require(
                LayoutPart(part.dim) in parts[:number],
                f'the layout "{text}" has blocks of {part.dim}, but no {part.dim} before them',
            )
    return Layout(tuple(parts))


@lru_cache(maxsize=1024)
def layout_of_rank(text: str, rank: int) -> Layout:
    """Read a layout of tensors of `rank`; `HW` in it means W or DHW if the rank asks for it."""
    layout = parse_layout(text)
    if layout.rank == rank or "HW" not in text or "D" in layout.dims:
        require(
            layout.rank == rank, f'the layout "{text}" has {layout.rank} dimensions, and the tensor has the rank {rank}'
        )
        return layout
    spatial = 2 + rank - layout.rank
    require(
        spatial in _SPATIAL,
        f'a tensor of rank {rank} in the layout "{text}" has {spatial} spatial dimensions, supported are 1 to 3',
    )
    return parse_layout(text.replace("HW", _SPATIAL[spatial]))


# images and filters


def image_layout(text: str, rank: int) -> Layout:
    """
    The layout of a batch of images (or lines, or volumes) of `rank`: N, C, the spatial dimensions in their order and
    next to each other, and blocks of the channels innermost. Raises VerifyException for another.
    """
    layout = layout_of_rank(text, rank)
    spatial = [dim for dim in layout.dims if dim in "DHW"]
    first = layout.axis(spatial[0]) if spatial else 0
    fits = (
        sorted(layout.dims) == sorted(("N", "C", *spatial))
        and "".join(spatial) in _SPATIAL.values()
        and layout.dims[0] == "N"
        and [part.dim for part in layout.parts[first : first + len(spatial)]] == spatial
        and [dim for dim, block in layout.parts if block is not None] in ([], ["C"])
        and (not layout.is_blocked or layout.parts[-1].block is not None)
    )
    require(fits, f'the layout of images is "NCHW", "NHWC", or one of these with blocks of channels, not "{text}"')
    return layout


def spatial_dims(text: str, rank: int) -> range:
    """Where the spatial dimensions of a batch of images are stored."""
    layout = image_layout(text, rank)
    positions = [at for at, part in enumerate(layout.parts) if part.dim in "DHW"]
    return range(positions[0], positions[-1] + 1)


def channel_axis(layout: str, rank: int) -> int:
    """The dimension of the channels of a tensor of `rank`; raises VerifyException for a layout other than two."""
    require(layout in (NCHW, NHWC), f'the layout is "NCHW" or "NHWC", not "{layout}"')
    return 1 if layout == NCHW else rank - 1


def spatial_sizes(x: Tensor, layout: str) -> tuple[int, ...]:
    """The spatial sizes of a batch of images (or lines, or volumes)."""
    shape = x.get_shape()
    return tuple(shape[dim] for dim in spatial_dims(layout, len(shape)))


def channels_of(x: Tensor, layout: str) -> int:
    """The channels that a batch of images has room for."""
    return image_layout(layout, x.get_num_dims()).extents(x.get_shape())["C"]


def with_channels(batch: int, channels: int, spatial: Sequence[int], layout: str) -> list[int]:
    """The shape of a batch of images."""
    rank = parse_layout(layout).rank - 2 + len(spatial)
    whole = image_layout(layout, rank)
    return whole.shape({"N": batch, "C": channels, **dict(zip(_SPATIAL[len(spatial)], spatial, strict=True))})


def default_filters(layout: str) -> str | None:
    """The layout of the filters of images in a layout where none is named; None where one has to be."""
    return _FILTERS.get(layout)


def filter_layout(text: str, rank: int) -> Layout:
    """The layout of filters of `rank`: O, I and the spatial dimensions. Raises VerifyException for another."""
    layout = layout_of_rank(text, rank)
    spatial = [dim for dim in layout.dims if dim in "DHW"]
    blocked = [dim for dim, block in layout.parts if block is not None]
    require(
        sorted(layout.dims) == sorted(("O", "I", *spatial))
        and "".join(spatial) in _SPATIAL.values()
        and set(blocked) <= {"O", "I"}
        and len(set(blocked)) == len(blocked),
        f'the layout of filters has O, I and the spatial dimensions, as "OIHW", "HWIO" or "HWOI16o16i", not "{text}"',
    )
    return layout


# from one layout to another


class Steps(NamedTuple):
    """How a tensor gets from one layout into another; each step takes what the one before it left."""

    grown: tuple[int, ...]
    """The shape with zeros after what is stored, for blocks that are padded."""
    split: tuple[int, ...]
    """Every dimension in runs that both layouts keep together."""
    perm: tuple[int, ...]
    """The order of those in the result."""
    joined: tuple[int, ...]
    """The shape of the result before what is beyond its sizes is cut off."""

    def is_view(self, source: Sequence[int], result: Sequence[int]) -> bool:
        """Whether no element of a tensor of the shape `source` moves on the way to one of the shape `result`."""
        kept = [dim for dim in self.perm if self.split[dim] != 1]
        return self.grown == tuple(source) and self.joined == tuple(result) and kept == sorted(kept)


def common_sizes(source: Layout, target: Layout, shape: Sequence[int], result: Sequence[int]) -> bool:
    """Whether there is a tensor that is stored in `shape` in the one layout and in `result` in the other."""
    held, wanted = source.extents(shape), target.extents(result)
    for dim, size in held.items():
        least = max(size - source.block(dim), wanted[dim] - target.block(dim)) + 1
        if least > min(size, wanted[dim]):
            return False
    return True


def steps_between(source: Layout, target: Layout, shape: Sequence[int], result: Sequence[int]) -> Steps:
    """
    The way of a tensor of `shape` in the layout `source` to one of the shape `result` in the layout `target`.

    Both have the same dimensions. Raises VerifyException unless of two blocks the larger is a multiple of the smaller.
    """
    held, wanted = source.extents(shape), target.extents(result)
    grown, joined = list(shape), list(result)
    runs: dict[str, dict[int, int]] = {}
    """Of each dimension: how many elements apart the steps of a run are -> its length."""
    for dim in source.dims:
        weights = sorted({*_weights(source, dim), *_weights(target, dim)}, reverse=True)
        require(
            all(large % small == 0 for large, small in pairwise(weights)),
            f'the blocks of {dim} of the layouts "{source}" and "{target}" are no multiples of one another',
        )
        extent = -(-max(held[dim], wanted[dim]) // weights[0]) * weights[0]
        grown[source.axis(dim)] = extent // source.block(dim)
        joined[target.axis(dim)] = extent // target.block(dim)
        ends = [extent, *weights[:-1]]
        runs[dim] = {weight: end // weight for weight, end in zip(weights, ends, strict=True)}
    order = _runs(source, runs)
    split = tuple(runs[dim][weight] for dim, weight in order)
    perm = tuple(order.index(run) for run in _runs(target, runs))
    return Steps(tuple(grown), split, perm, tuple(joined))


def _weights(layout: Layout, dim: str) -> list[int]:
    """How many elements a step along each part of a dimension passes over."""
    blocks = layout.blocks(dim)
    return [prod(blocks[number:]) for number in range(len(blocks) + 1)]


def _runs(layout: Layout, runs: Mapping[str, Mapping[int, int]]) -> list[tuple[str, int]]:
    """The runs of all dimensions in the order in which a layout stores them."""
    order: list[tuple[str, int]] = []
    met = dict.fromkeys(layout.dims, 0)
    for dim, _ in layout.parts:
        weights = _weights(layout, dim)
        number = met[dim]
        met[dim] += 1
        above = weights[number - 1] if number else None
        order += [(dim, each) for each in runs[dim] if each >= weights[number] and (above is None or each < above)]
    return order


@irdl_op_definition
class LayoutTransformOp(GraphOp):
    """
    `x`, stored in the layout `source`, in the layout `target` of the same dimensions.

    Where the last block of a dimension is padded, the padding is zeros in the result. The way back
    from blocks does not know where the dimension ended: the type of the result says so, and must be one of those
    that are stored in the shape of `x`.
    """

    name = "graph.layout_transform"

    x = operand_def(TENSOR)
    source = prop_def(StringAttr)
    target = prop_def(StringAttr)

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    assembly_format = "$x `from` $source `to` $target attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, *, source: str, target: str, result_type: Tensor | None = None):
        inferred = result_type or self.infer(tensor_of(x), source, target)
        super().__init__(x, source=source, target=target, result_type=inferred)

    @classmethod
    def infer(cls, x: Tensor, source: str, target: str, stated: Tensor | None = None) -> Tensor:
        """`x` in the layout `target`: of the sizes `stated` where they fit, else of all that `x` has room for."""
        shape = x.get_shape()
        held = layout_of_rank(source, len(shape))
        wanted = parse_layout(target)
        if "HW" in source and "HW" in target and "D" not in wanted.dims:
            spatial = "".join(dim for dim in held.dims if dim in "DHW")
            wanted = parse_layout(target.replace("HW", spatial))
        require(
            sorted(held.dims) == sorted(wanted.dims),
            f'the layouts "{held}" and "{wanted}" do not have the same dimensions',
        )
        inferred = wanted.shape(held.extents(shape))
        if stated is not None and is_static(x) and is_static(stated) and stated.get_num_dims() == wanted.rank:
            sizes = stated.get_shape()
            blocks = [(size, part.block) for size, part in zip(sizes, wanted.parts, strict=True)]
            if all(block in (None, size) for size, block in blocks) and common_sizes(held, wanted, shape, sizes):
                inferred = list(sizes)
        if is_static(x):
            steps_between(held, wanted, shape, inferred)
        return tensor_type(x.element_type, inferred)

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.source.data, self.target.data, self.result_type)

    @property
    def is_view(self) -> bool:
        """Whether no element moves and none is added or left out: it only gives the elements other indices."""
        shape, result = tensor_of(self.x).get_shape(), self.result_type.get_shape()
        source, target = layout_of_rank(self.source.data, len(shape)), layout_of_rank(self.target.data, len(result))
        return steps_between(source, target, shape, result).is_view(shape, result)
