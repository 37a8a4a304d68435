# SPDX-License-Identifier: Apache-2.0
"""Decodes and executes a log of Gemmini's model again, and compares what it leaves off chip."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.runtime.gemmini.executor import Counts, Executor, Memory
from penstock.runtime.gemmini.isa import Command, Compute, ConfigEx, ConfigLd, ConfigSt, Preload, decode
from penstock.runtime.gemmini.log import DeviceWrite, Fence, HostWrite, Instruction, Log, Record, Region
from penstock.runtime.gemmini.order import draw_order

T = TypeVar("T")
R = TypeVar("R")


def replay(log: Log, *, seed: int | None = None) -> Counts:
    """
    Run the log; `seed` draws an order that the hardware permits between fences.

    At each fence, memory off chip must be, byte for byte, what the model says. Raises UserError where it is not, for
    what is no instruction and for what an instruction cannot do, with its number.
    """
    executor = Executor(log.dim, log.floating, log.spad_rows, log.acc_rows)
    random = None if seed is None else Random(seed)
    before = _Configured()
    begin = 0
    for number, record in enumerate(log.records):
        match record:
            case Region():
                executor.memories.append(Memory(*record))
            case Fence():
                _run(executor, log.records[begin:number], random, before)
                begin = number + 1
            case _:
                pass
    if any(isinstance(record, Instruction) for record in log.records[begin:]):
        raise UserError("the log ends without a fence")
    return executor.counts


class _Configured:
    """The configuration that a fence leaves, as the commands that set it, and how many instructions there were."""

    def __init__(self) -> None:
        self.latest: dict[tuple[type[Command], int], Command] = {}
        self.instructions = 0


def _run(executor: Executor, records: tuple[Record, ...], random: Random | None, before: _Configured) -> None:
    """One epoch: what the host has written, the instructions, and what they must have written."""
    commands: list[Command] = []
    for record in records:
        if isinstance(record, HostWrite):
            memory = executor.memory(record.address, len(record.data))
            start = record.address - memory.base
            memory.data[start : start + len(record.data)] = np.frombuffer(record.data, np.uint8)
        elif isinstance(record, Instruction):
            commands.append(_at(before.instructions + len(commands), decode, record))
    expected = {id(memory): memory.data.copy() for memory in executor.memories if memory.writable}
    order = list(range(len(commands)))
    if random is not None:
        order = draw_order(commands, executor.dim, random, list(before.latest.values()))
    for number in order:
        _at(before.instructions + number, executor.execute, commands[number])
    executor.fence()
    for record in records:
        if isinstance(record, DeviceWrite):
            memory = executor.memory(record.address, len(record.data))
            if not memory.writable:
                raise UserError("the model has written to a region that is only read")
            start = record.address - memory.base
            expected[id(memory)][start : start + len(record.data)] = np.frombuffer(record.data, np.uint8)
    before.instructions += len(commands)
    _compare(executor, expected, before.instructions)
    for command in commands:
        if isinstance(command, ConfigLd | ConfigEx | ConfigSt | Preload | Compute):
            before.latest[type(command), getattr(command, "channel", 0)] = command


def _at(number: int, action: Callable[[T], R], argument: T) -> R:
    try:
        return action(argument)
    except UserError as error:
        raise UserError(f"instruction {number}: {error.message}", notes=error.notes) from None


def _compare(executor: Executor, expected: dict[int, NDArray[Any]], instructions: int) -> None:
    for number, memory in enumerate(executor.memories):
        wanted = expected.get(id(memory))
        if wanted is None or np.array_equal(wanted, memory.data):
            continue
        different = np.flatnonzero(wanted != memory.data)
        first = int(different[0])
        raise UserError(
            f"after {instructions} instructions, byte {first} of region {number} is {memory.data[first]}, and the model"
            f" has left {wanted[first]}",
            notes=[f"{different.size} of its {memory.size} bytes differ"],
        )
