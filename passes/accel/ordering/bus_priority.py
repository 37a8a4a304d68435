"""
Who is granted a bus first: the transfer that a computing unit waits for, or the prefetch that the unit makes room for.

A unit that computes and transfers (on VTA, `compute` loads biases) takes its commands in order, so it stands still
until its own transfer is complete. A bus is granted in the order of requests, and when the unit has finished an op two
requests come at once: its own, for the epilogue of this iteration, and that of the unit that prefetches operands into
the slot that the op has released. The prefetch is long, and is needed in a later iteration; granted first, it delays
every iteration by its whole length. So that transfer releases the slot, in the place of the op: the prefetch waits for
a later command of the same unit, by as many tokens as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.passes.accel.ordering.accesses import CommandInfo
from penstock.passes.accel.ordering.conflicts import Dependence


def with_bus_priority(
    dependences: Sequence[Dependence], commands: Sequence[CommandInfo], in_order: frozenset[str]
) -> list[Dependence]:
    """The dependences, those of prefetches on the last transfer on their bus that the unit of the source waits for."""
    return [replace(each, source=_releasing(each, commands, in_order)) for each in dependences]


def _releasing(dependence: Dependence, commands: Sequence[CommandInfo], in_order: frozenset[str]) -> CommandInfo:
    source, sink = dependence.source, dependence.sink
    prefetches = sink.transfers and any(access.writes and access.scope is not None for access in sink.accesses)
    if source.transfers or sink.bus is None or not prefetches or source.unit not in in_order:
        return source
    transfers = [each for each in _following(source, commands) if each.bus == sink.bus and each.unit == source.unit]
    last = transfers[-1] if transfers else source
    # What lies between the two in the text would come to wait for the transfer of the iteration before.
    return source if source.number < sink.number < last.number else last


def _following(command: CommandInfo, commands: Sequence[CommandInfo]) -> Iterator[CommandInfo]:
    """The commands behind one in the text, up to the next loop or the end of its own."""
    for other in commands[command.number + 1 :]:
        if other.loops != command.loops:
            return
        yield other
