# SPDX-License-Identifier: Apache-2.0
"""
Executes an encoded stream as the three units of VTA do: each in order, waiting for tokens alone.

Nothing but tokens orders instructions of different units here, as on the hardware; a seed draws one of the orders that
they permit. An instruction is done as a whole when it is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.disassembler import text_of
from penstock.lowering.to_vta.isa import (
    COUNTER_LIMIT,
    DRAM_BYTES,
    UNITS,
    Alu,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryInstruction,
    QueueName,
    Store,
    decode,
    pops_of,
    pushes_of,
)
from penstock.runtime.vta.arithmetic import alu, gemm
from penstock.runtime.vta.memories import Memories


@dataclass
class Counts:
    """What launches came to."""

    instructions: dict[str, int] = field(default_factory=dict[str, int])
    """By opcode; the empty ones, which only carry tokens, as "empty"."""
    applications: int = 0
    """Of micro-operations by GEMM without reset."""
    moved: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes off chip, by memory."""
    most_tokens: int = 0
    """The most that were in a queue at a time."""


class Executor:
    """The machine: memory off chip, memories on chip and queues, which a launch leaves to the next one."""

    def __init__(self, dram: NDArray[np.uint8]):
        """`dram` is all of the memory off chip, which STORE writes in place."""
        self.memories = Memories(dram)
        self.counts = Counts()
        self._tokens: dict[QueueName, int] = {}
        self._lost: dict[QueueName, int] = {}

    @property
    def tokens(self) -> Mapping[QueueName, int]:
        """The tokens in every queue."""
        return self._tokens

    def run(self, stream: bytes, *, seed: int | None = None) -> None:
        """
        Run a launch up to its FINISH; without a seed, one instruction of every unit that can go, in turn.

        Raises UserError, with the instruction, for what an instruction cannot do; for a deadlock, with what each unit
        waits for; where FINISH is reached before all else is done; and for tokens that are left in a queue.
        """
        instructions = decode(stream)
        streams: dict[str, deque[int]] = {unit: deque() for unit in UNITS}
        for number, instruction in enumerate(instructions):
            streams[instruction.unit].append(number)
        rng = np.random.default_rng(seed)
        finished = False
        while not finished:
            ready = [unit for unit in UNITS if streams[unit] and self._can_start(instructions[streams[unit][0]])]
            if not ready:
                raise self._stuck(instructions, streams)
            for unit in ready if seed is None else [ready[int(rng.integers(len(ready)))]]:
                if streams[unit] and self._can_start(instructions[streams[unit][0]]):
                    number = streams[unit].popleft()
                    finished |= self._take(instructions[number], number)
        if any(streams.values()):
            raise UserError(
                "FINISH is reached before all instructions are done",
                notes=[f"{unit}: {len(rest)} left" for unit, rest in streams.items() if rest],
            )
        if left := [f"{count} from {a} to {b}" for (a, b), count in self._tokens.items() if count]:
            raise UserError(f"the launch leaves tokens in its queues: {', '.join(left)}")

    def _can_start(self, instruction: Instruction) -> bool:
        return all(self._tokens.get(name, 0) > 0 for name in pops_of(instruction))

    def _take(self, instruction: Instruction, number: int) -> bool:
        """Execute an instruction; whether it is the last one."""
        for name in pops_of(instruction):
            self._tokens[name] -= 1
        try:
            self._execute(instruction)
        except UserError as error:
            notes = [*error.notes, f"instruction {number}: {text_of(instruction)}"]
            raise UserError(error.message, notes=notes) from None
        for name in pushes_of(instruction):
            held = self._tokens.get(name, 0)
            if held >= COUNTER_LIMIT:
                self._lost[name] = self._lost.get(name, 0) + 1
            self._tokens[name] = min(held + 1, COUNTER_LIMIT)
            self.counts.most_tokens = max(self.counts.most_tokens, self._tokens[name])
        return isinstance(instruction, Finish)

    def _execute(self, instruction: Instruction) -> None:
        name = "empty" if instruction.is_empty else instruction.opcode.name
        self.counts.instructions[name] = self.counts.instructions.get(name, 0) + 1
        if instruction.is_empty:
            return
        if isinstance(instruction, MemoryInstruction):
            memory = instruction.memory
            size = instruction.x_size * instruction.y_size * DRAM_BYTES[memory]
            self.counts.moved[memory.name] = self.counts.moved.get(memory.name, 0) + size
        match instruction:
            case Load():
                self.memories.load(instruction)
            case Store():
                self.memories.store(instruction)
            case Gemm():
                gemm(self.memories, instruction)
                self.counts.applications += 0 if instruction.reset else instruction.iterations
            case Alu():
                alu(self.memories, instruction)
            case _:
                pass

    def _stuck(self, instructions: list[Instruction], streams: Mapping[str, deque[int]]) -> UserError:
        if not any(streams.values()):
            return UserError("the stream ends without FINISH")
        notes: list[str] = []
        for unit, rest in streams.items():
            if rest:
                head = instructions[rest[0]]
                waits = [f"{a} to {b}" for a, b in pops_of(head) if not self._tokens.get((a, b), 0)]
                notes.append(f"{unit} waits for {' and '.join(waits)} in instruction {rest[0]}: {text_of(head)}")
        notes += [
            f"{count} tokens from {a} to {b} were lost at {COUNTER_LIMIT}" for (a, b), count in self._lost.items()
        ]
        return UserError("deadlock: every unit waits for a token", notes=notes)
