# SPDX-License-Identifier: Apache-2.0
"""
Measuring two things against each other on a machine that has other things to do.

The repetitions of the two alternate, so that what slows one slows the other, and each pair gives a ratio; the median
of the ratios is what is reported, with the least times of both beside it. Seconds are CPU seconds of the process and
its finished children unless a row says "wall": they do not count the time that others had the processor.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

Clock = Callable[[], float]


def as_installed(folder: Path) -> dict[str, str]:
    """The environment of a command whose bytecode is kept in a folder: pip compiles that of a package when it comes."""
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}


def cpu_seconds() -> float:
    """CPU time of this process and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@dataclass(frozen=True)
class Row:
    """A line of the table: what was measured, ours, the reference's, and what is aimed at."""

    what: str
    ours: float | None
    reference: str = ""
    theirs: float | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    unit: str = "s"
    remark: str = ""


def once(function: Callable[[], object], clock: Clock = cpu_seconds) -> float:
    """Seconds of one call."""
    gc.collect()
    started = clock()
    function()
    return clock() - started


def paired(
    what: str,
    ours: Callable[[], object],
    reference: str,
    theirs: Callable[[], object],
    *,
    repetitions: int,
    at_most: float | None = None,
    clock: Clock = cpu_seconds,
    warm: bool = True,
    scale: float = 1.0,
    unit: str = "s",
) -> Row:
    """
    Ours beside the reference, one after the other `repetitions` times, after one call of each that is not counted.

    `at_most` is the ratio aimed at. The seconds are multiplied by `scale` to `unit`.
    """
    if warm:
        ours()
        theirs()
    pairs: list[tuple[float, float]] = []
    for number in range(repetitions):
        first, second = (ours, theirs) if number % 2 == 0 else (theirs, ours)
        one, two = once(first, clock), once(second, clock)
        pairs.append((one, two) if number % 2 == 0 else (two, one))
    ratio = statistics.median(mine / other for mine, other in pairs)
    return Row(
        what,
        min(mine for mine, _ in pairs) * scale,
        reference,
        min(other for _, other in pairs) * scale,
        ratio,
        "" if at_most is None else f"ratio <= {at_most:g}",
        None if at_most is None else ratio <= at_most,
        unit,
    )


def limited(what: str, value: float, at_most: float, *, unit: str = "s") -> Row:
    """A measurement with an upper limit and no reference."""
    return Row(what, value, target=f"< {at_most:g} {unit}", met=value < at_most, unit=unit)


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    head = ("", "ours", "reference", "", "ratio", "target", "", "")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = (0, 3, 5, 6, 7)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _cells(row: Row) -> tuple[str, ...]:
    verdict = "" if row.met is None else "met" if row.met else "MISSED"
    return (
        row.what,
        _number(row.ours, row.unit),
        _number(row.theirs, row.unit),
        row.reference,
        "" if row.ratio is None else f"{row.ratio:.2f}",
        row.target,
        verdict,
        row.remark,
    )


def _number(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.4g} {unit}"


def report(rows: Callable[[], Sequence[Row]], description: str | None) -> None:
    """The command line of a benchmark: measure, and print a table, or the rows as JSON for run.py."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE instead of printing them")
    args = parser.parse_args()
    found = rows()
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in found]))
    else:
        print(table(found))


def say(text: str) -> None:
    """What is being done, shown while a measurement runs."""
    print(text, file=sys.stderr, flush=True)
