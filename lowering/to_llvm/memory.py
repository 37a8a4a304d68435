"""Memrefs in LLVM IR: buffers of the context, views as pointers and strides, loads and stores, constants."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from xdsl.dialects import memref
from xdsl.dialects.builtin import DYNAMIC_INDEX

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import REGISTERS
from penstock.dialects.mem import BufferOp, RingOp, ScopedAllocation, SlotOp, element_bytes
from penstock.lowering.to_c.emitter import view_of_type
from penstock.lowering.to_c.memory import global_values, is_read_from_memory, kept_dims
from penstock.lowering.to_c.text import Size
from penstock.lowering.to_llvm.emitter import OUTSIDE, LlvmEmitter, refuse


def emit_buffer(emitter: LlvmEmitter, op: BufferOp) -> None:
    """A pointer into the context; a local variable for the scope of the vector registers."""
    pointer = _allocate(emitter, op)
    emitter.values[op.memref] = replace(view_of_type(emitter, op.memref, pointer), base=pointer)


def emit_ring(emitter: LlvmEmitter, op: RingOp) -> None:
    """A pointer to the first slot; `mem.slot` advances it."""
    emitter.bind(op.storage, _allocate(emitter, op))


def _allocate(emitter: LlvmEmitter, op: ScopedAllocation) -> str:
    if op.scope == REGISTERS:
        return emitter.asm.local("i8", op.size_in_bytes)
    return emitter.asm.at("%ctx", "i8", emitter.layout.offsets[op.scope] + op.planned_offset())


def emit_slot(emitter: LlvmEmitter, op: SlotOp) -> None:
    """A pointer to the slot whose turn it is."""
    ring = op.ring.owner
    if not isinstance(ring, RingOp):
        raise refuse(op, "the ring of this slot is not made in this function")
    pitch = ring.pitch_in_bytes // element_bytes(ring.slot_type)
    view = view_of_type(emitter, op.memref, emitter.scalar(op.ring).text)
    turn = emitter.size(op.index)
    if isinstance(turn, int):
        number: Size = turn % ring.slot_count
    else:
        number = emitter.asm.value(f"srem i64 {turn}, {ring.slot_count}")
    emitter.values[op.memref] = replace(emitter.moved(view, emitter.asm.times(number, pitch)), base=view.pointer)


# views


def emit_subview(emitter: LlvmEmitter, op: memref.SubviewOp) -> None:
    """A pointer to the first element of a part; a dim that the result lacks has size 1."""
    view, asm = emitter.view(op.source), emitter.asm
    offsets = emitter.sizes(op.static_offsets, op.offsets)
    sizes = emitter.sizes(op.static_sizes, op.sizes)
    steps = emitter.sizes(op.static_strides, op.strides)
    _check_offsets(emitter, op, offsets, sizes)
    strides = [asm.times(stride, step) for stride, step in zip(view.strides, steps, strict=True)]
    kept = kept_dims(op, sizes, strides)
    part = replace(view, shape=tuple(sizes[dim] for dim in kept), strides=tuple(strides[dim] for dim in kept))
    emitter.values[op.result] = emitter.moved(part, asm.sum_of(list(zip(offsets, view.strides, strict=True))))


def _check_offsets(emitter: LlvmEmitter, op: memref.SubviewOp, offsets: list[Size], sizes: list[Size]) -> None:
    """Keep offsets that were read from memory, which nothing has proved to be inside, inside."""
    view, asm = emitter.view(op.source), emitter.asm
    dynamic = iter(op.offsets)
    for dim, static in enumerate(op.static_offsets.get_values()):
        if static != DYNAMIC_INDEX or not is_read_from_memory(next(dynamic)):
            continue
        last = asm.add(view.shape[dim], asm.times(-1, sizes[dim]))
        # A negative one is a large one without a sign.
        is_outside = asm.value(f"icmp ugt i64 {offsets[dim]}, {last}")
        emitter.fault_if(is_outside, OUTSIDE)
        offsets[dim] = asm.value(f"select i1 {is_outside}, i64 0, i64 {offsets[dim]}")


def emit_reinterpret_cast(emitter: LlvmEmitter, op: memref.ReinterpretCastOp) -> None:
    """Any view of the allocation that the source belongs to."""
    view = emitter.view(op.source)
    (offset,) = emitter.sizes(op.static_offsets, op.offsets)
    sizes = emitter.sizes(op.static_sizes, op.sizes)
    strides = emitter.sizes(op.static_strides, op.strides)
    whole = replace(view, pointer=view.base, shape=tuple(sizes), strides=tuple(strides))
    emitter.values[op.result] = emitter.moved(whole, offset)


# elements


def emit_load(emitter: LlvmEmitter, op: memref.LoadOp) -> None:
    """The value of an element."""
    view = emitter.view(op.memref)
    pointer = emitter.pointer_at(view, [emitter.size(index) for index in op.indices])
    emitter.bind(op.res, emitter.load(view.ctype, pointer))


def emit_store(emitter: LlvmEmitter, op: memref.StoreOp) -> None:
    """An element gets a value."""
    view = emitter.view(op.memref)
    pointer = emitter.pointer_at(view, [emitter.size(index) for index in op.indices])
    emitter.store(view.ctype, pointer, emitter.scalar(op.value).text)


# constants


def emit_get_global(emitter: LlvmEmitter, op: memref.GetGlobalOp) -> None:
    """A pointer to a constant."""
    name = op.name_.string_value()
    if name not in emitter.program.globals:
        raise UserError(f"the module has no memref.global @{name}", loc=location_of(op))
    symbol = f"@{emitter.program.symbols[name]}"
    emitter.asm.module.helpers.setdefault(symbol, _definition(emitter.program.globals[name], symbol))
    emitter.values[op.memref] = view_of_type(emitter, op.memref, symbol, is_const=True)


def _definition(op: memref.GlobalOp, symbol: str) -> str:
    """The definition of a constant array, as its bytes."""
    ctype, values = global_values(op)
    data = np.asarray(values).astype(ctype.dtype()).tobytes()
    data = data * prod(op.type.get_shape()) if len(values) == 1 else data
    text = "".join(f"\\{byte:02X}" for byte in data or b"\0")
    return f'{symbol} = internal unnamed_addr constant [{max(1, len(data))} x i8] c"{text}", align 64'
