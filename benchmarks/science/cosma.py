# SPDX-License-Identifier: Apache-2.0
"""
The order of operators, what stays on chip, and where, decided together, as COSMA does, and at a given order.

An operator works on the scratchpad alone: all that it reads and makes is there, weights included. What moves beyond
what must (inputs and weights read once, results written once) is what decisions are about. At a given order our
strategies decide; `milp` finds the least, and proves it. Together with the order it is the least of the orders that a
search tries: it begins at the order given and at the one of least peak, and moves operators, one or a few neighbours,
while that moves fewer bytes. That is no proof, but where nothing moves beyond what must.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.lifetimes import Lifetimes, on_chip_problem
from benchmarks.measure import ROOT, say
from benchmarks.networks import network
from benchmarks.planning_runs import text_table
from benchmarks.science.onsram import graph_of
from benchmarks.science.plots import Bars
from benchmarks.science.study import Found, Study
from penstock.passes.planning.on_chip.problem import OnChipProblem
from penstock.passes.planning.on_chip.registry import decide
from penstock.passes.planning.op_order import OrderProblem, order_ops
from penstock.passes.planning.problem import PlanError

STRATEGIES = ("none", "one-step", "greedy", "milp")
"""At the order given."""


def run(study: Study, *, long: bool) -> Found:
    """The bytes of each network and memory by each way to decide, and what deciding together takes away."""
    found, rows = Found(), list[tuple[object, ...]]()
    sums: dict[str, float] = dict.fromkeys((*STRATEGIES, "together"), 0.0)
    bars: dict[str, list[float]] = {"fixed order": [], "together": []}
    labels: list[str] = []
    for name, sizes in study.values["networks"].items():
        whole = _problem(_model(name, sizes, study.seed))
        compulsory = sum(tensor.moved for tensor in whole.tensors if tensor.source or tensor.output)
        needed = max(_needed(whole))
        for times in study.values["capacities"]:
            problem = replace(whole, capacity=int(needed * times))
            beyond: dict[str, float] = {each: _bytes(problem, each) - compulsory for each in STRATEGIES}
            if beyond["milp"] == 0:
                continue
            least, tried = together(problem, study.seed, study.values["tries"], compulsory)
            beyond["together"] = least - compulsory
            say(f"science: cosma: {name}, {problem.capacity:,} bytes: {beyond}")
            for each, count in beyond.items():
                sums[each] += count / beyond["milp"]
            labels.append(f"{name}\n{times:g} x")
            bars["fixed order"].append(beyond["milp"] / 1e3)
            bars["together"].append(beyond["together"] / 1e3)
            cells = [f"{beyond[each] / 1e3:,.1f}" for each in beyond]
            less = f"{1 - beyond['together'] / beyond['milp']:.0%}"
            rows.append(
                (name, problem.steps, f"{problem.capacity / 1e3:,.0f}", f"{compulsory / 1e3:,.0f}", *cells, less, tried)
            )
    for each in STRATEGIES:
        found.figures[each] = 100 * (1 - sums["together"] / sums[each])
    head = (
        "network",
        "operators",
        "memory, kB",
        "compulsory",
        *STRATEGIES,
        "with the order",
        "less than milp",
        "orders tried",
    )
    found.tables.append(text_table("Kilobytes off chip beyond what must move", head, rows))
    found.plots["cosma"] = Bars("Off chip beyond what must move", "kilobytes", labels, bars)
    return found


def _model(name: str, sizes: dict[str, int], seed: int) -> Any:
    """A network of wired.py, of so many cells or nodes, or of the zoo."""
    if not sizes:
        return network(name)[0]
    sys.path.insert(0, str(ROOT / "examples" / "networks"))
    import wired

    return getattr(wired, name)(seed, **sizes)


def _problem(model: Any) -> OnChipProblem:
    """The tensors of a network in bytes, of which each operator needs all in the scratchpad."""
    found = on_chip_problem(graph_of(model, fuse=True), 0, Lifetimes(1, weights="used"))
    tensors = tuple(
        replace(tensor, accesses=tuple(replace(each, may_stream=False) for each in tensor.accesses))
        for tensor in found.tensors
    )
    return replace(found, tensors=tensors)


def _needed(problem: OnChipProblem) -> list[int]:
    """The bytes that each step needs on chip."""
    found = [0] * problem.steps
    for tensor in problem.tensors:
        for access in tensor.accesses:
            found[access.step] += tensor.size
    return found


def _bytes(problem: OnChipProblem, strategy: str) -> int:
    """Off chip, as the strategy decides."""
    return decide(problem, strategy).off_chip_bytes


@dataclass(frozen=True)
class _Orders:
    """A problem at other orders of its steps."""

    problem: OnChipProblem
    before: tuple[frozenset[int], ...]
    """For each step those that make what it reads."""

    @staticmethod
    def of(problem: OnChipProblem) -> _Orders:
        before: list[set[int]] = [set() for _ in range(problem.steps)]
        for tensor in problem.tensors:
            if not tensor.source:
                maker, *readers = (access.step for access in tensor.accesses)
                for reader in readers:
                    before[reader].add(maker)
        return _Orders(problem, tuple(map(frozenset, before)))

    def at(self, order: Sequence[int]) -> OnChipProblem:
        """The problem with its steps in that order."""
        place = {step: number for number, step in enumerate(order)}
        tensors = tuple(
            replace(
                tensor,
                accesses=tuple(
                    sorted(
                        (replace(each, step=place[each.step]) for each in tensor.accesses), key=lambda each: each.step
                    )
                ),
            )
            for tensor in self.problem.tensors
        )
        return replace(self.problem, tensors=tensors)

    def of_least_peak(self) -> tuple[int, ...]:
        """The order that needs the least memory."""
        touched: list[set[int]] = [set() for _ in self.before]
        for number, tensor in enumerate(self.problem.tensors):
            for access in tensor.accesses:
                touched[access.step].add(number)
        sizes = tuple(tensor.size for tensor in self.problem.tensors)
        inside = (0,) * len(self.before)
        return order_ops(OrderProblem(sizes, tuple(map(frozenset, touched)), self.before, inside)).order

    def moved(self, order: Sequence[int], rng: random.Random) -> list[int] | None:
        """An order in which some neighbours stand elsewhere; None if what is drawn is not allowed."""
        start = rng.randrange(len(order))
        count = rng.randint(1, min(4, len(order) - start))
        part, rest = list(order[start : start + count]), [*order[:start], *order[start + count :]]
        place = {step: number for number, step in enumerate(rest)}
        low = max((place[other] + 1 for step in part for other in self.before[step] if other in place), default=0)
        members = set(part)
        high = min((number for number, step in enumerate(rest) if self.before[step] & members), default=len(rest))
        choices = [at for at in range(low, high + 1) if at != start]
        if not choices:
            return None
        at = rng.choice(choices)
        return [*rest[:at], *part, *rest[at:]]


def together(problem: OnChipProblem, seed: int, tries: int, compulsory: int) -> tuple[float, int]:
    """The fewest bytes off chip of the orders that were tried, and how many those were."""
    orders, rng = _Orders.of(problem), random.Random(seed)
    starts = [tuple(range(problem.steps)), orders.of_least_peak()]
    known = {order: _at(orders, order) for order in dict.fromkeys(starts)}
    best = min(known, key=lambda order: known[order])
    for _ in range(tries):
        if known[best] == compulsory:
            break
        order = orders.moved(best, rng)
        if order is None or (key := tuple(order)) in known:
            continue
        known[key] = _at(orders, key)
        if known[key] <= known[best]:
            best = key
    return known[best], len(known)


def _at(orders: _Orders, order: Sequence[int]) -> float:
    try:
        return _bytes(orders.at(order), "milp")
    except PlanError:
        return float("inf")
