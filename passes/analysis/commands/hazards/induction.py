# SPDX-License-Identifier: Apache-2.0
"""
Hazards of loops with many iterations, decided on a few of them by induction.

Happens-before between two commands is a chain of commands between them, in program order. In a steady loop (see
`_Steady`) the iterations after the first few issue the same commands, with tokens over the same distances, so such a
chain may be shifted by whole iterations. Therefore

- whether a command of one iteration happens before one of another depends, after the first few, on their distance only;
- it is kept by what comes later: with the distance the answer can only change from no to yes, and once it has been the
  same for as many iterations as a token is carried, it never does.

1. Unroll each steady loop to its first iterations, enough for the answer to settle, and its last ones, where addresses
   may differ (`_Cut`).
2. Check that it has settled (`_has_settled`); if not, keep more iterations.
3. Each pair of unrolled commands stands for all pairs of the whole loop at the same distance. Accesses that are to the
   same bytes again after a period are checked as they are (`races`).
4. The others move by a constant from period to period: whether the bytes of any of the pairs that two unordered
   commands stand for overlap is a bounded integer search (`_Moving`, `_overlap_ever`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.traits import is_side_effect_free

from penstock.dialects import accel, mem
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import memref_of
from penstock.passes.analysis.commands.happens_before import Start, happens_before
from penstock.passes.analysis.commands.hazards.network import Hazard, run
from penstock.passes.analysis.commands.hazards.races import MAX_HAZARDS, Touched, race, races
from penstock.passes.analysis.commands.program import Command, Program, View
from penstock.passes.analysis.commands.recorder import TooManyCommandsError
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.commands.trace import Iterations, trace
from penstock.passes.analysis.index import AffineIndex, IndexReader, Opaque
from penstock.passes.analysis.loops import constant_of, loops_around, trip_count

_MAX_COMMANDS = 20_000
"""The most commands that loops are unrolled to."""
_MAX_PAIRS = 200_000
_MAX_STEPS = 20_000
"""The most steps of one search for an overlap."""


_PERIODS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 30, 32, 48, 60, 64)
_EDGES = (0, 1, 2, 3, 4, 8, 16, 32)


class UndecidedError(Exception):
    """Induction does not apply, or would take too long."""


def decide(
    function: func.FuncOp,
    target: TargetOp,
    *,
    most: int = MAX_HAZARDS,
    limit: int = _MAX_COMMANDS,
    arguments: Sequence[View | None] | None = None,
) -> tuple[list[Hazard], Program]:
    """
    The hazards of a kernel, as `check` names them, without unrolling its long loops.

    With them comes the part of the kernel that was unrolled. Raises UndecidedError if that does not settle within
    `limit` commands, and UserError as `trace` does.
    """
    known: dict[Operation, _Steady] = {
        loop: found for loop in function.walk() if isinstance(loop, scf.ForOp) and (found := _steady(loop))
    }
    more = 0
    while True:
        cuts: dict[Operation, _Cut] = {
            loop: cut for loop, each in known.items() if (cut := _Cut.of(each, more)) is not None
        }
        if not cuts or commands_of(function, cuts) > limit:
            raise UndecidedError
        try:
            program = trace(function, target, limit=2 * limit, iterations=_iterations(cuts), arguments=arguments)
        except TooManyCommandsError:
            raise UndecidedError from None
        order, hazards = run(program)
        if order != list(range(len(program.commands))):
            raise UndecidedError
        starts = list(happens_before(program))
        before = _completed(program, starts)
        if all(_has_settled(execution, before) for execution in _executions(program, cuts)):
            break
        more = 2 * more + 4
    moving = _Moving(program, before, cuts)
    if hazards:
        # A command that stands for those of all iterations names none.
        _, hazards = run(moving.named())
    if pairs := [*islice(races(program, starts, moving.still), most), *moving.races()]:
        named = moving.named()
        hazards += [race(named, *pair) for pair in pairs]
    return hazards[:most], program


@dataclass(frozen=True)
class _Steady:
    """
    A loop whose iterations in the middle are isomorphic.

    `period` iterations later each index in it has grown by a constant: the slots of rings are the same, and views have
    moved on by a constant. That may not be so for some iterations at the beginning and at the end, where a window is
    out of bounds or a minimum applies.
    """

    trips: int
    first: int
    """The iterations from this one on are isomorphic, but for the last `last`."""
    last: int
    period: int
    depth: int
    """After so many iterations no token is carried that was made before the loop, unless it is carried unchanged."""


def _steady(loop: scf.ForOp) -> _Steady | None:
    """The isomorphic iterations of a loop; None if there are none for certain."""
    trips = trip_count(loop)
    depth = _depth(loop)
    if not trips or depth is None:
        return None
    if any(isinstance(op, (accel.PushOp, accel.PopOp)) for op in loop.walk()):
        return None
    edges = sorted(((first, last) for first in _EDGES for last in _EDGES if first + last < trips), key=sum)
    for period in _PERIODS:
        if trips < 2 * period:
            break
        # What does not hold in the middle does not hold with more of the edges either.
        middle = (trips - 2 * period) // 2
        if not _IterationRange(loop, period, min(middle, _EDGES[-1]), trips - min(middle, _EDGES[-1])).are_isomorphic():
            continue
        for first, last in edges:
            if (
                trips - first - last >= 2 * period
                and _IterationRange(loop, period, first, trips - last).are_isomorphic()
            ):
                return _Steady(trips, first, last, period, depth)
    return None


class _IterationRange:
    """The iterations of a loop from `first` to before `end`, and those `period` later."""

    def __init__(self, loop: scf.ForOp, period: int, first: int, end: int):
        self.loop = loop
        self.bounds = first, end
        step, lower = constant_of(loop.step), constant_of(loop.lb)
        assert step is not None
        assert lower is not None
        self._reader = _GrowthReader(loop, step * period, lower + first * step, lower + (end - 1) * step)

    def are_isomorphic(self) -> bool:
        return all(self._is_isomorphic(op) for op in self.loop.body.walk())

    def _is_isomorphic(self, op: Operation) -> bool:
        match op:
            case scf.ForOp():
                return trip_count(op) is not None
            case scf.IfOp():
                # Iterations of different commands are not isomorphic, however regularly they alternate.
                return _IterationRange(self.loop, 1, *self.bounds).growth(op.cond) == 0
            case mem.SlotOp():
                ring = op.ring.owner
                growth = self.growth(op.index)
                return isinstance(ring, mem.RingOp) and growth is not None and growth % ring.slot_count == 0
            case memref.SubviewOp():
                return all(self.growth(value) is not None for value in op.offsets)
            case accel.DmaOp():
                return self._is_isomorphic_window(op)
            case _:
                return True

    def _is_isomorphic_window(self, op: accel.DmaOp) -> bool:
        side = op.window_side
        if side is None:
            return True
        offsets = op.mixed_source_offsets() if side == "source" else op.mixed_dest_offsets()
        shape = memref_of(op.source if side == "source" else op.dest).get_shape()
        for offset, size, bound in zip(offsets, op.box, shape, strict=True):
            growth = 0 if isinstance(offset, int) else self.growth(offset)
            if growth is None:
                return False
            if growth and not isinstance(offset, int):
                reach = self._reader.read(offset).bounds
                if reach is None or reach[0] < 0 or reach[1] + size > bound:
                    return False
        return True

    def growth(self, value: SSAValue) -> int | None:
        """How much larger an index is `period` iterations later; None if that depends on the iteration."""
        index, counter = self._reader.read(value), self.loop.body.block.args[0]
        if index.rest is not None and counter in index.rest.sources:
            return None
        return index.terms.get(counter, 0)


class _GrowthReader(IndexReader):
    """
    Indices at an iteration (p = 0) and `period` iterations later (p = 1), as affine sums of p alone.

    The counter of the loop stands for p: it is an unknown value between `first` and `last - growth`, + growth * p.
    What does not change in between is unknown; what depends on p in another way is unknown, with p as its source.
    """

    def __init__(self, loop: scf.ForOp, growth: int, first: int, last: int):
        super().__init__()
        self._loop = loop
        self._counter = loop.body.block.args[0]
        p = AffineIndex.symbol(self._counter, Opaque(0, 1))
        self._known[self._counter] = p * growth + AffineIndex(rest=Opaque(first, last - growth))

    def _depends(self) -> AffineIndex:
        return AffineIndex(rest=Opaque(sources=frozenset({self._counter})))

    def argument(self, value: BlockArgument) -> AffineIndex:
        """A counter starts again in each iteration; what another loop carries may be anything."""
        if _is_counter(value):
            return AffineIndex(rest=self.counter(value))
        owner = value.block.parent_op()
        return self._depends() if owner is not None and self._loop.is_ancestor(owner) else AffineIndex(rest=Opaque())

    def result(self, value: SSAValue, index: AffineIndex) -> AffineIndex:
        return index

    def unknown(self, value: SSAValue, op: Operation) -> AffineIndex:
        """A pure op repeats what its operands repeat."""
        if not self._loop.is_ancestor(op):
            return AffineIndex(rest=Opaque())
        operands = [self.read(operand) for operand in op.operands]
        if not is_side_effect_free(op) or op.regions or not all(_is_fixed(operand) for operand in operands):
            return self._depends()
        return AffineIndex(rest=Opaque())


def _is_fixed(index: AffineIndex) -> bool:
    return not index.terms and (index.rest is None or not index.rest.sources)


def _is_counter(value: BlockArgument) -> bool:
    return isinstance(value.block.parent_op(), scf.ForOp) and value.index == 0 and isinstance(value.type, IndexType)


def _depth(loop: scf.ForOp) -> int | None:
    """How many iterations a token can be carried before a newer one replaces it; None if there is no bound."""
    carried = loop.body.block.args[1:]
    if any(not isinstance(value.type, accel.TokenType) for value in carried):
        return None
    terminator = loop.body.block.last_op
    assert isinstance(terminator, scf.YieldOp)
    carried_from: list[set[int]] = []
    for number, value in enumerate(terminator.operands):
        if value is carried[number]:
            carried_from.append(set())
            continue
        sources = set(_sources(value, loop.body.block))
        carried_from.append({source for source in sources if terminator.operands[source] is not carried[source]})
    depth = 0
    current = set(range(len(carried)))
    while current:
        depth += 1
        if depth > len(carried) + 1:
            return None
        current = {source for number in current for source in carried_from[number]}
    return depth


def _carried(loop: scf.ForOp, number: int) -> list[SSAValue]:
    """What a token that a loop carries can be after the loop: its first one only if that may not be replaced."""
    terminator = loop.body.block.last_op
    assert isinstance(terminator, scf.YieldOp)
    first, later = loop.iter_args[number], terminator.operands[number]
    if later is loop.body.block.args[number + 1]:
        return [first]
    trips, depth = trip_count(loop), _depth(loop)
    is_replaced = trips is not None and depth is not None and trips >= depth
    return [later] if is_replaced else [first, later]


def _sources(value: SSAValue, block: Block) -> Iterator[int]:
    """The tokens carried into `block` that `value` may be, or be joined of; by their numbers."""
    seen: set[SSAValue] = set()
    pending = [value]
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if isinstance(each, BlockArgument):
            loop = each.block.parent_op()
            if each.block is block:
                yield each.index - 1
            elif isinstance(loop, scf.ForOp) and each.index > 0:
                pending += _carried(loop, each.index - 1)
            continue
        op = each.owner
        if isinstance(op, accel.ReadyOp):
            pending += op.dependencies
        elif isinstance(op, scf.ForOp):
            pending += _carried(op, each.index if isinstance(each, OpResult) else 0)
        elif isinstance(op, scf.IfOp):
            for region in op.regions:
                if (last := region.block.last_op) is not None:
                    pending += last.operands


@dataclass(frozen=True)
class _Cut:
    """A loop of which the first `head` and the last `tail` iterations are unrolled, the others in the gap left out."""

    steady: _Steady
    head: int
    tail: int

    @staticmethod
    def of(steady: _Steady, more: int) -> _Cut | None:
        """With `more` iterations than are needed at least; None if none can be left out."""
        period, tail = steady.period, max(steady.last, steady.period)
        regular = max(steady.first, steady.depth + 1)
        head = regular + 2 * period + max(steady.depth + 2, period) + more
        head += (steady.trips - head - tail) % period
        return _Cut(steady, head, tail) if steady.trips - head - tail >= period else None

    @property
    def regular(self) -> int:
        """The first iteration from which on all have the same addresses, but for a shift, and tokens."""
        return max(self.steady.first, self.steady.depth + 1)

    @property
    def settled(self) -> int:
        """The iterations from `regular` to before this one stand for all later ones, but for those near the end."""
        return self.regular + self.steady.period

    @property
    def far(self) -> int:
        """The iterations from this one to before `head` stand for all later ones, seen from long before."""
        return self.head - self.steady.period

    @property
    def periods(self) -> int:
        """How many periods are left out."""
        return (self.steady.trips - self.head - self.tail) // self.steady.period

    def position(self, iteration: int) -> int:
        """Which of the unrolled iterations it is."""
        return iteration if iteration < self.head else iteration - (self.steady.trips - self.head - self.tail)


_Cuts = Mapping[Operation, _Cut]


def commands_of(function: func.FuncOp, cuts: _Cuts | None = None) -> int:
    """How many accel ops but joins a kernel executes, if loops are cut; a loop that is not static counts once."""
    total = 0
    for op in function.walk():
        if op.name.startswith("accel.") and not isinstance(op, accel.ReadyOp):
            count = 1
            for loop in loops_around(op):
                cut = None if cuts is None else cuts.get(loop)
                count *= (trip_count(loop) or 1) if cut is None else cut.head + cut.tail
            total += count
    return total


def _iterations(cuts: _Cuts) -> Iterations:
    """What `trace` unrolls."""

    def iterations(loop: scf.ForOp, count: int) -> Iterator[int]:
        cut = cuts.get(loop)
        if cut is None:
            yield from range(count)
        else:
            yield from range(cut.head)
            yield from range(count - cut.tail, count)

    return iterations


@dataclass
class _LoopExecution:
    """One execution of a cut loop: the first command of each iteration, and the first one after the loop."""

    cut: _Cut
    starts: dict[int, int] = field(default_factory=dict[int, int])
    end: int = 0


def _executions(program: Program, cuts: _Cuts) -> Iterable[_LoopExecution]:
    """Each execution of a cut loop."""
    loops: dict[Operation, tuple[scf.ForOp, ...]] = {}
    found: dict[tuple[Operation, tuple[int, ...]], _LoopExecution] = {}
    for number, command in enumerate(program.commands):
        if command.op is None:
            raise UndecidedError
        if command.op not in loops:
            loops[command.op] = loops_around(command.op)
        for depth, loop in enumerate(loops[command.op]):
            if loop in cuts:
                execution = found.setdefault((loop, command.counters[:depth]), _LoopExecution(cuts[loop]))
                execution.starts.setdefault(command.counters[depth], number)
                execution.end = number + 1
    return found.values()


def _completed(program: Program, starts: Iterable[Start]) -> list[int]:
    """Of each command the mask of those that are complete when it starts."""
    units = {unit: index for index, unit in enumerate(program.machine.units)}
    members: list[list[int]] = [[] for _ in units]
    prefixes = [[0] for _ in units]
    for number, command in enumerate(program.commands):
        unit = units[command.unit]
        members[unit].append(number)
        prefixes[unit].append(prefixes[unit][-1] | 1 << number)

    @cache
    def mask_of(unit: int, base: int, later: int) -> int:
        mask = prefixes[unit][base]
        for position in range(later.bit_length()):
            if later >> position & 1:
                mask |= 1 << members[unit][base + position]
        return mask

    found: list[int] = []
    for _, _, clock, _ in starts:
        mask = 0
        for unit, completed in enumerate(clock):
            mask |= mask_of(unit, *completed)
        found.append(mask)
    return found


def _has_settled(execution: _LoopExecution, before: Sequence[int]) -> bool:
    """Whether what the iterations before the gap know of the first ones is the same in all of them."""
    cut, starts = execution.cut, [*execution.starts.values(), execution.end]
    old = (1 << starts[cut.settled]) - 1
    last = cut.head - 1
    length = starts[last + 1] - starts[last]
    for back in range(1, max(cut.steady.depth + 2, cut.steady.period)):
        if starts[last - back + 1] - starts[last - back] != length:
            return False
        for at in range(length):
            if (before[starts[last] + at] ^ before[starts[last - back] + at]) & old:
                return False
    # What comes after the loop knows as much of the first regular iteration as of the next.
    one, two, three = starts[cut.regular : cut.regular + 3]
    if two - one != three - two:
        return False
    mask = (1 << two - one) - 1
    return all((mine >> one ^ mine >> two) & mask == 0 for mine in before[execution.end :])


_Key = tuple[Operation, bool, int]
"""An op, whether it writes, and which of its accesses is meant."""


@dataclass(eq=False)
class _MovingAccess:
    """One access of an op, in all the iterations that are unrolled."""

    op: Operation
    writes: bool
    loops: tuple[scf.ForOp, ...]
    regions: dict[int, Region]
    """By the number of the command."""
    steps: list[int]
    """By loop: how many bytes further it is after a period; 0 for a loop that is not cut."""
    mask: int = 0
    """The commands that make it."""

    @property
    def is_moving(self) -> bool:
        return any(self.steps)


class _Moving:
    """The accesses of a program without some iterations; `before` is, by command, the mask of what happens before."""

    def __init__(self, program: Program, before: Sequence[int], cuts: _Cuts):
        self._program, self._before, self._cuts = program, before, cuts
        self._accesses: dict[_Key, _MovingAccess] = {}
        for number, command in enumerate(program.commands):
            for writes, regions in ((False, command.reads), (True, command.writes)):
                for at, region in enumerate(regions):
                    self._access(command, writes, at).regions[number] = region
        for access in self._accesses.values():
            access.steps = [self._step(access, depth) for depth in range(len(access.loops))]
            for number in access.regions:
                access.mask |= 1 << number
        self._moving_at: dict[Operation | None, set[tuple[bool, int]]] = {}
        for (op, writes, at), access in self._accesses.items():
            if access.is_moving:
                self._moving_at.setdefault(op, set()).add((writes, at))
        self._pairs = 0

    def _access(self, command: Command, writes: bool, at: int) -> _MovingAccess:
        assert command.op is not None
        key = command.op, writes, at
        if key not in self._accesses:
            self._accesses[key] = _MovingAccess(command.op, writes, loops_around(command.op), {}, [])
        return self._accesses[key]

    def _step(self, access: _MovingAccess, depth: int) -> int:
        """How far the access moves in a period of the loop at a depth, which must be the same everywhere."""
        cut = self._cuts.get(access.loops[depth])
        if cut is None:
            return 0
        period = cut.steady.period
        by_counters = {self._program.commands[number].counters: region for number, region in access.regions.items()}
        found: set[int] = set()
        for counters, region in by_counters.items():
            if cut.regular <= counters[depth] < cut.far:
                later = (*counters[:depth], counters[depth] + period, *counters[depth + 1 :])
                other = by_counters.get(later)
                if other is None or (other.length, other.dims) != (region.length, region.dims):
                    raise UndecidedError
                found.add(other.start - region.start)
        if len(found) > 1:
            raise UndecidedError
        return next(iter(found), 0)

    def still(self, command: Command) -> tuple[Sequence[Region], Sequence[Region]]:
        """What a command reads and writes that is the same bytes after each period."""
        moving = self._moving_at.get(command.op)
        if moving is None:
            return command.reads, command.writes
        reads, writes = (
            [region for at, region in enumerate(regions) if (writes, at) not in moving]
            for writes, regions in ((False, command.reads), (True, command.writes))
        )
        return reads, writes

    def named(self) -> Program:
        """The program for messages: a command that stands for those of other iterations as well names none."""
        commands = self._program.commands
        ops = {command.op for command in commands if command.op is not None}
        cut = {op for op in ops if any(loop in self._cuts for loop in loops_around(op))}
        return replace(
            self._program, commands=[replace(each, counters=()) if each.op in cut else each for each in commands]
        )

    def races(self) -> Iterator[tuple[Touched, Touched]]:
        """Pairs of accesses that race, of which one is moving, for each two ops once; raises UndecidedError."""
        accesses = list(self._accesses.values())
        named: set[tuple[Operation, Operation]] = set()
        for number, one in enumerate(accesses):
            for two in accesses[number:]:
                if not (one.writes or two.writes) or not (one.is_moving or two.is_moving):
                    continue
                if (one.op, two.op) in named or self._are_apart(one, two):
                    continue
                if (found := self._race(one, two)) is not None:
                    named |= {(one.op, two.op), (two.op, one.op)}
                    yield found

    # all pairs at once

    def _are_apart(self, one: _MovingAccess, two: _MovingAccess) -> bool:
        """Whether it is quickly shown that these accesses of no two different commands overlap."""
        first, second = next(iter(one.regions.values())), next(iter(two.regions.values()))
        if (first.space, first.storage) != (second.space, second.storage):
            return True
        if one is not two:
            (low, high), (least, most) = self._hull(one), self._hull(two)
            if high <= least or most <= low:
                return True
        line, second_line = self._line(one), self._line(two)
        if line is None or second_line is None:
            return False
        (region, mine), (other, theirs) = line, second_line
        counts = [[trip_count(loop) for loop in each.loops] for each in (one, two)]
        if None in (*counts[0], *counts[1]):
            return False
        trips = [[(count or 1) - 1 for count in each] for each in counts]
        try:
            if one is not two:
                terms = [(-step, most) for step, most in zip(mine, trips[0], strict=True)]
                return not _overlap_ever(region, other, terms + list(zip(theirs, trips[1], strict=True)))
            for depth, (step, most) in enumerate(zip(mine, trips[0], strict=True)):
                terms = [(step, most - 1)]
                for inner, times in zip(mine[depth + 1 :], trips[0][depth + 1 :], strict=True):
                    terms += [(inner, times), (-inner, times)]
                if most and _overlap_ever(region, replace(region, start=region.start + step), terms):
                    return False
        except UndecidedError:
            return False
        return True

    def _hull(self, access: _MovingAccess) -> tuple[int, int]:
        low = min(region.start for region in access.regions.values())
        high = max(region.end for region in access.regions.values())
        for loop, step in zip(access.loops, access.steps, strict=True):
            if step:
                distance = step * self._cuts[loop].periods
                low, high = low + min(0, distance), high + max(0, distance)
        return low, high

    def _line(self, access: _MovingAccess) -> tuple[Region, list[int]] | None:
        """The access in the first iterations and how far it moves in one of each loop, if it is affine."""
        commands = self._program.commands
        by_counters = {commands[number].counters: region for number, region in access.regions.items()}
        zero = (0,) * len(access.loops)
        origin = by_counters.get(zero)
        if origin is None:
            return None
        steps: list[int] = []
        for depth in range(len(zero)):
            next_one = by_counters.get((*zero[:depth], 1, *zero[depth + 1 :]))
            steps.append(0 if next_one is None else next_one.start - origin.start)
        for counters, region in by_counters.items():
            start = origin.start + sum(step * count for step, count in zip(steps, counters, strict=True))
            if (region.start, region.length, region.dims) != (start, origin.length, origin.dims):
                return None
        return origin, steps

    # pair by pair

    def _race(self, one: _MovingAccess, two: _MovingAccess) -> tuple[Touched, Touched] | None:
        """The first pair of unordered commands that stands for one that overlaps."""
        pairs = [(one, two)] if one is two else [(one, two), (two, one)]
        for early, late in pairs:
            for later, region in late.regions.items():
                open_ = early.mask & ~self._before[later] & ((1 << later) - 1)
                while open_:
                    earlier = (open_ & -open_).bit_length() - 1
                    open_ &= open_ - 1
                    if self._overlap(early, earlier, late, later):
                        return (later, region, late.writes), (earlier, early.regions[earlier], early.writes)
        return None

    def _overlap(self, early: _MovingAccess, earlier: int, late: _MovingAccess, later: int) -> bool:
        self._pairs += 1
        if self._pairs > _MAX_PAIRS:
            raise UndecidedError
        family = self._family(early, earlier, late, later)
        if family is None:
            return False
        distance, terms, is_exact = family
        other = late.regions[later]
        if not _overlap_ever(early.regions[earlier], replace(other, start=other.start + distance), terms):
            return False
        if not is_exact:
            raise UndecidedError
        return True

    def _family(
        self, early: _MovingAccess, earlier: int, late: _MovingAccess, later: int
    ) -> tuple[int, list[_Term], bool] | None:
        """
        The pairs that two commands stand for: how much further the second is from the first, with what is added.

        None if another pair stands for all of them; the last says whether the set is exact, or larger.
        """
        mine, theirs = (self._program.commands[number].counters for number in (earlier, later))
        distance, terms, is_exact = 0, list[_Term](), True
        depth = 0
        while depth < min(len(mine), len(theirs)) and early.loops[depth] is late.loops[depth]:
            cut = self._cuts.get(early.loops[depth])
            first, second = mine[depth], theirs[depth]
            depth += 1
            if cut is not None:
                at, to = cut.position(first), cut.position(second)
                step, other = early.steps[depth - 1], late.steps[depth - 1]
                if at < cut.regular:
                    if at != to and cut.far <= to < cut.head:
                        terms.append((other, cut.periods))
                elif at < cut.settled:
                    if to < cut.far:
                        terms.append((other - step, cut.periods))
                    elif to < cut.head:
                        # The second may be later than the first, but not earlier.
                        terms.append((other, cut.periods))
                        if step != other:
                            terms.append((-step, cut.periods))
                            is_exact = False
                    else:
                        terms.append((-step, cut.periods))
                elif at < cut.head:
                    if to < cut.head and step == other:
                        return None
                    distance += ((other if to < cut.head else 0) - step) * cut.periods
            if first != second:
                break
        for loop, step, iteration in zip(early.loops[depth:], early.steps[depth:], mine[depth:], strict=True):
            cut = self._cuts.get(loop)
            if cut is not None and cut.regular <= cut.position(iteration) < cut.settled:
                terms.append((-step, cut.periods))
            elif cut is not None and cut.settled <= cut.position(iteration) < cut.head:
                distance -= step * cut.periods
        for loop, step, iteration in zip(late.loops[depth:], late.steps[depth:], theirs[depth:], strict=True):
            cut = self._cuts.get(loop)
            if cut is not None and cut.far <= cut.position(iteration) < cut.head:
                terms.append((step, cut.periods))
        return distance, terms, is_exact


_Term = tuple[int, int]
"""A step in bytes, and how many times it is taken at most; at least 0 times."""


def _overlap_ever(one: Region, other: Region, terms: Iterable[_Term]) -> bool:
    """
    Whether `other` overlaps `one` for some multiples, as it moves by `terms` against it.

    Exact. Raises UndecidedError if more than some thousands of combinations would have to be looked at.
    """
    steps: dict[int, int] = {}
    distance = other.start - one.start
    moves = [*terms]
    moves += [(stride, count - 1) for count, stride in other.dims]
    moves += [(-stride, count - 1) for count, stride in one.dims]
    for step, most in moves:
        if step < 0:
            distance += step * most
        if step and most:
            steps[abs(step)] = steps.get(abs(step), 0) + most
    ordered = sorted(steps.items(), reverse=True)
    rest = [0] * (len(ordered) + 1)
    for at in range(len(ordered) - 1, -1, -1):
        rest[at] = rest[at + 1] + ordered[at][0] * ordered[at][1]
    least, most = 1 - other.length, one.length - 1
    looked = 0
    pending = [(0, distance)]
    while pending:
        at, reached = pending.pop()
        looked += 1
        if looked > _MAX_STEPS:
            raise UndecidedError
        if at == len(ordered):
            if least <= reached <= most:
                return True
            continue
        step, times = ordered[at]
        low = max(0, -((reached + rest[at + 1] - least) // step))
        high = min(times, (most - reached) // step)
        if high - low > _MAX_STEPS:
            raise UndecidedError
        pending.extend((at + 1, reached + step * taken) for taken in range(low, high + 1))
    return False
