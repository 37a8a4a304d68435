# SPDX-License-Identifier: Apache-2.0
"""Elementwise ops, quantisation among them: one generic each, whose body is a formula, or what a package registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from xdsl.dialects import arith
from xdsl.dialects import math as math_ops
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, IntegerType, f32, i1, i8, i32
from xdsl.ir import Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.passes.scalar_body import Body, highest, lowest
from penstock.passes.shapes import element_of, signless

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


def _is_one(value: SSAValue) -> bool:
    """Whether a value of a body is the number 1."""
    return isinstance(op := value.owner, arith.ConstantOp) and isa(op.value, FloatAttr) and op.value.value.data == 1


def _zero_point(zero: Sequence[SSAValue], unsigned: bool) -> int | None:
    """The zero point as a number, 0 where there is none; None where it is no constant of the body."""
    if not zero:
        return 0
    if not isinstance(op := zero[0].owner, arith.ConstantOp) or not isa(op.value, IntegerAttr[IntegerType]):
        return None
    number = op.value.value.data
    return number % (1 << op.value.type.width.data) if unsigned else number


@lowers(graph.QuantizeLinearOp)
def quantize_linear(kernel: KernelBuilder, op: graph.QuantizeLinearOp) -> SSAValue:
    """saturate(round(x / scale) + zero point), in f32; a scale of 1 and a zero point of 0 change no integer."""
    target = signless(element_of(op.result))
    unsigned = is_unsigned(element_of(op.result))

    def formula(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        scale, *zero, x = elements
        real, number = _single(body, x), _zero_point(zero, unsigned)
        whole = body.emit(math_ops.RoundEvenOp(real if _is_one(scale) else body.div(real, _single(body, scale))))
        if number is None:
            whole = body.add(whole, _single(body, body.widen(zero[0], i32, unsigned)))
        elif number:
            whole = body.add(whole, body.constant(number, f32))
        whole = body.clamp(whole, lowest(target, unsigned), highest(target, unsigned))
        return body.cast(whole, target, unsigned)

    operands, along = _vectors(op)
    return kernel.pointwise(operands, op.result, formula, along=along)


@lowers(graph.DequantizeLinearOp)
def dequantize_linear(kernel: KernelBuilder, op: graph.DequantizeLinearOp) -> SSAValue:
    """(x - zero point) * scale, the difference in i32, the product in f32; a zero point of 0 changes nothing."""
    unsigned = is_unsigned(element_of(op.x))

    def formula(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        scale, *zero, x = elements
        difference, number = body.widen(x, i32, unsigned), _zero_point(zero, unsigned)
        if number is None:
            difference = body.sub(difference, body.widen(zero[0], i32, unsigned))
        elif number:
            difference = body.sub(difference, body.constant(number, i32))
        product = body.mul(_single(body, difference), _single(body, scale))
        return body.cast(product, element_of(op.result), False)

    operands, along = _vectors(op)
    return kernel.pointwise(operands, op.result, formula, along=along)
