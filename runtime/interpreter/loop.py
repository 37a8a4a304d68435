# SPDX-License-Identifier: Apache-2.0
"""Ops on memrefs: buffers, views, copies, and structured ops that work in place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from xdsl.dialects import memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseIntOrFPElementsAttr, MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Operation, SSAValue

from penstock.dialects import machine, mem
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.mem import memref_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.commands import Touch
from penstock.runtime.interpreter.counters import moved_bytes, touched_bytes
from penstock.runtime.interpreter.domain import OperandAccess, view_over
from penstock.runtime.interpreter.execution import Execution
from penstock.runtime.interpreter.generic import Evaluator, as_operand, evaluator_of, extents_of
from penstock.runtime.interpreter.registry import accesses, interprets
from penstock.runtime.interpreter.scopes import (
    MemRef,
    Region,
    TaggedBuffer,
    array_of,
    copied,
    leave_undefined,
    readable,
    strided,
    written,
)
from penstock.runtime.interpreter.slices import SliceSpec, WindowMove, check_apart, filled, move
from penstock.runtime.interpreter.tensor import check_cast, regrouped, run_generic
from penstock.runtime.interpreter.values import dense_array, dtype_of, undefined


@interprets(memref.AllocOp, memref.AllocaOp)
def _alloc(execution: Execution, op: memref.AllocOp | memref.AllocaOp, args: Sequence[Any]) -> Sequence[Any]:
    type = memref_of(op.memref)
    if type.has_static_shape():
        return (execution.memory.unplaced(type, op.memref, op),)
    shape = filled(type.get_shape(), args[: len(op.dynamic_sizes)])
    return (undefined(shape, dtype_of(type.element_type, op)),)


@interprets(memref.DeallocOp)
def _dealloc(execution: Execution, op: memref.DeallocOp, args: Sequence[Any]) -> Sequence[Any]:
    return ()


@interprets(mem.BufferOp)
def _buffer(execution: Execution, op: mem.BufferOp, args: Sequence[Any]) -> Sequence[Any]:
    return execution.memory.buffers(op, op.type, op.memref, [op.byte_offset])


@interprets(mem.RingOp)
def _ring(execution: Execution, op: mem.RingOp, args: Sequence[Any]) -> Sequence[Any]:
    offsets = [None] * op.slot_count if op.byte_offset is None else op.slot_offsets()
    return (execution.memory.buffers(op, op.slot_type, op.ring, offsets),)


@interprets(mem.SlotOp)
def _slot(execution: Execution, op: mem.SlotOp, args: Sequence[Any]) -> Sequence[Any]:
    ring, index = args
    return (ring[index % len(ring)],)


@interprets(memref.GetGlobalOp)
def _get_global(execution: Execution, op: memref.GetGlobalOp, args: Sequence[Any]) -> Sequence[Any]:
    return (execution.kept(op, lambda: _constant_of(execution, op)),)


def _constant_of(execution: Execution, op: memref.GetGlobalOp) -> Array:
    """The array of a `memref.global constant`; raises UserError for one that is missing or may change."""
    name = op.name_.string_value()
    for found in execution.module.ops:
        if isinstance(found, memref.GlobalOp) and found.sym_name.data == name:
            if found.constant is None or not isinstance(found.initial_value, DenseIntOrFPElementsAttr):
                raise UserError(f"@{name} is no constant: kernels have no state", loc=location_of(op))
            type = memref_of(op.memref)
            array = dense_array(found.initial_value, dtype_of(type.element_type, op)).reshape(type.get_shape())
            array.flags.writeable = False
            return array
    raise UserError(f"the module has no memref.global @{name}", loc=location_of(op))


# views


def _sliced(value: MemRef, index: Any) -> MemRef:
    return value.sliced(index) if type(value) is TaggedBuffer else value[index]  # pyright: ignore


@interprets(memref.SubviewOp)
def _subview(execution: Execution, op: memref.SubviewOp, args: Sequence[Any]) -> Sequence[Any]:
    source = args[0]
    spec, result = execution.kept(op, lambda: (SliceSpec.of(op), memref_of(op.result)))
    view = _sliced(source, spec.box(source.shape, args[1:]))
    if len(view.shape) == len(result.shape):
        return (view,)
    kept = execution.kept((op, "kept"), lambda: _kept_dims(op, result, view.shape))
    index = tuple(slice(None) if dim in kept else 0 for dim in range(len(view.shape)))
    return (_sliced(view, (*index, ...)),)


def _kept_dims(op: memref.SubviewOp, result: MemRefType[Any], sizes: Sequence[int]) -> tuple[int, ...]:
    """Which dims a rank-reducing subview keeps: of those of size 1, the strides tell."""
    full = memref.SubviewOp.infer_result_type(
        memref_of(op.source),
        get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX),
        get_dynamic_index_list(op.static_sizes.get_values(), op.sizes, DYNAMIC_INDEX),
        get_dynamic_index_list(op.static_strides.get_values(), op.strides, DYNAMIC_INDEX),
    )
    strides, wanted = full.get_strides(), result.get_strides()
    assert strides is not None
    for kept in combinations(range(len(sizes)), result.get_num_dims()):
        dropped = [size for dim, size in enumerate(sizes) if dim not in kept]
        if all(size == 1 for size in dropped) and [strides[dim] for dim in kept] == list(wanted or ()):
            return kept
    raise UserError(f"no dims of size 1 can be dropped to get {result}", loc=location_of(op))


@interprets(memref.ExpandShapeOp, memref.CollapseShapeOp)
def _reshape(
    execution: Execution, op: memref.ExpandShapeOp | memref.CollapseShapeOp, args: Sequence[Any]
) -> Sequence[Any]:
    source = args[0]
    shape = regrouped(op, source.shape, args[1:])
    if type(source) is TaggedBuffer:
        per_element = source.tags.shape[-1]
        tags = _reshaped(source.tags, [*shape, per_element], op)
        return (TaggedBuffer(_reshaped(source.array, shape, op), tags, source.tag, source.scope),)
    return (_reshaped(source, shape, op),)


def _reshaped(array: Array, shape: Sequence[int], op: Operation) -> Array:
    result = array.reshape(shape)
    if array.size and not np.may_share_memory(result, array):
        raise UserError("the elements do not lie as the result says: this would copy", loc=location_of(op))
    return result


@interprets(memref.CastOp, memref.MemorySpaceCastOp)
def _cast(execution: Execution, op: memref.CastOp | memref.MemorySpaceCastOp, args: Sequence[Any]) -> Sequence[Any]:
    if isinstance(op.dest.type, MemRefType):
        check_cast(op, args[0].shape, op.dest.type.get_shape())
    return args


@interprets(memref.ReinterpretCastOp)
def _reinterpret_cast(execution: Execution, op: memref.ReinterpretCastOp, args: Sequence[Any]) -> Sequence[Any]:
    """The offset counts from the start of the allocation, so the source must begin there."""
    source = args[0]
    if memref_of(op.source).get_offset() != 0:
        raise UserError("reinterpret_cast of a view at an offset is not interpreted", loc=location_of(op),
                        status=UNSUPPORTED)  # fmt: skip
    offset_count, size_count = len(op.offsets), len(op.sizes)
    (offset,) = filled(op.static_offsets.get_values(), args[1 : 1 + offset_count])
    sizes = filled(op.static_sizes.get_values(), args[1 + offset_count : 1 + offset_count + size_count])
    strides = filled(op.static_strides.get_values(), args[1 + offset_count + size_count :])
    array = array_of(source)
    reach = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)) // array.itemsize
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if min(sizes, default=0) < 0:
        raise UserError(f"the result has a size of {min(sizes)}", loc=location_of(op))
    if 0 not in sizes and (offset < 0 or last > reach or min(strides, default=0) < 0):
        raise UserError(
            f"the result reaches element {last} of memory that has {reach + 1}", loc=location_of(op)
        )  # fmt: skip
    if type(source) is TaggedBuffer:
        return (source.viewed(sizes, strides, offset),)
    return (strided(array, sizes, strides, offset),)


@interprets(memref.DimOp)
def _dim(execution: Execution, op: memref.DimOp, args: Sequence[Any]) -> Sequence[Any]:
    source, index = args
    if not 0 <= index < len(source.shape):
        raise UserError(f"dim {index} of a memref of {len(source.shape)} dims", loc=location_of(op))
    return (source.shape[index],)


@interprets(memref.RankOp)
def _rank(execution: Execution, op: memref.RankOp, args: Sequence[Any]) -> Sequence[Any]:
    return (len(args[0].shape),)


# copies


@interprets(memref.CopyOp)
def _memref_copy(execution: Execution, op: memref.CopyOp, args: Sequence[Any]) -> Sequence[Any]:
    source, dest = args
    if source.shape != dest.shape:
        raise UserError(f"a copy of {list(source.shape)} elements to {list(dest.shape)}", loc=location_of(op))
    undefined = copied(source, op, None, dest)
    array_of(dest)[...] = array_of(source)
    written(dest)
    leave_undefined(dest, None, undefined)
    return ()


@interprets(mem.PrefetchOp)
def _prefetch(execution: Execution, op: mem.PrefetchOp, args: Sequence[Any]) -> Sequence[Any]:
    return ()


@interprets(mem.CopyOp)
def _copy(execution: Execution, op: mem.CopyOp, args: Sequence[Any]) -> Sequence[Any]:
    transfer = execution.kept(op, lambda: WindowMove.of(op))
    source, dest, padding = args[transfer.source], args[transfer.dest], transfer.padding_of(args)
    overlap = transfer.overlap(args)
    undefined = copied(source, op, overlap.source, dest)
    elements, target = array_of(source), array_of(dest)
    check_apart(op, elements, target, overlap)
    move(elements, target, overlap, padding)
    written(dest, overlap.dest if padding is None else None)
    leave_undefined(dest, overlap.dest, undefined)
    crossing = execution.kept((op, "engine"), lambda: _engine_of(execution, op))
    if crossing is not None:
        engine, ends = crossing
        execution.counters.add_bytes(engine, {ends: overlap.elements * elements.itemsize})
    return ()


def _engine_of(execution: Execution, op: mem.CopyOp) -> tuple[str, tuple[str, str]] | None:
    """The engine that makes a copy, and the scopes that it leads between; None for a copy that none makes."""
    ends = mem.scope_of(op.source_type) or machine.DRAM, mem.scope_of(op.dest_type) or machine.DRAM
    engine = None if execution.target is None or ends[0] == ends[1] else execution.target.dma_between(*ends)
    return None if engine is None else (engine.sym_name.data, ends)


# structured ops


def region_of(access: OperandAccess, extents: Sequence[int], shape: Sequence[int]) -> Region:
    """The elements of an operand that are touched: None for all, a box, or a mask."""
    box = access.box(extents)
    if box is None:
        mask = np.zeros(shape, np.bool_)
        if access.forms is None:
            mask[tuple(np.broadcast_arrays(*access.indices(extents)))] = True
        else:
            view_over(mask, access, range(len(extents)), extents)[...] = True
        return None if mask.all() else mask
    whole = all(len(range(*part.indices(size))) == size for part, size in zip(box, shape, strict=True))
    return None if whole else box


def regions_of(evaluator: Evaluator, extents: Sequence[int], shapes: Sequence[Sequence[int]]) -> list[Region]:
    """For each operand the elements that are touched; bounds must have been checked."""
    if 0 in extents:
        return [tuple(slice(0, 0) for _ in shape) for shape in shapes]
    return [region_of(access, extents, shape) for access, shape in zip(evaluator.accesses, shapes, strict=True)]


@interprets(GenericOp)
def _generic(execution: Execution, op: GenericOp, args: Sequence[Any]) -> Sequence[Any]:
    if op.results:
        return run_generic(execution, op, args)
    evaluator = execution.kept(op, lambda: evaluator_of(op))
    count, inputs = len(op.operands), len(op.inputs)
    captured = [as_operand(value, outside, op) for value, outside in zip(args[count:], evaluator.captured, strict=True)]
    memrefs = args[:count]
    arrays = [as_operand(array_of(value), operand, op) for value, operand in zip(memrefs, op.operands, strict=True)]
    shapes = tuple(array.shape for array in arrays)
    extents = execution.kept((op, shapes), lambda: extents_of(op, arrays))
    tagged = any(type(value) is TaggedBuffer for value in memrefs)
    engine = execution.kept((op, "engine"), lambda: _engine_on_the_way(execution, op))
    regions: list[Region] = []
    if tagged or engine is not None:
        evaluator.check(arrays, extents)
        regions = execution.kept((op, shapes, "regions"), lambda: regions_of(evaluator, extents, shapes))
    if tagged:
        for value, region, read in zip(memrefs, regions, evaluator.reads, strict=True):
            if read and type(value) is TaggedBuffer:
                readable(value, op, region)
    evaluator.run(arrays, extents, captured, ordered=execution.ordered)
    if tagged:
        for value, region in zip(memrefs[inputs:], regions[inputs:], strict=True):
            written(value, region)
    if engine is not None:
        scopes = [mem.scope_of(memref_of(value)) or machine.DRAM for value in op.operands]
        touched = [touched_bytes(array, region) for array, region in zip(arrays, regions, strict=True)]
        execution.counters.add_bytes(engine, moved_bytes(scopes, touched))
    return ()


def _engine_on_the_way(execution: Execution, op: GenericOp) -> str | None:
    """The engine that performs a tensorized op on the way, if one does."""
    if execution.target is None or op.library_call is None:
        return None
    intrinsic = execution.target.intrinsics().get(op.library_call.data)
    return None if intrinsic is None else intrinsic.dma_name


# what ops access, for races between iterations


_Accessed = tuple[Sequence[Touch], Sequence[Touch]]


@accesses(memref.LoadOp)
def _loads(execution: Execution, op: memref.LoadOp, args: Sequence[Any]) -> _Accessed:
    return (_element(args[0], args[1:], op.memref),), ()


@accesses(memref.StoreOp)
def _stores(execution: Execution, op: memref.StoreOp, args: Sequence[Any]) -> _Accessed:
    return (), (_element(args[1], args[2:], op.memref),)


def _element(memref: MemRef, indices: Sequence[int], value: SSAValue) -> Touch:
    # What is out of bounds is refused by the access itself.
    return Touch(memref, tuple(slice(max(index, 0), max(index, 0) + 1) for index in indices), value)


@accesses(memref.CopyOp)
def _copies(execution: Execution, op: memref.CopyOp, args: Sequence[Any]) -> _Accessed:
    return (Touch(args[0], None, op.source),), (Touch(args[1], None, op.destination),)


@accesses(mem.CopyOp)
def _moves(execution: Execution, op: mem.CopyOp, args: Sequence[Any]) -> _Accessed:
    transfer = execution.kept(op, lambda: WindowMove.of(op))
    overlap = transfer.overlap(args)
    everything = transfer.padding is not None
    return (Touch(args[transfer.source], overlap.source, op.source),), (
        Touch(args[transfer.dest], None if everything else overlap.dest, op.dest),
    )


@accesses(GenericOp)
def _touches(execution: Execution, op: GenericOp, args: Sequence[Any]) -> _Accessed:
    if op.results:
        return (), ()
    evaluator = execution.kept(op, lambda: evaluator_of(op))
    arrays = [as_operand(array_of(value), operand, op) for value, operand in zip(args, op.operands, strict=True)]
    shapes = tuple(array.shape for array in arrays)
    extents = execution.kept((op, shapes), lambda: extents_of(op, arrays))
    evaluator.check(arrays, extents)
    regions = execution.kept((op, shapes, "regions"), lambda: regions_of(evaluator, extents, shapes))
    touches = [
        (Touch(value, region, operand), read)
        for value, region, operand, read in zip(args, regions, op.operands, evaluator.reads, strict=True)
        if isinstance(operand.type, MemRefType)
    ]
    outputs = [touch for touch, _ in touches if touch.value in op.outputs]
    return [touch for touch, read in touches if read], outputs
