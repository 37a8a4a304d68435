# SPDX-License-Identifier: Apache-2.0
"""
Assignment: one option for each variable so that the sum of cost tables over a few variables each is least.

`solve` eliminates the variables one after the other, the one with the smallest table first: the table of all costs
that a variable takes part in is reduced to its minimum over that variable. On a tree this is dynamic programming from
the leaves, and exact; so it is on any other graph, as long as no table becomes too large. Where one does, the
variable with most neighbours is held at what it has: the rest is solved exactly around it, and the passes go on, each
holding those that have been held least often, until none lowers the cost. That is a heuristic, which never ends above
the best assignment that it starts from. See Dechter, "Bucket elimination: a unifying framework for reasoning",
Artificial Intelligence 113, 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLE_LIMIT = 1 << 16
"""The entries of the largest table that is made."""


@dataclass(frozen=True)
class CostTable:
    """A cost for each combination of options of some variables."""

    variables: tuple[int, ...]
    """In increasing order, one for each dimension of the costs."""
    costs: NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """What was found: an option for each variable, the sum of costs, and whether no other has a lower one."""

    options: tuple[int, ...]
    cost: int
    is_optimal: bool


def cost_of(tables: Sequence[CostTable], options: Sequence[int]) -> int:
    """The sum of costs of an assignment."""
    return sum(int(table.costs[tuple(options[variable] for variable in table.variables)]) for table in tables)


def solve(
    sizes: Sequence[int], tables: Sequence[CostTable], starts: Sequence[Sequence[int]], *, limit: int = TABLE_LIMIT
) -> Assignment:
    """
    The best assignment of variables that have `sizes` options.

    `starts` are assignments to begin with, at least one, where the best cannot be computed within tables of `limit`
    entries. Of several best the choice depends on the order of variables and options only.
    """
    best = min((tuple(start) for start in starts), key=lambda options: cost_of(tables, options))
    lowest = cost_of(tables, best)
    held_before = [0] * len(sizes)
    idle = 0
    while idle < 3:
        options, held = _eliminate(sizes, tables, best, held_before, limit)
        cost = cost_of(tables, options)
        if not held:
            return Assignment(options, cost, True)
        idle = 0 if cost < lowest else idle + 1
        if cost < lowest:
            best, lowest = options, cost
        for variable in held:
            held_before[variable] += 1
    return Assignment(best, lowest, False)


def _eliminate(
    sizes: Sequence[int], tables: Sequence[CostTable], current: Sequence[int], held_before: Sequence[int], limit: int
) -> tuple[tuple[int, ...], list[int]]:
    """The best assignment, but for the variables that are held at their `current` options so that tables are small."""
    around: list[dict[int, CostTable]] = [{} for _ in sizes]
    """Of each variable the tables that it takes part in, by a number of theirs."""
    made = 0

    def add(table: CostTable) -> None:
        nonlocal made
        for variable in table.variables:
            around[variable][made] = table
        made += 1

    def remove(variable: int) -> list[CostTable]:
        taken = list(around[variable].items())
        for number, table in taken:
            for each in table.variables:
                del around[each][number]
        return [table for _, table in taken]

    for table in tables:
        if table.variables:
            add(table)
    left = set(range(len(sizes)))
    held: list[int] = []
    steps: list[tuple[int, tuple[int, ...], NDArray[np.int64]]] = []
    entries = {variable: _entries(sizes, variable, around[variable].values()) for variable in left}
    queue = [(entries[variable], variable) for variable in left]
    heapify(queue)
    while left:
        # What was eliminated, and what has another number of entries by now, stays in the queue until it is first.
        while queue[0][1] not in left or queue[0][0] != entries[queue[0][1]]:
            heappop(queue)
        variable = queue[0][1]
        if entries[variable] > limit:
            # The one with the most neighbours that has been held the least.
            variable = min(left, key=lambda each: (held_before[each], -len(_others(each, around[each].values())), each))
            others = _others(variable, around[variable].values())
            for table in remove(variable):
                rest = tuple(each for each in table.variables if each != variable)
                if rest:
                    costs = np.take(table.costs, current[variable], axis=table.variables.index(variable))
                    add(CostTable(rest, costs))
            held.append(variable)
        else:
            others = _others(variable, around[variable].values())
            total = _sum(sizes, (*others, variable), remove(variable))
            best = np.argmin(total, axis=-1)
            steps.append((variable, others, best))
            if others:
                add(CostTable(others, np.min(total, axis=-1)))
        left.remove(variable)
        for each in others:
            entries[each] = _entries(sizes, each, around[each].values())
            heappush(queue, (entries[each], each))
    options = list(current)
    for variable, others, best in reversed(steps):
        options[variable] = int(best[tuple(options[other] for other in others)])
    return tuple(options), held


def _others(variable: int, tables: Any) -> tuple[int, ...]:
    return tuple(sorted({each for table in tables for each in table.variables} - {variable}))


def _entries(sizes: Sequence[int], variable: int, tables: Any) -> int:
    entries = sizes[variable]
    for other in _others(variable, tables):
        entries *= sizes[other]
    return entries


def _sum(sizes: Sequence[int], variables: tuple[int, ...], tables: Sequence[CostTable]) -> NDArray[np.int64]:
    """The costs of all `tables` as one table over `variables`, in their order."""
    total = np.zeros([sizes[variable] for variable in variables], np.int64)
    for table in tables:
        order = sorted(range(len(table.variables)), key=lambda at: variables.index(table.variables[at]))
        shape = [sizes[each] if each in table.variables else 1 for each in variables]
        total += table.costs.transpose(order).reshape(shape)
    return total
