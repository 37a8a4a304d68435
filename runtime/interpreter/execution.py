# SPDX-License-Identifier: Apache-2.0
"""One execution of a module below graph level: its functions, memory, interleaving and counters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

import numpy as np
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError, calls_itself, did_you_mean, location_of
from penstock.dialects.machine import TargetOp, find_target
from penstock.runtime.interpreter.counters import Counters
from penstock.runtime.interpreter.interleaving import Interleaving, Order
from penstock.runtime.interpreter.ownership import Ownership
from penstock.runtime.interpreter.scopes import ScopeMemory, UndefinedRead
from penstock.runtime.interpreter.source import Compiled, Listener, compile_function

T = TypeVar("T")

_FAULTS_OF_PROGRAMS = (IndexError, OverflowError, TypeError, ValueError, ZeroDivisionError, UndefinedRead)
"""What inline code raises; its op is found by the line."""


_INLINE_HELPERS = {
    str(Path(__file__).with_name(name))
    for name in ("arithmetic.py", "control.py", "forall.py", "scalar.py", "scopes.py")
}
"""The files of the functions that inline code calls."""


class Execution:
    """
    What functions of ops run in. Functions are compiled when they are first called.

    `interleaving` is the order of the units' commands, `seed` short for that number. With `ordered`, sums of floats are
    taken in the order of the loops, at a cost. `listener` is called after each op.
    """

    def __init__(
        self,
        module: ModuleOp,
        *,
        seed: int | None = None,
        interleaving: Order = "program",
        ordered: bool = False,
        counters: Counters | None = None,
        listener: Listener | None = None,
    ):
        self.module = module
        self.target: TargetOp | None = find_target(module)
        self.memory = ScopeMemory(module)
        self.interleaving = Interleaving(interleaving if seed is None else seed)
        self.counters = Counters() if counters is None else counters
        self.ordered = ordered
        self._listener = listener
        self._functions = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, func.FuncOp)}
        self._compiled: dict[tuple[str, bool], Compiled] = {}
        """By name, and whether what they access is noted."""
        self._running: set[str] = set()
        self._ownership: dict[Operation, Ownership] = {}
        self._kept: dict[Hashable, Any] = {}

    def function(self, name: str, caller: Operation | None = None) -> func.FuncOp:
        """A function of the module; raises UserError if there is none."""
        found = self._functions.get(name)
        if found is None:
            near = did_you_mean(name, self._functions)
            raise UserError(
                f"the module has no func.func @{name}",
                loc=location_of(caller if caller is not None else self.module),
                notes=[near] if near else [],
            )
        return found

    def run(self, name: str, args: Sequence[Any]) -> tuple[Any, ...]:
        """Call a function from outside; raises UserError, located, for every fault of the program."""
        try:
            with np.errstate(all="ignore"):  # inf and NaN are results like others
                results = self.call(name, args)
                self.interleaving.barrier()
                return results
        except _FAULTS_OF_PROGRAMS as error:
            raise self._located(error) from error

    def call(self, name: str, args: Sequence[Any], caller: Operation | None = None) -> tuple[Any, ...]:
        """Call a function from an op."""
        key = name, self.interleaving.races.iteration is not None
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = compile_function(self.function(name, caller), self, self._listener, notes_accesses=key[1])
            self._compiled[key] = compiled
        if name in self._running:
            raise calls_itself(name, self.function(name) if caller is None else caller)
        self._running.add(name)
        try:
            results = compiled.function(*args)
        finally:
            self._running.remove(name)
        if compiled.is_kernel and self.interleaving.unwaited:
            raise UserError(
                f"@{name} returns while commands may still run",
                loc=location_of(self.function(name)),
                notes=["a kernel is quiescent when it ends: end it in accel.barrier"],
            )
        if compiled.is_kernel and (fault := self.interleaving.leftover()) is not None:
            raise UserError(f"@{name} returns when {fault}", loc=location_of(self.function(name)))
        return results

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, made once for each key: an op, or a tuple that begins with one."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def may_take(self, op: Operation, number: int) -> bool:
        """Whether `op` may overwrite the tensor that is its operand `number`."""
        return self.kept(("take", op, number), lambda: self._ownership_of(op).may_take(op, number))

    def is_owned(self, op: Operation, number: int) -> bool:
        """Whether another op may overwrite the tensor that is operand `number` of `op`."""
        return self.kept(("own", op, number), lambda: self._ownership_of(op).is_owned(op.operands[number]))

    def _ownership_of(self, op: Operation) -> Ownership:
        function: Operation | None = op
        while not isinstance(function, func.FuncOp):
            assert function is not None
            function = function.parent_op()
        if function not in self._ownership:
            self._ownership[function] = Ownership(function)
        return self._ownership[function]

    def _located(self, error: Exception) -> Exception:
        """`error` as a fault of the op whose inline code raised it; itself if it was raised by anything else."""
        read_only = "read-only" in str(error)
        if isinstance(error, TypeError) and not read_only:
            return error
        compiled = {each.filename: each for each in self._compiled.values()}
        for frame, line in reversed(list(walk_tb(error.__traceback__))):
            filename = frame.f_code.co_filename
            if filename in compiled:
                op = compiled[filename].lines[line]
                message = "writes to an input" if read_only else f"{error}"
                return error if op is None else UserError(f"{op.name}: {message}", loc=location_of(op))
            if filename not in _INLINE_HELPERS and not read_only:
                break
        return error
