"""`penstock compile`: a model or IR, lowered as far as asked, as text, C, instructions, or a plan that runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.tools.arguments import add_common, add_machine, add_model, add_weights, read_dims, say

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from penstock.dialects.weights import Array
    from penstock.runtime.compiler import Program
    from penstock.runtime.report import CompileReport
    from penstock.runtime.signature import Signature

LEVEL_EMITS = ("graph", "tensor", "loop", "accel")
EMITS = (*LEVEL_EMITS, "c", "plan", "vta")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the command to the parser of `penstock`."""
    parser = subparsers.add_parser(
        "compile",
        help="lower a model or IR to a level, to C, to instructions, or to a plan",
        description=(
            "Lower a model or a file of IR. --emit says what -o is: a file of IR at the end of a level, with its"
            " weights beside it; a folder with C; a folder with VTA's instructions and the memory they run in; or a"
            " plan, a folder that `penstock run` runs."
        ),
        allow_abbrev=False,
    )
    add_model(parser)
    add_machine(parser)
    parser.add_argument("--emit", choices=EMITS, default="plan", help="default: plan")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="default: MODEL.plan, MODEL.c, MODEL.vta or, for a level, MODEL.LEVEL.mlir",
    )
    parser.add_argument(
        "--input",
        nargs="+",
        action="extend",
        default=[],
        metavar="[NAME=]FILE",
        help="with vta: the tensors in memory, of which the expected outputs are; default: small integers",
    )
    add_weights(parser)
    parser.add_argument("--report", metavar="FILE", help="write the report as JSON, too")
    parser.add_argument("--print-debuginfo", action="store_true", help="with a level: say where operations come from")
    add_common(parser)
    parser.set_defaults(run=execute)


def execute(args: argparse.Namespace) -> int:
    from penstock.runtime.compiler import compile_module, load_input, require_bound
    from penstock.runtime.report import FusionCount, report_on
    from penstock.runtime.signature import signature_of
    from penstock.tools.programs import write_program, write_sources
    from penstock.tools.progress import pass_progress
    from penstock.tools.text import STDIN, require_distinct, write_output

    output = Path(args.output or _default_output(Path(args.model), args.emit))
    if args.emit not in LEVEL_EMITS and args.output == STDIN:
        raise UserError(f"--emit={args.emit} is a folder, which stdout cannot be", status=USAGE)
    require_distinct({"-o": output, "--weights": args.weights, "--report": args.report}, args.model)
    program = load_input(args.model, dims=read_dims(args.dim), allow_nan=args.allow_nan)
    require_bound(program.module, str(program.path))
    signature = signature_of(program.module)
    if args.input and args.emit != "vta":
        raise UserError("--input is for --emit=vta", status=USAGE)
    if args.weights is not None and args.emit not in LEVEL_EMITS:
        raise UserError(f"--weights is for a file of IR, not for --emit={args.emit}", status=USAGE)
    inputs = _inputs(args, signature) if args.emit == "vta" else []
    reference = program.module.clone() if args.emit == "vta" else None
    until = args.emit if args.emit in LEVEL_EMITS else "accel"
    fusion = FusionCount(explain=args.verbose)
    with pass_progress(quiet=args.quiet, verbose=args.verbose) as progress:
        seconds = compile_module(
            program.module, program.ctx, args.machine, until, progress, parsed=program.parsed, observers=[fusion]
        )
    emitted = None
    if args.emit in ("c", "plan"):
        from penstock.lowering.to_c import emit_c

        emitted = emit_c(program.module, name=program.path.stem)
    if not args.quiet or args.report is not None:
        report = report_on(program.module, fusion=fusion, seconds=seconds, source=emitted)
        if args.report is not None:
            write_output(args.report, report.to_json())
        _say_report(args, report, fusion.remarks, program.module)
    if reference is not None:
        _emit_vta(args, program, reference, signature, inputs, output)
        return 0
    if emitted is None:
        write_program(program, output, weights=args.weights, locations=args.print_debuginfo)
        say(args, f"{output}: {args.emit} level")
        return 0
    sources = emitted.files
    if args.emit == "c":
        write_sources(output, sources)
        say(args, f"{output}: {', '.join(sources)}")
        return 0
    from penstock.runtime.engine import Engine
    from penstock.runtime.plan import save_plan

    engine = Engine(program.module, program.ctx, signature, backend="interpreter", verify=False)
    save_plan(engine, output, sources)
    say(args, f"{output}: run it with: penstock run {output} --input ...")
    return 0


def _inputs(args: argparse.Namespace, signature: Signature) -> list[Array]:
    """The inputs that are given, or, if there are none, small integers."""
    from penstock.tools.lockstep import default_inputs
    from penstock.tools.tensors import read_given

    if not args.input:
        return default_inputs(signature)
    given = read_given(args.input)
    return signature.bind(given.ordered, given.named)


def _emit_vta(
    args: argparse.Namespace,
    program: Program,
    reference: ModuleOp,
    signature: Signature,
    inputs: Sequence[Array],
    output: Path,
) -> None:
    from penstock.runtime.vta import emit

    written = emit(output, program.module, reference, program.ctx.weights, signature, inputs)
    encoded = written.encoded
    launches = [step.instructions for step in encoded.steps if step.instructions is not None]
    say(
        args,
        f"{output}: {len(launches)} launches, {sum(map(len, launches)):,} instructions,"
        f" {len(encoded.micro_ops.data) // 4:,} micro-operations, {encoded.dram_bytes:,} bytes off chip;"
        f" {sum(written.cycles):,} cycles",
    )


def _say_report(
    args: argparse.Namespace, report: CompileReport, fusion_remarks: Sequence[str], module: ModuleOp
) -> None:
    """The report; with -v the times of all passes, why groups are not larger, and what was decided on each kernel."""
    from penstock.tools.instruments import timing_table
    from penstock.tools.report import kernel_lines

    if args.verbose:
        say(args, timing_table(report.passes))
        for line in fusion_remarks:
            say(args, f"fused: {line}")
        for line in kernel_lines(module) if report.level != "graph" else []:
            say(args, line)
    for line in report.lines():
        say(args, line)


def _default_output(path: Path, emit: str) -> str:
    match emit:
        case "plan":
            return f"{path.stem}.plan"
        case "c" | "vta":
            return f"{path.stem}.{emit}"
        case level:
            return f"{path.stem}.{level}.mlir"
