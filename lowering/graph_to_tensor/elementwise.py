"""Elementwise ops: one generic each, whose body is the formula of the op, or what a package registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1, i8
from xdsl.ir import Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.lowering.graph_to_tensor.shapes import element_of, signless
from penstock.lowering.scalar_body import Body

Formula = TypeVar("Formula", bound=Callable[..., SSAValue])


def pointwise(op_class: type[Operation]) -> Callable[[Formula], Formula]:
    """
    Register the decorated formula `(body, op, *elements) -> element` as the lowering of `op_class`, whose
    operands broadcast to its result by NumPy's rule, in place of a formula of its own.
    """

    def register(formula: Formula) -> Formula:
        def lower(kernel: KernelBuilder, op: Operation) -> SSAValue:
            def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
                return formula(body, op, *elements)

            return kernel.pointwise(op.operands, op.results[0], compute)

        lowers(op_class)(lower)
        return formula

    return register


@lowers(graph.IdentityOp)
def identity(kernel: KernelBuilder, op: graph.UnaryOp) -> SSAValue:
    """Nothing: the tensor itself."""
    return kernel.value(op.x)


@pointwise(graph.CastOp)
def cast(body: Body, op: graph.CastOp, x: SSAValue) -> SSAValue:
    """The number in another type."""
    target = element_of(op.result)
    return body.cast(x, signless(target), is_unsigned(target))


@pointwise(graph.BitcastOp)
def bitcast(body: Body, op: graph.BitcastOp, x: SSAValue) -> SSAValue:
    """Between integers of one width nothing: their sign is in the ops that follow."""
    target = signless(element_of(op.result))
    if x.type == target:
        return x
    if target == i1:
        return body.compare("ne", x, body.like(0, x))
    if x.type == i1:
        x = body.emit(arith.ExtUIOp(x, i8))
    return x if x.type == target else body.emit(arith.BitcastOp(x, target))
