"""How long ops of the host take, roughly: to tell loops that are worth several threads from those that are not."""

from __future__ import annotations

from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation
from xdsl.traits import IsTerminator
from xdsl.utils.hints import isa

from penstock.dialects.machine import ProcessorOp
from penstock.dialects.mem import CopyOp, element_bytes, scope_of
from penstock.passes.analysis.loops import trip_count

_VECTOR_BYTES = 16
"""Of a processor that says nothing of its vectors."""
_BYTES_PER_CYCLE = 8


def host_cycles(op: Operation, processor: ProcessorOp | None) -> float:
    """Cycles that an op takes with all that is in it: what it computes in vectors, or what it moves if that is more."""
    vector = processor.vector_bytes if processor is not None and processor.vector is not None else _VECTOR_BYTES
    match op:
        case GenericOp():
            types = [value.type for value in op.operands if isa(value.type, MemRefType)]
            computed = sum(1 for each in op.body.block.ops if not _costs_nothing(each)) or 1
            lanes = max(1, vector // max(map(element_bytes, types), default=vector))
            moved = sum(prod(type.get_shape()) * element_bytes(type) for type in types if not _is_in_scope(type))
            return max(prod(op.get_static_loop_ranges()) * computed / lanes, moved / _BYTES_PER_CYCLE)
        case CopyOp():
            return prod(op.box) * element_bytes(op.source_type) / _BYTES_PER_CYCLE
        case scf.ForOp():
            trips = trip_count(op)
            return (1 if trips is None else trips) * _inside(op, processor)
        case _:
            return float(not _costs_nothing(op)) + _inside(op, processor)


def _inside(op: Operation, processor: ProcessorOp | None) -> float:
    return sum(host_cycles(inner, processor) for region in op.regions for block in region.blocks for inner in block.ops)


def _costs_nothing(op: Operation) -> bool:
    return isinstance(op, arith.ConstantOp) or op.has_trait(IsTerminator)


def _is_in_scope(type: MemRefType[Attribute]) -> bool:
    return scope_of(type) is not None
