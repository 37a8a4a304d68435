"""
Commands made of ops: all that an op says is worked out once, what changes from round to round is where it begins.

A memref is an address at run time: the number of its storage, shifted, plus the bytes from the start of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.machine import DmaOp as EngineOp
from penstock.dialects.mem import element_bytes, memref_of, scope_of, static_strides
from penstock.passes.analysis.commands.descriptor import describe, entry_elements
from penstock.passes.analysis.commands.program import Command, Kind, View
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.commands.tracing.recorder import Recorder, Token
from penstock.passes.analysis.commands.traffic import touched_elements
from penstock.runtime.interpreter import Evaluator, issues_of
from penstock.runtime.interpreter.counters import moved_bytes

STORAGE_SHIFT = 48
OFFSET_MASK = (1 << STORAGE_SHIFT) - 1

Issue = Callable[..., int]
"""From addresses, offsets of windows, tokens and loop counters to the number of the command."""


def strides_of(value: SSAValue, op: Operation) -> tuple[int, ...]:
    """The strides of a memref in bytes; raises UserError if they are not static."""
    type = memref_of(value)
    try:
        strides = static_strides(type)
    except ValueError as error:
        raise UserError(f"{op.name} cannot be followed: {error}", loc=location_of(op)) from None
    return tuple(stride * element_bytes(type) for stride in strides)


def _shape(type: MemRefType[Attribute], op: Operation) -> tuple[int, ...]:
    if not type.has_static_shape():
        raise UserError(f"{op.name} cannot be followed: {type} has no static shape", loc=location_of(op))
    return type.get_shape()


class Area:
    """Elements at a distance from an address: the view and the region of them, made once for each address."""

    def __init__(
        self, space: str, relative: int, shape: Sequence[int], strides: Sequence[int], size: int, *, dense: bool = True
    ):
        self.space, self.relative, self.size = space, relative, size
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.is_empty = 0 in self.shape
        self._steps = list(zip(self.shape, self.strides, strict=True))
        self._template = Region.of(space, 0, relative, size, self._steps)
        self._views: dict[int, View] = {}
        self._regions: dict[int, tuple[Region, ...]] = {}

    def view(self, address: int) -> View:
        """The elements of the memref at an address."""
        found = self._views.get(address)
        if found is None:
            # A window may begin before its memref, what moves of it does not: only their sum lies in the storage.
            storage, start = divmod(address + self.relative, 1 << STORAGE_SHIFT)
            found = self._views[address] = View(self.space, storage, start, self.shape, self.strides, self.size)
        return found

    def regions(self, address: int) -> tuple[Region, ...]:
        """Their bytes: one region, or none."""
        found = self._regions.get(address)
        if found is None:
            storage, start = divmod(address + self._template.start, 1 << STORAGE_SHIFT)
            region = Region(self.space, storage, start, self._template.length, self._template.dims)
            found = self._regions[address] = () if self.is_empty else (region,)
        return found


class _Piece:
    """What moves of a window that is clipped in one way."""

    def __init__(self, source: Area, dest: Area, written: Area, padding: tuple[tuple[int, int], ...], cycles: int):
        self.source, self.dest, self.written = source, dest, written
        self.padding = padding
        self.cycles = cycles
        self.moved = prod(source.shape) * source.size


class _Transfer:
    """An `accel.dma`, and the ways in which its window has been clipped so far."""

    def __init__(self, op: DmaOp, target: TargetOp):
        self.op = op
        self.engine: EngineOp = target.dmas()[op.engine.data]
        self.types = op.source_type, op.dest_type
        self.window = op.window_side
        self.box = op.box
        shapes = tuple(_shape(type, op) for type in self.types)
        self.places = tuple(zip(self.box, shapes[0 if self.window == "source" else 1], strict=True))
        """For each dim the size of the box, and of the side that the window is in."""
        self.may_hang = self.window != "source" or op.padding is not None or op.clipped is not None
        self.inside = tuple((0, 0, 0) for _ in self.box)
        self.strides = strides_of(op.source, op), strides_of(op.dest, op)
        self.spaces = tuple(scope_of(type) or DRAM for type in self.types)
        self.size = element_bytes(op.source_type)
        bus = target.buses().get(self.engine.bus_name or "")
        self.rate = None if bus is None else bus.bytes_per_cycle
        self.entry = entry_elements(target, self.spaces, (self.size, self.size))
        self._pieces: dict[tuple[tuple[int, int, int], ...], _Piece] = {}

    def piece(self, key: tuple[tuple[int, int, int], ...]) -> _Piece:
        """By dim: what is cut off before and behind, and where the box begins in the window's side if not cut."""
        found = self._pieces.get(key)
        if found is None:
            found = self._pieces[key] = self._new_piece(key)
        return found

    def _new_piece(self, key: tuple[tuple[int, int, int], ...]) -> _Piece:
        shape = tuple(max(0, size - before - behind) for size, (before, behind, _) in zip(self.box, key, strict=True))
        inside = [before for before, _, _ in key]
        outside = [at for _, _, at in key]
        starts = [outside, inside] if self.window == "source" else [inside, outside]
        source, dest = (
            Area(space, sum(a * s for a, s in zip(at, strides, strict=True)), shape, strides, self.size)
            for space, at, strides in zip(self.spaces, starts, self.strides, strict=True)
        )
        padding, written = (), dest
        if self.op.padding is not None:
            written = Area(self.spaces[1], 0, self.box, self.strides[1], self.size)
            if any(before or behind for before, behind, _ in key):
                padding = tuple((before, behind) for before, behind, _ in key)
        descriptor = describe([source.view(0), dest.view(0)], padding, engine=self.engine, entry=self.entry)
        cycles = descriptor.cycles(self.rate, self.engine.row_overhead_cycles)
        return _Piece(source, dest, written, padding, cycles)

    def clipped(self, offsets: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """The way in which a window at these offsets is clipped."""
        for at, (size, bound) in zip(offsets, self.places, strict=True):
            if not 0 <= at <= bound - size:
                return self._clipped(offsets)
        return self.inside

    def _clipped(self, offsets: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        key: list[tuple[int, int, int]] = []
        for dim, (at, (size, bound)) in enumerate(zip(offsets, self.places, strict=True)):
            before = min(max(-at, 0), size)
            behind = min(max(at + size - bound, 0), size - before)
            key.append((before, behind, before))
            if (before or behind) and not self.may_hang:
                raise UserError(
                    f"accel.dma reads elements {at} to {at + size} in dim {dim} of its source, which has {bound}",
                    loc=location_of(self.op),
                    notes=["`else` names what is read outside"],
                )
        return tuple(key)


def transfer(op: DmaOp, target: TargetOp, recorder: Recorder) -> Issue:
    """What issues an `accel.dma`: from two addresses, the offsets of its window (or none), tokens and counters."""
    made = _Transfer(op, target)
    engine, unit, name = made.engine, made.engine.unit_name, made.engine.sym_name.data
    closes = engine.outstanding_limit == 1
    start, end = made.spaces
    window = made.window
    steps = made.strides[0 if window == "source" else 1]

    def issue(
        source: int, dest: int, offsets: Sequence[int], tokens: Sequence[Token], counters: tuple[int, ...]
    ) -> int:
        key = made.inside
        if window is not None:
            key = made.clipped(offsets)
            moved = sum([at * step for at, step in zip(offsets, steps, strict=True)])
            if window == "source":
                source += moved
            else:
                dest += moved
        piece = made.piece(key)
        command = Command(
            unit,
            Kind.TRANSFER,
            name,
            name,
            piece.cycles,
            reads=piece.source.regions(source),
            writes=piece.written.regions(dest),
            moved=((start, end, piece.moved),),
            op=op,
            counters=counters,
            operands=(piece.source.view(source), piece.dest.view(dest)),
            padding=piece.padding,
        )
        return recorder.issue(command, tokens, closes=closes)

    return issue


def _access(op: ExecOp, evaluator: Evaluator, number: int, extents: Sequence[int]) -> Area:
    """The elements that an operand of an exec is asked for: a view with the dims of the domain."""
    value, access = op.buffers[number], evaluator.accesses[number]
    if access.forms is None:
        raise UserError("an index of accel.exec is no sum of multiples of its dims", loc=location_of(op))
    type = memref_of(value)
    strides = strides_of(value, op)
    relative = sum(form.constant * stride for form, stride in zip(access.forms, strides, strict=True))
    return Area(scope_of(type) or DRAM, relative, extents, access.strides(strides, extents), element_bytes(type))


def execution(op: ExecOp, target: TargetOp, recorder: Recorder) -> Issue:
    """What issues an `accel.exec`: from the addresses of its buffers, tokens and counters."""
    intrinsic = target.intrinsics()[op.intrinsic_name]
    body = intrinsic.body_with(op.immediate_values)
    evaluator = Evaluator(op, body.block, [attr.data for attr in op.maps], len(intrinsic.generic.outputs))
    extents = op.extents.get_values()
    accessed = [_access(op, evaluator, number, extents) for number in range(len(op.buffers))]
    iterations = issues_of(op, intrinsic)
    macs = prod(extents) if evaluator.is_contraction else 0
    reading = [number for number, read in enumerate(evaluator.reads) if read]
    last = len(accessed) - 1
    if intrinsic.dma_name is not None:
        engine = target.dmas()[intrinsic.dma_name]
        unit, kind, closes = engine.unit_name, Kind.TRANSFER, engine.outstanding_limit == 1
        scopes, sizes = [area.space for area in accessed], [area.size for area in accessed]
        entry = entry_elements(target, scopes, sizes)
        descriptor = describe([area.view(0) for area in accessed], engine=engine, entry=entry)
        bus = target.buses().get(engine.bus_name or "")
        cycles = descriptor.cycles(None if bus is None else bus.bytes_per_cycle, engine.row_overhead_cycles)
        touched = [
            touched_elements(access, extents, memref_of(value).get_shape()) * area.size
            for access, value, area in zip(evaluator.accesses, op.buffers, accessed, strict=True)
        ]
        moved = tuple((start, end, size) for (start, end), size in moved_bytes(scopes, touched).items())
        views = accessed
    else:
        assert intrinsic.unit_name is not None
        unit, kind, closes, moved = intrinsic.unit_name, Kind.EXEC, True, ()
        cycles = intrinsic.depth + intrinsic.initiation_interval * iterations
        views = [
            Area(area.space, 0, memref_of(value).get_shape(), strides_of(value, op), area.size)
            for area, value in zip(accessed, op.buffers, strict=True)
        ]
    engine_name, name = intrinsic.dma_name, op.intrinsic_name

    def issue(addresses: Sequence[int], tokens: Sequence[Token], counters: tuple[int, ...]) -> int:
        reads: tuple[Region, ...] = ()
        for number in reading:
            reads += accessed[number].regions(addresses[number])
        command = Command(
            unit,
            kind,
            name,
            engine_name,
            cycles,
            iterations,
            macs,
            reads=reads,
            writes=accessed[last].regions(addresses[last]),
            moved=moved,
            op=op,
            counters=counters,
            operands=tuple([area.view(address) for area, address in zip(views, addresses, strict=True)]),
        )
        return recorder.issue(command, tokens, closes=closes)

    return issue
