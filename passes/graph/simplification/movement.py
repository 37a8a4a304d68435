# SPDX-License-Identifier: Apache-2.0
"""
Rules for ops that move elements and compute none, for `simplify`: all of them are exact.

- what moves nothing goes: a reshape, slice, expansion or transpose to what there is, a pad by nothing, a concatenation
  of one, a reduction along no axis, the largest of one element;
- two of a kind are one: reshapes, transposes, slices, pads with one value, concatenations along one axis, expansions;
- a transpose that moves only dimensions of size 1 is a reshape, which moves nothing in memory;
- a slice of a concatenation that lies inside one part is a slice of that part;
- a concatenation of neighbouring slices is one slice.
"""

from __future__ import annotations

from itertools import pairwise

from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.simplification.rules import Rules, has_type_of, identity, is_integral
from penstock.passes.graph.values import NodeBuilder, only_user


def _twice(op: graph.ExpandOp | graph.ReshapeOp, nodes: NodeBuilder) -> SSAValue | None:
    before = op.x.owner
    if isinstance(before, graph.ExpandOp | graph.ReshapeOp) and type(before) is type(op):
        return nodes.add(type(op)(before.x, op.result_type.get_shape()))
    return None


def _expand(op: graph.ExpandOp, nodes: NodeBuilder) -> SSAValue | None:
    return op.x if has_type_of(op.x, op) else None


def _transpose(op: graph.TransposeOp, nodes: NodeBuilder) -> SSAValue | None:
    perm = op.perm.get_values()
    shape = tensor_of(op.x).get_shape()
    moving = [dim for dim in perm if shape[dim] != 1]
    if moving == sorted(moving):
        return nodes.add(graph.ReshapeOp(op.x, op.result_type.get_shape()))
    before = op.x.owner
    if not isinstance(before, graph.TransposeOp):
        return None
    inner = before.perm.get_values()
    return nodes.add(graph.TransposeOp(before.x, perm=[inner[dim] for dim in perm]))


def _slice(op: graph.SliceOp, nodes: NodeBuilder) -> SSAValue | None:
    before = op.x.owner
    if not isinstance(before, graph.SliceOp):
        return None
    starts, steps = op.starts.get_values(), op.steps.get_values()
    inner = list(zip(before.starts.get_values(), before.steps.get_values(), strict=True))
    return nodes.add(
        graph.SliceOp(
            before.x,
            starts=[first + start * step for (first, step), start in zip(inner, starts, strict=True)],
            sizes=op.sizes.get_values(),
            steps=[step * each for (_, step), each in zip(inner, steps, strict=True)],
        )
    )


def _slice_of_concat(op: graph.SliceOp, nodes: NodeBuilder) -> SSAValue | None:
    before = op.x.owner
    if not isinstance(before, graph.ConcatOp):
        return None
    axis = before.axis.value.data
    starts, sizes, steps = (list(each.get_values()) for each in (op.starts, op.sizes, op.steps))
    if not sizes[axis]:
        return None
    first, last = sorted((starts[axis], starts[axis] + (sizes[axis] - 1) * steps[axis]))
    offset = 0
    for part in before.inputs:
        size = tensor_of(part).get_shape()[axis]
        if offset <= first and last < offset + size:
            starts[axis] -= offset
            return nodes.add(graph.SliceOp(part, starts=starts, sizes=sizes, steps=steps))
        offset += size
    return None


def _pad(op: graph.PadOp, nodes: NodeBuilder) -> SSAValue | None:
    pads = op.pads.get_values()
    before = op.x.owner
    if not isinstance(before, graph.PadOp) or before.value != op.value or only_user(op.x) is not op:
        return None
    both = [first + second for first, second in zip(before.pads.get_values(), pads, strict=True)]
    return nodes.add(graph.PadOp(before.x, pads=both, value=op.value.value.data))


def _concat(op: graph.ConcatOp, nodes: NodeBuilder) -> SSAValue | None:
    parts: list[SSAValue] = []
    for value in op.inputs:
        before = value.owner
        inner = isinstance(before, graph.ConcatOp) and before.axis == op.axis and value.has_one_use()
        parts += before.inputs if isinstance(before, graph.ConcatOp) and inner else [value]
    if len(parts) == len(op.inputs):
        return None
    return nodes.add(graph.ConcatOp(parts, axis=op.axis.value.data))


def _concat_of_slices(op: graph.ConcatOp, nodes: NodeBuilder) -> SSAValue | None:
    slices = [owner for value in op.inputs if isinstance(owner := value.owner, graph.SliceOp)]
    axis = op.axis.value.data
    if len(slices) != len(op.inputs) or not all(_follows(*pair, axis) for pair in pairwise(slices)):
        return None
    first = slices[0]
    starts, steps = first.starts.get_values(), first.steps.get_values()
    return nodes.add(graph.SliceOp(first.x, starts=starts, sizes=op.result_type.get_shape(), steps=steps))


def _follows(left: graph.SliceOp, right: graph.SliceOp, axis: int) -> bool:
    """Whether two slices of one value are neighbours along `axis` and equal otherwise."""
    if left.x != right.x or left.steps != right.steps:
        return False
    ends = list(left.starts.get_values())
    ends[axis] += left.sizes.get_values()[axis] * left.steps.get_values()[axis]
    return ends == list(right.starts.get_values())


def _reduction(op: graph.ReductionOp, nodes: NodeBuilder) -> SSAValue | None:
    """Along no axis; sums of floats begin at 0.0, which takes the sign of a -0.0."""
    exact = is_integral(op.result) or not isinstance(op, graph.ReduceSumOp | graph.ReduceMeanOp)
    return op.x if exact and not op.axes.get_values() and has_type_of(op.x, op) else None


def _selection(op: graph.ReductionOp, nodes: NodeBuilder) -> SSAValue | None:
    """The largest or least of one element is that element."""
    shape = tensor_of(op.x).get_shape()
    if any(shape[axis] != 1 for axis in op.axes.get_values()):
        return None
    return nodes.add(graph.ReshapeOp(op.x, op.result_type.get_shape()))


def _max_pool(op: graph.MaxPoolOp, nodes: NodeBuilder) -> SSAValue | None:
    alone = {*op.kernel_shape.get_values()} == {1} == {*op.strides.get_values()} and not any(op.pads.get_values())
    return op.x if alone else None


RULES: Rules = {
    graph.ReshapeOp: (identity, _twice),
    graph.ExpandOp: (_expand, _twice),
    graph.TransposeOp: (
        identity,
        _transpose,
    ),
    graph.SliceOp: (identity, _slice, _slice_of_concat),
    graph.PadOp: (
        identity,
        _pad,
    ),
    graph.ConcatOp: (identity, _concat, _concat_of_slices),
    graph.ReduceSumOp: (_reduction,),
    graph.ReduceMeanOp: (_reduction,),
    graph.ReduceProdOp: (_reduction,),
    graph.ReduceMaxOp: (_reduction, _selection),
    graph.ReduceMinOp: (_reduction, _selection),
    graph.MaxPoolOp: (_max_pool,),
}
