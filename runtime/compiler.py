"""
The compiler as a whole: what the levels are, which passes lead from one to the next, and running them.

The pipeline is data. The commands of penstock and `penstock.compile` run it, edited or not (see `pipeline_edits`), or
another one; penstock-opt runs any other, and `",".join(pipeline("loop", "gemmini-fp32"))` is this one for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import USAGE, UserError, nearest_or_all
from penstock.dialects.machine import find_target
from penstock.dialects.verifier import Verifier
from penstock.lowering.from_stablehlo import import_stablehlo, is_stablehlo
from penstock.lowering.from_text import ParsedText, SourceText, parse_text, place_in, read_text
from penstock.passes.graph.bind_dims import bind_dims
from penstock.runtime.instrumentation import PassTimer
from penstock.runtime.levels import LEVELS, level_of
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import (
    Observer,
    Progress,
    read_pipeline,
    run_passes,
    split_pipeline,
    verify,
)
from penstock.runtime.pipeline_edits import edit_passes, refuse_edits
from penstock.runtime.plan import PlanFile, is_plan, open_plan
from penstock.runtime.proofs import prove
from penstock.runtime.schedules import require_applied
from penstock.runtime.symbolic_dims import require_bound
from penstock.runtime.threads import require_threads
from penstock.runtime.weights import open_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

    from penstock.lowering.from_kernel.lower import KernelFile


@dataclass(frozen=True)
class PipelineStep:
    """A pass of the pipeline; what has nothing to do is left out."""

    spec: str
    for_machine: bool = False
    """Whether it is for a machine, if only a host whose file says what its registers hold."""
    for_scopes: bool = False
    """Whether it is for a machine that is no host, with scopes to be filled and commands to be ordered."""
    for_threads: bool = False
    """Whether it is left out of programs of one thread; of others it has the option `threads`."""
    for_measuring: bool = False
    """Whether it is left out where nothing is to be measured."""


PIPELINE: dict[str, tuple[PipelineStep, ...]] = {
    "graph": (
        PipelineStep("topological-sort"),
        # Before any folding: a quantised weight that is folded is no longer one.
        PipelineStep("integer-arithmetic"),
        PipelineStep("simplify"),
        PipelineStep("fold-batch-norm"),
        PipelineStep("fold-scale"),
        PipelineStep("reorder-matmuls"),
        PipelineStep("fold-constants"),
        PipelineStep("simplify"),
        PipelineStep("value-cse"),
        PipelineStep("value-dce"),
        PipelineStep("transpose-operands"),
        PipelineStep("combine-matmuls"),
        PipelineStep("fuse-attention"),
        PipelineStep("layout"),
        PipelineStep("fold-constants"),
        PipelineStep("graph-fuse"),
        PipelineStep("storage-type", for_scopes=True),
    ),
    "tensor": (
        PipelineStep("graph-to-tensor"),
        PipelineStep("assign-devices", for_machine=True),
        PipelineStep("collapse-dims", for_machine=True),
        PipelineStep("fuse-elementwise"),
        PipelineStep("measure", for_measuring=True),
        # On a host without registers in its file, `tile` and `promote` apply the schedules that are given.
        PipelineStep("tile"),
        PipelineStep("licm", for_machine=True),
        PipelineStep("value-cse", for_machine=True),
        PipelineStep("value-dce", for_machine=True),
    ),
    "loop": (
        PipelineStep("tensor-to-loop"),
        PipelineStep("order-ops"),
        PipelineStep("promote"),
        PipelineStep("promote-levels", for_scopes=True),
        PipelineStep("tensorize", for_machine=True),
        # Iterations that a schedule lets run at once, but for those that have threads: no machine has units for them.
        PipelineStep("forall-to-for"),
        # Without fused multiply-adds, unless the machine is a host that has them: the numbers are the same everywhere.
        PipelineStep("math-polynomial-approximation"),
        PipelineStep("contract{declared=true}", for_machine=True),
        PipelineStep("mem-promote", for_scopes=True),
        PipelineStep("multi-buffer{depth=auto}", for_scopes=True),
        PipelineStep("prefetch", for_machine=True),
        PipelineStep("parallelize", for_threads=True),
        PipelineStep("mem-plan"),
        PipelineStep("mem-verify"),
    ),
    "accel": (
        PipelineStep("loop-to-accel", for_scopes=True),
        PipelineStep("accel-pipeline", for_scopes=True),
        PipelineStep("cse", for_scopes=True),
        # What a pass made of the program since it was planned may have broken the plan.
        PipelineStep("mem-verify", for_scopes=True),
        PipelineStep("accel-check-hazards", for_scopes=True),
    ),
}
"""The passes of each level; the first of a lower level lead into it."""
DEFAULT = "default"
"""The name of this pipeline, which a person edits: `default, mem-plan{planner=mine}, -fuse-attention`."""


def pipeline(
    until: str,
    machine: str | None,
    *,
    start: str = "graph",
    is_host: bool = False,
    threads: int = 1,
    measure: bool = False,
) -> tuple[str, ...]:
    """
    The passes that take a program at level `start` to the end of level `until`, for a machine, which may be a host, or
    for the host without one, whose loops may run in several threads, and whose kernels may be measured.

    A start below graph level enters at the passes of its own level, without the one that leads into it.
    Raises UserError for a level that does not exist and for one above `start`.
    """
    for level in (until, start):
        if level not in LEVELS:
            raise UserError(f'there is no level "{level}"', notes=[nearest_or_all(level, LEVELS, "levels")])
    first, last = LEVELS.index(start), LEVELS.index(until)
    if last < first:
        raise UserError(f"the program is at {start} level; it cannot be raised to {until} level")
    specs: list[str] = []
    for index in range(first, last + 1):
        steps = PIPELINE[LEVELS[index]]
        if index == first and index > 0:
            steps = steps[1:]
        for step in steps:
            if _why_left_out(step, machine, is_host, threads, measure) is None:
                specs.append(f"{step.spec}{{threads={threads}}}" if step.for_threads else step.spec)
    return tuple(specs)


def passes_for(
    module: ModuleOp,
    until: str,
    machine: str | None,
    text: str | None = None,
    *,
    machine_options: Mapping[str, object] | None = None,
    threads: int = 1,
    measure: bool = False,
) -> tuple[ModulePass, ...]:
    """
    The passes that take a module to the end of level `until`, for `machine`, which is put into it, or for the one that
    it holds, and for so many threads of the host: those of the pipeline, or what `text` makes of them, or those that
    `text` names in their place. To `measure` is a pass among them.

    Raises UserError as `pipeline` and `attach_machine` do, placed in the text as `edit_passes` and `read_pipeline`, for
    threads that the program cannot have, and where its kernels are not those to be measured.
    """
    require_threads(threads)
    if machine is not None or machine_options:
        attach_machine(module, machine, machine_options)
    return passes_from(Start.of(module), until, text, threads=threads, measure=measure)


@dataclass(frozen=True)
class Start:
    """What of a program the passes depend on that lower it."""

    level: str
    machine: str | None
    """The name of the machine that it is for."""
    is_host: bool

    @staticmethod
    def of(module: ModuleOp) -> Start:
        """That of a module."""
        target = find_target(module)
        return Start(level_of(module), target.machine_name if target else None, target is not None and target.is_host)


def passes_from(
    program: Start, until: str, text: str | None = None, *, threads: int = 1, measure: bool = False
) -> tuple[ModulePass, ...]:
    """The passes of a program without it: see `passes_for`."""
    machine, start, is_host = program.machine, program.level, program.is_host
    items = [] if text is None else split_pipeline(text)
    if measure and (until == "graph" or start in ("loop", "accel")):
        raise UserError("there are no kernels to measure: what is measured is how the tensor level goes on")
    if text is not None and (not items or items[0].text != DEFAULT):
        refuse_edits(items, DEFAULT)
        if threads > 1:
            notes = [f"name it among them, before mem-plan: parallelize{{threads={threads}}}"]
            raise UserError("passes that are named in place of the compiler's make no threads", notes=notes)
        if measure:
            notes = ["name it among them, before tile: measure"]
            raise UserError("passes that are named in place of the compiler's measure nothing", notes=notes)
        return read_pipeline(text)
    if threads > 1 and start in ("loop", "accel"):
        notes = [f"the pass that does is parallelize{{threads={threads}}}"]
        raise UserError(f"a program that is at the {start} level already gets no threads", notes=notes)
    specs = pipeline(until, machine, start=start, is_host=is_host, threads=threads, measure=measure)
    left_out = _left_out(until, start, lambda step: _why_left_out(step, machine, is_host, threads, measure))
    return edit_passes(read_pipeline(",".join(specs)), items[1:], DEFAULT, left_out)


def _why_left_out(step: PipelineStep, machine: str | None, is_host: bool, threads: int, measure: bool) -> str | None:
    """Why a step does not run for a machine, or for none, in so many threads; None if it does."""
    if (step.for_machine or step.for_scopes) and machine is None:
        return "it is for a machine, and there is none: --machine NAME"
    if step.for_scopes and is_host:
        return f"it is for a machine with scopes to fill, and {machine} is a host"
    if step.for_threads and threads == 1:
        return "it is for several threads: --threads N"
    if step.for_measuring and not measure:
        return "nothing is to be measured: --measure"
    return None


def _left_out(until: str, start: str, reason_of: Callable[[PipelineStep], str | None]) -> dict[str, str]:
    """The steps of the pipeline that do not run between two levels, by the names of their passes, and why."""
    first, last = LEVELS.index(start), LEVELS.index(until)
    found: dict[str, str] = {}
    for index, level in enumerate(LEVELS):
        for number, step in enumerate(PIPELINE[level]):
            if index < first or (index == first and index > 0 and number == 0):
                reason = f"the program is at {start} level already, and only the passes that remain from there run"
            elif index > last:
                reason = f"the pipeline ends at {until} level here"
            else:
                reason = reason_of(step)
            if reason is not None:
                found.setdefault(step.spec.partition("{")[0], reason)
    return found


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


def load_input(
    path: str | Path | ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    allow_nan: bool = False,
    kernel: str | None = None,
    kernels: Sequence[str | Path] = (),
) -> LoadedProgram:
    """
    Load an ONNX model (a file or a loaded one), a file of IR with its weights, the lowered program of a plan, or a
    kernel of a file in the kernel language, by its name if there are several, and bind the dimensions of `dims`.
    `kernels` are the files of kernels, or the texts, that a graph calls, or nodes of a model.

    Raises UserError for what cannot be read, and for a name or size in `dims` that does not fit.
    """
    path = Path(path) if isinstance(path, str) else path
    if isinstance(path, Path) and is_plan(path):
        if kernel is not None or kernels:
            raise UserError(
                "a plan is compiled already, so there are no kernels to give it", loc=str(path), status=USAGE
            )
        program = program_of_plan(open_plan(path))
        bind_program(program, dims or {})
        return program
    if not isinstance(path, Path) or path.suffix == ".onnx":
        return import_program(path, dims or {}, allow_nan=allow_nan, kernels=kernels)
    if path.suffix == ".pk":
        if kernels:
            raise UserError("a kernel calls no kernels of other files", loc=str(path), status=USAGE)
        return load_kernel(path, dims or {}, kernel)
    if path.suffix != ".mlir":
        raise UserError(
            "the kind of this file is not known",
            loc=str(path),
            notes=["a model ends in .onnx, a file of IR in .mlir, kernels in .pk, a plan in .plan"],
        )
    if kernel is not None:
        message = f'only a file of kernels has a kernel to choose, and this is no .pk: "{kernel}"'
        raise UserError(message, loc=str(path), status=USAGE)
    source = read_text(path)
    if is_stablehlo(source):
        return _import_stablehlo(source, path)
    ctx = make_context()
    parsed = parse_text(ctx, source)
    opened = open_weights(ctx, parsed, str(path))
    if kernels:
        from penstock.lowering.from_kernel.calls import link_kernels
        from penstock.lowering.from_kernel.lower import kernel_file

        link_kernels(parsed.module, [kernel_file(each) for each in kernels])
    program = LoadedProgram(parsed.module, ctx, path, parsed, opened)
    bind_program(program, dims or {})
    return program


def _import_stablehlo(source: SourceText, path: Path) -> LoadedProgram:
    ctx = make_context()
    module, ctx.weights = import_stablehlo(source)
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
    name: str | None = None,
    allow_nan: bool = False,
    kernels: Sequence[str | Path] = (),
) -> LoadedProgram:
    """
    Import an ONNX model, from a file or already loaded; `name` is the file of a loaded one in messages.
    Symbolic dimensions that `dims` does not bind stay. `kernels` are files of kernels, or texts, that nodes call.

    Raises UserError for what is no model or no kernel, with status 3 for one with operators that are not supported.
    """
    from penstock.lowering.from_onnx import import_model

    ctx = make_context()
    files: list[KernelFile] = []
    if kernels:
        from penstock.lowering.from_kernel.lower import kernel_file

        files = [kernel_file(each) for each in kernels]
    ctx.verifier = Verifier()
    module, ctx.weights = import_model(
        model, dims=dims, name=name, allow_nan=allow_nan, kernels=files, verifier=ctx.verifier
    )
    # The name served the messages. The module has none, as if it had come from the file.
    module.properties.pop("sym_name", None)
    return LoadedProgram(module, ctx, model if isinstance(model, Path) else Path(name or "model.onnx"))


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
    require_bound(module)
    passes = passes_for(
        module, until, machine, pipeline, machine_options=machine_options, threads=threads, measure=measure
    )
    if level_of(module) in ("loop", "accel"):
        verify(module, parsed)
        prove(module)
    timer = PassTimer()
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
