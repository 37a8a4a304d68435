# SPDX-License-Identifier: Apache-2.0
"""
Show a program as one page for a browser that needs no network: its IR at each level side by side, what lies where in
each memory, what each unit does and why it waits, and the figures of its kernels. A click on any of them shows the same
thing in all the others. What is above the accelerator level is compiled first. Two programs can be compared.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from penstock.tools.arguments import (
    add_common,
    add_machine,
    add_model,
    add_pipeline,
    add_schedule,
    write_texts,
)
from penstock.tools.text import require_distinct

EPILOG = """\
examples:
  penstock report model.onnx --machine gemmini -o report.html
  penstock report usual.plan --compare largest.plan -o tilers.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_machine(parser)
    add_pipeline(parser)
    add_schedule(parser)
    parser.add_argument("--kernel", metavar="NAME", help="which kernel of a .pk file that has several")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page; default: MODEL.html")
    parser.add_argument("--compare", metavar="OTHER", help="another program, lowered likewise, beside the first")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.tools.report.page import plotting_library, report_page

    output = args.output or f"{Path(args.model).stem}.html"
    names = [args.model] if args.compare is None else [args.model, args.compare]
    require_distinct({"-o": output}, *names)
    library = plotting_library()
    programs: list[dict[str, Any]] = []
    for name in names:
        found = _program(argparse.Namespace(**{**vars(args), "model": name}))
        if found is None:
            return 0
        programs.append(found)
    title = " and ".join(program["title"] for program in programs)
    from penstock.tools.report.data import page_data

    write_texts(args, [(output, report_page(page_data(programs), title, library), "a page for a browser")])
    return 0


def _program(args: argparse.Namespace) -> dict[str, Any] | None:
    """The data of one program; None where only its passes are printed."""
    from penstock.tools.observed import observed_program
    from penstock.tools.report.data import program_data

    found = observed_program(args)
    return None if found is None else program_data(found.title, found.provenance, found.levels)
