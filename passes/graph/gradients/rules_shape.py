# SPDX-License-Identifier: Apache-2.0
"""
Derivatives of ops that move elements, or read or write them at indices: the adjoint moves back.

What was read several times gets the sum of the adjoints. Of updates that overwrote one another every one gets the
adjoint of the element: which one it was is not known.
"""

from __future__ import annotations

from typing import Any

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.gradients.code import AdjointCode, Term, derivative, gradient, refuse


@derivative(graph.ReshapeOp)
def reshape(code: AdjointCode, op: graph.ReshapeOp) -> Term:
    """The seed in the shape of the operand."""
    return code.seed.reshape(tensor_of(op.x).get_shape())


@derivative(graph.ExpandOp)
def expand(code: AdjointCode, op: graph.ExpandOp) -> Term:
    """The sums of the seed along what was repeated."""
    return code.seed


@derivative(graph.TransposeOp)
def transpose(code: AdjointCode, op: graph.TransposeOp) -> Term:
    """The seed with the dimensions back in order."""
    perm = op.perm.get_values()
    return code.seed.transpose([perm.index(dim) for dim in range(len(perm))])


@derivative(graph.LayoutTransformOp)
def layout_transform(code: AdjointCode, op: graph.LayoutTransformOp) -> Term:
    """The seed in the layout of the operand. What was filled up with zeros is left out, and the other way round."""
    source, target, back = op.source.data, op.target.data, tensor_of(op.x)
    return code.emit(graph.LayoutTransformOp(code.seed.value, source=target, target=source, result_type=back))


@gradient(graph.ConcatOp)
def concat(code: AdjointCode, op: graph.ConcatOp) -> None:
    """For each operand its part of the seed."""
    axis, start = op.axis.value.data, 0
    for operand in op.inputs:
        size = tensor_of(operand).get_shape()[axis]
        code.add(operand, lambda start=start, size=size: code.seed.cut(axis, start, size))
        start += size


@derivative(graph.PadOp)
def pad(code: AdjointCode, op: graph.PadOp) -> Term:
    """The seed without its border."""
    shape = tensor_of(op.x).get_shape()
    return code.seed.slice(op.pads.get_values()[: len(shape)], shape)


@derivative(graph.SliceOp)
def slice_(code: AdjointCode, op: graph.SliceOp) -> Term:
    """The seed among zeros: reversed where the step is negative, then spread apart, then padded."""
    starts, sizes, steps = (list(each.get_values()) for each in (op.starts, op.sizes, op.steps))
    if 0 in sizes:
        return code.zeros(op.x)
    backwards = [dim for dim, step in enumerate(steps) if step < 0 and sizes[dim] > 1]
    found = code.seed.reversed(backwards).spread([abs(step) for step in steps])
    first = [
        start + (size - 1) * step if dim in backwards else start
        for dim, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True))
    ]
    extents = zip(tensor_of(op.x).get_shape(), first, found.shape, strict=True)
    return found.padded(first, [extent - low - size for extent, low, size in extents])


@derivative(graph.GatherOp)
def gather(code: AdjointCode, op: graph.GatherOp) -> Term:
    """The parts of the seed added to zeros at their places, with the axis first."""
    shape, axis = tensor_of(op.x).get_shape(), op.axis.value.data
    places = tensor_of(op.indices).get_shape()
    rows = code.term(op.indices).reshape([*places, 1])
    named = range(axis, axis + len(places))
    updates = code.seed.transpose([*named, *(dim for dim in range(len(code.seed.shape)) if dim not in named)])
    order = [axis, *(dim for dim in range(len(shape)) if dim != axis)]
    zeros = code.number(0.0, code.seed.element_type).expand([shape[dim] for dim in order])
    found = code.emit(graph.ScatterNdOp(zeros.value, rows.value, updates.value, reduction="add"))
    return found.transpose([order.index(dim) for dim in range(len(shape))])


@derivative(graph.GatherElementsOp)
def gather_elements(code: AdjointCode, op: graph.GatherElementsOp) -> Term:
    """The elements of the seed added to zeros at their places."""
    zeros, axis = code.zeros(op.x).value, op.axis.value.data
    return code.emit(graph.ScatterElementsOp(zeros, op.indices, code.seed.value, axis=axis, reduction="add"))


@derivative(graph.GatherNdOp)
def gather_nd(code: AdjointCode, op: graph.GatherNdOp) -> Term:
    """The parts of the seed added to zeros at their places."""
    if op.batch_dims.value.data:
        refuse(op, f"with batch_dims {op.batch_dims.value.data}")
    return code.emit(graph.ScatterNdOp(code.zeros(op.x).value, op.indices, code.seed.value, reduction="add"))


@gradient(graph.ScatterElementsOp, graph.ScatterNdOp)
def scatter(code: AdjointCode, op: graph.ScatterElementsOp | graph.ScatterNdOp) -> None:
    """The seed, without what was overwritten, and its elements, or parts, at the places of the updates."""
    if (reduction := op.reduction.data) not in ("none", "add"):
        refuse(op, f'with the reduction "{reduction}"')
    seed, indices = code.seed, op.indices
    axis: dict[str, Any] = {"axis": op.axis.value.data} if isinstance(op, graph.ScatterElementsOp) else {}
    read = graph.GatherElementsOp if axis else graph.GatherNdOp

    def of_x() -> Term:
        if reduction == "add":
            return seed
        return code.emit(type(op)(seed.value, indices, code.zeros(op.updates).value, **axis))

    code.add(op.x, of_x)
    code.add(op.updates, lambda: code.emit(read(seed.value, indices, **axis)))
