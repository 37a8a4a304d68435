# SPDX-License-Identifier: Apache-2.0
"""What a run of penstock-opt does, once its command line is read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from xdsl.dialects.builtin import StringAttr
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException, ShrinkException

from penstock.dialects.context import WEIGHTS_ATTRIBUTE, PenstockContext, make_context
from penstock.dialects.diagnostics import USAGE, USER_FAULT, UserError, nearest_or_all
from penstock.dialects.plugins import factories
from penstock.lowering.from_text import ParsedText, SourceText, parse_text, split_text
from penstock.lowering.printing import TextStyle, op_text
from penstock.runtime.instrumentation import Instrumentation, PassTimer, phase
from penstock.runtime.pass_manager import (
    PIPELINE_NAME,
    Observer,
    PassFault,
    Pipelines,
    fewer_collections,
    pipeline_text,
    read_pipeline,
    run_passes,
    split_pipeline,
)
from penstock.tools.arguments import give_schedules, machine_options, read_dims
from penstock.tools.errors import paint, render, wants_colour
from penstock.tools.opt_flags import ALL, is_kernels
from penstock.tools.opt_reproducer import OptReproducer
from penstock.tools.text import read_input, write_output

if TYPE_CHECKING:
    from xdsl.utils.target import Target

    from penstock.tools.lockstep import Lockstep
    from penstock.tools.remarks import RemarkCollector
    from penstock.tools.tables import PassStatistics

SEPARATOR = "// -----\n"
EDITED = "default"
"""The compiler's own pipeline for the machine of the module, with edits behind it."""


@dataclass
class OptRun:
    """One run of the tool: its arguments, and what has to be known when something goes wrong."""

    args: argparse.Namespace
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """Texts that are no files, by the name that places use for them."""
    chunk: SourceText | None = None
    """The piece of input being worked on."""
    number: int = 0
    """Which piece that is, from 0."""
    passes: tuple[ModulePass, ...] = ()
    """The pipeline that runs on it."""
    target: Target | None = None
    """What writes the output, if not as IR."""
    weights_files: list[str] = field(default_factory=list[str])
    """Those that were written."""
    timer: PassTimer = field(default_factory=PassTimer)
    instruments: list[Instrumentation] = field(default_factory=list[Instrumentation])
    """Those of the whole run; others are for one piece of input."""
    statistics: PassStatistics | None = None
    remarks: RemarkCollector | None = None

    @cached_property
    def reproducer(self) -> OptReproducer:
        """What writes down how a fault is repeated."""
        return OptReproducer(self.args)

    def colour(self, stream: TextIO) -> bool:
        """Whether what goes to a stream is in colours."""
        return wants_colour(stream, self.args.color)

    def execute(self) -> int:
        if (answer := self._answer()) is not None:
            print(answer)
            return 0
        args = self.args
        self.texts |= {PIPELINE_NAME: args.passes, "--set": "\n".join(args.set)}
        self._prepare()
        passes = () if args.run_reproducer or self._is_edited() else read_pipeline(args.passes, _named_pipelines)
        if not (args.print_ir_before | args.print_ir_after) <= {ALL}:
            from penstock.tools.ir_printing import check_printed

            check_printed(args, None if args.run_reproducer or self._is_edited() else passes)
        source = read_input(args.input)
        self.texts[source.name] = source.text
        if (args.kernel is not None or args.dim) and not is_kernels(args, source.name):
            raise UserError("--kernel and --dim are for a file of kernels (.pk)", loc=source.name, status=USAGE)
        chunks = split_text(source, args.split_input_file) if args.split_input_file else [source]
        outputs, failed = self._process_all(chunks, passes)
        self._report()
        if args.shrink:
            print("Failure, can't shrink", file=sys.stderr)
            return USER_FAULT
        if failed and args.output is not None:
            return USER_FAULT
        write_output(args.output, SEPARATOR.join(outputs))
        return USER_FAULT if failed else 0

    def _answer(self) -> str | None:
        """What a question about the tool itself is answered with."""
        args = self.args
        if not (args.list_passes or args.help_pass is not None or args.show_dialects):
            return None
        from penstock.tools.listed import lines
        from penstock.tools.lists import passes
        from penstock.tools.pass_help import help_pass

        if args.show_dialects:
            return "Available Dialects: " + ",".join(sorted(factories("all_dialects")))
        return "\n".join(lines(passes())) if args.list_passes else help_pass(str(args.help_pass))

    def _is_edited(self) -> bool:
        items = split_pipeline(self.args.passes)
        return bool(items) and items[0].text == EDITED

    def _prepare(self) -> None:
        """Make what looks on, and what writes the output."""
        args = self.args
        if args.frontend not in (None, "mlir", "pk"):
            note = nearest_or_all(args.frontend, ("mlir", "pk"), "the kinds of input")
            raise UserError(f'there is no frontend "{args.frontend}"', notes=[note], status=USAGE)
        if args.target != "mlir":
            from penstock.tools.pass_help import load_target

            self.target = load_target(args.target)
        self.instruments = [self.timer]
        if args.statistics:
            from penstock.tools.tables import PassStatistics

            self.statistics = PassStatistics()
            self.instruments.append(self.statistics)
        if args.remarks is not None or args.remarks_output is not None:
            from penstock.tools.remarks import collector_of

            self.remarks = collector_of(args.remarks or "")
            self.instruments.append(self.remarks)

    def _report(self) -> None:
        """What the instruments have found."""
        args = self.args
        is_json, total = args.output_format == "json", self.timer.finish()
        if self.remarks is not None:
            text = self.remarks.json() + "\n" if is_json else "".join(f"{line}\n" for line in self.remarks.lines())
            if args.remarks_output is not None:
                write_output(args.remarks_output, text)
            else:
                print(paint(text, colour=self.colour(sys.stderr)), end="", file=sys.stderr)
        if self.statistics is not None:
            table = self.statistics.json if is_json else self.statistics.text
            print(table(args.statistics_display), file=sys.stderr)
        if args.timing:
            from penstock.tools.tables import timing_json, timing_text

            print((timing_json if is_json else timing_text)(total, args.timing_display), file=sys.stderr)

    def _process_all(self, chunks: Sequence[SourceText], passes: Sequence[ModulePass]) -> tuple[list[str], bool]:
        """The output of every piece that came through, and whether one did not."""
        outputs: list[str] = []
        failed = False
        for self.number, self.chunk in enumerate(chunks):
            faults: list[UserError] = []
            try:
                outputs.append(self._process(self.chunk, tuple(passes)))
            except UserError as error:
                faults += [self.reproducer.noted(error, self.chunk), *error.others]
            if self.args.verify_diagnostics:
                from penstock.tools.expectations import read_expectations, unmet

                faults = unmet(read_expectations(self.chunk), faults)
            for fault in faults:
                print(paint(render(fault, self.texts), colour=self.colour(sys.stderr)), file=sys.stderr)
            failed |= bool(faults)
        return outputs, failed

    def _process(self, source: SourceText, passes: tuple[ModulePass, ...]) -> str:
        args = self.args
        self.passes = ()
        ctx = make_context(allow_unregistered=args.allow_unregistered_dialect)
        if args.irdl_file is not None:
            from penstock.lowering.from_irdl import register_irdl

            register_irdl(ctx, args.irdl_file)
        with phase("parse", self.instruments), fewer_collections():
            try:
                parsed = self._parsed(ctx, source)
            except UserError as error:
                if not args.parsing_diagnostics:
                    raise
                print(paint(render(error, self.texts), colour=self.colour(sys.stderr)), file=sys.stderr)
                return ""
        module = parsed.module
        if args.machine is not None or args.set:
            from penstock.runtime.machines import attach_machine

            attach_machine(module, args.machine, machine_options(args))
        opened = frozenset[str]()
        if WEIGHTS_ATTRIBUTE in module.attributes:
            from penstock.runtime.weights import open_weights

            opened = open_weights(ctx, parsed, source.name)
        give_schedules(args, ctx)
        self.passes = self._pipeline_for(parsed, passes)
        if args.dump_pass_pipeline:
            print(f"Pass Manager with {len(self.passes)} passes:", file=sys.stderr)
            print(f"builtin.module({pipeline_text(self.passes)})", file=sys.stderr)
        if args.verify_roundtrip:
            from penstock.tools.ir_printing import require_roundtrip

            require_roundtrip(ctx, parsed)
        self._run(ctx, parsed, opened)
        if args.generate_reproducer is not None:
            self.reproducer.write(Path(args.generate_reproducer), source, self.passes, "generated, nothing failed")
        if args.schedule is not None:
            from penstock.runtime.schedules import require_applied

            require_applied(ctx, module)
        if ctx.has_weights:
            from penstock.runtime.weights import carry_weights

            file, notes = carry_weights(ctx, module, source.name, args.output, opened, args.weights)
            if file is not None and file in self.weights_files:
                raise UserError("two pieces of the input would have their weights in one file", loc=file)
            self.weights_files.append(str(file))
            for note in notes:
                print(f"warning: {note}", file=sys.stderr)
        with phase("print", self.instruments), fewer_collections():
            return self._written(ctx, parsed)

    def _written(self, ctx: PenstockContext, parsed: ParsedText) -> str:
        """The output for a module, in the form that `--target` says."""
        style = self._style(is_output=True)
        if self.target is None:
            return op_text(ctx, parsed.module, style)
        stream = StringIO()
        try:
            self.target.emit(ctx, parsed.module, stream)
        except (AssertionError, DiagnosticException, LookupError, TypeError, ValueError, NotImplementedError) as error:
            if not type(self.target).__module__.startswith("xdsl."):
                raise
            # Those of xDSL take for granted that the program is for them.
            message = f'the target "{self.target.name}" does not know how to write this program'
            notes = [] if isinstance(error, AssertionError) else str(error).strip().splitlines()[-1:]
            raise UserError(message, loc=None if self.chunk is None else self.chunk.name, notes=notes) from None
        return stream.getvalue()

    def _pipeline_for(self, parsed: ParsedText, passes: tuple[ModulePass, ...]) -> tuple[ModulePass, ...]:
        """The pipeline of the command line, or of the text, or the compiler's own for its machine, edited."""
        if self.args.run_reproducer:
            from penstock.tools.reproduce import PIPELINE, RESOURCE

            written = parsed.resources.get(RESOURCE, {}).get(PIPELINE)
            if written is None:
                assert self.chunk is not None
                message = "the text names no passes, so there is nothing to go on with"
                notes = [f"they are in external_resources, {RESOURCE}, {PIPELINE} at its end"]
                raise UserError(message, loc=self.chunk.name, notes=notes)
            self.texts[PIPELINE_NAME] = written
            return read_pipeline(written, _named_pipelines)
        if self._is_edited():
            from penstock.runtime.pipeline import passes_for

            return passes_for(parsed.module, "accel", None, self.args.passes)
        return passes

    def _parsed(self, ctx: PenstockContext, source: SourceText) -> ParsedText:
        """The module of a text of IR, or the program that is a kernel of a text of kernels."""
        args = self.args
        if not is_kernels(args, source.name):
            return parse_text(ctx, source, implicit_module=not args.no_implicit_module)
        from penstock.lowering.from_kernel.lower import KernelFile

        file = KernelFile(source)
        return ParsedText(file.module(file.kernel(args.kernel), read_dims(args.dim)), {})

    def _run(self, ctx: PenstockContext, parsed: ParsedText, opened: frozenset[str]) -> None:
        args = self.args
        observers: list[Observer] = [*self.instruments, *self._dumpers(ctx, parsed, opened)]
        if args.crash_reproducer is not None or args.local_reproducer:
            observers.append(self.reproducer.watch(ctx))
        watch = self._lockstep(ctx, parsed) if args.lockstep else None
        if watch is not None:
            observers.append(watch)
        listen = nullcontext()
        if self.remarks is not None:
            from penstock.dialects.remarks import listening

            listen = listening(self.remarks.listen)
        try:
            with listen:
                run_passes(
                    ctx,
                    parsed.module,
                    self.passes,
                    observers=observers,
                    verify_first=not args.no_verify,
                    verify_each=args.verify_each and not args.no_verify,
                    remark_levels=True,
                    parsed=parsed,
                )
        except UserError as error:
            if watch is not None:
                raise watch.explained(error) from error
            raise
        except PassFault as error:
            if args.shrink and isinstance(error.__cause__, ShrinkException):
                print("Success, can shrink", file=sys.stderr)
                raise SystemExit(0) from None
            raise
        finally:
            if watch is not None:
                print(watch.report, file=sys.stderr)

    def _dumpers(self, ctx: PenstockContext, parsed: ParsedText, opened: frozenset[str]) -> Sequence[Instrumentation]:
        """What prints the IR around passes, if that is asked for."""
        args = self.args
        before, after = args.print_ir_before, args.print_ir_after
        chosen = bool(before or after or args.print_ir_after_change or args.print_ir_after_failure)
        if args.print_between_passes or (args.print_ir_tree_dir is not None and not chosen):
            after = frozenset({ALL})
        elif not chosen:
            return []
        from penstock.tools.ir_printing import DumpTree, IrDumper

        tree = None
        if args.print_ir_tree_dir is not None:
            assert self.chunk is not None
            folder = Path(args.print_ir_tree_dir, *([f"piece_{self.number}"] if args.split_input_file else []))
            named = parsed.module.attributes.get(WEIGHTS_ATTRIBUTE)
            file = Path(self.chunk.name).resolve().parent / named.data if isinstance(named, StringAttr) else None
            tree = DumpTree(folder, file, opened)
        dumper = IrDumper(
            ctx,
            self._style(),
            self.passes,
            before,
            after,
            args.print_ir_after_change,
            args.print_ir_after_failure,
            args.print_ir_module_scope,
            args.print_between_passes,
            tree,
        )
        return [dumper]

    def _lockstep(self, ctx: PenstockContext, parsed: ParsedText) -> Lockstep:
        from penstock.runtime.signature import signature_of
        from penstock.tools.lockstep import Lockstep, default_inputs

        return Lockstep(ctx, default_inputs(signature_of(parsed.module)))

    def _style(self, *, is_output: bool = False) -> TextStyle:
        args = self.args
        to_stdout = is_output and args.output in (None, "-")
        return TextStyle(
            print_generic_format=args.print_op_generic,
            print_properties_as_attributes=args.print_no_properties,
            print_debuginfo=args.print_debuginfo,
            syntax_highlight=args.syntax_highlight or (to_stdout and self.colour(sys.stdout)),
            elide_larger=args.elide_larger,
            skip_regions=args.print_skip_regions,
            value_users=args.print_value_users,
            unique_names=args.print_unique_ssa_ids,
        )

    def reproduce(self, error: Exception) -> str | None:
        """Write the piece of input at fault with the passes up to the faulty one; returns how to repeat it."""
        if self.chunk is None:
            return None
        done = error.pipeline if isinstance(error, PassFault) else self.passes
        return self.reproducer.of_fault(error, self.chunk, done)


def _named_pipelines() -> Pipelines:
    from penstock.runtime.named_pipelines import named_pipelines

    return named_pipelines()
