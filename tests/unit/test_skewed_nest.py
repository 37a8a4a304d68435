# SPDX-License-Identifier: Apache-2.0
"""Nests of steps whose loops are skewed, and the time that they take."""

from __future__ import annotations

from dataclasses import replace

from penstock.passes.planning.pipelining import TimedLoop, TimedStep, time_of
from penstock.passes.planning.skewed_nest import skewed

LOAD = TimedStep("dma", 10, writes=("x",), opens=("x",))
RUN = TimedStep("array", 100, reads=("x",), writes=("y",), opens=("y",))
STORE = TimedStep("dma", 10, reads=("y",))
TWO = {"x": 2, "y": 2}


def test_loads_go_before_the_store_of_the_iteration_before() -> None:
    loop = TimedLoop(4, (LOAD, RUN, STORE))
    late = replace(STORE, ages={"y": 1})
    parts = (LOAD, RUN, TimedLoop(3, (LOAD, RUN, late)), STORE)
    assert skewed([loop], TWO) == parts
    assert time_of([loop], TWO).cycles == 4 * 120
    assert time_of(parts, TWO).cycles == 10 + 4 * 100 + 10


def test_with_one_slot_nothing_is_skewed() -> None:
    loop = TimedLoop(4, (LOAD, RUN, STORE))
    assert skewed([loop], {"x": 2}) == (loop,)
    assert skewed([TimedLoop(1, loop.body)], TWO) == (TimedLoop(1, loop.body),)


def test_what_an_iteration_needs_of_the_one_before_stays_in_place() -> None:
    loop = TimedLoop(4, (LOAD, RUN, STORE, TimedStep("dma", 1, writes=("sum",))))
    reading = replace(loop, body=(replace(LOAD, reads=("sum",)), *loop.body[1:]))
    assert len(skewed([loop], TWO)) > 1
    assert skewed([reading], TWO) == (reading,)


def test_the_outer_loop_is_skewed_and_the_inner_one_goes_ahead_as_far_as_it_has_slots() -> None:
    inner = TimedLoop(6, (LOAD, replace(RUN, opens=())))
    first = TimedStep("array", 1, writes=("y",), opens=("y",))
    found = skewed([TimedLoop(4, (first, inner, STORE))], TWO)
    ahead, rest = replace(inner, trips=2), replace(inner, trips=4)
    late = replace(STORE, ages={"y": 1})
    assert found == (first, inner, TimedLoop(3, (first, ahead, late, rest)), STORE)


def test_pieces_that_share_a_slot_all_go_ahead() -> None:
    pieces = TimedLoop(6, (replace(LOAD, opens=()),), opens=("x",))
    found = skewed([TimedLoop(4, (pieces, RUN, STORE))], TWO)
    assert found[2] == TimedLoop(3, (pieces, RUN, replace(STORE, ages={"y": 1})))


def test_a_loop_of_which_the_model_is_not_settled_goes_on_at_its_mean_rate() -> None:
    """Three slots are taken in turn: two iterations out of three wait for nothing."""
    load, run = TimedStep("load", 32, "ext", 200, 4, writes=("x",), opens=("x",)), TimedStep("sfu", 26, reads=("x",))
    counts = [time_of([TimedLoop(trips, (load, run))], {"x": 3}).cycles for trips in (48, 48 + 240)]
    assert counts[1] - counts[0] == 240 // 3 * (32 + 200 + 26)


def test_only_loops_without_loops_in_them_are_skewed_if_that_is_wanted() -> None:
    inner = TimedLoop(4, (LOAD, RUN, STORE))
    outer = TimedLoop(3, (RUN, inner, STORE))
    (around,) = skewed([outer], TWO, "inner")
    assert isinstance(around, TimedLoop)
    assert around.body == (RUN, *skewed([inner], TWO), STORE)


def test_what_only_the_last_part_needs_stays_there() -> None:
    clear = TimedStep("array", 5, writes=("sum",))
    pad = TimedStep("array", 5, writes=("x",), opens=("x",))
    load, run = replace(LOAD, opens=()), replace(RUN, reads=("x", "sum"), writes=("sum",), opens=())
    nest = skewed([TimedLoop(4, (clear, pad, load, run))], {"x": 2})
    late = replace(run, ages={"x": 1})
    assert nest == (pad, load, TimedLoop(3, (pad, load, clear, late)), clear, run)


def test_a_loop_around_one_that_is_skewed_begins_its_next_iteration_before_the_last_part() -> None:
    inner = TimedLoop(2, (LOAD, RUN, STORE))
    (first, run, *within, last) = skewed([inner], TWO)
    nest = skewed([TimedLoop(3, (inner,))], TWO, "nested")
    assert nest == (first, run, *within, TimedLoop(2, (first, run, replace(last, ages={"y": 1}), *within)), last)
    assert time_of(nest, TWO).cycles < time_of(skewed([TimedLoop(3, (inner,))], TWO, "inner"), TWO).cycles
