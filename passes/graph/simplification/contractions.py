# SPDX-License-Identifier: Apache-2.0
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
from penstock.dialects.graph.base import ints, summed_in
from penstock.passes.graph.contractions import ContractionOp, channel_vector, channels_of, folded
from penstock.passes.graph.simplification.rules import Rules, has_type_of, is_integral
from penstock.passes.graph.values import NodeBuilder, only_user, rebuilt


def _bias(op: graph.AddOp, nodes: NodeBuilder) -> SSAValue | None:
    for value, constant in ((op.a, op.b), (op.b, op.a)):
        product = value.owner
        if not isinstance(product, ContractionOp) or not _is_addend(constant) or only_user(value) is not op:
            continue
        if not has_type_of(value, op) or summed_in(product) != product.result_type.element_type:
            continue
        if isinstance(product, graph.ConvOp):
            if product.layout.data not in (NCHW, NHWC):
                continue
            if product.b is not None and not (_is_addend(product.b) and is_integral(op.result)):
                continue
            axis, shape = channels_of(product), op.result_type.get_shape()
            bias = channel_vector(constant, axis, len(shape), shape[axis], nodes)
            if bias is not None:
                return folded(product, None, bias, nodes)
        elif tensor_of(constant).get_num_dims() > 2:
            continue
        elif isinstance(product, graph.MatmulOp):
            if all(tensor_of(each).get_num_dims() == 2 for each in product.operands):
                return nodes.add(graph.GemmOp(product.a, product.b, constant, accumulator=product.accumulator))
        elif product.c is None:
            return folded(product, None, constant, nodes)
    return None


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
    graph.AddOp: (_bias,),
    graph.ConvOp: (_padded_conv,),
}
