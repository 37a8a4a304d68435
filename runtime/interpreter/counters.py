# SPDX-License-Identifier: Apache-2.0
"""What an execution counted: bytes across the chip's edge, and what the intrinsics did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.utils.hints import isa

from penstock.dialects import accel, machine, mem
from penstock.dialects.cycles import Loop, loops_of, repeats_of
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.domain import OperandAccess
from penstock.runtime.interpreter.scopes import Region


@dataclass
class DmaCount:
    """The work of one DMA engine. Bytes are those of the elements inside the window, on the off-chip side."""

    commands: int = 0
    """Commands that the engine got."""
    bytes_in: int = 0
    """From off chip."""
    bytes_out: int = 0
    """To off chip."""
    bytes_on_chip: int = 0
    """Between scopes."""
    between: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """By the scopes (or "dram") that they came from and went to; constants come from ""."""


@dataclass
class ExecCount:
    """The work of one intrinsic."""

    commands: int = 0
    """Commands in which it ran."""
    issues: int = 0
    """Applications of the intrinsic: blocks of its shape, the last ones smaller."""
    points: int = 0
    """Points of the iteration domains."""
    macs: int = 0
    """Multiply-accumulates: the points, where the intrinsic multiplies and adds."""


@dataclass
class Counters:
    """
    Sums over an execution, by engine and by intrinsic, in the order of their first use.

    At the loop level copies count as one command each of the engine between their scopes, and the tensorized ops that
    an engine performs on the way as one each: the bytes are those of the accel level, the commands may be fewer.
    """

    dma: dict[str, DmaCount] = field(default_factory=dict[str, DmaCount])
    """By the name of the `machine.dma`, intrinsics that it performs on the way included."""
    intrinsics: dict[str, ExecCount] = field(default_factory=dict[str, ExecCount])
    """By the name of the `machine.intrinsic`."""

    @property
    def bytes_in(self) -> int:
        """Bytes read from off chip by all engines."""
        return sum(count.bytes_in for count in self.dma.values())

    @property
    def bytes_out(self) -> int:
        """Bytes written off chip by all engines."""
        return sum(count.bytes_out for count in self.dma.values())

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all intrinsics."""
        return sum(count.macs for count in self.intrinsics.values())

    def bytes_between(self, start: str, end: str) -> int:
        """Bytes from one scope (or "dram") to another by all engines."""
        return sum(count.between.get((start, end), 0) for count in self.dma.values())

    def add_bytes(self, engine: str, moved: Mapping[tuple[str, str], int]) -> None:
        """Count one command of an engine: the bytes it moved, by where from and where to."""
        count = self.dma.setdefault(engine, DmaCount())
        count.commands += 1
        for ends, size in moved.items():
            count.bytes_in += size * (ends[0] == machine.DRAM)
            count.bytes_out += size * (ends[1] == machine.DRAM)
            count.bytes_on_chip += size * (machine.DRAM not in ends and "" not in ends)
            count.between[ends] = count.between.get(ends, 0) + size

    def add_exec(self, intrinsic: str, issues: int, points: int, multiplies: bool) -> None:
        """Count one command of an intrinsic."""
        count = self.intrinsics.setdefault(intrinsic, ExecCount())
        count.commands += 1
        count.issues += issues
        count.points += points
        count.macs += points if multiplies else 0


def touched_bytes(array: Array, region: Region) -> int:
    """The bytes of a region."""
    if region is None:
        return array.nbytes
    if isinstance(region, np.ndarray):
        return int(np.count_nonzero(region)) * array.itemsize
    return array[region].nbytes


def moved_bytes(scopes: Sequence[str], touched: Sequence[int]) -> dict[tuple[str, str], int]:
    """What an operation moves from its inputs to its output, the last operand: off chip what it writes there."""
    *inputs, end = scopes
    if end == machine.DRAM:
        return {(inputs[0] if inputs else "", end): touched[-1]}
    moved: dict[tuple[str, str], int] = {}
    for start, size in zip(inputs, touched, strict=False):
        if start != end:
            moved[start, end] = moved.get((start, end), 0) + size
    return moved


@dataclass(frozen=True)
class Applications:
    """How often one command applies its intrinsic, and what of its operands that touches."""

    count: int
    """Applications: blocks of the intrinsic's shape, the last ones smaller."""
    elements: tuple[int, ...]
    """Of each operand, over all applications: one that does not move through a dim is touched again by every block, but
    for the stationary one, of which each block is touched when it is loaded."""
    loops: tuple[Loop, ...]
    """The domain, in blocks."""


def applications_of(op: accel.ExecOp, intrinsic: machine.IntrinsicOp) -> Applications:
    """
    The applications of `intrinsic` in one command: the points of its domain, in blocks of the intrinsic's shape.

    A dim of the intrinsic covers one dim of the domain: one that moves through the operands as it does (through
    the same ones, along the last index where it does so), and among these the one that saves most applications.
    The other dims of the domain are loops around it.

    Raises UserError where a block, the last one included, is smaller than the intrinsic permits.
    """
    extents = op.extents.get_values()
    strides = [_strides(buffer, attr.data, extents) for buffer, attr in zip(op.buffers, op.maps, strict=True)]
    pattern = [
        OperandAccess.of(attr.data)
        for attr, spec in zip(intrinsic.generic.indexing_maps, intrinsic.operand_specs(), strict=True)
        if spec.role != machine.IMMEDIATE
    ]
    taken: set[int] = set()
    blocks = list(extents)
    covered: list[tuple[int | None, int]] = [(None, 1)] * len(extents)
    for dim in reversed(range(len(intrinsic.dims))):
        bounds = intrinsic.shape[dim]
        candidates = [
            each
            for each in range(len(extents))
            if each not in taken and _moves_as(pattern, dim, [of_operand[each] for of_operand in strides])
        ]
        if not candidates:
            continue
        whole = [each for each in candidates if bounds is None or _last_block(extents[each], bounds[1]) >= bounds[0]]
        candidates = whole or candidates
        counts = {each: 1 if bounds is None else -(-extents[each] // bounds[1]) for each in candidates}
        best = max(candidates, key=lambda each: (extents[each] / counts[each], each))
        if bounds is not None and _last_block(extents[best], bounds[1]) < bounds[0]:
            raise UserError(
                f'intrinsic "{intrinsic.sym_name.data}" takes at least {bounds[0]} in dim {intrinsic.dims[dim]}, '
                f"but the last block of {extents[best]} is smaller",
                loc=location_of(op),
            )
        taken.add(best)
        blocks[best] = counts[best]
        covered[best] = dim, extents[best] if bounds is None else bounds[1]
    stays = intrinsic.stationary_operand
    moving = [[stride != 0 for stride in of_operand] for of_operand in strides]
    loops = loops_of(extents, covered, [True] * len(extents) if stays is None else moving[stays], moving[-1])
    elements = [
        prod(extent if stride else count for extent, count, stride in zip(extents, blocks, of_operand, strict=True))
        for of_operand in strides
    ]
    if stays is not None:
        elements[stays] = prod(each.extent for each in loops if each.moves) * repeats_of(loops)
    return Applications(prod(blocks), tuple(elements), loops)


def _last_block(extent: int, largest: int) -> int:
    return (extent - 1) % largest + 1


def _strides(buffer: SSAValue, index_map: AffineMap, extents: Sequence[int]) -> Sequence[int]:
    """The stride, in elements of an operand, of each dim of the domain."""
    access = OperandAccess.of(index_map)
    if not isa(buffer.type, MemRefType) or access.forms is None:
        return [0] * len(extents)
    try:
        return access.strides(mem.static_strides(buffer.type), extents)
    except ValueError:
        return access.strides([1] * buffer.type.get_num_dims(), extents)


def _moves_as(pattern: Sequence[OperandAccess], dim: int, strides: Sequence[int]) -> bool:
    """Whether a dim with these strides in the operands moves through them as `dim` of the intrinsic does."""
    for access, stride in zip(pattern, strides, strict=True):
        assert access.forms is not None
        found = [index for index, form in enumerate(access.forms) if form.coefficients[dim]]
        is_last = bool(found) and found[-1] == len(access.forms) - 1
        if (stride != 0) != bool(found) or (is_last and stride != 1):
            return False
    return True
