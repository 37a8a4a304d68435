"""Quantisation: one elementwise generic each way, whose body is the formula."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects import math as math_ops
from xdsl.dialects.builtin import AnyFloat, f32, i32
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.lowering.graph_to_tensor.shapes import element_of, signless
from penstock.lowering.scalar_body import Body, highest, lowest


def _vectors(op: graph.QuantizeLinearOp | graph.DequantizeLinearOp) -> tuple[list[SSAValue], dict[int, list[int]]]:
    """The operands with x at the end, and along which dims of the result the others lie."""
    vectors = [op.scale] if op.zero_point is None else [op.scale, op.zero_point]
    along = {} if op.along is None else {number: [op.along] for number in range(len(vectors))}
    return [*vectors, op.x], along


def _single(body: Body, value: SSAValue) -> SSAValue:
    """A float, or a signed integer, in f32."""
    if isinstance(value.type, AnyFloat):
        return body.cast(value, f32, False)
    return body.emit(arith.SIToFPOp(value, f32))


@lowers(graph.QuantizeLinearOp)
def quantize_linear(kernel: KernelBuilder, op: graph.QuantizeLinearOp) -> SSAValue:
    """saturate(round(x / scale) + zero point), in f32."""
    target = signless(element_of(op.result))
    unsigned = is_unsigned(element_of(op.result))

    def formula(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        scale, *zero, x = elements
        whole = body.emit(math_ops.RoundEvenOp(body.div(_single(body, x), _single(body, scale))))
        if zero:
            whole = body.add(whole, _single(body, body.widen(zero[0], i32, unsigned)))
        whole = body.clamp(whole, lowest(target, unsigned), highest(target, unsigned))
        return body.cast(whole, target, unsigned)

    operands, along = _vectors(op)
    return kernel.pointwise(operands, op.result, formula, along=along)


@lowers(graph.DequantizeLinearOp)
def dequantize_linear(kernel: KernelBuilder, op: graph.DequantizeLinearOp) -> SSAValue:
    """(x - zero point) * scale, the difference in i32, the product in f32."""
    unsigned = is_unsigned(element_of(op.x))

    def formula(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        scale, *zero, x = elements
        difference = body.widen(x, i32, unsigned)
        if zero:
            difference = body.sub(difference, body.widen(zero[0], i32, unsigned))
        product = body.mul(_single(body, difference), _single(body, scale))
        return body.cast(product, element_of(op.result), False)

    operands, along = _vectors(op)
    return kernel.pointwise(operands, op.result, formula, along=along)
