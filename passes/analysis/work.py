"""What the host has for its ops, how they walk their operands, and how long they take, roughly."""

from __future__ import annotations

from math import prod

from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerType, MemRefType, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import IsTerminator
from xdsl.utils.hints import isa

from penstock.dialects.machine import REGISTERS, ProcessorOp, TargetOp, ints_of
from penstock.dialects.mem import CopyOp, element_bytes, scope_of
from penstock.passes.analysis.access import linear_form
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.strides import contiguous_strides
from penstock.passes.planning.register_blocks import LINE, Domain, VectorUnit

_VECTOR_BYTES = 16
"""Of a processor that says nothing of its vectors."""
_BYTES_PER_CYCLE = 8


def vector_unit(target: TargetOp, *operands: Attribute) -> VectorUnit | None:
    """
    What the processor has for operands of these types, scalars aside, the result last; None where its registers do not
    hold them. Integers that are computed on in a wider type are widened when they are loaded.
    """
    processor, registers = target.processor(), target.scope(REGISTERS)
    types = [type for type in operands if isa(type, TensorType)]
    if processor is None or not types or types[-1].element_type not in registers.dtypes.data:
        return None
    others = {type.element_type for type in types} - {types[-1].element_type}
    if not all(_is_narrower(each, types[-1].element_type) for each in others):
        return None
    size, caches = element_bytes(types[-1]), ints_of(processor.caches)
    return VectorUnit(
        registers=registers.size_bytes // processor.vector_bytes,
        lanes=processor.vector_bytes // size,
        element_bytes=size,
        fmas=processor.fmas_per_cycle,
        loads=processor.loads_per_cycle,
        latency=processor.latency_cycles,
        caches=caches,
        ways=processor.way_count or caches[0] // LINE,
        misses=ints_of(processor.misses),
        pair_loads=processor.loads_of_pair,
        exposed=processor.exposed_share,
        step=processor.cycles_per_step,
        tile=processor.tile_cycles,
        row_overhead=processor.row_overhead_cycles,
        packing=processor.packing_worth,
    )


def _is_narrower(element: Attribute, than: Attribute) -> bool:
    """Whether an integer type has fewer bits than another one."""
    return isa(element, IntegerType) and isa(than, IntegerType) and element.width.data < than.width.data


def domain_of(generic: GenericOp) -> Domain | None:
    """The domain of a structured op on static tensors; None where one of its operands is a scalar."""
    strides: list[tuple[int, ...]] = []
    for value, index_map in zip(generic.operands, generic.indexing_maps, strict=True):
        if not isa(value.type, TensorType):
            return None
        steps = _strides_of(value)
        _, rows = linear_form(index_map.data)
        columns = zip(*rows, strict=True) if rows else [()] * generic.get_num_loops()
        strides.append(tuple(sum(a * b for a, b in zip(column, steps, strict=True)) for column in columns))
    return Domain(generic.get_static_loop_ranges(), tuple(strides), len(generic.outputs))


def _strides_of(value: SSAValue) -> tuple[int, ...]:
    """The strides of a tensor; those of a slice of all dims are of what it is cut out of."""
    assert isa(value.type, TensorType)
    slice = value.owner
    if isinstance(slice, tensor.ExtractSliceOp) and isa(slice.source.type, TensorType):
        steps = slice.static_strides.get_values()
        if len(steps) == len(value.type.get_shape()) and DYNAMIC_INDEX not in steps:
            whole = contiguous_strides(slice.source.type.get_shape())
            return tuple(a * b for a, b in zip(whole, steps, strict=True))
    return contiguous_strides(value.type.get_shape())


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
