# SPDX-License-Identifier: Apache-2.0
"""The exact planner: its arrays, bounds, runs, proofs and limits."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import islice
from random import Random

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.bounds import strong_lower_bound
from penstock.passes.planning.exact import Minimiser, Search, Switches, Verdict, plan
from penstock.passes.planning.instance import compact
from penstock.passes.planning.native import is_available
from penstock.passes.planning.problem import (
    AllowedOffsets,
    Buffer,
    Interval,
    Limits,
    Outcome,
    PlanError,
    Problem,
    height,
    lower_bound,
    validate,
)
from penstock.passes.planning.search_orders import FITS, MEASURES, RULES, luby, runs

pytestmark = pytest.mark.skipif(not is_available(), reason="needs a C compiler")


def problem_of(*rows: tuple[int, int, int], capacity: int | None = None) -> Problem:
    return Problem(tuple(Buffer(str(i), ((lo, up),), size) for i, (lo, up, size) in enumerate(rows)), capacity)


def guillotine(seed: int, count: int, tall: int = 4096, long: int = 100_000) -> Problem:
    """A full rectangle of moments and bytes, cut through again and again: it fits `tall` bytes without a gap."""
    random = Random(seed)
    pieces = [(0, long, 0, tall)]
    while len(pieces) < count:
        pieces.sort(key=lambda p: (p[1] - p[0]) * (p[3] - p[2]) * random.random())
        lower, upper, low, high = pieces.pop()
        if random.random() < 0.5 and upper - lower > 1:
            cut = random.randrange(lower + 1, upper)
            pieces += [(lower, cut, low, high), (cut, upper, low, high)]
        elif high - low > 1:
            cut = random.randrange(low + 1, high)
            pieces += [(lower, upper, low, cut), (lower, upper, cut, high)]
        else:
            pieces.append((lower, upper, low, high))
    random.shuffle(pieces)
    return problem_of(*((lower, upper, high - low) for lower, upper, low, high in pieces), capacity=tall)


def loose(seed: int, count: int) -> Problem:
    """What is left of a guillotine when some pieces are taken out: no bound is met easily."""
    full = guillotine(seed, count)
    random = Random(seed)
    return Problem(tuple(buffer for buffer in full.buffers if random.random() < 0.93), full.capacity)


def checked(problem: Problem, outcome: Outcome) -> int:
    """The height of a valid plan."""
    assert outcome.plan is not None
    validate(Problem(problem.buffers, bank_size=problem.bank_size), outcome.plan)
    return height(problem, outcome.plan)


# Arrays


def test_a_unit_divides_all_sizes_and_places() -> None:
    [part] = compact(problem_of((0, 2, 48), (1, 3, 72))).parts
    assert part.unit == 24
    assert part.size.tolist() == [2, 3]
    fixed = Problem((Buffer("a", ((0, 2),), 48), Buffer("b", ((1, 3),), 72, offset=36)))
    assert compact(fixed).parts[0].unit == 12


def test_sizes_are_rounded_to_what_the_alignments_around_make_of_them() -> None:
    aligned = Problem(tuple(Buffer(str(i), ((i, i + 2),), 5, alignment=8) for i in range(3)))
    [part] = compact(aligned).parts
    assert (part.unit, part.size.tolist(), part.align.tolist()) == (8, [1, 1, 1], [1, 1, 1])
    mixed = Problem((*aligned.buffers[:2], replace(aligned.buffers[2], alignment=1)))
    [part] = compact(mixed).parts
    # the first meets only the second, which meets the one that lies anywhere
    assert (part.size * part.unit).tolist() == [8, 5, 5]


def test_sections_that_say_nothing_new_are_left_out() -> None:
    [part] = compact(problem_of((0, 9, 1), (1, 3, 1), (2, 5, 1), (6, 8, 1))).parts
    assert [part.members[index].tolist() for index in range(len(part.members))] == [[0, 1, 2], [0, 3]]
    assert part.near[0].tolist() == [1, 2, 3]
    assert part.near[3].tolist() == [0]


def test_what_nothing_outlives_are_parts_of_their_own() -> None:
    instance = compact(problem_of((0, 2, 1), (5, 7, 1), (1, 3, 1), (3, 4, 1)))
    assert [[buffer.id for buffer in part.buffers] for part in instance.parts] == [["0", "2"], ["3"], ["1"]]


def test_a_buffer_with_windows_is_pieces_tied_to_each_other() -> None:
    spans: tuple[Interval, ...] = ((0, 2), (3, 4), (5, 7))
    windowed = Buffer("w", spans, 8, windows=((0, 8), (6, 8), (0, 8)))
    [part] = compact(Problem((windowed, Buffer("o", ((1, 6),), 6)))).parts
    assert [buffer.id for buffer in part.buffers] == ["w", "w", "o"]
    assert part.tie.tolist() == [1, 0, 2]
    assert (part.size * part.unit).tolist() == [8, 2, 6]
    assert (part.shift * part.unit).tolist() == [0, 6, 0]


def test_banks_without_a_bank_size_are_refused() -> None:
    with pytest.raises(PlanError, match="buffer a "):
        compact(Problem((Buffer("a", ((0, 1),), 1, banks=(0,)),)))


def test_allowed_offsets_are_those_of_banks_alignment_and_fixed_offset_together() -> None:
    buffer = Buffer("a", ((0, 1),), 6, alignment=4, banks=(2, 0))
    assert AllowedOffsets.of(buffer, 10).ranges == ((0, 4), (20, 24))
    # only 12 is aligned in bank 1, and from there the buffer would leave it
    assert AllowedOffsets.of(replace(buffer, size=9, banks=(1,)), 10).ranges == ()
    assert AllowedOffsets.of(replace(buffer, offset=20), 10).ranges == ((20, 20),)
    assert AllowedOffsets.of(replace(buffer, offset=8), 10).ranges == ()


# Bounds


def test_the_bound_knows_what_alignment_wastes() -> None:
    aligned = Problem(tuple(Buffer(str(i), ((0, 1),), 5, alignment=8) for i in range(3)))
    assert lower_bound(aligned) == 15
    assert strong_lower_bound(aligned, compact(aligned)) == 21
    assert checked(aligned, plan(aligned, Limits())) == 21


def test_the_bound_knows_what_banks_force_upwards() -> None:
    high = Problem(tuple(Buffer(str(i), ((0, 1),), 5, banks=(2,)) for i in range(2)), bank_size=16)
    assert strong_lower_bound(high, compact(high)) == 42


# Runs


def test_luby_lengths() -> None:
    assert [luby(i) for i in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]


def test_each_fixed_run_is_another_and_the_seed_decides_those_after_them() -> None:
    [part] = compact(loose(0, 120)).parts
    fixed = len(MEASURES) * len(RULES) * len(FITS)
    first, again, other = ([next(each) for _ in range(fixed + 5)] for each in (runs(part, s) for s in (1, 1, 2)))
    assert len({(run.rank.tobytes(), run.rule, run.fit) for run in first[:fixed]}) == fixed
    assert all(one.rank.tolist() == two.rank.tolist() for one, two in zip(first, again, strict=True))
    assert all(one.rank.tolist() == two.rank.tolist() for one, two in zip(first[:fixed], other[:fixed], strict=True))
    assert all(one.rank.tolist() != two.rank.tolist() for one, two in zip(first[fixed:], other[fixed:], strict=True))


def test_what_is_drawn_begins_with_the_shortest_lengths_again_each_for_two_runs() -> None:
    [part] = compact(loose(0, 120)).parts
    fixed = len(MEASURES) * len(RULES) * len(FITS)
    found = [next(each) for each in [runs(part, 1)] for _ in range(fixed + 60)]
    shortest = found[0].nodes
    assert [run.nodes for run in found[fixed:]] == [luby(1 + at // 2) * shortest for at in range(60)]
    # Nothing is drawn once for the whole seed.
    assert {run.rule for run in found[fixed:]} == set(RULES)
    assert {run.fit for run in found[fixed:]} == set(FITS)
    assert len({run.rank.tobytes() for run in found}) == len(found) - fixed + len(MEASURES)


def test_lanes_share_out_the_fixed_runs_and_draw_their_own() -> None:
    [part] = compact(loose(0, 120)).parts
    fixed = len(MEASURES) * len(RULES) * len(FITS)
    whole = [next(each) for each in [runs(part, 1)] for _ in range(fixed)]
    lanes = [list(islice(runs(part, 1, lane=lane, lanes=2), fixed)) for lane in range(2)]
    for number, run in enumerate(whole):
        own = lanes[number % 2][number // 2]
        assert (own.rank.tolist(), own.rule, own.fit) == (run.rank.tolist(), run.rule, run.fit)
    assert all(one.rank.tolist() != two.rank.tolist() for one, two in zip(*lanes, strict=True))


# The search


@pytest.mark.parametrize("steps", [20_000, 2_000_000])
def test_threads_change_neither_the_plan_nor_the_steps(steps: int) -> None:
    for problem in (guillotine(3, 60), loose(1, 120), loose(2, 60)):
        outcomes = [plan(problem, Limits(steps=steps, threads=threads)) for threads in (1, 2, 5)]
        assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize("seed", range(3))
def test_perfect_packings_of_150_pieces_are_found(seed: int) -> None:
    problem = guillotine(seed, 150)
    outcome = plan(problem, Limits())
    assert checked(problem, outcome) == outcome.bound == 4096


def test_slices_do_not_change_what_is_found() -> None:
    problem = guillotine(3, 40)
    whole, sliced = Search(compact(problem), 4096), Search(compact(problem), 4096)
    whole.advance(10_000_000)
    while sliced.verdict is Verdict.OPEN:
        sliced.advance(97)
    assert whole.verdict is Verdict.FOUND
    assert (whole.steps, whole.nodes, whole.plan) == (sliced.steps, sliced.nodes, sliced.plan)


def test_a_part_that_a_known_plan_solves_is_taken_from_it() -> None:
    problem = problem_of((0, 2, 3), (1, 3, 4), (5, 7, 2), (6, 8, 2))
    known = plan(problem, Limits()).plan
    assert known is not None
    search = Search(compact(problem), 7, known=known)
    assert (search.verdict, search.steps) == (Verdict.FOUND, 0)
    assert search.plan == known
    # the first part does not fit, whatever the second does
    assert Search(compact(problem), 6, known=known).verdict is Verdict.IMPOSSIBLE


def test_what_is_tied_by_windows_may_come_to_rest_on_what_still_lies_far_below_it() -> None:
    windowed = (
        Buffer("a", ((0, 3),), 6, 4, windows=((2, 5),)),
        Buffer("b", ((1, 3), (4, 5)), 12, 2, windows=((11, 12), (0, 8))),
        Buffer("c", ((0, 4),), 6, 4),
        Buffer("d", ((0, 2), (3, 5)), 6, 2),
        Buffer("e", ((0, 2),), 6, 3, windows=((4, 5),)),
        Buffer("f", ((0, 1), (2, 4)), 9, 1, windows=((5, 6), (1, 7))),
    )
    outcome = plan(Problem(windowed), Limits())
    assert outcome.bound == checked(Problem(windowed), outcome) == 22


def test_no_plan_before_one_is_found() -> None:
    with pytest.raises(ValueError, match="nothing was found"):
        _ = Search(compact(guillotine(0, 20)), 4096).plan


# The planner


def test_nothing_fits_where_the_bound_says_that_it_might() -> None:
    # ten bytes are alive at most, and two alive at both ends hold the others apart
    ends = (Buffer("low", ((0, 1),), 3, offset=2), Buffer("high", ((1, 2),), 3, offset=4))
    problem = Problem((*ends, Buffer("long", ((0, 2),), 5)), capacity=10)
    assert strong_lower_bound(problem, compact(problem)) <= 10
    outcome = plan(problem, Limits())
    assert outcome.infeasible
    assert outcome.bound == checked(problem, outcome) == 12


def test_contradicting_places_are_proved_to_have_no_plan_at_all() -> None:
    both = tuple(Buffer(name, ((0, 1),), 4, banks=(0,)) for name in "ab")
    outcome = plan(Problem(both, bank_size=6), Limits())
    assert outcome.plan is None
    assert outcome.infeasible


def test_the_same_steps_and_seed_give_the_same_plan_and_no_more_steps_are_taken() -> None:
    problem = loose(1, 250)
    outcomes = [plan(problem, Limits(steps=200_000, seed=4)) for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    assert checked(problem, outcomes[0]) > outcomes[0].bound
    # a round is taken to its end
    assert 200_000 <= outcomes[0].steps < 260_000


def test_without_a_compiler_it_refuses(without_compiler: None) -> None:
    with pytest.raises(UserError, match='the planner "exact" runs in C: no C compiler is found'):
        plan(guillotine(5, 40), Limits(steps=100_000))


def test_it_stops_at_what_is_good_enough() -> None:
    problem = loose(1, 250)
    first = plan(problem, Limits(steps=200_000))
    good = plan(problem, Limits(steps=20_000_000, good_enough=checked(problem, first)))
    assert good.steps < 1_000_000
    assert first.bound < checked(problem, good) <= checked(problem, first)


def test_it_starts_from_hints_that_are_a_plan_and_only_from_those() -> None:
    problem = guillotine(1, 60)
    found = plan(problem, Limits()).plan
    assert found is not None
    hinted = tuple(replace(buffer, hint=found.offsets[buffer.id]) for buffer in problem.buffers)
    outcome = plan(Problem(hinted), Limits())
    assert (outcome.plan, outcome.steps) == (found, 0)
    wrong = (replace(hinted[0], hint=(hinted[0].hint or 0) + 1), *hinted[1:])
    outcome = plan(Problem(wrong), Limits())
    assert outcome.steps > 0
    assert checked(Problem(wrong), outcome) == 4096


def test_it_keeps_to_its_seconds_and_what_it_found_is_valid() -> None:
    outcome = plan(loose(1, 200), Limits(seconds=0.2))
    checked(loose(1, 200), outcome)


def test_empty_buffers_and_empty_problems_take_no_bytes() -> None:
    assert plan(Problem(()), Limits()).plan is not None
    problem = problem_of((0, 4, 0), (1, 2, 0))
    outcome = plan(problem, Limits())
    assert (outcome.bound, checked(problem, outcome)) == (0, 0)


def test_each_switch_is_worth_something_or_changes_nothing() -> None:
    problem = problem_of((0, 3, 4), (1, 5, 3), (2, 6, 5), (4, 8, 4), (5, 8, 2), (0, 2, 6), (6, 8, 3))
    usual = Minimiser(problem, Limits()).run()
    for field in fields(Switches):
        assert Minimiser(problem, Limits(), Switches(**{field.name: False})).run().bound == usual.bound
