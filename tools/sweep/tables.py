# SPDX-License-Identifier: Apache-2.0
"""The table of a sweep, a row for each run in the order of the plan: as CSV, Parquet, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.dialects.diagnostics import UserError, nearest_or_all, pip_install
from penstock.tools.sweep.figures import METRICS, Figure
from penstock.tools.sweep.grid import Run
from penstock.tools.sweep.plan import SweepPlan
from penstock.tools.sweep.store import Result
from penstock.tools.text import write_output

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = (".csv", ".parquet", ".md", ".tex")
"""The ends of names of files that tables are written to."""
ALL = "all"
_OF_RUNS = ("status", "reason")


@dataclass(frozen=True)
class Row:
    """A run that has ended."""

    labels: Mapping[str, str]
    result: Result

    def figure(self, metric: str) -> Figure:
        return self.result.figures.get(metric)


@dataclass(frozen=True)
class Table:
    """The runs of a plan that have ended."""

    plan: SweepPlan
    rows: tuple[Row, ...]

    @staticmethod
    def of(plan: SweepPlan, runs: Sequence[Run], results: Mapping[str, Result]) -> Table:
        """The table of the runs that have results."""
        return Table(plan, tuple(Row(run.labels, results[run.key]) for run in runs if run.key in results))

    def known(self) -> list[str]:
        """All figures of the rows, in the order in which they first occur."""
        return list(dict.fromkeys(name for row in self.rows for name in row.result.figures))

    def metrics(self, text: str | None = None) -> list[str]:
        """
        The figures that words with commas name, by default `METRICS`; one that ends in a dot names all that begin so.

        Raises UserError for one that no row has.
        """
        known = self.known()
        if text == ALL:
            return known
        found: list[str] = []
        for word in METRICS if text is None else (word.strip() for word in text.split(",")):
            named = [name for name in known if name.startswith(word)] if word.endswith(".") else [word]
            if text is not None and known and not set(named) & set(known):
                groups = {name.partition(".")[0] + "." for name in known if "." in name}
                raise UserError(
                    f'no run has the figure "{word}"', notes=[nearest_or_all(word, [*known, *groups], "figures")]
                )
            found += [name for name in named if name in known]
        return list(dict.fromkeys(found))

    # as text

    def csv(self, metrics: Sequence[str]) -> str:
        """A line for each run; what is not known is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*self.plan.columns, *_OF_RUNS, *metrics])
        for row in self.rows:
            cells = [*row.labels.values(), row.result.status, row.result.reason]
            writer.writerow([*cells, *(_exact(row.figure(metric)) for metric in metrics)])
        return out.getvalue()

    def markdown(self, metrics: Sequence[str]) -> str:
        """A table of GitHub's Markdown."""
        head, *rows = self._shown(metrics)
        cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        rule = ["---"] * len(self.plan.columns) + ["---:"] * len(metrics)
        return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *cells))

    def latex(self, metrics: Sequence[str]) -> str:
        """A table of LaTeX, which takes the package booktabs."""
        head, *rows = ([_latex(cell) for cell in row] for row in self._shown(metrics))
        lines = [f"\\begin{{tabular}}{{{'l' * len(self.plan.columns)}{'r' * len(metrics)}}}", "\\toprule"]
        lines += [" & ".join(head) + r" \\", r"\midrule", *(" & ".join(row) + r" \\" for row in rows)]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def _shown(self, metrics: Sequence[str]) -> list[list[str]]:
        """The cells for people; in place of figures that there are not, how the run ended."""
        rows = [[*self.plan.columns, *metrics]]
        for row in self.rows:
            figures = [_readable(row.figure(metric)) for metric in metrics]
            if not row.result.is_ok and figures:
                figures[0] = row.result.status
            rows.append([*row.labels.values(), *figures])
        return rows

    def write(self, path: str, metrics: Sequence[str]) -> None:
        """Write the table to a file, in the form that the end of its name says; raises UserError if it cannot."""
        kind = Path(path).suffix
        if kind == ".parquet":
            self._write_parquet(path, metrics)
            return
        texts = {".csv": self.csv, ".md": self.markdown, ".tex": self.latex}
        write_output(path, texts.get(kind, self.csv)(metrics))

    def _write_parquet(self, path: str, metrics: Sequence[str]) -> None:
        from penstock.dialects.files import whole_file

        require_pyarrow()
        import pyarrow  # pyright: ignore
        import pyarrow.parquet  # pyright: ignore

        arrow: Any = pyarrow
        columns: dict[str, list[Any]] = {name: [row.labels[name] for row in self.rows] for name in self.plan.columns}
        columns |= {name: [getattr(row.result, name) for row in self.rows] for name in _OF_RUNS}
        columns |= {metric: [row.figure(metric) for row in self.rows] for metric in metrics}
        with whole_file(path) as file:
            arrow.parquet.write_table(arrow.table(columns), file)


def require_pyarrow() -> None:
    """Raise UserError without pyarrow."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise UserError("Parquet needs the package pyarrow", notes=[pip_install("sweep"), "or write a .csv"])


def _exact(value: Figure) -> str:
    return "" if value is None else repr(value)


def _readable(value: Figure) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)
