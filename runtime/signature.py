"""What a program takes and yields, by its text: names, shapes and element types of @main."""

from __future__ import annotations

from collections.abc import Sequence

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

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.functions import NAME, OUTPUT, WEIGHT, attribute_text, input_name
from penstock.dialects.graph.dims import dims_of
from penstock.runtime.tensor_specs import UNBOUND, Signature, TensorSpec


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
            inputs.append(_spec(input_name(function, index), type, dims[index]))
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
