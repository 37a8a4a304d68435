# SPDX-License-Identifier: Apache-2.0
"""Contractions: the channels of their result, what is folded into weights and bias, and the layers they begin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import IntegerType, i32
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import NCHW, GraphOp, channel_axis, tensor_of
from penstock.dialects.graph.base import ints, set_type, single
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.graph.values import NodeBuilder, constant_array, only_user, rebuilt

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


def input_axis(op: ContractionOp) -> int:
    """The dimension of the second factor along which the products of channels of the first one are summed."""
    rank = tensor_of(op.operands[1]).get_num_dims()
    match op:
        case graph.ConvOp():
            return 1 if op.layout.data == NCHW else rank - 2
        case graph.GemmOp():
            return 1 if op.trans_b else 0
        case _:
            return max(0, rank - 2)


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


def folded(op: ContractionOp, factor: SSAValue | None, shift: SSAValue | None, nodes: NodeBuilder) -> SSAValue | None:
    """
    `factor` times the result of `op` plus `shift`, vectors along its channels: the contraction with other weights and
    another bias, None where these are out of range. One that has no bias takes no shift but as a convolution or a gemm.
    """
    x, w, *addends = op.operands
    bias = addends[0] if addends else None
    part, changed = ("filters", "bias") if isinstance(op, graph.ConvOp) else ("matrix", "addend")
    properties: dict[str, Attribute] = {}
    if factor is not None:
        axis = weight_axis(op)
        assert axis is not None
        of_weights = factor
        if isinstance(op, graph.GemmOp) and (alpha := op.alpha.value.data) != 1:
            # The terms of the sum are those of the result then, neither larger nor smaller.
            properties["alpha"] = single(1)
            of_weights = nodes.add(graph.MulOp(factor, nodes.number(alpha, factor, "alpha")), "factor")
            if not is_in_range(of_weights, nodes, factor):
                return None
        if not _is_scaled_in_range(w, of_weights, axis, nodes):
            return None
        w = scaled_weights(w, of_weights, axis, nodes, part)
    if isinstance(op, graph.GemmOp) and shift is not None:
        properties["beta"] = single(1)
        if bias is not None and (beta := op.beta.value.data) != 1:
            bias = nodes.add(graph.MulOp(bias, nodes.number(beta, bias, "beta")), "addend")
    if bias is not None and factor is not None:
        bias = nodes.add(graph.MulOp(bias, factor), changed if shift is None else "scaled")
    if shift is not None:
        bias = shift if bias is None else nodes.add(graph.AddOp(bias, shift), "bias")
    is_given = bias is shift or bias in addends
    if bias is not None and not is_given and not is_finite(bias, nodes):
        return None
    return nodes.add(rebuilt(op, [x, w] if bias is None else [x, w, bias], **properties))


def _number(value: SSAValue, nodes: NodeBuilder) -> Array | None:
    """The value of a constant; None where the text has come without its weights."""
    try:
        return constant_array(value, nodes.store)
    except UserError:
        return None


def is_finite(value: SSAValue, nodes: NodeBuilder) -> bool:
    """Whether no element of a constant is NaN or infinite, as far as is known."""
    if isinstance(tensor_of(value).element_type, IntegerType):
        return True
    array = _number(value, nodes)
    return array is not None and bool(np.isfinite(array).all())


def is_in_range(product: SSAValue, nodes: NodeBuilder, *factors: SSAValue) -> bool:
    """Whether no element of a constant overflows, nor underflows but where one of its constant factors is 0."""
    arrays = [array for each in (product, *factors) if (array := _number(each, nodes)) is not None]
    return len(arrays) == 1 + len(factors) and _in_range(*arrays)


def _in_range(product: Array, *factors: Array) -> bool:
    is_zero = np.zeros((), np.bool_)
    for factor in factors:
        is_zero = is_zero | (factor == 0)
    smallest = float(ml_dtypes.finfo(product.dtype).smallest_normal)  # pyright: ignore
    return bool((np.isfinite(product) & (is_zero | (np.abs(product) >= smallest))).all())


def _is_scaled_in_range(weights: SSAValue, factor: SSAValue, axis: int, nodes: NodeBuilder) -> bool:
    """
    Whether the terms of a sum may be scaled in its weights: where none of a channel overflows, and the largest does not
    underflow. One that does is off by at most half a unit in the last place of the largest.
    """
    w, factors = _number(weights, nodes), _number(factor, nodes)
    if w is None or factors is None:
        return False
    others = tuple(dim for dim in range(w.ndim) if dim != axis)
    largest = np.maximum(w.max(others, initial=0), -w.min(others, initial=0))
    with np.errstate(all="ignore"):
        return _in_range(largest * factors, largest, factors)


@dataclass
class Layer:
    """bounded(x * w + bias): one contraction, and the additions and bounds that only follow it."""

    op: ContractionOp
    result: SSAValue
    """The result of the last op."""
    w: Array | None
    """The weights, the second factor, where they are constant; scaled by `alpha` of a gemm."""
    bias: Array | None
    """A vector along the channels of the result."""
    low: float = -math.inf
    high: float = math.inf
    absorbed: list[Operation] = field(default_factory=list[Operation])
    """The ops after `op` that belong to it."""


def along_channels(array: Array, shape: tuple[int, ...], axis: int) -> Array | None:
    """What broadcasts to `shape` as a vector along `axis`, None if it differs along other dimensions, or enlarges."""
    if array.ndim > len(shape):
        return None
    aligned = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    for dim, size in enumerate(aligned.shape):
        if size != 1 and (dim != axis or size != shape[axis]):
            return None
    return np.broadcast_to(aligned.reshape(-1), (shape[axis],)).copy()


def contraction_at(op: ContractionOp, store: WeightStore, *, alone: bool = False) -> Layer | str:
    """The contraction that begins at `op`, with what follows unless it is to be `alone`; or why there is none."""
    shape, axis = tensor_of(op.result).get_shape(), channels_of(op)
    if tensor_of(op.result).get_num_dims() == 0 or tensor_of(op.operands[1]).get_num_dims() < 2:
        return "it multiplies by a vector"
    w, bias = constant_array(op.operands[1], store), None
    scale, addend = 1.0, None
    if isinstance(op, graph.ConvOp):
        addend = op.b
    elif isinstance(op, graph.GemmOp):
        addend, scale = op.c, op.alpha.value.data
    if scale != 1.0:
        if w is None:
            return "it scales a product of computed factors"
        w = w * w.dtype.type(scale)
    if addend is not None:
        array = constant_array(addend, store)
        if array is not None:
            bias = array if isinstance(op, graph.ConvOp) else along_channels(array, shape, axis)
        if bias is None:
            return "its addend is no vector of constants"
        if isinstance(op, graph.GemmOp):
            bias = bias * bias.dtype.type(op.beta.value.data)
    found = Layer(op, op.result, w, bias)
    if not alone:
        _absorb(found, store)
    return found


def _absorb(found: Layer, store: WeightStore) -> None:
    shape, axis = tensor_of(found.result).get_shape(), channels_of(found.op)

    def addend(op: graph.AddOp) -> Array | None:
        array = constant_array(op.b if op.a is found.result else op.a, store)
        return None if array is None else along_channels(array, shape, axis)

    bounded = False
    while (user := only_user(found.result)) is not None:
        match user:
            case graph.AddOp() if not bounded and (vector := addend(user)) is not None:
                found.bias = vector if found.bias is None else found.bias + vector
            case graph.ReluOp() | graph.ClipOp():
                bounded = True
                low, high = bounds_of(user)
                found.low = min(max(found.low, low), high)
                found.high = min(max(found.high, low), high)
            case _:
                return
        found.absorbed.append(user)
        found.result = user.result


def bounds_of(op: graph.ReluOp | graph.ClipOp) -> tuple[float, float]:
    """What the result of a relu or a clip lies between."""
    if isinstance(op, graph.ReluOp):
        return 0.0, math.inf
    low = -math.inf if op.min is None else op.min.value.data
    high = math.inf if op.max is None else op.max.value.data
    return low, high
