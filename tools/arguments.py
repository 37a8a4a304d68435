"""Arguments that several commands of `penstock` share, and what they mean."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.tools.text import STDIN, write_output

MAX_DIGITS = 20
"""Of a size; what is too large with fewer digits is refused at its location in the program."""


def add_common(parser: argparse.ArgumentParser) -> None:
    """How much a command says while it works."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-v", "--verbose", action="store_true", help="say what is being done, and how long it took")
    group.add_argument("-q", "--quiet", action="store_true", help="say nothing but warnings and errors")


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model or IR to work on, and the sizes of its symbolic dimensions."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX model (.onnx) or a file of IR (.mlir)")
    parser.add_argument(
        "--dim",
        metavar="NAME=SIZE",
        action="append",
        default=[],
        help="the size of a symbolic dimension, such as batch=1",
    )
    parser.add_argument("--allow-nan", action="store_true", help="accept an ONNX model with weights that hold NaN")


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Where the weights go."""
    parser.add_argument(
        "--weights", metavar="FILE", help="where the weights of an IR file go; default: beside it, as .safetensors"
    )


def add_machine(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """The machine to compile for."""
    parser.add_argument(
        "--machine",
        metavar="NAME",
        help="a machine of `penstock machines`, or a machine file; without one, code for the host",
    )


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


def natural(word: str) -> int:
    """The number from 0 in a word, for argparse."""
    if not (word.isascii() and word.isdecimal() and len(word) <= MAX_DIGITS):
        raise argparse.ArgumentTypeError(f'"{word}" is no integer from 0')
    return int(word)


def read_dims(words: Sequence[str]) -> dict[str, int]:
    """
    The sizes in `NAME=SIZE` words.

    Raises UserError for a word of another form, a size below 1, and two sizes of one name.
    """
    dims: dict[str, int] = {}
    for word in words:
        name, _, size = word.rpartition("=")
        # Python refuses to read numbers of thousands of digits.
        if not name or not size.isdecimal() or len(size) > MAX_DIGITS or int(size) < 1:
            raise UserError(f'"{word}" is no size of a dimension', notes=["write --dim batch=1"], status=USAGE)
        if dims.setdefault(name, int(size)) != int(size):
            message = f"the dimension {name} is bound twice, to {dims[name]} and to {int(size)}"
            raise UserError(message, status=USAGE)
    return dims


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
