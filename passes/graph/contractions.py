"""Contractions: which dimensions are the channels of their result, and what is folded into weights and bias."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import i32
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import NCHW, GraphOp, channel_axis, tensor_of
from penstock.dialects.graph.base import ints, set_type, single
from penstock.passes.graph.values import NodeBuilder, rebuilt

ContractionOp = graph.ConvOp | graph.GemmOp | graph.MatmulOp


def weight_axis(op: ContractionOp) -> int | None:
    """The dimension of the second factor that is the channels of the result; None of a vector."""
    rank = tensor_of(op.operands[1]).get_num_dims()
    match op:
        case graph.ConvOp():
            return 0 if op.layout.data == NCHW else rank - 1
        case graph.GemmOp():
            return 0 if op.trans_b else 1
        case _:
            return rank - 1 if rank > 1 else None


def contraction_length(op: ContractionOp) -> int:
    """How many products an element of the result sums."""
    if isinstance(op, graph.MatmulOp) or (axis := weight_axis(op)) is None:
        return tensor_of(op.operands[0]).get_shape()[-1]
    shape = tensor_of(op.operands[1]).get_shape()
    return math.prod(size for dim, size in enumerate(shape) if dim != axis)


def channels_of(op: ContractionOp) -> int:
    """The dimension of the result of a contraction that the second factor gives it."""
    rank = tensor_of(op.results[0]).get_num_dims()
    return channel_axis(op.layout.data, rank) if isinstance(op, graph.ConvOp) else rank - 1


def on_integers(op: ContractionOp, x: SSAValue, w: SSAValue, pads: Sequence[int] | None = None) -> GraphOp:
    """The contraction of integers in 32 bits, without its bias; `pads` replace those of a convolution."""
    changed: dict[str, Attribute] = {"accumulator": i32}
    if isinstance(op, graph.GemmOp):
        changed |= {"alpha": single(1), "beta": single(1)}
    if pads is not None:
        changed["pads"] = ints(pads)
    new = rebuilt(op, [x, w], **changed)
    set_type(new.result, new.infer_type())
    return new


def channel_vector(value: SSAValue, axis: int, rank: int, size: int, nodes: NodeBuilder) -> SSAValue | None:
    """A constant that differs along dimension `axis` of a tensor of `rank` at most, as a vector of that dimension."""
    shape = tensor_of(value).get_shape()
    full = [*[1] * (rank - len(shape)), *shape]
    if len(full) > rank or any(extent != 1 for dim, extent in enumerate(full) if dim != axis):
        return None
    if full[axis] == 1 != size:
        scalar = value if not shape else nodes.add(graph.ReshapeOp(value, []), "scalar")
        return nodes.add(graph.ExpandOp(scalar, [size]), "bias")
    return value if list(shape) == [size] else nodes.add(graph.ReshapeOp(value, [size]), "bias")


def scaled_weights(weights: SSAValue, factor: SSAValue, axis: int, nodes: NodeBuilder, part: str) -> SSAValue:
    """`weights` times a vector along dimension `axis`."""
    inner = tensor_of(weights).get_num_dims() - 1 - axis
    if inner:
        factor = nodes.add(graph.ReshapeOp(factor, [-1, *[1] * inner]), "factors")
    return nodes.add(graph.MulOp(weights, factor), part)


def folded(op: ContractionOp, factor: SSAValue | None, shift: SSAValue | None, nodes: NodeBuilder) -> SSAValue:
    """
    `factor` times the result of `op` plus `shift`, vectors along its channels: the contraction with other weights and
    another bias. One that has no bias takes no shift but as a convolution or a gemm.
    """
    x, w, *addends = op.operands
    bias = addends[0] if addends else None
    part, changed = ("filters", "bias") if isinstance(op, graph.ConvOp) else ("matrix", "addend")
    properties: dict[str, Attribute] = {}
    if factor is not None:
        axis = weight_axis(op)
        assert axis is not None
        w = scaled_weights(w, factor, axis, nodes, part)
    if isinstance(op, graph.GemmOp) and shift is not None:
        properties["beta"] = single(1)
        if bias is not None and (beta := op.beta.value.data) != 1:
            bias = nodes.add(graph.MulOp(bias, nodes.number(beta, bias, "beta")), "addend")
    if bias is not None and factor is not None:
        bias = nodes.add(graph.MulOp(bias, factor), changed if shift is None else "scaled")
    if shift is not None:
        bias = shift if bias is None else nodes.add(graph.AddOp(bias, shift), "bias")
    return nodes.add(rebuilt(op, [x, w] if bias is None else [x, w, bias], **properties))
