# SPDX-License-Identifier: Apache-2.0
"""
What is computed again, beside the least work that any schedule has: the shortest way over all states of memory, and the
integer program of Checkmate, which HiGHS solves.
"""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from penstock.passes.planning.remat import RematOp, RematProblem, least_work, peak_of


def least_of_all(problem: RematProblem, limit: int) -> int | None:
    """
    The least work of a schedule within a limit, in any order; None if there is none.

    A state is what is in memory and which results have been made; a step drops a value or executes an op.
    """
    results = frozenset(number for number, op in enumerate(problem.ops) if op.is_result)
    start = (frozenset[int](), frozenset[int]())
    best = {start: 0}
    waiting = [(0, 0, start)]
    while waiting:
        work, _, state = heapq.heappop(waiting)
        if work > best[state]:
            continue
        held, done = state
        if done == results:
            return work
        steps = [(0, (held - {value}, done)) for value in sorted(held)]
        for number, op in enumerate(problem.ops):
            after = held | set(op.makes)
            if held.issuperset(op.reads) and sum(problem.sizes[value] for value in after) + op.inside <= limit:
                steps.append((op.work, (after, done | {number} if op.is_result else done)))
        for more, other in steps:
            if work + more < best.get(other, work + more + 1):
                best[other] = work + more
                heapq.heappush(waiting, (work + more, len(best), other))
    return None


def training_step(rng: random.Random, layers: int) -> RematProblem:
    """A chain forward, and one backward, of which each op reads what the forward one made, and some its operand too."""
    ops = [RematOp((number - 1,) if number else (), (number,), rng.randint(1, 20)) for number in range(layers)]
    for number in range(layers, 2 * layers):
        forward = 2 * layers - 1 - number
        reads = {number - 1, forward, *([forward - 1] if forward and rng.random() < 0.5 else [])}
        is_last = number == 2 * layers - 1
        ops.append(RematOp(tuple(sorted(reads)), (number,), rng.randint(1, 20), is_result=is_last))
    return RematProblem(tuple(rng.randint(1, 8) for _ in ops), tuple(ops))


def test_training_steps_are_computed_with_least_work() -> None:
    rng = random.Random(0)
    tried = optimal = 0
    for _ in range(40):
        problem = training_step(rng, rng.randint(3, 4))
        for limit in range(problem.bound, peak_of(problem, problem.given), 2):
            least, found = least_of_all(problem, limit), least_work(problem, limit)
            if least is None:
                assert found is None, "the search fits what no schedule does"
                continue
            tried += 1
            if found is not None:
                assert problem.work(found) >= least, "the search takes less than the least work"
                optimal += problem.work(found) == least
    assert tried > 50
    assert optimal >= 0.9 * tried


def least_in_stages(highspy: Any, problem: RematProblem, limit: int) -> int | None:
    """
    The least work within a limit where ops are executed for the first time in the order in which they stand.

    The integer program of Jain et al. (MLSys 2020): stage t ends in the first execution of op t, for which any op
    before it may be executed again; `kept` are the values there are when a stage begins. Each op makes one value.
    """
    count = len(problem.ops)
    users = [[op for op in range(count) if value in problem.ops[op].reads] for value in range(count)]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    run = [[highs.addBinary() for _ in range(count)] for _ in range(count)]
    kept = [[highs.addBinary() for _ in range(count)] for _ in range(count + 1)]
    for stage in range(count):
        highs.addConstr(run[stage][stage] == 1)
        for op in range(count):
            if op > stage:
                highs.addConstr(run[stage][op] == 0)
            if op >= stage:
                highs.addConstr(kept[stage][op] == 0)
            highs.addConstr(kept[stage + 1][op] <= run[stage][op] + kept[stage][op])
            for value in problem.ops[op].reads:
                highs.addConstr(run[stage][op] <= run[stage][value] + kept[stage][value])
        alive = highs.qsum(problem.sizes[value] * kept[stage][value] for value in range(count))
        for op in range(stage + 1):
            alive = alive + problem.sizes[op] * run[stage][op]
            highs.addConstr(alive + problem.ops[op].inside <= limit)
            for value in (*problem.ops[op].reads, op):
                # A value is dropped after an op that reads or makes it, if nothing in the stage or later reads it.
                dropped = highs.addBinary()
                later = [run[stage][user] for user in users[value] if op < user <= stage]
                hazards = (1 - run[stage][op]) + kept[stage + 1][value] + highs.qsum([*later, 0 * run[stage][op]])
                highs.addConstr((2 + len(later)) * (1 - dropped) >= hazards)
                alive = alive - problem.sizes[value] * dropped
    highs.minimize(highs.qsum(op.work * run[stage][n] for stage in range(count) for n, op in enumerate(problem.ops)))
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return round(highs.getInfo().objective_function_value)


def test_an_integer_program_says_what_least_work_is() -> None:
    highspy: Any = pytest.importorskip("highspy")
    rng = random.Random(1)
    tried = same = reached = 0
    for _ in range(5):
        problem = training_step(rng, rng.randint(3, 4))
        for limit in range(problem.bound, peak_of(problem, problem.given), 2):
            in_stages, least = least_in_stages(highspy, problem, limit), least_of_all(problem, limit)
            found = least_work(problem, limit)
            if in_stages is None or least is None:
                assert in_stages is None, "an integer program finds what no schedule does"
                continue
            assert in_stages >= least
            tried += 1
            same += in_stages == least
            reached += found is not None and problem.work(found) <= in_stages
    assert tried >= 5
    assert same >= 0.9 * tried
    assert reached >= 0.9 * tried
