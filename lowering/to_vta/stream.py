# SPDX-License-Identifier: Apache-2.0
"""
A decoded stream as a `Program`, so that what counts cycles and what decides hazards can look at the instructions.

All is read off the bits: what an instruction costs, micro-operations and empty instructions included, its tokens, and
the bytes that it reads and writes, as regions of memory off chip and of scopes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import DRAM, TargetOp
from penstock.lowering.to_vta.isa import (
    BLOCK,
    DRAM_BYTES,
    ENTRY_BYTES,
    MICRO_OP_BYTES,
    SCOPES,
    Alu,
    Finish,
    Gemm,
    Instruction,
    Load,
    Loops,
    MemoryInstruction,
    MemoryType,
    Store,
    micro_op_indices,
    pops_of,
    pushes_of,
)
from penstock.passes.analysis.commands.descriptor import transfer_cost
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program
from penstock.passes.analysis.commands.region import Region


def program_of(
    instructions: Sequence[Instruction], target: TargetOp, micro_ops: bytes | None = None, base: int = 0
) -> Program:
    """
    The commands that instructions are, one each, in the order of the stream; with costs of `target`.

    With `micro_ops`, which lie off chip from the address `base` on, commands have what they read and write, too, all
    of it off chip in one storage; FINISH comes after all else then. FINISH and what is empty cost nothing. Raises
    UserError for a transfer that no engine of `target` does.
    """
    commands = [_command(each, target) for each in instructions]
    if micro_ops is not None:
        accesses = Accesses(micro_ops, base)
        for command, instruction in zip(commands, instructions, strict=True):
            command.reads, command.writes = accesses.of(instruction)
        _order_before_finish(commands, instructions)
    return Program(MachineModel.of(target), commands, storages=("memory off chip",))


def _order_before_finish(commands: Sequence[Command], instructions: Sequence[Instruction]) -> None:
    """Let FINISH read what the last instruction of every unit writes: so it must be complete by then."""
    last = {command.unit: number for number, command in enumerate(commands)}
    results = {number: Region(unit, 0, 0, 1) for unit, number in last.items()}
    for number, region in results.items():
        commands[number].writes += (region,)
    for command, instruction in zip(commands, instructions, strict=True):
        if isinstance(instruction, Finish):
            command.reads = tuple(region for number, region in results.items() if commands[number] is not command)


def _command(instruction: Instruction, target: TargetOp) -> Command:
    pops, pushes = tuple(pops_of(instruction)), tuple(pushes_of(instruction))
    name = instruction.opcode.name.lower()
    match instruction:
        case MemoryInstruction() if not instruction.is_empty:
            on_chip = SCOPES[instruction.memory]
            ends = (on_chip, DRAM) if instruction.memory is MemoryType.OUT else (DRAM, on_chip)
            if (engine := target.dma_between(*ends)) is None:
                raise UserError(f"{target.machine_name} has no engine from {ends[0]} to {ends[1]}")
            row = instruction.x_size * DRAM_BYTES[instruction.memory]
            top, bottom, left, right = instruction.pads if isinstance(instruction, Load) else (0, 0, 0, 0)
            around = (instruction.y_size + top + bottom) * (instruction.x_size + left + right)
            padded = (around - instruction.y_size * instruction.x_size) * DRAM_BYTES[instruction.memory]
            return Command(
                instruction.unit,
                Kind.TRANSFER,
                f"{name}_{instruction.memory.name.lower()}",
                engine.sym_name.data,
                transfer_cost(engine, target).cycles(instruction.y_size, row, padded),
                pops=pops,
                pushes=pushes,
                moved=((ends[0], ends[1], row * instruction.y_size),),
            )
        case Loops() if not instruction.is_empty:
            name = _intrinsic_name(instruction)
            intrinsic = target.intrinsics()[name]
            multiplies = isinstance(instruction, Gemm) and not instruction.reset
            return Command(
                instruction.unit,
                Kind.EXEC,
                name,
                cycles=intrinsic.depth + intrinsic.initiation_interval * instruction.iterations,
                iterations=instruction.iterations,
                macs=instruction.iterations * BLOCK * BLOCK if multiplies else 0,
                pops=pops,
                pushes=pushes,
            )
        case _:
            return Command(instruction.unit, Kind.CARRIER, name, pops=pops, pushes=pushes)


def _intrinsic_name(loops: Loops) -> str:
    if isinstance(loops, Alu):
        return f"alu_{loops.alu_opcode.name.lower()}{'_imm' if loops.use_immediate else ''}"
    return "gemm_reset" if loops.reset else "gemm"


# what they read and write


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
                if instruction.memory is MemoryType.UOP:
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


def _off_chip(transfer: MemoryInstruction) -> Regions:
    size = DRAM_BYTES[transfer.memory]
    if not transfer.y_size:
        return ()
    steps = [(transfer.y_size, transfer.x_stride * size)]
    return (Region.of(DRAM, 0, transfer.dram_base * size, transfer.x_size * size, steps),)


def _on_chip(transfer: MemoryInstruction) -> Regions:
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
