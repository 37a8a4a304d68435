# SPDX-License-Identifier: Apache-2.0
"""Ops of a host that calls of a library compute, as those calls."""

from __future__ import annotations

from xdsl.builder import Builder
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import is_side_effect_free

from penstock.dialects.accel_issue import CodeOp
from penstock.dialects.machine import find_target
from penstock.dialects.mem import memref_of
from penstock.lowering.accel_to_issues.commands import issue_call
from penstock.passes.analysis.access import places_each
from penstock.passes.analysis.kernels import ENTRY
from penstock.passes.analysis.library_calls import names_call
from penstock.passes.schedule.primitives.tensorize import match_named


def issue_calls(module: ModuleOp) -> ModuleOp:
    """
    The module with each op that a call of a library computes as `accel.issue` of it; a copy if there are such.

    Required: the loop level. Each is proved again to be what its `library_call` says. Zeros that a call only adds to
    are not written where it can overwrite what is there. Raises UserError for an op that is something else, and for
    strides that the call does not take.
    """
    target = find_target(module)
    if target is None or not any(names_call(op, target) for op in module.walk()):
        return module
    module = module.clone()
    # The machine of a copy is another one, for which nothing is known.
    for op in [op for op in module.walk() if names_call(op, target)]:
        assert isinstance(op, GenericOp)
        assert op.library_call is not None
        match = match_named(op, op.library_call.data, target)
        zeros = _zeros_before(op)
        issue_call(Builder(InsertPoint.before(op)), op, match, target, begins=zeros is not None)
        for each in (op, *([] if zeros is None else [zeros])):
            Rewriter.erase_op(each)
    code = target.code()
    for function in module.ops if code is not None and code.begin is not None else ():
        if isinstance(function, func.FuncOp) and function.sym_name.data == ENTRY and not function.is_declaration:
            Rewriter.insert_op(CodeOp("begin"), InsertPoint.at_start(function.body.blocks[0]))
    return module


def _zeros_before(op: GenericOp) -> GenericOp | None:
    """What writes the zeros that an op adds its sums to, right before it, if both reach every element."""
    before: Operation | None = op.prev_op
    while before is not None and is_side_effect_free(before):
        before = before.prev_op
    if not isinstance(before, GenericOp) or before.inputs or list(before.outputs) != list(op.outputs):
        return None
    last = before.body.block.last_op
    value = last.operands[0].owner if last is not None else None
    is_zero = (
        isinstance(value, arith.ConstantOp)
        and isinstance(value.value, FloatAttr | IntegerAttr)
        and str(value.value.value.data) in ("0", "0.0")
    )
    shape = memref_of(op.outputs[0]).get_shape()
    maps = [list(each.indexing_maps)[-1].data for each in (before, op)]
    reach = all(places_each(index_map, shape) for index_map in maps)
    return before if is_zero and reach and all(op.get_static_loop_ranges()) else None
