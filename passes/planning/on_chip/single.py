"""One tensor by itself: what its runs cost, and the runs that cost least where each step has its price."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from penstock.passes.planning.on_chip.problem import OnChipProblem, Tensor

Span = tuple[int, int]
"""The indices of the first and the last access of a run."""
Spans = tuple[Span, ...]
"""The runs of one tensor, ascending and disjoint."""


def moves(tensor: Tensor, spans: Spans) -> Iterator[tuple[int, int]]:
    """What a tensor with these runs moves over the edge of the chip, as (step, bytes)."""
    next_index = 0
    last_index = len(tensor.accesses) - 1
    for first, last in spans:
        for index in range(next_index, first):
            yield tensor.accesses[index].step, tensor.streamed(index)
        if first > 0 or tensor.source:
            yield tensor.accesses[first].step, tensor.moved
        written = [index for index in range(first, last + 1) if tensor.writes(index)]
        if written and (last < last_index or tensor.output):
            yield tensor.accesses[written[-1]].step, tensor.moved
        next_index = last + 1
    for index in range(next_index, last_index + 1):
        yield tensor.accesses[index].step, tensor.streamed(index)


def cost(tensor: Tensor, spans: Spans) -> int:
    """Bytes over the edge of the chip of a tensor with these runs."""
    return sum(count for _, count in moves(tensor, spans))


def forced(tensor: Tensor) -> Spans:
    """The runs that there have to be: of the accesses that may not be streamed, each alone."""
    return tuple((index, index) for index, access in enumerate(tensor.accesses) if not access.may_stream)


def stretches(tensor: Tensor) -> Spans:
    """The longest runs that there may be."""
    found: list[Span] = []
    for index, access in enumerate(tensor.accesses):
        if not access.may_reside:
            continue
        if found and found[-1][1] == index - 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return tuple(found)


def including(spans: Spans, new: Span) -> Spans:
    """The runs with one more, which swallows those that it covers."""
    others = (span for span in spans if span[1] < new[0] or new[1] < span[0])
    return tuple(sorted([*others, new]))


def saved(tensor: Tensor, spans: Spans, more: Span) -> int:
    """Bytes that one more run of a tensor saves."""
    return cost(tensor, spans) - cost(tensor, including(spans, more))


def lifetime(tensor: Tensor, span: Span) -> int:
    """Steps of a run, both ends included."""
    return tensor.accesses[span[1]].step - tensor.accesses[span[0]].step + 1


def cheapest(tensor: Tensor, prices: Sequence[float] = ()) -> tuple[float, Spans]:
    """
    The runs of least cost where a byte on chip costs `prices[t]` at step t, and that cost.

    The cost is that of the bytes moved, of the bytes on chip from the step of the first to that of the last access
    of each run, and of those staged. Without prices it is the least that the tensor can move. Of equal ones the
    runs that keep more are chosen.
    """
    until = list(accumulate(prices, initial=0.0))

    def price(lower: int, upper: int) -> float:
        """Of one byte over these steps."""
        return until[upper] - until[lower] if prices else 0.0

    states: dict[str, tuple[float, Spans]] = {"streamed": (0.0, ())}
    for index, access in enumerate(tensor.accesses):
        here = price(access.step, access.step + 1)
        reached: dict[str, tuple[float, Spans]] = {}
        for state, (before, spans) in states.items():
            closed = before + (tensor.moved if state == "newer" else 0)
            if access.may_reside:
                writes = tensor.writes(index)
                if state != "streamed":
                    since = tensor.accesses[index - 1].step + 1
                    value = before + tensor.size * (price(since, access.step) + here)
                    run = (*spans[:-1], (spans[-1][0], index))
                    _improve(reached, "newer" if writes or state == "newer" else "same", value, run)
                fill = tensor.moved if index or tensor.source else 0
                value = closed + fill + tensor.size * here
                _improve(reached, "newer" if writes else "same", value, (*spans, (index, index)))
            if access.may_stream:
                value = closed + tensor.streamed(index) + access.staging * here
                _improve(reached, "streamed", value, spans)
        states = reached
    back = tensor.moved if tensor.output else 0
    ends = [(value + (back if state == "newer" else 0), spans) for state, (value, spans) in states.items()]
    return min(ends, key=lambda end: end[0])


def _improve(states: dict[str, tuple[float, Spans]], state: str, value: float, spans: Spans) -> None:
    """Keep the better way to a state; the first of equal ones."""
    if state not in states or value < states[state][0]:
        states[state] = (value, spans)


def unconstrained_bytes(problem: OnChipProblem) -> int:
    """The bytes moved if the memory had no end: what no answer can do without."""
    return sum(round(cheapest(tensor)[0]) for tensor in problem.tensors)
