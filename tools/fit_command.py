# SPDX-License-Identifier: Apache-2.0
"""
Say how little memory a program runs in, off the chip's scopes: what each technique wins, and what it computes for that.
`penstock compile --memory SIZE` takes the way that fits and computes least, in the cycles of a machine whose file says
how fast it is.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.tools.arguments import add_common, add_kernel, add_machine, add_model, machine_options, say

if TYPE_CHECKING:
    from penstock.runtime.fit import Technique


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_kernel(parser)
    add_machine(parser)
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.runtime.fit import Fitting, are_timed
    from penstock.tools.instruments import step_progress
    from penstock.tools.programs import load_bound
    from penstock.tools.text import aligned

    program = load_bound(args, args.kernel)
    fitting = Fitting(program, args.machine, machine_options(args))
    found: list[Technique] = []
    with program.naming_faults(), step_progress(quiet=args.quiet) as progress:
        progress(0, None, "the program as it is")
        for each in fitting.techniques():
            found.append(each)
            progress(len(found), None, f"after {each.what}")
    first = found[0].fit
    timed = are_timed(each.fit for each in found)
    work = ("modelled cycles", "slower") if timed else ("multiply-accumulates", "more work")
    rows = [("up to", "bytes", "less", *work, "pipeline")]
    for each in found:
        less = f"{1 - each.fit.bytes / first.bytes:.1%}" if first.bytes else "-"
        done, before = each.fit.cost(timed=timed), first.cost(timed=timed)
        more = f"{done / before:.3f}x" if before else "-"
        rows.append((each.what, f"{each.fit.bytes:,}", less, f"{done:,}", more, each.fit.pipeline or "default"))
    print("\n".join(aligned(rows, left={0, 5})))
    least = min((each.fit for each in found), key=lambda fit: (fit.bytes, fit.cost(timed=timed)))
    print(f"alive at the peak of the least: {'; '.join(least.alive) or 'nothing'}")
    if (room := fitting.room()) is not None:
        name, size = room
        fits = next((each.what for each in found if each.fit.bytes <= size), None)
        print(f'memory "{name}" of {size:,} bytes: {"too small" if fits is None else f"enough with {fits}"}')
    say(args, "outputs, code and stack come on top")
    return 0
