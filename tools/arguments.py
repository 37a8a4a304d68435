# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands of `penstock` share, and what they mean."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.dialects.diagnostics import USAGE, UserError, did_you_mean
from penstock.tools.text import STDIN, write_output

if TYPE_CHECKING:
    from penstock.dialects.context import PenstockContext
    from penstock.dialects.graph.dims import Binding
    from penstock.runtime.compiler import LoadedProgram

SWEPT = ("machines", "planner", "tiler", "on-chip", "depth", "schedule", "passes")
"""What `sweep` varies: its flags, and the keys of its plans."""

MAX_DIGITS = 20
"""Of a size; what is too large with fewer digits is refused at its location in the program."""
_FLAG = re.compile(r"-(?![\d.])[^\s=]+(=.*)?", re.DOTALL)
"""A word that stands for a flag, known or not, as no number does, and no word with a space in its name."""


class Parser(argparse.ArgumentParser):
    """A parser that refuses a word as other faults are refused, below its usage, with the nearest one."""

    def error(self, message: str) -> NoReturn:
        self.refuse(message)

    def refuse(self, message: str, note: str | None = None) -> NoReturn:
        """Leave with the usage of this command, a message and a note."""
        print(self._short_usage(), file=sys.stderr)
        print(f"error: {message}", file=sys.stderr)
        print(f"note: {note or f'{self.prog} --help says what each is'}", file=sys.stderr)
        raise SystemExit(USAGE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # A flag that may stand alone takes no word after it, which may be the model: its value is one behind "=".
        alone = {name: each.const for name, each in self._option_string_actions.items() if each.nargs == "?"}
        given = list(sys.argv[1:] if args is None else args)
        words = [f"{word}={alone[word]}" if word in alone else word for word in given]
        has_commands = any(isinstance(each, argparse._SubParsersAction) for each in self._actions)  # pyright: ignore
        before: argparse.Action | None = None
        for word in () if {"-h", "--help"} & {*words} else words:
            if has_commands and word == "--":
                self.refuse(f'there is no place for "{word}"')
            # What follows a subcommand is for its own parser.
            if word == "--" or (has_commands and not word.startswith("-")):
                break
            is_flag = _FLAG.fullmatch(word) is not None
            if is_flag and before is not None and before.nargs is None:
                name = "/".join(before.option_strings)
                note = f'a value that begins with "-" is written {before.option_strings[-1]}=VALUE'
                self.refuse(f"the value of {name} is missing", note)
            if is_flag and word.startswith("--"):
                self._require_known(word)
            before = self._option_string_actions.get(word)
        found, rest = super().parse_known_args(words, namespace)
        if rest:
            self._require_known(rest[0])
            self.refuse(f'there is no place for "{rest[0]}"')
        return found, rest

    def _short_usage(self) -> str:
        """The usage if it is one line; else the positional arguments only, for the error not to be far below."""
        usage = self.format_usage().rstrip()
        if "\n" not in usage:
            return usage
        formatter = self._get_formatter()
        formatter.add_usage(None, [each for each in self._actions if not each.option_strings], [])
        return formatter.format_help().rstrip().replace(self.prog, f"{self.prog} [-h] ...", 1)

    def _require_known(self, word: str) -> None:
        name, flags = word.partition("=")[0], self._option_string_actions
        if _FLAG.fullmatch(word) and name not in flags:
            known = [flag for flag in flags if flag not in ("-h", "--help")]
            self.refuse(f'there is no flag "{name}"', did_you_mean(name, known))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            near = did_you_mean(str(value), choices)
            what = "/".join(action.option_strings) or action.metavar or action.dest
            self.refuse(f'{what}: "{value}" is none of {", ".join(choices)}', near)


def add_common(parser: argparse.ArgumentParser) -> None:
    """How much a command says while it works."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-v", "--verbose", action="store_true", help="say what is being done, and how long it took")
    group.add_argument("-q", "--quiet", action="store_true", help="say nothing but warnings and errors")


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model or IR to work on, and the sizes of its symbolic dimensions."""
    parser.add_argument(
        "model", metavar="MODEL", help="an ONNX model (.onnx), IR or StableHLO (.mlir), kernels (.pk) or a plan (.plan)"
    )
    parser.add_argument(
        "--dim",
        metavar="NAME=SIZE",
        action="append",
        default=[],
        help="the size of a symbolic dimension, such as batch=1, or with compile and run the largest, 'batch<=16'",
    )
    parser.add_argument(
        "--value",
        metavar="NAME=NUMBER",
        action="append",
        default=[],
        help="fix an input of an ONNX model that has one element, such as sr=16000; repeatable",
    )
    parser.add_argument("--allow-nan", action="store_true", help="accept an ONNX model with weights that hold NaN")
    parser.add_argument(
        "--max-trips",
        metavar="N",
        type=positive,
        help="the most lines that a Loop of an ONNX model gives where only a run knows how many there are",
    )
    add_kernels(parser)


def add_kernel(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Which kernel of a text in the kernel language."""
    parser.add_argument("--kernel", metavar="NAME", help="which kernel of a .pk file that has several")


def add_kernels(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """The texts whose kernels a model calls."""
    parser.add_argument(
        "--kernels",
        metavar="FILE",
        action="append",
        default=[],
        help="a .pk file with kernels that a graph calls, or nodes of the domain penstock of an ONNX model; repeatable",
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Where the weights go."""
    parser.add_argument(
        "--weights", metavar="FILE", help="where the weights of an IR file go; default: beside it, as .safetensors"
    )


def add_machine(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """The machine to compile for, and what is changed of it."""
    parser.add_argument(
        "--machine",
        metavar="NAME",
        help="a machine of `penstock list machines`, or a machine file; without one, code for the host",
    )
    add_machine_options(parser)


def add_machine_options(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """What is changed of a machine for one run."""
    parser.add_argument(
        "--set",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="change a number of the machine, such as scope.spad.size=64K or dma.mvin.latency=20; repeatable",
    )


def machine_options(args: argparse.Namespace) -> dict[str, str]:
    """The values that `--set` gives, by path; raises UserError for a word of another form and for one that is twice."""
    options: dict[str, str] = {}
    for line, word in enumerate(args.set, start=1):
        path, equals, value = word.partition("=")
        if not equals:
            place = f"--set:{line}:{len(word) + 1}"
            raise UserError("there is no value", loc=place, notes=["write --set scope.spad.size=64K"], status=USAGE)
        if path in options:
            raise UserError(f"{path} is set twice", loc=f"--set:{line}:1", status=USAGE)
        options[path] = value
    return options


def add_pipeline(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """The passes that lower the program."""
    parser.add_argument(
        "-p",
        "--pipeline",
        metavar="PIPELINE",
        help=(
            "these passes in place of the compiler's, as penstock-opt takes them; or the compiler's with edits:"
            " 'default, mem-plan{planner=first-fit-by-size}, tile=my-tile, -fuse-attention, +my-pass after layout'"
        ),
    )
    parser.add_argument(
        "--print-pipeline",
        action="store_true",
        help="print the passes that would run, as penstock-opt -p takes them, and do no more",
    )


def add_threads(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """How many threads run the loops of the host."""
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="run loops of the host in N threads; the results do not depend on it; default: 1, or what a plan says",
    )


def add_measure(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Whether kernels are measured."""
    parser.add_argument(
        "--measure",
        action="store_true",
        help="compile and run each kernel with several tiles, and choose those that are fastest on this CPU; for"
        " --machine native",
    )


def add_schedule(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """The schedules of kernels that a person gives, and what is left open in them."""
    parser.add_argument(
        "--schedule", metavar="FILE", help="schedules of kernels, applied instead of what the compiler would decide"
    )
    parser.add_argument(
        "--knob",
        metavar="KERNEL.NAME=VALUE",
        action="append",
        default=[],
        help="with --schedule: the value of a knob, or the number of a region of alternatives",
    )


def add_remarks(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the flag that prints what passes say, or what of it matches."""
    parser.add_argument(
        "--remarks",
        metavar="=REGEX",
        nargs="?",
        const=".",
        help="say what passes decided, and what they could not do; =REGEX is searched in `kind pass: message`",
    )


def give_schedules(args: argparse.Namespace, ctx: PenstockContext) -> None:
    """Let the passes apply what `--schedule` names; raises UserError as `read_schedules` does."""
    if args.schedule is None:
        if args.knob:
            raise UserError("--knob is for the schedules that --schedule names", status=USAGE)
        return
    from penstock.runtime.schedules import read_schedules

    ctx.schedules.given = read_schedules(args.schedule, args.knob)


def chosen_flags(args: argparse.Namespace) -> list[str]:
    """The machine, its numbers and the schedules that a command was given, as penstock-opt takes them."""
    flags: list[str] = []
    if getattr(args, "machine", None) is not None:
        flags += ["--machine", args.machine, *(f"--set={word}" for word in args.set)]
    if getattr(args, "schedule", None) is not None:
        flags += ["--schedule", args.schedule, *(f"--knob={word}" for word in args.knob)]
    return flags


def argument_texts(args: argparse.Namespace) -> dict[str, str]:
    """The arguments in which faults are placed, by the file names of these places."""
    texts: dict[str, str] = {}
    if (pipeline := getattr(args, "pipeline", None)) is not None:
        from penstock.runtime.pass_manager import PIPELINE_NAME

        texts[PIPELINE_NAME] = pipeline
    if options := getattr(args, "set", None):
        texts["--set"] = "\n".join(options)
    for axis in SWEPT:
        if words := getattr(args, axis.replace("-", "_"), None):
            texts[f"--{axis}"] = str(words)
    return texts


def print_passes(args: argparse.Namespace, program: LoadedProgram, until: str, text: str | None) -> bool:
    """Print the passes that would lower a program to level `until`, if `--print-pipeline` asks for them."""
    if not args.print_pipeline:
        return False
    from penstock.runtime.pass_manager import pipeline_text
    from penstock.runtime.pipeline import passes_for

    options, threads = machine_options(args), getattr(args, "threads", None)
    count, measure = 1 if threads is None else threads, bool(getattr(args, "measure", False))
    passes = passes_for(
        program.module, until, args.machine, text, machine_options=options, threads=count, measure=measure
    )
    print(pipeline_text(passes))
    return True


def add_interleaving(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """The order in which the interpreter lets the commands of an accelerator happen."""
    again = "; several separated by commas must give the same" if several else ""
    parser.add_argument(
        "--interleaving",
        metavar="ORDER",
        help=(
            "when commands of the accelerator happen: program (as issued, the default), asap, alap, or a number that"
            f" an interleaving is drawn with; in all but program order races are errors{again}"
        ),
    )


def add_no_verify(parser: argparse.ArgumentParser) -> None:
    """Whether the plan and the hazards of text that is given are proved before it is executed."""
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="execute IR as it is given, without a proof of its memory plan and of the order of its commands",
    )


def warn_unverified(args: argparse.Namespace) -> None:
    """Say that the program is not proved safe, if `--no-verify` is given; not even `-q` hides that."""
    if args.no_verify:
        print(f"{args.model}: warning: neither its memory plan nor its hazards are verified", file=sys.stderr)


def require_compiler(otherwise: str, *, or_llvm: bool = True) -> None:
    """
    Look for a C compiler, or LLVM in its place, before anything is compiled; raises UserError, with the way to do
    without one.
    """
    from penstock.passes.toolchain import find_compiler, has_compiler
    from penstock.runtime.llvm import has_llvm

    try:
        find_compiler()
    except UserError as error:
        if or_llvm and not has_compiler() and has_llvm():
            return
        raise UserError(
            error.message, loc=error.loc, notes=[*error.notes, f"without one, {otherwise}"], status=error.status
        ) from None


def natural(word: str) -> int:
    """The number from 0 in a word, for argparse."""
    if not (word.isascii() and word.isdecimal() and len(word) <= MAX_DIGITS):
        raise argparse.ArgumentTypeError(f'"{word}" is no integer from 0')
    return int(word)


def positive(word: str) -> int:
    """The number from 1 in a word, for argparse."""
    if not (word.isascii() and word.isdecimal() and len(word) <= MAX_DIGITS) or int(word) < 1:
        raise argparse.ArgumentTypeError(f'"{word}" is no integer from 1')
    return int(word)


def byte_size(word: str) -> int:
    """The number of bytes in a word, for argparse."""
    from penstock.dialects.byte_sizes import read_byte_size

    size = read_byte_size(word)
    if size is None:
        raise argparse.ArgumentTypeError(f'"{word[:MAX_DIGITS]}" is no number of bytes, as 65536 or 64K')
    return size


def read_dims(words: Sequence[str]) -> dict[str, int]:
    """
    The sizes in `NAME=SIZE` words.

    Raises UserError for a word of another form, a size below 1, and two sizes of one name.
    """
    return _numbers(words, "=", "--dim batch=1")


def read_bindings(words: Sequence[str]) -> dict[str, Binding]:
    """
    The sizes in `NAME=SIZE` words, and the bounds in `NAME<=SIZE` words.

    Raises UserError as `read_dims`.
    """
    from penstock.dialects.graph.dims import AtMost

    bounded = [word for word in words if "<=" in word]
    bounds = _numbers(bounded, "<=", "--dim 'batch<=16'")
    sizes = _numbers([word for word in words if word not in bounded], "=", "--dim batch=1 or --dim 'batch<=16'")
    if twice := [name for name in bounds if name in sizes]:
        raise UserError(f"the dimension {twice[0]} is given a size and a bound", status=USAGE)
    return {**sizes, **{name: AtMost(bound) for name, bound in bounds.items()}}


def _numbers(words: Sequence[str], sign: str, example: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        name, _, size = word.rpartition(sign)
        # Python refuses to read numbers of thousands of digits.
        is_size = size.isdecimal() and len(size) <= MAX_DIGITS and int(size) > 0
        if not name or name[-1] in "<>" or not is_size:
            raise UserError(f'"{word}" is no size of a dimension', notes=[f"write {example}"], status=USAGE)
        if found.setdefault(name, int(size)) != int(size):
            message = f"the dimension {name} is bound twice, to {found[name]} and to {int(size)}"
            raise UserError(message, status=USAGE)
    return found


def read_values(words: Sequence[str]) -> dict[str, bool | int | float]:
    """
    The numbers in `NAME=NUMBER` words, `true` and `false` among them.

    Raises UserError for a word of another form, and for two numbers of one name.
    """
    values: dict[str, bool | int | float] = {}
    for line, word in enumerate(words, start=1):
        name, _, text = word.rpartition("=")
        number = _number(text)
        if not name or number is None:
            place = f"--value:{line}:{len(name) + 2 if name else 1}"
            raise UserError(f'"{word}" fixes no input', loc=place, notes=["write --value sr=16000"], status=USAGE)
        if name in values:
            raise UserError(f'the input "{name}" is fixed twice', loc=f"--value:{line}:1", status=USAGE)
        values[name] = number
    return values


def _number(text: str) -> bool | int | float | None:
    if text in ("true", "false"):
        return text == "true"
    if len(text) > 4 * MAX_DIGITS or "_" in text:
        return None
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return None


def write_texts(args: argparse.Namespace, texts: Sequence[tuple[str, str, str]]) -> None:
    """Write files, each a name, a text and what that is, and say so of those that are not stdout."""
    for name, text, what in texts:
        write_output(name, text)
        if name != STDIN:
            say(args, f"{name}: {what}")


def say(args: argparse.Namespace, text: str) -> None:
    """Print to stderr what a person wants to know, unless they asked for quiet."""
    if not args.quiet:
        print(text, file=sys.stderr)
