"""A plan on the terminal: time from left to right, bytes from the bottom up, in colours where there are any."""

from __future__ import annotations

from penstock.passes.planning.map_text import legend, text_map
from penstock.passes.planning.problem import Plan, Problem

ROWS = 20
"""Of the memory."""

_LEAST = 20
"""Letters of a row: a terminal that is narrower breaks lines."""
_LEGEND_LINES = 6
_COLOURS = (117, 150, 216, 182, 222, 115, 174, 110, 186, 140, 209, 152)
"""Light colours of the 256 that terminals have, with black letters on them; neighbours are far apart."""


def print_map(problem: Problem, plan: Plan) -> None:
    """Print the map on stderr; as plain letters where the terminal has no colours."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    # The widest label takes as many letters as the highest byte.
    widest = text_map(problem, plan, 1, ROWS).margin
    picture = text_map(problem, plan, max(_LEAST, console.width - widest - 1), ROWS)
    lines = picture.lines()
    for row, line in zip(picture.cells, lines, strict=False):
        text = Text(line, no_wrap=True, overflow="crop")
        start = 0
        for end in range(1, len(row) + 1):
            if end == len(row) or row[end] != row[start]:
                if (buffer := row[start]) is not None:
                    colour = f"black on color({_COLOURS[buffer % len(_COLOURS)]})"
                    text.stylize(colour, picture.margin + start, picture.margin + end)
                start = end
        console.print(text)
    for line in [*lines[len(picture.cells) :], *legend(problem, max(_LEAST, console.width - 1), _LEGEND_LINES)]:
        console.print(Text(line, no_wrap=True, overflow="crop"))
