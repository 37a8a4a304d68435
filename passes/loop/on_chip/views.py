"""The views through which `@main` hands memrefs to kernels, of a memref that lies elsewhere and otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.builder import Builder
from xdsl.dialects import memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType, NoneAttr, StridedLayoutAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import Rewriter

from penstock.dialects.mem import memref_of, scope_of, static_strides
from penstock.passes.analysis.strides import collapsed_strides, contiguous_strides, expanded_strides
from penstock.passes.loop.on_chip.specialize import CannotReside

VIEWS = (memref.SubviewOp, memref.ExpandShapeOp, memref.CollapseShapeOp, memref.CastOp)
"""Ops whose result is another view of their first operand."""


def strided_type(
    like: MemRefType[Attribute], shape: Sequence[int], strides: Sequence[int], offset: int | None
) -> MemRefType[Attribute]:
    """A memref type with the element and the scope of `like`; an offset of None is any."""
    if isinstance(like.layout, NoneAttr) and tuple(strides) == tuple(contiguous_strides(shape)) and offset == 0:
        return MemRefType(like.element_type, shape, NoneAttr(), like.memory_space)
    return MemRefType(like.element_type, shape, StridedLayoutAttr(strides, offset), like.memory_space)


def is_partial(views: Sequence[Operation]) -> bool:
    """Whether these views, one of the other, show only a part."""
    return any(isinstance(view, memref.SubviewOp) for view in views)


def changes_shape(views: Sequence[Operation]) -> bool:
    """Whether any of these views is more than a cast."""
    return any(not isinstance(view, memref.CastOp) for view in views)


def view_type(view: Operation, source: MemRefType[Attribute]) -> MemRefType[Attribute]:
    """
    The type that `view` would have if its source had the type `source`.

    Raises CannotReside where no type says how the elements lie then.
    """
    strides, offset = static_strides(source), _offset_of(source)
    match view:
        case memref.CastOp():
            return source
        case memref.SubviewOp():
            offsets = list(view.static_offsets.get_values())
            sizes, steps = view.static_sizes.get_values(), view.static_strides.get_values()
            if len(sizes) != memref_of(view.result).get_num_dims() or DYNAMIC_INDEX in offsets:
                raise CannotReside("it is seen through a view with fewer dims, or at a place that is not constant")
            return memref.SubviewOp.infer_result_type(source, offsets, list(sizes), list(steps))
        case memref.ExpandShapeOp() | memref.CollapseShapeOp():
            groups = [[dim.value.data for dim in group] for group in view.reassociation]
            shape = memref_of(view.results[0]).get_shape()
            if isinstance(view, memref.ExpandShapeOp):
                found = expanded_strides(strides, shape, groups)
            else:
                found = collapsed_strides(source.get_shape(), strides, groups)
            if found is None:
                raise CannotReside(f"its rows are not seen as {'x'.join(map(str, shape))} where they lie apart on chip")
            return strided_type(source, shape, found, offset)
        case _:
            raise CannotReside(f"it is seen through {view.name}")


def _offset_of(type: MemRefType[Attribute]) -> int:
    offset = type.get_offset()
    assert offset is not None
    return offset


def argument_type(type: MemRefType[Attribute]) -> MemRefType[Attribute]:
    """The type of the argument that takes a memref of this type: where it begins is left open, unless it is at 0."""
    return type if _offset_of(type) == 0 else strided_type(type, type.get_shape(), static_strides(type), None)


def rebuild(builder: Builder, views: Sequence[Operation], source: SSAValue) -> SSAValue:
    """The same views of another memref, as an argument takes them."""
    for view in views:
        if isinstance(view, memref.CastOp):
            continue
        clone = view.clone({view.operands[0]: source})
        builder.insert(clone)
        source = _with_type(clone, view_type(view, memref_of(source)))
    return as_argument(builder, source)


def _with_type(op: Operation, type: MemRefType[Attribute]) -> SSAValue:
    return Rewriter.replace_value_with_new_type(op.results[0], type)


def as_argument(builder: Builder, value: SSAValue) -> SSAValue:
    """The memref, cast to the type of an argument."""
    type = memref_of(value)
    assert scope_of(type) is not None
    wanted = argument_type(type)
    if wanted == type:
        return value
    return builder.insert(memref.CastOp.get(value, wanted)).dest
