# SPDX-License-Identifier: Apache-2.0
"""What a program takes and yields, by its text: names, shapes and element types of @main."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    MemRefType,
    ModuleOp,
    TensorType,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineExpr,
    AffineSymExpr,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.functions import COUNT, NAME, OUTPUT, WEIGHT, attribute_text, bounds_of, input_name, shape_map
from penstock.dialects.graph.dims import dims_of
from penstock.runtime.tensor_specs import UNBOUND, Extent, Signature, TensorSpec


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
    bounds = bounds_of(function)
    for index, type in enumerate(function.function_type.inputs):
        if (weight := attribute_text(function, index, WEIGHT)) is not None:
            weights.append(weight)
        elif (output := attribute_text(function, index, OUTPUT)) is not None:
            count = attribute_text(function, index, COUNT) or ""
            outputs.append(_spec(output, type, extents=_extents(function, index, bounds), count=count))
        else:
            name, extents = input_name(function, index), _extents(function, index, bounds)
            names = [name for name in map(_symbol, extents)] or dims[index]
            inputs.append(_spec(name, type, names, extents))
    for index, type in enumerate(function.function_type.outputs):
        name = attribute_text(function, index, NAME, results=True)
        extents = _extents(function, index, bounds, results=True)
        count = attribute_text(function, index, COUNT, results=True) or ""
        outputs.append(_spec(name or f"output_{index}", type, result_dims[index], extents, count))
    _check_counts(function, outputs)
    # At graph level a dimension with a bound is symbolic, as any.
    is_lowered = any(spec.extents for spec in (*inputs, *outputs))
    return Signature(tuple(inputs), tuple(outputs), tuple(weights), tuple(bounds.items()) if is_lowered else ())


def with_extents(signature: Signature, module: ModuleOp) -> Signature:
    """The signature of a model, with what its lowered program says of sizes that only a run knows."""
    own = signature_of(module)
    if not own.bounds:
        return signature

    def extended(specs: Sequence[TensorSpec], by: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        pairs = zip(specs, by, strict=True)
        return tuple(
            replace(spec, shape=each.shape, extents=each.extents, dims=each.dims or spec.dims) for spec, each in pairs
        )

    inputs, outputs = extended(signature.inputs, own.inputs), extended(signature.outputs, own.outputs)
    return Signature(inputs, outputs, signature.weights, own.bounds)


def _extents(function: FuncOp, index: int, bounds: Mapping[str, int], *, results: bool = False) -> tuple[Extent, ...]:
    found = shape_map(function, index, results=results)
    names = list(bounds)
    return () if found is None else tuple(_terms(size, names) for size in found.results)


def _terms(size: AffineExpr, names: Sequence[str]) -> Extent:
    """A sum of products of symbols, as the text of a program has it."""
    match size:
        case AffineSymExpr():
            return ((1, (names[size.position],)),)
        case AffineConstantExpr():
            return ((size.value, ()),)
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Add):
            return (*_terms(size.lhs, names), *_terms(size.rhs, names))
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Mul):
            left, right = _terms(size.lhs, names), _terms(size.rhs, names)
            return tuple((a * b, (*of, *by)) for a, of in left for b, by in right)
        case _:
            raise UserError(f"{size} is no sum of products of sizes")


def _symbol(extent: Extent) -> str:
    """The name of a size that is nothing else."""
    match extent:
        case ((1, (name,)),):
            return name
        case _:
            return ""


def _dims(function: FuncOp) -> tuple[list[list[str]], list[list[str]]]:
    try:
        return dims_of(function), dims_of(function, results=True)
    except VerifyException as error:
        raise UserError(f"the names of dimensions do not fit: {error}", loc=location_of(function)) from None


def _check_counts(function: FuncOp, outputs: Sequence[TensorSpec]) -> None:
    numbers = {spec.name for spec in outputs if not spec.shape and spec.dtype.kind == "i"}
    for spec in outputs:
        if spec.count and (spec.count not in numbers or not spec.shape):
            message = f'graph.count of the output "{spec.name}" names "{spec.count}", which does not count its lines'
            raise UserError(message, loc=location_of(function), notes=["it names an output that is one integer"])


def _spec(
    name: str, type: Attribute, dims: Sequence[str] = (), extents: tuple[Extent, ...] = (), count: str = ""
) -> TensorSpec:
    if isa(type, TensorType) or isa(type, MemRefType):
        shape = tuple(UNBOUND if size == DYNAMIC_INDEX else size for size in type.get_shape())
        return TensorSpec(name, shape, numpy_dtype(type.element_type), tuple(dims) if any(dims) else (), extents, count)
    return TensorSpec(name, (), numpy_dtype(type))
