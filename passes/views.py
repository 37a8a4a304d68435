# SPDX-License-Identifier: Apache-2.0
"""Views of memrefs: slices, other shapes, and the window of a pooling, as the ops that make them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.builder import Builder
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import DenseArrayBase, IndexType, MemRefType, NoneAttr, StridedLayoutAttr, i64
from xdsl.ir import Attribute, SSAValue

from penstock.dialects.mem import memref_of, static_strides
from penstock.passes.analysis.strides import (
    collapsed_strides,
    contiguous_strides,
    expanded_strides,
    reassociation,
    reassociation_attribute,
)


def slice_view(
    builder: Builder,
    source: SSAValue,
    offsets: Sequence[int | SSAValue],
    sizes: Sequence[int],
    steps: Sequence[int],
    kept: Sequence[int],
) -> SSAValue:
    """The slice of a memref, without the dims that are not `kept`; the memref itself if that is all of it."""
    type = memref_of(source)
    is_whole = tuple(sizes) == type.get_shape() and len(kept) == len(sizes)
    if is_whole and all(isinstance(at, int) and at == 0 for at in offsets):
        return source
    full = memref.SubviewOp.infer_result_type(type, offsets, sizes, steps)
    layout = full.layout
    assert isinstance(layout, StridedLayoutAttr)
    reduced = MemRefType(
        full.element_type,
        [sizes[dim] for dim in kept],
        StridedLayoutAttr([layout.strides.data[dim] for dim in kept], layout.offset),
        full.memory_space,
    )
    return builder.insert(memref.SubviewOp.get(source, offsets, sizes, steps, reduced)).result


def reshape_view(builder: Builder, source: SSAValue, shape: Sequence[int]) -> SSAValue:
    """
    The elements of a memref in another shape, through `memref.collapse_shape` and `memref.expand_shape`.

    Raises ValueError where its strides cannot express that.
    """
    type = memref_of(source)
    if type.get_shape() == tuple(shape):
        return source
    strides = static_strides(type)
    groups = reassociation(type.get_shape(), shape)
    if loose := _loose_units(type.get_shape(), strides, [ours for ours, _ in groups]):
        zeros: list[int | SSAValue] = [0] * len(strides)
        kept = [dim for dim in range(len(strides)) if dim not in loose]
        squeezed = slice_view(builder, source, zeros, type.get_shape(), [1] * len(strides), kept)
        return reshape_view(builder, squeezed, shape)
    collapsed = collapsed_strides(type.get_shape(), strides, [ours for ours, _ in groups])
    if collapsed is None:
        raise ValueError(f"{type} has no view of the shape {list(shape)}")
    if len(collapsed) != len(strides):
        middle = [prod(type.get_shape()[dim] for dim in ours) for ours, _ in groups]
        collapse = memref.CollapseShapeOp(
            operands=[source],
            result_types=[_retyped(type, middle, collapsed)],
            properties={"reassociation": reassociation_attribute([ours for ours, _ in groups])},
        )
        source = builder.insert(collapse).result
    if len(collapsed) != len(shape):
        expanded = expanded_strides(collapsed, shape, [theirs for _, theirs in groups])
        expand = memref.ExpandShapeOp(
            operands=[source, []],
            result_types=[_retyped(type, shape, expanded)],
            properties={
                "reassociation": reassociation_attribute([theirs for _, theirs in groups]),
                "static_output_shape": DenseArrayBase.from_list(i64, shape),
            },
        )
        source = builder.insert(expand).result
    return source


def _loose_units(shape: Sequence[int], strides: Sequence[int], groups: Sequence[Sequence[int]]) -> list[int]:
    """
    The dims of size 1 that are in a group before others and do not step over them: MLIR does not collapse those.

    Their strides mean nothing, so that a slice may do without them.
    """
    loose: list[int] = []
    for group in groups:
        inner = [dim for dim in group if shape[dim] != 1]
        reach = strides[inner[-1]] if inner else 1
        for dim in reversed(group[: group.index(inner[-1]) + 1] if inner else []):
            if shape[dim] == 1 and strides[dim] != reach:
                loose.append(dim)
            elif shape[dim] != 1:
                reach = strides[dim] * shape[dim]
    return loose


def _retyped(type: MemRefType[Attribute], shape: Sequence[int], strides: Sequence[int]) -> MemRefType[Attribute]:
    layout = type.layout if isinstance(type.layout, NoneAttr) else StridedLayoutAttr(strides, type.get_offset())
    return MemRefType(type.element_type, shape, layout, type.memory_space)


def plain_view(builder: Builder, source: SSAValue) -> SSAValue:
    """
    The same memref with the strides of its dims of size 1 as they would be if it were contiguous from there on.

    They do not matter, but they are part of the type: without them a slice that is contiguous looks so.
    """
    type = memref_of(source)
    shape, strides = type.get_shape(), static_strides(type)
    if 0 in shape:
        # No element has a place, so no stride says anything.
        return source
    squeezed = [size for size in shape if size != 1]
    moving = [stride for size, stride in zip(shape, strides, strict=True) if size != 1]
    groups = [theirs for _, theirs in reassociation(squeezed, shape)]
    plain = expanded_strides(moving, shape, groups) if groups else contiguous_strides(shape)
    if plain == strides:
        return source
    return reshape_view(builder, reshape_view(builder, source, squeezed), shape)


def shape_only_view(builder: Builder, source: SSAValue, shape: Sequence[int]) -> SSAValue:
    """
    A memref of `shape` with strides 0 on the first element of `source`: the window of a pooling, whose elements
    are never read, so that it needs no storage of its own.

    The strides are an operand, since MLIR has no type of strides that are known to be 0.
    """
    type = memref_of(source)
    layout = StridedLayoutAttr([None] * len(shape))
    view = MemRefType(type.element_type, shape, layout, type.memory_space)
    zero = builder.insert(arith.ConstantOp.from_int_and_width(0, IndexType())).result
    strides: list[SSAValue | int] = [zero] * len(shape)
    return builder.insert(memref.ReinterpretCastOp.from_dynamic(source, [0], list(shape), strides, view)).result
