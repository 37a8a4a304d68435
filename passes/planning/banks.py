# SPDX-License-Identifier: Apache-2.0
"""
Buffers that are used at once in different banks, as far as that takes no memory.

`apart` moves buffers of a plan one by one, those of the dearest pairs first, each to the place in the memory that is
free for as long as it is alive and costs least, the lowest of them; until none costs less elsewhere. It starts from the
plan, and from an empty memory, where the buffers of pairs are put into the cheapest banks before the others are, by
cost and by size. What has a place by hand keeps it, and no plan grows past the capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.passes.planning.problem import FAR, AllowedOffsets, Buffer, Plan, Problem

_MOST_ROUNDS = 8


def conflict_cost(problem: Problem, plan: Plan) -> int:
    """What the pairs of a problem cost that share a bank."""
    found = _Costs(problem)
    return sum(each for pair, each in found.costs.items() if found.meet(*pair, plan.offsets))


def apart(problem: Problem, plan: Plan) -> Plan:
    """A plan whose pairs cost no more, mostly less, and that fits where the plan does."""
    if problem.capacity is None or not problem.pairs or not conflict_cost(problem, plan):
        return plan
    costs = _Costs(problem)
    tries = [_moved(problem, costs, plan.offsets)]
    first = costs.dearest_first()
    by_size = sorted(first, key=lambda each: -each.size)
    for order in (first, by_size):
        if (fresh := _placed(problem, costs, order)) is not None:
            tries.append(_moved(problem, costs, fresh))
    best = min(tries, key=lambda offsets: conflict_cost(problem, Plan(offsets)))
    return Plan(best) if conflict_cost(problem, Plan(best)) < conflict_cost(problem, plan) else plan


class _Costs:
    """The pairs of a problem, each once, and what each buffer costs at a place beside the others."""

    def __init__(self, problem: Problem):
        assert problem.bank_size is not None or not problem.pairs
        self.bank = problem.bank_size or 1
        self.buffers = {buffer.id: buffer for buffer in problem.buffers}
        self.costs: dict[tuple[str, str], int] = {}
        self.of: dict[str, dict[str, int]] = {}
        """By the id of a buffer: those that it is used with, and what each costs."""
        for pair in problem.pairs:
            ends = pair.first, pair.second
            if pair.first == pair.second or any(id not in self.buffers for id in ends):
                continue
            self.costs[ends] = self.costs.get(ends, 0) + pair.cost
            for id, other in (ends, ends[::-1]):
                known = self.of.setdefault(id, {})
                known[other] = known.get(other, 0) + pair.cost

    def banks(self, id: str, offset: int) -> range:
        """The banks that a buffer has bytes in at an offset."""
        return range(offset // self.bank, max(offset + self.buffers[id].size - 1, offset) // self.bank + 1)

    def meet(self, id: str, other: str, offsets: Mapping[str, int]) -> bool:
        """Whether two buffers share a bank."""
        mine, theirs = self.banks(id, offsets[id]), self.banks(other, offsets[other])
        return mine.start < theirs.stop and theirs.start < mine.stop

    def at(self, id: str, offset: int, offsets: Mapping[str, int]) -> int:
        """What a buffer costs at an offset."""
        moved = {**{other: offsets[other] for other in self.of[id] if other in offsets}, id: offset}
        return sum(cost for other, cost in self.of[id].items() if other in moved and self.meet(id, other, moved))

    def dearest_first(self) -> list[Buffer]:
        """The buffers of pairs."""
        order = sorted(self.of, key=lambda id: (-sum(self.of[id].values()), -self.buffers[id].size, id))
        return [self.buffers[id] for id in order]


def _moved(problem: Problem, costs: _Costs, offsets: Mapping[str, int]) -> dict[str, int]:
    found = dict(offsets)
    for _ in range(_MOST_ROUNDS):
        changed = False
        for buffer in costs.dearest_first():
            now = costs.at(buffer.id, found[buffer.id], found)
            if not now or buffer.offset is not None:
                continue
            rest = {id: offset for id, offset in found.items() if id != buffer.id}
            best = _cheapest(problem, costs, buffer, rest)
            if best is not None and costs.at(buffer.id, best, rest) < now:
                found[buffer.id] = best
                changed = True
        if not changed:
            break
    return found


def _placed(problem: Problem, costs: _Costs, order: Sequence[Buffer]) -> dict[str, int] | None:
    """What is fixed, then the buffers of pairs in an order, then the rest by size; None where it does not fit."""
    fixed = {buffer.id: buffer.offset for buffer in problem.buffers if buffer.offset is not None}
    found = dict(fixed)
    first = [buffer for buffer in order if buffer.id not in fixed]
    chosen = {buffer.id for buffer in first} | set(fixed)
    rest = sorted((each for each in problem.buffers if each.id not in chosen), key=lambda each: -each.size)
    for buffer in (*first, *rest):
        place = _cheapest(problem, costs, buffer, found)
        if place is None:
            return None
        found[buffer.id] = place
    return found


def _cheapest(problem: Problem, costs: _Costs, buffer: Buffer, placed: Mapping[str, int]) -> int | None:
    """The free place below the capacity that costs least, of these the lowest."""
    assert problem.capacity is not None
    last = problem.capacity - buffer.size
    allowed = AllowedOffsets.of(buffer, problem.bank_size)
    taken = sorted(_forbidden(buffer, [(costs.buffers[id], offset) for id, offset in placed.items()]))
    free: set[int] = set()
    # Of the places in a bank that are free the lowest.
    for start in range(0, problem.capacity, costs.bank):
        place = allowed.lowest(start)
        for low, high in taken:
            if low < place < high:
                place = allowed.lowest(high)
        if place <= min(last, FAR):
            free.add(place)
    if buffer.id not in costs.of:
        return min(free, default=None)
    return min(free, key=lambda place: (costs.at(buffer.id, place, placed), place), default=None)


def _forbidden(buffer: Buffer, placed: Sequence[tuple[Buffer, int]]) -> Iterator[tuple[int, int]]:
    """The open spans in which a buffer may not begin for the sake of others."""
    for other, offset in placed:
        for (lower, upper), (low, high) in buffer.pieces:
            for (their_lower, their_upper), (their_low, their_high) in other.pieces:
                if lower < their_upper and their_lower < upper and low < high and their_low < their_high:
                    yield offset + their_low - high, offset + their_high - low
