"""Importers of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from xdsl.dialects.builtin import IntegerType, Signedness, f64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import ReductionOp
from penstock.dialects.graph.base import is_bool, normalized_axis
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import Importer, Node, imports
from penstock.passes.graph.terms import Term

Step: TypeAlias = Callable[[Term], Term]

_UI8 = IntegerType(8, Signedness.UNSIGNED)


def axes_of(node: Node, input_since: int) -> list[int] | None:
    """The axes of a reduction, None for all: no axes mean all of them, or none if `noop_with_empty_axes`."""
    return node.listed("axes", 1, input_since) or ([] if node.flag("noop_with_empty_axes", False) else None)


def _square(x: Term) -> Term:
    return x * x


def _root(x: Term) -> Term:
    return x.apply("sqrt")


def _logarithm(x: Term) -> Term:
    return x.apply("log")


def reduction(
    op: type[ReductionOp], input_since: int = 18, *, before: Step | None = None, after: Step | None = None
) -> Importer:
    """
    A reduction with a step on each element before it, and on the result after it.

    The largest or smallest of booleans, "or" and "and", is taken as that of bytes without a sign: the extremum of
    none of them is then 0 or 255, which is the right boolean too.
    """

    def build(node: Node) -> SSAValue:
        axes, x = axes_of(node, input_since), node.code.input(0)
        element = x.element_type
        x = x.cast(_UI8) if is_bool(element) else x if before is None else before(x)
        found = node.code.emit(op(x.value, axes=axes, keepdims=node.flag("keepdims", True)))
        return (found.cast(element) if is_bool(element) else found if after is None else after(found)).value

    return build


def log_sum_exp(node: Node) -> SSAValue:
    """log(sum(exp(x - max))) + max, so that exp does not overflow; an infinite maximum stays in the sum."""
    axes, x = axes_of(node, 18), node.code.input(0)
    largest = node.code.emit(graph.ReduceMaxOp(x.value, axes=axes))
    largest = abs(largest).equal(math.inf).where(0, largest)
    rank = len(x.shape)
    summed = [normalized_axis(axis, rank) for axis in (range(rank) if axes is None else axes)]
    result = (x - largest).apply("exp").sum(summed).apply("log") + largest
    kept = [size for dim, size in enumerate(x.shape) if dim not in summed]
    return (result if node.flag("keepdims", True) else result.reshape(kept)).value


imports("ReduceL1")(reduction(graph.ReduceSumOp, before=abs))
imports("ReduceL2")(in_accumulator(reduction(graph.ReduceSumOp, before=_square, after=_root), integers=f64))
imports("ReduceLogSum")(in_accumulator(reduction(graph.ReduceSumOp, after=_logarithm), integers=f64))
imports("ReduceLogSumExp")(in_accumulator(log_sum_exp, integers=f64))
imports("ReduceMax")(reduction(graph.ReduceMaxOp))
imports("ReduceMean")(reduction(graph.ReduceMeanOp))
imports("ReduceMin")(reduction(graph.ReduceMinOp))
imports("ReduceProd")(reduction(graph.ReduceProdOp))
imports("ReduceSum")(reduction(graph.ReduceSumOp, input_since=13))
imports("ReduceSumSquare")(in_accumulator(reduction(graph.ReduceSumOp, before=_square)))
