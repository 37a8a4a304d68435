# SPDX-License-Identifier: Apache-2.0
"""The least that has to go off chip, by dynamic programming over the steps; needs no solver from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, gcd, inf, isfinite
from time import monotonic

from penstock.passes.planning.on_chip.pinning import pinned, saved_a_step
from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem, RunSpans, Tensor, TensorAccess
from penstock.passes.planning.on_chip.refine import Condition, SpaceSolution, refine
from penstock.passes.planning.on_chip.registry import Options
from penstock.passes.planning.on_chip.selection import Selection, cheapest, cost, forced
from penstock.passes.planning.problem import PlanError

NOT_KEPT, SAME, NEWER = range(3)
"""After an access and until the next, a tensor is not kept, kept, or kept and newer than what lies off chip."""

MAX_STATES_UNPRICED = 500
"""States after an access from which on it pays to find prices first."""
MAX_STATES = 5_000
"""States after an access that are followed at most; of more, those of the least bounds."""
MAX_STATES_IN_ALL = 500_000
"""States that are followed in all."""
MAX_STATES_LATE = 50
"""The same when time is up."""
PRICE_ITERATIONS = 60
"""Of adjusting the prices."""
PATIENCE = 3
"""Iterations without a better bound before the adjustments get smaller."""
TOLERANCE = 1e-6


@dataclass(frozen=True)
class _AccessChoice:
    """What one access may do, given how the tensor was before it."""

    value: float
    """By how much it raises the bound."""
    resident: bool
    after: int
    """NOT_KEPT, SAME or NEWER."""
    space: int
    """On chip at this step, staging included."""


Kept = tuple[tuple[int, int], ...]
"""The tensors that are kept, by number, and whether SAME or NEWER."""
SweepState = tuple[Kept, frozenset[int], int]
"""What is kept, the forbidden sets of which all conditions so far hold, and the bytes that the step has left."""


@dataclass(frozen=True)
class _Way:
    """How a state was reached."""

    bound: float
    before: SweepState | None = None
    """The state before the access."""
    choice: _AccessChoice | None = None
    """What the access did; None at the beginning of a step."""


class _Line:
    """One tensor: its choices at each access, and bounds on what is still to come where bytes on chip have prices."""

    def __init__(self, tensor: Tensor, size: int, until: Sequence[float]):
        accesses = tensor.accesses
        last = len(accesses) - 1
        after: list[list[float]] = [[inf] * 3 for _ in accesses]
        after[last] = [0.0, inf, inf]
        self.choices: list[list[list[_AccessChoice]]] = [[] for _ in accesses]
        self.start = 0.0
        for index in range(last, -1, -1):
            access = accesses[index]
            here = until[access.step + 1] - until[access.step]
            writes = tensor.writes(index)
            found: list[list[tuple[float, bool, int, int]]] = [[], [], []]
            if access.may_stream:
                value = tensor.streamed(index) + access.staging * here
                found[NOT_KEPT].append((value, False, NOT_KEPT, access.staging))
            if access.may_reside:
                fill = tensor.moved if index > 0 or tensor.source else 0
                for before in (NOT_KEPT, SAME, NEWER):
                    value = size * here + (fill if before == NOT_KEPT else 0)
                    newer = before == NEWER or writes
                    back = tensor.moved if newer and (index < last or tensor.output) else 0
                    found[before].append((value + back, True, NOT_KEPT, size))
                    if index < last:
                        gap = size * (until[accesses[index + 1].step] - until[access.step + 1])
                        found[before].append((value + gap, True, NEWER if newer else SAME, size))
            least = [min((value + after[index][to] for value, _, to, _ in each), default=inf) for each in found]
            self.choices[index] = [
                [
                    _AccessChoice(value + after[index][to] - least[before], resident, to, space)
                    for value, resident, to, space in each
                    if value + after[index][to] < inf
                ]
                for before, each in enumerate(found)
            ]
            if index:
                after[index - 1] = least
            else:
                self.start = least[NOT_KEPT]


class _Sweep:
    """
    Follows, access by access, every state that may still lead to an answer of at most `limit` bytes.

    A state is bounded by what the ways to it cost and by what each tensor by itself has still to pay, bytes on chip
    included, at `prices`; for bytes that a step leaves free it pays as well, so that in the end a bound is a cost.
    """

    def __init__(
        self, problem: OnChipProblem, prices: Sequence[float], limit: float, forbidden: Sequence[Sequence[Condition]]
    ):
        rounding = Selection(problem)
        self._prices, self._limit = prices, limit
        until = list(accumulate(prices, initial=0.0))
        self._sizes = [rounding.rounded(tensor.size) for tensor in problem.tensors]
        self._lines = [_Line(*each, until) for each in zip(problem.tensors, self._sizes, strict=True)]
        self._space = rounding.space
        self._at: list[list[tuple[int, int]]] = [[] for _ in range(problem.steps)]
        for number, tensor in enumerate(problem.tensors):
            for index, access in enumerate(tensor.accesses):
                self._at[access.step].append((number, index))
        order = {access: place for place, access in enumerate(access for at in self._at for access in at)}
        self._conditions: dict[tuple[int, int], list[tuple[int, Condition]]] = {}
        self._starts: list[int] = []
        self._ends: list[int] = []
        for which, conditions in enumerate(forbidden):
            places = [order[each.tensor, each.index] for each in conditions]
            self._starts.append(min(places))
            self._ends.append(max(places))
            for each in conditions:
                self._conditions.setdefault((each.tensor, each.index), []).append((which, each))
        self._order = order
        self._dropped = inf

    def run(self, most: int, deadline: float, *, give_up: bool = False) -> tuple[float, list[RunSpans] | None] | None:
        """
        A bound, and the runs of the answer of least bytes, if one was found; optimal if there were never more than
        `most` states. None if there were, and it was to give up then.
        """
        taken = sum(price * space for price, space in zip(self._prices, self._space, strict=True))
        start: SweepState = ((), frozenset(), 0)
        layers: list[dict[SweepState, _Way]] = [{start: _Way(sum(line.start for line in self._lines) - taken)}]
        for step, accesses in enumerate(self._at):
            layers.append(self._begin(step, layers[-1]))
            for access in accesses:
                layer: dict[SweepState, _Way] = {}
                for state, way in layers[-1].items():
                    self._extend(layer, access, state, way.bound)
                late = monotonic() > deadline
                if len(layer) > most or late:
                    if give_up:
                        return None
                    ranked = sorted(layer.items(), key=lambda each: each[1].bound)
                    few = MAX_STATES_LATE if late else most
                    self._dropped = min([self._dropped, *(way.bound for _, way in ranked[few : few + 1])])
                    layer = dict(ranked[:few])
                layers.append(layer)
        layers.append(self._begin(len(self._at), layers[-1]))
        if not layers[-1]:
            return self._dropped, None
        final = min(layers[-1], key=lambda state: layers[-1][state].bound)
        return min(self._dropped, layers[-1][final].bound), self._runs(layers, final)

    def _begin(self, step: int, before: dict[SweepState, _Way]) -> dict[SweepState, _Way]:
        """The states at the beginning of a step, what the one before it left free being paid for."""
        layer: dict[SweepState, _Way] = {}
        price = self._prices[step - 1] if step else 0.0
        space = self._space[step] if step < len(self._space) else 0
        accessed = {number for number, _ in self._at[step]} if step < len(self._at) else set[int]()
        for state, way in before.items():
            kept, flags, left = state
            value = way.bound + price * left
            free = space - sum(self._sizes[number] for number, _ in kept if number not in accessed)
            if free < 0 or value > self._limit:
                continue
            after = (kept, flags, free)
            if after not in layer or value < layer[after].bound:
                layer[after] = _Way(value, state)
        return layer

    def _extend(self, layer: dict[SweepState, _Way], access: tuple[int, int], state: SweepState, bound: float) -> None:
        """Add the states after an access that follow one before it."""
        number, index = access
        kept, flags, left = state
        before = next((how for other, how in kept if other == number), NOT_KEPT)
        others = kept if before == NOT_KEPT else tuple(each for each in kept if each[0] != number)
        for choice in self._lines[number].choices[index][before]:
            value = bound + choice.value
            if choice.space > left or value > self._limit:
                continue
            holding = self._holding(access, flags, choice)
            if holding is None:
                continue
            now = others if choice.after == NOT_KEPT else tuple(sorted((*others, (number, choice.after))))
            after = (now, holding, left - choice.space)
            if after not in layer or value < layer[after].bound:
                layer[after] = _Way(value, state, choice)

    def _holding(self, access: tuple[int, int], flags: frozenset[int], choice: _AccessChoice) -> frozenset[int] | None:
        """The forbidden sets that may still hold after an access; None if all of one does."""
        if access not in self._conditions:
            return flags
        place = self._order[access]
        holding = set(flags)
        broken: set[int] = set()
        for which, condition in self._conditions[access]:
            holds = {
                "kept": choice.after != NOT_KEPT,
                "resident": choice.resident,
                "streamed": not choice.resident,
            }[condition.what]
            if not holds:
                broken.add(which)
            elif self._starts[which] == place:
                holding.add(which)
        holding -= broken
        if any(self._ends[which] == place for which in holding):
            return None
        return frozenset(holding)

    def _runs(self, layers: Sequence[dict[SweepState, _Way]], final: SweepState) -> list[RunSpans]:
        """The runs of the tensors on the way to a state after the last step."""
        choices: list[_AccessChoice] = []
        state = final
        for layer in reversed(layers[1:]):
            way = layer[state]
            assert way.before is not None
            state = way.before
            if way.choice is not None:
                choices.append(way.choice)
        found: list[list[tuple[int, int]]] = [[] for _ in self._sizes]
        kept: set[int] = set()
        for (number, index), choice in zip(self._order, reversed(choices), strict=True):
            if choice.resident and number in kept:
                found[number][-1] = (found[number][-1][0], index)
            elif choice.resident:
                found[number].append((index, index))
            (kept.discard if choice.after == NOT_KEPT else kept.add)(number)
        return [tuple(spans) for spans in found]


def prices(problem: OnChipProblem, limit: float) -> list[float]:
    """
    Prices of a byte on chip at each step, for a bound that is about the best that prices give.

    They are those of the Lagrangian relaxation of space, by subgradients with steps towards `limit` (Held, Wolfe and
    Crowder, "Validation of subgradient optimization", 1974), each of which remembers the one before.
    """
    rounding = Selection(problem)
    tensors = [replace(tensor, size=rounding.rounded(tensor.size)) for tensor in problem.tensors]
    space = rounding.space
    now = [0.0] * problem.steps
    towards = [0.0] * problem.steps
    best, bound, scale, waited = now, -inf, 1.5, 0
    for _ in range(PRICE_ITERATIONS):
        excess = [-each for each in space]
        value = -sum(price * each for price, each in zip(now, space, strict=True))
        for index, tensor in enumerate(tensors):
            least, spans = cheapest(tensor, now)
            value += least
            for access in tensor.accesses:
                excess[access.step] += access.staging
            for step, count in rounding.changes(index, spans):
                excess[step] += count
        waited += 1
        if value > bound:
            best, bound, waited = now, value, 0
        elif waited == PATIENCE:
            scale, waited = scale * 0.7, 0
        towards = [0.7 * each + 0.3 * last for each, last in zip(excess, towards, strict=True)]
        length = sum(each * each for each, price in zip(towards, now, strict=True) if each > 0 or price > 0)
        if not length:
            break
        stride = scale * max(limit - value, 0.0) / length
        now = [max(price + stride * each, 0.0) for price, each in zip(now, towards, strict=True)]
    return best


def _without_the_impossible(problem: OnChipProblem) -> OnChipProblem:
    """The problem without the choice to have a tensor on chip at a step that has no room even for it alone."""
    rounding = Selection(problem)
    space = rounding.space

    def changed(tensor: Tensor, access: TensorAccess) -> TensorAccess:
        possible = rounding.rounded(tensor.size) <= space[access.step]
        return access if possible or not access.may_stream else replace(access, may_reside=False)

    tensors = (
        replace(each, accesses=tuple(changed(each, access) for access in each.accesses)) for each in problem.tensors
    )
    return replace(problem, tensors=tuple(tensors))


class Sweep:
    """The solver of one dimension that `refine` uses."""

    def __init__(self, problem: OnChipProblem):
        self._problem = _without_the_impossible(problem)
        self._forbidden: list[Sequence[Condition]] = []
        self._unit = gcd(
            *(tensor.moved for tensor in problem.tensors),
            *(tensor.streamed(index) for tensor in problem.tensors for index in range(len(tensor.accesses))),
        )
        Selection(problem)  # raises if what has to be on chip does not fit

    def forbid(self, conditions: Sequence[Condition]) -> None:
        """Not all of these any more."""
        if not conditions:
            raise PlanError("what has to be on chip does not fit")
        self._forbidden.append(conditions)

    def solve(self, seconds: float | None) -> SpaceSolution:
        """The best answer; or, with more states than can be followed, a good one and a bound."""
        deadline = inf if seconds is None else monotonic() + seconds
        free = [0.0] * self._problem.steps
        limit = inf if self._forbidden else float(pinned(self._problem, saved_a_step)[0].bytes_moved())
        found = _Sweep(self._problem, free, limit + TOLERANCE, self._forbidden).run(
            MAX_STATES_UNPRICED, deadline, give_up=True
        )
        if found is None:
            high = limit if isfinite(limit) else float(sum(cost(each, forced(each)) for each in self._problem.tensors))
            priced = prices(self._problem, high)
            accesses = sum(len(tensor.accesses) for tensor in self._problem.tensors)
            most = max(min(MAX_STATES, MAX_STATES_IN_ALL // accesses), MAX_STATES_LATE)
            found = _Sweep(self._problem, priced, limit * (1 + TOLERANCE) + 1, self._forbidden).run(most, deadline)
            assert found is not None
        value, spans = found
        if spans is None and not isfinite(value):
            raise PlanError("what has to be on chip does not fit")
        unit = self._unit or 1
        return SpaceSolution(spans, max(ceil(value / unit - TOLERANCE) * unit, 0))


def sweep(problem: OnChipProblem, options: Options) -> OnChipAllocation:
    """
    The fewest bytes over the edge of the chip, by dynamic programming over the steps.

    A state is what is kept after an access. There are few where few tensors live at once, as in most networks; of more
    than can be followed those of the least bounds are, and the answer comes with a bound that may be lower. See
    `problem.py` for the model and `refine` for what is proved about places. Raises PlanError if what has to be on
    chip does not fit.
    """
    return refine(problem, Sweep(problem), options)
