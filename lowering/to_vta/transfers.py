# SPDX-License-Identifier: Apache-2.0
"""Transfers between memories as LOAD and STORE: rows of entries, adjacent on chip, a stride apart off chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import DRAM, TargetOp
from penstock.lowering.to_vta.isa import DRAM_BYTES, ENTRY_BYTES, SCOPES, Load, MemoryInstruction, MemoryType, Store
from penstock.passes.analysis.commands.descriptor import Descriptor, describe, entry_elements
from penstock.passes.analysis.commands.program import Command, View

MAX_STRIDE = 65535
MAX_SIZE = 65535
MAX_PAD = 15

LOADS = {
    ("inp", 1): MemoryType.INP,
    ("wgt", 1): MemoryType.WGT,
    ("acc", 4): MemoryType.ACC,
    ("acc", 1): MemoryType.ACC_8BIT,
    ("uop", 4): MemoryType.UOP,
}
"""By the scope that is filled and the bytes of an element off chip."""


@dataclass(frozen=True)
class _Rows:
    """One dim of a transfer: its size, the strides on both sides in bytes, and the padding around it."""

    count: int
    off_chip: int
    on_chip: int
    before: int = 0
    after: int = 0

    @property
    def padded(self) -> bool:
        return bool(self.before or self.after)


def encode_transfer(command: Command, target: TargetOp, bases: Sequence[int]) -> list[MemoryInstruction]:
    """
    The instructions of a transfer: one, or several where its rows do not adjoin on chip, in program order.

    `bases` are the addresses off chip of the storages of the command's program, in bytes. Raises UserError, located,
    for what no LOAD or STORE can do.
    """
    if len(command.operands) != 2 or command.engine is None:
        raise _refused(command, "has not one source and one destination")
    source, dest = command.operands
    loads = source.space == DRAM
    off_chip, on_chip = (source, dest) if loads else (dest, source)
    if off_chip.space != DRAM or on_chip.space == DRAM:
        raise _refused(command, f'goes from "{source.space}" to "{dest.space}"')
    memory = _memory(command, on_chip, off_chip, loads=loads)
    if 0 in off_chip.shape and loads:
        return [_zeros(command, memory, on_chip)]
    views = [source, dest]
    entry = entry_elements(target, [view.space for view in views], [view.element_bytes for view in views])
    described = describe(views, command.padding, engine=target.dmas()[command.engine], entry=entry)
    return list(_encoded(command, memory, described, off_chip, on_chip, bases, loads=loads))


def _memory(command: Command, on_chip: View, off_chip: View, *, loads: bool) -> MemoryType:
    if loads:
        found = LOADS.get((on_chip.space, off_chip.element_bytes))
        if found is not None:
            return found
    elif (on_chip.space, on_chip.element_bytes, off_chip.element_bytes) == ("acc", 4, 1):
        return MemoryType.OUT
    verb = "fills" if loads else "empties"
    raise _refused(command, f'{verb} "{on_chip.space}" with elements of {off_chip.element_bytes} bytes off chip')


def _encoded(
    command: Command,
    memory: MemoryType,
    described: Descriptor,
    off_chip: View,
    on_chip: View,
    bases: Sequence[int],
    *,
    loads: bool,
) -> Iterator[MemoryInstruction]:
    outside, inside = DRAM_BYTES[memory], ENTRY_BYTES[SCOPES[memory]]
    elements = outside // off_chip.element_bytes
    row = described.counts[-1]
    before, after = described.padding[-1]
    if row % elements or before % elements or after % elements:
        raise _refused(command, f"moves rows of {row} elements, which are no whole entries of {elements}")
    outer, inner = (0, 1) if loads else (1, 0)
    dims = [
        _Rows(count, described.strides[outer][dim], described.strides[inner][dim], *described.padding[dim])
        for dim, count in enumerate(described.counts[:-1])
    ]
    x_size, x_pad = row // elements, (before // elements, after // elements)
    width = sum(x_pad) + x_size
    rows = _Rows(1, 0, 0)
    if dims and _adjoins(dims[-1], width * inside, outside):
        rows = dims.pop()
    if any(dim.padded for dim in dims):
        raise _refused(command, "pads more than rows and the entries of a row")
    if any(pad > MAX_PAD for pad in (*x_pad, rows.before, rows.after)):
        raise _refused(command, f"pads by {max(*x_pad, rows.before, rows.after)}, and the most is {MAX_PAD}")
    if max(x_size, rows.count) > MAX_SIZE:
        raise _refused(command, f"moves {max(x_size, rows.count)} rows or entries, and the most is {MAX_SIZE}")
    start = bases[off_chip.storage] + off_chip.start
    # The view begins at what is moved; what is written begins at the padding.
    place = on_chip.start - (rows.before * width + x_pad[0]) * inside
    steps = [rows.off_chip] if rows.count > 1 else []
    for value, unit in ((start, outside), (place, inside), *((step, outside) for step in steps)):
        if value % unit:
            raise _refused(command, f"begins or steps by {value} bytes, which is no multiple of an entry of {unit}")
    for indices in product(*(range(dim.count) for dim in dims)):
        far = start + sum(index * dim.off_chip for index, dim in zip(indices, dims, strict=True))
        near = place + sum(index * dim.on_chip for index, dim in zip(indices, dims, strict=True))
        if far % outside or near % inside:
            raise _refused(command, "steps by less than an entry")
        fields: dict[str, Any] = {
            "memory": memory,
            "sram_base": near // inside,
            "dram_base": far // outside,
            "y_size": rows.count,
            "x_size": x_size,
            "x_stride": rows.off_chip // outside if rows.count > 1 else x_size,
        }
        if loads:
            yield Load(**fields, y_pad_0=rows.before, y_pad_1=rows.after, x_pad_0=x_pad[0], x_pad_1=x_pad[1])
        else:
            yield Store(**fields)


def _zeros(command: Command, memory: MemoryType, on_chip: View) -> Load:
    """What only pads: no rows, and one row of padding as long as the box, which must be dense."""
    inside = ENTRY_BYTES[SCOPES[memory]]
    place, size = on_chip.start, on_chip.element_bytes
    dims = list(zip(on_chip.shape, on_chip.strides, command.padding or [(0, 0)] * len(on_chip.shape), strict=True))
    for count, stride, (before, after) in reversed(dims):
        extent = count + before + after
        if extent > 1 and stride != size:
            raise _refused(command, "only pads, and what it pads has gaps")
        place -= before * stride
        size *= extent
    if size % inside or place % inside:
        raise _refused(command, f"only pads, {size} bytes, which is no multiple of an entry of {inside}")
    return Load(memory=memory, sram_base=place // inside, x_size=size // inside, y_pad_0=1)


def _adjoins(rows: _Rows, width: int, entry: int) -> bool:
    """Whether rows follow each other on chip as an instruction lays them, and its stride reaches as far as theirs."""
    if rows.count + rows.before + rows.after > 1 and rows.on_chip != width:
        return False
    return rows.count == 1 or 0 <= rows.off_chip <= MAX_STRIDE * entry


def _refused(command: Command, why: str) -> UserError:
    return UserError(
        f"a transfer of {command.engine or command.name} is no instruction of VTA: it {why}",
        loc=command.location,
    )
