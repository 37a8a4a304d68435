"""
Derivatives of ops that move elements, or read or write them at indices: the adjoint moves back.

What was read several times gets the sum of the adjoints. Of updates that overwrote one another every one gets the
adjoint of the element, as there is no telling them apart.
"""

from __future__ import annotations

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.gradients.code import AdjointCode, Term, gradient, refuse
from penstock.passes.graph.gradients.geometry import cut, padded, reversed_along, spread


@gradient(graph.ReshapeOp)
def reshape(code: AdjointCode, op: graph.ReshapeOp) -> None:
    """The seed in the shape of the operand."""
    code.add(op.x, lambda: code.seed.reshape(tensor_of(op.x).get_shape()))


@gradient(graph.ExpandOp)
def expand(code: AdjointCode, op: graph.ExpandOp) -> None:
    """The sums of the seed along what was repeated."""
    code.add(op.x, lambda: code.seed)


@gradient(graph.TransposeOp)
def transpose(code: AdjointCode, op: graph.TransposeOp) -> None:
    """The seed with the dimensions back in order."""
    perm = op.perm.get_values()
    code.add(op.x, lambda: code.seed.transpose([perm.index(dim) for dim in range(len(perm))]))


@gradient(graph.LayoutTransformOp)
def layout_transform(code: AdjointCode, op: graph.LayoutTransformOp) -> None:
    """The seed in the layout of the operand. What was filled up with zeros is left out, and the other way round."""
    source, target, back = op.source.data, op.target.data, tensor_of(op.x)
    code.add(
        op.x,
        lambda: code.emit(graph.LayoutTransformOp(code.seed.value, source=target, target=source, result_type=back)),
    )


@gradient(graph.ConcatOp)
def concat(code: AdjointCode, op: graph.ConcatOp) -> None:
    """For each operand its part of the seed."""
    axis, start = op.axis.value.data, 0
    for operand in op.inputs:
        size = tensor_of(operand).get_shape()[axis]
        code.add(operand, lambda start=start, size=size: cut(code.seed, axis, start, size))
        start += size


@gradient(graph.PadOp)
def pad(code: AdjointCode, op: graph.PadOp) -> None:
    """The seed without its border."""
    shape = tensor_of(op.x).get_shape()
    starts = op.pads.get_values()[: len(shape)]
    code.add(op.x, lambda: code.emit(graph.SliceOp(code.seed.value, starts=starts, sizes=shape)))


@gradient(graph.SliceOp)
def slice_(code: AdjointCode, op: graph.SliceOp) -> None:
    """The seed among zeros: reversed where the step is negative, then spread apart, then padded."""
    starts, sizes, steps = (list(each.get_values()) for each in (op.starts, op.sizes, op.steps))
    shape = tensor_of(op.x).get_shape()

    def contribution() -> Term:
        if 0 in sizes:
            return code.zeros(op.x)
        backwards = [dim for dim, step in enumerate(steps) if step < 0 and sizes[dim] > 1]
        found = spread(reversed_along(code.seed, backwards), [abs(step) for step in steps])
        first = [
            start + (size - 1) * step if dim in backwards else start
            for dim, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True))
        ]
        after = [extent - low - size for extent, low, size in zip(shape, first, found.shape, strict=True)]
        return padded(found, first, after)

    code.add(op.x, contribution)


@gradient(graph.GatherOp)
def gather(code: AdjointCode, op: graph.GatherOp) -> None:
    """The parts of the seed added to zeros at their places, with the axis in front."""

    def contribution() -> Term:
        shape, axis = tensor_of(op.x).get_shape(), op.axis.value.data
        places = tensor_of(op.indices).get_shape()
        rows = code.term(op.indices).reshape([*places, 1])
        named = range(axis, axis + len(places))
        updates = code.seed.transpose([*named, *(dim for dim in range(len(code.seed.shape)) if dim not in named)])
        order = [axis, *(dim for dim in range(len(shape)) if dim != axis)]
        zeros = code.number(0.0, code.seed.element_type).expand([shape[dim] for dim in order])
        found = code.emit(graph.ScatterNdOp(zeros.value, rows.value, updates.value, reduction="add"))
        return found.transpose([order.index(dim) for dim in range(len(shape))])

    code.add(op.x, contribution)


@gradient(graph.GatherElementsOp)
def gather_elements(code: AdjointCode, op: graph.GatherElementsOp) -> None:
    """The elements of the seed added to zeros at their places."""

    def contribution() -> Term:
        zeros, axis = code.zeros(op.x).value, op.axis.value.data
        return code.emit(graph.ScatterElementsOp(zeros, op.indices, code.seed.value, axis=axis, reduction="add"))

    code.add(op.x, contribution)


@gradient(graph.GatherNdOp)
def gather_nd(code: AdjointCode, op: graph.GatherNdOp) -> None:
    """The parts of the seed added to zeros at their places."""
    if op.batch_dims.value.data:
        refuse(op, f"with batch_dims {op.batch_dims.value.data}")

    def contribution() -> Term:
        zeros = code.zeros(op.x).value
        return code.emit(graph.ScatterNdOp(zeros, op.indices, code.seed.value, reduction="add"))

    code.add(op.x, contribution)


@gradient(graph.ScatterElementsOp)
def scatter_elements(code: AdjointCode, op: graph.ScatterElementsOp) -> None:
    """The seed, without what was overwritten, and its elements at the places of the updates."""
    axis, reduction = op.axis.value.data, _reduction(op)

    def of_x() -> Term:
        if reduction == "add":
            return code.seed
        zeros = code.zeros(op.updates).value
        return code.emit(graph.ScatterElementsOp(code.seed.value, op.indices, zeros, axis=axis))

    code.add(op.x, of_x)
    code.add(op.updates, lambda: code.emit(graph.GatherElementsOp(code.seed.value, op.indices, axis=axis)))


@gradient(graph.ScatterNdOp)
def scatter_nd(code: AdjointCode, op: graph.ScatterNdOp) -> None:
    """The seed, without what was overwritten, and its parts at the places of the updates."""
    reduction = _reduction(op)

    def of_x() -> Term:
        if reduction == "add":
            return code.seed
        return code.emit(graph.ScatterNdOp(code.seed.value, op.indices, code.zeros(op.updates).value))

    code.add(op.x, of_x)
    code.add(op.updates, lambda: code.emit(graph.GatherNdOp(code.seed.value, op.indices)))


def _reduction(op: graph.ScatterElementsOp | graph.ScatterNdOp) -> str:
    reduction = op.reduction.data
    if reduction not in ("none", "add"):
        refuse(op, f'with the reduction "{reduction}"')
    return reduction
