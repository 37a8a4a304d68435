"""Orders of least peak: against all orders of small problems, and what is claimed of large ones."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning.op_order import OrderProblem, order_ops, peak_of


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


def least_peak(problem: OrderProblem) -> int:
    peaks: list[int] = []
    for order in permutations(range(len(problem.touched))):
        place = {op: number for number, op in enumerate(order)}
        if all(place[other] < place[op] for op, others in enumerate(problem.before) for other in others):
            peaks.append(peak_of(problem, order))
    return min(peaks)


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
