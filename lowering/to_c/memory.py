"""Memrefs in C: buffers of the context, views as pointers and strides, loads and stores, constants."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseIntOrFPElementsAttr, MemRefType
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import REGISTERS
from penstock.dialects.mem import BufferOp, RingOp, ScopedAllocation, SlotOp, element_bytes, memref_of
from penstock.lowering.to_c.emitter import CProgram, CView, FunctionEmitter, Values, refuse, view_of_type
from penstock.lowering.to_c.text import Expr, Size, identifier, sum_of, times
from penstock.lowering.to_c.types import CType, c_type, literal


def refuse_alloc(emitter: Values, op: memref.AllocOp | memref.AllocaOp | memref.DeallocOp) -> None:
    """Generated C allocates nothing: every buffer has an offset before."""
    raise UserError(
        f"{op.name} cannot be lowered to code: there is no allocation inside generated code",
        loc=location_of(op),
        notes=["run `mem-plan` first: it gives every buffer an offset in the arena"],
    )


def emit_buffer(emitter: FunctionEmitter, op: BufferOp) -> None:
    """A pointer into a byte array of the context."""
    pointer = _allocate(emitter, op, op.type)
    emitter.values[op.memref] = replace(view_of_type(emitter, op.memref, ""), pointer=pointer, base=pointer)


def emit_ring(emitter: FunctionEmitter, op: RingOp) -> None:
    """A pointer to the first slot; `mem.slot` advances it."""
    _allocate(emitter, op, op.slot_type)


def emit_slot(emitter: FunctionEmitter, op: SlotOp) -> None:
    """A pointer to the slot whose turn it is."""
    ring = op.ring.owner
    if not isinstance(ring, RingOp):
        raise refuse(op, "the ring of this slot is not made in this function")
    pitch = ring.pitch_in_bytes // element_bytes(ring.slot_type)
    view = view_of_type(emitter, op.memref, emitter.scalar(op.ring).text)
    turn = emitter.size(op.index)
    number = str(turn % ring.slot_count) if isinstance(turn, int) else f"{turn} % {ring.slot_count}"
    emitter.values[op.memref] = replace(
        emitter.declare_pointer(op.memref, view, f"{number} * {pitch}"), base=view.pointer
    )


def require_placed(program: CProgram, op: ScopedAllocation, ctype: CType) -> None:
    """Note where the bytes of an allocation end; raises UserError where it is placed wrongly."""
    scope, offset, end = op.scope, op.planned_offset(), op.planned_offset() + op.size_in_bytes
    if offset % ctype.size:
        raise UserError(
            f"byte {offset} is no offset for {ctype.name}: it must be a multiple of {ctype.size}", loc=location_of(op)
        )
    if scope is not None and program.target is not None and end > (size := program.target.scope(scope).size_bytes):
        raise UserError(
            f'this buffer ends at byte {end} of "{scope}", which has {size}',
            loc=location_of(op),
            notes=["run `mem-plan` again, or tile smaller"],
        )
    if scope != REGISTERS:
        program.scope_ends[scope or ""] = max(program.scope_ends.get(scope or "", 0), end)


def _allocate(emitter: FunctionEmitter, op: ScopedAllocation, type: MemRefType[Attribute]) -> str:
    """Declare a pointer to the bytes of `op` in a byte array of the context, and return its name."""
    scope, offset, ctype = op.scope, op.planned_offset(), c_type(type.element_type, op)
    require_placed(emitter.program, op, ctype)
    if scope == REGISTERS:
        name = emitter.name(op.storage)
        emitter.writer.line(f"{ctype.storage} {name}[{op.size_in_bytes // ctype.size}];")
        emitter.values[op.storage] = Expr(name, is_atom=True)
        return name
    array = f"ctx->{scope_field(scope)}"
    start = array if offset == 0 else f"({array} + {offset})"
    name = emitter.name(op.storage)
    emitter.writer.line(f"{ctype.storage} *const {name} = ({ctype.storage} *){start};")
    emitter.values[op.storage] = Expr(name, is_atom=True)
    return name


def scope_field(scope: str | None) -> str:
    """The member of the context that holds a scope, or the arena."""
    return "arena" if scope is None else f"scope_{identifier(scope)}"


# views


def emit_subview(emitter: FunctionEmitter, op: memref.SubviewOp) -> None:
    """A pointer to the first element of a part; a dim that the result lacks has size 1."""
    view = emitter.view(op.source)
    offsets = emitter.sizes(op.static_offsets, op.offsets)
    sizes = emitter.sizes(op.static_sizes, op.sizes)
    steps = emitter.sizes(op.static_strides, op.strides)
    _check_offsets(emitter, op, view, offsets, sizes)
    strides = [times(stride, step) for stride, step in zip(view.strides, steps, strict=True)]
    kept = kept_dims(op, sizes, strides)
    part = replace(view, shape=tuple(sizes[dim] for dim in kept), strides=tuple(strides[dim] for dim in kept))
    offset = sum_of(list(zip(offsets, view.strides, strict=True)))
    emitter.declare_pointer(op.result, part, offset)


def _check_offsets(
    emitter: FunctionEmitter, op: memref.SubviewOp, view: CView, offsets: list[Size], sizes: list[Size]
) -> None:
    """Keep offsets that were read from memory, which nothing has proved to be inside, inside."""
    dynamic = iter(op.offsets)
    for dim, static in enumerate(op.static_offsets.get_values()):
        if static != DYNAMIC_INDEX or not is_read_from_memory(value := next(dynamic)):
            continue
        extent, size = view.shape[dim], sizes[dim]
        if isinstance(extent, int) and isinstance(size, int):
            positions = str(extent - size + 1)
        else:
            positions = f"{extent} - {size} + 1"
        helper = emitter.helper("inside", emitter.ctype(value.type, op))
        offsets[dim] = f"{helper}({offsets[dim]}, {positions}, &{emitter.own}->fault)"


def is_read_from_memory(value: SSAValue) -> bool:
    """Whether an index depends on an element that was read."""
    match value.owner:
        case memref.LoadOp():
            return True
        case arith.AddiOp() | arith.IndexCastOp() | arith.SelectOp() | arith.ExtUIOp() | arith.ExtSIOp():
            return any(is_read_from_memory(operand) for operand in value.owner.operands)
        case _:
            return False


def kept_dims(op: memref.SubviewOp, sizes: list[Size], strides: list[Size]) -> list[int]:
    """The dims of the source that the result of a subview has, found by size and stride."""
    result = memref_of(op.result)
    shape, wanted = result.get_shape(), result.get_strides()
    kept: list[int] = []
    for dim, size in enumerate(sizes):
        position, left = len(kept), len(sizes) - dim - 1
        if position == len(shape):
            break
        fits = size == shape[position] or not isinstance(size, int)
        if fits and wanted is not None and isinstance(wanted[position], int) and isinstance(strides[dim], int):
            fits = wanted[position] == strides[dim]
        if fits or size != 1 or left < len(shape) - position:
            kept.append(dim)
    return kept


def emit_retyped(emitter: Values, op: memref.ExpandShapeOp | memref.CollapseShapeOp) -> None:
    """The same elements in another shape: the type of the result says how they lie."""
    source, result = op.operands[0], op.results[0]
    view = emitter.view(source)
    found = view_of_type(emitter, result, view.pointer, is_const=view.is_const)
    emitter.values[result] = replace(found, base=view.base)


def emit_cast(emitter: Values, op: memref.CastOp | memref.MemorySpaceCastOp) -> None:
    """The view of the source: a cast only says more or less about it."""
    emitter.values[op.results[0]] = emitter.view(op.operands[0])


def emit_reinterpret_cast(emitter: FunctionEmitter, op: memref.ReinterpretCastOp) -> None:
    """Any view of the allocation that the source belongs to."""
    view = emitter.view(op.source)
    (offset,) = emitter.sizes(op.static_offsets, op.offsets)
    sizes = emitter.sizes(op.static_sizes, op.sizes)
    strides = emitter.sizes(op.static_strides, op.strides)
    whole = replace(view, pointer=view.base, shape=tuple(sizes), strides=tuple(strides))
    if offset == 0:
        emitter.values[op.result] = whole
    else:
        emitter.declare_pointer(op.result, whole, str(offset))


def emit_dim(emitter: Values, op: memref.DimOp) -> None:
    """The size of a dim."""
    dim = emitter.size(op.index)
    if not isinstance(dim, int):
        raise refuse(op, "memref.dim needs a constant dim to be lowered to C")
    emitter.values[op.result] = _size_expr(emitter.view(op.source).shape[dim])


def emit_rank(emitter: Values, op: memref.RankOp) -> None:
    """The number of dims."""
    emitter.values[op.rank] = _size_expr(len(emitter.view(op.source).shape))


def _size_expr(size: Size) -> Expr:
    return Expr(str(size), is_atom=True)


# elements


def emit_load(emitter: FunctionEmitter, op: memref.LoadOp) -> None:
    """A variable with the value of an element: what comes later may change the element."""
    view = emitter.view(op.memref)
    lvalue = view.at([emitter.size(index) for index in op.indices])
    emitter.declare(op.res, emitter.load(view.ctype, lvalue))


def emit_store(emitter: FunctionEmitter, op: memref.StoreOp) -> None:
    """An assignment of an element."""
    view = emitter.view(op.memref)
    lvalue = view.at([emitter.size(index) for index in op.indices])
    emitter.store(view.ctype, lvalue, emitter.scalar(op.value))


# constants


def emit_get_global(emitter: FunctionEmitter, op: memref.GetGlobalOp) -> None:
    """A pointer to a constant."""
    name = op.name_.string_value()
    if name not in emitter.program.globals:
        raise UserError(f"the module has no memref.global @{name}", loc=location_of(op))
    symbol = emitter.program.symbols[name]
    emitter.values[op.memref] = view_of_type(emitter, op.memref, symbol, is_const=True)


def global_values(op: memref.GlobalOp) -> tuple[CType, list[int | float]]:
    """
    The element type of a constant array and its numbers, one where all are the same.

    Raises UserError for a global that is no constant: generated code has no mutable state of its own.
    """
    if op.constant is None or not isa(op.initial_value, DenseIntOrFPElementsAttr):
        raise UserError(
            f"@{op.sym_name.data} is no constant: generated code has no state outside its context",
            loc=location_of(op),
            notes=["mark it `constant` and give it a value"],
        )
    values = [value for value in op.initial_value.get_values() if not isinstance(value, tuple)]
    return c_type(op.type.element_type, op), values


def global_definition(op: memref.GlobalOp, symbol: str) -> str:
    """The definition of a constant array; raises UserError as `global_values`."""
    ctype, values = global_values(op)
    count = prod(op.type.get_shape())
    texts = [_element(ctype, value) for value in values]
    texts = texts * count if len(texts) == 1 else texts
    rows = [f"  {', '.join(texts[start : start + 12])}," for start in range(0, len(texts), 12)]
    return "\n".join([f"static const {ctype.storage} {symbol}[{max(1, count)}] = {{", *rows, "};\n"])


def _element(ctype: CType, value: float) -> str:
    if ctype.is_small:
        bits = np.asarray(value).astype(ctype.dtype()).view(f"u{ctype.size}")
        return f"0x{int(bits):0{2 * ctype.size}x}"
    return literal(ctype, value).text
