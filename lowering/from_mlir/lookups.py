# SPDX-License-Identifier: Apache-2.0
"""Structured operations that look up elements wherever their bodies say: they become loops over single elements."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import IndexType, ModuleOp, ShapedType
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.functions import unique_name
from penstock.passes.index_builder import materialize
from penstock.passes.schedule.tile_nest import DimRange, ranges_of_map
from penstock.passes.shapes import element_of
from penstock.runtime.interpreter.body import captured_values


def looks_up(op: Operation) -> bool:
    """Whether an operation is structured, and reads in its body what its maps do not."""
    return isinstance(op, GenericOp) and any(isinstance(each, tensor.ExtractOp) for each in op.body.walk())


def outline_lookup(module: ModuleOp, generic: GenericOp, taken: set[str]) -> None:
    """
    Replace a structured operation that looks up elements by a call of a function of loops, one for each dimension of
    its domain in order: gathers have no form whose access is known.

    Raises UserError, located, with status 3 for one of several results.
    """
    if len(generic.results) != 1:
        message = "a structured operation that looks up elements has one result"
        raise UserError(message, loc=location_of(generic), status=UNSUPPORTED)
    read = list(dict.fromkeys([*generic.operands, *captured_values(generic)]))
    # What it writes to is its own.
    own = [value.owner for value in read if isinstance(value.owner, arith.ConstantOp | tensor.EmptyOp)]
    taken_in = [value for value in read if value.owner not in own]
    block = Block(arg_types=[value.type for value in taken_in])
    known: dict[SSAValue, SSAValue] = dict(zip(taken_in, block.args, strict=True))
    builder = Builder(InsertPoint.at_end(block), operation_insertion_handler=[lambda op: _locate(op, generic)])
    for owner in own:
        known[owner.results[0]] = builder.insert(owner.clone()).results[0]
    done = _nest(builder, generic, known, [], known[generic.outputs[0]])
    builder.insert(func.ReturnOp(done))
    name = unique_name("lookup", taken)
    types = ([value.type for value in taken_in], [done.type])
    function = func.FuncOp(name, types, Region(block), visibility="private")
    function.location = generic.location
    module.body.block.add_op(function)
    call = func.CallOp(name, taken_in, [done.type])
    call.location = generic.location
    call.results[0].name_hint = generic.results[0].name_hint
    Rewriter.replace_op(generic, call)


def _locate(op: Operation, generic: GenericOp) -> None:
    op.location = generic.location


def _nest(
    builder: Builder, generic: GenericOp, known: dict[SSAValue, SSAValue], at: Sequence[SSAValue], carried: SSAValue
) -> SSAValue:
    """What is carried after all points of the loops that are left."""
    extents = generic.get_static_loop_ranges()
    if len(at) == len(extents):
        return _point(builder, generic, dict(known), at, carried)
    lower, upper, step = (materialize(builder, bound) for bound in (0, extents[len(at)], 1))
    block = Block(arg_types=[IndexType(), carried.type])
    inner = Builder(InsertPoint.at_end(block), operation_insertion_handler=[lambda op: _locate(op, generic)])
    inner.insert(scf.YieldOp(_nest(inner, generic, known, [*at, block.args[0]], block.args[1])))
    return builder.insert(scf.ForOp(lower, upper, step, [carried], Region(block))).results[0]


def _point(
    builder: Builder, generic: GenericOp, known: dict[SSAValue, SSAValue], at: Sequence[SSAValue], carried: SSAValue
) -> SSAValue:
    """What is carried after one point."""
    box = [DimRange(index, 1) for index in at]
    places = [
        [materialize(builder, span.offset) for span in ranges_of_map(builder, each.data, box)]
        for each in generic.get_indexing_maps()
    ]
    block = generic.body.block
    for arg, value, place in zip(block.args, generic.operands, places, strict=True):
        source = carried if value is generic.outputs[0] and arg is block.args[-1] else known[value]
        if not arg.uses:
            continue
        is_shaped = isinstance(source.type, ShapedType)
        known[arg] = builder.insert(tensor.ExtractOp(source, place, element_of(source))).result if is_shaped else source
    for op in block.ops:
        if isinstance(op, IndexOp):
            known[op.result] = at[op.dim.value.data]
        elif op is not block.last_op:
            builder.insert(op.clone(known))
    assert block.last_op is not None
    found = known[block.last_op.operands[0]]
    return builder.insert(tensor.InsertOp(found, carried, places[-1])).result
