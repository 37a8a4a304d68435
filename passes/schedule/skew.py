# SPDX-License-Identifier: Apache-2.0
"""
Skewing: where one unit loads for an iteration and stores its results, loads of the next iteration go before the store.

A unit takes its commands in order, so a store at the end of an iteration holds up the loads after it until what it
stores is computed; so does a processor that waits for loads before it calls a kernel. Such a loop becomes a prologue
(the first part of the first iteration), a steady state (of each iteration the first part of the next one and the last
part of its own), and an epilogue (the last part of the last iteration). Where the first part holds a loop whose
iterations take slots, only as many of them as there are slots go before the last part: more could not start.
Other units need no such thing: they run ahead of each other by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from xdsl.builder import Builder
from xdsl.dialects import arith, func, scf
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import location_of
from penstock.dialects.mem import BufferOp, RingOp, ScopedAllocation
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.analysis.effects import is_computed
from penstock.passes.analysis.loops import constant_of, trip_count
from penstock.passes.index_builder import for_loop, materialize
from penstock.passes.schedule.ordering.accesses import CommandInfo
from penstock.passes.schedule.ordering.conflicts import may_conflict


@dataclass(frozen=True)
class Skew:
    """How the commands and inner loops of an iteration are divided."""

    loop: scf.ForOp
    early: tuple[Operation, ...]
    """They go before the last part of the iteration before."""
    cut: scf.ForOp | None
    """A loop of which the first iterations are early, too, and the others are not."""
    iterations: int
    rest: tuple[Operation, ...]
    late: tuple[Operation, ...]
    """The last part."""


def split_of(loop: scf.ForOp, commands: Sequence[CommandInfo], *, nested: bool = False) -> Skew | str:
    """
    How the iterations of a loop are divided, or why it is not skewed, in words; if it is `nested`, the loops in it are
    skewed, and what they begin with goes early.
    """
    trips = trip_count(loop)
    if loop.results:
        return "it carries values"
    if trips is None or trips < 2 or constant_of(loop.lb) is None or constant_of(loop.step) is None:
        return "its number of iterations is not known" if trips is None else f"it has {trips} iterations"
    body = loop.body.block
    inside = [info for info in commands if body in info.loops]
    items: list[Operation] = [op for op in body.ops if isinstance(op, CommandOp | scf.ForOp)]
    held = {item: [info for info in inside if item.is_ancestor(info.op)] for item in items}
    if any(isinstance(op, RingOp) for op in body.ops):
        return "a ring is made in it"
    if (other := next((op for op in body.ops if not _may_be_copied(op)), None)) is not None:
        return f"{other.name} at {location_of(other)} {'yields values' if other.results else 'is no command'}"
    reason = "no command of it waits for another unit while others of its own unit could go on"
    for position in _late(items, held) if len(items) > 1 else ():
        first, last = items[:position], items[position:]
        for needed in dict.fromkeys((tuple(first), tuple(_needed(first, held, held[last[0]])))):
            others = [item for item in items if item not in needed]
            split = _before_loops(loop, needed, others) if nested else _deal(loop, needed, others, held)
            if (found := _in_the_way(split, held) or _shared_buffer(split)) is None and split.early:
                return split
            reason = found or reason
    return reason


def _before_loops(loop: scf.ForOp, first: Sequence[Operation], last: Sequence[Operation]) -> Skew:
    """Of a first part only what is before its loops goes early: what an inner loop, itself skewed, begins with."""
    early = list(takewhile(lambda item: not isinstance(item, scf.ForOp) or _is_one_command(item), first))
    return Skew(loop, tuple(early), None, 0, tuple(first[len(early) :]), tuple(last))


def _is_one_command(loop: scf.ForOp) -> bool:
    """Whether a loop is of the pieces of a transfer."""
    return sum(isinstance(op, CommandOp) for op in loop.walk()) == 1


def _needed(
    first: Sequence[Operation], held: Mapping[Operation, Sequence[CommandInfo]], late: Sequence[CommandInfo]
) -> list[Operation]:
    """What of a first part comes before others of it: without what the late stream does for the last part alone."""
    streams, needed = {info.stream for info in late}, list[Operation]()
    for item in reversed(first):
        is_loose = isinstance(item, CommandOp) and all(info.stream in streams for info in held[item])
        others = [info for each in needed for info in held[each]]
        if not is_loose or any(may_conflict(info, other) for info in held[item] for other in others):
            needed.insert(0, item)
    return needed


def _may_be_copied(op: Operation) -> bool:
    """Whether `_copy` knows what to do with an op in the body of a skewed loop."""
    if isinstance(op, scf.ForOp):
        return not op.results
    return isinstance(op, CommandOp | BufferOp) or is_computed(op)


def _late(items: Sequence[Operation], held: Mapping[Operation, Sequence[CommandInfo]]) -> Iterator[int]:
    """The items with a command whose stream waits for another unit, which has waited for that stream before."""
    behind: dict[CommandInfo, set[str]] = {}
    for position, item in enumerate(items):
        is_late = False
        for info in held[item]:
            units: set[str] = set()
            for earlier, known in behind.items():
                if earlier.unit != info.unit and earlier.runs_on and may_conflict(earlier, info):
                    # A processor has waited for what it issues.
                    units |= {earlier.unit, earlier.stream, *known}
            # The iterations of an inner loop are ordered by themselves.
            is_late |= info.stream in units and any(info.stream == e.stream for p in items[:position] for e in held[p])
            behind[info] = units
        if is_late and position:
            yield position


def _deal(
    loop: scf.ForOp,
    first: Sequence[Operation],
    last: Sequence[Operation],
    held: Mapping[Operation, Sequence[CommandInfo]],
) -> Skew:
    units = {info.unit for item in last for info in held[item]}
    for position, item in enumerate(first):
        if isinstance(item, scf.ForOp) and any(info.unit in units for info in held[item]):
            iterations, trips = _iterations_ahead(item, held[item]), trip_count(item)
            if (
                iterations is not None
                and trips is not None
                and iterations < trips
                and constant_of(item.lb) is not None
                and not item.results
            ):
                return Skew(loop, tuple(first[:position]), item, iterations, tuple(first[position + 1 :]), tuple(last))
    return Skew(loop, tuple(first), None, 0, (), tuple(last))


def _iterations_ahead(loop: scf.ForOp, commands: Sequence[CommandInfo]) -> int | None:
    """How many iterations of an inner loop have slots of their own; None where they share all that they access."""
    slots: list[int] = []
    for access in (access for info in commands for access in info.accesses):
        owner = access.storage.owner
        if isinstance(owner, RingOp) and (access.slot is None or access.slot.terms.get(loop.body.block)):
            slots.append(owner.slot_count)
        elif isinstance(owner, BufferOp) and loop.is_ancestor(owner):
            slots.append(1)
    return max(slots, default=None)


def _in_the_way(split: Skew, held: Mapping[Operation, Sequence[CommandInfo]]) -> str | None:
    """What of the early part of an iteration depends on the last part of the iteration before, in words."""
    body = split.loop.body.block
    for item in (*split.early, *([split.cut] if split.cut is not None else [])):
        fewer = {split.cut.body.block: split.iterations} if item is split.cut and split.cut is not None else {}
        for early in held[item]:
            for late in (info for op in split.late for info in held[op]):
                if may_conflict(late, early, body, fewer):
                    late_at = location_of(late.op)
                    return f"{early.op.name} at {location_of(early.op)} needs {late.op.name} before it, at {late_at}"
    return None


def _shared_buffer(split: Skew) -> str | None:
    """The buffer that an iteration makes, and that is used by its last part and before, in words."""
    for op in split.loop.body.block.ops:
        if isinstance(op, BufferOp):
            users = list(_users(op.memref))
            late = [any(part.is_ancestor(user) for part in split.late) for user in users]
            in_cut = [split.cut is not None and split.cut.is_ancestor(user) for user in users]
            early = [any(part.is_ancestor(user) for part in split.early) for user in users]
            is_cut = not all(late) and (any(in_cut) or (any(early) and not all(early)))
            if (any(late) and not all(late)) or is_cut:
                name = op.memref.name_hint or "buffer"
                return f"%{name} has one slot, and both parts of an iteration use it"
    return None


def _users(value: SSAValue) -> Iterator[Operation]:
    for use in value.uses:
        if isinstance(use.operation, CommandOp):
            yield use.operation
        else:
            for result in use.operation.results:
                yield from _users(result)


def rewrite(split: Skew) -> None:
    """Make the prologue, the steady state and the epilogue."""
    loop = split.loop
    lower, step, trips = constant_of(loop.lb), constant_of(loop.step), trip_count(loop)
    assert lower is not None
    assert step is not None
    assert trips is not None
    before = Builder(InsertPoint.before(loop))
    whole = dict[Operation, range | None].fromkeys((*split.early, *split.rest))
    head, tail = dict[Operation, range | None].fromkeys(split.early), dict[Operation, range | None].fromkeys(split.rest)
    if split.cut is not None:
        whole[split.cut] = None
        head[split.cut] = range(split.iterations)
        tail[split.cut] = range(split.iterations, trip_count(split.cut) or 0)
    late = dict[Operation, range | None].fromkeys(split.late)
    first, last = materialize(before, lower), materialize(before, lower + (trips - 1) * step)
    _copy(before, loop, first, [whole])
    steady, inner = for_loop(before, (first, last, loop.step), like=loop, counter=loop.body.block.args[0])
    counter = steady.body.block.args[0]
    following = inner.insert(arith.AddiOp(counter, loop.step)).result
    _copy(inner, loop, following, [head])
    _copy(inner, loop, counter, [late])
    if tail:
        _copy(inner, loop, following, [tail])
    inner.insert(scf.YieldOp())
    _copy(before, loop, last, [late])
    Rewriter.erase_op(loop)


def _copy(
    builder: Builder, loop: scf.ForOp, counter: SSAValue, parts: Sequence[Mapping[Operation, range | None]]
) -> None:
    """Copy what `parts` say of an iteration: commands, loops or some of their iterations, and what they depend on."""
    values: dict[SSAValue, SSAValue] = {loop.body.block.args[0]: counter}
    chosen = {op: iterations for part in parts for op, iterations in part.items()}
    for op in loop.body.block.ops:
        if op in chosen:
            copy = op.clone(values)
            builder.insert(copy)
            if (iterations := chosen[op]) is not None:
                assert isinstance(copy, scf.ForOp)
                _bound(copy, iterations)
        elif isinstance(op, BufferOp):
            if any(part is user or part.is_ancestor(user) for user in _users(op.memref) for part in chosen):
                builder.insert(op.clone(values))
        elif is_computed(op) and not isinstance(op, scf.YieldOp):
            builder.insert(op.clone(values))


def _bound(loop: scf.ForOp, iterations: range) -> None:
    lower, step = constant_of(loop.lb), constant_of(loop.step)
    assert lower is not None
    assert step is not None
    builder = Builder(InsertPoint.before(loop))
    loop.operands[0] = materialize(builder, lower + iterations.start * step)
    loop.operands[1] = materialize(builder, lower + iterations.stop * step)


def remove_unused(function: func.FuncOp) -> None:
    """Erase index arithmetic and views that nothing uses, and buffers likewise."""
    for op in list(function.walk(reverse=True)):
        unused = bool(op.results) and not any(result.uses for result in op.results)
        if unused and (is_computed(op) or isinstance(op, ScopedAllocation)):
            Rewriter.erase_op(op)
