# SPDX-License-Identifier: Apache-2.0
"""Names, shapes and element types of what a program takes and yields, and arrays checked against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.element_bits import DType

Array = NDArray[Any]

_REFUSALS = (BufferError, RuntimeError, TypeError, ValueError)
"""What NumPy and the libraries that arrays come from raise where they do not share an array."""

UNBOUND = -1
"""The size of a dimension that is not bound."""


def as_array(what: str, value: Any) -> Array:
    """
    `value`, called `what` in messages, as an array that shares its memory where it has any: an array, what has DLPack
    (https://dmlc.github.io/dlpack), `__array_interface__` or the buffer protocol. Others are copied.

    Raises UserError for what is not in the memory of the host, or no array.
    """
    if isinstance(value, np.ndarray):
        return cast(Array, value)
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except _REFUSALS:
            pass  # of an element type that only the other protocols have
    try:
        return np.asarray(value)
    except _REFUSALS as error:
        raise UserError(f"{what} is not read as an array: {error}") from None


def writable_array(what: str, value: Any) -> Array:
    """
    `value`, called `what` in messages, as an array that shares its memory, to be written to.

    Raises UserError where there is no such array, or it is read-only.
    """
    array = as_array(what, value)
    if array is not value and not array.flags.writeable and hasattr(value, "__array__"):
        # Before its version 1 DLPack did not say whether an array may be written to.
        other = np.asarray(value)
        array = other if other.ctypes.data == array.ctypes.data else array
    if array is not value and array.flags.owndata:
        raise UserError(f"{what} is no array whose memory is shared, but a {type(value).__name__}")
    if not array.flags.writeable:
        raise UserError(f"{what} is read-only")
    return array


Extent: TypeAlias = "tuple[tuple[int, tuple[str, ...]], ...]"
"""A size as a sum of products: of a factor, and of the sizes of these names."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: its name, shape and element type; a size that is not bound is -1."""

    name: str
    """As the model calls it."""
    shape: tuple[int, ...]
    """Its sizes; -1 for one that is not bound."""
    dtype: DType
    """The type of its elements."""
    dims: tuple[str, ...] = ()
    """The names of the dimensions that are not bound, "" for all others; empty if all are."""
    extents: tuple[Extent, ...] = ()
    """What the sizes of each run are; empty if all are bound, or an engine is made for each."""
    count: str = ""
    """Of an output, the name of the one that says how many of its lines a run gives; "" where it gives all."""

    def at(self, sizes: Mapping[str, int]) -> TensorSpec:
        """As it is in a run with these sizes."""
        if not self.extents:
            return self
        shape = tuple(
            sum(factor * prod(sizes[name] for name in names) for factor, names in extent) for extent in self.extents
        )
        return TensorSpec(self.name, shape, self.dtype, count=self.count)

    @property
    def is_static(self) -> bool:
        """Whether all sizes are known."""
        return UNBOUND not in self.shape

    @property
    def named_shape(self) -> str:
        """The shape with the names of dimensions, `Nx3`; `?` where one has none."""
        names = [_extent_words(extent) for extent in self.extents] or self.dims or [""] * len(self.shape)
        words = [name or "?" if size == UNBOUND else str(size) for size, name in zip(self.shape, names, strict=True)]
        return "x".join(words) or "scalar"

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of `shape` fits, as far as sizes are bound."""
        return shape == self.shape or (
            len(shape) == len(self.shape)
            and all(wanted in (size, UNBOUND) for size, wanted in zip(shape, self.shape, strict=True))
        )

    def checked(self, value: Any) -> Array:
        """`value` as an array; raises UserError unless it has this element type and a shape that fits."""
        if type(value) is np.ndarray and value.dtype == self.dtype and value.shape == self.shape:
            return value
        # Lists and Python numbers have no element type of their own; arrays have, and it must be the right one.
        if isinstance(value, (list, tuple, int, float, bool)):
            array = np.asarray(value, dtype=self.dtype)
        else:
            array = as_array(f'the input "{self.name}"', value)
        if array.dtype != self.dtype:
            raise UserError(
                f'the input "{self.name}" has elements of type {array.dtype}, and the program takes {self.dtype}',
                notes=[f"convert it: array.astype({self.dtype.name!r})"],
            )
        if not self.accepts(array.shape):
            wanted = self.shape if self.is_static else self.named_shape
            raise UserError(
                f'the input "{self.name}" has the shape {array.shape}, and the program takes {wanted}',
                notes=["shapes are fixed at compilation; a symbolic dimension is set by --dim NAME=SIZE"]
                if array.ndim == len(self.shape)
                else [],
            )
        return array

    def __str__(self) -> str:
        return f'"{self.name}": {self.named_shape} {self.dtype}'


def _extent_words(extent: Extent) -> str:
    return "+".join(
        "*".join([*([str(factor)] if factor != 1 or not names else []), *names]) for factor, names in extent
    )


@dataclass
class BoundDims:
    """The sizes that symbolic dimensions have been given so far, and by what."""

    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """By the name of the dimension."""
    sources: dict[str, str] = field(default_factory=dict[str, str])
    """What said so."""

    @classmethod
    def by_hand(cls, sizes: Mapping[str, int], by: str = "--dim") -> BoundDims:
        """Sizes that were named; `by` says how."""
        return cls(dict(sizes), dict.fromkeys(sizes, by))

    def take(self, owner: str, names: Sequence[str], shape: Sequence[int]) -> None:
        """
        Bind the dimensions `names` ("" for static ones) to those of an array for the input `owner`.

        Raises UserError, with both sources, if one of them is bound to another size, and for a size of 0.
        """
        for axis, (name, size) in enumerate(zip(names, shape, strict=True)):
            if not name:
                continue
            stated = "x".join("?" if each else str(n) for each, n in zip(names, shape, strict=True))
            where = f"dimension {axis} of {stated}"
            if size < 1:
                raise UserError(f"{name} must be at least 1, but input {owner} has {size} there ({where})")
            before = self.sizes.setdefault(name, size)
            by = self.sources.setdefault(name, f"input {owner} ({where})")
            if before != size:
                raise UserError(f"{name} is {before} by {by}, but input {owner} has {size} there ({where})")


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a program, in order, and the names of the weights that @main takes."""

    inputs: tuple[TensorSpec, ...]
    """What a call takes."""
    outputs: tuple[TensorSpec, ...]
    """What it gives."""
    weights: tuple[str, ...] = ()
    """Those that @main takes behind its inputs; an engine holds them."""
    bounds: tuple[tuple[str, int], ...] = ()
    """The sizes that each run has its own of, with the largest that they may be."""

    def sizes_of(self, inputs: Sequence[Array]) -> dict[str, int]:
        """
        The sizes of a run with these inputs, in order.

        Raises UserError where two sizes of one name differ, and for one that is past its bound.
        """
        if not self.bounds:
            return {}
        found = self.dims_of(inputs, {})
        for name, most in self.bounds:
            if found.sizes[name] > most:
                raise UserError(
                    f"{name} is at most {most}, but is {found.sizes[name]} by {found.sources[name]}",
                    notes=[f"compile for more: --dim '{name}<={found.sizes[name]}'"],
                )
        return {name: found.sizes[name] for name, _ in self.bounds}

    def largest(self) -> Signature:
        """As it is where all sizes are at their bounds."""
        bounds = dict(self.bounds)
        inputs, outputs = (tuple(spec.at(bounds) for spec in specs) for specs in (self.inputs, self.outputs))
        return Signature(inputs, outputs, self.weights)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the dimensions of the inputs that are not bound, in order."""
        return tuple(dict.fromkeys(name for spec in self.inputs for name in spec.dims if name))

    def dims_of(self, arrays: Sequence[Any], named: Mapping[str, Any], bound: BoundDims | None = None) -> BoundDims:
        """
        What inputs, given in order and by name, say about dimensions that are not bound; to what is `bound` already.

        What does not fit in number, name or rank is left to `bind`. Raises UserError where two sizes of one
        dimension differ.
        """
        found = bound or BoundDims()
        given = dict(zip((spec.name for spec in self.inputs), arrays, strict=False)) | dict(named)
        for spec in self.inputs:
            if spec.dims and spec.name in given and len(shape := np.shape(given[spec.name])) == len(spec.dims):
                found.take(spec.name, spec.dims, shape)
        return found

    def bind(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
        """
        The inputs in order, from arrays given in order and by name.

        Raises UserError for a missing, unknown or doubled input and for a wrong shape or element type.
        """
        if len(arrays) == len(self.inputs) and not named:
            return [*map(TensorSpec.checked, self.inputs, arrays)]
        if len(arrays) > len(self.inputs):
            raise UserError(
                f"the program takes {len(self.inputs)} inputs, and {len(arrays)} were given",
                notes=[self.describe()],
            )
        given = dict(zip((spec.name for spec in self.inputs), arrays, strict=False))
        for name, array in named.items():
            if all(name != spec.name for spec in self.inputs):
                near = did_you_mean(name, [spec.name for spec in self.inputs])
                raise UserError(f'there is no input "{name}"', notes=[near or self.describe()])
            if name in given:
                raise UserError(f'the input "{name}" is given twice')
            given[name] = array
        if missing := [spec for spec in self.inputs if spec.name not in given]:
            raise UserError("an input is missing: " + ", ".join(map(str, missing)), notes=[self.describe()])
        return [spec.checked(given[spec.name]) for spec in self.inputs]

    def describe(self) -> str:
        """The inputs in words."""
        return "the inputs are " + (", ".join(map(str, self.inputs)) or "none")


def lines_of_run(signature: Signature, outputs: Sequence[Array]) -> list[Array]:
    """Outputs without the lines that a run did not give, where another output counts those that it gave."""
    numbers = {spec.name: output for spec, output in zip(signature.outputs, outputs, strict=True)}
    counts = [numbers[spec.count] if spec.count else None for spec in signature.outputs]
    return [each if count is None else each[: int(count)] for each, count in zip(outputs, counts, strict=True)]
