# SPDX-License-Identifier: Apache-2.0
"""
The planner `exact`: the least peak, proved, if it is given the time. It needs a C compiler.

`Search` answers whether everything fits below a given height; `search.c` says how it searches. `Minimiser` asks it for
plans of ever lower heights, and keeps the best plan and the best proof in between: an answer "nothing fits below this
height" raises the bound, and where the two meet the plan is optimal. Any time it stops it has a plan. One step is one
look at a section or at a pair of buffers that meet.

```python
search = Search(compact(problem), height, seed=0)  # height in bytes
while search.verdict is Verdict.OPEN:
    search.advance(10_000_000)  # steps: a tenth of a second or less
if search.verdict is Verdict.FOUND:
    plan = search.plan  # of a peak <= height; otherwise it is proved that nothing fits below it
```

The run time of a depth-first search is heavy-tailed in the order in which it tries what may lie at a floor (Gomes,
Selman and Kautz, AAAI 1998). So it restarts under other orders, after lengths that are those of Luby, Sinclair and
Zuckerman (1993), which lose only a logarithm against the best lengths in hindsight:

1. The shortest run takes half as many nodes again as there are pieces.
2. First come fixed runs: each measure that the field sorts buffers by, largest first, with each rule for choosing
   sections and each for what fits best.
3. Then everything is drawn from the seed, for each run anew, and the lengths start over: by turns one measure and a
   weighted sum of all, the amount of log-normal noise in it, and both rules. Which of these helps differs from problem
   to problem.
4. Several lanes, each with a seed of its own, take turns in rounds of as many steps, in threads if there are any. The
   first lane that finds something in a round decides, so that the number of threads changes nothing but the time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from penstock.passes.planning.base import above_base
from penstock.passes.planning.bounds import grain, strong_lower_bound, sufficient_height
from penstock.passes.planning.budget import Budget
from penstock.passes.planning.instance import Instance, Numbers, Subproblem, compact
from penstock.passes.planning.native import NativeState, library_for
from penstock.passes.planning.problem import (
    FAR,
    Limits,
    Outcome,
    Plan,
    PlanError,
    Problem,
    height,
    lower_bound,
    validate,
)
from penstock.passes.planning.search_orders import FitRule, SearchRun, SectionRule, runs

Hashes = NDArray[np.uint64]


class Verdict(IntEnum):
    """What a search has found; the numbers are those of search.c."""

    FOUND = 0
    IMPOSSIBLE = 1
    """Proved."""
    OPEN = 2


_MORE_ROOM = 3
_FRAME_FIELDS = 11
_POINTERS = (
    "size section_start section member_start member near_start near range_start range align shift tie twin single "
    "hull_begin hull_end ceiling key_low key_top key_piece key_pinned rank by_rank low top placed pinned floor total "
    "left weight sum mark dirty trail frame choice frame_key table"
)
_NUMBERS = (
    "pieces sections switches rule fit tick dirty_count trail_count trail_room trail_step frame_count frame_room "
    "choice_count choice_room phase at until from to table_mask steps nodes"
)


@dataclass(frozen=True)
class Switches:
    """
    The rules that make the search fast, each of which may be turned off: no answer changes, only the time it takes.

    The first five are rules of minimalloc, in the form that they take where one section is filled at a time.
    """

    inference: bool = True
    """Section inference: what is left of a section fits above its floor."""
    floors: bool = True
    """The floor of a section is at least the lowest offset of any piece left of it."""
    holes: bool = True
    """Dominance: no hole is left in which a piece that is placed later would fit."""
    hatless: bool = True
    """Of a piece that nothing left ever meets, only the lowest offset is tried."""
    parts: bool = True
    """Parts of the time axis that nothing left crosses are solved on their own."""
    lifts: bool = True
    """Ours: where nothing starts at a floor, it rises to the next offset where something may rest."""
    twins: bool = True
    """Ours: interchangeable pieces are placed in one order."""
    memory: bool = True
    """Ours: what was found to fail is not tried again, by whatever way it is reached, in any restart."""
    jumps: bool = True
    """Conflict-directed backjumping (Prosser 1993): back to the last decision that a failure is about, by time."""
    weights: bool = True
    """Ours: sections that often overflow are filled earlier. Without, slack alone counts where they would be."""
    fits: bool = True
    """Ours: in two runs of three, what fits best between its neighbours goes before what the order says."""
    orders: bool = True
    """The fixed orders come first; without, all are drawn at random."""
    restarts: bool = True
    """Luby's restarts under other orders; without, the first order is followed to its end."""
    lanes: bool = True
    """Restarts by several seeds take turns; without, by one."""

    @property
    def bits(self) -> int:
        """Those that search.c knows, as flags in the order above."""
        return sum(1 << bit for bit, field in enumerate(fields(self)[:9]) if getattr(self, field.name))


class _Lane:
    """The search of one part, by the runs of one seed."""

    def __init__(self, part: Subproblem, height: int, switches: Switches, seed: int, lane: int, lanes: int):
        self.part = part
        self.verdict = Verdict.OPEN
        self.runs = 0
        self._library = library_for("exact")
        self._switches = switches
        self._runs = runs(part, seed, switches.restarts, switches.orders, lane, lanes)
        self._limit = 0
        self._state = NativeState(_POINTERS, _NUMBERS)
        ranges = part.ranges(height)
        lows = [
            _lowest(spans, align, shift)
            for spans, align, shift in zip(ranges, part.align.tolist(), part.shift.tolist(), strict=True)
        ]
        if None in lows:
            self.verdict = Verdict.IMPOSSIBLE
            return
        members, pieces = part.members, len(part.size)
        low = np.array(lows, np.int64)
        top = np.array([spans[-1][1] for spans in ranges], np.int64) + part.size
        floor = np.minimum.reduceat(low[members.values], members.starts[:-1])
        ceiling = np.maximum.reduceat(top[members.values], members.starts[:-1])
        if np.any(floor + part.total > ceiling):
            self.verdict = Verdict.IMPOSSIBLE
            return
        keys = _random_words(4 * 2 * pieces).reshape(4, pieces, 2)
        self._start = {
            "low": low,
            "top": low,
            "floor": floor,
            "total": part.total,
            "left": np.diff(members.starts),
            "weight": np.ones(len(members), np.int64),
            "sum": _sums(part, low, keys, holes=switches.holes),
            "placed": np.zeros(pieces, np.int64),
            "pinned": np.zeros(pieces, np.int64),
        }
        # the last of the pieces of a buffer is tied to the first
        last = np.nonzero(part.tie <= np.arange(pieces))[0]
        tied = np.diff(last, prepend=-1)
        begins = part.sections.values[part.sections.starts[:-1]]
        ends = part.sections.values[part.sections.starts[1:] - 1] + 1
        table_size = 1 << min(18, pieces.bit_length() + 8)
        self._state.set_numbers(
            pieces=pieces,
            sections=len(members),
            switches=switches.bits,
            table_mask=table_size - 1,
            trail_step=2 * (int((tied * tied).sum()) + 3 * pieces + 3 * len(members) + 8),
        )
        self._state.set_arrays(
            size=part.size,
            section_start=part.sections.starts,
            section=part.sections.values,
            member_start=members.starts,
            member=members.values,
            near_start=part.near.starts,
            near=part.near.values,
            range_start=np.cumsum([0, *map(len, ranges)], dtype=np.int64),
            range=np.array([span for each in ranges for span in each], np.int64),
            align=part.align,
            shift=part.shift,
            tie=part.tie,
            twin=part.twin,
            single=(part.tie == np.arange(pieces)).astype(np.int64),
            hull_begin=np.repeat(np.minimum.reduceat(begins, last - tied + 1), tied),
            hull_end=np.repeat(np.maximum.reduceat(ends, last - tied + 1), tied),
            ceiling=ceiling,
            key_low=keys[0],
            key_top=keys[1],
            key_piece=keys[2],
            key_pinned=keys[3],
            mark=np.zeros(len(members) + pieces, np.int64),
            dirty=np.zeros(len(members), np.int64),
            table=np.zeros(3 * table_size, np.uint64),
        )
        self._grow()

    @property
    def steps(self) -> int:
        return self._state.struct.steps

    @property
    def nodes(self) -> int:
        return self._state.struct.nodes

    def advance(self, steps: int) -> None:
        """Go on until a verdict, or as many steps in all."""
        state = self._state
        while self.verdict is Verdict.OPEN and self.steps < steps:
            if self.nodes >= self._limit:
                self._restart(next(self._runs))
            while (result := self._library.penstock_search(state.reference, steps, self._limit)) == _MORE_ROOM:
                self._grow()
            self.verdict = Verdict(result)

    def offsets(self) -> dict[str, int]:
        """The byte offset of every buffer of the part, by id."""
        part = self.part
        rows = zip(part.buffers, self._state.arrays["low"].tolist(), part.shift.tolist(), strict=True)
        return {buffer.id: (low - shift) * part.unit for buffer, low, shift in rows}

    def _restart(self, run: SearchRun) -> None:
        slack = run.rule is SectionRule.WEIGHTED_SLACK and not self._switches.weights
        self._state.set_arrays(
            rank=run.rank, by_rank=run.rank.argsort(), **{name: array.copy() for name, array in self._start.items()}
        )
        self._state.set_numbers(
            rule=SectionRule.LEAST_SLACK if slack else run.rule,
            fit=run.fit if self._switches.fits else FitRule.NONE,
            trail_count=0,
            frame_count=0,
            choice_count=0,
            phase=0,
            at=0,
            until=len(self.part.members),
        )
        self._limit = self.nodes + run.nodes
        self.runs += 1

    def _grow(self) -> None:
        """Twice the room for the path, or what a path of as many frames as pieces may take at first."""
        struct = self._state.struct
        frames = 2 * struct.frame_room or struct.pieces + 16
        choices = max(2 * struct.choice_room, 4 * struct.pieces)
        trail = max(2 * struct.trail_room, 4 * struct.trail_step)
        lengths = {"frame": frames * _FRAME_FIELDS, "frame_key": 2 * frames, "choice": choices, "trail": trail}
        for name, length in lengths.items():
            longer = np.zeros(length, np.uint64 if name == "frame_key" else np.int64)
            if (array := self._state.arrays.get(name)) is not None:
                longer[: len(array)] = array
            self._state.set_arrays(**{name: longer})
        self._state.set_numbers(frame_room=frames, choice_room=choices, trail_room=trail)


def _lowest(spans: list[tuple[int, int]], align: int, shift: int) -> int | None:
    """The lowest number in `spans` that is `shift` above a multiple of `align`."""
    for low, high in spans:
        value = -(-(low - shift) // align) * align + shift
        if value <= high:
            return value
    return None


def _sums(part: Subproblem, low: Numbers, keys: Hashes, *, holes: bool) -> Hashes:
    """[sections, 2] What the pieces that begin in a section add to the key of a state."""
    sums = np.zeros((len(part.members), 2), np.uint64)
    first = part.sections.values[part.sections.starts[:-1]]
    lows = low.astype(np.uint64)[:, None]
    np.add.at(sums, first, keys[0] * lows + (keys[1] * lows if holes else np.uint64(0)) + keys[2])
    return sums


def _random_words(count: int) -> Hashes:
    """Words that look random, always the same: SplitMix64."""
    with np.errstate(over="ignore"):
        words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


LANES = 4
"""Searches of a part that take turns, each with a seed of its own; so many threads help."""

JOINS_AFTER = 100_000
"""Steps of each lane after which one more joins them: many a problem needs but one."""

FIRST_ROUND = 2_000
LAST_ROUND = 256_000
"""Steps of each lane in a round, at least and at most; between them an eighth of its steps so far."""


class _PartSearch:
    """
    The search of one part: lanes in rounds, the first of which has the verdict where several have one in one round.

    So the verdict does not depend on whether the lanes of a round run side by side or one after the other, and what
    those after it did in that round is not counted.
    """

    def __init__(self, part: Subproblem, height: int, switches: Switches, seed: int):
        self._count = LANES if switches.lanes and switches.restarts else 1
        self._lane = partial(_Lane, part, height, switches, seed, lanes=self._count)
        self._lanes = [self._lane(lane=0)]
        self._latest = self._lanes[0]
        self._reach = 0
        self.steps = self.nodes = self.runs = 0

    @property
    def verdict(self) -> Verdict:
        return self._latest.verdict

    def advance(self, pool: Executor | None) -> None:
        """Go on for a round, the lanes side by side in the threads of a pool if there is one."""
        self._reach += min(max(FIRST_ROUND, self._reach // 8), LAST_ROUND)
        if len(self._lanes) < self._count and self._reach > len(self._lanes) * JOINS_AFTER:
            self._lanes.append(self._lane(lane=len(self._lanes)))
        starts = [(lane.steps, lane.nodes, lane.runs) for lane in self._lanes]
        going = [pool.submit(lane.advance, self._reach) for lane in self._lanes] if pool is not None else []
        wait(going)
        for lane, (steps, nodes, begun) in zip(self._lanes, starts, strict=True):
            lane.advance(self._reach)
            self.steps += lane.steps - steps
            self.nodes += lane.nodes - nodes
            self.runs += lane.runs - begun
            self._latest = lane
            if lane.verdict is not Verdict.OPEN:
                return

    def offsets(self) -> dict[str, int]:
        """The byte offset of every buffer of the part, by id."""
        return self._latest.offsets()


class Search:
    """
    Whether a problem has a plan of no more than `height` bytes; raises UserError where there is no C compiler.

    A step is a look at one section or at one pair of pieces that meet. The same problem, height, switches and seed
    take the same steps, however they are cut into slices, and in however many threads of `pool`. `known`, a plan that
    may be higher, saves looking at parts in which it is not.
    """

    def __init__(
        self,
        instance: Instance,
        height: int,
        switches: Switches | None = None,
        seed: int = 0,
        known: Plan | None = None,
        pool: Executor | None = None,
    ):
        self._pool = pool
        self._instance = instance
        self._offsets = dict(instance.empty)
        self._parts: list[_PartSearch] = []
        self.verdict = Verdict.OPEN
        for part in instance.parts:
            if known is not None and all(known.offsets[b.id] + b.size <= height for b in part.buffers):
                self._offsets.update((b.id, known.offsets[b.id]) for b in part.buffers)
            else:
                self._parts.append(_PartSearch(part, height, switches or Switches(), seed))
        self._open = [part for part in self._parts if part.verdict is Verdict.OPEN]
        if any(offset > height for offset in instance.empty.values()) or len(self._open) < len(self._parts):
            self.verdict = Verdict.IMPOSSIBLE
        elif not self._open:
            self.verdict = Verdict.FOUND

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return sum(part.steps for part in self._parts)

    @property
    def nodes(self) -> int:
        """Nodes of the search tree visited so far."""
        return sum(part.nodes for part in self._parts)

    @property
    def runs(self) -> int:
        """Runs begun so far."""
        return sum(part.runs for part in self._parts)

    @property
    def plan(self) -> Plan:
        """The plan that was found."""
        if self.verdict is not Verdict.FOUND:
            raise ValueError("nothing was found")
        offsets = dict(self._offsets)
        for part in self._parts:
            offsets.update(part.offsets())
        return Plan({buffer.id: offsets[buffer.id] for buffer in self._instance.problem.buffers})

    def advance(self, steps: int) -> Verdict:
        """Go on for about as many steps more, in rounds of some thousands, unless there is a verdict before."""
        left = steps
        while self.verdict is Verdict.OPEN and left > 0:
            # the parts take turns, a round each
            part = min(self._open, key=lambda part: part.steps)
            before = part.steps
            part.advance(self._pool)
            left -= part.steps - before
            if part.verdict is Verdict.IMPOSSIBLE:
                self.verdict = Verdict.IMPOSSIBLE
            elif part.verdict is Verdict.FOUND:
                self._open.remove(part)
                if not self._open:
                    self.verdict = Verdict.FOUND
        return self.verdict


DEFAULT_STEPS = 60_000_000
"""Steps without any limit: one or two seconds."""

SLICE = 500_000
"""Steps of the search for one height before the next is tried; doubled each time that none gave an answer."""

SHARES = (1 / 4, 1 / 2, 3 / 4)
"""Where between the least and the best it looks for heights that it reaches sooner."""

LEAST_WORTH = 1 / 8
"""Of a turn that never is of any use, against one of the search for the least height."""


@above_base
def plan(problem: Problem, limits: Limits) -> Outcome:
    """The best plan found, what was proved of every other, and whether nothing at all fits the capacity."""
    return Minimiser(problem, limits).run()


class Minimiser:
    """
    Brings a plan and a bound together until they meet, or until a limit.

    In turns, for ever longer: the search for a plan of the least height that may exist (any plan as long as there is
    none, and one within the capacity as long as nothing fits it), and that for heights between the least and the best.
    """

    def __init__(
        self, problem: Problem, limits: Limits, switches: Switches | None = None, default_steps: int = DEFAULT_STEPS
    ):
        self.problem = problem
        self.limits = limits
        self.switches = switches
        self.budget = Budget(limits, default_steps)
        self.bound = lower_bound(problem)
        self.best: Plan | None = None
        self.peak = FAR
        self.is_hopeless = False
        """Whether it is proved that there is no plan, however large the memory is."""
        self.worth: dict[Callable[[int], None], float] = {self._search_between: 1.0}
        """The turns beside the search for the least height, and how long each is against that."""
        self._searches: dict[int, Search] = {}
        self._between = dict.fromkeys(SHARES, 0)
        self._pool: Executor | None = None

    @property
    def goal(self) -> int:
        """The height at which nothing is left to do."""
        return max(self.bound, self.limits.good_enough or 0)

    @property
    def aim(self) -> int:
        """The height to reach next: any at all, then the capacity, then the least."""
        if self.best is None:
            return self._sufficient
        capacity = self.problem.capacity
        return capacity if capacity is not None and self.goal < capacity < self.peak else self.goal

    @property
    def is_infeasible(self) -> bool:
        """Whether it is proved that no plan fits."""
        return self.is_hopeless or (self.problem.capacity is not None and self.bound > self.problem.capacity)

    @property
    def is_finished(self) -> bool:
        """Whether more steps are of no use, or there are none."""
        return self.is_hopeless or self.peak <= self.goal or self.budget.over

    def run(self) -> Outcome:
        """Take turns until the goal, or a limit."""
        if self.limits.threads < 2:
            return self._run()
        with ThreadPoolExecutor(min(self.limits.threads, LANES)) as self._pool:
            return self._run()

    def _run(self) -> Outcome:
        self._instance = compact(self.problem)
        self._grain = grain(self._instance)
        self.raise_bound(strong_lower_bound(self.problem, self._instance))
        self._sufficient = sufficient_height(self.problem, self.bound)
        if self.best is None:
            self._take_hints()
        effort = SLICE
        while not self.is_finished:
            self._search(self.aim, effort)
            for turn in self.worth:
                self._in_proportion(turn, effort)
            effort *= 2
        return self.outcome()

    def outcome(self) -> Outcome:
        """What is known so far."""
        return Outcome(self.best, self.bound, self.is_infeasible, self.budget.spent)

    def take(self, found: Plan) -> None:
        """Take note of a plan, if it is lower than the best."""
        peak = height(self.problem, found)
        if peak < self.peak:
            self.best, self.peak = found, peak

    def raise_bound(self, bound: int) -> None:
        """Take note of a proof."""
        self.bound = max(self.bound, bound)

    def _take_hints(self) -> None:
        """What the hints say, if that is a plan."""
        hints = {b.id: b.hint if b.offset is None else b.offset for b in self.problem.buffers}
        hinted = Plan({id: hint for id, hint in hints.items() if hint is not None})
        try:
            validate(replace(self.problem, capacity=None), hinted)
        except PlanError:
            return
        self.take(hinted)

    def _in_proportion(self, turn: Callable[[int], None], effort: int) -> None:
        """A turn, the shorter the longer it has been of no use."""
        if self.is_finished:
            return
        before = self.peak, self.bound
        turn(int(effort * self.worth[turn]))
        # Where only the first plan that fits is wanted, one that is lower but does not fit is of no use.
        lower = self.peak < before[0] and self.limits.good_enough is None
        useful = lower or self.bound != before[1]
        self.worth[turn] = 1.0 if useful else max(self.worth[turn] / 2, LEAST_WORTH)

    def _search_between(self, steps: int) -> None:
        """Search for heights between the least and the best; the same as before while those will do."""
        for share in SHARES:
            least, best, target = self.aim, self.peak, self._between[share]
            if best == FAR or self.is_finished:
                return
            if not least < target <= least + (best - least) * min(2 * share, (1 + share) / 2):
                target = least + int((best - least) * share) // self._grain * self._grain
                self._between[share] = target
            if least < target < best:
                self._search(target, steps // len(SHARES))

    def _search(self, target: int, steps: int) -> None:
        """Search for a plan of a height."""
        if target not in self._searches:
            # Searches for heights that are of no use any more are dropped.
            wanted = {self.aim, self.goal, *self._between.values()}
            self._searches = {height: search for height, search in self._searches.items() if height in wanted}
            self._searches[target] = Search(
                self._instance, target, self.switches, self.limits.seed, self.best, self._pool
            )
        search = self._searches[target]
        end = self.budget.spent + steps
        while search.verdict is Verdict.OPEN and not self.budget.over and self.budget.spent < end:
            before = search.steps
            search.advance(self.budget.slice(end - self.budget.spent))
            self.budget.spend(max(search.steps - before, 1))
        if search.verdict is Verdict.FOUND:
            self.take(search.plan)
        elif search.verdict is Verdict.IMPOSSIBLE and target == self._sufficient:
            self.is_hopeless = True
        elif search.verdict is Verdict.IMPOSSIBLE:
            self.raise_bound((target // self._grain + 1) * self._grain)
