# SPDX-License-Identifier: Apache-2.0
"""
Code by LLVM beside code by the C compiler, of the same programs: f32, batch 1, on one thread.

    python -m benchmarks.llvm [--only GROUP,NAME...] [--machine NAME] [--json FILE]

The work is that of benchmarks.native, which has C beside other libraries. Both run in this process and take turns, and
have the same bits, which is checked first. The ratio is LLVM's time to C's: below 1, LLVM's code is faster. What is
said beside it are the CPU seconds that each takes to make code of the lowered program, without a cache.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, once, paired, say, table
from benchmarks.native import chosen
from benchmarks.native_rows import Work, all_work
from penstock.lowering.machine_names import NATIVE


def measured(work: Work, machine: str) -> Row:
    """The row of a work."""
    import penstock
    from penstock.runtime.engine import Engine

    say(f"llvm: {work.name}")
    model, feeds = work.build()
    lowered = penstock.compile(model, None if machine == "host" else machine, backend="interpreter")
    assert isinstance(lowered, Engine)
    made: dict[str, Engine] = {}

    def make(backend: Any) -> None:
        made[backend] = Engine(lowered.module, lowered.ctx, lowered.signature, backend, verify=False)

    seconds = {backend: once(lambda backend=backend: make(backend)) for backend in ("native", "llvm")}
    inputs = [feeds[spec.name] for spec in lowered.signature.inputs]
    contexts = [made[backend].context() for backend in ("llvm", "native")]
    ours, theirs = (context.run(inputs) for context in contexts)
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=work.name)
    row = paired(
        work.name,
        lambda: contexts[0].run(inputs, out=ours),
        "C",
        lambda: contexts[1].run(inputs, out=theirs),
        repetitions=25,
        scale=1e3,
        unit="ms",
    )
    remark = f"code in {seconds['llvm']:.1f} s (C {seconds['native']:.1f})"
    return replace(row, remark=remark)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WHAT,...", help="groups, or how names of rows begin")
    parser.add_argument("--machine", default=NATIVE, metavar="NAME", help=f"a machine, or host ({NATIVE})")
    parser.add_argument("--quick", action="store_true", help="small extents")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE instead of printing them")
    args = parser.parse_args(arguments)
    work = chosen(list(all_work(quick=args.quick)), [each for each in args.only.split(",") if each])
    with TemporaryDirectory() as folder:
        os.environ["PENSTOCK_CACHE"] = folder
        rows = [measured(each, args.machine) for each in work]
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows]))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
