# SPDX-License-Identifier: Apache-2.0
"""How long kernels of the loop level take: their copies and tensorized ops as a nest, which `pipelining` times."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.accel import ExecOp
from penstock.dialects.machine import DRAM, DmaOp, IntrinsicOp, TargetOp
from penstock.dialects.machine.code import TOKENS
from penstock.dialects.mem import CopyOp, RingOp, SlotOp, element_bytes, memref_of, static_strides
from penstock.passes.analysis.access import steps_of
from penstock.passes.analysis.commands.command_loops import commands, next_cut
from penstock.passes.analysis.commands.descriptor import describe, entry_elements, transfer_cost
from penstock.passes.analysis.commands.loop_domain import iteration_domain, sum_over_loops
from penstock.passes.analysis.commands.program import PROCESSOR, View
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.memory.storage import reads_and_writes, storage_of
from penstock.passes.analysis.units import scope_or_dram
from penstock.passes.loop.tensorize import prove_named
from penstock.passes.planning.pipelining import TimedLoop, TimedStep, time_of
from penstock.passes.planning.pipelining import steps_of as steps_in
from penstock.passes.planning.skewed_nest import Skewed, skewed
from penstock.passes.schedule.rings import candidates, rotate
from penstock.runtime.interpreter import applications_of

SLOTS = 8
"""Slots of what a loop refills: `accel-pipeline` gives it as many as pay, where there is room."""

WAYS: tuple[Skewed, ...] = ("none", "outer", "inner", "nested")
"""How loops may be skewed: as is fastest."""


def has_times(target: TargetOp) -> bool:
    """Whether the file of a machine says how long what crosses its edge takes."""
    return any(engine.bus_name is not None or engine.own_rate is not None for engine in target.dmas().values())


def kernel_time(kernel: func.FuncOp, target: TargetOp) -> int:
    """
    The cycles that one call of a kernel takes by itself, with rings as later passes make them.

    Of the windows of a loop the middle one stands for all; what an engine does not pad itself takes no time. A loop
    whose trips are those of loops around it takes their mean, rounded up. Raises UserError, located, for commands that
    run as often as something else decides.
    """
    timed = kernel.clone()
    rotate(candidates(timed, target, dict.fromkeys(target.scopes(), SLOTS)), target)
    nest = _Nest(target, _ordering_storages(timed))
    parts = tuple(nest.block(timed.body.block))
    return min(time_of(skewed(parts, nest.slots, way), nest.slots).cycles for way in WAYS)


def _accesses(op: Operation) -> Iterator[tuple[SSAValue, bool, bool]]:
    """The storages of a command, and whether it may read and write them."""
    for use in (use for value in dict.fromkeys(op.operands) for use in value.uses if use.operation is op):
        value = op.operands[use.index]
        if isinstance(value.type, MemRefType):
            yield storage_of(value), *reads_and_writes(use)


def _ordering_storages(kernel: func.FuncOp) -> set[SSAValue]:
    """The storages whose accesses wait for each other: not arguments that are only read, or only written in parts."""
    reads, writes, inside = set[SSAValue](), set[SSAValue](), set[SSAValue]()
    for op in kernel.walk():
        for storage, is_read, is_written in _accesses(op) if isinstance(op, CopyOp | GenericOp) else ():
            reads.update([storage] if is_read else ())
            writes.update([storage] if is_written else ())
            inside.update([storage] if isinstance(storage.owner, Operation) else ())
    return inside | (reads & writes)


@dataclass
class _Nest:
    """The steps of one kernel."""

    target: TargetOp
    ordering: Collection[SSAValue]
    slots: dict[str, int] = field(default_factory=dict[str, int])
    _names: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str])

    def block(self, block: Block) -> Iterator[TimedStep | TimedLoop]:
        """The steps of a block. The first that writes a slot takes it."""
        taken: set[str] = set()
        for op in block.ops:
            parts: tuple[TimedStep | TimedLoop, ...] = ()
            match op:
                case SlotOp():
                    taken.add(self._name(op.memref))
                case scf.ForOp():
                    inner = tuple(self.block(op.body.block))
                    parts = (TimedLoop(trips, inner),) if inner and (trips := _mean_trips(op)) else ()
                case CopyOp():
                    parts = tuple(self._copy(op))
                case GenericOp() if op.library_call is not None:
                    parts = tuple(self._generic(op))
                case _:
                    for command in op.walk() if op.regions else ():
                        if isinstance(command, CopyOp | GenericOp):
                            iteration_domain(command)  # raises: no loop decides how often it runs
            for part in parts:
                written = set(chain.from_iterable(step.writes for step in steps_in([part])))
                yield replace(part, opens=tuple(sorted(taken & written)))
                taken -= written

    def _name(self, value: SSAValue) -> str:
        storage = storage_of(value)
        name = self._names.setdefault(storage, f"storage {len(self._names)}")
        if isinstance(storage.owner, RingOp):
            self.slots[name] = storage.owner.slot_count
        return name

    def _step(self, op: CopyOp | GenericOp, performer: DmaOp | IntrinsicOp, cycles: int, count: int) -> TimedStep:
        """A command for an op, or so many of them."""
        accesses = [each for each in _accesses(op) if each[0] in self.ordering]
        reads = tuple(dict.fromkeys(self._name(storage) for storage, is_read, _ in accesses if is_read))
        writes = tuple(dict.fromkeys(self._name(storage) for storage, _, is_written in accesses if is_written))
        code = self.target.code()
        ordered = code is not None and code.order.data == TOKENS
        stream, runs_on = (PROCESSOR, performer.runs_on) if ordered else (None, True)
        if isinstance(performer, IntrinsicOp):
            assert performer.unit_name is not None
            return TimedStep(
                performer.unit_name,
                cycles,
                count=count,
                reads=reads,
                writes=writes,
                stream=stream,
                runs_on=runs_on,
            )
        leaves = scope_or_dram(op.dest if isinstance(op, CopyOp) else op.outputs[0]) == DRAM
        return TimedStep(
            performer.unit_name,
            cycles,
            performer.bus_name,
            performer.latency_cycles,
            performer.outstanding_limit,
            count,
            reads,
            writes,
            leaves=leaves,
            stream=stream,
            runs_on=runs_on,
        )

    def _copy(self, op: CopyOp) -> Iterator[TimedStep]:
        spaces = scope_or_dram(op.source), scope_or_dram(op.dest)
        engine = self.target.dma_between(*spaces)
        if engine is None:
            return
        size = element_bytes(op.source_type)
        entry = entry_elements(self.target, spaces, (size, size))
        clipped = _clipped(op)
        box = list(op.box)
        strides = [static_strides(op.source_type), static_strides(op.dest_type)]
        pads = {dim: max(each) for dim, each in enumerate(clipped) if any(each)}
        count = 1
        while (cut := next_cut(engine, box, strides, entry, pads, engine.pad_limit)) is not None:
            dim, piece = cut
            count *= -(-box[dim] // piece)
            box[dim], clipped[dim] = piece, (0, 0)
            pads.pop(dim, None)
        shape = tuple(max(0, extent - low - high) for extent, (low, high) in zip(box, clipped, strict=True))
        views = [
            View(space, 0, 0, shape, tuple(stride * size for stride in each), size)
            for space, each in zip(spaces, strides, strict=True)
        ]
        padding = clipped if op.padding is not None and engine.pad_limit and any(map(any, clipped)) else ()
        descriptor = describe(views, padding, engine=engine, entry=entry)
        yield self._step(op, engine, descriptor.cycles(transfer_cost(engine, self.target)), count)

    def _generic(self, op: GenericOp) -> Iterator[TimedStep]:
        match = prove_named(op, self.target)
        intrinsic = match.intrinsic
        buffers = [op.operands[number] for number in match.buffers]
        maps = [op.indexing_maps.data[number] for number in match.buffers]
        steps = [steps_of(each.data, buffer) for each, buffer in zip(maps, buffers, strict=True)]
        engine = None if intrinsic.dma_name is None else self.target.dmas()[intrinsic.dma_name]
        for count, extents in commands(match, op.get_static_loop_ranges(), self.target, steps):
            if engine is None:
                command = ExecOp(intrinsic.sym_name.data, extents, maps, buffers)
                cycles = intrinsic.depth + intrinsic.timing.cycles(applications_of(command, intrinsic).loops)
                command.erase()
                yield self._step(op, intrinsic, cycles, count)
                continue
            sizes = [element_bytes(memref_of(value)) for value in buffers]
            spaces = [scope_or_dram(value) for value in buffers]
            views = [
                View(space, 0, 0, extents, tuple(step * size for step in each), size)
                for space, each, size in zip(spaces, steps, sizes, strict=True)
            ]
            descriptor = describe(views, engine=engine, entry=entry_elements(self.target, spaces, sizes))
            yield self._step(op, engine, descriptor.cycles(transfer_cost(engine, self.target)), count)


def _mean_trips(loop: scf.ForOp) -> int:
    """How often the body of a loop runs, over all that the loops around it do: the mean, rounded up."""
    if (trips := trip_count(loop)) is not None:
        return trips
    around = iteration_domain(loop)
    outer = sum_over_loops(around)
    return -(-sum_over_loops((*around, loop)) // outer) if outer else 0


def _clipped(op: CopyOp) -> list[tuple[int, int]]:
    """By dim how much of the middle window of a copy is out of bounds, before and after."""
    if op.window_side is None:
        return [(0, 0)] * len(op.box)
    of_source = op.window_side == "source"
    offsets = op.mixed_source_offsets() if of_source else op.mixed_dest_offsets()
    found: list[tuple[int, int]] = []
    for offset, size, bound in zip(
        offsets, op.box, (op.source_type if of_source else op.dest_type).get_shape(), strict=True
    ):
        reach = AffineIndex.of(offset).bounds or (0, 0)
        at = sum(reach) // 2
        before = min(max(0, -at), size)
        found.append((before, min(max(0, at + size - bound), size - before)))
    return found
