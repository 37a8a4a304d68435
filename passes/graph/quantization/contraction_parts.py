"""A contraction with what follows it, as quantisation sees it: factors, one bias per channel, bounds of the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.graph.contractions import ContractionOp, channels_of
from penstock.passes.graph.values import constant_array, only_user


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
