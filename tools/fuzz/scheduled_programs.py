# SPDX-License-Identifier: Apache-2.0
"""
Programs that are scheduled at random: what they compute, what became of the primitives, and what may not be.

Integers and sums of small integers in floats are compared bit for bit; floats that are not exact and were reassociated
within `TOLERANCE` of the largest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.transform import NamedSequenceOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.dialects.upstream.scf import ForallOp
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text
from penstock.passes.schedule.schedule import Schedule
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import verify
from penstock.tools.fuzz.tensor_programs import inputs_of
from penstock.tools.run_by import BACKENDS

Array = NDArray[Any]
Op = TypeVar("Op", bound=Operation)

TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 4e-3}
ORDERS = ("program", "asap", "alap", 0)
"""Of iterations and commands that may happen in several."""
HANDLES = ("transform.structured.match", "transform.split_handle", "transform.cast", "transform.get_parent_op")
"""Ops of schedules that only look."""


class WrongError(AssertionError):
    """A schedule that is not what it should be."""


class LeftOutError(UserError):
    """A primitive is not tried, since the case does without it."""


@dataclass
class Tally:
    """What became of the primitives of many cases, and of the cases."""

    applied: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By the op and the kind of message."""
    cases: Counter[str] = field(default_factory=Counter[str])
    """How many reached which end, and how often what was checked."""
    examples: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """A seed for each kind of refusal."""


def kind_of(message: str) -> str:
    """A message without its numbers and names."""
    return re.sub(r'"[^"]*"|@\w+|%\w+|-?\d[\d,.]*', "_", message)[:120]


class Proposed(Schedule):
    """A schedule that counts what is applied and refused, and demands that what is refused changes nothing."""

    def __init__(self, kernel: FuncOp, target: TargetOp | None, sequence: NamedSequenceOp | None, case: Case):
        super().__init__(kernel, target, sequence)
        self._case, self._tally = case, case.tally
        self._known: FuncOp | None = None

    def append(self, op: Op) -> Op:
        """As `Schedule` does."""
        if op.name in HANDLES:
            return super().append(op)
        name, kernel = op.name, self.state.kernel
        number = self._case.begin_step()
        if number is None:
            op.erase()
            raise LeftOutError(f"{name} is left out")
        before = self._known = self._known or kernel.clone()
        try:
            found = super().append(op)
        except UserError as error:
            kind = name, kind_of(error.message)
            self._tally.refused[kind] += 1
            self._tally.examples.setdefault(kind, self._case.seed)
            if not kernel.is_structurally_equivalent(before):
                raise WrongError(f"{name} is refused, and changed the kernel: {error.message}") from error
            raise
        self._tally.applied[name] += 1
        self._known = None
        self._case.end_step(number, name)
        return found


@dataclass(frozen=True)
class Program:
    """A program before its kernels are scheduled, and what it computes."""

    module: ModuleOp
    inputs: list[Array]
    expected: list[Array]
    passes: tuple[ModulePass, ...] = ()
    """That take it to the commands of its machine."""


def program_of(module: ModuleOp, seed: int, passes: Sequence[ModulePass] = ()) -> Program:
    """A program with inputs."""
    inputs = inputs_of(module, seed)
    return Program(module, inputs, run_module(module, inputs, WeightStore(), ordered=True), tuple(passes))


@dataclass
class Case:
    """One program under one schedule, on its way down."""

    seed: int
    program: Program
    tally: Tally
    backend: str | None = None
    """What runs the program at the end, too: `native`, which is C, or `llvm`."""
    is_watched: bool = False
    """Whether the program is compared after each step, so that the first wrong one is known."""
    left_out: Collection[int] = ()
    """The numbers of the steps that are not tried."""
    random: Random = field(init=False)
    module: ModuleOp = field(init=False)
    steps: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The numbers and ops of the primitives that are applied."""
    schedules: dict[str, NamedSequenceOp] = field(default_factory=dict[str, NamedSequenceOp])
    """What is applied to each kernel."""
    refusal: str | None = None
    """Why the compiler goes no further, if it refuses what has become of the program."""
    _tried: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.module = self.program.module.clone()

    def begin_step(self) -> int | None:
        """The number of a primitive that is tried now; None for one that is left out."""
        self._tried += 1
        return None if self._tried in self.left_out else self._tried

    def end_step(self, number: int, name: str) -> None:
        """A primitive has been applied."""
        self.steps.append((number, name))
        if self.is_watched:
            self.compare(f"step {number}, {name}")

    def compare(self, where: str) -> None:
        """Raise WrongError where the module does not verify any more, faults as it runs, or computes something else."""
        try:
            verify(self.module)
            self._run(where)
        except UserError as error:
            # A race, say, or bytes that nothing has written: no refusal of what is legal.
            raise WrongError(f"{where}: {error.loc}: {error.message}") from error

    def _run(self, where: str) -> None:
        orders: Sequence[Any] = ("program",)
        if where == "commands" or any(isinstance(op, ForallOp) for op in self.module.walk()):
            orders = ORDERS
        for order in orders:
            results = run_module(self.module, self.program.inputs, WeightStore(), ordered=True, interleaving=order)
            self._require_same(results, f"{where}, in the order {order}")

    def compare_compiled(self) -> None:
        """Raise WrongError where the backend computes something else."""
        if self.backend is not None:
            self._require_same(
                BACKENDS[self.backend]().load(self.module).run(self.program.inputs), f"by {self.backend}"
            )
            self.tally.cases[f"also by {self.backend}"] += 1

    def _require_same(self, results: Sequence[Array], where: str) -> None:
        for found, expected in zip(results, self.program.expected, strict=True):
            if found.dtype == expected.dtype and found.tobytes() == expected.tobytes():
                continue
            tolerance = TOLERANCE.get(expected.dtype)
            largest = np.abs(expected).max(initial=0)
            # Values below this are exact in any order.
            exact = largest < (2048 if expected.dtype == np.float16 else 2**22)
            if tolerance is None or exact or not np.allclose(found, expected, rtol=0, atol=tolerance * largest):
                raise WrongError(f"{where}: other values")
            self.tally.cases["floats within the tolerance"] += 1

    def proposed(self, kernel: FuncOp, target: TargetOp | None, sequence: NamedSequenceOp | None) -> Proposed:
        found = Proposed(kernel, target, sequence, self)
        self.schedules[kernel.sym_name.data] = found.sequence
        return found


def parsed(text: str) -> ModuleOp:
    """A program in text."""
    return parse_text(make_context(), SourceText("program.mlir", text)).module


def function_of(module: ModuleOp, name: str) -> FuncOp:
    """The function of a name."""
    return next(op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == name)


def require_equal(case: Case, replayed: ModuleOp, ctx: PenstockContext) -> None:
    """Raise WrongError where text, applied, made another program; every tenth is compared with its names."""
    if not replayed.is_structurally_equivalent(case.module):
        raise WrongError("the text of the schedule makes another program")
    if case.seed % 10 == 0 and module_text(ctx, replayed) != module_text(ctx, case.module):
        raise WrongError("the text of the schedule makes a program with other names")
