"""
The CSV form of a planning problem that minimalloc defined (Moffitt, ASPLOS 2023), and of its solution.

Columns `id,lower,upper,size` in any order: half-open lifetimes, bytes. Also understood: `start` or `begin` for
`lower`, `buffer` or `buffer_id` for `id`, `end` for an upper end that is *inclusive*, `alignment`, and `gaps`
(`4-6 9-12`: half-open spans within the lifetime in which the buffer is not alive). `offset` is the column of
a solution. The capacity is no column; by custom the file name carries it (`A.1048576.csv`).
"""

from __future__ import annotations

import csv
import io
from itertools import pairwise
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.problem import Buffer, Interval, Plan, PlanError, Problem, merge_intervals

_ALIASES = {"start": "lower", "begin": "lower", "buffer": "id", "buffer_id": "id"}
_COLUMNS = frozenset({"id", "lower", "upper", "end", "size", "alignment", "gaps", "offset", "hint"})


def read_csv(path: Path, capacity: int | None = None) -> Problem:
    """The problem in the file at `path`; the capacity is taken from its name where none is given."""
    if capacity is None:
        capacity = next((int(p) for p in reversed(path.name.split(".")) if p.isdecimal()), None)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read it: {error}", loc=str(path)) from None
    return parse_csv(text, capacity, name=str(path))[0]


def parse_csv(text: str, capacity: int | None = None, name: str = "csv") -> tuple[Problem, Plan]:
    """
    The problem in a text, and the plan in its `offset` column, which is empty if there is none.

    Raises UserError, placed in line `name:line`, for a column that is missing or not known and for a value
    that makes no sense. A gap in which *part* of a buffer lives on (`4-6@0:64`) is refused.
    """
    rows = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    header = [_ALIASES.get(column, column) for column in rows.fieldnames or ()]
    for column in header:
        if column not in _COLUMNS:
            raise UserError(f'no column is called "{column}"', loc=f"{name}:1")
    for column in ("id", "lower", "size"):
        if column not in header:
            raise UserError(f'the column "{column}" is missing', loc=f"{name}:1")
    if ("upper" in header) == ("end" in header):
        raise UserError('give one of the columns "upper" and "end"', loc=f"{name}:1")
    rows.fieldnames = header
    buffers: list[Buffer] = []
    offsets: dict[str, int] = {}
    for row in rows:
        try:
            buffer = _buffer(row)
            if row.get("offset"):
                offsets[buffer.id] = int(row["offset"])
        except (ValueError, TypeError) as error:
            raise UserError(f"not a buffer: {error}", loc=f"{name}:{rows.line_num}") from None
        buffers.append(buffer)
    try:
        return Problem(tuple(buffers), capacity), Plan(offsets)
    except PlanError as error:
        raise UserError(str(error), loc=name) from None


def _buffer(row: dict[str, str]) -> Buffer:
    lower = int(row["lower"])
    upper = int(row["upper"]) if "upper" in row else int(row["end"]) + 1
    alive: list[Interval] = []
    start = lower
    for gap in sorted(_gap(text) for text in (row.get("gaps") or "").split()):
        if not start <= gap[0] < gap[1] <= upper:
            raise ValueError(f"the gap {gap[0]}-{gap[1]} is not within [{start}, {upper})")
        alive.append((start, gap[0]))
        start = gap[1]
    alive.append((start, upper))
    # a gap at either end leaves nothing on its outer side
    spans = alive if len(alive) == 1 else [span for span in alive if span[0] < span[1]]
    return Buffer(row["id"], tuple(spans), int(row["size"]), int(row.get("alignment") or 1))


def _gap(text: str) -> Interval:
    if "@" in text:
        raise ValueError(f"the gap {text} keeps part of the buffer alive, which is not supported")
    lower, _, upper = text.partition("-")
    return int(lower), int(upper)


def write_csv(problem: Problem, plan: Plan | None = None) -> str:
    """The text of a problem, with the offsets of `plan` if one is given; `parse_csv` reads it back."""
    aligned = any(buffer.alignment != 1 for buffer in problem.buffers)
    gapped = any(len(merge_intervals(buffer.intervals)) > 1 for buffer in problem.buffers)
    header = ["id", "lower", "upper", "size"]
    header += ["alignment"] * aligned + ["gaps"] * gapped + ["offset"] * (plan is not None)
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(header)
    for buffer in problem.buffers:
        spans = merge_intervals(buffer.intervals)
        gaps = pairwise(spans)
        row: list[str | int] = [buffer.id, buffer.lower, buffer.upper, buffer.size]
        row += [buffer.alignment] * aligned
        row += [" ".join(f"{left[1]}-{right[0]}" for left, right in gaps)] * gapped
        row += [plan.offsets[buffer.id]] if plan is not None else []
        table.writerow(row)
    return out.getvalue()
