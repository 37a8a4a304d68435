# SPDX-License-Identifier: Apache-2.0
"""Orders of least peak: against all orders of small problems, and what is claimed of large ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning.op_order import order_ops
from penstock.passes.planning.order_problem import OrderProblem, peak_of
from penstock.passes.planning.order_runs import runs_of


@st.composite
def problems(draw: st.DrawFn, most: int) -> OrderProblem:
    """Ops with a buffer each, which those read that come after them, and buffers that several ops write in turn."""
    count = draw(st.integers(1, most))
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 8, 20]), min_size=count, max_size=count))
    touched: list[set[int]] = [{op} for op in range(count)]
    before: list[frozenset[int]] = []
    for op in range(count):
        others = draw(st.sets(st.integers(0, op - 1), max_size=3)) if op else set[int]()
        before.append(frozenset(others))
        # What comes before for another reason, such as a write to the same bytes, need not be read.
        touched[op] |= draw(st.sets(st.sampled_from(sorted(others)))) if others else set[int]()
    for shared in draw(st.lists(st.sets(st.integers(0, count - 1), min_size=1, max_size=3), max_size=2)):
        for op in shared:
            touched[op].add(len(sizes))
        sizes.append(draw(st.sampled_from([2, 5])))
    inside = draw(st.lists(st.sampled_from([0, 0, 4]), min_size=count, max_size=count))
    return OrderProblem(tuple(sizes), tuple(frozenset(each) for each in touched), tuple(before), tuple(inside))


@st.composite
def problems_of_strips(draw: st.DrawFn, most: int) -> OrderProblem:
    """The same, of which some buffers are strips of larger ones, one behind the other in any order."""
    problem = draw(problems(most))
    ends = [0] * 3
    strips: list[tuple[int, int]] = []
    for number, size in enumerate(problem.sizes):
        whole = draw(st.integers(0, 3))
        strips.append((3 + number, 0) if whole == 3 else (whole, ends[whole]))
        if whole < 3:
            ends[whole] += size
    order = draw(st.permutations(range(len(problem.sizes))))
    place = {buffer: number for number, buffer in enumerate(order)}
    return replace(
        problem,
        sizes=tuple(problem.sizes[buffer] for buffer in order),
        touched=tuple(frozenset(place[buffer] for buffer in each) for each in problem.touched),
        strips=tuple(strips[buffer] for buffer in order),
    )


def least_peak(problem: OrderProblem) -> int:
    """By the definition of what is alive, over all sets of ops that may have been executed."""
    count = len(problem.touched)
    users = [
        {op for op, touched in enumerate(problem.touched) if each in touched} for each in range(len(problem.sizes))
    ]

    def during(done: frozenset[int], op: int) -> int:
        now = done | {op}
        alive = [each for each, ops in enumerate(users) if ops & now and ops - done]
        if not problem.strips:
            return problem.inside[op] + sum(problem.sizes[each] for each in alive)
        taken = {problem.strips[each][0]: set[int]() for each in alive}
        for each in alive:
            whole, low = problem.strips[each]
            taken[whole] |= {low, low + problem.sizes[each]}
        return problem.inside[op] + sum(max(each) - min(each) for each in taken.values())

    peaks = {frozenset[int](): 0}
    for _ in range(count):
        longer: dict[frozenset[int], int] = {}
        for done, peak in peaks.items():
            for op in set(range(count)) - done:
                if problem.before[op] <= done:
                    after = done | {op}
                    longer[after] = min(longer.get(after, 1 << 60), max(peak, during(done, op)))
        peaks = longer
    return peaks[frozenset(range(count))]


@given(problems(10))
@examples(200)
def test_ops_that_are_executed_as_one_cost_nothing(problem: OrderProblem) -> None:
    runs = runs_of(problem)
    order = [op for run in runs.ops for op in run]
    assert peak_of(problem, order) <= peak_of(problem, range(len(order)))
    assert order_ops(problem).peak == least_peak(problem)


def test_a_chain_is_one_run_up_to_where_it_leaves_least() -> None:
    # Three chains of a small, a large and a middle buffer, which a last op joins: one hill each.
    sizes = (1, 9, 4) * 3
    touched = [frozenset(range(first, place + 1)) for first in (0, 3, 6) for place in range(first, first + 3)]
    touched = [each if len(each) < 3 else each - {min(each)} for each in touched]
    before = [frozenset({op - 1} if op % 3 else set[int]()) for op in range(9)]
    joined = frozenset({2, 5, 8})
    problem = OrderProblem(sizes, (*touched, joined), (*before, joined), (0,) * 10)
    assert runs_of(problem).ops == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9,))


@given(problems(6))
@examples(400)
def test_the_peak_is_the_least_of_all_orders(problem: OrderProblem) -> None:
    outcome = order_ops(problem)
    assert outcome.is_optimal
    assert peak_of(problem, outcome.order) == outcome.peak == least_peak(problem)


@given(problems(6), st.integers(0, 3))
@examples(200)
def test_a_search_that_stops_early_says_no_more_than_it_knows(problem: OrderProblem, steps: int) -> None:
    outcome, least = order_ops(problem, steps), least_peak(problem)
    assert peak_of(problem, outcome.order) == outcome.peak
    assert outcome.bound <= least <= outcome.peak <= peak_of(problem, range(len(problem.touched)))


@given(problems_of_strips(7), st.sampled_from([0, 3, 100_000]))
@examples(300)
def test_all_between_strips_that_are_alive_takes_room(problem: OrderProblem, steps: int) -> None:
    outcome, least, before = (
        order_ops(problem, steps),
        least_peak(problem),
        peak_of(problem, range(len(problem.touched))),
    )
    assert peak_of(problem, outcome.order) == outcome.peak
    assert outcome.bound <= least <= outcome.peak <= before
    assert outcome.peak < before or outcome.order == tuple(range(len(problem.touched)))


@given(problems(4), problems(4), st.integers(0, 12))
@examples(200)
def test_what_is_found_of_one_part_bounds_no_other(left: OrderProblem, right: OrderProblem, steps: int) -> None:
    ops, buffers = len(left.touched), len(left.sizes)
    touched = (*left.touched, *(frozenset(each + buffers for each in part) for part in right.touched))
    before = (*left.before, *(frozenset(each + ops for each in part) for part in right.before))
    problem = OrderProblem((*left.sizes, *right.sizes), touched, before, (*left.inside, *right.inside))
    assert order_ops(problem, steps).bound <= least_peak(problem)


@given(problems(40))
@examples(40)
def test_large_problems_get_an_order_that_is_no_worse_again_and_again(problem: OrderProblem) -> None:
    outcome = order_ops(problem, 200)
    assert outcome == order_ops(problem, 200)
    assert (
        outcome.bound <= peak_of(problem, outcome.order) == outcome.peak <= peak_of(problem, range(len(problem.before)))
    )


def test_an_order_that_is_as_good_stays() -> None:
    touched = (frozenset({0}), frozenset({1}), frozenset({0, 1}))
    problem = OrderProblem((4, 4), touched, (frozenset[int](), frozenset[int](), frozenset({0, 1})), (0, 0, 0))
    assert order_ops(problem).order == (0, 1, 2)


@pytest.mark.parametrize("order", [(1, 0), (0,), (0, 0), (0, 1, 1)])
def test_what_is_no_order_has_no_peak(order: tuple[int, ...]) -> None:
    problem = OrderProblem((1, 1), (frozenset({0}), frozenset({0, 1})), (frozenset(), frozenset({0})), (0, 0))
    with pytest.raises(ValueError, match=r"an order has each op once|comes before what it needs"):
        peak_of(problem, order)
