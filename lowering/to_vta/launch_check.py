# SPDX-License-Identifier: Apache-2.0
"""
Whether a stream is a launch of VTA: all that can be said of instructions without the data that they work on.

A stream that passes runs to its end on hardware, and computes the same in every order that its tokens permit. What
decides that is read off the bits, in four steps: each instruction alone (its memories, its padding, a shift by an
immediate), what it reaches on chip and off chip, what the entries that it reads hold (in the order of the stream, which
is that of all orders once there are no hazards), and hazards. FINISH is the last instruction, and everything else is
ordered before it: the host reads the results then. Shifts by the amounts in an accumulator are the one thing that
depends on data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import DRAM, TargetOp
from penstock.lowering.to_vta.disassembler import text_of
from penstock.lowering.to_vta.isa import (
    DRAM_BYTES,
    ENTRY_BYTES,
    MICRO_OP_BYTES,
    Alu,
    AluOpcode,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryInstruction,
    MemoryType,
    Store,
)
from penstock.lowering.to_vta.stream import Regions, program_of
from penstock.passes.analysis.commands.hazards import check
from penstock.passes.analysis.commands.program import Program

MAX_SHIFT = 31


def check_launch(
    instructions: Sequence[Instruction], target: TargetOp, micro_ops: bytes, base: int, name: str = "launch"
) -> Program:
    """
    The commands of a launch that may run; `micro_ops` lie off chip from the address `base` on, after all else.

    A launch reads on chip only what it has written itself. Raises UserError, which names `name` and the instruction,
    for a stream that is none.
    """

    def fault(number: int, message: str) -> UserError:
        return UserError(f"@{name}: {message}", notes=[f"{number}: {text_of(instructions[number])}"])

    _check_finish(instructions, name)
    limit = base + len(micro_ops)
    for number, instruction in enumerate(instructions):
        if not instruction.is_empty and (found := _alone(instruction) or _reach(instruction, base, limit)) is not None:
            raise fault(number, found)
        if isinstance(instruction, Load) and (odd := _splits_a_group(instruction, target)):
            raise fault(number, odd)
    program = program_of(instructions, target, micro_ops, base)
    contents = _Contents(target)
    for number, (instruction, command) in enumerate(zip(instructions, program.commands, strict=True)):
        if not instruction.is_empty and (found := contents.step(instruction, command.reads, command.writes)):
            raise fault(number, found)
    if hazards := check(program):
        first = hazards[0]
        named = [f"{number}: {text_of(instructions[number])}" for number in first.commands]
        raise UserError(f"@{name}: {first.message}", notes=[*first.notes, *named])
    return program


def _check_finish(instructions: Sequence[Instruction], name: str) -> None:
    ends = [number for number, instruction in enumerate(instructions) if isinstance(instruction, Finish)]
    if not ends:
        raise UserError(f"@{name}: the stream ends without FINISH")
    if (first := ends[0]) != len(instructions) - 1:
        notes = [f"{number}: {text_of(instructions[number])}" for number in (first, first + 1)]
        raise UserError(f"@{name}: FINISH is not the last instruction", notes=notes)


def _alone(instruction: Instruction) -> str | None:
    """What is wrong with an instruction, whatever is around it."""
    match instruction:
        case Load(memory=MemoryType.OUT):
            return "LOAD does not fill OUT"
        case Load() if instruction.memory is not MemoryType.INP and any(instruction.pads):
            return f"only loads of INP pad, not of {instruction.memory.name}"
        case Store() if instruction.memory is not MemoryType.OUT:
            return f"STORE empties OUT, not {instruction.memory.name}"
        case Alu(reset=True):
            return "ALU has no reset"
        case Alu(alu_opcode=AluOpcode.SHR, use_immediate=True) if not 0 <= instruction.immediate <= MAX_SHIFT:
            return f"shifts by less than 0 or more than {MAX_SHIFT} bits, which implementations of VTA do differently"
        case _:
            return None


def _reach(instruction: Instruction, base: int, limit: int) -> str | None:
    """What is wrong with the place off chip that an instruction moves from or to."""
    if not isinstance(instruction, MemoryInstruction) or not instruction.y_size:
        return None
    size = DRAM_BYTES[instruction.memory]
    begin = instruction.dram_base * size
    end = begin + ((instruction.y_size - 1) * instruction.x_stride + instruction.x_size) * size
    if instruction.memory is MemoryType.UOP:
        if instruction.y_size == 1 and base <= begin and end <= limit:
            return None
        return f"loads micro-operations from bytes {begin} to {end}, and they are from {base} to {limit}"
    if isinstance(instruction, Store) and end > base:
        return f"stores up to byte {end}, and micro-operations begin at {base}"
    return f"reaches byte {end} off chip, and there are {limit}" if end > limit else None


def _splits_a_group(load: Load, target: TargetOp) -> str | None:
    """Micro-operations that arrive in one word of the bus are written together: an even and an odd one."""
    engine = target.dma_between(DRAM, "uop")
    together = engine.alignment // MICRO_OP_BYTES if engine is not None else 1
    if load.memory is not MemoryType.UOP or load.x_size < 2 or together < 2:
        return None
    if load.sram_base % together == load.dram_base % together == 0:
        return None
    return (
        f"loads {load.x_size} micro-operations from {load.dram_base} to {load.sram_base}, not multiples of {together}"
    )


class _Contents:
    """What the entries on chip hold."""

    def __init__(self, target: TargetOp):
        sizes = {name: scope.size_bytes for name, scope in target.scopes().items()}
        self._written = {name: np.zeros(sizes[name] // entry, np.bool_) for name, entry in ENTRY_BYTES.items()}
        # STORE reads the low bytes of accumulators, which are a memory of their own that only GEMM and ALU write.
        self._computed = np.zeros_like(self._written["acc"])

    def step(self, instruction: Instruction, reads: Regions, writes: Regions) -> str | None:
        """What is wrong with what an instruction reads or reaches; else it is done."""
        for region in (*reads, *writes):
            held = self._written.get(region.space)
            if held is not None and region.end > held.size * ENTRY_BYTES[region.space]:
                entry = region.end // ENTRY_BYTES[region.space] - 1
                return f'reaches entry {entry} of "{region.space}", and there are {held.size}'
        for region in reads:
            held = self._written.get(region.space)
            if held is None:
                continue
            entries = _entries((region,), region.space)
            if not held[entries].all():
                return f'reads entry {entries[np.argmin(held[entries])]} of "{region.space}", which nothing has written'
            if isinstance(instruction, Store) and not self._computed[entries].all():
                return f"stores entry {entries[np.argmin(self._computed[entries])]}, which no GEMM or ALU has computed"
        for space, held in self._written.items():
            entries = _entries(writes, space)
            held[entries] = True
            if space == "acc":
                self._computed[entries] = isinstance(instruction, Alu) or (
                    isinstance(instruction, Gemm) and not instruction.reset
                )
        return None


def _entries(regions: Regions, space: str) -> NDArray[np.int64]:
    """The entries of a scope that regions cover."""
    size = ENTRY_BYTES[space]
    found = [
        (region.starts[:, None] // size + np.arange(region.length // size)).ravel()
        for region in regions
        if region.space == space
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)
