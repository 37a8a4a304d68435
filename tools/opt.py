"""`penstock-opt`: parse IR, run passes on it, print it; what mlir-opt does, with errors that have places.

Nothing but the IR is written to stdout (a list of passes, when asked for, is the answer and goes there too).
The exit status is 0, 1 for a fault of the input, 2 for a command line that makes no sense, 70 for a fault of ours.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.passes import ModulePass
from xdsl.targets.mlir import MLIRTarget

from penstock.dialects.context import WEIGHTS_ATTRIBUTE, PenstockContext, make_context
from penstock.dialects.diagnostics import USER_FAULT, UserError
from penstock.lowering.from_text import ParsedText, SourceText, parse_text, split_text
from penstock.lowering.to_text import module_text
from penstock.runtime.levels import LevelWatch
from penstock.runtime.pass_manager import (
    PIPELINE_NAME,
    Observer,
    PassFault,
    PassTimer,
    load_pass,
    pipeline_text,
    read_pipeline,
    run_passes,
)
from penstock.tools.errors import guarded, render
from penstock.tools.expectations import read_expectations, unmet
from penstock.tools.instruments import ALL, IrDumper, timing_table
from penstock.tools.opt_arguments import parse_arguments
from penstock.tools.pass_help import help_pass, list_passes
from penstock.tools.reproduce import NAME, reproducer_folder, write_reproducer
from penstock.tools.text import read_input, write_output

if TYPE_CHECKING:
    from penstock.tools.lockstep import Lockstep

WEIGHTS_FILE = re.compile(rf'({re.escape(WEIGHTS_ATTRIBUTE)}"?\s*=\s*")([^"]*)')
"""In a text: where it names its weights, and the name."""
SEPARATOR = "// -----\n"


@dataclass
class OptRun:
    """One run of the tool: its arguments, and what has to be known when something goes wrong."""

    args: argparse.Namespace
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """Texts that are no files, by the name that places use for them."""
    chunk: SourceText | None = None
    """The piece of input being worked on."""
    weights_files: list[str] = field(default_factory=list[str])
    """Those that were written."""
    timer: PassTimer = field(default_factory=PassTimer)

    def execute(self) -> int:
        args = self.args
        if args.list_passes:
            print(list_passes())
            return 0
        if args.help_pass is not None:
            print(help_pass(args.help_pass))
            return 0
        self.texts[PIPELINE_NAME] = args.passes
        passes = read_pipeline(args.passes)
        self._check_printing(passes)
        source = read_input(args.input)
        self.texts[source.name] = source.text
        chunks = split_text(source) if args.split_input_file else [source]
        started = time.perf_counter()
        outputs, failed = self._process_all(chunks, passes)
        if args.timing:
            rest = time.perf_counter() - started - sum(s for _, s in self.timer.seconds)
            rows = [*self.timer.seconds, ("parse, verify and print", rest)]
            print(timing_table(rows), file=sys.stderr)
        if failed and args.output is not None:
            return USER_FAULT
        write_output(args.output, SEPARATOR.join(outputs))
        return USER_FAULT if failed else 0

    def _check_printing(self, passes: Sequence[ModulePass]) -> None:
        """Warn of passes whose IR was asked for and that do not run; raises UserError for those that do not exist."""
        for name in sorted((self.args.print_ir_before | self.args.print_ir_after) - {ALL}):
            load_pass(name)
            if all(each.name != name for each in passes):
                print(f'warning: the pass "{name}" is not in the pipeline, so its IR is not printed', file=sys.stderr)

    def _process_all(self, chunks: Sequence[SourceText], passes: Sequence[ModulePass]) -> tuple[list[str], bool]:
        """The output of every piece that came through, and whether one did not."""
        outputs: list[str] = []
        failed = False
        for self.chunk in chunks:
            faults: list[UserError] = []
            try:
                outputs.append(self._process(self.chunk, passes))
            except UserError as error:
                faults.append(error)
            if self.args.verify_diagnostics:
                faults = unmet(read_expectations(self.chunk), faults)
            for fault in faults:
                print(render(fault, self.texts), file=sys.stderr)
            failed |= bool(faults)
        return outputs, failed

    def _process(self, source: SourceText, passes: Sequence[ModulePass]) -> str:
        args = self.args
        ctx = make_context(allow_unregistered=args.allow_unregistered_dialect)
        parsed = parse_text(ctx, source)
        module = parsed.module
        if args.machine is not None:
            from penstock.runtime.compiler import attach_machine

            attach_machine(module, args.machine)
        opened = frozenset[str]()
        if WEIGHTS_ATTRIBUTE in module.attributes:
            from penstock.runtime.weights import open_weights

            opened = open_weights(ctx, parsed, source.name)
        self._run(ctx, parsed, passes)
        if ctx.has_weights:
            from penstock.runtime.weights import carry_weights

            file, notes = carry_weights(ctx, module, source.name, args.output, opened, args.weights)
            if file is not None and file in self.weights_files:
                raise UserError("two pieces of the input would have their weights in one file", loc=file)
            self.weights_files.append(str(file))
            for note in notes:
                print(f"warning: {note}", file=sys.stderr)
        return module_text(ctx, module, self._style())

    def _run(self, ctx: PenstockContext, parsed: ParsedText, passes: Sequence[ModulePass]) -> None:
        args = self.args
        dumper = IrDumper(
            ctx,
            self._style(),
            args.print_ir_before,
            args.print_ir_after,
            args.print_ir_after_change,
            args.print_ir_after_failure,
        )
        observers: list[Observer] = [dumper, self.timer, LevelWatch()]
        watch = self._lockstep(ctx, parsed) if args.lockstep else None
        if watch is not None:
            observers.append(watch)
        try:
            run_passes(
                ctx,
                parsed.module,
                passes,
                observers=observers,
                verify_each=not args.no_verify,
                parsed=parsed,
            )
        except (UserError, PassFault) as error:
            dumper.failed(parsed.module)
            if watch is not None and isinstance(error, UserError):
                raise watch.explained(error) from error
            raise
        finally:
            if watch is not None:
                print(watch.report, file=sys.stderr)

    def _lockstep(self, ctx: PenstockContext, parsed: ParsedText) -> Lockstep:
        from penstock.runtime.signature import signature_of
        from penstock.tools.lockstep import Lockstep, default_inputs

        return Lockstep(ctx, default_inputs(signature_of(parsed.module)))

    def _style(self) -> MLIRTarget:
        return MLIRTarget(
            print_generic_format=self.args.print_op_generic,
            print_debuginfo=self.args.print_debuginfo,
        )

    def reproduce(self, error: Exception) -> str | None:
        """Write the piece of input at fault with the passes up to the faulty one; returns how to repeat it."""
        if self.chunk is None:
            return None
        done = pipeline_text(error.pipeline) if isinstance(error, PassFault) else self.args.passes
        flags = ["penstock-opt"]
        if self.args.machine is not None:
            flags += ["--machine", self.args.machine]
        if self.args.allow_unregistered_dialect:
            flags.append("--allow-unregistered-dialect")

        def command(path: str) -> str:
            return shlex.join([*flags, "-p", done, path])

        named = self.args.pass_pipeline_crash_reproducer
        path = reproducer_folder() / NAME if named is None else Path(named)
        # The text may end up far from its weights.
        folder = Path(self.chunk.name).parent.resolve()
        text = WEIGHTS_FILE.sub(lambda found: found[1] + str(folder / found[2]), self.chunk.text)
        return write_reproducer(path, text, command, str(error).split("\n")[0])


def run(argv: Sequence[str] | None = None) -> int:
    """Run the tool on a command line without its name; returns the exit status."""
    opt = OptRun(parse_arguments(argv))
    return guarded(opt.execute, texts=opt.texts, reproduce=opt.reproduce)


def main() -> None:
    sys.exit(run())
