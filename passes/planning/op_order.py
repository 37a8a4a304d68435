"""
The order of operations that needs the least memory, as plain data: what each op touches, and what must come before it.

A buffer is alive from the first op that touches it to the last, so an order decides what is alive together; the peak
of an order is the largest sum of bytes that are alive during one op. To find an order of least peak is NP-hard (it is
one-shot pebbling with weights). The search runs over the sets of ops that have been executed, of which the bytes
that are alive depend, and nothing else: the cheapest set first by the peak on the way to it, so that the first way to
the whole set is one of least peak, and the peak of the cheapest set that is left is a lower bound at any time. Sets
of ops were searched so by SERENITY (Ahn et al., MLSys 2020); these make it small here:

- an op that is ready, raises no peak and leaves no more bytes alive than before is executed at once: moved forward
  to that place in any order, it makes no other op dearer;
- an op that all others come before or after splits the graph: its sides are searched one after the other, and a peak
  that one of them cannot avoid is free for the others;
- bytes that are alive during an op in every order give a bound before the search begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

DEFAULT_STEPS = 20_000
"""Sets of ops that are extended, in all."""
BEAM = 32
"""Sets kept after each op by the search for a first order."""


@dataclass(frozen=True)
class OrderProblem:
    """Ops, numbered in the order in which they stand, which is one that is allowed."""

    sizes: tuple[int, ...]
    """Bytes of each buffer."""
    touched: tuple[frozenset[int], ...]
    """For each op the buffers that it reads or writes."""
    before: tuple[frozenset[int], ...]
    """For each op those that must come before it; smaller numbers."""
    inside: tuple[int, ...]
    """Bytes that each op needs for itself while it runs."""

    def __post_init__(self) -> None:
        if not len(self.touched) == len(self.before) == len(self.inside):
            raise ValueError("an order problem says of each op what it touches, what comes before it, what it needs")
        if any(not other < op for op, others in enumerate(self.before) for other in others):
            raise ValueError("an op of an order problem comes after itself")


@dataclass(frozen=True)
class OrderOutcome:
    """An order, and how good it is."""

    order: tuple[int, ...]
    """The numbers of all ops."""
    peak: int
    """The most bytes that are alive during an op."""
    bound: int
    """Bytes that no order can do without."""

    @property
    def is_optimal(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak == self.bound


def peak_of(problem: OrderProblem, order: Sequence[int]) -> int:
    """
    The most bytes that are alive during one op of an order.

    Raises ValueError unless each op stands in it once, after all that must come before it. It shares nothing with the
    search: what it says of an order is a certificate.
    """
    place = {op: number for number, op in enumerate(order)}
    if len(order) != len(problem.touched) or len(place) != len(order):
        raise ValueError("an order has each op once")
    if any(place[other] > place[op] for op, others in enumerate(problem.before) for other in others):
        raise ValueError("an op of an order comes before what it needs")
    alive = [0] * (len(order) + 1)
    for buffer, size in enumerate(problem.sizes):
        at = [place[op] for op, touched in enumerate(problem.touched) if buffer in touched]
        if at:
            alive[min(at)] += size
            alive[max(at) + 1] -= size
    peak = total = 0
    for number, op in enumerate(order):
        total += alive[number]
        peak = max(peak, total + problem.inside[op])
    return peak


def order_ops(problem: OrderProblem, steps: int = DEFAULT_STEPS) -> OrderOutcome:
    """
    An order of least peak; with more than `steps` sets to extend the best that was found, and a bound.

    Where no order is better than that in which the ops stand, it is that one. The same problem gives the same order.
    """
    given = tuple(range(len(problem.touched)))
    peak = peak_of(problem, given)
    search = _Search(problem)
    bound = max((search.least_during(op) for op in given), default=0)
    if peak == bound:
        return OrderOutcome(given, peak, bound)
    parts = [_Part(search, ops) for ops in search.parts()]
    # What one part cannot do without, the others may take: so the part with the largest peak comes first.
    for part in sorted(parts, key=lambda each: -each.peak):
        steps = part.improve(bound, steps)
        bound = max(bound, part.bound)
    order = tuple(op for part in parts for op in part.order)
    found = peak_of(problem, order)
    return OrderOutcome(order, found, bound) if found < peak else OrderOutcome(given, peak, bound)


class _Search:
    """The graph of a problem, sets of ops as integers, a bit an op."""

    def __init__(self, problem: OrderProblem):
        self.inside = problem.inside
        self.sizes = problem.sizes
        self.count = len(problem.touched)
        self.touched = [tuple(sorted(buffers)) for buffers in problem.touched]
        self.users = [0] * len(problem.sizes)
        """For each buffer the ops that touch it."""
        for op, buffers in enumerate(self.touched):
            for buffer in buffers:
                self.users[buffer] |= 1 << op
        self.before = [sum(1 << other for other in others) for others in problem.before]
        self.after: list[list[int]] = [[] for _ in self.touched]
        for op, others in enumerate(problem.before):
            for other in others:
                self.after[other].append(op)
        self.ancestors = [0] * self.count
        for op, others in enumerate(problem.before):
            for other in others:
                self.ancestors[op] |= self.ancestors[other] | 1 << other
        self.descendants = [0] * self.count
        for op in reversed(range(self.count)):
            for later in self.after[op]:
                self.descendants[op] |= self.descendants[later] | 1 << later

    def least_during(self, op: int) -> int:
        """Bytes that are alive while `op` runs, in every order."""
        here = 1 << op
        before, after = self.ancestors[op] | here, self.descendants[op] | here
        return self.inside[op] + sum(
            size for size, users in zip(self.sizes, self.users, strict=True) if users & before and users & after
        )

    def parts(self) -> list[list[int]]:
        """The ops between those that all others come before or after, each such op at the end of its part."""
        everything = (1 << self.count) - 1
        cuts = [op for op in range(self.count) if self.ancestors[op] | self.descendants[op] | 1 << op == everything]
        found: list[list[int]] = []
        placed = 0
        for cut in cuts:
            inside = (self.ancestors[cut] | 1 << cut) & ~placed
            found.append([op for op in range(self.count) if inside >> op & 1])
            placed |= inside
        if rest := [op for op in range(self.count) if not placed >> op & 1]:
            found.append(rest)
        return found

    def run(self, op: int, done: int, alive: int) -> tuple[int, int]:
        """The bytes that are alive during an op after the set `done`, and those after it."""
        during = alive
        freed = 0
        now = done | 1 << op
        for buffer in self.touched[op]:
            users = self.users[buffer]
            if not users & done:
                during += self.sizes[buffer]
            if not users & ~now:
                freed += self.sizes[buffer]
        return during + self.inside[op], during - freed

    def opened(self, op: int, done: int, ready: int) -> int:
        """What is ready once `op` has run as the last of `done`."""
        ready &= ~(1 << op)
        for later in self.after[op]:
            if not self.before[later] & ~done:
                ready |= 1 << later
        return ready


@dataclass(frozen=True)
class _State:
    """A set of executed ops of a part, and one way to it."""

    done: int
    ready: int
    alive: int
    """Bytes after it."""
    peak: int
    """The largest sum on the way."""
    ran: tuple[int, ...]
    """The ops that were run last, in order."""
    earlier: _State | None

    def order(self) -> list[int]:
        """All ops on the way, in order."""
        ops: list[int] = []
        state: _State | None = self
        while state is not None:
            ops += reversed(state.ran)
            state = state.earlier
        return ops[::-1]


class _Part:
    """The ops between two cuts: an order of them, its peak, and what no order of them does without."""

    def __init__(self, search: _Search, ops: list[int]):
        self._search = search
        self._mask = sum(1 << op for op in ops)
        self.order = ops
        self.bound = max(search.least_during(op) for op in ops)
        done = 0
        for op in ops:
            done |= search.ancestors[op]
        done &= ~self._mask
        alive = sum(
            size for size, users in zip(search.sizes, search.users, strict=True) if users & done and users & ~done
        )
        ready = sum(1 << op for op in ops if not search.before[op] & ~done)
        self._start = _State(done, ready, alive, 0, (), None)
        self.peak = self._peak(ops)

    def _peak(self, order: Sequence[int]) -> int:
        done, alive, peak = self._start.done, self._start.alive, 0
        for op in order:
            during, alive = self._search.run(op, done, alive)
            done |= 1 << op
            peak = max(peak, during)
        return peak

    def improve(self, free: int, steps: int) -> int:
        """Look for an order of least peak, where `free` bytes cost nothing; returns the steps that are left."""
        free = max(free, self.bound)
        if self.peak <= free:
            return steps
        self._take(self._beam(free))
        if self.peak <= free:
            return steps
        return self._exact(free, steps)

    def _take(self, state: _State | None) -> None:
        if state is not None and state.peak < self.peak:
            self.order, self.peak = state.order(), state.peak

    def _extend(self, state: _State, op: int, free: int) -> _State:
        """The state after `op`, and after all that costs nothing then."""
        search = self._search
        during, alive = search.run(op, state.done, state.alive)
        done, peak, ran = state.done | 1 << op, max(state.peak, during), [op]
        ready = search.opened(op, done, state.ready & self._mask) & self._mask
        allowed = max(peak, free)
        while True:
            for each in _ops(ready):
                during, after = search.run(each, done, alive)
                if during <= allowed and after <= alive:
                    done, alive, peak = done | 1 << each, after, max(peak, during)
                    ready = search.opened(each, done, ready) & self._mask
                    ran.append(each)
                    break
            else:
                return _State(done, ready, alive, peak, tuple(ran), state)

    def _beam(self, free: int) -> _State | None:
        """A good order: of the sets after as many ops, those with the lowest peak are kept, then the fewest bytes."""
        layers: dict[int, dict[int, _State]] = {0: {0: self._start}}
        best: _State | None = None
        size = self._mask.bit_count()
        for count in range(size):
            kept = sorted(
                layers.pop(count, {}).values(), key=lambda each: (max(each.peak, free), each.alive, each.done)
            )
            for state in kept[:BEAM]:
                for op in _ops(state.ready):
                    new = self._extend(state, op, free)
                    if new.peak >= self.peak or (best is not None and new.peak >= best.peak):
                        continue
                    reached = (new.done & self._mask).bit_count()
                    if reached == size:
                        best = new
                        continue
                    layer = layers.setdefault(reached, {})
                    known = layer.get(new.done)
                    if known is None or new.peak < known.peak:
                        layer[new.done] = new
        return best

    def _exact(self, free: int, steps: int) -> int:
        """The cheapest set first; sets of one peak deepest first."""
        found: dict[int, int] = {}
        number = 0
        heap: list[tuple[int, int, int, int, _State]] = [(free, 0, 0, 0, self._start)]
        while heap:
            peak, _, _, _, state = heappop(heap)
            self.bound = max(self.bound, min(peak, self.peak))
            if peak >= self.peak:
                return steps
            if not state.ready:
                self._take(state)
                self.bound = max(self.bound, min(self.peak, peak))
                return steps
            if found.get(state.done, peak) < peak:
                continue
            if not steps:
                return 0
            steps -= 1
            for op in _ops(state.ready):
                new = self._extend(state, op, free)
                cost = max(new.peak, free)
                if cost >= self.peak or found.get(new.done, cost + 1) <= cost:
                    continue
                found[new.done] = cost
                number += 1
                heappush(heap, (cost, -new.done.bit_count(), new.alive, number, new))
        self.bound = max(self.bound, self.peak)
        return steps


def _ops(mask: int) -> Iterator[int]:
    """The ops of a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
