"""Changes of a program that make its buffers smaller or live shorter, as planning problems to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from xdsl.dialects import func
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation

from penstock.dialects.accel import ExecOp
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import RingOp, span_in_bytes
from penstock.passes.analysis.kernels import machine_around
from penstock.passes.analysis.memory.liveness import Allocation
from penstock.passes.analysis.memory.memory_problems import MemoryProblem, element_memref, storage
from penstock.passes.analysis.memory.program_time import function_around
from penstock.passes.loop.repairs.prices import copies_of, is_part_of, price_of_cut, price_off_chip, scope_name
from penstock.passes.loop.repairs.tile_classes import resized, tile_classes
from penstock.passes.planning.problem import Buffer, Problem, lower_bound


@dataclass(frozen=True)
class Variant:
    """The buffers of a problem after one change of the program."""

    text: str
    """The change."""
    buffers: tuple[Buffer, ...]
    moved: int | None
    """Bytes that then cross the chip's edge more in a run of the function; None where that is not known."""
    where: str
    """That function."""
    is_bound: bool = False
    """Whether it may be fewer."""
    also: str = ""
    """What else it costs."""


def variants(memory: MemoryProblem) -> list[Variant]:
    """
    The single changes after which no more bytes are alive at once than there are, those that move least first.

    Of a ring and of a tile the smallest change that does.
    """
    found = [*_shorter_rings(memory), *_smaller_tiles(memory), *_off_chip(memory)]
    return sorted(found, key=lambda variant: (variant.moved is None, variant.moved or 0))


def _rounded(memory: MemoryProblem, bytes: int) -> int:
    return -(-bytes // memory.granule) * memory.granule


def _with_sizes(memory: MemoryProblem, sizes: dict[str, int]) -> tuple[Buffer, ...]:
    return tuple(replace(buffer, size=sizes.get(buffer.id, buffer.size)) for buffer in memory.problem.buffers)


# rings


def _shorter_rings(memory: MemoryProblem) -> Iterator[Variant]:
    for id, op in memory.ops.items():
        if not isinstance(op, RingOp):
            continue
        for depth in range(op.slot_count - 1, 0, -1):
            size = _rounded(memory, op.size_in_bytes - (op.slot_count - depth) * op.pitch_in_bytes)
            buffers = _with_sizes(memory, {id: size})
            if _may_fit(memory, buffers):
                text = f"the ring {id} with {depth} instead of {op.slot_count} slots"
                yield Variant(text, buffers, 0, _where(op), also=", but fewer copies run ahead")
                break


# tiles


def _smaller_tiles(memory: MemoryProblem) -> Iterator[Variant]:
    target = machine_around(next(iter(memory.ops.values())))
    if target is None:
        return
    ids = {op: id for id, op in memory.ops.items()}
    for function in dict.fromkeys(function_around(op) for op in memory.ops.values()):
        for tile in tile_classes(function):
            size = tile.extent
            while size > 1:
                size = -(-size // 2)
                cut = tile.cut(size)
                here = {op: shape for op, shape in cut.shapes.items() if op in ids}
                buffers = _with_sizes(memory, {ids[op]: _resized(memory, op, here[op], target) for op in here})
                if _may_fit(memory, buffers):
                    shapes = [f"{ids[op]} {_shape(op)} to {'x'.join(map(str, shape))}" for op, shape in here.items()]
                    text = f"tiles of {size} instead of {tile.extent}: {', '.join(shapes)}"
                    yield Variant(text, buffers, price_of_cut(cut), _where(function), is_bound=True)
                    break


def _resized(memory: MemoryProblem, op: Allocation, shape: tuple[int, ...], target: TargetOp) -> int:
    """The bytes of a buffer, or of all slots of a ring, of a smaller shape."""
    assert memory.scope is not None
    bytes = span_in_bytes(resized(element_memref(op), shape, target, memory.scope))
    slots = op.slot_count if isinstance(op, RingOp) else 1
    return slots * _rounded(memory, bytes)


def _shape(op: Allocation) -> str:
    return "x".join(str(size) for size in element_memref(op).get_shape())


# tensors left off chip


def _off_chip(memory: MemoryProblem) -> Iterator[Variant]:
    for id, op in memory.ops.items():
        users = memory.time.accesses(storage(op))
        rest = tuple(buffer for buffer in memory.problem.buffers if buffer.id != id)
        if any(isinstance(user, func.CallOp) for user in users):
            # Each use then brings it on chip for as long as it runs.
            own = next(buffer for buffer in memory.problem.buffers if buffer.id == id)
            visits = sorted({span for user in users for span in memory.time.spans(user)})
            parts = [replace(own, id=f"{id}, use {number}", intervals=(span,)) for number, span in enumerate(visits)]
            if _may_fit(memory, (*rest, *parts)):
                text = f"{id} off chip between its uses"
                yield Variant(text, (*rest, *parts), own.size * len(parts), _where(op), is_bound=True)
        elif _may_be_off_chip(op, users) and _may_fit(memory, rest):
            yield Variant(f"{id} left off chip", rest, price_off_chip(op), _where(op))


def _may_be_off_chip(op: Allocation, users: list[Operation]) -> bool:
    """Whether no unit needs the buffer where it is, and engines join what it is filled from and read by."""
    target = machine_around(op)
    if any(isinstance(user, ExecOp | GenericOp) for user in users):
        return False
    if target is None:
        return True
    fills = {scope_name(copy.source) for copy in copies_of(op) if is_part_of(copy.dest, op)}
    reads = {scope_name(copy.dest) for copy in copies_of(op) if is_part_of(copy.source, op)}
    if DRAM in fills and DRAM in reads:
        # It would go from off chip to off chip.
        return False
    return all(scope == DRAM or target.dma_between(scope, DRAM) for scope in fills) and all(
        scope == DRAM or target.dma_between(DRAM, scope) for scope in reads
    )


# measures


def _where(op: Operation) -> str:
    return f"@{function_around(op).sym_name.data}"


def _may_fit(memory: MemoryProblem, buffers: tuple[Buffer, ...]) -> bool:
    capacity = memory.problem.capacity
    return capacity is not None and lower_bound(Problem(buffers, capacity)) <= capacity
