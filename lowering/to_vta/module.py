# SPDX-License-Identifier: Apache-2.0
"""
A module at the accelerator level as launches of VTA, with what the host does between them.

Memory off chip holds each storage of the program at a multiple of the largest entry, the arena of intermediate
buffers with the offsets that it was planned with, and the micro-operations after all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.lowering.to_vta.encoder import MicroOpStore, encode_launch
from penstock.lowering.to_vta.isa import DRAM_BYTES, MICRO_OP_BYTES, Instruction, MemoryType
from penstock.lowering.to_vta.transfers import LOADS
from penstock.passes.analysis.commands.program import Kind, Program, View
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.passes.analysis.kernels import machine_of

ALIGNMENT = max(DRAM_BYTES.values())
"""Storages begin at multiples of it, so that addresses that count entries reach them."""


@dataclass(frozen=True, eq=False)
class VtaStep:
    """One call of a kernel; arguments that are no memrefs off chip are None."""

    op: CallOp
    kernel: str
    arguments: tuple[View | None, ...]
    instructions: Sequence[Instruction] | None
    """Of a launch; None for what the host does."""
    reads: tuple[int, ...] = ()
    """Of a launch: the arguments that its transfers read, and those that they write."""
    writes: tuple[int, ...] = ()
    memories: tuple[MemoryType | None, ...] = ()
    """Of a launch: for each argument what it is moved to or from, and so what its entries are."""


@dataclass(frozen=True, eq=False)
class VtaModule:
    """The steps of one run, and where things are off chip, in bytes."""

    target: TargetOp
    steps: tuple[VtaStep, ...]
    bases: tuple[int, ...]
    """The address of each storage."""
    micro_ops: MicroOpStore

    @property
    def dram_bytes(self) -> int:
        """The size of memory off chip."""
        return self.micro_ops.base + len(self.micro_ops.data)

    def address(self, view: View) -> int:
        """Where a view off chip begins."""
        return self.bases[view.storage] + view.start


def encode_module(module: ModuleOp) -> VtaModule:
    """
    Encode every launch of one run of `@main`. Raises UserError, located, where there is no machine, for another
    machine than VTA, and for what is no instruction of it.
    """
    target = machine_of(module)
    if target is None:
        raise UserError("the program is for no machine, and VTA's instructions need one", loc=location_of(module))
    calls = list(trace_calls(module))
    bases, end = _bases([view for call in calls for view in call.arguments if view is not None])
    loads = target.dma_between(DRAM, "uop")
    store = MicroOpStore(end, max(1, loads.alignment // MICRO_OP_BYTES) if loads is not None else 1)
    encoded: dict[int, list[Instruction]] = {}
    steps: list[VtaStep] = []
    for call in calls:
        name = call.function.sym_name.data
        views = tuple(view if view is not None and view.space == DRAM else None for view in call.arguments)
        program = call.program
        if program is None:
            steps.append(VtaStep(call.op, name, views, None))
            continue
        if id(program) not in encoded:
            encoded[id(program)] = encode_launch(program, target, bases, store)
        read, written, memories = _uses(program, views)
        steps.append(VtaStep(call.op, name, views, encoded[id(program)], read, written, memories))
    return VtaModule(target, tuple(steps), bases, store)


def _bases(views: Sequence[View]) -> tuple[tuple[int, ...], int]:
    """The addresses of storages as large as these views are, and the first one after them."""
    sizes: dict[int, int] = {}
    for view in views:
        if view.space == DRAM:
            sizes[view.storage] = max(sizes.get(view.storage, 0), view.end)
    bases: list[int] = []
    address = 0
    for storage in range(max(sizes, default=0) + 1):
        bases.append(address)
        address += -(-sizes.get(storage, 0) // ALIGNMENT) * ALIGNMENT
    return tuple(bases), address


def _uses(
    program: Program, views: Sequence[View | None]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[MemoryType | None, ...]]:
    """The arguments that transfers read and write, and the memory at the other end of each."""
    read: set[int] = set()
    written: set[int] = set()
    memories: list[MemoryType | None] = [None] * len(views)
    seen: set[tuple[int, int, str, bool]] = set()
    for command in program.commands:
        if command.kind is not Kind.TRANSFER or len(command.operands) != 2:
            continue
        source, dest = command.operands
        loads = source.space == DRAM
        off_chip, on_chip = (source, dest) if loads else (dest, source)
        key = off_chip.storage, off_chip.start, on_chip.space, loads
        if key in seen:
            continue
        seen.add(key)
        for number, view in enumerate(views):
            if view is None or view.storage != off_chip.storage or not view.start <= off_chip.start < view.end:
                continue
            (read if loads else written).add(number)
            memories[number] = MemoryType.OUT if not loads else LOADS[on_chip.space, off_chip.element_bytes]
    return tuple(sorted(read)), tuple(sorted(written)), tuple(memories)
