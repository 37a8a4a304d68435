# SPDX-License-Identifier: Apache-2.0
"""Strides of static shapes: contiguous ones, and those of a memref whose dims are collapsed or expanded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, i64


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a static shape in row-major order."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def reassociation(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """
    The finest groups of neighbouring dims of two shapes that hold equal numbers of elements, in order.

    Collapsing each group of the source and expanding it into the group of the target is the reshape. Without
    groups, both shapes hold one element and one of them has no dims.
    """
    if not source or not target:
        return []
    if 0 in (*source, *target):
        return [(list(range(len(source))), list(range(len(target))))]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        ours, theirs = [i], [j]
        held, wanted = source[i], target[j]
        i, j = i + 1, j + 1
        while held != wanted:
            if held < wanted:
                held *= source[i]
                ours.append(i)
                i += 1
            else:
                wanted *= target[j]
                theirs.append(j)
                j += 1
        groups.append((ours, theirs))
    # only dims of size 1 can be left over
    groups[-1][0].extend(range(i, len(source)))
    groups[-1][1].extend(range(j, len(target)))
    return groups


def reassociation_attribute(groups: Iterable[Sequence[int]]) -> ArrayAttr[ArrayAttr[IntegerAttr]]:
    """Groups of dims as the attribute of a collapse or an expansion."""
    return ArrayAttr([ArrayAttr([IntegerAttr(dim, i64) for dim in group]) for group in groups])


def collapsed_strides(
    shape: Sequence[int], strides: Sequence[int], groups: Sequence[Sequence[int]]
) -> tuple[int, ...] | None:
    """The stride of each group of dims taken as one; None where a group is not laid out as one dim."""
    collapsed: list[int] = []
    for group in groups:
        moving = [dim for dim in group if shape[dim] != 1] or [group[0]]
        for dim, inner in pairwise(moving):
            if strides[dim] != strides[inner] * shape[inner]:
                return None
        collapsed.append(strides[moving[-1]])
    return tuple(collapsed)


def expanded_strides(strides: Sequence[int], shape: Sequence[int], groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The strides of `shape` where the dims of each group lie within one dim of the given stride."""
    expanded = [0] * len(shape)
    for stride, group in zip(strides, groups, strict=True):
        for dim in reversed(group):
            expanded[dim] = stride
            stride *= shape[dim]
    return tuple(expanded)


def reshaped_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of a view of `target` shape on what `shape` and `strides` describe; None if there is no such."""
    groups = reassociation(shape, target)
    if not groups:
        return contiguous_strides(target)
    collapsed = collapsed_strides(shape, strides, [ours for ours, _ in groups])
    if collapsed is None:
        return None
    return expanded_strides(collapsed, target, [theirs for _, theirs in groups])


def kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The dims of a slice of `sizes` that a value of `shape` has; those that it lacks are of size 1."""
    kept: list[int] = []
    for dim, size in enumerate(sizes):
        if len(kept) < len(shape) and size == shape[len(kept)]:
            kept.append(dim)
    return kept
