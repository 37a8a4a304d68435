# SPDX-License-Identifier: Apache-2.0
"""Types and shapes of tensors, and how loops index them; nothing here builds IR."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from xdsl.dialects.builtin import IntegerType, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr
from xdsl.utils.hints import isa

from penstock.dialects.graph.base import is_unsigned, tensor_of

Dims: TypeAlias = Sequence[AffineExpr]
"""How an operand of a generic is indexed: one expression over the loops for each of its dims."""


class Split(NamedTuple):
    """A view of a tensor in which dimension `dim` is two: groups, and size / groups."""

    dim: int
    groups: int

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of the view of a tensor of shape `whole`."""
        size = whole[self.dim]
        return (*whole[: self.dim], self.groups, size // self.groups, *whole[self.dim + 1 :])


@lru_cache(maxsize=4096)
def tensor_type(shape: tuple[int, ...], element: Attribute) -> TensorType[Attribute]:
    """The tensor type of a shape, without building it anew each time."""
    return TensorType(element, shape)


def signless(element: Attribute) -> Attribute:
    """The element type below graph level, where signedness is in the ops."""
    if isa(element, IntegerType) and is_unsigned(element):
        return IntegerType(element.width.data)
    return element


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a tensor."""
    return tensor_of(value).get_shape()


def element_of(value: SSAValue) -> Attribute:
    """The element type of a tensor."""
    return tensor_of(value).element_type


def loops(count: int, start: int = 0) -> list[AffineExpr]:
    """`count` loops as expressions, from loop `start` on."""
    return [AffineExpr.dimension(start + index) for index in range(count)]


def scaled(loop: AffineExpr, factor: int) -> AffineExpr:
    """`loop * factor`, without a multiplication by one."""
    return loop if factor == 1 else loop * factor


def windowed(outer: Dims, inner: Dims, strides: Sequence[int], dilations: Sequence[int]) -> list[AffineExpr]:
    """Where windows read: `outer * stride + inner * dilation` in each dimension."""
    return [
        scaled(o, stride) + scaled(i, dilation)
        for o, i, stride, dilation in zip(outer, inner, strides, dilations, strict=True)
    ]


def broadcast_dims(
    operand: Sequence[int], axes: Sequence[int], result: Sequence[int], split: Split | None
) -> tuple[Split | None, list[AffineExpr]]:
    """
    How an operand of shape `operand` is split, and how the loops over a result of shape `result`, split by
    `split`, index it. `axes` are the dims of the result that its dims lie along; a size of 1 repeats.
    """
    own: Split | None = None
    dims: list[AffineExpr] = []
    for dim, (size, axis) in enumerate(zip(operand, axes, strict=True)):
        loop = axis if split is None or axis <= split.dim else axis + 1
        if size != result[axis]:
            dims.append(AffineExpr.constant(0))
        elif split is not None and axis == split.dim:
            own = Split(dim, split.groups)
            dims += loops(2, loop)
        else:
            dims += loops(1, loop)
    return own, dims
