# SPDX-License-Identifier: Apache-2.0
"""Programs of linalg on tensors, as torch-mlir and others print them, in the form that the tensor level has here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from xdsl.builder import Builder
from xdsl.dialect_interfaces.op_asm import OpAsmDialectInterface
from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    DenseResourceAttr,
    DictionaryAttr,
    FunctionType,
    ModuleOp,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.functions import WEIGHT, body_block, unique_name
from penstock.dialects.upstream.tensor import EmptyOp
from penstock.dialects.weights import Array
from penstock.lowering.from_mlir.entry import entry_of
from penstock.lowering.from_mlir.lookups import looks_up, outline_lookup
from penstock.lowering.from_mlir.table import elements_of
from penstock.lowering.from_text import ParsedText, place_in
from penstock.passes.analysis.kernels import ENTRY
from penstock.passes.analysis.loops import constant_of
from penstock.passes.schedule.tile_nest import DimRange, insert_slice
from penstock.passes.shapes import shape_of
from penstock.passes.tensor.generalize_named_ops import GeneralizeNamedOpsPass

INLINE = 64
"""Elements of a constant that stays in the text; a larger one becomes a weight."""


def computes_itself(module: ModuleOp) -> bool:
    """Whether a public function has structured operations on tensors itself: no kernels have been made of them."""
    return any(
        op.name.startswith("linalg.") and any(isinstance(result.type, TensorType) for result in op.results)
        for function in module.ops
        if isinstance(function, func.FuncOp) and function.sym_visibility is None and len(function.body.blocks) == 1
        for op in function.body.block.ops
    )


def adopt(ctx: PenstockContext, parsed: ParsedText, place: str) -> None:
    """
    Rewrite a module of linalg on tensors in place: its program is `@main`, structured operations are `linalg.generic`,
    large constants are weights, and values are joined by `tensor.insert_slice`.

    Raises UserError, located, for a module without a program, for sizes that are open, and with status 3 for constants
    of types that there are not.
    """
    module = parsed.module
    main = entry_of(module, place)
    body_block(main, "imported")
    main.sym_name = StringAttr(ENTRY)
    for op in (main, *main.body.block.ops):
        _require_sizes(parsed, op)
    _name_constants(ctx, parsed, main)
    for op in list(main.body.block.walk()):
        if isinstance(op, tensor.ConcatOp):
            _join(op)
        elif isinstance(op, tensor.PadOp):
            _with_numbers(op)
        elif isinstance(op, tensor.CastOp) and op.source.type == op.dest.type:
            Rewriter.replace_op(op, [], [op.source])
    GeneralizeNamedOpsPass().apply(ctx, module)
    taken = {op.sym_name.data for op in module.ops if isinstance(op, func.FuncOp)}
    for op in list(main.body.block.ops):
        if isinstance(op, GenericOp) and looks_up(op):
            outline_lookup(module, op, taken)


def _require_sizes(parsed: ParsedText, op: Operation) -> None:
    types: Sequence[Attribute] = [value.type for value in op.results]
    if isinstance(op, func.FuncOp):
        types = [*op.function_type.inputs, *op.function_type.outputs]
    for type in types:
        if isa(type, TensorType) and not type.has_static_shape():
            raise UserError(
                f"{type} has sizes that are open",
                loc=place_in(parsed, op),
                notes=["print the program for numbers: shapes that are static, without dynamic dimensions"],
                status=UNSUPPORTED,
            )


def _name_constants(ctx: PenstockContext, parsed: ParsedText, main: func.FuncOp) -> None:
    """Large constants of the text become weights, which are arguments after those that it has."""
    block, taken = main.body.block, set[str]()
    attributes = list(main.arg_attrs or [DictionaryAttr({}) for _ in block.args])
    for op in list(block.walk()):
        if not isinstance(op, arith.ConstantOp) or not isa(type := op.result.type, TensorType):
            continue
        if isinstance(op.value, DenseIntOrFPElementsAttr):
            if len(cast("DenseIntOrFPElementsAttr[Any]", op.value)) <= INLINE or op.value.is_splat():
                continue
            (array,) = elements_of(cast("Any", op.value))
        elif isinstance(op.value, DenseResourceAttr):
            array = _resource(ctx, parsed, op, op.value, type)
        else:
            continue
        name = unique_name(op.result.name_hint or "constant", taken)
        ctx.weights.add(name, array)
        argument = block.insert_arg(type, len(block.args), op.location)
        argument.name_hint = name
        attributes.append(DictionaryAttr({WEIGHT: StringAttr(name)}))
        Rewriter.replace_op(op, [], [argument])
    if taken:
        main.function_type = FunctionType.from_lists([arg.type for arg in block.args], list(main.function_type.outputs))
        main.arg_attrs = ArrayAttr(attributes)


def _resource(
    ctx: PenstockContext, parsed: ParsedText, op: Operation, value: DenseResourceAttr, type: TensorType[Attribute]
) -> Array:
    """What the end of the text has for a name: an alignment in 4 bytes, and the elements."""
    name = value.resource_handle.data
    # xDSL keeps it with the dialect, where the next text writes over what has the same name.
    interface = ctx.get_dialect("builtin").get_interface(OpAsmDialectInterface)
    if not (text := None if interface is None else interface.lookup(name)):
        raise UserError(f'the text does not have the resource "{name}"', loc=place_in(parsed, op))
    try:
        dtype = numpy_dtype(type.element_type)
        data = bytes.fromhex(text.removeprefix("0x"))[4:]
        return np.frombuffer(data, dtype).reshape(type.get_shape()).copy()
    except ValueError as error:
        message = f'the resource "{name}" does not hold {type}: {error}'
        raise UserError(message, loc=place_in(parsed, op)) from None


def _join(op: tensor.ConcatOp) -> None:
    """A concatenation as values that are written one beside the other."""
    builder = Builder(InsertPoint.before(op))
    whole: SSAValue = builder.insert(EmptyOp((), op.result.type)).tensor
    axis, start = op.dim.value.data, 0
    for value in op.inputs:
        shape = shape_of(value)
        whole = insert_slice(
            builder, value, whole, [DimRange(start if dim == axis else 0, size) for dim, size in enumerate(shape)]
        )
        start += shape[axis]
    Rewriter.replace_op(op, [], [whole])


def _with_numbers(op: tensor.PadOp) -> None:
    """A pad by amounts that are constants has them as numbers."""
    amounts: list[list[int]] = []
    for static, values in ((op.static_low, op.low), (op.static_high, op.high)):
        dynamic = iter(values)
        found = [next(dynamic) if each == DYNAMIC_INDEX else each for each in static.get_values()]
        known = [each if isinstance(each, int) else constant_of(each) for each in found]
        if None in known:
            return
        amounts.append([each for each in known if each is not None])
    low, high = (DenseArrayBase.from_list(i64, each) for each in amounts)
    made = tensor.PadOp(op.source, (), (), op.detach_region(op.region), low, high, op.result.type)
    made.location = op.location
    Rewriter.replace_op(op, [made])
