"""Rings for the buffers of one kernel: how many slots each, as the model and the sizes of the scopes decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, RingOp, SlotOp
from penstock.passes.accel.pipelining.candidates import candidates, filling
from penstock.passes.accel.pipelining.model import Model
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.planning.pipelining import NestTime
from penstock.passes.schedule.ordering.accesses import CommandInfo, commands_of
from penstock.passes.schedule.rings import Candidate, iteration_number, rotate
from penstock.passes.schedule.scope_offsets import ScopeOffsets

MAX_SLOTS = 8
"""The most slots that are tried; a delay that needs more needs a larger tile."""
MIN_GAIN = 200
"""A slot is worth its bytes if it takes off more than one part of so many of the time."""


@dataclass(frozen=True)
class Slots:
    """How many slots a buffer of an iteration has got."""

    buffer: str
    """Its name, as far as it has one."""
    scope: str
    count: int
    """One where it stays a buffer."""
    wanted: int
    """What it was to have, if the scope were large enough."""

    def describe(self) -> str:
        """In words, for people."""
        if self.count == self.wanted:
            return f"{self.buffer} in {self.scope}: {self.count} slots"
        return f"{self.buffer} in {self.scope}: {self.count} of {self.wanted} slots, the scope is too small"


@dataclass(frozen=True)
class PipelinedKernel:
    """What was made of one kernel."""

    slots: tuple[Slots, ...]
    """Of the rings at hand, and of the buffers that were to become rings."""
    before: NestTime
    """By the model, with the rings at hand only and loops as they were."""
    after: NestTime
    """With the new rings."""
    skewed: NestTime
    """With the new rings, if loops are skewed where a unit needs it."""

    def describe(self, loops: int, *, too_large: bool = False) -> str:
        """
        In words, for people: with so many loops skewed, or none as that would not fit. Empty if nothing overlaps.
        """
        after = self.skewed if loops else self.after
        if not self.slots and not loops:
            return ""
        parts = [each.describe() for each in self.slots]
        parts += [f"{loops} loop{'s' * (loops > 1)} skewed"] if loops else []
        parts += ["loops not skewed: the scopes are too small"] if too_large else []
        before = f", {self.before.cycles:,} before" if self.before.cycles != after.cycles else ""
        return "; ".join([*parts, f"modelled {after.cycles:,} cycles{before}, limit {after.limit}"])


def make_rings(offsets: ScopeOffsets, depth: int | None, *, skewed: bool = False) -> PipelinedKernel:
    """
    Replace buffers by rings of `depth` slots each, or of as many as the model says, as far as the scopes hold them.

    Tokens are of no account here: the order of commands is to be derived anew. `skewed` says that loops will be, too.
    """
    function, target = offsets.function, offsets.target
    commands = commands_of(function, target)
    found = candidates(function, commands)
    opens = _openers(function, commands, found)
    unskewed = Model(function, target, commands, opens, False)
    model = Model(function, target, commands, opens, True) if skewed and unskewed.has_shared_unit else unskewed
    wanted: dict[SSAValue, int] = {each.buffer.memref: min(depth or MAX_SLOTS, each.depth) for each in found}
    if depth is None:
        # Commands of two iterations pass each other in the text of a skewed loop.
        wanted = _auto(model, wanted, 1 if model is unskewed else 2)
    before = unskewed.time({})
    slots = [_slots(op, op.slot_count, op.slot_count) for op in function.walk() if isinstance(op, RingOp)]
    names = {each.buffer.memref: _slots(each.buffer, 1, wanted[each.buffer.memref]) for each in found}
    made = _rotate([each for each in found if wanted[each.buffer.memref] > 1], wanted, target)
    offsets.changed()
    while made and (full := offsets.replan()) is not None:
        _shrink(made, full)
        offsets.changed()
    counts: dict[SSAValue, int] = {each.storage: ring.slot_count for ring, each in made.items()}
    slots += [replace(each, count=counts.get(storage, 1)) for storage, each in names.items() if each.wanted > 1]
    return PipelinedKernel(tuple(slots), before, unskewed.time(counts), model.time(counts))


def _slots(op: BufferOp | RingOp, count: int, wanted: int) -> Slots:
    name = op.results[0].name_hint
    return Slots(name.removesuffix("_ring") if name is not None else "a buffer", op.scope or "", count, wanted)


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


def _auto(model: Model, most: Mapping[SSAValue, int], least: int) -> dict[SSAValue, int]:
    """The fewest slots, but `least`, with which the model is about as fast as with the most."""
    slots = dict(most)
    best = model.time(slots).cycles
    for storage in most:
        for count in range(least, slots[storage]):
            if model.time(slots | {storage: count}).cycles <= best + best // MIN_GAIN:
                slots[storage] = count
                break
    return slots


@dataclass(frozen=True)
class _Replaced:
    """The buffer that a ring has taken the place of."""

    storage: SSAValue
    offset: IntegerAttr | None


def _rotate(found: Sequence[Candidate], wanted: Mapping[SSAValue, int], target: TargetOp) -> dict[RingOp, _Replaced]:
    turns: dict[tuple[scf.ForOp, ...], SSAValue] = {}
    rings: dict[RingOp, _Replaced] = {}
    for each in found:
        if each.loops not in turns:
            turns[each.loops] = iteration_number(each.loops)
        replaced = _Replaced(each.buffer.memref, each.buffer.offset)
        chosen = Candidate(each.buffer, each.loops, wanted[each.buffer.memref])
        rings[rotate(chosen, turns[each.loops], target)] = replaced
    return rings


def _shrink(rings: dict[RingOp, _Replaced], scope: str) -> None:
    """
    Take a slot from the ring of a scope whose slots are largest, of those that have most; one of one slot is a buffer
    again.
    """
    ring = max((each for each in rings if each.scope == scope), key=lambda each: (each.slot_count, each.pitch_in_bytes))
    if ring.slot_count > 2:
        ring.depth = IntegerAttr(ring.slot_count - 1, i64)
        return
    replaced = rings.pop(ring)
    for use in list(ring.ring.uses):
        slot = use.operation
        assert isinstance(slot, SlotOp)
        buffer = BufferOp(ring.slot_type)
        buffer.offset = replaced.offset
        buffer.location = ring.location
        buffer.memref.name_hint = slot.memref.name_hint
        Rewriter.replace_op(slot, buffer)
    Rewriter.erase_op(ring)
