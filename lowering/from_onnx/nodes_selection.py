"""Importers of operators that search: where the extremum is, one-hot encodings, and running sums."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import BinaryOp, ReductionOp, tensor_of
from penstock.dialects.graph.base import is_float, normalized_axis, require
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Importer, Node, imports
from penstock.lowering.from_onnx.nodes_shape import sliced


def positions(node: Node, size: int, axis: int, rank: int) -> SSAValue:
    """0, 1, ... along one axis of a tensor, to broadcast along all others."""
    shape = [size if dim == axis else 1 for dim in range(rank)]
    return node.constant(np.arange(size, dtype=np.int64).reshape(shape), "positions")


def index_of_extremum(op: type[ReductionOp]) -> Importer:
    """
    The first place of the largest or smallest element, or the last: the extremum of the places that hold it.

    A NaN is the extremum of all, as in NumPy.
    """

    def build(node: Node) -> SSAValue:
        x, shape = node.value(0), node.shape(0)
        axis = normalized_axis(node.int("axis", 0), len(shape))
        require(shape[axis] > 0, "there is no largest or smallest of no elements")
        found = node.emit(graph.EqualOp(x, node.emit(op(x, axes=[axis]))))
        if is_float(tensor_of(x).element_type):
            is_number = node.emit(graph.EqualOp(x, x))
            found = node.emit(graph.OrOp(found, node.emit(graph.NotOp(is_number))))
        last = node.flag("select_last_index", False)
        nowhere = node.constant(np.array(-1 if last else shape[axis], np.int64))
        places = node.emit(graph.WhereOp(found, positions(node, shape[axis], axis, len(shape)), nowhere))
        chosen = graph.ReduceMaxOp if last else graph.ReduceMinOp
        return node.emit(chosen(places, axes=[axis], keepdims=node.flag("keepdims", True)))

    return build


@imports("OneHot")
def one_hot(node: Node) -> SSAValue:
    """The second value where the index along the new axis is the one given, which may count from the end."""
    indices, rank = node.value(0), len(node.shape(0)) + 1
    depth = int(node.array(1, "depth").ravel()[0])
    axis = normalized_axis(node.int("axis", -1), rank)
    if tensor_of(indices).element_type != i64:
        indices = node.emit(graph.CastOp(indices, i64))
    negative = node.emit(graph.LessOp(indices, node.scalar(0, indices)))
    from_end = node.emit(graph.AddOp(indices, node.scalar(depth, indices)))
    indices = node.emit(graph.WhereOp(negative, from_end, indices))
    shape = list(node.shape(0))
    apart = node.emit(graph.ReshapeOp(indices, [*shape[:axis], 1, *shape[axis:]]))
    hit = node.emit(graph.EqualOp(apart, positions(node, depth, axis, rank)))
    off, on = (node.emit(graph.ReshapeOp(sliced(node, node.value(2), 0, index, 1), [])) for index in (0, 1))
    return node.emit(graph.WhereOp(hit, on, off))


@imports("Hardmax")
def hardmax(node: Node) -> SSAValue:
    """1 at the first of the largest elements along an axis, which before operator set 13 is all that follow."""
    x, shape = node.value(0), node.shape(0)
    axis = normalized_axis(node.int("axis", -1 if node.opset >= 13 else 1), len(shape))
    rows = x
    if node.opset < 13:
        rows = node.emit(graph.ReshapeOp(x, [*shape[:axis], -1]))
    size = tensor_of(rows).get_shape()[axis]
    places = positions(node, size, axis, len(tensor_of(rows).get_shape()))
    found = node.emit(graph.EqualOp(rows, node.emit(graph.ReduceMaxOp(rows, axes=[axis]))))
    where = node.emit(graph.WhereOp(found, places, node.constant(np.array(size, np.int64))))
    first = node.emit(graph.ReduceMinOp(where, axes=[axis]))
    result = node.emit(graph.CastOp(node.emit(graph.EqualOp(places, first)), tensor_of(x).element_type))
    return node.emit(graph.ReshapeOp(result, shape)) if tensor_of(result).get_shape() != shape else result


def running(op: type[BinaryOp], start: float) -> Importer:
    """
    Sums or products of all elements up to each, by doubling: after step i an element stands for 2^i of them.

    Hillis and Steele, "Data parallel algorithms", CACM 29(12), 1986.
    """

    def build(node: Node) -> SSAValue:
        x, shape = node.value(0), node.shape(0)
        axis = normalized_axis(int(node.array(1, "axis").ravel()[0]), len(shape))
        backwards = node.flag("reverse", False)

        def shifted(value: SSAValue, by: int) -> SSAValue:
            pads = [0] * (2 * len(shape))
            pads[axis + (len(shape) if backwards else 0)] = by
            kept = sliced(node, value, axis, by if backwards else 0, shape[axis] - by)
            return node.emit(graph.PadOp(kept, pads=pads, value=start))

        if shape[axis] == 0:
            return x
        if node.flag("exclusive", False):
            x = shifted(x, 1)
        step = 1
        while step < shape[axis]:
            x = node.emit(op(x, shifted(x, step)))
            step *= 2
        return x

    return build


imports("ArgMax")(index_of_extremum(graph.ReduceMaxOp))
imports("ArgMin")(index_of_extremum(graph.ReduceMinOp))
imports("CumProd")(in_accumulator(running(graph.MulOp, 1)))
imports("CumSum")(in_accumulator(running(graph.AddOp, 0)))
