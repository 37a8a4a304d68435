"""
What interprets an op: the tables, and the door by which a plug-in adds to them.

Loop code is compiled to Python. Scalar and control ops write source text (`emits`); every other op is a call of
a function that `interprets` registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from xdsl.ir import Operation

OpFunction = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]
"""From the execution, the op and the values of its operands, with those that its regions capture, to its results."""

Emitter = Callable[[Any, Any], None]
"""Writes the Python source of an op with a `Writer`."""

INTERPRETERS: dict[type[Operation], OpFunction] = {}
"""Op class -> the function that executes it. Fill it with `interprets`."""

EMITTERS: dict[type[Operation], Emitter] = {}
"""Op class -> the function that writes its source. Fill it with `emits`."""

FunctionT = TypeVar("FunctionT", bound=OpFunction)
EmitterT = TypeVar("EmitterT", bound=Emitter)


def interprets(*classes: type[Operation]) -> Callable[[FunctionT], FunctionT]:
    """
    Register the decorated function as what executes the ops `classes`.

    Tensors are ndarrays that it must not write to; memrefs are read and written with `readable` and `written`;
    scalars are Python numbers:

        @interprets(MyOp)
        def my_op(execution: Execution, op: MyOp, args: Sequence[Any]) -> Sequence[Any]:
            return (np.square(args[0]),)
    """

    def register(function: FunctionT) -> FunctionT:
        for op_class in classes:
            INTERPRETERS[op_class] = function
        return function

    return register


def emits(*classes: type[Operation]) -> Callable[[EmitterT], EmitterT]:
    """Register the decorated function as what writes the Python source of the ops `classes`."""

    def register(function: EmitterT) -> EmitterT:
        for op_class in classes:
            EMITTERS[op_class] = function
        return function

    return register
