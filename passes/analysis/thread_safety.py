# SPDX-License-Identifier: Apache-2.0
"""Whether iterations of loops that several threads run are independent, as a program is given."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray
from xdsl.builder import Builder
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import BufferOp, RingOp, SlotOp
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.commands.loop_domain import evaluate
from penstock.passes.analysis.kernels import calls_by_callee
from penstock.passes.analysis.loop_dependences import NestMemory
from penstock.passes.analysis.loops import constant_of, trip_count, uses_threads
from penstock.passes.index_builder import for_loop


def prove_threads(module: ModuleOp) -> None:
    """
    Prove that no iteration of a `scf.forall` that runs in threads writes what another one reads or writes.

    Requires the loop or the accel level. Raises UserError, at an op, where that is not proved.
    """
    found = [op for op in module.walk() if isinstance(op, ForallOp) and uses_threads(op)]
    if not found:
        return
    calls = calls_by_callee(module)
    for function in dict.fromkeys(map(_function_around, found)):
        count = sum(_function_around(loop) is function for loop in found)
        for number in range(count):
            copy = function.clone()
            loop = [op for op in copy.walk() if isinstance(op, ForallOp) and uses_threads(op)][number]
            place = location_of(loop)
            if not (nest := _in_order(loop)):
                # A loop without dims has one iteration.
                continue
            _own_slots(nest)
            memory = NestMemory(copy, calls.get(function.sym_name.data, ()))
            for dependence in memory.dependences(nest):
                raise UserError(
                    "iterations of scf.forall cannot run in several threads: one depends on another",
                    loc=place,
                    notes=[str(dependence), "without the attribute `threads` they run one after the other"],
                )


def _own_slots(nest: Sequence[scf.ForOp]) -> None:
    """Make buffers of the iteration of the slots of rings of which every iteration has one of its own."""
    trips = [trip_count(loop) for loop in nest]
    if None in trips:
        return
    counts = [count for count in trips if count is not None]
    counters: dict[SSAValue, NDArray[np.int64]] = {
        loop.body.block.args[0]: (constant_of(loop.lb) or 0) + (constant_of(loop.step) or 1) * at.reshape(-1)
        for loop, at in zip(nest, np.indices(counts), strict=True)
    }
    for op in list(nest[0].walk()):
        if not isinstance(op, SlotOp) or not isinstance(ring := op.ring.owner, RingOp):
            continue
        try:
            turns = np.broadcast_to(evaluate(op.index, counters), prod(counts)) % ring.slot_count
        except UserError:
            continue
        if len(np.unique(turns)) == len(turns):
            Rewriter.replace_op(op, BufferOp(ring.slot_type))


def _function_around(op: ForallOp) -> func.FuncOp:
    parent = op.parent_op()
    while not isinstance(parent, func.FuncOp):
        assert parent is not None
        parent = parent.parent_op()
    return parent


def _in_order(forall: ForallOp) -> list[scf.ForOp]:
    """The iterations as a nest of loops, in the place of the forall."""
    builder = Builder(InsertPoint.before(forall))
    nest: list[scf.ForOp] = []
    for bounds, index in zip(
        zip(forall.lower_bounds, forall.upper_bounds, forall.steps, strict=True), forall.indices, strict=True
    ):
        loop, builder = for_loop(builder, bounds, like=forall, counter=index)
        index.replace_all_uses_with(loop.body.block.args[0])
        nest.append(loop)
    for op in list(forall.region.block.ops):
        if op is not forall.terminator:
            op.detach()
            builder.insert(op)
    for loop in reversed(nest):
        Builder(InsertPoint.at_end(loop.body.block)).insert(scf.YieldOp())
    forall.detach()
    forall.erase()
    return nest
