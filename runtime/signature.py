"""What a program takes and yields: names, shapes and element types of @main, and arrays checked against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    MemRefType,
    ModuleOp,
    TensorType,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, did_you_mean, location_of
from penstock.dialects.element_types import DType, numpy_dtype
from penstock.dialects.functions import NAME, OUTPUT, WEIGHT, attribute_text
from penstock.dialects.graph.dims import dims_of

Array = NDArray[Any]

UNBOUND = -1
"""The size of a dimension that is not bound."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: its name, shape and element type; a size that is not bound is -1."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    dims: tuple[str, ...] = ()
    """The names of the dimensions that are not bound, "" for all others; empty if all are."""

    @property
    def is_static(self) -> bool:
        """Whether all sizes are known."""
        return UNBOUND not in self.shape

    @property
    def named_shape(self) -> str:
        """The shape with the names of dimensions, `Nx3`; `?` where one has none."""
        names = self.dims or [""] * len(self.shape)
        words = [name or "?" if size == UNBOUND else str(size) for size, name in zip(self.shape, names, strict=True)]
        return "x".join(words) or "scalar"

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of `shape` fits, as far as sizes are bound."""
        return len(shape) == len(self.shape) and all(
            wanted in (size, UNBOUND) for size, wanted in zip(shape, self.shape, strict=True)
        )

    def checked(self, value: Any) -> Array:
        """`value` as an array; raises UserError unless it has this element type and a shape that fits."""
        # Lists and Python numbers have no element type of their own; arrays have, and it must be the right one.
        if isinstance(value, (list, tuple, int, float, bool)):
            array = np.asarray(value, dtype=self.dtype)
        else:
            array = np.asarray(value)
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


@dataclass
class BoundDims:
    """The sizes that symbolic dimensions have been given so far, and by what."""

    sizes: dict[str, int] = field(default_factory=dict[str, int])
    _sources: dict[str, str] = field(default_factory=dict[str, str])

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
            by = self._sources.setdefault(name, f"input {owner} ({where})")
            if before != size:
                raise UserError(f"{name} is {before} by {by}, but input {owner} has {size} there ({where})")


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a program, in order, and the names of the weights that @main takes."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[str, ...] = ()

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


def main_function(module: ModuleOp) -> FuncOp:
    """The function @main; raises UserError if the module has none."""
    others: list[FuncOp] = []
    for op in module.body.block.ops:
        if isinstance(op, FuncOp):
            if op.sym_name.data == "main":
                return op
            others.append(op)
    known = f"it has {', '.join('@' + op.sym_name.data for op in others)}" if others else "it has no functions"
    place = location_of(others[0]) if others else None
    raise UserError("the module has no function @main, so it cannot be run", loc=place, notes=[known])


def signature_of(module: ModuleOp) -> Signature:
    """The signature of @main at any level: weights and, from loop level on, outputs are arguments of it."""
    function = main_function(module)
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    weights: list[str] = []
    dims, result_dims = _dims(function)
    for index, type in enumerate(function.function_type.inputs):
        if (weight := attribute_text(function, index, WEIGHT)) is not None:
            weights.append(weight)
        elif (output := attribute_text(function, index, OUTPUT)) is not None:
            outputs.append(_spec(output, type))
        else:
            inputs.append(_spec(attribute_text(function, index, NAME) or f"input_{index}", type, dims[index]))
    for index, type in enumerate(function.function_type.outputs):
        name = attribute_text(function, index, NAME, results=True)
        outputs.append(_spec(name or f"output_{index}", type, result_dims[index]))
    return Signature(tuple(inputs), tuple(outputs), tuple(weights))


def _dims(function: FuncOp) -> tuple[list[list[str]], list[list[str]]]:
    try:
        return dims_of(function), dims_of(function, results=True)
    except VerifyException as error:
        raise UserError(f"the names of dimensions do not fit: {error}", loc=location_of(function)) from None


def _spec(name: str, type: Attribute, dims: Sequence[str] = ()) -> TensorSpec:
    if isa(type, TensorType) or isa(type, MemRefType):
        shape = tuple(UNBOUND if size == DYNAMIC_INDEX else size for size in type.get_shape())
        return TensorSpec(name, shape, numpy_dtype(type.element_type), tuple(dims) if any(dims) else ())
    return TensorSpec(name, (), numpy_dtype(type))
