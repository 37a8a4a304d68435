# SPDX-License-Identifier: Apache-2.0
"""A convolution, what follows it element by element, and a pool over the whole image, a group of channels at a time."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from penstock.dialects.graph import ConcatOp, ConvOp, GraphOp, SliceOp, tensor_of
from penstock.dialects.graph.base import tensor_type
from penstock.passes.graph.values import NodeBuilder, is_constant, rebuilt


def channel_parts(ops: Sequence[GraphOp]) -> int:
    """
    Into how many parts of equal channels the ops can be cut at most; 0 where they cannot.

    They are a convolution and what only reads it, element by element; channels are innermost.
    """
    first = ops[0]
    if not isinstance(first, ConvOp) or first.group.value.data != 1 or first.layout.data[-1:] != "C":
        return 0
    if not all(map(is_constant, first.operands[1:])):
        return 0
    channels = tensor_of(first.result).get_shape()[-1]
    made: set[SSAValue] = {first.result}
    for op in ops[1:]:
        others = [operand for operand in op.operands if operand not in made]
        sizes = [tensor_of(each).get_shape()[-1:] for each in others]
        if not all(map(is_constant, others)) or any(size not in ((), (1,), (channels,)) for size in sizes):
            return 0
        made.add(op.results[0])
    layout = first.filter_layout
    parts = tensor_of(first.w).get_shape()[layout.axis("O")]
    return parts if channels == parts * layout.block("O") else 0


def by_channels(ops: Sequence[GraphOp], groups: int, nodes: NodeBuilder) -> SSAValue:
    """The result of the last of the ops, a pool, from those of so many groups of channels."""
    conv, pool = ops[0], ops[-1]
    assert isinstance(conv, ConvOp)
    channels = tensor_of(conv.result).get_shape()[-1] // groups
    made: list[SSAValue] = []
    for group in range(groups):
        known: dict[SSAValue, SSAValue] = {conv.operands[0]: conv.operands[0]}
        for op in ops:
            operands: list[SSAValue] = []
            for operand in op.operands:
                dim = conv.filter_layout.axis("O") if operand is conv.w else tensor_of(operand).get_num_dims() - 1
                operands.append(known.get(operand) or _part(operand, dim, group, groups, nodes))
            shape = [*tensor_of(op.result).get_shape()[:-1], channels]
            new = rebuilt(op, operands, tensor_type(tensor_of(op.result).element_type, shape))
            new.attributes.update(op.attributes)
            known[op.result] = nodes.add(new, "channels")
        made.append(known[pool.result])
    return nodes.add(ConcatOp(made, axis=tensor_of(pool.result).get_num_dims() - 1))


def _part(value: SSAValue, dim: int, group: int, groups: int, nodes: NodeBuilder) -> SSAValue:
    """The part of a constant that belongs to a group; all of one that is the same for all channels."""
    shape = list(tensor_of(value).get_shape())
    if dim < 0 or shape[dim] == 1:
        return value
    sizes, starts = list(shape), [0] * len(shape)
    sizes[dim] //= groups
    starts[dim] = group * sizes[dim]
    return nodes.add(SliceOp(value, starts=starts, sizes=sizes), "part")
