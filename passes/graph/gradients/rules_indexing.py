"""
Derivatives of ops that read or write elements at places that other operands name.

What was read several times gets the sum of the adjoints. Of updates that overwrote one another every one gets the
adjoint of the place, as there is no telling them apart.
"""

from __future__ import annotations

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.gradients.code import AdjointCode, Term, gradient, refuse


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
