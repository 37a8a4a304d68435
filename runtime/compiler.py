# SPDX-License-Identifier: Apache-2.0
"""Programs as they are given, in files or not, and lowering them by the passes of `pipeline`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import USAGE, UserError, location_of
from penstock.dialects.graph.dims import Binding, checked_sizes, split_bindings
from penstock.dialects.verifier import Verifier
from penstock.lowering.from_mlir import import_graph_text, is_graph_text
from penstock.lowering.from_mlir.linalg import adopt, computes_itself
from penstock.lowering.from_text import ParsedText, SourceText, parse_text, place_in, read_text
from penstock.passes.graph.bind_dims import bind_dims
from penstock.runtime.bounded import lower_at_points, passes_of_points, require_host, set_bounds
from penstock.runtime.instrumentation import PassTimer
from penstock.runtime.levels import level_of
from penstock.runtime.pass_manager import (
    Observer,
    Progress,
    run_passes,
    verify,
)
from penstock.runtime.pipeline import passes_for
from penstock.runtime.plan import PlanFile, is_plan, open_plan
from penstock.runtime.proofs import prove
from penstock.runtime.schedules import require_applied
from penstock.runtime.symbolic_dims import bounded_dims, require_bound
from penstock.runtime.weights import open_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

    from penstock.lowering.from_kernel.lower import KernelFile


@dataclass(frozen=True)
class LoadedProgram:
    """A module with the context it lives in, and where it came from."""

    module: ModuleOp
    """The program."""
    ctx: PenstockContext
    """Its dialects and its weights."""
    path: Path
    """The file that it was read from."""
    parsed: ParsedText | None = None
    """For text: the locations of its operations."""
    weights_opened: frozenset[str] = frozenset()
    """For text: the names of the weights in its file."""

    @property
    def level(self) -> str:
        return level_of(self.module)

    @contextmanager
    def naming_faults(self) -> Generator[None]:
        """Say of a fault of a whole function of a model, which has a name but no place in a file, which file it is."""
        functions = {location_of(op) for op in self.module.ops}
        try:
            yield
        except UserError as fault:
            if fault.loc is None or not fault.loc.startswith('"') or fault.loc not in functions:
                raise
            where = f"{self.path}: {fault.loc}"
            raise UserError(
                fault.message, loc=where, notes=fault.notes, status=fault.status, others=fault.others
            ) from fault


def load_input(
    path: str | Path | ModelProto,
    *,
    dims: Mapping[str, Binding] | None = None,
    values: Mapping[str, Any] | None = None,
    allow_nan: bool = False,
    max_trips: int | None = None,
    kernel: str | None = None,
    kernels: Sequence[str | Path] = (),
) -> LoadedProgram:
    """
    Load an ONNX model (a file or a loaded one), a file of IR with its weights, the lowered program of a plan, or a
    kernel of a file in the kernel language, by its name if there are several, and bind the dimensions of `dims`; one
    that is given a bound stays open up to that (see `bounded`).
    `kernels` are the files of kernels, or the texts, that a graph calls, or nodes of a model. `values` fixes inputs of
    a model.

    Raises UserError for what cannot be read, and for a name, size or value in `dims` or `values` that does not fit.
    """
    sizes, bounds = split_bindings(dims)
    program = _load(
        Path(path) if isinstance(path, str) else path,
        checked_sizes(sizes),
        values=values,
        allow_nan=allow_nan,
        max_trips=max_trips,
        kernel=kernel,
        kernels=kernels,
    )
    set_bounds(program.module, bounds, str(program.path))
    return program


def _load(
    path: Path | ModelProto,
    dims: Mapping[str, int],
    *,
    values: Mapping[str, Any] | None,
    allow_nan: bool,
    max_trips: int | None,
    kernel: str | None,
    kernels: Sequence[str | Path],
) -> LoadedProgram:
    if values and isinstance(path, Path) and path.suffix != ".onnx":
        raise UserError(
            "only the inputs of an ONNX model can be fixed to values",
            loc=str(path),
            notes=["--value, in Python values=, is for a model; in IR, replace the argument of @main by a constant"],
            status=USAGE,
        )
    if isinstance(path, Path) and is_plan(path):
        if kernel is not None or kernels:
            raise UserError(
                "a plan is compiled already, so there are no kernels to give it", loc=str(path), status=USAGE
            )
        program = program_of_plan(open_plan(path))
        bind_program(program, dims)
        return program
    if not isinstance(path, Path) or path.suffix == ".onnx":
        return import_program(path, dims, values=values, allow_nan=allow_nan, max_trips=max_trips, kernels=kernels)
    if path.suffix == ".tflite":
        from penstock.lowering.from_tflite import import_tflite

        model = import_tflite(path)
        return import_program(model, dims, values=values, name=str(path), allow_nan=allow_nan, kernels=kernels)
    if path.suffix == ".pk":
        if kernels:
            raise UserError("a kernel calls no kernels of other files", loc=str(path), status=USAGE)
        return load_kernel(path, dims, kernel)
    if path.suffix != ".mlir":
        raise UserError(
            "the kind of this file is not known",
            loc=str(path),
            notes=["a model ends in .onnx or .tflite, a file of IR in .mlir, kernels in .pk, a plan in .plan"],
        )
    if kernel is not None:
        message = f'only a file of kernels has a kernel to choose, and this is no .pk: "{kernel}"'
        raise UserError(message, loc=str(path), status=USAGE)
    source = read_text(path)
    if is_graph_text(source):
        return _import_graph_text(source, path)
    ctx = make_context()
    parsed = parse_text(ctx, source)
    opened = open_weights(ctx, parsed, str(path))
    if computes_itself(parsed.module):
        verify(parsed.module, parsed)
        adopt(ctx, parsed, str(path))
    if kernels:
        from penstock.lowering.from_kernel.calls import link_kernels
        from penstock.lowering.from_kernel.lower import kernel_file

        link_kernels(parsed.module, [kernel_file(each) for each in kernels])
    program = LoadedProgram(parsed.module, ctx, path, parsed, opened)
    bind_program(program, dims)
    return program


def _import_graph_text(source: SourceText, path: Path) -> LoadedProgram:
    ctx = make_context()
    module, ctx.weights = import_graph_text(source)
    return LoadedProgram(module, ctx, path)


def program_of_plan(plan: PlanFile) -> LoadedProgram:
    """The lowered program that a plan was made of, with the weights of the plan."""
    from penstock.dialects.weights import WeightStore

    ctx = make_context()
    parsed = parse_text(ctx, SourceText(plan.name, plan.text))
    ctx.weights = WeightStore()
    for name, array in plan.weights.items():
        ctx.weights.add(name, array)
    return LoadedProgram(parsed.module, ctx, Path(plan.name), parsed)


def load_kernel(
    path: Path,
    sizes: Mapping[str, int],
    name: str | None = None,
    *,
    arguments: tuple[Sequence[NDArray[Any]], Mapping[str, NDArray[Any]]] | None = None,
) -> LoadedProgram:
    """
    A program that is a kernel of a file in the kernel language: the one of that name, or the only one. Sizes that are
    not given are those of the arguments, in order and by name, as far as there are any.

    Raises UserError for what cannot be read or lowered, and for a size that is missing, unknown, or does not fit.
    """
    from penstock.lowering.from_kernel.lower import KernelFile

    file = KernelFile(read_text(path))
    kernel = file.kernel(name)
    if arguments is not None:
        sizes = file.sizes_from_arguments(kernel, *arguments, sizes)
    return LoadedProgram(file.module(kernel, sizes), make_context(), path)


def bind_program(program: LoadedProgram, dims: Mapping[str, int]) -> None:
    """
    Give sizes to symbolic dimensions of a program, in place; see the pass `bind-dims`.

    Raises UserError for a program that does not verify, unknown names, and sizes with which an op is invalid.
    """
    if not dims:
        return
    verify(program.module, program.parsed)
    try:
        bind_dims(program.module, dims, lambda op: place_in(program.parsed, op))
    except UserError as error:
        # A fault of an op has the op's location; the others are of the whole program.
        raise UserError(error.message, loc=error.loc or str(program.path), notes=error.notes) from None


def import_program(
    model: Path | ModelProto,
    dims: Mapping[str, int],
    *,
    values: Mapping[str, Any] | None = None,
    name: str | None = None,
    allow_nan: bool = False,
    max_trips: int | None = None,
    kernels: Sequence[str | Path] = (),
) -> LoadedProgram:
    """
    Import an ONNX model, from a file or already loaded; `name` is the file of a loaded one in messages.
    Symbolic dimensions that `dims` does not bind stay. An input that has a number or an array in `values` becomes a
    constant. `kernels` are files of kernels, or texts, that nodes call. For `max_trips` see `import_model`.

    Raises UserError for what is no model or no kernel, with status 3 for one with operators that are not supported.
    """
    from penstock.lowering.from_onnx import import_model

    ctx = make_context()
    files: list[KernelFile] = []
    if kernels:
        from penstock.lowering.from_kernel.lower import kernel_file

        files = [kernel_file(each) for each in kernels]
    ctx.verifier = Verifier()
    path = model if isinstance(model, Path) else Path(name or "model.onnx")
    if values:
        from penstock.lowering.from_onnx.model import load_model
        from penstock.runtime.specialize import with_values

        name = str(path)
        model = with_values(load_model(model) if isinstance(model, Path) else model, values, dims, name)
    module, ctx.weights = import_model(
        model,
        dims=dims,
        name=name,
        allow_nan=allow_nan,
        max_trips=max_trips,
        kernels=files,
        verifier=ctx.verifier,
    )
    # The name served the messages. The module has none, as if it had come from the file.
    module.properties.pop("sym_name", None)
    return LoadedProgram(module, ctx, path)


def compile_module(
    module: ModuleOp,
    ctx: PenstockContext,
    machine: str | None = None,
    until: str = "accel",
    progress: Progress | None = None,
    *,
    pipeline: str | None = None,
    machine_options: Mapping[str, object] | None = None,
    threads: int = 1,
    measure: bool = False,
    parsed: ParsedText | None = None,
    observers: Sequence[Observer] = (),
) -> list[tuple[str, float]]:
    """
    Lower `module` in place to the end of level `until`, for `machine`, or for the machine that it holds, or
    for the host alone. `pipeline` edits the passes that do so or names others, which may end at another level;
    `machine_options` sets numbers of the machine, `threads` says how many run the host's loops, and with `measure` its
    kernels have the tiles with which they are fastest here (see `passes_for`).

    Returns name and seconds of every pass. Raises UserError for what is the fault of the input, for symbolic
    dimensions that are not bound, and for a program at loop or accel level that is not safe as it is given: passes that
    place buffers and tokens anew would hide it. With a `pipeline`, what it leaves is proved safe, whatever it verifies.
    The schedules that `ctx` is given must be applied.
    """
    require_bound(module, takes_bounds=True)
    timer = PassTimer()
    passes = passes_for(
        module, until, machine, pipeline, machine_options=machine_options, threads=threads, measure=measure
    )
    if bounded_dims(module):
        require_host(module, until, threads, measure)
        first, passes = passes_of_points(passes)
        lower_at_points(module, ctx, first, observers=[timer, *observers], progress=progress)
    if level_of(module) in ("loop", "accel"):
        verify(module, parsed)
        prove(module)
    is_own = pipeline is not None
    run_passes(
        ctx, module, passes, observers=[timer, *observers], progress=progress, remark_levels=is_own, parsed=parsed
    )
    require_applied(ctx, module)
    if is_own:
        prove(module, hazards=not passes or passes[-1].name != _CHECKS_HAZARDS)
    return timer.seconds


_CHECKS_HAZARDS = "accel-check-hazards"
"""The pass after which hazards need no second proof."""
