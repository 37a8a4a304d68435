# SPDX-License-Identifier: Apache-2.0
"""List machines, show one as IR, as a table or as a picture, or validate machine files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from penstock.dialects.diagnostics import USER_FAULT, UserError
from penstock.tools.arguments import add_common, add_machine_options, machine_options, say
from penstock.tools.list_command import add_json, print_list
from penstock.tools.text import STDIN, require_distinct, write_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = actions.add_parser("list", help="the machines that --machine may name: penstock list machines")
    form = listed.add_mutually_exclusive_group()
    form.add_argument("--table", action="store_true", help="a table of what those that come with Penstock have")
    add_json(form)
    show = actions.add_parser("show", help="a machine as IR, as a table, or as a picture")
    show.add_argument("machine", help="a name, or the path of a machine file")
    add_machine_options(show)
    show.add_argument("--table", action="store_true", help="a table, with the origin of each number")
    show.add_argument("--svg", metavar="FILE", help="write a picture of its memories, engines and units, too")
    add_common(show)
    validate = actions.add_parser("validate", help="check machine files")
    validate.add_argument("files", nargs="+", metavar="FILE", help="a machine file, or a name")
    validate.add_argument("--code", action="store_true", help="compile each command that it spells, once")


def execute(args: argparse.Namespace) -> int:
    match args.action:
        case "list":
            return _list(args)
        case "show":
            return _show(args)
        case _:
            return validate_files(args.files, code=args.code)


def _list(args: argparse.Namespace) -> int:
    from penstock.tools.lists import machines

    if args.table:
        from penstock.tools.machine_tables import machine_table

        print("\n".join(machine_table()))
    else:
        print_list(list(machines()), as_json=args.json)
    return 0


def _show(args: argparse.Namespace) -> int:
    from penstock.lowering.from_machine_toml import load_machine
    from penstock.lowering.machine_names import SUFFIX
    from penstock.tools.machine_tables import computed, describe

    target = load_machine(args.machine, machine_options(args))
    if args.svg is not None:
        if args.machine.endswith(SUFFIX):
            require_distinct({"--svg": args.svg}, args.machine, kind="machine file")
        from penstock.tools.machine_svg import machine_svg

        write_output(args.svg, machine_svg(target))
        if args.svg == STDIN:
            return 0
    print("\n".join(describe(target)) if args.table else target)
    if not args.table:
        say(args, "\n".join(computed(target)))
    return 0


def validate_files(names: Sequence[str], *, code: bool = False) -> int:
    """
    Print every fault of every file to stderr, with the line it is in; the status is 1 if there is one. With `code`,
    what the C compiler refuses of how commands are spelled is one.
    """
    from penstock.lowering.from_machine_toml import read_machine
    from penstock.lowering.machine_names import machine_text
    from penstock.tools.errors import render

    status = 0
    for name in names:
        file, text = name, ""
        try:
            file, text = machine_text(name)
            target, faults = read_machine(file, text)
            if code and not faults and target is not None:
                from penstock.runtime.device_check import code_faults

                faults = code_faults(target)
        except UserError as fault:
            faults = (fault,)
        for fault in faults:
            print(render(fault, {file: text}), file=sys.stderr)
        if faults:
            status = USER_FAULT
        else:
            print(f"{name}: valid")
    return status
