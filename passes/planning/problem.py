"""
Static memory planning as plain data: buffers with lifetimes on one time axis, to be given offsets in one memory.

It is strip packing in two dimensions with a fixed time coordinate, hence NP-hard. `validate` is deliberately
the simplest check there is, O(n^2), and shares no code with any planner: a plan that passes it is a certificate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

Interval = tuple[int, int]
"""A half-open span of time, [lower, upper)."""


class PlanError(ValueError):
    """A problem that makes no sense, or a plan that breaks a rule of its problem."""


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

    def __post_init__(self) -> None:
        if self.size < 0:
            raise PlanError(f"buffer {self.id} has {self.size} bytes")
        if self.alignment < 1:
            raise PlanError(f"buffer {self.id} is aligned to {self.alignment} bytes")
        if not self.intervals:
            raise PlanError(f"buffer {self.id} is never alive")
        if self.offset is not None and self.offset < 0:
            raise PlanError(f"buffer {self.id} is fixed at byte {self.offset}")
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

    def meets(self, other: Buffer) -> bool:
        """Whether the two are ever alive at once."""
        if self.upper <= other.lower or other.upper <= self.lower:
            return False
        return any(
            lower < their_upper and their_lower < upper
            for lower, upper in self.intervals
            for their_lower, their_upper in other.intervals
        )


@dataclass(frozen=True)
class Problem:
    """Buffers that share one memory of `capacity` bytes; None stands for as much as it takes."""

    buffers: tuple[Buffer, ...]
    capacity: int | None = None

    def __post_init__(self) -> None:
        if len({buffer.id for buffer in self.buffers}) != len(self.buffers):
            raise PlanError("two buffers have the same id")
        if self.capacity is not None and self.capacity < 0:
            raise PlanError(f"the capacity is {self.capacity} bytes")


@dataclass(frozen=True)
class Plan:
    """The byte offset of every buffer, by id."""

    offsets: Mapping[str, int] = field(default_factory=dict[str, int])


def merge_intervals(spans: Iterable[Interval]) -> tuple[Interval, ...]:
    """The same moments as ascending, disjoint, non-adjacent intervals."""
    merged: list[Interval] = []
    for lower, upper in sorted(spans):
        if merged and lower <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], upper))
        else:
            merged.append((lower, upper))
    return tuple(merged)


def height(problem: Problem, plan: Plan) -> int:
    """The bytes that a plan takes: the highest end of any buffer."""
    return max((plan.offsets[buffer.id] + buffer.size for buffer in problem.buffers), default=0)


def live_sums(problem: Problem) -> list[tuple[int, int]]:
    """The bytes alive from each moment at which that changes, as (moment, bytes), ascending."""
    changes: dict[int, int] = {}
    for buffer in problem.buffers:
        for lower, upper in buffer.intervals:
            changes[lower] = changes.get(lower, 0) + buffer.size
            changes[upper] = changes.get(upper, 0) - buffer.size
    times = sorted(changes)
    return list(zip(times, accumulate(changes[time] for time in times), strict=True))


def peak(problem: Problem) -> tuple[int, int]:
    """The first moment at which the most bytes are alive, and how many those are; (0, 0) without buffers."""
    return max(live_sums(problem), key=lambda at: at[1], default=(0, 0))


def alive_at(problem: Problem, time: int) -> tuple[Buffer, ...]:
    """The buffers alive at a moment, in the order of the problem."""
    return tuple(
        buffer for buffer in problem.buffers if any(lower <= time < upper for lower, upper in buffer.intervals)
    )


def lower_bound(problem: Problem) -> int:
    """Bytes that no plan can do without: the most alive at once, and the end of what is fixed."""
    fixed = (b.offset + b.size for b in problem.buffers if b.offset is not None)
    return max(peak(problem)[1], *fixed, 0)


def validate(problem: Problem, plan: Plan) -> None:
    """
    Check a plan against the definition of the problem, and nothing else.

    Raises PlanError at a buffer without an offset, off its alignment or its fixed place, outside the memory,
    or on top of another one that is alive at the same time; also at an offset for no buffer.
    """
    placed: list[tuple[Buffer, int]] = []
    for buffer in problem.buffers:
        offset = plan.offsets.get(buffer.id)
        if offset is None:
            raise PlanError(f"buffer {buffer.id} has no offset")
        if offset < 0 or offset % buffer.alignment:
            raise PlanError(f"buffer {buffer.id} at {offset} is not aligned to {buffer.alignment}")
        if buffer.offset is not None and offset != buffer.offset:
            raise PlanError(f"buffer {buffer.id} is fixed at {buffer.offset}, not {offset}")
        end = offset + buffer.size
        if problem.capacity is not None and end > problem.capacity:
            raise PlanError(f"buffer {buffer.id} ends at {end} of {problem.capacity} bytes")
        for other, start in placed:
            shared = min(end, start + other.size) - max(offset, start)
            if shared > 0 and buffer.meets(other):
                raise PlanError(
                    f"buffers {other.id} [{start}, {start + other.size}) and {buffer.id} "
                    f"[{offset}, {end}) overlap while both are alive"
                )
        placed.append((buffer, offset))
    known = {buffer.id for buffer in problem.buffers}
    for id in plan.offsets:
        if id not in known:
            raise PlanError(f"the plan places {id}, which is no buffer of the problem")
