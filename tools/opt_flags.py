# SPDX-License-Identifier: Apache-2.0
"""
The command line of penstock-opt: its flags, their names in mlir-opt and xdsl-opt, and passes as flags.

Nothing here imports the IR: `--help`, and a misspelt flag, are answered at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from penstock import __version__
from penstock.dialects.diagnostics import USAGE, did_you_mean
from penstock.tools.arguments import add_kernel, add_machine_options, add_schedule, natural
from penstock.tools.text import STDIN

ALL = "*"
"""In a set of pass names: every pass."""
SYNONYMS = {
    "disable-verify": "no-verify",
    "elide-elementsattrs-if-larger": "elide-larger",
    "elide-resource-strings-if-larger": "elide-larger",
    "no-color": "color=never",
    "output-file": "output",
    "pass-pipeline": "passes",
    "pass-pipeline-crash-reproducer": "crash-reproducer",
    "pass-pipeline-local-reproducer": "local-reproducer",
    "pass-statistics": "statistics",
    "pass-statistics-display": "statistics-display",
    "pretty-debuginfo": "print-debuginfo",
    "remarks-filter": "remarks",
    "resume": "run-reproducer",
    "time-passes": "timing",
}
"""Names that flags have in mlir-opt, without its prefix `mlir-`, and in xdsl-opt, and ours."""
WITHOUT_VALUE = {
    "print-ir-before": ALL,
    "print-ir-after": ALL,
    "verify-each": "true",
    "remarks": "",
    "color": "always",
    "split-input-file": "// -----",
}
"""Flags that may stand alone, and the value that they have then; one is given behind `=`."""
_PREFIX = "mlir-"
_YES, _NO = ("1", "true"), ("0", "false")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _refuse(message)


def _refuse(message: str, note: str | None = None) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    print(f"note: {note or 'penstock-opt --help names all flags'}", file=sys.stderr)
    raise SystemExit(USAGE)


def parse_arguments(argv: Sequence[str] | None, named: Sequence[Callable[[], Collection[str]]]) -> argparse.Namespace:
    """
    The parsed command line; leaves with status 2 for one that makes no sense.

    `named` give the names of all passes, and of pipelines: each of these is a flag, too. They are called one after the
    other where a word is no flag.
    """
    parser = _parser()
    flags = {name for action in parser._actions for name in action.option_strings}  # pyright: ignore
    switches = {name for action in parser._actions if action.nargs == 0 for name in action.option_strings}  # pyright: ignore
    words: list[str] = []
    pipeline: list[str] = []
    known: dict[int, Collection[str]] = {}
    given = list(sys.argv[1:] if argv is None else argv)
    for number, word in enumerate(given):
        if word == "--":
            words += given[number:]
            break
        if not word.startswith("-") or word == STDIN or (word[:2] in flags and word[1] != "-" and len(word) == 2):
            words.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        flag = _flag(name, flags)
        if flag is None and not word.startswith("--") and word[:2] in flags:
            words.append(word)  # `-ofile`
        elif flag is not None:
            flag, _, implied = flag.partition("=")
            if f"--{flag}" in switches and equals:
                if value not in (*_YES, *_NO):
                    _refuse(f'--{flag} takes no value, or true or false, and "{value}" is none')
                words += [f"--{flag}"] if value in _YES else []
            elif implied or equals or flag not in WITHOUT_VALUE:
                words.append(f"--{flag}={implied or value}" if implied or equals else f"--{flag}")
            else:
                words.append(f"--{flag}={WITHOUT_VALUE[flag]}")
        else:
            for index, names in enumerate(named):
                known.setdefault(index, names())
                if name in known[index]:
                    break
            else:
                near = [
                    *(flag.lstrip("-") for flag in flags),
                    *SYNONYMS,
                    *(each for names in known.values() for each in names),
                ]
                note = did_you_mean(name.removeprefix(_PREFIX), near)
                _refuse(f'there is no flag "--{name}"', note and note.replace('"', '"--', 1))
            pipeline.append(f"{name}{{{value}}}" if value else name)
    args = parser.parse_args(words)
    if pipeline:
        if args.passes:
            _refuse("--passes cannot be used beside passes that are flags", "write all of them into one pipeline")
        args.passes = ",".join(pipeline)
    args.print_ir_before = _pass_names(args.print_ir_before)
    args.print_ir_after = _pass_names(args.print_ir_after)
    for name in ("verify_each",):
        value = getattr(args, name)
        if value not in (*_YES, *_NO):
            _refuse(f'--{name.replace("_", "-")} takes true or false, and "{value}" is none')
        setattr(args, name, value in _YES)
    return args


def _flag(name: str, flags: Collection[str]) -> str | None:
    """The name of ours of a flag, perhaps with the value that it implies; None if it is none."""
    for each in (name, name.removeprefix(_PREFIX)):
        if (each := SYNONYMS.get(each, each)) and f"--{each.partition('=')[0]}" in flags:
            return each
    return None


def _pass_names(values: list[str]) -> frozenset[str]:
    return frozenset(name for value in values for name in value.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="penstock-opt",
        description="Run passes over IR. All but the IR goes to stderr. Every pass and named pipeline is a flag, too:"
        " --cse --tile=sizes=4,4. Flags of mlir-opt and xdsl-opt work as they do there.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("input", nargs="?", default=STDIN, help="a file of IR, or of kernels (.pk); - or nothing is stdin")
    add("-o", "--output", metavar="FILE", help="where the IR goes; written whole or not at all")
    add("--weights", metavar="FILE", help="write the weights to FILE; default: beside -o, where passes made new ones")
    add("-p", "--passes", metavar="PIPELINE", default="", help="'pass{option=1 other=2,3},func.func(pass2)'")
    add(
        "-t",
        "--target",
        metavar="TARGET",
        default="mlir",
        help="what is written: mlir, c, llvm-ir, or a target of xDSL",
    )
    add("-f", "--frontend", metavar="KIND", help="what the input is: mlir or pk; default: by the name of the file")
    add_kernel(parser)
    add("--dim", metavar="NAME=SIZE", action="append", default=[], help="the size of a dim of a kernel, such as N=64")
    add("--machine", metavar="NAME", help="put the machine NAME at the start of the module")
    add_schedule(parser)
    add_machine_options(parser)
    add("--lockstep", action="store_true", help="run the program around every pass and compare")
    _add_reading(parser.add_argument_group("reading and verifying"))
    _add_printing(parser.add_argument_group("printing"))
    _add_instruments(parser.add_argument_group("instruments"))
    _add_reproducers(parser.add_argument_group("reproducers"))
    add = parser.add_argument_group("asking").add_argument
    add("--list-passes", action="store_true", help="print the name and purpose of every pass and pipeline")
    add("--help-pass", metavar="NAME", help="print what a pass does and its options")
    add("--show-dialects", action="store_true", help="print the names of all dialects")
    add("--dump-pass-pipeline", action="store_true", help="print the pipeline that runs, as -p takes it")
    add("-v", "--version", action=_Version, nargs=0, help="print the versions")
    return parser


def _add_reading(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    add = group.add_argument
    add("--allow-unregistered-dialect", action="store_true", help="accept unknown operations")
    add("--irdl-file", metavar="FILE", help="dialects that a file of IRDL defines")
    add("--no-implicit-module", action="store_true", help="the text itself is one builtin.module")
    add("--no-verify", action="store_true", help="verify nothing, neither the input nor what passes leave")
    add("--verify-each", metavar="BOOL", default="true", help="whether to verify after every pass; default: true")
    add("--verify-roundtrip", action="store_true", help="print the input and parse it again: it must be the same")
    add("--split-input-file", metavar="MARK", help="work on each piece between lines `// -----`, or MARK, by itself")
    add(
        "--verify-diagnostics",
        action="store_true",
        help="compare the errors with the comments `// expected-error {{...}}`",
    )
    add("--parsing-diagnostics", action="store_true", help="print faults of the text, and leave with status 0")


def _add_printing(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    add = group.add_argument
    add("--print-op-generic", action="store_true", help="print operations in generic form")
    add("--print-no-properties", action="store_true", help="print properties among the attributes")
    add("--print-debuginfo", action="store_true", help="print locations")
    add("--print-local-scope", action="store_true", help="print without aliases, as it always is")
    add("--print-skip-regions", action="store_true", help="print regions as {...}")
    add("--print-value-users", action="store_true", help="say in comments what uses each value")
    add("--print-unique-ssa-ids", action="store_true", help="give no two values of the text one name")
    add("--elide-larger", metavar="N", type=natural, help="leave out the elements of constants that have more than N")
    add("--color", metavar="WHEN", choices=("auto", "always", "never"), default="auto", help="auto: on a terminal")
    add("--syntax-highlight", action="store_true", help="print the IR in colours")
    for word in ("before", "after"):
        add(
            f"--print-ir-{word}",
            metavar="PASS",
            action="append",
            default=[],
            help=f"print the IR {word} the passes named after =, or {word} all",
        )
        every = {"action": "append_const", "const": ALL, "dest": f"print_ir_{word}"}
        add(f"--print-ir-{word}-all", **every, help=f"print the IR {word} every pass")  # pyright: ignore
    add("--print-ir-after-change", action="store_true", help="print the IR after passes that changed it")
    add("--print-ir-after-failure", action="store_true", help="print what a failing pass left behind")
    add("--print-ir-module-scope", action="store_true", help="around nested passes, print the whole module")
    add("--print-ir-tree-dir", metavar="DIR", help="print into files in DIR, which --resume goes on from")
    add("--print-between-passes", action="store_true", help="print the IR after every pass but the last")


def _add_instruments(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    add = group.add_argument
    add("--timing", action="store_true", help="print the time of each pass, of parsing, verifying and printing")
    add("--timing-display", choices=("tree", "list"), default="tree", help="as a tree, or by name, longest first")
    add("--statistics", action="store_true", help="print how many operations each pass added and removed")
    add("--statistics-display", choices=("pipeline", "list"), default="pipeline", help="in order, or by name")
    add("--remarks", metavar="REGEX", help="print what passes say of their decisions: `kind pass: message` is searched")
    add("--remarks-output", metavar="FILE", help="where remarks go; default: stderr")
    add("--output-format", choices=("text", "json"), default="text", help="of times, statistics and remarks")
    add("--disable-threading", action="store_true", help="run in one thread, as it always does")


def _add_reproducers(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    add = group.add_argument
    add("--crash-reproducer", metavar="FILE", help="where the input and the passes go if one crashes or fails")
    add("--local-reproducer", action="store_true", help="reproducers hold the input of the failing pass, and only it")
    add("--generate-reproducer", metavar="FILE", help="write a reproducer though nothing fails")
    add("--run-reproducer", action="store_true", help="run the passes that the text itself names; --resume is the same")
    add("--shrink", action="store_true", help="status 0 if a pass says that the input can be smaller, else 1")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        # Looking the versions up takes longer than the rest of the command line.
        from importlib.metadata import version

        print(f"penstock-opt {__version__}, xdsl {version('xdsl')}")
        parser.exit()


def is_kernels(args: argparse.Namespace, name: str) -> bool:
    """Whether the text of that name is one of kernels."""
    return name.endswith(".pk") if args.frontend is None else args.frontend == "pk"
