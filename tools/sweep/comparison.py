# SPDX-License-Identifier: Apache-2.0
"""
What the values of an axis change: each beside the first, over all pairs of runs that differ in nothing else.

Figures other than `cpu_s` are deterministic, so a difference between two runs is exact, and needs no test. Whether it
holds beyond the inputs at hand is another question: it is asked by Wilcoxon's signed-rank test (Biometrics Bulletin
1(6), 1945) over the inputs, whose differences are the logarithms of the geometric means of their ratios. Runs of one
input are no independent samples, so each input counts once. The test is two-sided and exact, with midranks for ties
and without differences of zero; p values of several comparisons are corrected by Holm's method (Scandinavian Journal
of Statistics 6(2), 1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.tools.sweep.figures import CPU, ON_MACHINE
from penstock.tools.sweep.tables import Row, Table

SIGNIFICANT = 0.05
FEWEST_INPUTS = 6
"""With fewer, no outcome of the test is significant."""


@dataclass(frozen=True)
class Comparison:
    """A value of an axis beside the first."""

    value: str
    ratios: tuple[float, ...]
    """Of the figure, to that of the first value: one for each pair."""
    unlike: int
    """Pairs left out: they do not compute the same on the machine."""
    by_input: Mapping[str, float]
    """The geometric mean of the ratios of each input."""
    p: float | None = None
    """That the inputs show no difference, corrected; None where they are too few."""

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios."""
        return geometric_mean(self.ratios)

    def __str__(self) -> str:
        count = len(self.ratios)
        if not count:
            return f'"{self.value}" has no pairs'
        lower, higher = (sum(r < 1 for r in self.ratios), sum(r > 1 for r in self.ratios))
        parts = [f"{lower} lower"] * bool(lower) + [f"{higher} higher"] * bool(higher)
        parts += [f"{count - lower - higher} equal"] * (lower + higher < count)
        unlike = f", {self.unlike} left out" if self.unlike else ""
        p = "" if self.p is None else f"; p = {self.p:.3g}{'*' * (self.p <= SIGNIFICANT)}"
        return f'"{self.value}" {self.mean:.3f}x ({count} pair{"s" * (count > 1)}: {", ".join(parts)}{unlike}{p})'


def compare(table: Table, axis: str, metric: str) -> list[Comparison]:
    """
    The values of an axis beside the first, by a figure.

    Raises UserError for an axis that the plan does not have, and for a figure that no run has.
    """
    values = _values(table, axis)
    if metric not in table.known():
        raise UserError(f'no run has the figure "{metric}"', notes=[nearest_or_all(metric, table.known(), "figures")])
    rows = {tuple(row.labels.values()): row for row in table.rows}
    at = list(table.plan.columns).index(axis)
    found: list[Comparison] = []
    for value in values[1:]:
        ratios: list[tuple[str, float]] = []
        unlike = 0
        for labels, row in rows.items():
            if labels[at] != values[0]:
                continue
            other = rows.get((*labels[:at], value, *labels[at + 1 :]))
            pair = None if other is None else (row.figure(metric), other.figure(metric))
            if other is None or pair is None or not pair[0] or not pair[1]:
                continue
            if _work(row) != _work(other) and axis not in ("input", "machine"):
                unlike += 1
                continue
            ratios.append((row.labels["input"], pair[1] / pair[0]))
        inputs = dict.fromkeys(name for name, _ in ratios)
        by_input = {name: geometric_mean([ratio for each, ratio in ratios if each == name]) for name in inputs}
        found.append(Comparison(value, tuple(ratio for _, ratio in ratios), unlike, by_input))
    return _tested(found)


def comparison_line(table: Table, axis: str, metric: str) -> str:
    """What `compare` finds, in one line."""
    found = compare(table, axis, metric)
    first = _values(table, axis)[0]
    exact = "measured" if metric == CPU else "exact, no test needed"
    if any(each.p is not None for each in found):
        test = "* significant at 0.05 over inputs by Wilcoxon's signed-rank test, corrected by Holm's method"
    else:
        test = f"over so few inputs Wilcoxon's signed-rank test says nothing, it takes {FEWEST_INPUTS}"
    return f'{metric} by {axis}, beside "{first}": {", ".join(map(str, found))}; {exact}; {test}'


def _values(table: Table, axis: str) -> list[str]:
    if axis not in table.plan.columns:
        raise UserError(f'the plan has no axis "{axis}"', notes=[nearest_or_all(axis, table.plan.columns, "axes")])
    return list(dict.fromkeys(row.labels[axis] for row in table.rows))


def _work(row: Row) -> object:
    return row.figure(ON_MACHINE)


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.nan


def signed_rank(differences: Sequence[float]) -> float:
    """The two-sided p value of Wilcoxon's signed-rank test that differences are symmetric around 0, exactly."""
    others = [each for each in differences if each]
    sizes = sorted(map(abs, others))
    # Twice the ranks, so that those in the middle of equal sizes are integers, too.
    ranks = {size: 2 * sizes.index(size) + sizes.count(size) + 1 for size in sizes}
    positive = sum(ranks[abs(each)] for each in others if each > 0)
    total = sum(ranks[size] for size in sizes)
    ways = [1] + [0] * total
    for size in sizes:
        rank = ranks[size]
        for reached in range(total, rank - 1, -1):
            ways[reached] += ways[reached - rank]
    tail = sum(ways[: min(positive, total - positive) + 1])
    return min(1.0, 2 * tail / 2 ** len(sizes))


def _tested(found: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with their p values, corrected."""
    p_values = {
        number: signed_rank([math.log(mean) for mean in each.by_input.values()])
        for number, each in enumerate(found)
        if len(each.by_input) >= FEWEST_INPUTS
    }
    corrected, least = dict[int, float](), 0.0
    for done, number in enumerate(sorted(p_values, key=lambda each: (p_values[each], each))):
        least = max(least, min(1.0, p_values[number] * (len(p_values) - done)))
        corrected[number] = least
    return [
        Comparison(each.value, each.ratios, each.unlike, each.by_input, corrected.get(number))
        for number, each in enumerate(found)
    ]
