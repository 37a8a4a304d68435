# SPDX-License-Identifier: Apache-2.0
"""
List what has a name on a command line, each with what it is: planners, tilers, on-chip strategies, machines, passes,
ops and emitters, those of installed packages among them.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import USAGE, UserError, nearest_or_all
from penstock.tools.listed import as_data, lines
from penstock.tools.lists import KINDS
from penstock.tools.text import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.tools.listed import Listed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", nargs="?", help=f"{', '.join(KINDS)}; default: what these are")
    add_json(parser)


def add_json(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the flag that prints a list for programs."""
    parser.add_argument("--json", action="store_true", help="as a list of objects with a name, what it is and where")


def execute(args: argparse.Namespace) -> int:
    if args.kind is None:
        about = [(kind, each.about) for kind, each in KINDS.items()]
        print(json.dumps(dict(about), indent=2) if args.json else "\n".join(aligned(about)))
        return 0
    if args.kind not in KINDS:
        note = nearest_or_all(args.kind, KINDS, "kinds")
        raise UserError(f'there is no list of "{args.kind}"', notes=[note], status=USAGE)
    print_list(list(KINDS[args.kind].entries()), as_json=args.json)
    return 0


def print_list(entries: Sequence[Listed], *, as_json: bool) -> None:
    """Print entries, a line each, or for programs."""
    print(json.dumps(as_data(entries), indent=2) if as_json else "\n".join(lines(entries)))
