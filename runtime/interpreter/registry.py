# SPDX-License-Identifier: Apache-2.0
"""
What interprets an op: the tables, and the door by which a plug-in adds to them.

Loop code is compiled to Python. Scalar and control ops write source text (`emits`); every other op is a call of
a function that `interprets` registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.dialects.registry import Registry

OpFunction = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]
"""From the execution, the op and the values of its operands, with those that its regions capture, to its results."""

Emitter = Callable[[Any, Any], None]
"""Writes the Python source of an op with a `SourceWriter`."""

INTERPRETERS: Registry[OpFunction] = Registry()
"""Class of ops -> the function that executes it."""
EMITTERS: Registry[Emitter] = Registry()
"""Class of ops -> the function that writes its source."""

interprets = INTERPRETERS.register
"""
Register the decorated function as what executes classes of ops.

Tensors are ndarrays that it must not write to; memrefs are read and written with `readable` and `written`; scalars are
Python numbers:

    @interprets(MyOp)
    def my_op(execution: Execution, op: MyOp, args: Sequence[Any]) -> Sequence[Any]:
        return (np.square(args[0]),)
"""
emits = EMITTERS.register
"""Register the decorated function as what writes the Python source of classes of ops."""

Accesses = Callable[[Any, Any, Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]
"""From the execution, the op and the values of its operands to what it reads and what it writes, as `Touch`es."""

ACCESSES: Registry[Accesses] = Registry()
"""Class of ops that are given memrefs -> the function that says which elements it accesses, before it does."""

accesses = ACCESSES.register
"""
Register the decorated function as what says which elements classes of ops access: races between iterations that run at
once are found by it. An op that is given memrefs and says nothing may read and write all of them.
"""
