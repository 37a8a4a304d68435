# SPDX-License-Identifier: Apache-2.0
"""On-chip allocation as plain data: what the checks refuse, what movements are counted, what the strategies decide."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning import registry as planners
from penstock.passes.planning.on_chip import registry, sweep
from penstock.passes.planning.on_chip.milp import Highs, LinearProgram
from penstock.passes.planning.on_chip.pinning import step_bytes, step_time, unlimited
from penstock.passes.planning.on_chip.problem import (
    OnChipAllocation,
    OnChipProblem,
    ResidentRun,
    Tensor,
    TensorAccess,
    movements,
    traffic,
    validate_allocation,
    workspace_of,
)
from penstock.passes.planning.on_chip.registry import Options, Strategy, decide, strategy_names
from penstock.passes.planning.problem import Buffer, Limits, Outcome, Plan, PlanError, Problem
from penstock.passes.planning.registry import Planner


def relaxed_bound(problem: OnChipProblem) -> int:
    model = LinearProgram.of(problem)
    model.integral = [False] * len(model.costs)
    return Highs(model).solve(None).bound


def total_time(problem: OnChipProblem, found: OnChipAllocation) -> float:
    moved = step_bytes(problem, [found.spans(tensor.id) for tensor in problem.tensors])
    return sum(step_time(problem, step, count) for step, count in enumerate(moved))


needs_highs = pytest.mark.skipif(importlib.util.find_spec("highspy") is None, reason="HiGHS is not installed")
PROVING = [pytest.param("milp", marks=needs_highs), "sweep"]
EVERY = [pytest.param(name, marks=needs_highs) if name == "milp" else name for name in strategy_names()]


def tensor(id: str, size: int, *steps: int, source: bool = False, output: bool = False, alignment: int = 1) -> Tensor:
    """A tensor every access of which moves all of it."""
    return Tensor(id, size, tuple(map(TensorAccess, steps)), source, output, alignment)


CHAIN = OnChipProblem(
    (
        tensor("x", 10, 0, source=True),
        tensor("a", 30, 0, 1, 3),
        tensor("b", 20, 1, 2),
        tensor("c", 10, 2, 3),
        tensor("y", 5, 3, output=True),
    ),
    50,
)
"""Four operators; the last one adds what the first and the third compute. All of it takes 60 bytes at most."""


def answer(problem: OnChipProblem, *runs: ResidentRun, workspace: dict[int, int] | None = None) -> OnChipAllocation:
    """Runs, and the bytes that they move."""
    found = OnChipAllocation(runs, workspace or {})
    counts = traffic(problem, found)
    return replace(found, off_chip_bytes=sum(counts.values()), by_tensor=counts)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TensorAccess(-1), "at step -1"),
        (lambda: TensorAccess(0, -1), "negative number of bytes"),
        (lambda: TensorAccess(0, may_reside=False, may_stream=False), "neither resident nor streamed"),
        (lambda: tensor("t", -1, 0), "tensor t has a negative byte count"),
        (lambda: tensor("t", 1), "never accessed"),
        (lambda: tensor("t", 1, 3, 3), r"\[3, 3\], which do not ascend"),
        (lambda: tensor("t", 1, 3, alignment=0), "aligned to 0"),
        (lambda: OnChipProblem((tensor("t", 1, 0), tensor("t", 1, 0)), 8), "the same id"),
        (lambda: OnChipProblem((), -1), "capacity is -1"),
        (lambda: OnChipProblem((), 1, (0, -1)), "workspace of a negative byte count"),
        (lambda: OnChipProblem((), 1, bandwidth=0), "bandwidth is not positive"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(make: object, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("allocation", "words"),
    [
        (answer(CHAIN, ResidentRun("z", 0, 0, 0)), "z is no tensor"),
        (OnChipAllocation((ResidentRun("b", 0, 2, 0),)), "from access 0 to 2, which are none"),
        (answer(CHAIN, ResidentRun("a", 0, 1, 0), ResidentRun("a", 1, 2, 0)), "access 1 of a is in two runs"),
        (answer(CHAIN, ResidentRun("a", 0, 2, 0), ResidentRun("b", 0, 1, 29)), "a:0 .* and b:0 .* overlap"),
        (answer(CHAIN, ResidentRun("a", 0, 2, 0), ResidentRun("b", 0, 1, 31)), "b:0 ends at 51 of 50"),
        (replace(answer(CHAIN), off_chip_bytes=1), "165 bytes go over the edge of the chip, not 1"),
        (replace(answer(CHAIN), by_tensor={}), "10 bytes of x go over the edge of the chip, not 0"),
        (replace(answer(CHAIN), bound=166), "fewer than the proved 166"),
    ],
)
def test_an_answer_that_breaks_a_rule_is_refused_with_the_reason(allocation: OnChipAllocation, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        validate_allocation(CHAIN, allocation)


def test_what_an_access_cannot_do_is_refused() -> None:
    problem = OnChipProblem(
        (Tensor("t", 8, (TensorAccess(0, may_reside=False), TensorAccess(1, may_stream=False))),), 8
    )
    with pytest.raises(PlanError, match="access 0 of t is resident, which it may not be"):
        validate_allocation(problem, answer(problem, ResidentRun("t", 0, 1, 0)))
    with pytest.raises(PlanError, match="access 1 of t is streamed, which it may not be"):
        validate_allocation(problem, answer(problem))
    validate_allocation(problem, answer(problem, ResidentRun("t", 1, 1, 0)))


def test_a_step_has_room_for_its_workspace_and_for_what_it_stages() -> None:
    problem = OnChipProblem((Tensor("t", 8, (TensorAccess(0, staging=2), TensorAccess(1, staging=2))),), 10, (1, 3))
    assert workspace_of(problem, answer(problem)) == {0: 3, 1: 5}
    kept = ResidentRun("t", 0, 1, 0)
    assert workspace_of(problem, answer(problem, kept)) == {0: 1, 1: 3}
    with pytest.raises(PlanError, match="workspace:1 has no offset"):
        validate_allocation(problem, answer(problem, kept, workspace={0: 8}))
    with pytest.raises(PlanError, match="workspace:1 ends at 11 of 10"):
        validate_allocation(problem, answer(problem, kept, workspace={0: 8, 1: 8}))


def test_movements_are_those_of_the_runs() -> None:
    found = answer(
        CHAIN,
        ResidentRun("x", 0, 0, 40),
        ResidentRun("a", 0, 1, 0),
        ResidentRun("c", 0, 1, 0),
        ResidentRun("y", 0, 0, 45),
    )
    moved = [(each.tensor, each.step, each.kind, each.bytes) for each in movements(CHAIN, found)]
    assert moved == [
        ("x", 0, "fill", 10),
        ("a", 0, "write-back", 30),
        ("a", 3, "stream", 30),
        ("b", 1, "stream", 20),
        ("b", 2, "stream", 20),
        ("y", 3, "write-back", 5),
    ]
    validate_allocation(CHAIN, found)


def test_a_tensor_that_is_written_part_by_part_is_written_back_once_a_run() -> None:
    parts = (TensorAccess(0, 4), TensorAccess(1, 4, writes=True), TensorAccess(2, 4, writes=True), TensorAccess(3))
    problem = OnChipProblem((Tensor("t", 12, parts),), 100)
    assert answer(problem).off_chip_bytes == 4 + 4 + 4 + 12
    assert answer(problem, ResidentRun("t", 0, 3, 0)).off_chip_bytes == 0
    found = answer(problem, ResidentRun("t", 0, 1, 0), ResidentRun("t", 2, 3, 0))
    kinds = [(each.step, each.kind) for each in movements(problem, found)]
    assert kinds == [(1, "write-back"), (2, "fill")]  # nobody wants it after the second run


def test_padded_rows_take_room_on_chip_and_do_not_move() -> None:
    problem = OnChipProblem((replace(tensor("t", 16, 0, 1, source=True), off_chip_size=12),), 16)
    assert answer(problem).off_chip_bytes == 24
    assert answer(problem, ResidentRun("t", 0, 1, 0)).off_chip_bytes == 12


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", 165),
        # a and b are 50 bytes and leave no room for c at step 2.
        pytest.param("milp", 10 + 5 + 20, marks=needs_highs),
        ("sweep", 10 + 5 + 20),
        ("toplib", 10 + 5 + 20),
        ("greedy", 10 + 5 + 90),
        ("onsram-static", 10 + 5 + 90),
        ("one-step", 10 + 5 + 60),
        # At step 2 it is c that promises more a byte and step, and a makes way.
        ("onsram-eager", 10 + 5 + 60),
    ],
)
def test_what_the_strategies_keep_of_a_residual_block(name: str, expected: int) -> None:
    assert decide(CHAIN, name).off_chip_bytes == expected


@pytest.mark.parametrize("name", EVERY)
def test_a_memory_for_everything_leaves_what_is_compulsory(name: str) -> None:
    found = decide(replace(CHAIN, capacity=60), name)
    compulsory = {"x": 10, "a": 0, "b": 0, "c": 0, "y": 5}
    assert unlimited(CHAIN).by_tensor == compulsory
    if name not in ("none", "one-step"):
        assert found.by_tensor == compulsory
        assert found.is_optimal


@pytest.mark.parametrize("name", EVERY)
def test_a_memory_of_nothing_keeps_nothing(name: str) -> None:
    found = decide(replace(CHAIN, capacity=0), name)
    assert found.runs == ()
    assert found.off_chip_bytes == 165


@pytest.mark.parametrize("name", PROVING)
def test_an_operator_that_reads_a_tensor_again_and_again_has_it_filled_first(name: str) -> None:
    weight = Tensor("w", 8, (TensorAccess(0, 32), TensorAccess(1, 8)), source=True)
    assert decide(OnChipProblem((weight,), 8), name).by_tensor == {"w": 8}
    # Another tensor stands between the two accesses; then the one that would cost more is filled, the other streams.
    between = Tensor("t", 8, (TensorAccess(0, 0, may_reside=False), TensorAccess(1, may_stream=False)))
    assert decide(OnChipProblem((weight, between), 8), name).by_tensor == {"w": 16, "t": 8}


@pytest.mark.parametrize("name", PROVING)
def test_what_leaves_no_choice_is_proved_optimal_too(name: str) -> None:
    only = Tensor("t", 1, (TensorAccess(0, may_reside=False),), output=True)
    found = decide(OnChipProblem((only,), 4), name)
    assert (found.off_chip_bytes, found.bound) == (1, 1)
    assert decide(OnChipProblem((), 4), name).is_optimal


@pytest.mark.parametrize("name", PROVING)
def test_an_operator_may_read_many_tensors(name: str) -> None:
    parts = tuple(tensor(f"t{index}", 2 + index % 3, index, 24) for index in range(24))
    found = decide(OnChipProblem(parts, 30), name)
    assert found.is_optimal
    assert found.off_chip_bytes == 2 * (sum(part.size for part in parts) - 30)


@pytest.mark.parametrize("name", PROVING)
def test_a_spilled_tensor_is_kept_over_the_gaps_that_have_room(name: str) -> None:
    problem = OnChipProblem((tensor("a", 6, 0, 1, 2, 3, 4), tensor("b", 5, 2, 3)), 10)
    found = decide(problem, name)
    assert found.is_optimal
    assert found.off_chip_bytes == 10  # b goes off chip and back
    wide = decide(OnChipProblem((tensor("a", 6, 0, 1, 4, 5), tensor("b", 9, 2, 3)), 10), name)
    assert wide.by_tensor == {"a": 12, "b": 0}
    assert wide.kept("a") == {0, 2}
    assert wide.resident("a") == {0, 1, 2, 3}


def brute(problem: Problem, limits: Limits) -> Outcome:
    """A planner for tests: every order of placing each as low as it goes above those before it."""

    def placed(order: Sequence[Buffer]) -> dict[str, int] | None:
        offsets: dict[str, int] = {}
        for buffer in order:
            met = [other for other in order[: len(offsets)] if other.meets(buffer)]
            low = max((offsets[other.id] + other.size for other in met), default=0)
            offsets[buffer.id] = -(-low // buffer.alignment) * buffer.alignment
        fits = all(offsets[each.id] + each.size <= (problem.capacity or 0) for each in order)
        return offsets if fits else None

    found = next(filter(None, map(placed, permutations(problem.buffers))), None)
    return Outcome(None if found is None else Plan(found), infeasible=found is None and bool(problem.buffers))


def use(monkeypatch: pytest.MonkeyPatch, function: Planner) -> None:
    """Let every name be that of this planner."""

    def planner(name: str) -> Planner:
        return function

    monkeypatch.setattr(planners, "planner", planner)


@pytest.mark.parametrize("name", PROVING)
def test_what_has_room_and_no_place_is_forbidden_and_the_rest_still_proved(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, brute)
    # 2 + 2 + 4 bytes of 8, but the first two start at 0 and 4.
    crossing = (tensor("a", 2, 0, 3, alignment=4), tensor("b", 2, 1, 4, alignment=4), tensor("c", 4, 2, 5))
    apart = tensor("d", 3, 6, 7)
    found = decide(OnChipProblem((*crossing, apart), 8), name, Options(planner="brute"))
    assert found.by_tensor == {"a": 4, "b": 0, "c": 0, "d": 0} or found.by_tensor == {"a": 0, "b": 4, "c": 0, "d": 0}
    assert found.off_chip_bytes == 4
    if name == "milp":
        assert relaxed_bound(OnChipProblem((*crossing, apart), 8)) == 0


@pytest.mark.parametrize("name", PROVING)
def test_without_a_proof_that_nothing_packs_the_answer_is_not_called_optimal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsure(problem: Problem, limits: Limits) -> Outcome:
        return replace(brute(problem, limits), infeasible=False)

    use(monkeypatch, unsure)
    crossing = (tensor("a", 2, 0, 3, alignment=4), tensor("b", 2, 1, 4, alignment=4), tensor("c", 4, 2, 5))
    found = decide(OnChipProblem(crossing, 8), name, Options(planner="unsure"))
    assert found.off_chip_bytes == 4
    assert found.bound == 0


@pytest.mark.parametrize("name", EVERY)
def test_what_has_to_be_on_chip_and_does_not_fit_is_an_error(name: str) -> None:
    forced = Tensor("t", 8, (TensorAccess(0, may_stream=False),))
    with pytest.raises(PlanError, match="step 0"):
        decide(OnChipProblem((forced,), 9, (2,)), name)
    assert decide(OnChipProblem((forced,), 10, (2,)), name).off_chip_bytes == 0


@pytest.mark.parametrize("name", EVERY)
def test_what_is_staged_in_more_than_it_takes_is_kept_where_only_that_fits(name: str) -> None:
    staged = Tensor("staged", 1, (TensorAccess(0, staging=3), TensorAccess(1, staging=3)))
    whole = Tensor("whole", 2, (TensorAccess(0, may_stream=False),))
    found = decide(OnChipProblem((staged, whole), 4), name)
    assert 0 in found.resident("staged")


def test_too_many_states_leave_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = tuple(tensor(f"t{index}", 3 + index % 4, index, index + 4, index + 7) for index in range(12))
    problem = OnChipProblem(tensors, 14)
    exact = decide(problem, "sweep")
    assert exact.is_optimal
    for many in (1, 3, 30):
        monkeypatch.setattr(sweep, "MAX_STATES_UNPRICED", 0)
        monkeypatch.setattr(sweep, "MAX_STATES", many)
        found = decide(problem, "sweep")
        assert found.bound <= exact.off_chip_bytes <= found.off_chip_bytes
    monkeypatch.setattr(sweep, "MAX_STATES", 5_000)
    assert decide(problem, "sweep").off_chip_bytes == exact.off_chip_bytes


def test_no_time_still_gives_an_answer() -> None:
    found = decide(CHAIN, "sweep", Options(seconds=0.0))
    assert found.off_chip_bytes <= decide(CHAIN, "greedy").off_chip_bytes


def test_pinning_gains_nothing_where_an_operator_computes_for_longer() -> None:
    idle = replace(CHAIN, compute=(1000.0,) * 4)
    assert decide(idle, "onsram-static").runs == ()
    # Only the last operator waits for its operands.
    late = replace(CHAIN, compute=(1000.0, 1000.0, 1000.0, 20.0))
    found = decide(late, "onsram-static")
    assert total_time(late, found) == 3020.0
    assert {run.tensor for run in found.runs} == {"a", "c"}
    assert total_time(late, decide(late, "none")) == 3045.0
    assert total_time(replace(late, bandwidth=2.0), decide(late, "none")) == 3000.0 + 22.5


def test_the_first_time_each_output_is_held_for_the_next_operator_and_then_as_long_as_it_was_needed() -> None:
    named = tuple(replace(each, kind=each.id) for each in CHAIN.tensors)
    problem = replace(CHAIN, tensors=named, capacity=60)
    first = decide(problem, "onsram-eager", Options(iterations=1))
    assert first.kept("a") == {0}
    assert first.by_tensor["a"] == 60
    second = decide(problem, "onsram-eager", Options(iterations=2))
    assert second.kept("a") == {0, 1}
    assert second.off_chip_bytes == 15


def test_outputs_that_cannot_be_told_apart_are_mispredicted_and_written_back() -> None:
    chain = [tensor(f"t{step}", 4, step, step + 1) for step in range(8)]
    chain[5] = tensor("t5", 4, 5, 6, 8)
    problem = OnChipProblem(tuple(replace(each, kind="conv") for each in chain), 64)
    for runs in (1, 2, 3):
        found = decide(problem, "onsram-eager", Options(iterations=runs))
        assert found.by_tensor == {each.id: 8 if each.id == "t5" else 0 for each in chain}
    told = replace(problem, tensors=tuple(replace(each, kind=each.id) for each in chain))
    assert decide(told, "onsram-eager", Options(iterations=1)).off_chip_bytes == 8
    assert decide(told, "onsram-eager", Options(iterations=2)).off_chip_bytes == 0


def test_milp_without_highs_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(UserError, match="needs HiGHS") as caught:
        decide(CHAIN, "milp")
    assert caught.value.notes == ("pip install 'penstock-compiler[milp]'",)


def test_an_unknown_strategy_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match='no on-chip allocation strategy is called "topliv"') as caught:
        decide(CHAIN, "topliv")
    assert "toplib" in caught.value.notes[0]


def test_an_answer_of_a_strategy_that_is_not_valid_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(problem: OnChipProblem, options: Options) -> OnChipAllocation:
        return OnChipAllocation(())

    def named(name: str) -> Strategy:
        return nothing

    monkeypatch.setattr(registry, "strategy", named)
    with pytest.raises(UserError, match='"mine" returned an answer that is not valid: 10 bytes of x'):
        decide(CHAIN, "mine")


@pytest.mark.parametrize("name", EVERY)
def test_the_same_problem_has_the_same_answer(name: str) -> None:
    assert decide(CHAIN, name) == decide(CHAIN, name)
