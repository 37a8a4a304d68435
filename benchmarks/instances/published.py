# SPDX-License-Identifier: Apache-2.0
"""
minimalloc's eleven challenging instances A-K, from a folder that is named, or lies beside the repository.

They are read from the folder given, else from that of the environment variable PENSTOCK_MINIMALLOC, else from
`../shared/data/minimalloc` next to the repository. They are not part of it; where there are none, what uses them says
so and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.instances.instance import Instance
from benchmarks.measure import ROOT, say
from penstock.passes.planning.minimalloc_csv import load_csv

VARIABLE = "PENSTOCK_MINIMALLOC"

RECORDED = {
    "A": 25.4, "B": 22.0, "C": 3.8, "D": 14.9, "E": 12.1, "F": 18.9, "G": 3.7, "H": 5.2, "I": 16.7, "J": 3.8, "K": 1.6,
}  # fmt: skip
"""Seconds of minimalloc's own default solver at 1 MiB, measured once on some 2-core machine (first of two runs)."""

ONE_PASS = {
    "A": 1.290, "B": 1.331, "C": 1.363, "D": 1.309, "E": 1.369, "F": 1.134, "G": 1.227, "H": 1.210, "I": 1.388,
    "J": 1.318, "K": 1.290,
}  # fmt: skip
"""Peak / bound of the best of eight one-pass orders, as it was recorded."""


def folder(given: Path | None = None) -> Path | None:
    """Where the instances are; None where they are not."""
    named = given or (Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None)
    found = named or ROOT.parent / "shared" / "data" / "minimalloc"
    if any(found.glob("*.csv")):
        return found
    say(f"skipped: no CSV files in {found}; name their folder with --minimalloc, or in {VARIABLE}")
    return None


def published(given: Path | None = None) -> Iterator[Instance]:
    """A to K; nothing where they are not to be found. Each has its capacity in its name."""
    if (place := folder(given)) is not None:
        for path in sorted(place.glob("*.csv")):
            yield Instance("published", path.name.split(".")[0], load_csv(path)[0])
