# SPDX-License-Identifier: Apache-2.0
"""Random planning problems whose answer is known: a plan that fits, or a moment at which too much is alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from penstock.passes.planning.problem import (
    FAR,
    Buffer,
    Interval,
    Plan,
    Problem,
    height,
    lower_bound,
    merge_intervals,
    validate,
)

BANK_BYTES = 64
FAMILIES = ("plain", "aligned", "gaps", "windows", "hints", "fixed", "banks", "mixed", "tight", "infeasible")
"""What the problems have: each the feature that it is called after, or some of all; the last two have a capacity."""


@dataclass(frozen=True)
class BufferCase:
    """A problem, and what is known of it."""

    family: str
    problem: Problem
    witness: Plan | None
    """A plan that fits; None where none does."""

    @property
    def witness_bytes(self) -> int | None:
        return None if self.witness is None else height(self.problem, self.witness)


def random_cases(number_of_cases: int, seed: int = 0) -> Iterator[BufferCase]:
    """So many problems, of all families in turn; the same for the same seed."""
    for number in range(number_of_cases):
        yield random_case(FAMILIES[number % len(FAMILIES)], Random(f"{seed}/{number}"))


def random_case(family: str, random: Random) -> BufferCase:
    """A problem of one family."""
    features = {"mixed": FAMILIES[1:7], "tight": ("gaps",), "infeasible": ("aligned",)}.get(family, (family,))
    buffers: list[Buffer] = []
    places: dict[str, int] = {}
    for number in range(random.randint(1, 24)):
        buffer = _buffer(f"b{number}", random.choice(features), random)
        place = _place(buffer, buffers, places)
        if place is None:
            continue
        if "fixed" in features and random.random() < 0.3:
            buffer = replace(buffer, offset=place)
        buffers.append(buffer)
        places[buffer.id] = place
    problem, plan = Problem(tuple(buffers), bank_size=BANK_BYTES), Plan(places)
    if family == "infeasible":
        return BufferCase(family, replace(problem, capacity=lower_bound(problem) - 1), None)
    slack = {"tight": 1.0, "mixed": random.choice((1.0, 1.25))}.get(family)
    if slack is not None:
        problem = replace(problem, capacity=int(height(problem, plan) * slack))
    validate(problem, plan)
    return BufferCase(family, problem, plan)


def smaller_cases(case: BufferCase) -> Iterator[BufferCase]:
    """The case without some of its buffers, then with buffers that are simpler or smaller."""
    buffers = case.problem.buffers
    half = len(buffers) // 2
    parts = [buffers[:half], buffers[half:]] if half else []
    parts += [(*buffers[:n], *buffers[n + 1 :]) for n in range(len(buffers))]
    for number, buffer in enumerate(buffers):
        for simpler in _simpler(buffer):
            parts.append((*buffers[:number], simpler, *buffers[number + 1 :]))
    for part in parts:
        yield from _with_buffers(case, tuple(part))


def _with_buffers(case: BufferCase, buffers: tuple[Buffer, ...]) -> Iterator[BufferCase]:
    """The case with these buffers, if what is known of it holds."""
    problem = replace(case.problem, buffers=buffers)
    if case.witness is None:
        if problem.capacity is not None and lower_bound(problem) > problem.capacity:
            yield replace(case, problem=problem)
        return
    yield replace(case, problem=problem, witness=Plan({b.id: case.witness.offsets[b.id] for b in buffers}))


def _simpler(buffer: Buffer) -> Iterator[Buffer]:
    """Each smaller in place: a plan for the buffer is one for it."""
    if buffer.hint is not None:
        yield replace(buffer, hint=None)
    if buffer.offset is not None:
        yield replace(buffer, offset=None)
    if buffer.banks is not None:
        yield replace(buffer, banks=None)
    if buffer.alignment > 1:
        yield replace(buffer, alignment=1)
    if len(buffer.intervals) > 1:
        yield replace(buffer, intervals=buffer.intervals[:1], windows=buffer.windows[:1])
    if not buffer.windows and buffer.size > 1:
        yield replace(buffer, size=buffer.size // 2)


def _buffer(id: str, feature: str, random: Random) -> Buffer:
    spans: list[Interval] = []
    for _ in range(random.randint(2, 3) if feature in ("gaps", "windows") else 1):
        lower = random.randrange(20)
        spans.append((lower, lower + random.randint(1, 6)))
    intervals = merge_intervals(spans)
    size = random.randint(1, 40)
    windows: list[tuple[int, int]] = []
    for _ in intervals if feature == "windows" else ():
        low = random.randrange(size)
        windows.append((low, random.randint(low + 1, size)))
    return Buffer(
        id,
        intervals,
        size,
        random.choice((2, 4, 12, 16)) if feature == "aligned" else 1,
        windows=tuple(windows),
        banks=random.choice(((0, 2), (1,), (1, 3))) if feature == "banks" else None,
        hint=random.randrange(128) if feature == "hints" else None,
    )


def _place(buffer: Buffer, others: list[Buffer], places: dict[str, int]) -> int | None:
    """The lowest place for a buffer at the start of a bank or behind one that has a place; None: its banks are full."""
    beside = [(places[other.id], places[other.id] + other.size) for other in others if other.meets(buffer)]
    banks = [(0, FAR)] if buffer.banks is None else [(b * BANK_BYTES, (b + 1) * BANK_BYTES) for b in buffer.banks]
    for low, high in sorted(banks):
        for start in sorted({low, *(end for _, end in beside if end > low)}):
            offset = start + -start % buffer.alignment
            end = offset + buffer.size
            if end <= high and all(end <= other or other_end <= offset for other, other_end in beside):
                return offset
    return None
