# SPDX-License-Identifier: Apache-2.0
"""`penstock`: import, compile, run and check models and IR files; what a person types."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from importlib import import_module

from penstock import __version__
from penstock.dialects.diagnostics import USAGE, did_you_mean
from penstock.tools.arguments import Parser, argument_texts
from penstock.tools.errors import guarded

COMMANDS = {
    "demo": "compile a small network that comes with Penstock, run it at every level, and show what was decided",
    "import": "turn an ONNX model or StableHLO into IR and weights",
    "export": "turn IR into an ONNX model",
    "compile": "lower a model or IR to a level, to C, to instructions, or to a plan",
    "run": "run a model, IR or a plan on tensors in files",
    "check": "run a program around every pass and compare",
    "fuzz": "run random programs through the whole compiler",
    "quantize": "turn a model into one on 8-bit integers",
    "plan": "find offsets for buffers in a memory",
    "fit": "say how little memory a program runs in, and what that costs",
    "simulate": "count the cycles of a program on a machine",
    "sweep": "compile and simulate in all combinations of what a plan varies, and make the table",
    "explain": "say where a byte, a cycle or a node of a program comes from",
    "report": "show a program as a page for a browser",
    "list": "list planners, tilers, strategies, machines, passes, ops or emitters",
    "machines": "list, show or validate machines",
    "show": "print what kernels compute, as text of the kernel language",
    "format": "write texts of kernels in their one form",
    "new-plugin": "write the skeleton of a package that extends Penstock",
    "test-planner": "check that a planner keeps to its contract",
    "test-tiler": "check that a tiler keeps to its contract",
}
"""
The subcommands, each with what it does. The module of that name with _command, and _ for -, is imported when it is
given: its docstring is the help, `add_arguments` adds what it takes, and `execute` does it and returns the status.
"""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the tool on a command line without its name; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        near = did_you_mean(words[0], COMMANDS)
        print(f'error: there is no command "{words[0]}"', file=sys.stderr)
        print(f"note: {near or 'commands: ' + ', '.join(COMMANDS)}", file=sys.stderr)
        return USAGE
    parser = _parser(words)
    args = parser.parse_args(words)
    if args.run is None:
        parser.print_help(sys.stderr)
        return USAGE

    def reproduce(error: Exception) -> str | None:
        from penstock.tools.reproduce import reproduce_command

        return reproduce_command(error, args, words)

    return guarded(lambda: args.run(args), texts=argument_texts(args), reproduce=reproduce)


def main() -> None:
    # As `fewer_collections` does for passes, of which this must not import anything.
    gc.set_threshold(100_000, 50, 100)
    try:
        sys.exit(run())
    finally:
        # Python searches all that is left when it ends, which would take a fifth of the time of a small file.
        gc.freeze()


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a command line; of the subcommands it knows the arguments of the one that is given."""
    parser = Parser(
        prog="penstock",
        description="A compiler for machines whose on-chip memories are managed by software.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_versions() if "--version" in words else "")
    parser.set_defaults(run=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    given = words[0] if words and words[0] in COMMANDS else None
    for command, text in COMMANDS.items():
        if command != given:
            subparsers.add_parser(command, help=text)
    if given is not None:
        module = import_module(f"penstock.tools.{given.replace('-', '_')}_command")
        epilog = getattr(module, "EPILOG", None)
        style = argparse.HelpFormatter if epilog is None else argparse.RawDescriptionHelpFormatter
        command = subparsers.add_parser(
            given, description=module.__doc__, epilog=epilog, formatter_class=style, allow_abbrev=False
        )
        module.add_arguments(command)
        command.set_defaults(run=module.execute)
    return parser


def _versions() -> str:
    from importlib.metadata import version

    return f"penstock {__version__}, xdsl {version('xdsl')}"
