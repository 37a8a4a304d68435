# SPDX-License-Identifier: Apache-2.0
"""
Programs with symbolic dimensions, ready to run: an engine for each set of sizes, compiled when it is first called for.

Below graph level all shapes are static, so a program is compiled once for each binding of its dimensions. The engines
of the latest bindings are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from numpy.typing import NDArray

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.graph.dims import Binding, checked_sizes
from penstock.lowering.from_torch import TorchModel, is_torch_model, model_of_torch
from penstock.runtime.compiler import LoadedProgram, bind_program, load_input
from penstock.runtime.engine import Backend, Engine, compile_program, require_backend
from penstock.runtime.engine_cache import CACHED_ENGINES, EngineCache
from penstock.runtime.execution_context import Destinations, Runnable
from penstock.runtime.pipeline import passes_for
from penstock.runtime.schedules import read_schedules
from penstock.runtime.signature import signature_of
from penstock.runtime.symbolic_dims import open_dims
from penstock.runtime.tensor_specs import BoundDims

if TYPE_CHECKING:
    from onnx import ModelProto

Array = NDArray[Any]


class DynamicEngine(Runnable):
    """
    A program with symbolic dimensions, called as an `Engine` is: its inputs say what the sizes are.

    The first call with new sizes compiles; `bind` does so ahead of time. The `cached` engines that were used last are
    kept, so a call with the sizes of one of them costs nothing more. `signature` has the names of the dimensions.

    `bind` may be called from several threads: those that ask for one new binding wait for one compilation. An engine
    runs in one thread at a time, so threads that run take a context each: `dynamic.bind(N=4).context()`.
    """

    def __init__(
        self,
        program: LoadedProgram,
        machine: str | None = None,
        backend: Backend = "native",
        *,
        cached: int = CACHED_ENGINES,
        pipeline: str | None = None,
        machine_options: Mapping[str, object] | None = None,
        schedule: str | Path | None = None,
        threads: int = 1,
        measure: bool = False,
    ):
        """
        Make ready the program, which is at graph level and is not changed; `pipeline`, `machine_options`, `schedule`,
        `threads` and `measure` are those of `compile`.

        Raises UserError for an unknown backend or machine, and for what is wrong with the pipeline, the options and the
        schedule.
        """
        require_backend(backend)
        passes_for(
            program.module.clone(),
            "accel",
            machine,
            pipeline,
            machine_options=machine_options,
            threads=threads,
            measure=measure,
        )
        if cached < 1:
            raise UserError(f"at least one engine is kept, not {cached}")
        self.program = program
        self.machine = machine
        self.pipeline = pipeline
        self.machine_options = dict(machine_options or {})
        self.threads = threads
        self.measure = measure
        self.schedules = {} if schedule is None else read_schedules(schedule)
        self.backend: Backend = backend
        self.signature = signature_of(program.module)
        self._engines = EngineCache[tuple[tuple[str, int], ...], Engine](cached)

    @property
    def bindings(self) -> list[dict[str, int]]:
        """The sizes for which engines are kept, from the one that was not used for longest."""
        return [dict(key) for key in self._engines.keys]

    def bind(self, sizes: Mapping[str, int] | None = None, /, **named: int) -> Engine:
        """
        The engine for the sizes of all dimensions, by name; a mapping takes names that are no identifiers.

        Raises UserError for a missing or unknown dimension, a size below 1, and sizes with which an op is invalid.
        """
        given = dict(sizes or {}) | named
        for name in given:
            if name not in self.signature.symbols:
                near = did_you_mean(name, self.signature.symbols)
                known = ", ".join(f'"{each}"' for each in self.signature.symbols)
                notes = [near or f"symbolic dimensions: {known}"]
                raise UserError(f'there is no symbolic dimension "{name}"', notes=notes)
        if missing := [name for name in self.signature.symbols if name not in given]:
            words = ", ".join(f'"{name}"' for name in missing)
            raise UserError(f"not bound: {words}", notes=[self.signature.describe()])
        given = checked_sizes(given)
        return self._engines.get(tuple(sorted(given.items())), lambda: self._compile(given))

    def _compile(self, sizes: Mapping[str, int]) -> Engine:
        ctx = make_context()
        # Passes add weights in new layouts; those of one binding are no business of another.
        ctx.weights = self.program.ctx.weights.copy()
        ctx.schedules.given = {name: sequence.clone() for name, sequence in self.schedules.items()}
        bound = replace(self.program, module=self.program.module.clone(), ctx=ctx, parsed=None)
        bind_program(bound, sizes)
        return compile_program(
            bound,
            machine=self.machine,
            backend=self.backend,
            pipeline=self.pipeline,
            machine_options=self.machine_options,
            threads=self.threads,
            measure=self.measure,
        )

    def run(
        self, arrays: Sequence[Any] = (), named: Mapping[str, Any] | None = None, *, out: Destinations = None
    ) -> list[Array]:
        """
        Run once, on the engine for the sizes of these inputs.

        Raises UserError, with both locations, where a dimension has two sizes.
        """
        self.signature.bind(arrays, named or {})
        found: BoundDims = self.signature.dims_of(arrays, named or {})
        return self.bind(found.sizes).run(arrays, named, out=out)


def compile(
    model: str | Path | ModelProto | TorchModel,
    machine: str | None = None,
    backend: Backend = "native",
    *,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    pipeline: str | None = None,
    machine_options: Mapping[str, object] | None = None,
    schedule: str | Path | None = None,
    dims: Mapping[str, Binding] | None = None,
    values: Mapping[str, Any] | None = None,
    allow_nan: bool = False,
    max_trips: int | None = None,
    kernels: Sequence[str | Path] = (),
    threads: int = 1,
    measure: bool = False,
) -> Engine | DynamicEngine:
    """
    Compile an ONNX model (a file or a loaded one), a file of IR, or a program of PyTorch for a machine, or without one
    for the host. A `torch.export.ExportedProgram` is taken as it is, a `torch.nn.Module` with `example_inputs`, in
    order or by name: see `lowering.from_torch`.

    `pipeline` edits the passes of the compiler, `"default, -fuse-attention"`, or names others in their place, as
    penstock-opt takes them (see `runtime.pipeline_edits`). `machine_options` sets numbers of the machine, by their
    paths in its file: `{"scope.spad.size": 65536}`. `schedule` is a file of schedules of kernels, which are applied
    instead of what the compiler would decide.

    `dims` gives sizes to symbolic dimensions. If some are left, the result is a `DynamicEngine`, which is called as an
    `Engine` is and compiles for the sizes of its inputs; one that is given a bound, `{"N": AtMost(16)}`, is a size of
    each run, and one engine is for all. `values` fixes inputs of an ONNX model, each to a number or an
    array: `{"sr": 16000}`; the engine does not take them any more. `allow_nan` accepts weights that hold NaN.
    `max_trips` is the most lines that a `Loop` gives of which only a run knows how many there are. `kernels` are files
    of kernels, or texts, that `graph.kernel` and nodes of the domain `penstock` call. `threads` is how many run the
    loops of the host; the results are the same for any number. With `measure`, for a machine such as "native", kernels
    are compiled and run with several tiles each, and those that are fastest on this CPU are chosen.

    Raises UserError for what is wrong with the model, the names, the pipeline, the options or the schedules.
    """
    if is_torch_model(model):
        model = model_of_torch(model, example_inputs)
    elif example_inputs is not None:
        raise UserError("example inputs are for a module of PyTorch, and this is none")
    source = cast("str | Path | ModelProto", model)
    program = load_input(source, dims=dims, values=values, allow_nan=allow_nan, max_trips=max_trips, kernels=kernels)
    if open_dims(program.module):
        return DynamicEngine(
            program,
            machine,
            backend,
            pipeline=pipeline,
            machine_options=machine_options,
            schedule=schedule,
            threads=threads,
            measure=measure,
        )
    if schedule is not None:
        program.ctx.schedules.given = read_schedules(schedule)
    return compile_program(
        program,
        machine=machine,
        backend=backend,
        pipeline=pipeline,
        machine_options=machine_options,
        threads=threads,
        measure=measure,
    )
