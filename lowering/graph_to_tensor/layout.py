"""Changes of layout: views where no element moves, else one generic between views."""

from __future__ import annotations

from xdsl.dialects import tensor
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.layout import layout_of_rank, steps_between
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.lowering.graph_to_tensor.shape import copied
from penstock.lowering.graph_to_tensor.shapes import element_of, loops, shape_of, tensor_type
from penstock.passes.tensor.reshape import emit_reshape


@lowers(graph.LayoutTransformOp)
def layout_transform(kernel: KernelBuilder, op: graph.LayoutTransformOp) -> SSAValue:
    """
    Zeros after what blocks hang over; every dim in the runs that both layouts keep together; a copy whose map permutes
    them; the runs joined; what is beyond the result's sizes left out, in the copy where the source has no blocks.
    """
    x, result = kernel.value(op.x), shape_of(op.result)
    shape = shape_of(x)
    source, target = layout_of_rank(op.source.data, len(shape)), layout_of_rank(op.target.data, len(result))
    steps = steps_between(source, target, shape, result)
    after = [large - size for large, size in zip(steps.grown, shape, strict=True)]
    x = kernel.pad(x, [0] * len(shape), after, 0)
    x = emit_reshape(kernel.emit, x, steps.split)
    kept = [dim for dim in steps.perm if steps.split[dim] != 1]
    if kept != sorted(kept):
        place = dict(zip(steps.perm, loops(len(steps.perm)), strict=True))
        moved = [steps.split[dim] for dim in steps.perm]
        x = copied(kernel, x, [place[dim] for dim in range(len(steps.split))], moved)
    x = emit_reshape(kernel.emit, x, steps.joined)
    if steps.joined != tuple(result):
        zeros, ones = [0] * len(result), [1] * len(result)
        cut = tensor.ExtractSliceOp(x, zeros, result, ones, tensor_type(tuple(result), element_of(x)))
        x = copied(kernel, kernel.emit(cut), loops(len(result)), result)
    return x
