# SPDX-License-Identifier: Apache-2.0
"""
The CSV form of a planning problem that minimalloc defined (Moffitt, ASPLOS 2023), and of its solution.

| column | what it holds |
|---|---|
| `id`, `buffer` or `buffer_id` | a name, once only |
| `lower`, `start` or `begin` | the first moment at which the buffer is alive |
| `upper`, or else `end` | the first at which it no longer is, or else the last at which it is |
| `size` | bytes |
| `alignment` | its offset is a multiple of this power of two |
| `hint` | an offset to try first |
| `gaps` | spans of its life in which nothing of it is alive: `4-6 9-12`; in `4-6@0:64` its bytes [0, 64) live on |
| `banks` | of which one holds all of it: `0 2`; ours |
| `offset` | where it lies |

Those after `size` are optional and may be empty; columns stand in any order. Gaps are half-open like lifetimes,
and with the column `end` they too reach to their last moment. The capacity is no column; by custom the file name
carries it (`A.1048576.csv`).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.passes.planning.problem import Buffer, Interval, Plan, Problem, Window, conflicts

_ALIASES = {"start": "lower", "begin": "lower", "buffer": "id", "buffer_id": "id"}
_NEEDED = ("id", "lower", "size")
_COLUMNS = (*_NEEDED, "upper", "end", "alignment", "hint", "gaps", "banks", "offset")
_NAMES = (*_COLUMNS, *_ALIASES)
_CELL = re.compile(r'[ \t]*("(?:[^"]|"")*"|[^,"]*?)[ \t]*(,|$)')
_INTEGER = re.compile(r"[+-]?[0-9]+")
_GAP = re.compile(r"(-?[0-9]+)-(-?[0-9]+)(?:@([0-9]+):([0-9]+))?")
_CAPACITY = re.compile(r".+\.([0-9]+)\.csv", re.IGNORECASE)
_DIGITS = 18
"""Of a number: what has more is no offset, time or size of anything."""


def capacity_in(name: str) -> int | None:
    """The capacity that a file name carries, as in `A.1048576.csv`; None if it carries none."""
    found = _CAPACITY.fullmatch(name)
    return int(found[1]) if found is not None and len(found[1]) <= _DIGITS else None


def load_csv(
    path: Path, capacity: int | None = None, *, bank_size: int | None = None, fixed: bool = False
) -> tuple[Problem, Plan]:
    """`parse_csv` of the file at `path`; the capacity is taken from its name where none is given."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read it: {error.strerror}", loc=str(path)) from None
    except UnicodeDecodeError:
        raise UserError("it is no text in UTF-8", loc=str(path)) from None
    if capacity is None:
        capacity = capacity_in(path.name)
    return parse_csv(text, capacity, name=str(path), bank_size=bank_size, fixed=fixed)


def parse_csv(
    text: str, capacity: int | None = None, name: str = "csv", *, bank_size: int | None = None, fixed: bool = False
) -> tuple[Problem, Plan]:
    """
    The problem in a text, and the plan in its column `offset`, which lacks the buffers that have none there.

    With `fixed` these offsets are given by hand: they are part of the problem. Raises UserError, placed as
    `name:row:column`, for whatever is no such problem, and for a buffer that is larger than the capacity.
    """
    if not text.strip():
        raise UserError("the file is empty", loc=name, notes=["its first line is a header: id,lower,upper,size"])
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    first, *rows = [_Row(name, number, _cells(line, f"{name}:{number}")) for number, line in lines]
    header = _header(first)
    if capacity is not None and capacity < 1:
        raise UserError(f"the capacity is {capacity} bytes", loc=name, notes=["it is a positive number of bytes"])
    buffers: list[Buffer] = []
    offsets: dict[str, int] = {}
    seen: dict[str, _Row] = {}
    for row in rows:
        row.header = header
        buffer, offset = _buffer(row, capacity, bank_size)
        if buffer.id in seen:
            note = f"the first is in line {seen[buffer.id].line}"
            raise row.fault("id", f'two buffers have the id "{buffer.id}"', note)
        seen[buffer.id] = row
        if offset is not None:
            offsets[buffer.id] = offset
            buffer = replace(buffer, offset=offset) if fixed else buffer
        buffers.append(buffer)
    problem = Problem(tuple(buffers), capacity, bank_size)
    held = tuple(buffer for buffer in buffers if buffer.offset is not None)
    for conflict in conflicts(replace(problem, buffers=held), Plan(offsets)) if fixed else ():
        # The first offset given by hand that breaks a rule together with those above it.
        *others, last = conflict.buffers
        notes = [f"buffer {id} is fixed in line {seen[id].line}" for id in others]
        raise seen[last].fault("offset", conflict.message, *notes)
    return problem, Plan(offsets)


@dataclass
class _Row:
    """A line of the file: its cells, each with the column of its first character."""

    file: str
    line: int
    cells: list[tuple[str, int]]
    header: Sequence[str] = ()

    def place(self, index: int) -> str:
        """Of a cell; of the end of the line for one that is missing."""
        at = self.cells[min(index, len(self.cells) - 1)][1]
        return f"{self.file}:{self.line}:{at}"

    def text(self, column: str) -> str:
        return self.cells[self.header.index(column)][0] if column in self.header else ""

    def integer(self, column: str) -> int:
        text = self.text(column)
        if not _INTEGER.fullmatch(text):
            raise self.fault(column, f'"{text}" is no integer, in the column "{column}"')
        if len(text) > _DIGITS:
            raise self.fault(column, f'the number in the column "{column}" has more than {_DIGITS} digits')
        return int(text)

    def optional(self, column: str) -> int | None:
        return self.integer(column) if self.text(column) else None

    def fault(self, column: str, message: str, *notes: str) -> UserError:
        return UserError(message, loc=self.place(self.header.index(column)), notes=notes)


def _cells(line: str, place: str) -> list[tuple[str, int]]:
    cells: list[tuple[str, int]] = []
    at = 0
    while True:
        found = _CELL.match(line, at)
        if found is None:
            raise UserError("a quote is not closed, or has text around it", loc=f"{place}:{at + 1}")
        text = found[1]
        cells.append((text[1:-1].replace('""', '"') if text.startswith('"') else text, found.start(1) + 1))
        if not found[2]:
            return cells
        at = found.end()


def _header(row: _Row) -> list[str]:
    """The names of the columns, by their first names."""
    header: list[str] = []
    notes = ["the header names columns: id,lower,upper,size, and as needed alignment, hint, gaps, banks, offset"]
    if not any(text.strip().lower() in _NAMES for text, _ in row.cells):
        raise UserError("the header is missing", loc=row.place(0), notes=notes)
    for index, (text, _) in enumerate(row.cells):
        column = _ALIASES.get(text.lower(), text.lower())
        if column not in _COLUMNS:
            near = did_you_mean(text, _NAMES)
            raise UserError(f'no column is called "{text}"', loc=row.place(index), notes=[near] if near else notes)
        if column in header:
            raise UserError(f'the column "{column}" is there twice', loc=row.place(index))
        header.append(column)
    for column in _NEEDED:
        if column not in header:
            raise UserError(f'the column "{column}" is missing', loc=row.place(0), notes=notes)
    if ("upper" in header) == ("end" in header):
        message = 'give one of the columns "upper" and "end"'
        notes = ['a buffer is alive before "upper", or up to and at "end"']
        raise UserError(message, loc=row.place(header.index("end") if "end" in header else 0), notes=notes)
    return header


def _buffer(row: _Row, capacity: int | None, bank_size: int | None) -> tuple[Buffer, int | None]:
    """The buffer of a row, free to lie anywhere, and its offset if the row has one."""
    if len(row.cells) != len(row.header):
        message = f"{len(row.cells)} values stand under {len(row.header)} columns"
        raise UserError(message, loc=row.place(len(row.header)), notes=[f"the columns are {', '.join(row.header)}"])
    id = row.text("id")
    if not id:
        raise row.fault("id", "a buffer has no id")
    size = row.integer("size")
    if size < 1:
        raise row.fault("size", f"buffer {id} has {size} bytes", "a size is a positive number of bytes")
    if capacity is not None and size > capacity:
        message = f"buffer {id} of {size} bytes is larger than the capacity of {capacity}"
        raise row.fault("size", message, "the capacity comes from --capacity, or else from the file name")
    given = row.optional("alignment")
    alignment = 1 if given is None else given
    if alignment < 1 or alignment & (alignment - 1):
        raise row.fault("alignment", f"the alignment {alignment} of buffer {id} is no power of two")
    intervals, windows = _life(row, id, size)
    banks = _banks(row, id, size, bank_size)
    hint, offset = row.optional("hint"), row.optional("offset")
    for column, value in (("hint", hint), ("offset", offset)):
        if value is not None and value < 0:
            raise row.fault(column, f"the {column} {value} of buffer {id} lies before the memory")
    return Buffer(id, intervals, size, alignment, windows=windows, banks=banks, hint=hint), offset


def _life(row: _Row, id: str, size: int) -> tuple[tuple[Interval, ...], tuple[Window, ...]]:
    """When the buffer is alive; and which bytes of it, if that is not always all."""
    last, beyond = ("upper", 0) if "upper" in row.header else ("end", 1)
    lower, upper = row.integer("lower"), row.integer(last) + beyond
    if lower >= upper:
        never = f"buffer {id} is never alive: lower {lower}, {last} {upper - beyond}"
        raise row.fault(last, never, "it is alive in [lower, upper)")
    whole = (0, size)
    pieces: list[tuple[Interval, Window]] = []
    now = lower
    for (start, end), window in sorted(_gaps(row, id, size, beyond)):
        if not lower <= start < end <= upper:
            message = f"the gap {start}-{end - beyond} of buffer {id} is not within its life, [{lower}, {upper})"
            raise row.fault("gaps", message)
        if start < now:
            raise row.fault("gaps", f"the gap {start}-{end - beyond} of buffer {id} overlaps another one")
        pieces += [((now, start), whole)] if now < start else []
        pieces += [((start, end), window)] if window[0] < window[1] else []
        now = end
    pieces += [((now, upper), whole)] if now < upper else []
    if not pieces:
        raise row.fault("gaps", f"buffer {id} is never alive: gaps cover all of its life")
    intervals, windows = zip(*_joined(pieces), strict=True)
    return intervals, windows if any(window != whole for window in windows) else ()


def _gaps(row: _Row, id: str, size: int, beyond: int) -> list[tuple[Interval, Window]]:
    """Spans of time, each with the bytes that live on in it; none is the window (0, 0)."""
    found: list[tuple[Interval, Window]] = []
    for word in row.text("gaps").split():
        gap = _GAP.fullmatch(word)
        if gap is None or len(word) > 4 * _DIGITS:
            note = "a gap is 4-6, or 4-6@0:64 where the bytes [0, 64) live on; blanks stand between gaps"
            raise row.fault("gaps", f'"{word}" is no gap', note)
        window = (int(gap[3]), int(gap[4])) if gap[3] is not None else (0, 0)
        if gap[3] is not None and not window[0] < window[1] <= size:
            message = f"the bytes {window[0]}:{window[1]} of a gap are not within the {size} of buffer {id}"
            raise row.fault("gaps", message)
        found.append(((int(gap[1]), int(gap[2]) + beyond), window))
    return found


def _banks(row: _Row, id: str, size: int, bank_size: int | None) -> tuple[int, ...] | None:
    words = row.text("banks").split()
    if not words:
        return None
    if not all(word.isascii() and word.isdecimal() and len(word) <= _DIGITS for word in words):
        raise row.fault("banks", f'"{" ".join(words)}" are no banks', "banks are numbers from 0: 0 2")
    if bank_size is None:
        message = f"buffer {id} lies in banks, and nothing says how large they are"
        raise row.fault("banks", message, "give the bytes of a bank: --bank-size BYTES")
    if size > bank_size:
        raise row.fault("size", f"buffer {id} of {size} bytes is larger than a bank of {bank_size}")
    return tuple(sorted({int(word) for word in words}))


def _joined(pieces: Sequence[tuple[Interval, Window]]) -> list[tuple[Interval, Window]]:
    """Pieces of a life, ascending, with those made one that touch and have the same bytes."""
    joined: list[tuple[Interval, Window]] = []
    for (lower, upper), window in pieces:
        if joined and joined[-1][0][1] == lower and joined[-1][1] == window:
            joined[-1] = ((joined[-1][0][0], upper), window)
        else:
            joined.append(((lower, upper), window))
    return joined


def write_csv(problem: Problem, plan: Plan | None = None) -> str:
    """
    The text of a problem; `parse_csv` reads it back.

    The column `offset` holds the places of `plan`, or else those that are fixed. It and other optional columns are
    only there where some buffer needs them.
    """
    table: dict[str, list[str]] = {"id": [buffer.id for buffer in problem.buffers]}
    table["lower"] = [str(buffer.lower) for buffer in problem.buffers]
    table["upper"] = [str(buffer.upper) for buffer in problem.buffers]
    table["size"] = [str(buffer.size) for buffer in problem.buffers]
    if any(buffer.alignment != 1 for buffer in problem.buffers):
        table["alignment"] = [str(buffer.alignment) for buffer in problem.buffers]
    optional = {
        "hint": [_shown(buffer.hint) for buffer in problem.buffers],
        "gaps": [_gaps_of(buffer) for buffer in problem.buffers],
        "banks": [" ".join(str(bank) for bank in buffer.banks or ()) for buffer in problem.buffers],
        "offset": [_shown(plan.offsets.get(b.id) if plan is not None else b.offset) for b in problem.buffers],
    }
    table |= {column: cells for column, cells in optional.items() if any(cells)}
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(table)
    rows.writerows(zip(*table.values(), strict=True))
    return out.getvalue()


def _shown(value: int | None) -> str:
    return "" if value is None else str(value)


def _gaps_of(buffer: Buffer) -> str:
    words: list[str] = []
    now = buffer.lower
    for (lower, upper), (low, high) in _joined(buffer.pieces):
        words += [f"{now}-{lower}"] if now < lower else []
        words += [f"{lower}-{upper}@{low}:{high}"] if (low, high) != (0, buffer.size) else []
        now = upper
    return " ".join(words)
