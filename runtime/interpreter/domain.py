# SPDX-License-Identifier: Apache-2.0
"""
Iteration domains: the index maps of a structured op as strided views of its operands.

A map result that is linear in the dims is a stride, so an operand seen over the whole domain is a view of it that
copies nothing, windows that overlap included. Every view is checked against the operand's bounds first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from xdsl.dialects.builtin import ShapedType
from xdsl.ir.affine import AffineMap

from penstock.dialects.affine_maps import linear_form
from penstock.dialects.weights import Array

Box = tuple[slice, ...]
"""A strided box of an array, one slice a dim."""


@dataclass(frozen=True)
class LinearForm:
    """A map result: `constant` plus the sum of `coefficients[d]` times dim d."""

    constant: int
    coefficients: tuple[int, ...]

    def range(self, extents: Sequence[int]) -> tuple[int, int]:
        """Its least and its largest value over a domain that is not empty."""
        ends = [coefficient * (extent - 1) for coefficient, extent in zip(self.coefficients, extents, strict=True)]
        return (
            self.constant + sum(end for end in ends if end < 0),
            self.constant + sum(end for end in ends if end > 0),
        )

    def dims(self, extents: Sequence[int]) -> list[int]:
        """The dims it depends on, over such a domain."""
        pairs = enumerate(zip(self.coefficients, extents, strict=True))
        return [dim for dim, (coefficient, extent) in pairs if coefficient != 0 and extent > 1]


@dataclass(frozen=True)
class _Recipe:
    """A view by plain slicing, ten times as quick as one by strides: slice, transpose, insert dims of length 1."""

    index: tuple[Any, ...]
    transpose: tuple[int, ...] | None
    spread: tuple[Any, ...] | None

    def view(self, array: Array) -> Array:
        view = array[self.index]
        if self.transpose is not None:
            view = view.transpose(self.transpose)
        return view if self.spread is None else view[self.spread]


@dataclass(frozen=True)
class OperandAccess:
    """How one operand is indexed."""

    index_map: AffineMap
    forms: tuple[LinearForm, ...] | None
    """The map's results where all are linear."""
    _recipes: dict[tuple[tuple[int, ...], tuple[int, ...]], _Recipe | None] = field(
        default_factory=dict[tuple[tuple[int, ...], tuple[int, ...]], _Recipe | None], compare=False
    )

    @staticmethod
    def of(index_map: AffineMap) -> OperandAccess:
        forms = [linear_form(expr, index_map.num_dims) for expr in index_map.results]
        linear = tuple(LinearForm(*form) for form in forms if form is not None)
        return OperandAccess(index_map, linear if len(linear) == len(forms) else None)

    def dims(self, extents: Sequence[int]) -> set[int]:
        """The dims that the operand's indices depend on."""
        if self.forms is None:
            return {dim for dim in self.index_map.used_dims() if extents[dim] > 1}
        return {dim for form in self.forms for dim in form.dims(extents)}

    def ranges(self, extents: Sequence[int]) -> list[tuple[int, int]]:
        """The least and the largest index in each dim of the operand, over a domain that is not empty."""
        if self.forms is not None:
            return [form.range(extents) for form in self.forms]
        indices = self.indices(extents)
        return [(int(index.min()), int(index.max())) for index in indices]

    def indices(self, extents: Sequence[int]) -> list[Array]:
        """For each dim of the operand its index at every point, as arrays that broadcast to the domain."""
        mesh: list[Any] = [axis_indices(dim, extents) for dim in range(len(extents))]
        return [np.asarray(expr.eval(mesh, [])) for expr in self.index_map.results]

    def strides(self, strides: Sequence[int], extents: Sequence[int]) -> list[int]:
        """The stride of each dim of the domain in the operand; only for linear accesses."""
        assert self.forms is not None
        return [
            sum(form.coefficients[dim] * stride for form, stride in zip(self.forms, strides, strict=True))
            for dim in range(len(extents))
        ]

    def recipe(self, order: tuple[int, ...], extents: tuple[int, ...]) -> _Recipe | None:
        """The view over the dims `order` by slicing, where each result steps along one dim of its own."""
        key = (order, extents)
        if key not in self._recipes:
            self._recipes[key] = _find_recipe(self.forms, order, extents) if self.forms is not None else None
        return self._recipes[key]

    def box(self, extents: Sequence[int]) -> Box | None:
        """The elements that are touched, where they are a strided box and one dim each of it; else None."""
        if self.forms is None:
            return None
        used: set[int] = set()
        slices: list[slice] = []
        for form in self.forms:
            dims = form.dims(extents)
            if used.intersection(dims):
                return None
            used.update(dims)
            touched = _touched(form, dims, extents)
            if touched is None:
                return None
            slices.append(touched)
        return tuple(slices)


def _touched(form: LinearForm, dims: Sequence[int], extents: Sequence[int]) -> slice | None:
    """The values of a linear form as a slice, None where they are no arithmetic progression."""
    low, high = form.range(extents)
    if len(dims) == 0:
        return slice(low, low + 1)
    if len(dims) == 1:
        return slice(low, high + 1, abs(form.coefficients[dims[0]]))
    offsets = np.zeros(1, np.int64)
    for dim in dims:
        offsets = np.unique(offsets[:, None] + np.arange(extents[dim]) * form.coefficients[dim])
    steps = np.diff(offsets)
    return slice(low, high + 1, int(steps[0])) if (steps == steps[0]).all() else None


def axis_indices(dim: int, extents: Sequence[int]) -> Array:
    """The index of a dim at every point of the domain, as an array that broadcasts."""
    shape = [1] * len(extents)
    shape[dim] = extents[dim]
    return np.arange(extents[dim], dtype=np.int64).reshape(shape)


def view_over(array: Array, access: OperandAccess, order: Sequence[int], extents: Sequence[int]) -> Array:
    """
    `array` seen over the dims `order` of the domain, which must be all that it depends on.

    A dim that it does not depend on has length 1. The result shares memory with `array`, unless its map has
    quotients or remainders. Bounds must have been checked.
    """
    if (recipe := access.recipe(tuple(order), tuple(extents))) is not None:
        return recipe.view(array)
    used = access.dims(extents)
    if access.forms is None:
        indices = np.broadcast_arrays(*access.indices(extents))
        gathered = array[tuple(indices)]
        fixed = tuple(slice(None) if dim in used else slice(0, 1) for dim in range(len(extents)))
        return (
            gathered[fixed]
            .transpose(*order, *(d for d in range(len(extents)) if d not in order))
            .reshape([extents[dim] if dim in used else 1 for dim in order])
        )
    base = array
    if any(form.constant for form in access.forms):
        base = array[tuple(slice(form.constant, None) for form in access.forms)]
    strides = access.strides(array.strides, extents)
    return as_strided(
        base,
        [extents[dim] if dim in used else 1 for dim in order],
        [strides[dim] if dim in used else 0 for dim in order],
    )


def _find_recipe(forms: Sequence[LinearForm], order: tuple[int, ...], extents: tuple[int, ...]) -> _Recipe | None:
    index: list[Any] = []
    source_of: list[int] = []
    for form in forms:
        dims = form.dims(extents)
        if len(dims) > 1 or (dims and (form.coefficients[dims[0]] < 0 or dims[0] in source_of)):
            return None
        if not dims:
            index.append(form.constant)
            continue
        step = form.coefficients[dims[0]]
        index.append(slice(form.constant, form.constant + step * (extents[dims[0]] - 1) + 1, step))
        source_of.append(dims[0])
    present = [dim for dim in order if dim in source_of]
    transpose = None if present == source_of else tuple(source_of.index(dim) for dim in present)
    spread = tuple(slice(None) if dim in source_of else None for dim in order) if present != list(order) else None
    # the ellipsis keeps a single element from being copied out
    return _Recipe((*index, ...), transpose, spread)


def self_overlaps(shape: Sequence[int], access: OperandAccess, dims: Sequence[int], extents: Sequence[int]) -> bool:
    """
    Whether two points that differ only in `dims` may reach the same element of an array of that shape.

    True where that is unclear.
    """
    if access.forms is None:
        return bool(dims)
    reach = 0
    strides = access.strides(cast("tuple[int, ...]", ShapedType.strides_for_shape(shape)), extents)
    for stride, extent in sorted((abs(strides[dim]), extents[dim]) for dim in dims if extents[dim] > 1):
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def points(dims: Sequence[int], extents: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The points of some dims of a domain, the last dim running fastest."""
    return product(*(range(extents[dim]) for dim in dims))
