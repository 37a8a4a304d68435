# SPDX-License-Identifier: Apache-2.0
"""`penstock-opt`: parse IR, run passes on it, print it; what mlir-opt does, with errors that have places.

Nothing but the IR is written to stdout (a list of passes, when asked for, is the answer and goes there too).
The exit status is 0, 1 for a fault of the input, 2 for a command line that makes no sense, 70 for a fault of ours.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Sequence

from penstock.tools.errors import guarded
from penstock.tools.opt_flags import parse_arguments


def run(argv: Sequence[str] | None = None) -> int:
    """Run the tool on a command line without its name; returns the exit status."""
    args = parse_arguments(argv, (_passes, _pipelines))
    # The IR is imported by now only if a word of the command line is no flag.
    from penstock.tools.opt_run import OptRun

    opt = OptRun(args)
    return guarded(opt.execute, texts=opt.texts, reproduce=opt.reproduce, colour=args.color)


def _passes() -> Collection[str]:
    from penstock.runtime.pass_manager import available_passes

    return available_passes()


def _pipelines() -> Collection[str]:
    from penstock.runtime.named_pipelines import named_pipelines

    return named_pipelines()


def main() -> None:
    # As `fewer_collections` does for passes, of which this must not import anything.
    gc.set_threshold(100_000, 50, 100)
    try:
        sys.exit(run())
    finally:
        # Python searches all that is left when it ends, which would take a fifth of the time of a small file.
        gc.freeze()
