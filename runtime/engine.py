# SPDX-License-Identifier: Apache-2.0
"""
What executes: a compiled program and the memory it runs in.

An `Engine` is a program that is ready to run: code and weights, both read-only. An `ExecutionContext` owns what a run
writes to, its arena and scratchpads; contexts of one engine may run at the same time.

What the compiler consists of is imported where it is used: a plan is loaded and run without it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.dialects import alignment
from penstock.dialects.diagnostics import UserError, nearest_or_all, warn_of
from penstock.dialects.element_bits import same_bits
from penstock.dialects.files import owned, write_whole
from penstock.passes.toolchain import has_compiler, load, load_code
from penstock.runtime.execution_context import Destinations, ExecutionContext, Runnable, Runner
from penstock.runtime.llvm import has_llvm
from penstock.runtime.memory import MemoryNeed, native_need, require_memory
from penstock.runtime.native import BoundArrays, NativeModule, build
from penstock.runtime.plan import PlanFile, open_plan, plan_of_bytes
from penstock.runtime.tensor_specs import Signature
from penstock.runtime.threads import INTERPRETED, require_at_most

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from penstock.dialects.context import PenstockContext
    from penstock.lowering.to_c import CSource
    from penstock.lowering.to_llvm import LlvmSource
    from penstock.runtime.compiler import LoadedProgram
    from penstock.runtime.interpreter import Order
    from penstock.runtime.pass_manager import Progress
    from penstock.runtime.provenance import Provenance
    from penstock.runtime.report import CompileReport, FusionCount

Array = NDArray[Any]
Backend = Literal["native", "llvm", "interpreter"]
BACKENDS: tuple[Backend, ...] = ("native", "llvm", "interpreter")


def require_backend(name: str) -> None:
    """Raise UserError for a name that is no backend."""
    if name not in BACKENDS:
        raise UserError(f'there is no backend "{name}"', notes=[nearest_or_all(name, BACKENDS, "backends")])


class Engine(Runnable):
    """
    A compiled program, ready to run.

    `signature` is the model's, whatever level the program was lowered to; `backend` is `native` (generated C), `llvm`
    (LLVM IR, compiled in this process), or `interpreter`. An engine can be copied, and pickled: it is then a plan.
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
        Make `module` ready to run; it may be at any level for the interpreter, at loop or accel level for the others.
        Where there is no C compiler, `native` is `llvm`.

        Raises UserError where the backend is not there: neither a C compiler nor LLVM for `native`; for symbolic
        dimensions that are not bound; and, with `verify`, for a program that is not proved safe (see
        `runtime.proofs`). A program that the compiler has just lowered has been proved already.
        """
        from penstock.runtime.proofs import prove
        from penstock.runtime.signature import signature_of
        from penstock.runtime.symbolic_dims import require_bound

        require_backend(backend)
        require_bound(module)
        if verify:
            prove(module)
        self._plan: PlanFile | None = None
        self._ir: tuple[ModuleOp, PenstockContext] | None = (module, ctx)
        self._start(signature or signature_of(module), backend)

    def _start(self, signature: Signature, backend: Backend) -> None:
        self.signature = signature
        self.backend: Backend = self._available(backend)
        self.fusion: FusionCount | None = None
        """What fusion did; None where the program was not compiled here."""
        self.seconds: Sequence[tuple[str, float]] = ()
        """Name and seconds of every pass that made the program."""
        self.interleaving: Order = "program"
        """Of the interpreter: the order in which commands of an accelerator happen."""
        self._source: CSource | None = None
        self._llvm: LlvmSource | None = None
        self._native = None if self.backend == "interpreter" else self._load_native()
        self.threads = 1 if self._native is None else self._native.module.threads
        """How many threads each context uses; the interpreter has one."""
        self._own_context: ExecutionContext | None = None

    def _available(self, backend: Backend) -> Backend:
        """The backend that stands in for `native` where code has yet to be made, and there is no C compiler."""
        if backend != "native":
            return backend
        if self._plan is not None:
            return "llvm" if self._plan.is_compiled_by_llvm else backend
        return "llvm" if not has_compiler() and has_llvm() else backend

    # plans

    @classmethod
    def load(cls, path: str | Path, backend: Backend = "native", *, threads: int | None = None) -> Engine:
        """
        The engine of the plan at `path`, which `save` or `penstock compile` wrote. The file is mapped, and must not be
        changed in place as long as the engine is in use; it may be replaced and removed. With the backend `llvm` the
        program is compiled anew, for whatever CPU this is. `threads` is how many a context uses, if it is not as many
        as the plan was compiled for.

        Raises UserError for what is no plan, for one that is truncated, damaged or of another format, for code that is
        for another CPU, and for more threads than the plan was compiled for.
        """
        require_backend(backend)
        engine = cls._of_plan(open_plan(path), backend)
        if threads is not None:
            engine.threads = engine.checked_threads(threads)
        return engine

    def save(self, path: str | Path) -> None:
        """
        Write the plan of the program to `path`. With the backend `native` it has machine code, for this machine; that
        of `llvm` is compiled anew where the plan is loaded.

        Raises UserError for a file there that is no plan, and where none can be written.
        """
        from penstock.runtime.plan_writer import require_replaceable, save_plan

        if self._plan is not None:
            require_replaceable(path)
            write_whole(path, bytes(self._plan.contents))
            return
        save_plan(path, self.module, self.ctx, self.signature, self._source or self._llvm)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._plan_bytes(), self.backend, self.interleaving, self.threads)

    def __copy__(self) -> Engine:
        other = object.__new__(Engine)
        vars(other).update(vars(self))
        other._own_context = None
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        # Code, weights and signature are never written to.
        from penstock.dialects.context import make_context

        other, ctx = self.__copy__(), make_context()
        ctx.weights = self.ctx.weights.copy()
        other._ir = (self.module.clone(), ctx)
        if self.backend == "interpreter":
            # Its module is what runs, and may be changed: what was written of it before is another program.
            other._plan = None
        return other

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.signature.inputs, self.signature.outputs))
        arena = self._arena_bytes()
        parts = [
            f"({inputs}) -> ({outputs})",
            f"machine {self._machine() or 'host'}",
            f"arena {'-' if arena is None else f'{arena:,}'} bytes",
            f"backend {self.backend}",
            *([f"{self.threads} threads"] if self.threads > 1 else []),
        ]
        return f"<Engine {'; '.join(parts)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the figures, the memory of each scope, and what the units of a machine do."""
        from penstock.passes.analysis.memory.memory_problems import plan_report
        from penstock.runtime.display import program_html
        from penstock.runtime.levels import level_of

        is_placed = level_of(self.module) in ("loop", "accel")
        plans = plan_report(self.module) if is_placed else []
        return program_html(repr(self), self.report, plans, self.provenance.run if is_placed else None)

    @classmethod
    def _of_plan(cls, plan: PlanFile, backend: Backend) -> Engine:
        engine = object.__new__(cls)
        engine._plan, engine._ir = plan, None
        engine._start(plan.signature, backend)
        return engine

    def _plan_bytes(self) -> bytes:
        if self._plan is not None:
            return bytes(self._plan.contents)
        from penstock.runtime.plan_writer import write_program

        file = io.BytesIO()
        write_program(file, self.module, self.ctx, self.signature, self._source or self._llvm)
        return file.getvalue()

    # what it holds

    @property
    def module(self) -> ModuleOp:
        """The lowered program; that of a plan is parsed when it is first asked for."""
        return self._program[0]

    @property
    def ctx(self) -> PenstockContext:
        """The context of the program, with its weights."""
        return self._program[1]

    @property
    def _program(self) -> tuple[ModuleOp, PenstockContext]:
        if self._ir is None:
            from penstock.runtime.compiler import program_of_plan

            assert self._plan is not None
            program = program_of_plan(self._plan)
            self._ir = (program.module, program.ctx)
        return self._ir

    @cached_property
    def report(self) -> CompileReport:
        """What the compilation came to, in figures; worked out when it is first asked for."""
        from penstock.runtime.report import report_on

        return report_on(self.module, fusion=self.fusion, seconds=self.seconds, source=self._source)

    @cached_property
    def provenance(self) -> Provenance:
        """
        Where the bytes and cycles of the program come from; worked out when it is first asked for.

        Raises UserError for a program that is not at loop or accel level, or whose kernels have a hazard.
        """
        from penstock.passes.analysis.kernels import machine_of
        from penstock.runtime.provenance import Provenance
        from penstock.runtime.simulator.run import run_program

        run = run_program(self.module) if machine_of(self.module) is not None else None
        return Provenance(self.module, run if run is not None and run.kernels else None)

    def _machine(self) -> str | None:
        if self._plan is not None:
            return self._plan.about["machine"]
        from penstock.dialects.machine import find_target

        target = find_target(self.module)
        return target.machine_name if target else None

    def _arena_bytes(self) -> int | None:
        """The bytes of the intermediates that are off chip, where code says so."""
        if self._plan is not None:
            return self._plan.about.get("arena_bytes")
        source = self._source or self._llvm
        return source.arena_bytes if source is not None else None

    # running

    def context(self, *, threads: int | None = None) -> ExecutionContext:
        """
        A new context, with memory and threads of its own, by default as many as the engine says.

        Raises UserError where this machine does not have so much memory, and for more threads than were compiled for.
        """
        count = self.checked_threads(self.threads if threads is None else threads)
        require_memory(self._need())
        runner = self._interpret if self._native is None else self._native.runner(self.signature, count)
        return ExecutionContext(self.signature, runner)

    def checked_threads(self, threads: int) -> int:
        """The number of threads; raises UserError for more than the code has."""
        most = 1 if self._native is None else self._native.module.threads
        return require_at_most(threads, most, interpreted=self._native is None)

    def run(
        self, arrays: Sequence[Any] = (), named: Mapping[str, Any] | None = None, *, out: Destinations = None
    ) -> list[Array]:
        """Run in a context that the engine keeps; threads take turns."""
        if self._own_context is None:
            self._own_context = self.context()
        return self._own_context.run(arrays, named, out=out)

    def _need(self) -> MemoryNeed:
        if self._native is not None:
            weight_bytes = sum(array.nbytes for array in self._native.weights.arrays)
            return native_need(self.signature.largest(), weight_bytes, self._native.module.context_bytes)
        from penstock.runtime.memory_of_values import interpreter_need

        return interpreter_need(self.module, self.signature.largest())

    def _interpret(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        from penstock.runtime.interpreter import run_module

        found = run_module(self.module, inputs, self.ctx.weights, interleaving=self.interleaving)
        for output, array in zip(outputs, found, strict=True):
            # Below graph level integers are signless: the caller gets the types of the model.
            output[...] = np.asarray(array).astype(output.dtype, copy=False)

    def _load_native(self) -> _NativeProgram:
        if self.backend == "llvm":
            return self._load_llvm()
        if (plan := self._plan) is not None:
            plan.require_runs_here()
            assert plan.code is not None
            module = NativeModule(plan.interface, load_code("penstock-plan", plan.code))
            return _NativeProgram(module, module.bind([plan.weights[name] for name in plan.weight_arguments]))
        from penstock.lowering.to_c import emit_c

        self._source = emit_c(self.module)
        module = NativeModule(self._source, load(build(self._source)))
        return self._with_weights(module)

    def _load_llvm(self) -> _NativeProgram:
        from penstock.lowering.to_llvm import emit_llvm
        from penstock.runtime.llvm import load_source

        self._llvm = emit_llvm(self.module)
        return self._with_weights(load_source(self._llvm))

    def _with_weights(self, module: NativeModule) -> _NativeProgram:
        from penstock.runtime.signature import signature_of

        names = signature_of(self.module).weights
        return _NativeProgram(module, module.bind([alignment.on_line(owned(self.ctx.weights[name])) for name in names]))


class _NativeProgram:
    """Machine code and its weights."""

    def __init__(self, module: NativeModule, weights: BoundArrays):
        self.module = module
        self.weights = weights

    def runner(self, signature: Signature, threads: int) -> Runner:
        """Runs in a context of its own."""
        context, weights = self.module.new_context(threads), self.weights
        specs = self.module.interface.outputs
        if all(same_bits(own.dtype, spec.dtype) for own, spec in zip(signature.outputs, specs, strict=True)):
            if signature.bounds:
                return lambda inputs, outputs: context.run_into(
                    outputs, inputs, weights, [*signature.sizes_of(inputs).values()]
                )
            return lambda inputs, outputs: context.run_into(outputs, inputs, weights)

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            # Where the code keeps elements otherwise than the model, it writes to arrays of its own.
            written = [
                array if same_bits(array.dtype, spec.dtype) else np.empty(array.shape, spec.dtype)
                for array, spec in zip(outputs, specs, strict=True)
            ]
            context.run_into(written, inputs, weights, [*signature.sizes_of(inputs).values()])
            for output, array in zip(outputs, written, strict=True):
                if array is not output:
                    output[...] = array.astype(output.dtype)

        return run


def _unpickled(contents: bytes, backend: Backend, interleaving: Order, threads: int) -> Engine:
    engine = Engine._of_plan(plan_of_bytes("<pickled engine>", contents), backend)  # pyright: ignore[reportPrivateUsage]
    engine.interleaving, engine.threads = interleaving, threads
    return engine


def compile_program(
    program: LoadedProgram,
    *,
    machine: str | None = None,
    until: str | None = None,
    backend: Backend = "native",
    pipeline: str | None = None,
    machine_options: Mapping[str, object] | None = None,
    threads: int = 1,
    measure: bool = False,
    progress: Progress | None = None,
) -> Engine:
    """
    Lower a program in place and make it ready to run.

    `until` is the level to stop at; by default the lowest: accel for a machine, loop for the host. `pipeline` edits the
    passes or names others, `machine_options` sets numbers of the machine, `threads` says how many run the host's loops,
    and `measure` chooses their tiles by measured times: see `passes_for`. An InputWarning says that the interpreter has
    one thread where it is asked for more.
    """
    from penstock.runtime.compiler import compile_module
    from penstock.runtime.levels import require_level
    from penstock.runtime.report import FusionCount
    from penstock.runtime.signature import signature_of, with_extents

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
        threads=threads,
        measure=measure,
        parsed=program.parsed,
        observers=[fusion],
    )
    if pipeline is not None and (until is not None or backend != "interpreter"):
        require_level(program.module, until or "accel", str(program.path))
    signature = with_extents(signature, program.module)
    engine = Engine(program.module, program.ctx, signature, backend, verify=False)
    if threads > 1 and engine.backend == "interpreter":
        warn_of([INTERPRETED.format(threads)])
    engine.fusion, engine.seconds = fusion, seconds
    return engine
