"""`penstock-opt`: parse IR, run passes on it, print it; what mlir-opt does, with errors that have places.

Nothing but the IR is written to stdout (a list of passes, when asked for, is the answer and goes there too).
The exit status is 0, 1 for a fault of the input, 2 for a command line that makes no sense, 70 for a fault of ours.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.passes import ModulePass, get_pass_option_infos
from xdsl.targets.mlir import MLIRTarget

from penstock.dialects.context import WEIGHTS_ATTRIBUTE, PenstockContext, make_context
from penstock.dialects.diagnostics import USAGE, USER_FAULT, UserError
from penstock.lowering.from_text import ParsedText, SourceText, parse_text, split_text
from penstock.lowering.to_text import module_text
from penstock.runtime.pass_manager import (
    PIPELINE_NAME,
    Observer,
    PassFault,
    PassTimer,
    available_passes,
    load_pass,
    pipeline_text,
    read_pipeline,
    run_passes,
)
from penstock.tools.arguments import (
    add_kernel,
    add_machine_options,
    add_schedule,
    chosen_flags,
    give_schedules,
    machine_options,
    read_dims,
)
from penstock.tools.errors import guarded, render, split_place
from penstock.tools.instruments import ALL, IrDumper, timing_table
from penstock.tools.reproduce import NAME, reproducer_folder, write_reproducer
from penstock.tools.text import STDIN, read_input, write_output

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
        self.texts |= {PIPELINE_NAME: args.passes, "--set": "\n".join(args.set)}
        passes = read_pipeline(args.passes)
        self._check_printing(passes)
        source = read_input(args.input)
        self.texts[source.name] = source.text
        if (args.kernel is not None or args.dim) and not source.name.endswith(".pk"):
            raise UserError("--kernel and --dim are for a file of kernels (.pk)", loc=source.name, status=USAGE)
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
        parsed = self._parsed(ctx, source)
        module = parsed.module
        if args.machine is not None or args.set:
            from penstock.runtime.compiler import attach_machine

            attach_machine(module, args.machine, machine_options(args))
        opened = frozenset[str]()
        if WEIGHTS_ATTRIBUTE in module.attributes:
            from penstock.runtime.weights import open_weights

            opened = open_weights(ctx, parsed, source.name)
        give_schedules(args, ctx)
        self._run(ctx, parsed, passes)
        if ctx.schedules.given:
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
        return module_text(ctx, module, self._style())

    def _parsed(self, ctx: PenstockContext, source: SourceText) -> ParsedText:
        """The module of a text of IR, or the program that is a kernel of a text of kernels."""
        args = self.args
        if not source.name.endswith(".pk"):
            return parse_text(ctx, source)
        from penstock.lowering.from_kernel.lower import KernelFile

        file = KernelFile(source)
        return ParsedText(file.module(file.kernel(args.kernel), read_dims(args.dim)), {})

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
        observers: list[Observer] = [dumper, self.timer]
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
                remark_levels=True,
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
        flags += chosen_flags(self.args)
        if self.chunk.name.endswith(".pk"):
            flags += [] if self.args.kernel is None else ["--kernel", self.args.kernel]
            flags += [f"--dim={word}" for word in self.args.dim]
            return shlex.join([*flags, "-p", done, self.chunk.name])
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


# --verify-diagnostics: the faults that a file says it has, compared with those it has. The comments are MLIR's:
# `// expected-error {{part of the message}}` on the line of the fault, or with `@+1`, `@-2`, `@below`, `@above`,
# `@unknown` before the braces; `expected-error-re` takes regular expressions in inner `{{...}}`. `expected-note` works
# the same way; other than errors, notes need not be expected.

_EXPECTED = re.compile(
    r"expected-(?P<kind>error|note)(?P<regex>-re)?\s*"
    r"(?:@(?P<where>[+-]\d+|above|below|unknown))?\s*\{\{(?P<text>.*)\}\}\s*$"
)
_LOOKS_EXPECTED = re.compile(r"expected-(\w+)")


@dataclass(frozen=True)
class Expectation:
    """One comment: `line` is the line of the expected fault, None for a fault without a place."""

    kind: str
    line: int | None
    pattern: re.Pattern[str]
    text: str
    written_at: str

    def matches(self, kind: str, line: int | None, message: str) -> bool:
        return kind == self.kind and line == self.line and self.pattern.search(message) is not None


def read_expectations(source: SourceText) -> list[Expectation]:
    """The expectations written in a text; raises UserError for one that is not understood."""
    found: list[Expectation] = []
    for number, line in enumerate(source.text.splitlines(), start=source.first_line):
        if (comment := line.find("//")) < 0:
            continue
        looks = _LOOKS_EXPECTED.search(line, comment)
        if looks is None:
            continue
        place = f"{source.name}:{number}:{looks.start() + 1}"
        if (match := _EXPECTED.search(line, comment)) is None:
            raise UserError(
                "this expectation is not understood",
                loc=place,
                notes=["write: // expected-error @+1 {{part of the message}}"],
            )
        try:
            pattern = _pattern(match["text"], is_regex=match["regex"] is not None)
        except re.error as error:
            raise UserError(f"not a regular expression: {error}", loc=place) from None
        found.append(Expectation(match["kind"], _target(match["where"], number), pattern, match["text"], place))
    return found


def unmet(expectations: Sequence[Expectation], faults: Iterable[UserError]) -> list[UserError]:
    """What differs between the expected and the produced faults of a text, one error each; empty if nothing."""
    open_ones = list(expectations)
    complaints: list[UserError] = []
    for fault in faults:
        found = split_place(fault.loc) if fault.loc else None
        line = found[1] if found else None
        if not _take(open_ones, "error", line, fault.message):
            complaints.append(UserError(f"unexpected error: {fault.message}", loc=fault.loc))
        for note in fault.notes:
            _take(open_ones, "note", line, note)
    complaints += [
        UserError(f'expected {missed.kind} "{missed.text}" was not produced', loc=missed.written_at)
        for missed in open_ones
    ]
    return complaints


def _take(open_ones: list[Expectation], kind: str, line: int | None, message: str) -> bool:
    for expectation in open_ones:
        if expectation.matches(kind, line, message):
            open_ones.remove(expectation)
            return True
    return False


def _target(where: str | None, line: int) -> int | None:
    match where:
        case None:
            return line
        case "above":
            return line - 1
        case "below":
            return line + 1
        case "unknown":
            return None
        case _:
            return line + int(where)


def _pattern(text: str, *, is_regex: bool) -> re.Pattern[str]:
    if not is_regex:
        return re.compile(re.escape(text))
    pieces = re.split(r"\{\{(.*?)\}\}", text)
    return re.compile("".join(piece if odd % 2 else re.escape(piece) for odd, piece in enumerate(pieces)))


# the command line


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line; leaves with status 2 for one that makes no sense."""
    words = list(sys.argv[1:] if argv is None else argv)
    # `--print-ir-after` alone means every pass. argparse would take the next word for its value.
    dumps = [f"--{prefix}print-ir-{when}" for prefix in ("", "mlir-") for when in ("before", "after")]
    words = [f"{word}={ALL}" if word in dumps else word for word in words]
    args = _parser().parse_args(words)
    args.print_ir_before = _pass_names(args.print_ir_before)
    args.print_ir_after = _pass_names(args.print_ir_after)
    return args


def _pass_names(values: list[str]) -> frozenset[str]:
    return frozenset(name for value in values for name in value.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock-opt",
        description="Run passes over IR. All but the IR goes to stderr.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("input", nargs="?", default=STDIN, help="a file of IR, or of kernels (.pk); - or nothing is stdin")
    add("-o", "--output", metavar="FILE", help="where the IR goes; written whole or not at all")
    add("--weights", metavar="FILE", help="write the weights to FILE; default: beside -o, where passes made new ones")
    add(
        "-p",
        "--passes",
        "--pass-pipeline",
        metavar="PIPELINE",
        default="",
        help="'pass{option=1 other=2,3},pass2'",
    )
    add_kernel(parser)
    add("--dim", metavar="NAME=SIZE", action="append", default=[], help="the size of a dim of a kernel, such as N=64")
    add("--machine", metavar="NAME", help="put the machine NAME at the start of the module")
    add_schedule(parser)
    add_machine_options(parser)
    add("--lockstep", action="store_true", help="run the program around every pass and compare")
    add = parser.add_argument_group("reading").add_argument
    add("--allow-unregistered-dialect", action="store_true", help="accept unknown operations")
    add("--no-verify", action="store_true", help="do not verify before and after every pass")
    add(
        "--split-input-file",
        action="store_true",
        help="work on each piece between lines `// -----` by itself",
    )
    add(
        "--verify-diagnostics",
        action="store_true",
        help="compare the errors with the comments `// expected-error {{...}}`",
    )
    printing = parser.add_argument_group("printing")

    def add_printing(name: str, **settings: object) -> None:
        printing.add_argument(name, name.replace("--", "--mlir-", 1), **settings)  # pyright: ignore

    add_printing("--print-op-generic", action="store_true", help="print operations in generic form")
    add_printing("--print-debuginfo", action="store_true", help="print locations")
    for word in ("before", "after"):
        add_printing(
            f"--print-ir-{word}",
            metavar="PASS",
            action="append",
            default=[],
            help=f"print the IR {word} the passes named after =, or {word} all",
        )
        every = {"action": "append_const", "const": ALL, "dest": f"print_ir_{word}"}
        add_printing(f"--print-ir-{word}-all", **every, help=f"print the IR {word} every pass")
    add_printing("--print-ir-after-change", action="store_true", help="print the IR after passes that changed it")
    add_printing("--print-ir-after-failure", action="store_true", help="print what a failing pass left behind")
    add_printing(
        "--pass-pipeline-crash-reproducer",
        metavar="FILE",
        help="where the input goes that repeats a fault of a pass; default: a folder for temporary files",
    )
    add_printing("--timing", action="store_true", help="print the time that each pass took")
    add = parser.add_argument_group("asking").add_argument
    add("--list-passes", action="store_true", help="print the name and purpose of every pass")
    add("--help-pass", metavar="NAME", help="print what a pass does and its options")
    add(
        "--version",
        action="version",
        version=f"penstock-opt {version('penstock')}, xdsl {version('xdsl')}",
    )
    return parser


# passes


def list_passes() -> str:
    """Name and first sentence of every pass, one a line, those of xDSL included."""
    available = available_passes()
    width = max(len(name) for name in available)
    return "\n".join(f"{name:{width}}  {_purpose(load)}" for name, load in available.items())


def help_pass(name: str) -> str:
    """Name, options with type and default, and documentation of a pass; raises UserError if there is none."""
    pass_type = load_pass(name)
    lines = [name, ""]
    for option in get_pass_option_infos(pass_type):
        default = f" = {option.default_value}" if option.default_value is not None else ""
        lines.append(f"  {option.name.replace('_', '-')}: {option.expected_type}{default}")
    if len(lines) > 2:
        lines.append("")
    return "\n".join([*lines, _documentation(pass_type) or "(it has no documentation)"])


def _purpose(load: Callable[[], type[ModulePass]]) -> str:
    try:
        documentation = _documentation(load())
    except Exception as error:  # a broken plug-in must not hide the other passes
        return f"(cannot be loaded: {error})"
    first = documentation.split("\n\n")[0]
    return " ".join(first.split())


def _documentation(pass_type: type[ModulePass]) -> str:
    # A dataclass without a docstring is given its signature as one, and a class inherits that of its base.
    written = pass_type.__dict__.get("__doc__") or ""
    if written.startswith(f"{pass_type.__name__}("):
        written = ""
    return inspect.cleandoc(written or inspect.getmodule(pass_type).__doc__ or "")  # pyright: ignore


def run(argv: Sequence[str] | None = None) -> int:
    """Run the tool on a command line without its name; returns the exit status."""
    opt = OptRun(parse_arguments(argv))
    return guarded(opt.execute, texts=opt.texts, reproduce=opt.reproduce)


def main() -> None:
    sys.exit(run())
