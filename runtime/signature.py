"""What a program takes and yields: names, shapes and element types of @main, and arrays checked against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, MemRefType, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.element_types import DType, numpy_dtype
from penstock.runtime.weights import WEIGHT_ARGUMENT

Array = NDArray[Any]

NAME_ARGUMENT = "graph.name"
OUTPUT_ARGUMENT = "graph.output"
"""The attribute of an argument of @main, at loop level and below, that receives an output."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: its name, shape and element type."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f'"{self.name}": {shape} {self.dtype}'


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a program, in order, and the names of the weights that @main takes."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[str, ...] = ()

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
        return [_checked(spec, given[spec.name]) for spec in self.inputs]

    def describe(self) -> str:
        """The inputs in words."""
        return "the inputs are " + (", ".join(map(str, self.inputs)) or "none")


def main_function(module: ModuleOp) -> FuncOp:
    """The function @main; raises UserError if the module has none."""
    names: list[str] = []
    for op in module.body.block.ops:
        if isinstance(op, FuncOp):
            if op.sym_name.data == "main":
                return op
            names.append(op.sym_name.data)
    known = f"it has {', '.join('@' + name for name in names)}" if names else "it has no functions"
    raise UserError("the module has no function @main, so it cannot be run", notes=[known])


def signature_of(module: ModuleOp) -> Signature:
    """The signature of @main at any level: weights and, from loop level on, outputs are arguments of it."""
    function = main_function(module)
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    weights: list[str] = []
    arguments = _with_attributes(function.function_type.inputs.data, function.arg_attrs)
    for index, (type, attributes) in enumerate(arguments):
        if (weight := _text(attributes, WEIGHT_ARGUMENT)) is not None:
            weights.append(weight)
        elif (output := _text(attributes, OUTPUT_ARGUMENT)) is not None:
            outputs.append(_spec(output, type))
        else:
            inputs.append(_spec(_text(attributes, NAME_ARGUMENT) or f"input_{index}", type))
    results = _with_attributes(function.function_type.outputs.data, function.res_attrs)
    for index, (type, attributes) in enumerate(results):
        outputs.append(_spec(_text(attributes, NAME_ARGUMENT) or f"output_{index}", type))
    return Signature(tuple(inputs), tuple(outputs), tuple(weights))


def _with_attributes(
    types: Sequence[Attribute], attributes: Attribute | None
) -> list[tuple[Attribute, Mapping[str, Attribute]]]:
    """Each type with the attributes of its argument or result."""
    if isa(attributes, ArrayAttr[DictionaryAttr]):
        return [(type, entry.data) for type, entry in zip(types, attributes, strict=True)]
    return [(type, {}) for type in types]


def _text(attributes: Mapping[str, Attribute], key: str) -> str | None:
    found = attributes.get(key)
    return found.data if isinstance(found, StringAttr) else None


def _spec(name: str, type: Attribute) -> TensorSpec:
    if isa(type, TensorType) or isa(type, MemRefType):
        return TensorSpec(name, tuple(type.get_shape()), numpy_dtype(type.element_type))
    return TensorSpec(name, (), numpy_dtype(type))


def _checked(spec: TensorSpec, value: Any) -> Array:
    # Lists and Python numbers have no element type of their own; arrays have, and it must be the right one.
    if isinstance(value, (list, tuple, int, float, bool)):
        array = np.asarray(value, dtype=spec.dtype)
    else:
        array = np.asarray(value)
    if array.dtype != spec.dtype:
        raise UserError(
            f'the input "{spec.name}" has elements of type {array.dtype}, and the program takes {spec.dtype}',
            notes=[f"convert it: array.astype({spec.dtype.name!r})"],
        )
    if array.shape != spec.shape:
        raise UserError(
            f'the input "{spec.name}" has the shape {array.shape}, and the program takes {spec.shape}',
            notes=["shapes are fixed at compilation; a symbolic dimension is set by --dim NAME=SIZE"]
            if array.ndim == len(spec.shape)
            else [],
        )
    return array
