# SPDX-License-Identifier: Apache-2.0
"""Running a program by another backend than the interpreter, as one more step of lockstep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.element_bits import stored
from penstock.dialects.weights import Array, WeightStore
from penstock.runtime.signature import signature_of

if TYPE_CHECKING:
    from penstock.runtime.native import NativeModule


EXACT = (
    "absf",
    "absi",
    "ceil",
    "copysign",
    "ctlz",
    "ctpop",
    "cttz",
    "floor",
    "fma",
    "rint",
    "round",
    "roundeven",
    "sqrt",
    "trunc",
)
"""The functions of the dialect math whose results are rounded rightly everywhere; others are those of a library."""


def calls_libraries(module: ModuleOp) -> bool:
    """Whether a program has functions that NumPy, C's library and LLVM's may round in different ways."""
    return any(op.name.startswith("math.") and op.name[5:] not in EXACT for op in module.walk())


@dataclass(frozen=True)
class RunBy(ModulePass, ABC):
    """
    Changes nothing: what stands after it for lockstep is what a backend computes, which must be the bits of the
    interpreter that sums in the order of the program. Required: loop or accel level.
    """

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Change nothing."""

    @abstractmethod
    def load(self, module: ModuleOp) -> NativeModule:
        """The compiled program; raises UserError for what the backend cannot hold, and where it is not installed."""

    def outputs(self, module: ModuleOp, inputs: Sequence[Array], weights: WeightStore) -> list[Array]:
        """What the backend computes; raises UserError as `load` does."""
        names = signature_of(module).weights
        return self.load(module).run(inputs, [stored(weights[name]) for name in names])


@dataclass(frozen=True)
class RunInC(RunBy):
    """Runs it as C."""

    name = "native"

    def load(self, module: ModuleOp) -> NativeModule:
        from penstock.runtime.native import load_native

        return load_native(module)


@dataclass(frozen=True)
class RunByLlvm(RunBy):
    """Runs it by LLVM."""

    name = "llvm"

    def load(self, module: ModuleOp) -> NativeModule:
        from penstock.runtime.llvm import load_llvm

        return load_llvm(module)


BACKENDS: dict[str, type[RunBy]] = {each.name: each for each in (RunInC, RunByLlvm)}
