# SPDX-License-Identifier: Apache-2.0
"""
The order of operations that needs the least memory.

To find an order of least peak is NP-hard (it is one-shot pebbling with weights). The search runs over the sets of ops
that have been executed, of which the bytes that are alive depend, and nothing else: the cheapest set first by the peak
on the way to it, so that the first way to the whole set is one of least peak, and the peak of the cheapest set that is
left is a lower bound at any time. Sets of ops were searched so by SERENITY (Ahn et al., MLSys 2020); these make it
small here:

- ops that may follow each other directly in an order of least peak are one (`order_runs`);
- an op that is ready, raises no peak and leaves no more bytes alive than before is executed at once: moved forward
  to that place in any order, it makes no other op dearer;
- an op that all others come before or after splits the graph: its sides are searched one after the other, and a peak
  that one of them cannot avoid is free for the others;
- bytes that are alive during an op in every order give a bound before the search begins.

A search of a limited number of sets after each op comes first, for an order to begin with. Both are limited in what
they do: a step looks at one op after one set, or executes it.

Of buffers that are strips of larger ones the search counts the strips, which is no more than what takes room: its
bounds hold, and the order that it finds is taken where what takes room in it is less. What takes room during an op in
every order is another bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest
from typing import NamedTuple

from penstock.passes.planning.order_problem import OrderProblem, peak_of, room
from penstock.passes.planning.order_runs import Runs, Touch, runs_of

DEFAULT_STEPS = 500_000
"""Ops that are looked at or executed, each after a set of others, in all."""
BEAMS = (2, 8, 32)
"""Sets kept after each number of ops by the searches for an order, one after the other."""


@dataclass(frozen=True)
class OrderOutcome:
    """An order, and how good it is."""

    order: tuple[int, ...]
    """The numbers of all ops."""
    peak: int
    """The most bytes that take room during an op."""
    bound: int
    """Bytes that no order can do without."""

    @property
    def is_optimal(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak == self.bound


def order_ops(problem: OrderProblem, steps: int = DEFAULT_STEPS) -> OrderOutcome:
    """
    An order of least peak; with more than `steps` steps to take the best that was found, and a bound.

    Where no order is better than that in which the ops stand, it is that one. The same problem gives the same order.
    """
    given = tuple(range(len(problem.touched)))
    peak = peak_of(problem, given)
    search = _Search(runs_of(problem), steps)
    bound = max([_least_room(problem) if problem.strips else 0, *search.least])
    if peak == bound:
        return OrderOutcome(given, peak, bound)
    parts = [_Part(search, runs) for runs in search.parts()]
    # What one part takes, the others may: so the part with the largest peak comes first.
    free = bound
    for part in sorted(parts, key=lambda each: -each.peak):
        part.improve(free)
        bound, free = max(bound, part.bound), max(free, part.peak)
    order = tuple(op for part in parts for run in part.order for op in search.runs.ops[run])
    found = peak_of(problem, order)
    return OrderOutcome(order, found, bound) if found < peak else OrderOutcome(given, peak, bound)


def _least_room(problem: OrderProblem) -> int:
    """The most that takes room during an op in every order. Of runs it would say nothing of the orders without them."""
    runs = Runs(problem, [(op,) for op in range(len(problem.touched))])
    during = ((inside, *runs.surely_alive(op)) for op, inside in enumerate(problem.inside))
    return max((inside + room(problem, buffers) for inside, buffers in during), default=0)


class _Search:
    """The graph of the runs of a problem, what each of them does to what is alive, and the steps that are left."""

    def __init__(self, runs: Runs, steps: int):
        self.runs = runs
        self.steps = steps
        numbers = range(len(runs.ops))
        self.least = [runs.least_during(number) for number in numbers]
        self.may_shrink = sum(1 << number for number in numbers if self._least_change(number) <= 0)
        """The runs after which, in some order, no more is alive than before."""
        # Of most buffers the graph says which run touches them first, and which last.
        self._in_doubt = [
            tuple(touch.others for touch in runs.touches[number] if self._is_in_doubt(number, touch))
            for number in numbers
        ]
        self.near = [0] * len(runs.ops)
        """The runs of which each run decides what they do."""
        self._known: list[dict[int, tuple[int, int]]] = [{} for _ in numbers]
        for number in numbers:
            for others in self._in_doubt[number]:
                for other in _bits(others):
                    self.near[other] |= 1 << number
        # Those that wait for the same runs are ready together.
        waiting: dict[int, int] = {}
        for number in numbers:
            waiting[runs.before[number]] = waiting.get(runs.before[number], 0) | 1 << number
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in numbers]
        for before, those in waiting.items():
            for number in _bits(before):
                self._waiting[number].append((before, those))

    def _least_change(self, number: int) -> int:
        after, touches = self.runs.descendants[number], self.runs.touches[number]
        born = sum(touch.size for touch in touches if not touch.others & ~after)
        return born - sum(touch.size for touch in touches if not touch.others & after)

    def _is_in_doubt(self, number: int, touch: Touch) -> bool:
        before, after = self.runs.ancestors[number], self.runs.descendants[number]
        is_first_known = touch.others & before or not touch.others & ~after
        is_last_known = touch.others & after or not touch.others & ~before
        return not (is_first_known and is_last_known)

    def parts(self) -> list[list[int]]:
        """The runs between those that all others come before or after, each such run at the end of its part."""
        count, ancestors = len(self.runs.ops), self.runs.ancestors
        everything = (1 << count) - 1
        cuts = [run for run in range(count) if ancestors[run] | self.runs.descendants[run] | 1 << run == everything]
        found: list[list[int]] = []
        placed = 0
        for cut in cuts:
            inside = (ancestors[cut] | 1 << cut) & ~placed
            found.append(list(_bits(inside)))
            placed |= inside
        if rest := list(_bits(everything & ~placed)):
            found.append(rest)
        return found

    def change(self, number: int, done: int) -> tuple[int, int]:
        """How much more is alive than after the set `done`, while a run is executed, and afterwards."""
        key = 0
        for others in self._in_doubt[number]:
            seen = others & done
            key = key * 3 + (0 if not seen else 2 if seen == others else 1)
        known = self._known[number]
        if key not in known:
            known[key] = self._change(number, done)
        return known[key]

    def _change(self, number: int, done: int) -> tuple[int, int]:
        during = list(self.runs.inside[number])
        change = 0
        for touch in self.runs.touches[number]:
            is_first, is_last = not touch.others & done, not touch.others & ~done
            begin = touch.first if is_first else 0
            end = touch.last + 1 if is_last else len(during)
            change += touch.size * (is_first - is_last)
            # What was there before counts in what is alive already.
            for place in range(begin, end):
                during[place] += touch.size * is_first
            for place in range(end, len(during)):
                during[place] -= touch.size * (not is_first)
        return max(during), change

    def opened(self, number: int, done: int, ready: int) -> int:
        """What is ready once a run has been executed as the last of `done`."""
        ready &= ~(1 << number)
        for before, those in self._waiting[number]:
            if before & done == before:
                ready |= those
        return ready


class _State(NamedTuple):
    """A set of executed runs of a part, and one way to it."""

    done: int
    ready: int
    alive: int
    """Bytes after it."""
    peak: int
    """The largest sum on the way."""
    ran: tuple[int, ...]
    """The runs that were executed last, in order."""
    earlier: _State | None

    def order(self) -> list[int]:
        """All runs on the way, in order."""
        found: list[int] = []
        state: _State | None = self
        while state is not None:
            found += reversed(state.ran)
            state = state.earlier
        return found[::-1]


class _Part:
    """The runs between two cuts: an order of them, its peak, and what no order of them does without."""

    def __init__(self, search: _Search, numbers: list[int]):
        self._search = search
        self._mask = sum(1 << each for each in numbers)
        self.order = numbers
        self.bound = max(search.least[each] for each in numbers)
        done = 0
        for each in numbers:
            done |= search.runs.ancestors[each]
        done &= ~self._mask
        sized = zip(search.runs.problem.sizes, search.runs.users, strict=True)
        alive = sum(size for size, users in sized if users & done and users & ~done)
        ready = sum(1 << each for each in numbers if not search.runs.before[each] & ~done)
        self._start = _State(done, ready, alive, 0, (), None)
        self.peak = self._peak(numbers)

    def _peak(self, order: Sequence[int]) -> int:
        done, alive, peak = self._start.done, self._start.alive, 0
        for each in order:
            hill, change = self._search.change(each, done)
            peak = max(peak, alive + hill)
            alive += change
            done |= 1 << each
        return peak

    def improve(self, free: int) -> None:
        """Look for an order of least peak, where `free` bytes cost nothing."""
        free = max(free, self.bound)
        for width in BEAMS:
            if self.peak > free:
                self._take(self._beam(free, width))
        if self.peak > free:
            self._exact(free)

    def _take(self, state: _State | None) -> None:
        if state is not None and state.peak < self.peak:
            self.order, self.peak = state.order(), state.peak

    def _extend(self, state: _State, number: int, free: int) -> _State:
        """The state after a run, and after all that costs nothing then."""
        search = self._search
        hill, change = search.change(number, state.done)
        done, alive, peak, ran = (
            state.done | 1 << number,
            state.alive + change,
            max(state.peak, state.alive + hill),
            [number],
        )
        ready = search.opened(number, done, state.ready) & self._mask
        allowed = max(peak, free)
        left = ready & search.may_shrink
        if change >= 0 and allowed == max(state.peak, free):
            # Of those that were ready before, only what a buffer is shared with may cost nothing now.
            left &= ~state.ready | search.near[number]
        while left:
            begun = len(ran)
            for each in _bits(left):
                search.steps -= 1
                hill, change = search.change(each, done)
                if change <= 0 and alive + hill <= allowed:
                    done, alive, peak = done | 1 << each, alive + change, max(peak, alive + hill)
                    ready = search.opened(each, done, ready) & self._mask
                    ran.append(each)
            # One that was dear, or new, may be cheap now.
            left = ready & search.may_shrink if len(ran) > begun else 0
        search.steps -= len(ran)
        return _State(done, ready, alive, peak, tuple(ran), state)

    def _beam(self, free: int, width: int) -> _State | None:
        """A good order: of the sets after as many runs, those with the lowest peak are kept, then the fewest bytes."""
        layers: dict[int, dict[int, _State]] = {0: {0: self._start}}
        best: _State | None = None
        weights = [len(ops) for ops in self._search.runs.ops]
        size = sum(weights[each] for each in _bits(self._mask))
        limit = self.peak
        for count in range(size):
            kept = nsmallest(
                width,
                layers.pop(count, {}).values(),
                key=lambda each: (max(each.peak, free), each.alive, each.done),
            )
            following: list[tuple[int, int, int, int]] = []
            if self._search.steps <= 0:
                return best
            for place, state in enumerate(kept):
                for each in _bits(state.ready):
                    self._search.steps -= 1
                    hill, change = self._search.change(each, state.done)
                    if (peak := max(state.alive + hill, state.peak, free)) < limit:
                        following.append((peak, state.alive + change, place, each))
            seen: set[int] = set()
            for _, _, place, each in sorted(following):
                if (after := kept[place].done | 1 << each) in seen:
                    continue
                seen.add(after)
                new = self._extend(kept[place], each, free)
                reached = count + sum(weights[one] for one in new.ran)
                if reached == size:
                    if new.peak < limit:
                        best, limit = new, new.peak
                    continue
                layer = layers.setdefault(reached, {})
                known = layer.get(new.done)
                if known is None or new.peak < known.peak:
                    layer[new.done] = new
        return best

    def _exact(self, free: int) -> None:
        """The cheapest set first; sets of one peak deepest first."""
        search = self._search
        found: dict[int, int] = {}
        number = 0
        heap: list[tuple[int, int, int, int, _State]] = [(free, 0, 0, 0, self._start)]
        while heap:
            peak, _, _, _, state = heappop(heap)
            if peak > free:  # which may be no more than what was found of another part
                self.bound = max(self.bound, min(peak, self.peak))
            if peak >= self.peak:
                return
            if not state.ready:
                self._take(state)
                return
            if found.get(state.done, peak) < peak:
                continue
            if search.steps <= 0:
                return
            for each in _bits(state.ready):
                search.steps -= 1
                hill, _ = search.change(each, state.done)
                if max(state.alive + hill, state.peak, free) >= self.peak:
                    continue
                new = self._extend(state, each, free)
                cost = max(new.peak, free)
                if found.get(new.done, cost + 1) <= cost:
                    continue
                found[new.done] = cost
                number += 1
                heappush(heap, (cost, -new.done.bit_count(), new.alive, number, new))
        self.bound = max(self.bound, self.peak)


def _bits(mask: int) -> Iterator[int]:
    """The numbers of a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
