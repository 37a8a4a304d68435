# SPDX-License-Identifier: Apache-2.0
"""
Lower a model or a file of IR. --emit says what -o is: a file of IR at the end of a level, with its weights beside it;
the schedules of its kernels, a file that --schedule takes;
a folder with C, or with C for the real machine (device-c; firmware, where it has no operating system); a file of LLVM
IR; a folder with VTA's instructions and the memory they run in; or a plan, a file that
`penstock run` and `Engine.load` run without the compiler.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.runtime.levels import LEVELS
from penstock.tools.arguments import (
    add_common,
    add_kernel,
    add_machine,
    add_measure,
    add_model,
    add_pipeline,
    add_remarks,
    add_schedule,
    add_threads,
    add_weights,
    byte_size,
    give_schedules,
    machine_options,
    print_passes,
    require_compiler,
    say,
)

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from penstock.dialects.weights import Array
    from penstock.lowering.to_c import CSource
    from penstock.runtime.compiler import LoadedProgram
    from penstock.runtime.report import CompileReport
    from penstock.runtime.tensor_specs import Signature


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_kernel(parser)
    add_machine(parser)
    add_pipeline(parser)
    parser.add_argument(
        "--emit",
        choices=tuple(EMITTERS),
        default=DEFAULT_EMITTER,
        help=f"default: {DEFAULT_EMITTER}; `penstock list emitters` says what each is",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="default: MODEL.plan, MODEL.c, MODEL.ll, MODEL.vta or, for a level, MODEL.LEVEL.mlir",
    )
    parser.add_argument(
        "--input",
        nargs="+",
        action="extend",
        default=[],
        metavar="[NAME=]FILE",
        help="with vta, device-c and firmware: the tensors in memory, for which outputs are expected; default: small"
        " integers",
    )
    add_weights(parser)
    add_schedule(parser)
    add_threads(parser)
    add_measure(parser)
    add_remarks(parser)
    parser.add_argument(
        "--memory",
        type=byte_size,
        metavar="SIZE",
        help="what the program must fit, as 65536 or 64K: the arena, and what operands are repacked to; of the ways to"
        " do so, the one that computes least",
    )
    parser.add_argument("--report", metavar="FILE", help="write the report as JSON, too")
    parser.add_argument("--print-debuginfo", action="store_true", help="with a level: say where operations come from")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.runtime.compiler import compile_module
    from penstock.runtime.levels import require_level
    from penstock.runtime.report import FusionCount, report_on
    from penstock.runtime.signature import signature_of, with_extents
    from penstock.tools.instruments import pass_progress
    from penstock.tools.programs import load_bound, say_remarks, warn_unused
    from penstock.tools.remarks import printed_remarks
    from penstock.tools.text import STDIN, require_distinct, write_output

    emitter = EMITTERS[args.emit]
    path = Path(args.model)
    output = Path(args.output or f"{path.stem}.{emitter.suffix}")
    if args.output == STDIN and not emitter.is_text:
        raise UserError(f"--emit={args.emit} is {emitter.kind}, which stdout cannot be", status=USAGE)
    if args.input and not emitter.takes_inputs:
        raise UserError("--input is for --emit=vta, --emit=device-c and --emit=firmware", status=USAGE)
    if args.weights is not None and not (emitter.is_text and args.emit in LEVELS):
        raise UserError(f"--weights is for a file of IR, not for --emit={args.emit}", status=USAGE)
    rewrite = "-o" if args.emit in (("plan",) if path.suffix == ".plan" else LEVELS) else None
    require_distinct({"-o": output, "--weights": args.weights, "--report": args.report}, args.model, rewrite=rewrite)
    program = load_bound(args, args.kernel, takes_bounds=args.memory is None)
    if args.memory is not None:
        args.pipeline = _pipeline_within(args, program)
        program = load_bound(args, args.kernel)  # without what the search has made of its weights
    give_schedules(args, program.ctx)
    until = args.emit if args.emit in LEVELS else "accel"
    if print_passes(args, program, until, args.pipeline):
        return 0
    if args.emit == "plan":
        require_compiler("--emit=loop or --emit=accel writes IR, which the interpreter runs")
    signature = signature_of(program.module)
    inputs = _inputs(args, signature) if emitter.takes_inputs else []
    reference = program.module.clone() if emitter.takes_inputs else program.module
    fusion = FusionCount(explain=args.verbose)
    with (
        printed_remarks(args.remarks) as remarks,
        pass_progress(quiet=args.quiet, verbose=args.verbose) as progress,
        program.naming_faults(),
    ):
        seconds = compile_module(
            program.module,
            program.ctx,
            args.machine,
            until,
            progress,
            pipeline=args.pipeline,
            machine_options=machine_options(args),
            threads=1 if args.threads is None else args.threads,
            measure=args.measure,
            parsed=program.parsed,
            observers=[fusion, *remarks],
        )
    signature = with_extents(signature, program.module)
    if args.pipeline is not None:
        require_level(program.module, until, args.model)
    warn_unused(program.module, program.path)
    source = _c_of(args, program) if emitter.has_source else None
    if not args.quiet or args.report is not None:
        report = report_on(program.module, fusion=fusion, seconds=seconds, source=source)
        if args.report is not None:
            write_output(args.report, report.to_json())
        _say_report(args, report, fusion.remarks, program.module)
        say_remarks(args, program.module)
    written = emitter.write(EmitterInput(args, program, signature, source, reference, inputs), output)
    say(args, f"{output}: {written}")
    return 0


def _pipeline_within(args: argparse.Namespace, program: LoadedProgram) -> str | None:
    """The pipeline with which a program fits `--memory`; raises UserError where there is none."""
    from penstock.runtime.fit import Fitting

    for option in ("pipeline", "schedule", "threads", "measure"):
        if getattr(args, option) not in (None, False):
            raise UserError(f"--memory decides what --{option} would", status=USAGE)
    with program.naming_faults():
        found = Fitting(program, args.machine, machine_options(args)).within(args.memory)
    say(args, f"{found.bytes:,} of {args.memory:,} bytes, {found.effort()}")
    say(args, f"by: -p {shlex.quote(found.pipeline or 'default')}")
    return found.pipeline


def _c_of(args: argparse.Namespace, program: LoadedProgram) -> CSource | None:
    """The C of a lowered program; None for a plan where there is no C compiler."""
    from penstock.lowering.to_c import emit_c
    from penstock.passes.toolchain import has_compiler
    from penstock.runtime.plan import ENTRY

    if args.emit == "plan" and not has_compiler():
        return None
    return emit_c(program.module, name=program.path.stem if args.emit == "c" else ENTRY)


@dataclass(frozen=True)
class EmitterInput:
    """What the emitters write: the lowered program, and what some of them need beside it."""

    args: argparse.Namespace
    program: LoadedProgram
    signature: Signature
    source: CSource | None
    """For the emitters that have C, where there is a C compiler."""
    reference: ModuleOp
    """The module before it was lowered, for the emitters that take inputs."""
    inputs: Sequence[Array]


def _write_text(given: EmitterInput, output: Path) -> str:
    from penstock.tools.programs import write_program

    args = given.args
    write_program(given.program, output, weights=args.weights, locations=args.print_debuginfo)
    return f"{args.emit} level"


def _write_schedule(given: EmitterInput, output: Path) -> str:
    from penstock.runtime.schedules import schedules_text
    from penstock.tools.text import write_output

    ctx = given.program.ctx
    write_output(str(output), schedules_text(ctx, ctx.schedules.applied))
    return f"{len(ctx.schedules.applied)} schedules"


def _write_c(given: EmitterInput, output: Path) -> str:
    from penstock.tools.programs import write_c

    assert given.source is not None
    return ", ".join(write_c(output, given.program, given.source))


def _write_plan(given: EmitterInput, output: Path) -> str:
    from penstock.runtime.plan_writer import save_plan

    source, remark = given.source, ""
    if source is None:
        from penstock.lowering.to_llvm import emit_llvm

        source, remark = emit_llvm(given.program.module), "; there is no C compiler, so LLVM compiles it when it is run"
    save_plan(output, given.program.module, given.program.ctx, given.signature, source)
    return f"run it with: penstock run {output} --input ...{remark}"


def _write_llvm(given: EmitterInput, output: Path) -> str:
    from penstock.lowering.to_llvm import emit_llvm
    from penstock.tools.text import write_output

    source = emit_llvm(given.program.module, name=given.program.path.stem)
    write_output(str(output), source.text)
    return f"LLVM IR, whose entry is @{source.run_symbol}"


def _write_vta(given: EmitterInput, output: Path) -> str:
    from penstock.runtime.vta import emit

    program = given.program
    weights = program.ctx.weights
    written = emit(output, program.module, given.reference, weights, given.signature, given.inputs)
    encoded = written.encoded
    launches = [step.instructions for step in encoded.steps if step.instructions is not None]
    return (
        f"{len(launches)} launches, {sum(map(len, launches)):,} instructions,"
        f" {len(encoded.micro_ops.data) // 4:,} micro-operations, {encoded.dram_bytes:,} bytes off chip;"
        f" {sum(written.cycles):,} cycles"
    )


def _write_device(given: EmitterInput, output: Path) -> str:
    from penstock.lowering.codegen.text import identifier
    from penstock.runtime.device import device_program, lower_to_device, write_device_folder

    program = given.program
    lower_to_device(program.module, program.ctx)
    written = device_program(program.module, identifier(program.path.stem))
    write_device_folder(output, written, given.reference, program.ctx.weights, given.signature, given.inputs)
    counts = written.counts
    settings = f", {counts.settings:,} settings of states (before each command: {counts.every_time:,})"
    waits = f", {counts.waits:,} waits for single commands" if counts.waits else ""
    return (
        f"{counts.commands:,} commands{settings if counts.every_time else ''}{waits}, {counts.barriers:,} barriers;"
        f" run it on the model with: make -C {output} check"
    )


def _write_firmware(given: EmitterInput, output: Path) -> str:
    from penstock.runtime.firmware import require_memories, require_narrow_products

    require_memories(given.program.module)
    require_narrow_products(given.program.module)
    return _write_device(given, output)


@dataclass(frozen=True)
class Emitter:
    """What a value of --emit stands for."""

    suffix: str
    """Of the default output: MODEL.SUFFIX."""
    write: Callable[[EmitterInput, Path], str]
    """Writes the output, and returns what to say of it."""
    about: str
    """A sentence on the output."""
    is_text: bool = False
    """Whether the output is a file of text, which may be stdout."""
    kind: str = "a folder"
    """What the output is that is no text."""
    has_source: bool = False
    """Whether C is generated."""
    takes_inputs: bool = False
    """Whether it holds inputs and what the program before lowering computes from them."""


_AT_LEVEL = {
    "graph": "IR at the end of the graph level: operators of the network, fused.",
    "tensor": "IR at the end of the tensor level: kernels, each on its device, in tiles.",
    "loop": "IR at the end of the loop level: what lies in which memory, and where; for the host, what is compiled.",
    "accel": "IR at the end of the accel level: the commands of the machine.",
}

EMITTERS: dict[str, Emitter] = {
    **{level: Emitter(f"{level}.mlir", _write_text, _AT_LEVEL[level], is_text=True) for level in LEVELS},
    "schedule": Emitter(
        "schedule.mlir", _write_schedule, "The schedules of the kernels, a file that --schedule takes.", is_text=True
    ),
    "c": Emitter("c", _write_c, "A folder with C11 of the program, a function for each kernel.", has_source=True),
    "llvm": Emitter("ll", _write_llvm, "LLVM IR of the program.", is_text=True),
    "plan": Emitter(
        "plan",
        _write_plan,
        "A file with machine code and weights, which penstock run and Engine.load run without the compiler.",
        has_source=True,
        kind="a file to be mapped",
    ),
    "vta": Emitter(
        "vta", _write_vta, "A folder with VTA's instructions and the memory that they run in.", takes_inputs=True
    ),
    "device-c": Emitter(
        "device",
        _write_device,
        "A folder with C for a real machine: its commands as its file spells them.",
        takes_inputs=True,
    ),
    "firmware": Emitter(
        "firmware", _write_firmware, "A folder with C for a machine without an operating system.", takes_inputs=True
    ),
}

DEFAULT_EMITTER = "plan"
"""The emitter where --emit does not say."""


def _inputs(args: argparse.Namespace, signature: Signature) -> list[Array]:
    """The inputs that are given, or, if there are none, small integers."""
    from penstock.tools.lockstep import default_inputs
    from penstock.tools.tensors import read_given

    if not args.input:
        return default_inputs(signature)
    given = read_given(args.input)
    return signature.bind(given.ordered, given.named)


def _say_report(
    args: argparse.Namespace, report: CompileReport, fusion_remarks: Sequence[str], module: ModuleOp
) -> None:
    """The report; with -v the times of all passes, why groups are not larger, and what was decided on each kernel."""
    from penstock.runtime.report import kernel_lines
    from penstock.tools.instruments import timing_table

    if args.verbose:
        say(args, timing_table(report.passes))
        for line in fusion_remarks:
            say(args, f"fused: {line}")
        for line in kernel_lines(module) if report.level != "graph" else []:
            say(args, line)
    for line in report.lines():
        say(args, line)
