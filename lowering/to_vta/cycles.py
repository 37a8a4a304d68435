"""
A decoded stream as a `Program`, so that what counts cycles and what decides hazards can look at the instructions.

All is read off the bits: what an instruction costs, micro-operations and empty instructions included, and its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import DRAM, TargetOp
from penstock.lowering.to_vta.accesses import Accesses
from penstock.lowering.to_vta.isa import (
    BLOCK,
    DRAM_BYTES,
    SCOPES,
    Alu,
    Finish,
    Gemm,
    Instruction,
    Loops,
    Memory,
    Transfer,
    pops_of,
    pushes_of,
)
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
        case Transfer() if not instruction.is_empty:
            on_chip = SCOPES[instruction.memory]
            ends = (on_chip, DRAM) if instruction.memory is Memory.OUT else (DRAM, on_chip)
            if (engine := target.dma_between(*ends)) is None:
                raise UserError(f"{target.machine_name} has no engine from {ends[0]} to {ends[1]}")
            row = instruction.x_size * DRAM_BYTES[instruction.memory]
            bus = target.buses().get(engine.bus_name or "")
            moved, per = bus.bytes_per_cycle if bus is not None else (1, 0)
            return Command(
                instruction.unit,
                Kind.TRANSFER,
                f"{name}_{instruction.memory.name.lower()}",
                engine.sym_name.data,
                instruction.y_size * (-(-row * per // moved) + engine.row_overhead_cycles),
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
