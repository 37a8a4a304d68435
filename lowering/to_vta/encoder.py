# SPDX-License-Identifier: Apache-2.0
"""
The commands of a kernel as a launch: a stream of instructions that ends in FINISH, and lists of micro-operations.

A command becomes the instructions that do it, with its pops on the first and its pushes on the last. An instruction
can take one token and give one on each side; further ones are carried by empty instructions, transfers of no entries,
as they are by the runtime of tvm-vta. Micro-operations are loaded at the beginning, and all other loads wait for that:
they are few, and would wait long for their turn on the bus. Where they do not fit together, they are loaded before
their use, ahead of what the command that uses them waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.lowering.to_vta.applications import Application, encode_exec
from penstock.lowering.to_vta.isa import (
    COMPUTE_UNIT,
    LOAD_UNIT,
    MICRO_OP_BYTES,
    STORE_UNIT,
    UNITS,
    Finish,
    Instruction,
    Load,
    MemoryType,
    Store,
)
from penstock.lowering.to_vta.transfers import encode_transfer
from penstock.passes.accel.queues import assign_queues
from penstock.passes.analysis.commands.program import Command, Kind, Program, QueueName


class MicroOpStore:
    """
    All lists of a program off chip, one after the other from `base` on, an address in bytes; equal ones once.

    Each begins at a multiple of `together` micro-operations, and so does what follows it.
    """

    def __init__(self, base: int, together: int = 1):
        self.base = base
        self.together = together
        self._offsets: dict[bytes, int] = {}
        self._data = bytearray()

    def padded_size(self, words: NDArray[np.uint32]) -> int:
        """The micro-operations from the beginning of a list to that of the next one."""
        return -(-words.size // self.together) * self.together

    @property
    def data(self) -> bytes:
        """All of them, little-endian."""
        return bytes(self._data)

    def address(self, words: NDArray[np.uint32]) -> int:
        """Where a list begins, counted in micro-operations."""
        key = words.astype("<u4").tobytes()
        if key not in self._offsets:
            self._offsets[key] = len(self._data)
            self._data += key
            self._data += bytes(-len(key) % (self.together * MICRO_OP_BYTES))
        return (self.base + self._offsets[key]) // MICRO_OP_BYTES


class MicroOpCache:
    """
    What one launch has on chip; a launch begins with nothing.

    Where all its lists fit, they are loaded at its beginning: compute waits for its first operands then, and
    later a load would wait for its turn on the bus, and compute for it. Otherwise each is loaded before it is used,
    and the list that was not used for longest gives way.
    """

    def __init__(self, store: MicroOpStore, depth: int):
        """`depth` micro-operations fit on chip; lists begin there where they may begin off chip."""
        self._store = store
        self.depth = depth
        self._resident: dict[int, tuple[int, int]] = {}
        """By address off chip, the least recently used first: where it begins on chip, and how long it is."""

    def load_all(self, lists: Iterable[NDArray[np.uint32]]) -> list[Load]:
        """The loads of all lists, one for those that adjoin off chip; none where they do not fit together."""
        sizes = {self._store.address(words): self._store.padded_size(words) for words in lists}
        if sum(sizes.values()) > self.depth:
            return []
        loads: list[Load] = []
        begin = 0
        for address, size in sorted(sizes.items()):
            self._resident[address] = begin, size
            if loads and loads[-1].dram_base + loads[-1].x_size == address:
                total = loads[-1].x_size + size
                loads[-1] = replace(loads[-1], x_size=total, x_stride=total)
            else:
                loads.append(_load(begin, address, size))
            begin += size
        return loads

    def place(self, words: NDArray[np.uint32]) -> tuple[int, Load | None]:
        """Where a list begins on chip, and the load that brings it there, if it is not there yet."""
        address = self._store.address(words)
        if address in self._resident:
            found = self._resident[address] = self._resident.pop(address)
            return found[0], None
        begin = self._free_entry(self._store.padded_size(words))
        self._resident[address] = begin, self._store.padded_size(words)
        return begin, _load(begin, address, words.size)

    def _free_entry(self, size: int) -> int:
        while True:
            begin = 0
            for start, length in sorted(self._resident.values()):
                if start - begin >= size:
                    return begin
                begin = start + length
            if self.depth - begin >= size:
                return begin
            del self._resident[next(iter(self._resident))]


def _load(begin: int, address: int, size: int) -> Load:
    return Load(memory=MemoryType.UOP, sram_base=begin, dram_base=address, y_size=1, x_size=size, x_stride=size)


def empty_instruction(unit: str) -> Instruction:
    """An instruction of `unit` that does nothing."""
    if unit == STORE_UNIT:
        return Store(memory=MemoryType.OUT)
    return Load(memory=MemoryType.INP if unit == LOAD_UNIT else MemoryType.UOP)


def encode_launch(
    program: Program, target: TargetOp, bases: Sequence[int], micro_ops: MicroOpStore
) -> list[Instruction]:
    """
    The instructions of one run of a kernel.

    `bases` are the addresses of the program's storages off chip, in bytes; lists of micro-operations are added to
    `micro_ops`. Commands ordered by what they come after get queues first (`assign_queues`).

    Raises UserError, located, for another machine, for what is no instruction of VTA, and for tokens that are popped
    before they are pushed or left over.
    """
    if tuple(target.units()) != UNITS:
        raise UserError(
            f"{target.machine_name} has no instructions of VTA: its units are {', '.join(target.units())},"
            f" not {', '.join(UNITS)}"
        )
    if any(command.after for command in program.commands):
        program = assign_queues(program)
    launch = _Launch(target, bases, MicroOpCache(micro_ops, target.scope("uop").size_bytes // MICRO_OP_BYTES))
    launch.load_micro_ops(program.commands)
    barriers = set(program.barriers)
    for number, command in enumerate(program.commands):
        if number in barriers:
            launch.synchronize(command)
        launch.add(command)
    launch.finish()
    return launch.instructions


class _Launch:
    """The instructions of a launch so far, and the tokens that are in its queues if they are done in this order."""

    def __init__(self, target: TargetOp, bases: Sequence[int], cache: MicroOpCache):
        self.instructions: list[Instruction] = []
        self._target = target
        self._bases = bases
        self._cache = cache
        self._tokens: Counter[QueueName] = Counter()
        self._last: dict[str, int] = {}
        """The last instruction of each unit."""
        self._applications: dict[tuple[Operation | None, tuple[int, ...]], Application] = {}
        """By the op of an exec, and where its operands begin."""

    def load_micro_ops(self, commands: Sequence[Command]) -> None:
        """Load what the commands will use, if all of it fits, before anything else takes the bus."""
        lists = [self._application(command).micro_ops for command in commands if command.kind is Kind.EXEC]
        loads: list[Instruction] = list(self._cache.load_all(lists))
        if loads and any(command.unit == LOAD_UNIT for command in commands):
            loads[-1] = replace(loads[-1], push_prev=True)
            loads.append(replace(empty_instruction(LOAD_UNIT), pop_next=True))
        for load in loads:
            self._append(load)

    def _application(self, command: Command) -> Application:
        key = command.op, tuple(view.start for view in command.operands)
        found = self._applications.get(key)
        if found is None:
            found = self._applications[key] = encode_exec(command, self._cache.depth)
        return found

    def add(self, command: Command) -> None:
        """Encode a command."""
        body: list[Instruction]
        match command.kind:
            case Kind.CARRIER:
                body = [empty_instruction(command.unit)]
            case Kind.TRANSFER:
                body = list(encode_transfer(command, self._target, self._bases))
            case Kind.EXEC:
                application = self._application(command)
                begin, load = self._cache.place(application.micro_ops)
                if load is not None:
                    self._append(load)
                body = [application.at(begin)]
        if any(instruction.unit != command.unit for instruction in body):
            raise UserError(f"{command.name} is no instruction of the {command.unit} unit", loc=command.location)
        self._take_and_give(command, body)
        for instruction in body:
            self._append(instruction)

    def _take_and_give(self, command: Command, body: list[Instruction]) -> None:
        """Put the tokens of a command on its instructions, with empty ones around them where they need more."""
        for name in command.pops:
            if self._tokens[name] == 0:
                raise UserError(f"pops a token from {name[0]} before there is one", loc=command.location)
            self._tokens[name] -= 1
        taken = [_sides("pop", command.unit, name[0]) for name in command.pops]
        given = [_sides("push", command.unit, name[1]) for name in command.pushes]
        self._tokens.update(command.pushes)
        empty = empty_instruction(command.unit)
        first, *rest = _shared(taken) or [()]
        for flags in rest:
            self._append(replace(empty, **dict.fromkeys(flags, True)))
        body[0] = replace(body[0], **dict.fromkeys(first, True))
        first, *rest = _shared(given) or [()]
        body[-1] = replace(body[-1], **dict.fromkeys(first, True))
        body.extend(replace(empty, **dict.fromkeys(flags, True)) for flags in rest)

    def _append(self, instruction: Instruction) -> None:
        self._last[instruction.unit] = len(self.instructions)
        self.instructions.append(instruction)

    def synchronize(self, command: Command | None = None) -> None:
        """Let compute wait until the units before and after it are done, and, before a command, these for compute."""
        if left := [f"{count} from {a} to {b}" for (a, b), count in self._tokens.items() if count]:
            what = "a barrier" if command is not None else "the end"
            raise UserError(
                f"tokens are left in queues at {what}: {', '.join(left)}",
                loc=command.location if command is not None else None,
            )
        others = [unit for unit in (LOAD_UNIT, STORE_UNIT) if command is not None or unit in self._last]
        for unit in others:
            flag = "push_next" if unit == LOAD_UNIT else "push_prev"
            if unit not in self._last or getattr(self.instructions[self._last[unit]], flag):
                self._append(empty_instruction(unit))
            last = self._last[unit]
            self.instructions[last] = replace(self.instructions[last], **{flag: True})
        sides = ["prev" if unit == LOAD_UNIT else "next" for unit in others]
        if not sides:
            return
        flags = [f"pop_{side}" for side in sides]
        if command is not None:
            flags += [f"push_{side}" for side in sides]
        self._append(replace(empty_instruction(COMPUTE_UNIT), **dict.fromkeys(flags, True)))
        if command is not None:
            for unit in others:
                flag = "pop_next" if unit == LOAD_UNIT else "pop_prev"
                self._append(replace(empty_instruction(unit), **{flag: True}))

    def finish(self) -> None:
        """FINISH, which cannot take a token itself, after all else."""
        self.synchronize()
        self._append(Finish())


def _sides(verb: str, unit: str, other: str) -> str:
    """The flag for a token between `unit` and its neighbour `other`."""
    return f"{verb}_{'next' if UNITS.index(other) > UNITS.index(unit) else 'prev'}"


def _shared(flags: Sequence[str]) -> list[tuple[str, ...]]:
    """Flags in as few sets as hold each only once, in order; the first set is the fullest."""
    sets: list[list[str]] = []
    for flag in flags:
        free = next((each for each in sets if flag not in each), None)
        if free is None:
            sets.append([flag])
        else:
            free.append(flag)
    return [tuple(each) for each in sets]
