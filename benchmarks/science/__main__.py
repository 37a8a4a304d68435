# SPDX-License-Identifier: Apache-2.0
"""
Headline figures of papers, derived again by compiling and simulating, beside the published ones.

    python -m benchmarks.science [--only STUDY]... [--long] [--plots FOLDER]

A study is a file in `benchmarks/science/studies`: what is published, with its source, and what is asked for. The
verdict is `near` within 10 % of the published span. Every figure of cycles is of commands that are proved free of
hazards. With `--long` what takes most of an hour is computed, too: OnSRAM's networks through the compiler, and tiles on
VTA. `--plots` draws, with matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.science import cosma, first_tpu, fusion, onsram, smaug, tiling, toplib, vdla
from benchmarks.science.plots import draw
from benchmarks.science.study import Found, Study, report

STUDIES: dict[str, Callable[..., Found]] = {
    "tpu": first_tpu.run,
    "hiding": vdla.hiding,
    "offload": vdla.offload,
    "fusion": fusion.run,
    "onsram": onsram.run,
    "cosma": cosma.run,
    "tiling": tiling.run,
    "smaug": smaug.shares,
    "smaug-tilers": smaug.tilers,
    "camera": smaug.camera,
    "toplib": toplib.run,
}


def main() -> int:
    """Run the studies that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="STUDY", choices=list(STUDIES), help="one of several")
    parser.add_argument("--long", action="store_true", help="what takes minutes, too")
    parser.add_argument("--plots", metavar="FOLDER", type=Path, help="draw what a study has pictures of, as SVG")
    args = parser.parse_args()
    for name, run in STUDIES.items():
        if args.only and name not in args.only:
            continue
        study = Study.read(name)
        found = run(study, long=args.long)
        print(report(study, found), flush=True)
        for file, plot in found.plots.items() if args.plots else ():
            draw(plot, args.plots / f"{file}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
