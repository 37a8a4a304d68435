# SPDX-License-Identifier: Apache-2.0
"""Random problems of on-chip allocation: every answer is valid, and the best of all is found."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.planning import registry as planners
from penstock.passes.planning.on_chip.pinning import unlimited
from penstock.passes.planning.on_chip.problem import (
    OnChipAllocation,
    OnChipProblem,
    ResidentRun,
    RunSpans,
    Tensor,
    TensorAccess,
    memory,
    movements,
    traffic,
)
from penstock.passes.planning.on_chip.registry import Options, decide, strategy_names
from penstock.passes.planning.on_chip.selection import cheapest, cost
from penstock.passes.planning.problem import Buffer, Limits, Outcome, Plan, PlanError, Problem
from penstock.passes.planning.registry import Planner

needs_highs = pytest.mark.skipif(importlib.util.find_spec("highspy") is None, reason="HiGHS is not installed")
PROVING = ("milp", "sweep")
"""The strategies that find the least."""


@st.composite
def tensors(draw: st.DrawFn, number: int, steps: int, most: int, strict: bool) -> Tensor:
    at = sorted(draw(st.sets(st.integers(0, steps - 1), min_size=1, max_size=most)))
    size = draw(st.integers(0, 12))
    accesses: list[TensorAccess] = []
    for step in at:
        may_reside = draw(st.sampled_from([True, True, True, False]))
        accesses.append(
            TensorAccess(
                step,
                draw(st.none() | st.integers(0, 30)),
                may_reside,
                not (strict and may_reside and draw(st.integers(0, 9)) == 0),
                draw(st.sampled_from([False, False, False, True])),
                draw(st.sampled_from([0, 0, 1, 3])),
            )
        )
    return Tensor(
        f"t{number}",
        size,
        tuple(accesses),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([1, 1, 2, 4])),
        draw(st.none() | st.integers(0, 12)),
        draw(st.sampled_from(["conv", "pool"])),
    )


@st.composite
def problems(draw: st.DrawFn, count: int = 8, most: int = 4, steps: int = 8, strict: bool = True) -> OnChipProblem:
    numbers = range(draw(st.integers(0, count)))
    found = tuple(draw(tensors(number, steps, most, strict)) for number in numbers)
    return OnChipProblem(
        found,
        draw(st.integers(4, 40)),
        tuple(draw(st.lists(st.integers(0, 4), max_size=steps))),
        draw(st.sampled_from([1, 2])),
        tuple(draw(st.lists(st.floats(0, 20), max_size=steps))),
    )


def all_spans(tensor: Tensor) -> Iterator[RunSpans]:
    """Every choice of runs that a tensor may have."""
    count = len(tensor.accesses)
    for resident in product((False, True), repeat=count):
        if any(
            not (access.may_reside if here else access.may_stream)
            for access, here in zip(tensor.accesses, resident, strict=True)
        ):
            continue
        gaps = [index for index, (one, other) in enumerate(pairwise(resident)) if one and other]
        for kept in product((False, True), repeat=len(gaps)):
            keeps = {gap for gap, each in zip(gaps, kept, strict=True) if each}
            spans: list[tuple[int, int]] = []
            for index, here in enumerate(resident):
                if here and index - 1 in keeps:
                    spans[-1] = (spans[-1][0], index)
                elif here:
                    spans.append((index, index))
            yield tuple(spans)


def packed(buffers: Sequence[Buffer], capacity: int) -> Plan | None:
    """A plan that fits, by trying every place of every buffer, in the order of their beginnings."""
    order = sorted(buffers, key=lambda buffer: (buffer.lower, -buffer.size))
    taken: dict[int, int] = {}
    """Of each step a bit for each byte."""
    offsets: dict[str, int] = {}

    def fill(index: int) -> bool:
        if index == len(order):
            return True
        buffer = order[index]
        steps = range(buffer.lower, buffer.upper)
        for offset in range(0, capacity - buffer.size + 1, buffer.alignment):
            bits = ((1 << buffer.size) - 1) << offset
            if any(taken.get(step, 0) & bits for step in steps):
                continue
            for step in steps:
                taken[step] = taken.get(step, 0) | bits
            offsets[buffer.id] = offset
            if fill(index + 1):
                return True
            for step in steps:
                taken[step] &= ~bits
            if not buffer.size:
                break  # it is nowhere in the way
        return False

    return Plan(offsets) if fill(0) else None


def try_all(problem: Problem, limits: Limits) -> Outcome:
    """The same as a planner."""
    plan = packed(problem.buffers, problem.capacity or 0)
    return Outcome(plan, infeasible=plan is None)


def try_all_by_any_name(name: str) -> Planner:
    """For the place of the registry's."""
    return try_all


def least(problem: OnChipProblem) -> int | None:
    """The fewest bytes of any answer, by trying all of them, the cheapest first; None if there is none."""
    choices = product(*(list(all_spans(tensor)) for tensor in problem.tensors))
    priced = [(sum(map(cost, problem.tensors, choice)), choice) for choice in choices]
    for bytes_moved, choice in sorted(priced, key=lambda each: each[0]):
        runs = (
            ResidentRun(tensor.id, first, last, 0)
            for tensor, spans in zip(problem.tensors, choice, strict=True)
            for first, last in spans
        )
        packing, _ = memory(problem, OnChipAllocation(tuple(runs)))
        if packed(packing.buffers, problem.capacity) is not None:
            return bytes_moved
    return None


@needs_highs
@examples(40)
@given(problems())
def test_every_strategy_gives_a_valid_answer_and_none_a_better_one_than_was_proved(problem: OnChipProblem) -> None:
    answers: dict[str, OnChipAllocation] = {}
    for name in strategy_names():
        try:
            answers[name] = decide(problem, name)  # which validates it
        except PlanError:
            continue  # what has to be on chip does not fit
    for proving in PROVING:
        if proving in answers:
            assert all(answers[proving].bound <= answer.off_chip_bytes for answer in answers.values())
            if answers[proving].is_optimal:
                assert all(answers[proving].off_chip_bytes <= each.off_chip_bytes for each in answers.values())
    for answer in answers.values():
        assert unlimited(problem).off_chip_bytes <= answer.off_chip_bytes
    for name in {"none", *PROVING} & answers.keys():
        assert {"none", *PROVING} <= answers.keys(), f"{name} has an answer"


@needs_highs
@examples(150)
@given(problems(count=3, most=3, steps=5), st.sampled_from(PROVING))
def test_the_proved_answer_is_the_least_of_all(problem: OnChipProblem, name: str) -> None:
    expected = least(problem)
    try:
        with mock.patch.object(planners, "planner", try_all_by_any_name):
            answer = decide(problem, name)
    except PlanError:
        assert expected is None
        return
    assert expected is not None
    assert answer.off_chip_bytes == expected
    assert answer.is_optimal


def moves(tensor: Tensor, spans: RunSpans) -> Iterator[tuple[int, int]]:
    """A second opinion: what a tensor with these runs moves over the edge of the chip, as (step, bytes)."""
    next_index = 0
    last_index = len(tensor.accesses) - 1
    for first, last in spans:
        for index in range(next_index, first):
            yield tensor.accesses[index].step, tensor.streamed(index)
        if first > 0 or tensor.source:
            yield tensor.accesses[first].step, tensor.moved
        written = [index for index in range(first, last + 1) if tensor.writes(index)]
        if written and (last < last_index or tensor.output):
            yield tensor.accesses[written[-1]].step, tensor.moved
        next_index = last + 1
    for index in range(next_index, last_index + 1):
        yield tensor.accesses[index].step, tensor.streamed(index)


@examples(100)
@given(problems(count=1, most=5), st.data())
def test_the_runs_of_one_tensor_cost_what_is_counted_and_the_cheapest_are_found(
    problem: OnChipProblem, data: st.DataObject
) -> None:
    prices = data.draw(st.lists(st.integers(0, 3), min_size=problem.steps, max_size=problem.steps))

    def price(tensor: Tensor, spans: RunSpans) -> int:
        resident = {index for first, last in spans for index in range(first, last + 1)}
        places = sum(
            tensor.size * prices[step]
            for first, last in spans
            for step in range(tensor.accesses[first].step, tensor.accesses[last].step + 1)
        )
        staged = sum(
            access.staging * prices[access.step] for at, access in enumerate(tensor.accesses) if at not in resident
        )
        return cost(tensor, spans) + places + staged

    for tensor in problem.tensors:
        choices = list(all_spans(tensor))
        for spans in choices:
            found = OnChipAllocation(tuple(ResidentRun(tensor.id, first, last, 0) for first, last in spans))
            assert traffic(problem, found) == {tensor.id: cost(tensor, spans)}
            counted = sorted((each.step, each.bytes) for each in movements(problem, found))
            assert counted == sorted(moves(tensor, spans))
        value, spans = cheapest(tensor, prices)
        assert spans in choices
        assert value == price(tensor, spans) == min(price(tensor, each) for each in choices)


@examples(40)
@given(problems(strict=False), st.integers(1, 4))
def test_learning_from_more_runs_of_the_program_keeps_answers_valid(problem: OnChipProblem, runs: int) -> None:
    try:
        again = decide(problem, "onsram-eager", Options(iterations=runs))
    except PlanError:
        assert max(problem.workspace, default=0) > 0 or any(a.staging for t in problem.tensors for a in t.accesses)
        return
    assert again == decide(problem, "onsram-eager", Options(iterations=runs))
