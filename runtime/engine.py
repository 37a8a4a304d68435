"""
What executes: a compiled program and the memory it runs in.

An `Engine` is a program that is ready to run: code and weights, both read-only. An `ExecutionContext` owns what a run
writes to, its arena and scratchpads; contexts of one engine may run at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.runtime.compiler import LoadedProgram, compile_module, require_bound, require_level
from penstock.runtime.memory import interpreter_need, native_need, require_memory
from penstock.runtime.pass_manager import Progress
from penstock.runtime.proofs import prove
from penstock.runtime.signature import Signature, signature_of

if TYPE_CHECKING:
    from penstock.lowering.to_c import CSource
    from penstock.runtime.interpreter import Order
    from penstock.runtime.report import CompileReport, FusionCount

Array = NDArray[Any]
Backend = Literal["native", "interpreter"]
BACKENDS: tuple[Backend, ...] = ("native", "interpreter")

Runner = Callable[[Sequence[Array]], list[Array]]
"""Runs a program once on its checked inputs."""


def require_backend(name: str) -> None:
    """Raise UserError for a name that is no backend."""
    if name not in BACKENDS:
        raise UserError(f'there is no backend "{name}"', notes=[nearest_or_all(name, BACKENDS, "backends")])


class Runnable(ABC):
    """What is called with arrays."""

    def __call__(self, *arrays: Any, **named: Any) -> list[Array]:
        """
        Run once. Inputs are given in order, by name, or both; the outputs come in the model's order.

        Raises UserError for a missing or unknown input, a wrong shape or a wrong element type.
        """
        return self.run(arrays, named)

    @abstractmethod
    def run(self, arrays: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> list[Array]:
        """As calling it, for names that are no Python identifiers or clash with parameters."""


class ExecutionContext(Runnable):
    """The memory of one run at a time of an engine; make one per thread."""

    def __init__(self, signature: Signature, runner: Runner):
        self._signature = signature
        self._runner = runner

    def run(self, arrays: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> list[Array]:
        inputs = self._signature.bind(arrays, named or {})
        outputs = self._runner(inputs)
        # Below graph level integers are signless: the caller gets the types of the model.
        return [
            np.asarray(array).astype(spec.dtype, copy=False)
            for spec, array in zip(self._signature.outputs, outputs, strict=True)
        ]


class Engine(Runnable):
    """
    A compiled program, ready to run.

    `signature` is the model's, whatever level the program was lowered to; `backend` is `native` (generated C) or
    `interpreter`.
    """

    def __init__(
        self,
        module: ModuleOp,
        ctx: PenstockContext,
        signature: Signature | None = None,
        backend: Backend = "native",
        *,
        verify: bool = True,
    ):
        """
        Make `module` ready to run; it may be at any level for the interpreter, at loop or accel level for C.

        Raises UserError where the backend is not there: no C compiler for `native`; for symbolic dimensions that are
        not bound; and, with `verify`, for a program that is not proved safe (see `runtime.proofs`). A program that
        the compiler has just lowered has been proved already.
        """
        require_backend(backend)
        self.module = module
        self.ctx = ctx
        require_bound(module)
        if verify:
            prove(module)
        self.signature = signature or signature_of(module)
        self.backend: Backend = backend
        self.fusion: FusionCount | None = None
        """What fusion did; None where the program was not compiled here."""
        self.seconds: Sequence[tuple[str, float]] = ()
        """Name and seconds of every pass that made the program."""
        self.interleaving: Order = "program"
        """Of the interpreter: the order in which commands of an accelerator happen."""
        self._source: CSource | None = None
        self._need = lambda: interpreter_need(self.module, self.signature)
        self._make_runner = self._native() if backend == "native" else self._interpreted
        self._own_context: ExecutionContext | None = None

    @cached_property
    def report(self) -> CompileReport:
        """What the compilation came to, in figures; worked out when it is first asked for."""
        from penstock.runtime.report import report_on

        return report_on(self.module, fusion=self.fusion, seconds=self.seconds, source=self._source)

    def context(self) -> ExecutionContext:
        """A new context, with memory of its own; raises UserError where this machine does not have so much."""
        require_memory(self._need())
        return ExecutionContext(self.signature, self._make_runner())

    def run(self, arrays: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> list[Array]:
        """Run in the engine's own context; not to be called from several threads."""
        if self._own_context is None:
            self._own_context = self.context()
        return self._own_context.run(arrays, named)

    def _interpreted(self) -> Runner:
        from penstock.runtime.interpreter import run_module

        return lambda inputs: run_module(self.module, inputs, self.ctx.weights, interleaving=self.interleaving)

    def _native(self) -> Callable[[], Runner]:
        from penstock.runtime.native import dense, load_native

        native = load_native(self.module)
        self._source = native.source
        self._need = lambda: native_need(self.module, self.signature, native.context_bytes)
        weights = [dense(self.ctx.weights[name]) for name in signature_of(self.module).weights]

        def make() -> Runner:
            context = native.new_context()
            return lambda inputs: context(inputs, weights)

        return make


def compile_program(
    program: LoadedProgram,
    *,
    machine: str | None = None,
    until: str | None = None,
    backend: Backend = "native",
    pipeline: str | None = None,
    machine_options: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Engine:
    """
    Lower a program in place and make it ready to run.

    `until` is the level to stop at; by default the lowest: accel for a machine, loop for the host. `pipeline` edits the
    passes or names others, `machine_options` sets numbers of the machine: see `passes_for`.
    """
    from penstock.runtime.report import FusionCount

    signature = signature_of(program.module)
    fusion = FusionCount()
    seconds = compile_module(
        program.module,
        program.ctx,
        machine,
        until or "accel",
        progress,
        pipeline=pipeline,
        machine_options=machine_options,
        parsed=program.parsed,
        observers=[fusion],
    )
    if pipeline is not None and (until is not None or backend == "native"):
        require_level(program.module, until or "accel", str(program.path))
    engine = Engine(program.module, program.ctx, signature, backend, verify=False)
    engine.fusion, engine.seconds = fusion, seconds
    return engine
