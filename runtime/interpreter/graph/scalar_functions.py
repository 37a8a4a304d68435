"""Trigonometric functions and operators on bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import Operation

from penstock.dialects.graph import bitwise, trigonometry
from penstock.dialects.weights import Array
from penstock.runtime.interpreter import bits
from penstock.runtime.interpreter.graph.registry import implements
from penstock.runtime.interpreter.graph.tensor_types import dtype_of

FUNCTIONS: dict[type[Operation], np.ufunc] = {
    trigonometry.SinOp: np.sin,
    trigonometry.CosOp: np.cos,
    trigonometry.TanOp: np.tan,
    trigonometry.AsinOp: np.arcsin,
    trigonometry.AcosOp: np.arccos,
    trigonometry.AtanOp: np.arctan,
    trigonometry.SinhOp: np.sinh,
    trigonometry.CoshOp: np.cosh,
    trigonometry.AsinhOp: np.arcsinh,
    trigonometry.AcoshOp: np.arccosh,
    trigonometry.AtanhOp: np.arctanh,
    bitwise.BitwiseAndOp: np.bitwise_and,
    bitwise.BitwiseOrOp: np.bitwise_or,
    bitwise.BitwiseXorOp: np.bitwise_xor,
}
"""The function of the elements that each op is."""


@implements(*FUNCTIONS)
def function(op: Operation, operands: Sequence[Array]) -> Array:
    """Any of `FUNCTIONS`."""
    return FUNCTIONS[type(op)](*operands)


@implements(bitwise.BitcastOp)
def bitcast(op: bitwise.BitcastOp, operands: Sequence[Array]) -> Array:
    """The same bits; of a byte that becomes a truth value, whether one is set."""
    x, dtype = operands[0], dtype_of(op.result_type.element_type)
    return x.view(np.uint8) != 0 if dtype == np.bool_ else np.ascontiguousarray(x).view(dtype).reshape(x.shape)


@implements(bitwise.ShiftLeftOp, bitwise.ShiftRightOp)
def shift(op: bitwise.ShiftLeftOp | bitwise.ShiftRightOp, operands: Sequence[Array]) -> Array:
    """Bits moved up or down; all of them may be gone."""
    a, b = operands
    return np.asarray((bits.shift_left if isinstance(op, bitwise.ShiftLeftOp) else bits.shift_right)(a, b))
