"""Divisions of 32-bit integers by powers of two, rounded down, which a graph without such a shift writes in f64."""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import LocationAttr, f64, i32
from xdsl.ir import Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.quantization.contraction_parts import constant_array
from penstock.passes.graph.values import constant_of, derived

MAX_SHIFT = 31


def shift_exactly(block: Block, store: WeightStore) -> None:
    """
    Shift i32 to the right where a block widens it to f64, multiplies it by 2^-s (or divides it by 2^s), rounds it down
    and casts it back: f64 holds every such number, so both are the same for every operand. ONNX shifts no signed
    integers, and this is how a model says it.
    """
    for op in list(block.ops):
        if not isinstance(op, graph.CastOp) or tensor_of(op.result).element_type != i32:
            continue
        found = _shifted(op.x, store)
        if found is None:
            continue
        source, places = found
        value = _shift(op, source, places, store) if places else source
        op.result.replace_all_uses_with(value)
        Rewriter.erase_op(op)


def _shifted(rounded: SSAValue, store: WeightStore) -> tuple[SSAValue, int] | None:
    """The i32 that a value in f64 is made of, and by how many places it is shifted; None if it is something else."""
    floor = rounded.owner
    if not isinstance(floor, graph.FloorOp) or not isinstance(scaled := floor.x.owner, graph.MulOp | graph.DivOp):
        return None
    divides = isinstance(scaled, graph.DivOp)
    for real, by in ((scaled.a, scaled.b), (scaled.b, scaled.a))[: 1 if divides else 2]:
        wide, number = real.owner, constant_array(by, store)
        if not isinstance(wide, graph.CastOp) or number is None or number.size != 1 or number.ndim > _rank(real):
            continue
        if tensor_of(wide.x).element_type != i32 or tensor_of(real).element_type != f64:
            continue
        fraction, exponent = math.frexp(float(number.reshape(())))
        places = (exponent - 1) * (1 if divides else -1)
        if fraction == 0.5 and 0 <= places <= MAX_SHIFT:
            return wide.x, places
    return None


def _rank(value: SSAValue) -> int:
    return tensor_of(value).get_num_dims()


def _shift(op: graph.CastOp, source: SSAValue, places: int, store: WeightStore) -> SSAValue:
    location: LocationAttr = op.location
    amount = constant_of(np.asarray(places, np.int32), "shift", store, derived(location, "shift"))
    shift = graph.ShiftRightOp(source, amount.result)
    shift.location = location
    amount.result.name_hint, shift.result.name_hint = "shift", op.result.name_hint
    Rewriter.insert_op([amount, shift], InsertPoint.before(op))
    return shift.result
