"""Trigonometric functions and operators on bits: one scalar op each."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects import math as math_ops
from xdsl.dialects.builtin import i1, i8
from xdsl.ir import Operation, SSAValue

from penstock.dialects import graph
from penstock.lowering.graph_to_tensor.body import Body
from penstock.lowering.graph_to_tensor.elementwise import pointwise
from penstock.lowering.graph_to_tensor.shapes import element_of, signless

FUNCTIONS: dict[type[Operation], type[Operation]] = {
    graph.SinOp: math_ops.SinOp,
    graph.CosOp: math_ops.CosOp,
    graph.TanOp: math_ops.TanOp,
    graph.AsinOp: math_ops.AsinOp,
    graph.AcosOp: math_ops.AcosOp,
    graph.AtanOp: math_ops.AtanOp,
    graph.SinhOp: math_ops.SinhOp,
    graph.CoshOp: math_ops.CoshOp,
    graph.AsinhOp: math_ops.AsinhOp,
    graph.AcoshOp: math_ops.AcoshOp,
    graph.AtanhOp: math_ops.AtanhOp,
    graph.BitwiseAndOp: arith.AndIOp,
    graph.BitwiseOrOp: arith.OrIOp,
    graph.BitwiseXorOp: arith.XOrIOp,
    graph.ShiftLeftOp: arith.ShLIOp,
}
"""The scalar op that each op is, element for element."""


def _register(op_class: type[Operation], scalar: type[Operation]) -> None:
    @pointwise(op_class)
    def formula(body: Body, op: Operation, *elements: SSAValue) -> SSAValue:  # pyright: ignore[reportUnusedFunction]
        return body.emit(scalar(*elements))


@pointwise(graph.ShiftRightOp)
def shift_right(body: Body, op: graph.ShiftRightOp, a: SSAValue, b: SSAValue) -> SSAValue:
    """What comes in is the sign, if there is one."""
    return body.emit(arith.ShRUIOp(a, b) if body.unsigned else arith.ShRSIOp(a, b))


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


for _op_class, _scalar in FUNCTIONS.items():
    _register(_op_class, _scalar)
