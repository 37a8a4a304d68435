# SPDX-License-Identifier: Apache-2.0
"""Rings for the buffers of one kernel: how many slots each, as the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import func, scf
from xdsl.ir import SSAValue

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, RingOp
from penstock.passes.accel.pipelining.model import Model
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.planning.skewed_nest import Skewed
from penstock.passes.schedule.command_rings import candidates, filling
from penstock.passes.schedule.ordering.accesses import CommandInfo
from penstock.passes.schedule.rings import Candidate

MAX_SLOTS = 8
"""The most slots that are tried; a delay that needs more needs a larger tile."""
MIN_GAIN = 200
"""A slot is worth its bytes if it takes off more than one part of so many of the time."""


@dataclass(frozen=True)
class Choice:
    """How many slots the buffers of a kernel are to have, and what the model expects of that."""

    slots: Mapping[BufferOp, int]
    """Of the buffers that are to become rings."""
    model: Model
    skewed: Skewed
    """Which skewed loops are the fastest with these slots, as the model says."""

    def describe(self, counts: Sequence[int], skewed: Skewed) -> str:
        """In words, for people, with so many slots of each buffer."""
        found: dict[SSAValue, int] = {
            buffer.memref: count for buffer, count in zip(self.slots, counts, strict=True) if count > 1
        }
        before, after = self.model.time({}, "none"), self.model.time(found, skewed)
        change = f", {before.cycles:,} before" if before.cycles != after.cycles else ""
        return f"modelled {after.cycles:,} cycles{change}, limit {after.limit}"


def choose_slots(
    function: func.FuncOp, target: TargetOp, commands: Sequence[CommandInfo], depth: int | None, *, skewed: bool
) -> Choice:
    """
    Rings of `depth` slots for all buffers that may have one, or of as many as the model says. Tokens are of no account
    here: the order of commands is to be derived anew. `skewed` says that loops may be, if that is faster.
    """
    found = candidates(function, commands)
    opens = _openers(function, commands, found)
    model = Model(function, target, commands, opens)
    most: dict[SSAValue, int] = {each.buffer.memref: min(depth or MAX_SLOTS, each.depth) for each in found}
    ways: list[Skewed] = ["none"]
    if skewed:
        is_nest = any(isinstance(op, scf.ForOp) and isinstance(op.parent_op(), scf.ForOp) for op in function.walk())
        ways = ["none", "outer", "inner", "nested"] if is_nest else ["none", "outer"]
    wanted: list[tuple[Mapping[SSAValue, int], Skewed]] = [
        (most if depth is not None else _auto(model, most, way), way) for way in ways
    ]
    best, way = min(wanted, key=lambda each: model.time(*each).cycles)
    slots = {each.buffer: best[each.buffer.memref] for each in found}
    return Choice({buffer: count for buffer, count in slots.items() if count > 1}, model, way)


def _openers(
    function: func.FuncOp, commands: Sequence[CommandInfo], found: Sequence[Candidate]
) -> dict[CommandOp, list[SSAValue]]:
    """The commands that take the next slot of candidates, and of rings at hand."""
    opens: dict[CommandOp, list[SSAValue]] = {}
    for each in found:
        storage = each.buffer.memref
        users = [info for info in commands if any(a.storage is storage for a in info.accesses)]
        opens.setdefault(filling(each.buffer, users)[0].op, []).append(storage)
    for op in function.walk():
        if isinstance(op, RingOp):
            first = next((i for i in commands if any(a.writes and a.storage is op.storage for a in i.accesses)), None)
            if first is not None:
                opens.setdefault(first.op, []).append(op.storage)
    return opens


def _auto(model: Model, most: Mapping[SSAValue, int], skewed: Skewed) -> dict[SSAValue, int]:
    """The fewest slots with which the model is about as fast as with the most."""
    slots = dict(most)
    best = model.time(slots, skewed).cycles
    for storage in most:
        for count in range(1, slots[storage]):
            if model.time(slots | {storage: count}, skewed).cycles <= best + best // MIN_GAIN:
                slots[storage] = count
                break
    return slots
