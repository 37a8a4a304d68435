# SPDX-License-Identifier: Apache-2.0
"""What each op computes, and the door by which a package adds to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Operation

from penstock.dialects.graph.elementwise import PointwiseOp
from penstock.dialects.registry import Registry
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.formulas import evaluate_formula

Implementation = Callable[[Any, Sequence[Array]], Array | tuple[Array, ...]]
"""From an op and the values of its operands to that of its result, or a tuple of those of its results."""

IMPLEMENTATIONS: Registry[Implementation] = Registry()

implements = IMPLEMENTATIONS.register
"""
Register the decorated function as the reference semantics of classes of ops.

It computes in the element types of the operands, may return views of them, and never writes to them:

    @implements(MyOp)
    def my_op(op: MyOp, operands: Sequence[Array]) -> Array:
        return np.square(operands[0])
"""


def implementation_of(op_class: type[Operation]) -> Implementation | None:
    """What is registered for a class of ops, or follows from their formula."""
    found = IMPLEMENTATIONS.find(op_class)
    has_formula = issubclass(op_class, PointwiseOp) and op_class.has_formula()
    return evaluate_formula if found is None and has_formula else found
