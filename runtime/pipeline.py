# SPDX-License-Identifier: Apache-2.0
"""
The compiler's own pipeline: which passes lead from one level to the next.

It is data. The commands of penstock and `penstock.compile` run it, edited or not (see `pipeline_edits`), or another
one; penstock-opt runs any other, and `",".join(pipeline("loop", "gemmini-fp32"))` is this one for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.scf import ExecuteRegionOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.machine import find_target
from penstock.runtime.levels import LEVELS, level_of
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, split_pipeline
from penstock.runtime.pipeline_edits import edit_passes, refuse_edits
from penstock.runtime.threads import require_threads


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
        PipelineStep("block-diagonal", for_scopes=True),
        PipelineStep("space-to-depth", for_scopes=True),
        PipelineStep("layout"),
        PipelineStep("fold-constants"),
        # From here on, what is computed of packed weights is computed when the program runs.
        PipelineStep("pack-weights"),
        PipelineStep("graph-fuse"),
        PipelineStep("storage-type", for_scopes=True),
    ),
    "tensor": (
        PipelineStep("graph-to-tensor"),
        # Of a program that was given at this level, and has no kernels yet.
        PipelineStep("outline-kernels"),
        PipelineStep("assign-devices", for_machine=True),
        PipelineStep("collapse-dims", for_machine=True),
        PipelineStep("fuse-elementwise"),
        PipelineStep("measure", for_measuring=True),
        # On a host without registers in its file, `tile` and `promote` apply the schedules that are given.
        PipelineStep("tile"),
        PipelineStep("licm", for_machine=True),
        PipelineStep("value-cse", for_machine=True),
        PipelineStep("value-dce", for_machine=True),
        PipelineStep("copy-parts"),
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
        PipelineStep("rotate-carried", for_scopes=True),
        PipelineStep("mem-promote", for_scopes=True),
        PipelineStep("multi-buffer{depth=auto}", for_scopes=True),
        PipelineStep("compute-in-results", for_machine=True),
        PipelineStep("prefetch", for_machine=True),
        PipelineStep("overwrite-operands"),
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
LIFT = "lift-cf-to-scf"
"""What comes before all others where a function has several blocks, whatever its level."""
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
    has_blocks: bool = False,
) -> tuple[str, ...]:
    """
    The passes that take a program at level `start` to the end of level `until`, for a machine, which may be a host, or
    for the host without one, whose loops may run in several threads, and whose kernels may be measured. With
    `has_blocks` some function of the program has several blocks.

    A start below graph level enters at the passes of its own level, without the one that leads into it.
    Raises UserError for a level that does not exist and for one above `start`.
    """
    for level in (until, start):
        if level not in LEVELS:
            raise UserError(f'there is no level "{level}"', notes=[nearest_or_all(level, LEVELS, "levels")])
    first, last = LEVELS.index(start), LEVELS.index(until)
    if last < first:
        raise UserError(f"the program is at {start} level; it cannot be raised to {until} level")
    specs = [LIFT] if has_blocks else []
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
    has_blocks: bool
    """Whether a function has several blocks."""

    @staticmethod
    def of(module: ModuleOp) -> Start:
        """That of a module."""
        target = find_target(module)
        machine, is_host = (None, False) if target is None else (target.machine_name, target.is_host)
        return Start(level_of(module), machine, is_host, any(map(_has_blocks, module.walk())))


def _has_blocks(op: Operation) -> bool:
    return isinstance(op, FuncOp | ExecuteRegionOp) and len(op.regions[0].blocks) > 1


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
    specs = pipeline(
        until,
        machine,
        start=start,
        is_host=is_host,
        threads=threads,
        measure=measure,
        has_blocks=program.has_blocks,
    )
    left_out = _left_out(until, start, lambda step: _why_left_out(step, machine, is_host, threads, measure))
    if not program.has_blocks:
        left_out[LIFT] = "every function is one block"
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
