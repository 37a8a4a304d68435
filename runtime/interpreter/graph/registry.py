"""The table of what each op computes, and the door by which a plug-in adds to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from xdsl.ir import Operation

from penstock.dialects.weights import Array

OpT = TypeVar("OpT", bound=Operation)

Implementation = Callable[[Any, Sequence[Array]], Array | tuple[Array, ...]]
"""From an op and the values of its operands to that of its result, or a tuple of those of its results."""

IMPLEMENTATIONS: dict[type[Operation], Implementation] = {}
"""Op class -> its implementation. Fill it with `implements`."""


def implements(
    *classes: type[OpT],
) -> Callable[
    [Callable[[OpT, Sequence[Array]], Array | tuple[Array, ...]]],
    Callable[[OpT, Sequence[Array]], Array | tuple[Array, ...]],
]:
    """
    Register the decorated function as the reference semantics of the ops `classes`.

    It computes in the element types of the operands, may return views of them, and never writes to them:

        @implements(MyOp)
        def my_op(op: MyOp, operands: Sequence[Array]) -> Array:
            return np.square(operands[0])
    """

    def register(
        function: Callable[[OpT, Sequence[Array]], Array | tuple[Array, ...]],
    ) -> Callable[[OpT, Sequence[Array]], Array | tuple[Array, ...]]:
        for op_class in classes:
            IMPLEMENTATIONS[op_class] = function
        return function

    return register
