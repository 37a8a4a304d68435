# SPDX-License-Identifier: Apache-2.0
"""
Static memory planning as plain data: buffers with lifetimes on one time axis, to be given offsets in one memory.

It is strip packing in two dimensions with a fixed time coordinate, hence NP-hard. `validate` is deliberately
simple and shares no code with any planner: a plan that passes it is a certificate. It takes O(n log n) for a plan that
is valid; of one that is not, the buffers that overlap are compared pair by pair.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

Interval = tuple[int, int]
"""A half-open span of time, [lower, upper)."""

FAR = 1 << 62
"""More than any offset."""

Window = tuple[int, int]
"""A half-open span of the bytes of a buffer, counted from its start."""


@dataclass(frozen=True)
class Conflict:
    """One rule that a plan breaks: which buffers, when, on which bytes, and a sentence that says so."""

    rule: str
    """`overlap`, `capacity`, `bank`, `alignment`, `fixed`, `missing` (no offset) or `unknown` (no such buffer)."""
    buffers: tuple[str, ...]
    """Their ids: two for an overlap, else one."""
    message: str
    """For people."""
    time: Interval | None = None
    """When it happens: the first moments for an overlap; None where time plays no part."""
    bytes: tuple[int, int] | None = None
    """The bytes of the memory that are at fault, half-open: what two buffers share, or what lies outside."""


class PlanError(ValueError):
    """A problem that makes no sense, or a plan that breaks a rule of its problem, which `conflict` then names."""

    def __init__(self, message: str, conflict: Conflict | None = None):
        super().__init__(message)
        self.conflict = conflict


@dataclass(frozen=True)
class Buffer:
    """One buffer: when it is alive, how many bytes it needs, and where it may lie."""

    id: str
    """Unique in its problem."""
    intervals: tuple[Interval, ...]
    """When it is alive: half-open, ascending, disjoint. It keeps one offset through all of them."""
    size: int
    """Bytes."""
    alignment: int = 1
    """Its offset is a multiple of this many bytes."""
    offset: int | None = None
    """Where it must lie, in bytes; None leaves that to the planner."""
    windows: tuple[Window, ...] = ()
    """The bytes that are alive in each of `intervals`; empty where all of them are in all of them."""
    banks: tuple[int, ...] | None = None
    """It lies wholly within one bank of these; None lets it lie anywhere, across banks too."""
    hint: int | None = None
    """An offset to try first, in bytes; no plan has to follow it."""

    def __post_init__(self) -> None:
        if self.size < 0:
            raise PlanError(f"buffer {self.id} has {self.size} bytes")
        if self.alignment < 1:
            raise PlanError(f"buffer {self.id} is aligned to {self.alignment} bytes")
        if self.windows and len(self.windows) != len(self.intervals):
            raise PlanError(f"buffer {self.id} has {len(self.windows)} windows for {len(self.intervals)} intervals")
        if any(not 0 <= low < high <= self.size for low, high in self.windows):
            raise PlanError(f"buffer {self.id} of {self.size} bytes has the windows {list(self.windows)}")
        if self.banks is not None and (not self.banks or min(self.banks) < 0):
            raise PlanError(f"buffer {self.id} may lie in the banks {list(self.banks)}")
        if not self.intervals:
            raise PlanError(f"buffer {self.id} is never alive")
        if self.offset is not None and self.offset < 0:
            raise PlanError(f"buffer {self.id} is fixed at byte {self.offset}")
        if self.hint is not None and self.hint < 0:
            raise PlanError(f"buffer {self.id} has the hint {self.hint}")
        end = None
        for lower, upper in self.intervals:
            if lower >= upper or (end is not None and lower < end):
                raise PlanError(f"buffer {self.id} has the lifetime {list(self.intervals)}")
            end = upper

    @property
    def lower(self) -> int:
        """The first moment it is alive."""
        return self.intervals[0][0]

    @property
    def upper(self) -> int:
        """The end of its last moment."""
        return self.intervals[-1][1]

    @property
    def duration(self) -> int:
        """For how long it is alive in all."""
        return sum(upper - lower for lower, upper in self.intervals)

    @property
    def pieces(self) -> tuple[tuple[Interval, Window], ...]:
        """What is alive of it and when: its intervals, each with the bytes that are alive in it."""
        windows = self.windows or ((0, self.size),) * len(self.intervals)
        return tuple(zip(self.intervals, windows, strict=True))

    def meets(self, other: Buffer) -> bool:
        """Whether the two are ever alive at once, in whatever bytes."""
        if self.upper <= other.lower or other.upper <= self.lower:
            return False
        return any(
            lower < their_upper and their_lower < upper
            for lower, upper in self.intervals
            for their_lower, their_upper in other.intervals
        )


class AllowedOffsets:
    """The offsets that the own rules of a buffer allow: the multiples of `step` in `ranges`."""

    __slots__ = ("ranges", "step")

    def __init__(self, step: int, ranges: tuple[tuple[int, int], ...]):
        self.step = step
        self.ranges = ranges
        """Closed, ascending; each begins with a multiple. None if the buffer fits nowhere."""

    @classmethod
    def of(cls, buffer: Buffer, bank_size: int | None) -> AllowedOffsets:
        """Those of a buffer; raises PlanError where it names banks and there is no bank size."""
        step, fixed = buffer.alignment, buffer.offset
        if buffer.banks is None:
            ranges = [(0, FAR)]
        elif bank_size is None:
            raise PlanError(f"buffer {buffer.id} names banks, and the problem has no bank size")
        else:
            ends = ((bank * bank_size, (bank + 1) * bank_size - buffer.size) for bank in sorted(set(buffer.banks)))
            ranges = [(first, high) for low, high in ends if (first := -(-low // step) * step) <= high]
        if fixed is not None:
            ranges = [(fixed, fixed) for low, high in ranges if low <= fixed <= high and fixed % step == 0]
        return cls(step, tuple(ranges))

    def lowest(self, offset: int) -> int:
        """The lowest one at or above an offset; FAR if there is none."""
        step = self.step
        for start, end in self.ranges:
            if offset <= end:
                found = max(start, -(-offset // step) * step)
                if found <= end:
                    return found
        return FAR


@dataclass(frozen=True)
class Pair:
    """Two buffers that are used at once: what it costs where they share a bank, which no plan is refused for."""

    first: str
    """The id of one; a pair of which one is not in the problem costs nothing."""
    second: str
    """The id of the other."""
    cost: int
    """In any unit, the same for all pairs."""


@dataclass(frozen=True)
class Problem:
    """Buffers that share one memory of `capacity` bytes; None stands for as much as it takes."""

    buffers: tuple[Buffer, ...]
    """What is to be placed; no two have the same id."""
    capacity: int | None = None
    """Bytes of the memory; None for one that is as large as the plan."""
    bank_size: int | None = None
    """Bytes of a bank: bank n is [n * bank_size, (n + 1) * bank_size). Needed where a buffer names banks,
    and for pairs."""
    pairs: tuple[Pair, ...] = ()
    """What had better not share a bank."""

    def __post_init__(self) -> None:
        if len({buffer.id for buffer in self.buffers}) != len(self.buffers):
            raise PlanError("two buffers have the same id")
        if self.capacity is not None and self.capacity < 0:
            raise PlanError(f"the capacity is {self.capacity} bytes")
        if self.bank_size is not None and self.bank_size < 1:
            raise PlanError(f"a bank has {self.bank_size} bytes")
        if self.pairs and self.bank_size is None:
            raise PlanError("buffers are to lie in different banks, and the problem does not say how large they are")
        for buffer in self.buffers:
            if buffer.banks is None:
                continue
            if self.bank_size is None:
                raise PlanError(f"buffer {buffer.id} lies in banks, and the problem does not say how large they are")
            if buffer.size > self.bank_size:
                raise PlanError(f"buffer {buffer.id} of {buffer.size} bytes is larger than a bank of {self.bank_size}")


@dataclass(frozen=True)
class Plan:
    """The byte offset of every buffer, by id."""

    offsets: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes from the start of the memory, for each id of a buffer."""


@dataclass(frozen=True)
class Limits:
    """How far a planner may go. Only `steps` makes two runs the same on every machine."""

    seconds: float | None = None
    """Wall-clock time after which it returns the best that it has; None sets no such limit."""
    steps: int | None = None
    """Elementary steps, of which each planner says what they are; None sets no such limit."""
    seed: int = 0
    """Of whatever it draws at random. Same problem, same limits in steps, same seed: same plan."""
    good_enough: int | None = None
    """Bytes: a plan of no more is not improved. None goes on until the lower bound."""
    threads: int = 1
    """Threads that may search side by side. They change how long it takes, and of a run in steps nothing else."""


@dataclass(frozen=True)
class Outcome:
    """What a planner found, and what it proved."""

    plan: Plan | None
    """The best valid plan, whose height may exceed the capacity; None where it has none at all."""
    bound: int = 0
    """Bytes that no plan can do without, as far as this planner proved; `lower_bound` is known to all."""
    infeasible: bool = False
    """Whether it is proved that no plan fits the capacity."""
    steps: int = 0
    """Steps taken."""
    reason: str | None = None
    """For people: why no plan fits, where that was known before any search."""


def merge_intervals(spans: Iterable[Interval]) -> tuple[Interval, ...]:
    """The same moments as ascending, disjoint, non-adjacent intervals."""
    merged: list[Interval] = []
    for lower, upper in sorted(spans):
        if merged and lower <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], upper))
        else:
            merged.append((lower, upper))
    return tuple(merged)


def hulls(strips: Sequence[tuple[Window, Sequence[Interval]]]) -> Iterator[tuple[Interval, Window]]:
    """
    All from the first to the last byte that is alive of a buffer, and when, ascending: of its strips it is said when
    each is alive.
    """
    if len(strips) == 1:
        yield from ((interval, window) for window, intervals in strips for interval in intervals)
        return
    changes = sorted(
        (moment, change, window)
        for window, intervals in strips
        for interval in intervals
        for moment, change in zip(interval, (1, -1), strict=True)
    )
    alive: dict[Window, int] = {}
    before = 0
    for moment, change, window in changes:
        if before < moment and alive:
            yield (before, moment), (min(low for low, _ in alive), max(high for _, high in alive))
        before = moment
        alive[window] = alive.get(window, 0) + change
        if not alive[window]:
            del alive[window]


def height(problem: Problem, plan: Plan) -> int:
    """The bytes that a plan takes: the highest end of any buffer."""
    return max((plan.offsets[buffer.id] + buffer.size for buffer in problem.buffers), default=0)


def first_gap(taken: Iterable[tuple[int, int]], size: int, alignment: int) -> int:
    """The lowest offset, a multiple of the alignment, at which `size` bytes fit between or after those taken."""
    offset = 0
    for start, end in sorted(taken):
        if offset + size <= start:
            break
        offset = max(offset, -(-end // alignment) * alignment)
    return offset


def live_sums(problem: Problem) -> list[tuple[int, int]]:
    """The bytes alive from each moment at which that changes, as (moment, bytes), ascending."""
    changes: dict[int, int] = {}
    for buffer in problem.buffers:
        for (lower, upper), (low, high) in buffer.pieces:
            changes[lower] = changes.get(lower, 0) + high - low
            changes[upper] = changes.get(upper, 0) - (high - low)
    times = sorted(changes)
    return list(zip(times, accumulate(changes[time] for time in times), strict=True))


def peak(problem: Problem) -> tuple[int, int]:
    """The first moment at which the most bytes are alive, and how many those are; (0, 0) without buffers."""
    return max(live_sums(problem), key=lambda at: at[1], default=(0, 0))


def alive_at(problem: Problem, time: int) -> tuple[Buffer, ...]:
    """The buffers of which some bytes are alive at a moment, in the order of the problem."""
    return tuple(buffer for buffer in problem.buffers if bytes_alive(buffer, time))


def bytes_alive(buffer: Buffer, time: int) -> int:
    """How many bytes of a buffer are alive at a moment."""
    return sum(high - low for (lower, upper), (low, high) in buffer.pieces if lower <= time < upper)


def lower_bound(problem: Problem) -> int:
    """Bytes that no plan can do without: the most alive at once, and the lowest end that each buffer can have."""
    return max([peak(problem)[1], *(_lowest_end(problem, buffer) for buffer in problem.buffers)], default=0)


def _lowest_end(problem: Problem, buffer: Buffer) -> int:
    """Where a buffer ends in an empty memory at the lowest offset that its own rules allow."""
    if buffer.offset is not None:
        return buffer.offset + buffer.size
    if buffer.banks is None:
        return buffer.size
    lowest = AllowedOffsets.of(buffer, problem.bank_size).lowest(0)
    # That the rules of a buffer allow no offset is for a planner to find out.
    return buffer.size + (0 if lowest == FAR else lowest)


def validate(problem: Problem, plan: Plan) -> None:
    """
    Check a plan against the definition of the problem, and nothing else.

    Raises PlanError, with the first of `conflicts`.
    """
    for conflict in conflicts(problem, plan):
        raise PlanError(conflict.message, conflict)


def conflicts(problem: Problem, plan: Plan) -> Iterator[Conflict]:
    """
    Every rule of the problem that a plan breaks, found as they come.

    A buffer needs an offset that is a multiple of its alignment and, if it is fixed, the one given; it lies within
    the memory, all of it at all times, and within one of its banks; and no byte belongs to two buffers at a moment
    at which it is alive in both. An offset for no buffer is a fault, too.
    """
    overlapping = _overlapping(problem, plan)
    placed: list[tuple[Buffer, int]] = []
    for buffer in problem.buffers:
        offset = plan.offsets.get(buffer.id)
        if offset is None:
            yield Conflict("missing", (buffer.id,), f"buffer {buffer.id} has no offset")
            continue
        yield from _misplaced(problem, buffer, offset)
        if buffer.id in overlapping:
            for other, start in placed:
                yield from _overlap(other, start, buffer, offset)
            placed.append((buffer, offset))
    known = {buffer.id for buffer in problem.buffers}
    for id in plan.offsets:
        if id not in known:
            yield Conflict("unknown", (id,), f"the plan has an offset for {id}, which is no buffer of the problem")


def _misplaced(problem: Problem, buffer: Buffer, offset: int) -> Iterator[Conflict]:
    """The rules that a buffer breaks by itself."""
    end = offset + buffer.size
    if offset < 0:
        message = f"buffer {buffer.id} at {offset} begins before the memory does"
        yield Conflict("capacity", (buffer.id,), message, bytes=(offset, min(end, 0)))
    if offset % buffer.alignment:
        message = f"buffer {buffer.id} at {offset} is not aligned to {buffer.alignment}"
        yield Conflict("alignment", (buffer.id,), message, bytes=(offset, end))
    if buffer.offset is not None and offset != buffer.offset:
        message = f"buffer {buffer.id} is fixed at {buffer.offset}, not {offset}"
        yield Conflict("fixed", (buffer.id,), message, bytes=(offset, end))
    if problem.capacity is not None and end > problem.capacity:
        message = f"buffer {buffer.id} ends at {end} of {problem.capacity} bytes"
        yield Conflict("capacity", (buffer.id,), message, bytes=(max(offset, problem.capacity), end))
    if buffer.banks is not None and problem.bank_size is not None:
        size = problem.bank_size
        if not any(bank * size <= offset and end <= (bank + 1) * size for bank in buffer.banks):
            banks = ", ".join(str(bank) for bank in buffer.banks)
            message = f"buffer {buffer.id} [{offset}, {end}) does not lie within one bank of {banks}, of {size} bytes"
            yield Conflict("bank", (buffer.id,), message, bytes=(offset, end))


def _overlapping(problem: Problem, plan: Plan) -> set[str]:
    """
    The ids of the buffers that share a byte with another at a moment at which it is alive in both.

    A sweep over time. Pieces that are alive and overlap nothing are kept in ascending order of bytes, so one that comes
    alive is compared with its neighbours only; those that overlap are kept apart, and compared with every other.
    """
    found: set[str] = set()
    events: list[tuple[int, bool, int, int, str]] = []
    for buffer in problem.buffers:
        offset = plan.offsets.get(buffer.id)
        if offset is not None and buffer.size:
            for (lower, upper), (low, high) in buffer.pieces:
                events.append((lower, True, offset + low, offset + high, buffer.id))
                events.append((upper, False, offset + low, offset + high, buffer.id))
    disjoint: list[tuple[int, int, str]] = []
    apart: list[tuple[int, int, str]] = []
    # Of one moment, ends (False) come first.
    for _, begins, low, high, id in sorted(events):
        piece = low, high, id
        place = bisect_left(disjoint, piece)
        if not begins:
            is_there = place < len(disjoint) and disjoint[place] == piece
            disjoint.pop(place) if is_there else apart.remove(piece)
            continue
        first = place - 1 if place and disjoint[place - 1][1] > low else place
        last = bisect_left(disjoint, (high, 0, ""))
        if first < last:
            found |= {id, *(other for _, _, other in disjoint[first:last])}
            apart.append(piece)
            continue
        if any(start < high and low < end for start, end, _ in apart):
            found.add(id)
        disjoint.insert(place, piece)
    return found


def _overlap(one: Buffer, start: int, other: Buffer, offset: int) -> Iterator[Conflict]:
    """The first moments at which two buffers share a byte that is alive in both."""
    for (lower, upper), (low, high) in one.pieces:
        for (their_lower, their_upper), (their_low, their_high) in other.pieces:
            time = max(lower, their_lower), min(upper, their_upper)
            shared = max(start + low, offset + their_low), min(start + high, offset + their_high)
            if time[0] < time[1] and shared[0] < shared[1]:
                message = (
                    f"buffers {one.id} [{start}, {start + one.size}) and {other.id} [{offset}, {offset + other.size}) "
                    f"overlap while both are alive: bytes {span_text(shared)} at times {span_text(time)}"
                )
                yield Conflict("overlap", (one.id, other.id), message, time, shared)
                return


def span_text(span: tuple[int, int]) -> str:
    """A half-open span as mathematics writes it."""
    return f"[{span[0]}, {span[1]})"
