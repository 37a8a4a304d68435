# SPDX-License-Identifier: Apache-2.0
"""One structured op on arrays, without a function around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import SSAValue

from penstock.runtime.interpreter.arithmetic import constant_of
from penstock.runtime.interpreter.generic import as_operand, evaluator_of, extents_of


def evaluate_generic(op: GenericOp, operands: Sequence[Any], *, ordered: bool = False) -> list[NDArray[Any]]:
    """The outputs of one op, whose body may capture constants only; `operands` are read and never written."""
    values = [as_operand(value, operand, op) for value, operand in zip(operands, op.operands, strict=True)]
    first = len(op.inputs)
    outputs = [np.array(value) for value in values[first:]]
    evaluator = evaluator_of(op)
    with np.errstate(all="ignore"):
        captured = [_constant(value) for value in evaluator.captured]
        evaluator.run([*values[:first], *outputs], extents_of(op, values), captured, ordered=ordered)
    return outputs


def _constant(value: SSAValue) -> Any:
    assert isinstance(value.owner, arith.ConstantOp)
    return constant_of(value.owner)
