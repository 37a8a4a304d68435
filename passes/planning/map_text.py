# SPDX-License-Identifier: Apache-2.0
"""A plan as a picture in letters: time from left to right, bytes from the bottom up, one letter for each buffer."""

from __future__ import annotations

import string
from dataclasses import dataclass

from penstock.passes.planning.problem import Plan, Problem, height

SYMBOLS = string.ascii_letters + string.digits
"""Of the buffers in their order; with more of them, the same are used again."""


@dataclass(frozen=True)
class TextMap:
    """The picture: cells in rows, the highest bytes first."""

    cells: tuple[tuple[int | None, ...], ...]
    """In each the number of the buffer that fills most of it; None where none is alive."""
    labels: tuple[int, ...]
    """The first byte of each row."""
    first: int
    """The first moment."""
    last: int
    """The end of the last one."""

    def lines(self) -> list[str]:
        """The picture with its axes; `margin` letters of each line are before the cells."""
        margin = self.margin
        lines = [
            f"{label:>{margin - 2},} |" + "".join(symbol(cell) for cell in row)
            for label, row in zip(self.labels, self.cells, strict=True)
        ]
        width = len(self.cells[0]) if self.cells else 0
        end = str(self.last)
        lines.append(" " * (margin - 1) + "+" + "-" * width)
        lines.append(" " * margin + str(self.first).ljust(max(1, width - len(end))) + end)
        return lines

    @property
    def margin(self) -> int:
        """The letters before the first cell of a line."""
        return max((len(f"{label:,}") for label in self.labels), default=1) + 2


def symbol(buffer: int | None) -> str:
    """The letter of a buffer, by its number."""
    return " " if buffer is None else SYMBOLS[buffer % len(SYMBOLS)]


def text_map(problem: Problem, plan: Plan, width: int, rows: int) -> TextMap:
    """
    The picture of a plan in at most `width` letters and `rows` rows, axes not counted.

    Short times are stretched to whole letters, and a row has the same number of bytes as all others.
    """
    first = min((buffer.lower for buffer in problem.buffers), default=0)
    last = max((buffer.upper for buffer in problem.buffers), default=first)
    top = height(problem, plan)
    if last == first or top == 0:
        return TextMap((), (), first, last)
    per_row = -(-top // rows)
    count = -(-top // per_row)
    span = last - first
    # Of two columns of a long time, one may stand for a moment more than the other.
    columns = span * (width // span) if span <= width else width
    cells: list[list[int | None]] = [[None] * columns for _ in range(count)]
    filled = [[0] * columns for _ in range(count)]
    for number, buffer in enumerate(problem.buffers):
        start = plan.offsets[buffer.id]
        for (lower, upper), (low, high) in buffer.pieces:
            for row in range((start + low) // per_row, -(-(start + high) // per_row)):
                deep = min(start + high, (row + 1) * per_row) - max(start + low, row * per_row)
                for column in range((lower - first) * columns // span, -(-(upper - first) * columns // span)):
                    # Both sides in parts of a moment, of which a column has `span`.
                    begin, end = max((lower - first) * columns, column * span), (column + 1) * span
                    area = deep * (min((upper - first) * columns, end) - begin)
                    if area > filled[row][column]:
                        filled[row][column] = area
                        cells[row][column] = number
    labels = tuple(row * per_row for row in reversed(range(count)))
    return TextMap(tuple(tuple(row) for row in reversed(cells)), labels, first, last)


def legend(problem: Problem, width: int, lines: int) -> list[str]:
    """Which letter is which buffer, in at most so many lines of at most `width` letters."""
    words = [f"{symbol(number)} {buffer.id}" for number, buffer in enumerate(problem.buffers)]
    found: list[str] = []
    for number, word in enumerate(words):
        joined = f"{found[-1]}  {word}" if found else word
        if found and len(joined) <= width:
            found[-1] = joined
        elif len(found) < lines:
            found.append(word[:width])
        else:
            found.append(f"and {len(words) - number} more")
            break
    return found
