"""`penstock`: import, compile, run and check models and IR files; what a person types."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from penstock.dialects.diagnostics import USAGE, did_you_mean
from penstock.tools import (
    check_command,
    compile_command,
    import_command,
    machines,
    plan_command,
    quantize_command,
    run_command,
    simulate_command,
)
from penstock.tools.errors import guarded
from penstock.tools.reproduce import reproduce_command

COMMANDS: dict[str, Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], None]] = {  # pyright: ignore[reportPrivateUsage]
    "import": import_command.add_parser,
    "compile": compile_command.add_parser,
    "run": run_command.add_parser,
    "check": check_command.add_parser,
    "quantize": quantize_command.add_parser,
    "plan": plan_command.add_parser,
    "simulate": simulate_command.add_parser,
    "machines": machines.add_parser,
}
"""The subcommands; each adds its parser, whose default `run` takes the arguments and returns the status."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the tool on a command line without its name; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        near = did_you_mean(words[0], COMMANDS)
        print(f'error: there is no command "{words[0]}"', file=sys.stderr)
        print(f"note: {near or 'commands: ' + ', '.join(COMMANDS)}", file=sys.stderr)
        return USAGE
    parser = _parser()
    args = parser.parse_args(words)
    if args.run is None:
        parser.print_help(sys.stderr)
        return USAGE
    return guarded(lambda: args.run(args), reproduce=lambda error: reproduce_command(error, args, words))


def main() -> None:
    sys.exit(run())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="A compiler for machines whose on-chip memories are managed by software.",
        allow_abbrev=False,
    )
    versions = f"penstock {version('penstock')}, xdsl {version('xdsl')}"
    parser.add_argument("--version", action="version", version=versions)
    parser.set_defaults(run=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    for add_parser in COMMANDS.values():
        add_parser(subparsers)
    return parser
