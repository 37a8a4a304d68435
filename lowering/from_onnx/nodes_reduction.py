"""Importers of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects.builtin import IntegerType, Signedness, f64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import GraphOp, ReductionOp, tensor_of
from penstock.dialects.graph.base import is_bool, normalized_axis
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Importer, Node, imports


def axes_of(node: Node, input_since: int) -> list[int] | None:
    """
    The axes of a reduction, None for all; they are an attribute before operator set `input_since`.

    No axes mean all of them, or none if `noop_with_empty_axes`.
    """
    if node.opset < input_since:
        axes = node.ints("axes")
    else:
        axes = node.ints_of(1, "axes") if node.has(1) else None
    if axes:
        return axes
    return [] if node.flag("noop_with_empty_axes", False) else None


def reduction(op: type[ReductionOp], input_since: int = 18) -> Importer:
    """A reduction that is one of ours."""

    def build(node: Node) -> SSAValue:
        axes = axes_of(node, input_since)
        return node.emit(op(node.value(0), axes=axes, keepdims=node.flag("keepdims", True)))

    return build


def extremum(op: type[ReductionOp]) -> Importer:
    """
    The largest or smallest element. Of booleans, "or" and "and", it is taken as bytes without a sign: the extremum of
    none of them is then 0 or 255, which is the right boolean too.
    """

    def build(node: Node) -> SSAValue:
        x = node.value(0)
        element = tensor_of(x).element_type
        numbers = node.emit(graph.CastOp(x, IntegerType(8, Signedness.UNSIGNED))) if is_bool(element) else x
        found = node.emit(op(numbers, axes=axes_of(node, 18), keepdims=node.flag("keepdims", True)))
        return node.emit(graph.CastOp(found, element)) if is_bool(element) else found

    return build


Step = Callable[[SSAValue], GraphOp]


def _square(x: SSAValue) -> GraphOp:
    return graph.MulOp(x, x)


def sum_of(before: Step | None = None, after: Step | None = None) -> Importer:
    """A sum with a step on each element before it, and on the result after it."""

    def build(node: Node) -> SSAValue:
        axes, x = axes_of(node, 18), node.value(0)
        x = node.emit(before(x)) if before is not None else x
        total = node.emit(graph.ReduceSumOp(x, axes=axes, keepdims=node.flag("keepdims", True)))
        return node.emit(after(total)) if after is not None else total

    return build


def log_sum_exp(node: Node) -> SSAValue:
    """log(sum(exp(x - max))) + max, so that exp does not overflow; an infinite maximum stays in the sum."""
    axes, x = axes_of(node, 18), node.value(0)
    largest = node.emit(graph.ReduceMaxOp(x, axes=axes))
    infinite = node.emit(graph.EqualOp(node.emit(graph.AbsOp(largest)), node.scalar(math.inf, x)))
    largest = node.emit(graph.WhereOp(infinite, node.scalar(0, x), largest))
    powers = node.emit(graph.ExpOp(node.emit(graph.SubOp(x, largest))))
    total = node.emit(graph.LogOp(node.emit(graph.ReduceSumOp(powers, axes=axes))))
    result = node.emit(graph.AddOp(total, largest))
    if node.flag("keepdims", True):
        return result
    shape = tensor_of(x).get_shape()
    gone = {normalized_axis(axis, len(shape)) for axis in (range(len(shape)) if axes is None else axes)}
    return node.emit(graph.ReshapeOp(result, [size for dim, size in enumerate(shape) if dim not in gone]))


imports("ReduceL1")(sum_of(before=graph.AbsOp))
imports("ReduceL2")(in_accumulator(sum_of(before=_square, after=graph.SqrtOp), integers=f64))
imports("ReduceLogSum")(in_accumulator(sum_of(after=graph.LogOp), integers=f64))
imports("ReduceLogSumExp")(in_accumulator(log_sum_exp, integers=f64))
imports("ReduceMax")(extremum(graph.ReduceMaxOp))
imports("ReduceMean")(reduction(graph.ReduceMeanOp))
imports("ReduceMin")(extremum(graph.ReduceMinOp))
imports("ReduceProd")(reduction(graph.ReduceProdOp))
imports("ReduceSum")(reduction(graph.ReduceSumOp, input_since=13))
imports("ReduceSumSquare")(in_accumulator(sum_of(before=_square)))
