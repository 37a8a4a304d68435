"""
Rules that put what surrounds a contraction into its own operands, for `simplify`.

A bias is added to the finished sums, at every level (`graph-to-tensor` makes it an epilogue of the contraction),
so that the bits are those of the addition. Only where there is a bias already would another one be added first:
integers, whose sums are the same in any order, do that, floats do not; and a narrow float is rounded once, after the
bias, where an addition that follows adds to what is rounded. Padding with zeros is what a convolution does
by itself.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import NCHW, NHWC, channel_axis, tensor_of
from penstock.dialects.graph.accumulator import summed_in
from penstock.dialects.graph.base import ints
from penstock.passes.graph.simplification.rules import Rules, has_type_of, is_integral
from penstock.passes.graph.values import NodeBuilder, only_user, rebuilt


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


def _conv_bias(op: graph.AddOp, nodes: NodeBuilder) -> SSAValue | None:
    for value, constant in ((op.a, op.b), (op.b, op.a)):
        conv = value.owner
        if not isinstance(conv, graph.ConvOp) or not _is_addend(constant) or only_user(value) is not op:
            continue
        if conv.layout.data not in (NCHW, NHWC) or not has_type_of(value, op) or _is_rounded(conv):
            continue
        if conv.b is not None and not (_is_addend(conv.b) and is_integral(op.result)):
            continue
        rank = op.result_type.get_num_dims()
        axis = channel_axis(conv.layout.data, rank)
        bias = channel_vector(constant, axis, rank, op.result_type.get_shape()[axis], nodes)
        if bias is None:
            continue
        if conv.b is not None:
            bias = nodes.add(graph.AddOp(conv.b, bias), "bias")
        return nodes.add(rebuilt(conv, [conv.x, conv.w, bias]))
    return None


def _product_bias(op: graph.AddOp, nodes: NodeBuilder) -> SSAValue | None:
    for value, constant in ((op.a, op.b), (op.b, op.a)):
        product = value.owner
        if only_user(value) is not op or not _is_addend(constant) or not has_type_of(value, op):
            continue
        if tensor_of(constant).get_num_dims() > 2:
            continue
        if isinstance(product, graph.GemmOp | graph.MatmulOp) and _is_rounded(product):
            continue
        if isinstance(product, graph.GemmOp) and product.c is None:
            return nodes.add(
                graph.GemmOp(
                    product.a,
                    product.b,
                    constant,
                    alpha=product.alpha.value.data,
                    trans_a=bool(product.trans_a),
                    trans_b=bool(product.trans_b),
                    accumulator=product.accumulator,
                )
            )
        if isinstance(product, graph.MatmulOp) and all(
            tensor_of(each).get_num_dims() == 2 for each in product.operands
        ):
            return nodes.add(graph.GemmOp(product.a, product.b, constant, accumulator=product.accumulator))
    return None


def _is_rounded(op: graph.ConvOp | graph.GemmOp | graph.MatmulOp) -> bool:
    return summed_in(op) != op.result_type.element_type


def _is_addend(value: SSAValue) -> bool:
    return isinstance(value.owner, graph.ConstantOp)


def _padded_conv(op: graph.ConvOp, nodes: NodeBuilder) -> SSAValue | None:
    pad = op.x.owner
    if not isinstance(pad, graph.PadOp) or only_user(op.x) is not op or op.layout.data not in (NCHW, NHWC):
        return None
    if str(pad.value.value.data) not in ("0.0", "0"):
        return None
    rank = op.result_type.get_num_dims()
    spatial = [dim for dim in range(1, rank) if dim != channel_axis(op.layout.data, rank)]
    pads = pad.pads.get_values()
    if any(pads[side + dim] for side in (0, rank) for dim in range(rank) if dim not in spatial):
        return None
    outside = [pads[side + dim] for side in (0, rank) for dim in spatial]
    both = [first + second for first, second in zip(outside, op.pads.get_values(), strict=True)]
    return nodes.add(rebuilt(op, [pad.x, *op.operands[1:]], pads=ints(both)))


RULES: Rules = {
    graph.AddOp: (_conv_bias, _product_bias),
    graph.ConvOp: (_padded_conv,),
}
