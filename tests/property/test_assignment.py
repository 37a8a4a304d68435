# SPDX-License-Identifier: Apache-2.0
"""The solver of assignments against enumeration: exact on trees and narrow graphs, never below the best on others."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.passes.planning.assignment import CostTable, cost_of, solve


def table(draw: st.DrawFn, sizes: list[int], variables: tuple[int, ...]) -> CostTable:
    shape = [sizes[variable] for variable in variables]
    values = draw(st.lists(st.integers(0, 20), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return CostTable(variables, np.array(values, np.int64).reshape(shape))


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[CostTable]]:
    """Each variable but the first has a table with one before it."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=8))
    tables = [table(draw, sizes, (draw(st.integers(0, one - 1)), one)) for one in range(1, len(sizes))]
    return sizes, tables + [table(draw, sizes, (one,)) for one in range(len(sizes))]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[CostTable]]:
    """Tables over any one to three variables."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=3, max_size=7))
    places = st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True)
    return sizes, [table(draw, sizes, tuple(sorted(draw(places)))) for _ in range(draw(st.integers(1, 12)))]


def best(sizes: list[int], tables: list[CostTable]) -> int:
    return min(cost_of(tables, options) for options in product(*map(range, sizes)))


@given(trees())
def test_trees_are_solved_exactly_within_tables_of_two_variables(problem: tuple[list[int], list[CostTable]]) -> None:
    sizes, tables = problem
    found = solve(sizes, tables, [[0] * len(sizes)], limit=9)
    assert found.is_optimal
    assert found.cost == cost_of(tables, found.options) == best(sizes, tables)


@given(graphs())
def test_narrow_graphs_are_solved_exactly(problem: tuple[list[int], list[CostTable]]) -> None:
    sizes, tables = problem
    found = solve(sizes, tables, [[0] * len(sizes)])
    assert found.is_optimal
    assert found.cost == best(sizes, tables)


@given(graphs())
def test_where_tables_are_too_large_no_start_is_better_than_what_is_found(
    problem: tuple[list[int], list[CostTable]],
) -> None:
    sizes, tables = problem
    starts = [[0] * len(sizes), [size - 1 for size in sizes]]
    found = solve(sizes, tables, starts, limit=3)
    assert best(sizes, tables) <= found.cost == cost_of(tables, found.options)
    assert found.cost <= min(cost_of(tables, start) for start in starts)
    if found.is_optimal:
        assert found.cost == best(sizes, tables)


def test_the_gap_on_graphs_that_are_too_wide_is_small() -> None:
    """Thirty grids of 6 x 6 variables with three options, of which one table may have 27 entries."""
    rng = np.random.default_rng(0)
    gaps: list[float] = []
    for _ in range(30):
        sizes = [3] * 36
        pairs = [(at, at + step) for at in range(36) for step in (1, 6) if at + step < 36 and (step == 6 or at % 6 < 5)]
        tables = [CostTable(pair, np.where(np.eye(3) == 1, 0, rng.integers(1, 100))) for pair in pairs]
        tables += [CostTable((at,), rng.integers(0, 100, 3)) for at in range(36)]
        exact = solve(sizes, tables, [[0] * 36])
        assert exact.is_optimal
        found = solve(sizes, tables, [[0] * 36, [1] * 36], limit=27)
        assert not found.is_optimal
        gaps.append(found.cost / exact.cost - 1)
    assert min(gaps) >= 0
    print(f"gap: mean {np.mean(gaps):.1%}, largest {max(gaps):.1%}")
    assert max(gaps) <= 0.25
    assert np.mean(gaps) <= 0.05
