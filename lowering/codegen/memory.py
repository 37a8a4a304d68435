# SPDX-License-Identifier: Apache-2.0
"""Memrefs: buffers of the context, views as pointers and strides, loads and stores, constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects import memref
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.ir.affine import AffineBinaryOpKind
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import BufferOp, PrefetchOp, RingOp, SlotOp, element_bytes, memref_of
from penstock.lowering.codegen.bounds import begin_of_subview, far, inside, last, require, within
from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.text import Expr, Size
from penstock.lowering.codegen.types import CType, c_type
from penstock.lowering.codegen.views import View, open_numbers, unsupported, view_of_type
from penstock.passes.analysis.index import AffineIndex


def refuse_alloc(emitter: Emitter, op: memref.AllocOp | memref.AllocaOp | memref.DeallocOp) -> None:
    """Generated code allocates nothing: every buffer has an offset before."""
    raise UserError(
        f"{op.name} cannot be lowered to code: there is no allocation inside generated code",
        loc=location_of(op),
        notes=["run `mem-plan` first: it gives every buffer an offset in the arena"],
    )


def emit_buffer(emitter: Emitter, op: BufferOp) -> None:
    """A pointer into the context; a local variable for the scope of the vector registers."""
    emitter.values[op.memref] = view_of_type(op.memref, emitter.allocate(op))


def emit_ring(emitter: Emitter, op: RingOp) -> None:
    """A pointer to the first slot; `mem.slot` advances it."""
    emitter.values[op.storage] = Expr(emitter.allocate(op), is_atom=True)


def emit_slot(emitter: Emitter, op: SlotOp) -> None:
    """A pointer to the slot whose turn it is."""
    ring = op.ring.owner
    if not isinstance(ring, RingOp):
        raise unsupported(op, "the ring of this slot is not made in this function")
    pitch = ring.pitch_in_bytes // element_bytes(ring.slot_type)
    view = view_of_type(op.memref, emitter.scalar(op.ring).text)
    turn, least = emitter.size(op.index), AffineIndex.of(op.index).range[0]
    if least is None or least < 0:
        slots = Expr(str(ring.slot_count), is_atom=True)
        turn = emitter.affine_binary(AffineBinaryOpKind.Mod, emitter.scalar(op.index), slots, may_wrap=True).size
    offset = emitter.slot_offset(turn, ring.slot_count, pitch)
    emitter.values[op.memref] = replace(emitter.point(op.memref, view, offset), base=view.pointer)


# views


def emit_subview(emitter: Emitter, op: memref.SubviewOp) -> None:
    """A pointer to the first element of a part; a dim that the result lacks has size 1."""
    view = emitter.view(op.source)
    offsets = begin_of_subview(emitter, op, view.shape)
    sizes = emitter.sizes(op.static_sizes, op.sizes)
    steps = emitter.sizes(op.static_strides, op.strides)
    strides = [emitter.times(stride, step) for stride, step in zip(view.strides, steps, strict=True)]
    kept = _kept_dims(op, sizes, strides)
    part = replace(view, shape=tuple(sizes[dim] for dim in kept), strides=tuple(strides[dim] for dim in kept))
    emitter.point(op.result, part, emitter.sum_of(list(zip(offsets, view.strides, strict=True))))


def _kept_dims(op: memref.SubviewOp, sizes: list[Size], strides: list[Size]) -> list[int]:
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


def emit_retyped(emitter: Emitter, op: memref.ExpandShapeOp | memref.CollapseShapeOp) -> None:
    """The same elements in another shape: the type of the result says how they lie."""
    source, result = op.operands[0], op.results[0]
    view = emitter.view(source)
    if open_numbers(memref_of(result)):
        groups = [[dim.value.data for dim in group] for group in op.reassociation]
        emitter.values[result] = _regrouped(emitter, op, view, groups)
        return
    found = view_of_type(result, view.pointer, is_const=view.is_const)
    emitter.values[result] = replace(found, base=view.base)


def _regrouped(
    emitter: Emitter, op: memref.ExpandShapeOp | memref.CollapseShapeOp, view: View, groups: Sequence[Sequence[int]]
) -> View:
    """A view of sizes that only a run knows, with dims split into groups or groups made one dim."""
    if isinstance(op, memref.ExpandShapeOp):
        shape = emitter.sizes(op.static_output_shape, op.output_shape)
        strides: list[Size] = [0] * len(shape)
        for dim, group in enumerate(groups):
            step = view.strides[dim]
            for inner in reversed(group):
                strides[inner] = step
                step = emitter.times(step, shape[inner])
            _check_group(emitter, [shape[inner] for inner in group], view.shape[dim])
        return replace(view, shape=tuple(shape), strides=tuple(strides))
    sizes: list[Size] = []
    steps: list[Size] = []
    for group in groups:
        size: Size = 1
        for dim in group:
            size = emitter.times(size, view.shape[dim])
        # The stride of a dim of size 1 says nothing.
        moving = [dim for dim in group if view.shape[dim] != 1] or list(group)
        sizes.append(size)
        steps.append(view.strides[moving[-1]])
    return replace(view, shape=tuple(sizes), strides=tuple(steps))


def _check_group(emitter: Emitter, sizes: Sequence[Size], whole: Size) -> None:
    """That a dim is what it is split into."""
    if all(isinstance(size, int) for size in (*sizes, whole)) or list(sizes) == [whole]:
        return
    orders = list(within(emitter, sizes, whole))
    product: Size = 1
    for size in sizes:
        product = emitter.times(product, size)
    require(emitter, [*orders, *within(emitter, [product], whole), *within(emitter, [whole], product)])


def emit_cast(emitter: Emitter, op: memref.CastOp | memref.MemorySpaceCastOp) -> None:
    """The view of the source: a cast only says more or less about it."""
    emitter.values[op.results[0]] = emitter.view(op.operands[0])


def emit_reinterpret_cast(emitter: Emitter, op: memref.ReinterpretCastOp) -> None:
    """Any view of the allocation that the source belongs to."""
    view = emitter.view(op.source)
    (offset,) = emitter.sizes(op.static_offsets, op.offsets)
    sizes = emitter.sizes(op.static_sizes, op.sizes)
    strides = emitter.sizes(op.static_strides, op.strides)
    _check_reinterpreted(emitter, op, view, offset, sizes, strides)
    whole = replace(view, pointer=view.base, shape=tuple(sizes), strides=tuple(strides))
    if offset == 0:
        emitter.values[op.result] = whole
    else:
        emitter.point(op.result, whole, offset)


def _check_reinterpreted(
    emitter: Emitter, op: memref.ReinterpretCastOp, view: View, offset: Size, sizes: list[Size], strides: list[Size]
) -> None:
    numbers = [offset, *sizes, *strides, *view.shape]
    if all(isinstance(number, int) for number in numbers):
        return
    if view.pointer != view.base:
        raise unsupported(op, "memref.reinterpret_cast, by numbers that only a run knows, of a view at an offset")
    count = emitter.named(emitter.sum_of(last(view.shape, view.strides), 1))
    reached = emitter.sum_of([(offset, 1), *last(sizes, strides)])
    require(emitter, [*within(emitter, (offset, *sizes), count), *far(emitter, strides, count), (reached, count)])


def emit_dim(emitter: Emitter, op: memref.DimOp) -> None:
    """The size of a dim."""
    dim = emitter.size(op.index)
    if not isinstance(dim, int):
        raise emitter.refuse(op, "memref.dim of a dim that is not constant")
    emitter.values[op.result] = _size_expr(emitter.view(op.source).shape[dim])


def emit_rank(emitter: Emitter, op: memref.RankOp) -> None:
    """The number of dims."""
    emitter.values[op.rank] = _size_expr(len(emitter.view(op.source).shape))


def _size_expr(size: Size) -> Expr:
    return Expr(str(size), is_atom=True)


# elements


def emit_load(emitter: Emitter, op: memref.LoadOp) -> None:
    """The value of an element as it is here: what comes later may change the element."""
    view = emitter.view(op.memref)
    element = emitter.at(view, _element(emitter, op, view))
    emitter.declare(op.res, emitter.load(view.ctype, element))


def _element(emitter: Emitter, op: memref.LoadOp | memref.StoreOp, view: View) -> list[Size]:
    return [inside(emitter, index, extent) for index, extent in zip(op.indices, view.shape, strict=True)]


def emit_store(emitter: Emitter, op: memref.StoreOp) -> None:
    """An element gets a value."""
    view = emitter.view(op.memref)
    element = emitter.at(view, _element(emitter, op, view))
    emitter.store(view.ctype, element, emitter.scalar(op.value))


def emit_prefetch(emitter: Emitter, op: PrefetchOp) -> None:
    """Loops over the lines of a view."""
    view = emitter.view(op.source)
    last = len(view.shape) - 1

    def nest(indices: tuple[Size, ...]) -> None:
        dim = len(indices)
        if dim > last:
            emitter.prefetch(emitter.at(view, indices))
        else:
            step = op.step.value.data if dim == last else 1
            emitter.loop(f"i{dim}", view.shape[dim], lambda index: nest((*indices, index)), step=step)

    nest(())


# constants


def emit_get_global(emitter: Emitter, op: memref.GetGlobalOp) -> None:
    """A pointer to a constant."""
    name = op.name_.string_value()
    if name not in emitter.program.globals:
        raise UserError(f"the module has no memref.global @{name}", loc=location_of(op))
    emitter.values[op.memref] = view_of_type(op.memref, emitter.global_pointer(name), is_const=True)


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
