"""What the commands of a kernel access: which bytes of which storage, as functions of the iterations of the loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Block, SSAValue

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.machine import IMMEDIATE, IntrinsicOp, TargetOp
from penstock.dialects.machine import DmaOp as EngineOp
from penstock.dialects.mem import (
    BufferOp,
    RingOp,
    SlotOp,
    element_bytes,
    memref_of,
    scope_of,
    static_strides,
)
from penstock.passes.accel.ordering.counting import Count, count_of, in_iterations, number_of
from penstock.passes.analysis.access import linear_form
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.loops import nest_around
from penstock.passes.index_builder import Index

CommandOp = DmaOp | ExecOp
Dims = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Access:
    """The bytes of one operand of a command."""

    storage: SSAValue
    """The allocation, the ring or the argument that they belong to."""
    scope: str | None
    writes: bool
    start: Count | None
    """Where the first one is, in bytes from the beginning of the storage, or of the slot; None if not understood."""
    dims: Dims
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
    def place(self) -> tuple[int, int] | None:
        """The bytes of its scope, or of the arena, that the storage occupies; None for an argument."""
        op = self.storage.owner
        if not isinstance(op, BufferOp | RingOp) or op.byte_offset is None:
            return None
        return op.byte_offset, op.byte_offset + op.size_in_bytes


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
    accesses: tuple[Access, ...]
    loops: tuple[Block, ...]
    """The bodies of the loops around it, outermost first."""

    @property
    def alone(self) -> bool:
        """Whether it starts only when all earlier commands of its unit are complete."""
        return not self.transfers or self.outstanding == 1


@dataclass(frozen=True)
class _View:
    storage: SSAValue
    start: AffineIndex
    """In the numbers of the iterations."""
    slot: Count | None


def commands_of(function: func.FuncOp, target: TargetOp) -> list[CommandInfo]:
    """The commands of a kernel in the order of the text."""
    engines, intrinsics = target.dmas(), target.intrinsics()
    ops = [op for op in function.walk() if isinstance(op, DmaOp | ExecOp)]
    return [_command(op, number, engines, intrinsics) for number, op in enumerate(ops)]


def in_order_units(commands: Sequence[CommandInfo], target: TargetOp) -> frozenset[str]:
    """The units whose commands are complete in the order in which they are issued."""
    loose = {command.unit for command in commands if not command.alone}
    return frozenset(unit for unit in target.units() if unit not in loose)


def _command(
    op: CommandOp, number: int, engines: Mapping[str, EngineOp], intrinsics: Mapping[str, IntrinsicOp]
) -> CommandInfo:
    loops = tuple(loop.body.block for loop in nest_around(op))
    if isinstance(op, DmaOp):
        engine, accesses = engines[op.engine.data], _of_transfer(op)
    else:
        intrinsic = intrinsics[op.intrinsic_name]
        accesses = tuple(_of_exec(op, [s.role for s in intrinsic.operand_specs() if s.role != IMMEDIATE]))
        if intrinsic.dma_name is None:
            assert intrinsic.unit_name is not None
            return CommandInfo(op, number, intrinsic.unit_name, False, 1, None, accesses, loops)
        engine = engines[intrinsic.dma_name]
    return CommandInfo(op, number, engine.unit_name, True, engine.outstanding_limit, engine.bus_name, accesses, loops)


def _of_transfer(op: DmaOp) -> tuple[Access, Access]:
    sides = ((op.source, op.mixed_source_offsets(), False), (op.dest, op.mixed_dest_offsets(), True))
    return tuple(_of_box(value, offsets, op.box, writes) for value, offsets, writes in sides)  # pyright: ignore[reportReturnType]


def _of_box(value: SSAValue, offsets: Sequence[Index], box: Sequence[int], writes: bool) -> Access:
    type, view = memref_of(value), view_of(value)
    size, strides = element_bytes(type), static_strides(type)
    start = view.start
    for offset, stride in zip(offsets, strides, strict=True):
        start += in_iterations(offset) * (stride * size)
    dims = tuple((count, stride * size) for count, stride in zip(box, strides, strict=True) if count > 1)
    # A window that is partly out of bounds accesses less than its box, never more.
    return Access(view.storage, scope_of(type), writes, count_of(start), dims, size, view.slot)


def _of_exec(op: ExecOp, roles: Sequence[str]) -> Iterator[Access]:
    extents = op.extents.get_values()
    for value, index_map, role in zip(op.buffers, op.maps, roles, strict=True):
        type, view = memref_of(value), view_of(value)
        size, strides = element_bytes(type), static_strides(type)
        constants, rows = linear_form(index_map.data)
        offset = sum(constant * stride for constant, stride in zip(constants, strides, strict=True))
        start = count_of(view.start + offset * size)
        steps = [sum(row[dim] * s for row, s in zip(rows, strides, strict=True)) for dim in range(len(extents))]
        dims = tuple((n, step * size) for n, step in zip(extents, steps, strict=True) if n > 1 and step)
        if role != "out":
            yield Access(view.storage, scope_of(type), False, start, dims, size, view.slot)
        if role != "in":
            yield Access(view.storage, scope_of(type), True, start, dims, size, view.slot)


def view_of(value: SSAValue) -> _View:
    """Where the first element of a memref lies in its storage, in bytes, and in which slot of a ring."""
    start = AffineIndex()
    while True:
        match value.owner:
            case memref.SubviewOp() as view:
                type = memref_of(view.source)
                begin = get_dynamic_index_list(view.static_offsets.get_values(), view.offsets, DYNAMIC_INDEX)
                for offset, stride in zip(begin, static_strides(type), strict=True):
                    start += in_iterations(offset) * (stride * element_bytes(type))
                value = view.source
            case memref.CastOp() as cast:
                value = cast.source
            case SlotOp() as slot:
                ring = slot.ring.owner
                assert isinstance(ring, RingOp)
                return _View(ring.storage, start, number_of(slot.index, ring.slot_count))
            case _:
                return _View(value, start, None)
