"""The command line of penstock-opt, with mlir-opt's names for what mlir-opt has."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from penstock.tools.instruments import ALL
from penstock.tools.text import STDIN

_DUMPS = ("--print-ir-before", "--print-ir-after")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line; leaves with status 2 for one that makes no sense."""
    words = list(sys.argv[1:] if argv is None else argv)
    # `--print-ir-after` alone means every pass. argparse would take the next word for its value.
    words = [f"{word}={ALL}" if _canonical(word) in _DUMPS else word for word in words]
    args = _parser().parse_args(words)
    args.print_ir_before = _pass_names(args.print_ir_before)
    args.print_ir_after = _pass_names(args.print_ir_after)
    if args.print_ir_before_all:
        args.print_ir_before |= {ALL}
    if args.print_ir_after_all:
        args.print_ir_after |= {ALL}
    return args


def _canonical(word: str) -> str:
    return word.replace("--mlir-", "--", 1)


def _pass_names(values: list[str]) -> frozenset[str]:
    return frozenset(name for value in values for name in value.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock-opt",
        description="Run passes over IR. All but the IR goes to stderr.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("input", nargs="?", default=STDIN, help="a file of IR; - or nothing is stdin")
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
    add("--machine", metavar="NAME", help="put the machine NAME in front of the module")
    add("--lockstep", action="store_true", help="run the program around every pass and compare")
    _add_reading(parser.add_argument_group("reading"))
    _add_printing(parser.add_argument_group("printing"))
    _add_asking(parser.add_argument_group("asking"))
    return parser


def _add_reading(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    add = group.add_argument
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


def _add_printing(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    def add(name: str, **settings: object) -> None:
        group.add_argument(name, name.replace("--", "--mlir-", 1), **settings)  # pyright: ignore

    add("--print-op-generic", action="store_true", help="print operations in generic form")
    add("--print-debuginfo", action="store_true", help="print locations")
    for word in ("before", "after"):
        add(
            f"--print-ir-{word}",
            metavar="PASS",
            action="append",
            default=[],
            help=f"print the IR {word} the passes named after =, or {word} all",
        )
        add(f"--print-ir-{word}-all", action="store_true", help=f"print the IR {word} every pass")
    add("--print-ir-after-change", action="store_true", help="print the IR after passes that changed it")
    add("--print-ir-after-failure", action="store_true", help="print what a failing pass left behind")
    add(
        "--pass-pipeline-crash-reproducer",
        metavar="FILE",
        help="where the input goes that repeats a fault of a pass; default: a folder for temporary files",
    )
    add("--timing", action="store_true", help="print the time that each pass took")


def _add_asking(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    add = group.add_argument
    add("--list-passes", action="store_true", help="print the name and purpose of every pass")
    add("--help-pass", metavar="NAME", help="print what a pass does and its options")
    add(
        "--version",
        action="version",
        version=f"penstock-opt {version('penstock')}, xdsl {version('xdsl')}",
    )
