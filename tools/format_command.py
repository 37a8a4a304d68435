# SPDX-License-Identifier: Apache-2.0
"""Write texts of the kernel language in their one form: indentation, spaces, brackets; comments stay."""

from __future__ import annotations

import argparse
import sys

from penstock.dialects.diagnostics import USER_FAULT
from penstock.dialects.files import write_whole
from penstock.lowering.from_kernel import read_source
from penstock.lowering.from_kernel.printer import print_source
from penstock.lowering.from_text import decode_text, read_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a text of kernels (.pk), or - for stdin")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a text is not in its form")
    parser.add_argument("--stdout", action="store_true", help="print the texts and leave the files as they are")


def execute(args: argparse.Namespace) -> int:
    status = 0
    for name in args.files:
        source = decode_text("<stdin>", sys.stdin.buffer.read()) if name == "-" else read_text(name)
        text = print_source(read_source(source))
        if args.check:
            if text != source.text:
                print(f"{source.name} is not formatted", file=sys.stderr)
                status = USER_FAULT
        elif args.stdout or name == "-":
            print(text, end="")
        elif text != source.text:
            write_whole(name, text)
    return status
