# SPDX-License-Identifier: Apache-2.0
"""What the commands of a kernel access: which bytes of which storage, as functions of the iterations of the loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.machine import IMMEDIATE, TargetOp
from penstock.dialects.mem import (
    RingOp,
    ScopedAllocation,
    SlotOp,
    element_bytes,
    memref_of,
    scope_of,
    static_strides,
)
from penstock.passes.analysis.access import linear_form, steps_of
from penstock.passes.analysis.commands.program import CommandOp, engine_of, runs_on, stream_of, unit_of
from penstock.passes.analysis.index import AffineIndex, IndexReader, Opaque
from penstock.passes.analysis.loops import constant_of, nest_around, trip_count
from penstock.passes.index_builder import Index


def trips_of(body: Block) -> int | None:
    """How often the loop with this body runs it, if its bounds are constants."""
    loop = body.parent_op()
    assert isinstance(loop, scf.ForOp)
    return trip_count(loop)


@dataclass(frozen=True)
class Count:
    """The number `constant` + the sum over loops, named by their bodies, of a coefficient times their iteration."""

    constant: int = 0
    terms: Mapping[Block, int] = field(default_factory=dict[Block, int])
    bounds: tuple[int, int] | None = field(default=None, compare=False)
    """The least and the largest value; None where the trip count of a loop is not known."""

    @staticmethod
    def of(index: AffineIndex) -> Count | None:
        """A sum of iterations, read by `IterationReader`; None if it is not understood."""
        if index.rest is not None:
            return None
        terms: dict[Block, int] = {}
        for symbol, coefficient in index.terms.items():
            assert isinstance(symbol, BlockArgument)
            terms[symbol.block] = coefficient
        return Count(index.base, terms, index.bounds)


class IterationReader(IndexReader):
    """The counter of a loop is its lower bound + step times the number of the iteration, which is the symbol."""

    def argument(self, value: BlockArgument) -> AffineIndex:
        loop = value.block.parent_op()
        if not isinstance(loop, scf.ForOp) or value.index != 0:
            return AffineIndex(rest=Opaque())
        lower, step = constant_of(loop.lb), constant_of(loop.step)
        if lower is None or step is None:
            return AffineIndex(rest=Opaque())
        trips = trip_count(loop)
        number = AffineIndex.symbol(value, Opaque(0, trips - 1 if trips else None))
        return number * step + lower

    def result(self, value: SSAValue, index: AffineIndex) -> AffineIndex:
        return index

    def unknown(self, value: SSAValue, op: Operation) -> AffineIndex:
        return AffineIndex(rest=Opaque())

    def offset(self, offsets: Sequence[Index], strides: Sequence[int], size: int) -> AffineIndex:
        """The distance in bytes of the element at some offsets, the strides in elements of `size` bytes."""
        total = AffineIndex()
        for offset, stride in zip(offsets, strides, strict=True):
            total += self.read(offset) * (stride * size)
        return total

    def number(self, value: SSAValue, modulus: int) -> Count | None:
        """
        The number of a slot of a ring of `modulus` of them, up to multiples of that; None where it is not understood.

        Numbers count up from 0 and are never negative.
        """
        owner = value.owner
        if isinstance(owner, arith.RemUIOp | arith.RemSIOp):
            divisor = constant_of(owner.rhs)
            return self.number(owner.lhs, modulus) if divisor and divisor % modulus == 0 else None
        return Count.of(self.read(value))


@dataclass(frozen=True)
class CommandAccess:
    """The bytes of one operand of a command."""

    storage: SSAValue
    """The allocation, the ring or the argument that they belong to."""
    scope: str | None
    writes: bool
    start: Count | None
    """Where the first one is, in bytes from the beginning of the storage, or of the slot; None if not understood."""
    dims: tuple[tuple[int, int], ...]
    """(count, stride in bytes), outermost first."""
    length: int
    """Bytes of one element."""
    slot: Count | None
    """Of a ring: the number of the slot, up to multiples of the slots; None if not understood."""

    @cached_property
    def span(self) -> int:
        """From the first byte to the end of the last."""
        return sum((count - 1) * stride for count, stride in self.dims) + self.length

    @cached_property
    def _storage_bytes(self) -> int:
        op = self.storage.owner
        return op.size_in_bytes if isinstance(op, ScopedAllocation) else 0

    # Not kept: buffers are moved while accesses are held.
    @property
    def range(self) -> tuple[int, int] | None:
        """The bytes of its scope, or of the arena, that the storage occupies; None for an argument."""
        op = self.storage.owner
        offset = op.byte_offset if isinstance(op, ScopedAllocation) else None
        return None if offset is None else (offset, offset + self._storage_bytes)


@dataclass(frozen=True, eq=False)
class CommandInfo:
    """A command op as the order of commands has to know it."""

    op: CommandOp
    number: int
    """Its index among the commands in the text."""
    unit: str
    transfers: bool
    """Whether a DMA engine performs it; others are alone on their unit."""
    outstanding: int
    """How many transfers of its engine may be in flight."""
    bus: str | None
    """The bus that its engine transfers on; None for what executes."""
    accesses: tuple[CommandAccess, ...]
    loops: tuple[Block, ...]
    """The bodies of the loops around it, outermost first."""
    stream: str
    """What waits for those that it comes after: its unit, or the processor."""
    runs_on: bool
    """Whether its stream goes on before it is complete."""

    @property
    def alone(self) -> bool:
        """Whether it starts only when all earlier commands of its unit are complete."""
        return not self.transfers or self.outstanding == 1


def commands_of(function: func.FuncOp, target: TargetOp) -> list[CommandInfo]:
    """The commands of a kernel in the order of the text."""
    accesses = _Accesses(target)
    found: list[CommandInfo] = []
    for number, op in enumerate(op for op in function.walk() if isinstance(op, CommandOp)):
        loops = tuple(loop.body.block for loop in nest_around(op))
        engine, unit = engine_of(op, target), unit_of(op, target)
        outstanding, bus = (1, None) if engine is None else (engine.outstanding_limit, engine.bus_name)
        waits = stream_of(op, target), runs_on(op, target)
        accessed = tuple(accesses.of(op))
        found.append(CommandInfo(op, number, unit, engine is not None, outstanding, bus, accessed, loops, *waits))
    return found


def in_order_units(commands: Sequence[CommandInfo], target: TargetOp) -> frozenset[str]:
    """The units whose commands are complete in the order in which they are issued."""
    loose = {command.unit for command in commands if not command.alone}
    return frozenset(unit for unit in target.units() if unit not in loose)


@dataclass(frozen=True)
class _View:
    """Where the first element of a memref lies."""

    storage: SSAValue
    start: AffineIndex
    """In bytes, in the numbers of the iterations."""
    slot: Count | None
    """In which slot of a ring."""


class _Accesses:
    """The accesses of the commands of a kernel."""

    def __init__(self, target: TargetOp):
        self._intrinsics = target.intrinsics()
        self._reader = IterationReader()
        self._views: dict[SSAValue, _View] = {}

    def of(self, op: CommandOp) -> Iterator[CommandAccess]:
        """What a command reads and writes."""
        if isinstance(op, DmaOp):
            yield self._of_box(op.source, op.mixed_source_offsets(), op.box, writes=False)
            yield self._of_box(op.dest, op.mixed_dest_offsets(), op.box, writes=True)
        else:
            yield from self._of_exec(op)

    def _of_box(self, value: SSAValue, offsets: Sequence[Index], box: Sequence[int], *, writes: bool) -> CommandAccess:
        type, view = memref_of(value), self._view(value)
        size, strides = element_bytes(type), static_strides(type)
        start = Count.of(view.start + self._reader.offset(offsets, strides, size))
        dims = tuple((count, stride * size) for count, stride in zip(box, strides, strict=True) if count > 1)
        # A window that is partly out of bounds accesses less than its box, never more.
        return CommandAccess(view.storage, scope_of(type), writes, start, dims, size, view.slot)

    def _of_exec(self, op: ExecOp) -> Iterator[CommandAccess]:
        extents = op.extents.get_values()
        specs = self._intrinsics[op.intrinsic_name].operand_specs()
        roles = [spec.role for spec in specs if spec.role != IMMEDIATE]
        for value, index_map, role in zip(op.buffers, op.maps, roles, strict=True):
            type, view = memref_of(value), self._view(value)
            size, strides = element_bytes(type), static_strides(type)
            constants, _ = linear_form(index_map.data)
            start = Count.of(view.start + self._reader.offset(constants, strides, size))
            steps = steps_of(index_map.data, value)
            dims = tuple((n, step * size) for n, step in zip(extents, steps, strict=True) if n > 1 and step)
            for writes in (False, True):
                if role != ("in" if writes else "out"):
                    yield CommandAccess(view.storage, scope_of(type), writes, start, dims, size, view.slot)

    def _view(self, value: SSAValue) -> _View:
        if (found := self._views.get(value)) is None:
            found = self._views[value] = self._find(value)
        return found

    def _find(self, value: SSAValue) -> _View:
        match value.owner:
            case memref.SubviewOp() as view:
                type, source = memref_of(view.source), self._view(view.source)
                begin = get_dynamic_index_list(view.static_offsets.get_values(), view.offsets, DYNAMIC_INDEX)
                moved = self._reader.offset(begin, static_strides(type), element_bytes(type))
                return _View(source.storage, source.start + moved, source.slot)
            case memref.CastOp() | memref.ExpandShapeOp() | memref.CollapseShapeOp():
                return self._view(value.owner.operands[0])
            case SlotOp() as slot:
                ring = slot.ring.owner
                assert isinstance(ring, RingOp)
                return _View(ring.storage, AffineIndex(), self._reader.number(slot.index, ring.slot_count))
            case _:
                return _View(value, AffineIndex(), None)
