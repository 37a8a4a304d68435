# SPDX-License-Identifier: Apache-2.0
"""Importers of operators that compute indices, or read and write elements at those that other operands hold."""

from __future__ import annotations

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import ReductionOp
from penstock.dialects.graph.base import is_float, normalized_axis, require
from penstock.dialects.graph.sizes import may_reach
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Importer, OnnxNode, Unsupported, imports
from penstock.lowering.from_onnx.nodes_shape import MAX_SLICES, joined_runs, runs_of
from penstock.passes.graph.terms import Term


def first_index(found: Term, index: Term, axis: int, size: int, *, last: bool = False, keep: bool = True) -> Term:
    """The first index along an axis of `size` where `found` holds, or the last; `size`, or -1, if none does."""
    candidates = found.where(index, -1 if last else size)
    reduction = graph.ReduceMaxOp if last else graph.ReduceMinOp
    return found.emit(reduction(candidates.value, axes=[axis], keepdims=keep))


def index_of_extremum(op: type[ReductionOp]) -> Importer:
    """
    The first index of the largest or smallest element, or the last.

    A NaN is the extremum of all, as in NumPy.
    """

    def build(node: OnnxNode) -> SSAValue:
        code, x = node.code, node.code.input(0)
        axis = normalized_axis(node.int("axis", 0), len(x.shape))
        size = x.shape[axis]
        require(size > 0, "there is no largest or smallest of no elements")
        found = x.equal(code.emit(op(x.value, axes=[axis])))
        if is_float(x.element_type):
            found = found | x.equal(x).apply("not")
        index, last = code.positions(size, axis, len(x.shape)), node.flag("select_last_index", False)
        return first_index(found, index, axis, size, last=last, keep=node.flag("keepdims", True)).value

    return build


@imports("OneHot")
def one_hot(node: OnnxNode) -> SSAValue:
    """The second value where the index along the new axis is the one given, which may count from the end."""
    given, rank = node.code.input(0, i64), len(node.shape(0)) + 1
    depth = node.int_of(1, "depth")
    axis = normalized_axis(node.int("axis", -1), rank)
    given = (given < 0).where(given + depth, given)
    hit = given.reshape([*given.shape[:axis], 1, *given.shape[axis:]]).equal(node.code.positions(depth, axis, rank))
    off, on = (node.code.input(2).cut(0, index, 1).reshape([]) for index in (0, 1))
    return hit.where(on, off).value


@imports("Hardmax")
def hardmax(node: OnnxNode) -> SSAValue:
    """1 at the first of the largest elements along an axis, which before operator set 13 is all that follow."""
    code, x = node.code, node.code.input(0)
    axis = normalized_axis(node.int("axis", -1 if node.opset >= 13 else 1), len(x.shape))
    rows = x if node.opset >= 13 else x.reshape([*x.shape[:axis], -1])
    size, rank = rows.shape[axis], len(rows.shape)
    index = code.positions(size, axis, rank)
    found = rows.equal(code.emit(graph.ReduceMaxOp(rows.value, axes=[axis])))
    return index.equal(first_index(found, index, axis, size)).cast(x.element_type).reshape(x.shape).value


def running(function: str, start: float) -> Importer:
    """
    Sums or products of all elements up to each, by doubling: after step i an element holds those of 2^i of them.

    Hillis and Steele, "Data parallel algorithms", CACM 29(12), 1986.
    """

    def build(node: OnnxNode) -> SSAValue:
        x, rank = node.code.input(0), len(node.shape(0))
        axis = normalized_axis(node.int_of(1, "axis"), rank)
        size, backwards = x.shape[axis], node.flag("reverse", False)

        def shifted(value: Term, by: int) -> Term:
            before, after = [0] * rank, [0] * rank
            before[axis], after[axis] = (-by, by) if backwards else (by, -by)
            return value.padded(before, after, start)

        if node.flag("exclusive", False):
            x = shifted(x, 1)
        step = 1
        while step < size:
            x = x.apply(function, shifted(x, step))
            step *= 2
        return x.value

    return build


imports("ArgMax")(index_of_extremum(graph.ReduceMaxOp))
imports("ArgMin")(index_of_extremum(graph.ReduceMinOp))
imports("CumProd")(in_accumulator(running("mul", 1)))
imports("CumSum")(in_accumulator(running("add", 0)))


@imports("Gather")
def gather(node: OnnxNode) -> SSAValue:
    """By few runs of constant indices, a slice for each; else a gather."""
    x, held = node.code.input(0), node.held(1)
    axis = normalized_axis(node.int("axis", 0), len(x.shape))
    if isinstance(held, SSAValue):
        return node.emit(graph.GatherOp(x.value, held, axis=axis))
    indices, size = node.array(1, "indices"), x.shape[axis]
    flat = [int(index) for index in indices.ravel()]
    if len(runs_of(flat)) > MAX_SLICES:
        return node.emit(graph.GatherOp(x.value, node.value(1), axis=axis))
    flat = [index % size if index < 0 and -size <= index else index for index in flat]
    for index in flat:
        require(0 <= index and may_reach(size, index + 1), f"index {index} is outside a dimension of {size}")
    joined = joined_runs(x, axis, runs_of(flat) or [(0, 0, 1)])
    return joined.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]).value


@imports("Scatter")
def scatter_elements(node: OnnxNode) -> SSAValue:
    return node.emit(
        graph.ScatterElementsOp(*node.values(), axis=node.int("axis", 0), reduction=node.string("reduction", "none"))
    )


@imports("TopK")
def top_k(node: OnnxNode) -> list[SSAValue]:
    """The indices by `graph.top_k`, and the elements there; k is an attribute before operator set 10."""
    x, rank = node.value(0), len(node.shape(0))
    k = node.int("k", 1) if node.opset < 10 else node.int_of(1, "number of elements")
    axis = normalized_axis(node.int("axis", -1), rank)
    indices = node.emit(graph.TopKOp(x, k=k, axis=axis, largest=node.flag("largest", True)))
    return [node.emit(graph.GatherElementsOp(x, indices, axis=axis)), indices]


@imports("ReverseSequence")
def reverse_sequence(node: OnnxNode) -> SSAValue:
    """The first elements of each sequence backwards: an element at t comes from length - 1 - t, or from t."""
    x, rank = node.code.input(0), len(node.shape(0))
    time, batch = node.int("time_axis", 0), node.int("batch_axis", 1)
    if rank < 2 or {time, batch} != {0, 1}:
        raise Unsupported(f"time_axis {time} and batch_axis {batch}")
    lengths = node.code.input(1, i64).reshape([x.shape[batch] if dim == batch else 1 for dim in range(rank)])
    steps = node.code.positions(x.shape[time], time, rank)
    source = (steps < lengths).where(lengths - 1 - steps, steps).expand(x.shape)
    return node.emit(graph.GatherElementsOp(x.value, source.value, axis=time))


@imports("TensorScatter")
def tensor_scatter(node: OnnxNode) -> SSAValue:
    """A cache with an update written to it, of every batch from an index of its own on, perhaps round its end."""
    cache, update = node.code.input(0), node.code.input(1)
    rank, mode = len(update.shape), node.string("mode", "linear")
    axis = normalized_axis(node.int("axis", -2), rank)
    if mode not in ("linear", "circular"):
        raise Unsupported(f"mode {mode}")
    index = node.code.positions(update.shape[axis], axis, rank)
    if node.has(2):
        index = node.code.input(2).reshape([update.shape[0], *[1] * (rank - 1)]) + index
    if mode == "circular":
        size = cache.shape[axis]
        index = (index < size).where(index, index - size)
    where = index.expand(update.shape)
    return node.emit(graph.ScatterElementsOp(cache.value, where.value, update.value, axis=axis))
