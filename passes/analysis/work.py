# SPDX-License-Identifier: Apache-2.0
"""What the host has for its ops, how they walk their operands, and how long they take, roughly."""

from __future__ import annotations

from fractions import Fraction
from math import prod

from xdsl.dialects import affine, arith, func, memref, scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerType, MemRefType, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.traits import IsTerminator
from xdsl.utils.hints import isa

from penstock.dialects.machine import REGISTERS, ProcessorOp, TargetOp, ints_of
from penstock.dialects.mem import CopyOp, element_bytes, memref_of, scope_of
from penstock.passes.analysis.access import linear_form
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.memory.aliases import Allocation
from penstock.passes.analysis.memory.storage import VIEWS
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


def scalar_operations(generic: GenericOp, processor: ProcessorOp) -> int:
    """The scalar operations of a generic: those of its body, a load of each operand that it reads, and the store."""
    body = generic.body.block
    computed = sum(processor.operations_of(op) for op in body.ops if not _costs_nothing(op))
    read = sum(bool(arg.uses) for arg in body.args)
    return prod(generic.get_static_loop_ranges()) * (computed + read + 1)


def kernel_cycles(kernel: func.FuncOp, processor: ProcessorOp) -> Fraction | None:
    """
    Cycles of the machine that a kernel below the tensor level takes on its host: its scalar operations, one after the
    other, and the bytes of what it is given, each moved once. As `assign-devices` weighs kernels. None where how often
    something runs is not known.
    """
    operations = _scalar_operations(kernel, processor)
    types = [arg.type for arg in kernel.body.blocks[0].args if arg.uses and isa(arg.type, MemRefType)]
    if operations is None or not all(type.has_static_shape() for type in types):
        return None
    moved = sum(prod(type.get_shape()) * element_bytes(type) for type in types)
    return operations * processor.cycles_per_op + moved * processor.cycles_per_byte


def op_cycles(op: Operation, processor: ProcessorOp) -> Fraction | None:
    """The same of an op outside of kernels, without what it moves."""
    operations = _scalar_operations(op, processor)
    return None if operations is None else operations * processor.cycles_per_op


def _scalar_operations(op: Operation, processor: ProcessorOp) -> int | None:
    """The scalar operations of an op with all that is in it."""
    match op:
        case GenericOp():
            return scalar_operations(op, processor) if all(map(_is_static, op.operands)) else None
        case CopyOp():
            return 2 * prod(op.box)
        case memref.CopyOp():
            return 2 * prod(memref_of(op.source).get_shape())
        case scf.ForOp():
            trips, inside = trip_count(op), _inside_operations(op, processor)
            return None if trips is None or inside is None else trips * (inside + 1)
        case scf.IfOp():
            found = [_block_operations(region, processor) for region in op.regions if region.blocks]
            return None if None in found else 1 + max((each or 0 for each in found), default=0)
        case func.FuncOp():
            return _inside_operations(op, processor)
        case _ if op.regions or isinstance(op, func.CallOp):
            return None
        case _:
            is_free = _costs_nothing(op) or isinstance(op, (*VIEWS, Allocation, affine.ApplyOp))
            return 0 if is_free else processor.operations_of(op)


def _is_static(value: SSAValue) -> bool:
    return not isa(value.type, MemRefType) or value.type.has_static_shape()


def _inside_operations(op: Operation, processor: ProcessorOp) -> int | None:
    found = [_block_operations(region, processor) for region in op.regions]
    return None if None in found else sum(each or 0 for each in found)


def _block_operations(region: Region, processor: ProcessorOp) -> int | None:
    if len(region.blocks) > 1:
        return None
    found = [_scalar_operations(op, processor) for block in region.blocks for op in block.ops]
    return None if None in found else sum(each or 0 for each in found)


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
