# SPDX-License-Identifier: Apache-2.0
"""The bytes of a memref: the allocation that views share, its type in a scope, and the ops that write it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from xdsl.builder import Builder
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType, StridedLayoutAttr, StringAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Attribute, Operation, SSAValue, Use
from xdsl.utils.hints import isa

from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import CopyOp, SlotOp, element_bytes, memref_of
from penstock.passes.analysis.access import places_each
from penstock.passes.analysis.strides import kept_dims
from penstock.passes.index_builder import Index

VIEWS = (memref.SubviewOp, memref.ExpandShapeOp, memref.CollapseShapeOp, memref.CastOp)
"""Ops whose result is another view of their first operand."""


def uses_through(value: SSAValue, views: tuple[type[Operation], ...] = VIEWS) -> Iterator[Use]:
    """The uses of a memref, itself and through `views`, that are none of these."""
    for use in list(value.uses):
        if isinstance(use.operation, views):
            yield from uses_through(use.operation.results[0], views)
        else:
            yield use


def reads_and_writes(use: Use) -> tuple[bool, bool]:
    """Whether the user of a memref may read it, and whether it may write it."""
    op = use.operation
    if isinstance(op, CopyOp):
        return op.operands[use.index] is op.source, op.operands[use.index] is op.dest
    if isinstance(op, GenericOp):
        is_output = use.index >= len(op.inputs)
        return not is_output or bool(op.body.block.args[use.index].uses), is_output
    if isinstance(op, memref.LoadOp):
        return True, False
    return True, True


def storage_of(value: SSAValue) -> SSAValue:
    """The allocation or argument whose bytes `value` is a view of; of a slot, the ring."""
    while True:
        match value.owner:
            case memref.SubviewOp() | memref.CastOp():
                value = value.owner.source
            case SlotOp():
                value = value.owner.ring
            case _:
                return value


def in_scope(type: MemRefType[Attribute], target: TargetOp, scope: str, adjoining: int = 1) -> MemRefType[Attribute]:
    """
    The type of a buffer of this shape in `scope`, with rows rounded up to its granule; off chip, as it is.

    A row is one of the last dim, or of the last `adjoining` ones, between which there are then no gaps.
    """
    shape = type.get_shape()
    if scope == DRAM:
        return MemRefType(type.element_type, shape)
    element = element_bytes(type)
    granule = target.scope(scope).granule_bytes
    row = prod(shape[-adjoining:])
    if len(shape) <= adjoining or row * element % granule == 0 or granule % element:
        return MemRefType(type.element_type, shape, memory_space=StringAttr(scope))
    strides = [1]
    for inner, size in enumerate(shape[:0:-1], start=1):
        step = strides[0] * size
        strides.insert(0, -(-step * element // granule) * granule // element if inner == adjoining else step)
    return MemRefType(type.element_type, shape, StridedLayoutAttr(strides), StringAttr(scope))


def is_written(op: Operation, storage: SSAValue) -> bool:
    """Whether `op` writes bytes of `storage`."""
    if isinstance(op, GenericOp):
        return any(storage_of(value) is storage for value in op.outputs)
    return isinstance(op, CopyOp) and storage_of(op.dest) is storage


def overwrites(op: Operation, value: SSAValue) -> bool:
    """Whether `op` certainly writes every element of `value` before anything in it reads one."""
    if isinstance(op, CopyOp):
        return op.dest is value and op.window_side != "dest" and op.source is not value
    if not isinstance(op, GenericOp) or value in op.inputs or value not in op.outputs:
        return False
    number = list(op.operands).index(value)
    assert isa(value.type, MemRefType)
    written = list(op.indexing_maps)[number].data
    return places_each(written, value.type.get_shape()) and not op.body.block.args[number].uses


def subview_type(view: memref.SubviewOp, source: MemRefType[Attribute]) -> MemRefType[Attribute]:
    """The type that a view has if its source has the type `source`."""
    offsets = get_dynamic_index_list(view.static_offsets.get_values(), view.offsets, DYNAMIC_INDEX)
    sizes, strides = list(view.static_sizes.get_values()), list(view.static_strides.get_values())
    full = memref.SubviewOp.infer_result_type(source, offsets, sizes, strides)
    shape = memref_of(view.result).get_shape()
    if len(shape) == len(sizes):
        return full
    layout, kept = full.layout, kept_dims(sizes, shape)
    assert isinstance(layout, StridedLayoutAttr)
    dropped = StridedLayoutAttr([layout.strides.data[dim] for dim in kept], layout.offset)
    return MemRefType(full.element_type, shape, dropped, full.memory_space)


def slice_of(builder: Builder, source: SSAValue, offsets: Sequence[Index], sizes: Sequence[int]) -> SSAValue:
    """The part of a memref of these sizes that begins at `offsets`; the memref itself if that is all of it."""
    type = memref_of(source)
    if list(type.get_shape()) == list(sizes):
        return source
    ones = [1] * len(sizes)
    result = memref.SubviewOp.infer_result_type(type, list(offsets), list(sizes), ones)
    return builder.insert(memref.SubviewOp.get(source, list(offsets), list(sizes), ones, result)).result


def accesses_of(function: func.FuncOp, storage: SSAValue) -> list[CopyOp | GenericOp]:
    """The copies and structured ops of a function that read or write bytes of `storage`, itself or through views."""
    ops = (op for op in function.walk() if isinstance(op, CopyOp | GenericOp))
    return [op for op in ops if any(storage_of(value) is storage for value in op.operands)]
