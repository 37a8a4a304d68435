# SPDX-License-Identifier: Apache-2.0
"""Programs of studies compiled and simulated: from text or from a network, with passes of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.dialects.context import make_context
from penstock.lowering.from_kernel.lower import kernel_file
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.compiler import import_program
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.simulator.run import ProgramRun, run_program
from penstock.runtime.simulator.workloads import Workloads


def whole(program: Any, machine: str, passes: str | None = None, *, kernels: Sequence[Path] = ()) -> ProgramRun:
    """
    A program in text, or a model of ONNX, on a machine by its passes or by edits of them: one run, simulated. What a
    model calls is in files of `kernels`.
    """
    if isinstance(program, str):
        ctx = make_context()
        module, parsed = parse_text(ctx, SourceText("program.mlir", program)).module, None
    else:
        imported = import_program(program, {}, kernels=kernels)
        ctx, module, parsed = imported.ctx, imported.module, imported.parsed
    workloads = Workloads()
    run_passes(ctx, module, passes_for(module, "accel", machine, passes), observers=[workloads], parsed=parsed)
    return run_program(module, workloads)


def kernel_run(file: Path, name: str, sizes: Mapping[str, int], machine: str) -> ProgramRun:
    """A kernel of a file of the kernel language for some sizes, on a machine by its passes: one run, simulated."""
    kernels = kernel_file(file)
    module, ctx = kernels.module(kernels.kernel(name), sizes), make_context()
    run_passes(ctx, module, passes_for(module, "accel", machine))
    return run_program(module)
