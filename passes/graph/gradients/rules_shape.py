"""Derivatives of ops that move elements: the adjoint moves back."""

from __future__ import annotations

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.gradients.code import AdjointCode, Term, gradient
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
