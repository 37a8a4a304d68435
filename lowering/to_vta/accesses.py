"""The bytes that instructions read and write, as regions of memory off chip and of scopes, read off the bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.machine import DRAM
from penstock.lowering.to_vta.isa import (
    DRAM_BYTES,
    ENTRY_BYTES,
    MICRO_OP_BYTES,
    SCOPES,
    Alu,
    Gemm,
    Instruction,
    Load,
    Loops,
    Memory,
    Store,
    Transfer,
)
from penstock.lowering.to_vta.words import micro_op_indices
from penstock.passes.analysis.commands.region import Region

Regions = tuple[Region, ...]


class Accesses:
    """Follows a stream, in which LOADs decide what the micro-operations are that GEMM and ALU apply."""

    def __init__(self, micro_ops: bytes, base: int):
        """`micro_ops` lie off chip from the address `base` on."""
        self._stored = np.frombuffer(micro_ops, "<u4")
        self._base = base // MICRO_OP_BYTES
        self._on_chip = np.zeros(8192, "<u4")

    def of(self, instruction: Instruction) -> tuple[Regions, Regions]:
        """What the next instruction of the stream reads, and what it writes."""
        if instruction.is_empty:
            return (), ()
        match instruction:
            case Load():
                if instruction.memory is Memory.UOP:
                    first = instruction.dram_base - self._base
                    loaded = self._stored[first : first + instruction.x_size]
                    self._on_chip[instruction.sram_base : instruction.sram_base + loaded.size] = loaded
                return _off_chip(instruction), _on_chip(instruction)
            case Store():
                return _on_chip(instruction), _off_chip(instruction)
            case Loops():
                return self._of_loops(instruction)
            case _:
                return (), ()

    def _of_loops(self, loops: Loops) -> tuple[Regions, Regions]:
        listed = self._on_chip[loops.uop_begin : loops.uop_end]
        dst, src, wgt = micro_op_indices(listed.tobytes())
        begin, end = loops.uop_begin * MICRO_OP_BYTES, loops.uop_end * MICRO_OP_BYTES
        reads = [Region("uop", 0, begin, end - begin)]
        written = _entries("acc", loops, dst, "dst")
        if isinstance(loops, Gemm) and not loops.reset:
            reads += _entries("inp", loops, src, "src")
            reads += _entries("wgt", loops, wgt, "wgt")
        if isinstance(loops, Alu) and not loops.use_immediate:
            reads += _entries("acc", loops, src, "src")
        if not loops.reset:
            reads += written
        return tuple(reads), tuple(written)


def _off_chip(transfer: Transfer) -> Regions:
    size = DRAM_BYTES[transfer.memory]
    if not transfer.y_size:
        return ()
    steps = [(transfer.y_size, transfer.x_stride * size)]
    return (Region.of(DRAM, 0, transfer.dram_base * size, transfer.x_size * size, steps),)


def _on_chip(transfer: Transfer) -> Regions:
    scope = SCOPES[transfer.memory]
    rows, width = transfer.y_size, transfer.x_size
    if isinstance(transfer, Load):
        rows += transfer.y_pad_0 + transfer.y_pad_1
        width += transfer.x_pad_0 + transfer.x_pad_1
    size = ENTRY_BYTES[scope]
    return (Region(scope, 0, transfer.sram_base * size, rows * width * size),)


def _entries(scope: str, loops: Loops, listed: NDArray[np.int64], index: str) -> list[Region]:
    """The entries that the loops reach: runs of neighbours, and equal runs at equal distances as one region."""
    outer, inner = loops.factors(index)
    reached = np.unique(listed)
    for count, step in ((loops.iter_in, inner), (loops.iter_out, outer)):
        if count > 1 and step:
            reached = np.unique((reached[:, None] + np.arange(count) * step).ravel())
    starts = reached[np.flatnonzero(np.diff(reached, prepend=-2) != 1)]
    lengths = np.diff(np.searchsorted(reached, starts), append=reached.size)
    return [
        Region.of(
            scope, 0, first * ENTRY_BYTES[scope], length * ENTRY_BYTES[scope], [(count, step * ENTRY_BYTES[scope])]
        )
        for first, length, count, step in _repeated(starts.tolist(), lengths.tolist())
    ]


def _repeated(starts: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Runs of equal length at equal distances as one: start, length, count, distance."""
    found: list[tuple[int, int, int, int]] = []
    for start, length in zip(starts, lengths, strict=True):
        if found:
            first, before, count, step = found[-1]
            distance = start - (first + (count - 1) * step)
            if length == before and (count == 1 or distance == step):
                found[-1] = first, length, count + 1, distance
                continue
        found.append((start, length, 1, 0))
    return found
