"""Importers of operators that read or write elements at places that other operands name."""

from __future__ import annotations

import math

import numpy as np
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import normalized_axis, require
from penstock.lowering.from_onnx import nodes_shape
from penstock.lowering.from_onnx.node import Node, Unsupported, imports
from penstock.lowering.from_onnx.nodes_shape import GATHER_LIMIT, runs_of


@imports("Gather")
def gather(node: Node) -> SSAValue:
    """By few constant indices, slices; else a gather."""
    axis = normalized_axis(node.int("axis", 0), len(node.shape(0)))
    held = node.held(1)
    if not isinstance(held, SSAValue) and len(runs_of([int(each) for each in held.ravel()])) <= GATHER_LIMIT:
        return nodes_shape.gather(node)
    return node.emit(graph.GatherOp(node.value(0), node.value(1), axis=axis))


@imports("Scatter")
def scatter_elements(node: Node) -> SSAValue:
    return node.emit(
        graph.ScatterElementsOp(*node.values(), axis=node.int("axis", 0), reduction=node.string("reduction", "none"))
    )


@imports("TopK")
def top_k(node: Node) -> list[SSAValue]:
    """The places by `graph.top_k`, and the elements there; k is an attribute before operator set 10."""
    x, rank = node.value(0), len(node.shape(0))
    k = node.int("k", 1) if node.opset < 10 else int(node.array(1, "number of elements").ravel()[0])
    axis = normalized_axis(node.int("axis", -1), rank)
    places = node.emit(graph.TopKOp(x, k=k, axis=axis, largest=node.flag("largest", True)))
    return [node.emit(graph.GatherElementsOp(x, places, axis=axis)), places]


@imports("ReverseSequence")
def reverse_sequence(node: Node) -> SSAValue:
    """The first elements of each sequence turned round: an element at t comes from length - 1 - t, or from t."""
    x, shape = node.value(0), node.shape(0)
    time, batch = node.int("time_axis", 0), node.int("batch_axis", 1)
    if len(shape) < 2 or {time, batch} != {0, 1}:
        raise Unsupported(f"time_axis {time} and batch_axis {batch}")
    lengths = node.value(1)
    if tensor_of(lengths).element_type != i64:
        lengths = node.emit(graph.CastOp(lengths, i64))

    def along(axis: int, size: int) -> list[int]:
        return [size if dim == axis else 1 for dim in range(len(shape))]

    lengths = node.emit(graph.ReshapeOp(lengths, along(batch, shape[batch])))
    steps = node.constant(np.arange(shape[time], dtype=np.int64).reshape(along(time, shape[time])), "positions")
    last = node.emit(graph.SubOp(lengths, node.scalar(1, lengths)))
    turned = node.emit(graph.SubOp(last, steps))
    source = node.emit(graph.WhereOp(node.emit(graph.LessOp(steps, lengths)), turned, steps))
    return node.emit(graph.GatherElementsOp(x, node.emit(graph.ExpandOp(source, shape)), axis=time))


@imports("TensorScatter")
def tensor_scatter(node: Node) -> SSAValue:
    """A cache with an update written to it, of every batch from an index of its own on, perhaps round its end."""
    cache, update, shape = node.value(0), node.value(1), node.shape(1)
    rank, mode = len(shape), node.string("mode", "linear")
    axis = normalized_axis(node.int("axis", -2), rank)
    if mode not in ("linear", "circular"):
        raise Unsupported(f"mode {mode}")
    steps = np.arange(shape[axis], dtype=np.int64).reshape([shape[axis] if dim == axis else 1 for dim in range(rank)])
    places = node.constant(steps, "positions")
    if node.has(2):
        first = node.emit(graph.ReshapeOp(node.value(2), [shape[0], *[1] * (rank - 1)]))
        places = node.emit(graph.AddOp(first, places))
    if mode == "circular":
        size = node.constant(np.array(node.shape(0)[axis], np.int64), "size")
        beyond = node.emit(graph.LessOp(places, size))
        places = node.emit(graph.WhereOp(beyond, places, node.emit(graph.SubOp(places, size))))
    return node.emit(graph.ScatterElementsOp(cache, node.emit(graph.ExpandOp(places, shape)), update, axis=axis))


@imports("MaxUnpool")
def max_unpool(node: Node) -> SSAValue:
    """Zeros, with the elements where a MaxPool found them: the indices are into all elements of its input."""
    x, shape = node.value(0), node.shape(0)
    kernel = node.ints("kernel_shape") or []
    rank = len(kernel)
    strides, pads = node.ints("strides") or [1] * rank, node.ints("pads") or [0] * (2 * rank)
    sizes = [
        (size - 1) * stride + window - before - after
        for size, stride, window, before, after in zip(
            shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True
        )
    ]
    whole = [*shape[:2], *sizes]
    zeros = node.emit(graph.ExpandOp(node.scalar(0, x), [math.prod(whole)]))
    places, flat = node.emit(graph.ReshapeOp(node.value(1), [-1])), node.emit(graph.ReshapeOp(x, [-1]))
    y = node.emit(graph.ReshapeOp(node.emit(graph.ScatterElementsOp(zeros, places, flat, axis=0)), whole))
    if not node.has(2):
        return y
    wanted = node.ints_of(2, "output shape")
    more = [size - have for size, have in zip(wanted, whole, strict=True)]
    require(min(more) >= 0, f"the output shape {wanted} is smaller than {whole}")
    return node.emit(graph.PadOp(y, pads=[*[0] * len(more), *more])) if any(more) else y
