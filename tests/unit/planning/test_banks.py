# SPDX-License-Identifier: Apache-2.0
"""Buffers that are used at once in different banks."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning.banks import apart, conflict_cost
from penstock.passes.planning.problem import Buffer, Pair, Plan, PlanError, Problem, height, validate
from penstock.passes.planning.registry import solve

BANK = 64


def drawn(random: Random) -> Problem:
    buffers: list[Buffer] = []
    for number in range(random.randint(2, 7)):
        lower = random.randint(0, 6)
        fixed = 16 * number if random.random() < 0.05 else None
        lives = ((lower, lower + random.randint(1, 6)),) if fixed is None else ((20 + number, 21 + number),)
        buffers.append(Buffer(f"b{number}", lives, 16 * random.randint(1, 4), 16, fixed))
    names = [buffer.id for buffer in buffers]
    drawn_pairs = (random.sample(names, 2) for _ in range(random.randint(1, 6)))
    pairs = [Pair(first, second, random.randint(1, 9)) for first, second in drawn_pairs]
    return Problem(tuple(buffers), random.choice([2, 4, 8]) * BANK, BANK, tuple(pairs))


def cost_by_bytes(problem: Problem, plan: Plan) -> int:
    """Bank by bank of every byte."""
    sizes = {buffer.id: buffer.size for buffer in problem.buffers}
    banks = {id: {at // BANK for at in range(plan.offsets[id], plan.offsets[id] + size)} for id, size in sizes.items()}
    return sum(pair.cost for pair in problem.pairs if banks[pair.first] & banks[pair.second])


@examples(200)
@given(st.integers(0, 2**32 - 1))
def test_what_is_moved_is_a_plan_that_costs_no_more_and_fits_where_it_did(seed: int) -> None:
    problem = drawn(Random(seed))
    before = solve(Problem(problem.buffers, problem.capacity)).plan
    assert before is not None
    after = apart(problem, before)
    validate(Problem(problem.buffers, max(height(problem, before), problem.capacity or 0)), after)
    assert conflict_cost(problem, before) == cost_by_bytes(problem, before)
    assert cost_by_bytes(problem, after) <= cost_by_bytes(problem, before)


def spread(problem: Problem) -> Plan:
    found = solve(problem).plan
    assert found is not None
    return apart(problem, found)


def least_cost(problem: Problem) -> int | None:
    """Of all plans on multiples of 16 bytes."""
    assert problem.capacity is not None
    best: int | None = None
    for offsets in product(*(range(0, problem.capacity - each.size + 1, 16) for each in problem.buffers)):
        plan = Plan(dict(zip((each.id for each in problem.buffers), offsets, strict=True)))
        try:
            validate(Problem(problem.buffers, problem.capacity), plan)
        except PlanError:
            continue
        cost = cost_by_bytes(problem, plan)
        best = cost if best is None else min(best, cost)
    return best


def test_most_small_problems_cost_what_the_best_of_all_plans_does() -> None:
    """It is a local search, and these memories are nearly full."""
    above = tried = 0
    for seed in range(400):
        problem = drawn(Random(seed))
        is_small = len(problem.buffers) <= 3 and problem.capacity == 2 * BANK
        least = least_cost(problem) if is_small and all(each.offset is None for each in problem.buffers) else None
        if least is None:
            continue
        found = spread(problem)
        above += cost_by_bytes(problem, found) > least
        tried += 1
    assert tried >= 40
    assert above * 8 <= tried, f"{above} of {tried}"


def test_operands_lie_in_different_banks_where_there_is_room() -> None:
    buffers = tuple(Buffer(name, ((0, 4),), 48, 16) for name in "abc")
    pairs = (Pair("a", "b", 3), Pair("b", "c", 2), Pair("a", "c", 1), Pair("a", "gone", 9))
    packed = solve(Problem(buffers, 3 * BANK)).plan
    assert packed is not None
    wide = Problem(buffers, 3 * BANK, BANK, pairs)
    assert conflict_cost(wide, packed) > 0
    assert solve(wide).plan == packed
    assert conflict_cost(wide, spread(wide)) == 0
    tight = Problem(buffers, 144, BANK, pairs)
    assert height(tight, spread(tight)) == 144


def test_pairs_need_the_size_of_a_bank() -> None:
    with pytest.raises(PlanError, match="how large they are"):
        Problem((), 64, pairs=(Pair("a", "b", 1),))
