# SPDX-License-Identifier: Apache-2.0
"""
The instructions of VTA in its default configuration, bit for bit: 128 bits each, and micro-operations of 32 bits; as
bytes, there and back.

After `hw_spec.h` of apache/tvm-vta. An instruction is two 64-bit words, little-endian, and no field crosses a word.
Three units execute in order, each what is its own; prev and next are its neighbours in load -> compute -> store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cache
from typing import Annotated, ClassVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError

INSTRUCTION_BYTES = 16
MICRO_OP_BYTES = 4
BLOCK = 16
"""Elements of a vector; a block of weights has 16 such rows."""

LOAD_UNIT, COMPUTE_UNIT, STORE_UNIT = "load", "compute", "store"
UNITS = (LOAD_UNIT, COMPUTE_UNIT, STORE_UNIT)
"""In the order of prev and next."""


class Opcode(IntEnum):
    """What an instruction does."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class MemoryType(IntEnum):
    """What a LOAD fills or a STORE empties."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    """The low 8 bits of the accumulators."""
    ACC_8BIT = 5
    """The accumulators, from 8-bit integers off chip."""


class AluOpcode(IntEnum):
    """What the ALU computes of its two vectors."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


DRAM_BYTES = {
    MemoryType.UOP: MICRO_OP_BYTES,
    MemoryType.WGT: BLOCK * BLOCK,
    MemoryType.INP: BLOCK,
    MemoryType.ACC: 4 * BLOCK,
    MemoryType.OUT: BLOCK,
    MemoryType.ACC_8BIT: BLOCK,
}
"""Bytes of one entry off chip; sizes, strides and addresses of a LOAD or STORE count entries."""

SCOPES = {
    MemoryType.UOP: "uop",
    MemoryType.WGT: "wgt",
    MemoryType.INP: "inp",
    MemoryType.ACC: "acc",
    MemoryType.OUT: "acc",
    MemoryType.ACC_8BIT: "acc",
}
"""Where the entries of a memory are on chip; OUT is a view of the accumulators."""

ENTRY_BYTES = {"uop": MICRO_OP_BYTES, "wgt": BLOCK * BLOCK, "inp": BLOCK, "acc": 4 * BLOCK}
"""Bytes of one entry on chip, by scope."""

DEPTHS = {
    MemoryType.UOP: 8192,
    MemoryType.WGT: 1024,
    MemoryType.INP: 2048,
    MemoryType.ACC: 2048,
    MemoryType.OUT: 2048,
    MemoryType.ACC_8BIT: 2048,
}
"""Entries on chip."""

COUNTER_LIMIT = 255
"""The counter of a token queue has 8 bits and saturates: a push at this count is lost."""


@dataclass(frozen=True)
class Field:
    """Bits `low` up to and without `low + width` of word `word`."""

    word: int
    low: int
    width: int
    type: type[int] = int
    signed: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest value."""
        if self.signed:
            return -(1 << (self.width - 1)), (1 << (self.width - 1)) - 1
        return 0, (1 << self.width) - 1


FLAGS = ("pop_prev", "pop_next", "push_prev", "push_next")
MICRO_OP = {"dst": Field(0, 0, 11), "src": Field(0, 11, 11), "wgt": Field(0, 22, 10)}


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """The part that all instructions have: the tokens that it waits for, and those that it gives when it is done."""

    opcode: ClassVar[Opcode]

    pop_prev: Annotated[bool, Field(0, 3, 1)] = False
    pop_next: Annotated[bool, Field(0, 4, 1)] = False
    push_prev: Annotated[bool, Field(0, 5, 1)] = False
    push_next: Annotated[bool, Field(0, 6, 1)] = False

    @classmethod
    @cache
    def fields(cls) -> dict[str, Field]:
        """The bits of every field but the opcode."""
        hints = get_type_hints(cls, include_extras=True)
        return {
            each.name: replace(*hints[each.name].__metadata__, type=hints[each.name].__origin__) for each in fields(cls)
        }

    @property
    def unit(self) -> str:
        """The unit that executes it."""
        return COMPUTE_UNIT

    @property
    def is_empty(self) -> bool:
        """Whether it moves and computes nothing: it only carries tokens."""
        return False

    def words(self) -> tuple[int, int]:
        """The instruction as two words; raises UserError where a field does not hold its value."""
        words = [int(self.opcode), 0]
        for name, bits in self.fields().items():
            value = int(getattr(self, name))
            low, high = bits.bounds
            if not low <= value <= high:
                raise UserError(f"{self.opcode.name} {name} is {value}, and its {bits.width} bits hold {low} to {high}")
            words[bits.word] |= (value & ((1 << bits.width) - 1)) << bits.low
        if (side := {LOAD_UNIT: "prev", STORE_UNIT: "next"}.get(self.unit)) is not None:
            if getattr(self, f"pop_{side}") or getattr(self, f"push_{side}"):
                raise UserError(f"the {self.unit} unit has no {side} unit to pass a token to or from")
        return words[0], words[1]


@dataclass(frozen=True, kw_only=True)
class MemoryInstruction(Instruction):
    """LOAD or STORE: `y_size` rows of `x_size` entries, `x_stride` apart off chip and adjacent on chip."""

    memory: Annotated[MemoryType, Field(0, 7, 3)]
    sram_base: Annotated[int, Field(0, 10, 16)] = 0
    dram_base: Annotated[int, Field(0, 26, 32)] = 0
    y_size: Annotated[int, Field(1, 0, 16)] = 0
    x_size: Annotated[int, Field(1, 16, 16)] = 0
    x_stride: Annotated[int, Field(1, 32, 16)] = 0

    @property
    def is_empty(self) -> bool:
        return self.x_size == 0


@dataclass(frozen=True, kw_only=True)
class Load(MemoryInstruction):
    """Rows into a memory on chip, with zeros around them: `y_pad_*` whole rows, `x_pad_*` entries in each row."""

    opcode: ClassVar[Opcode] = Opcode.LOAD

    y_pad_0: Annotated[int, Field(1, 48, 4)] = 0
    y_pad_1: Annotated[int, Field(1, 52, 4)] = 0
    x_pad_0: Annotated[int, Field(1, 56, 4)] = 0
    x_pad_1: Annotated[int, Field(1, 60, 4)] = 0

    @property
    def unit(self) -> str:
        return LOAD_UNIT if self.memory in (MemoryType.INP, MemoryType.WGT) else COMPUTE_UNIT

    @property
    def pads(self) -> tuple[int, int, int, int]:
        """Rows before and after, entries before and after."""
        return self.y_pad_0, self.y_pad_1, self.x_pad_0, self.x_pad_1


@dataclass(frozen=True, kw_only=True)
class Store(MemoryInstruction):
    """Rows of a memory on chip to off chip; it cannot pad."""

    opcode: ClassVar[Opcode] = Opcode.STORE

    @property
    def unit(self) -> str:
        return STORE_UNIT


@dataclass(frozen=True, kw_only=True)
class Loops(Instruction):
    """GEMM or ALU: for i < `iter_out`, j < `iter_in`, each micro-operation from `uop_begin` up to `uop_end`."""

    reset: Annotated[bool, Field(0, 7, 1)] = False
    uop_begin: Annotated[int, Field(0, 8, 13)] = 0
    uop_end: Annotated[int, Field(0, 21, 14)] = 0
    iter_out: Annotated[int, Field(0, 35, 14)] = 1
    iter_in: Annotated[int, Field(0, 49, 14)] = 1
    dst_factor_out: Annotated[int, Field(1, 0, 11)] = 0
    dst_factor_in: Annotated[int, Field(1, 11, 11)] = 0
    src_factor_out: Annotated[int, Field(1, 22, 11)] = 0
    src_factor_in: Annotated[int, Field(1, 33, 11)] = 0

    @property
    def iterations(self) -> int:
        """The number of times it applies a micro-operation."""
        return self.iter_out * self.iter_in * max(0, self.uop_end - self.uop_begin)

    @property
    def is_empty(self) -> bool:
        return self.iterations == 0

    def factors(self, index: str) -> tuple[int, int]:
        """How far the outer and the inner loop move an index of `MICRO_OP`; (0, 0) where the instruction has none."""
        return getattr(self, f"{index}_factor_out", 0), getattr(self, f"{index}_factor_in", 0)


@dataclass(frozen=True, kw_only=True)
class Gemm(Loops):
    """
    acc[dst] += inp[src] . wgt[wgt]^T at each point, with `reset` acc[dst] = 0.

    An index is that of the micro-operation + i times the outer factor + j times the inner one.
    """

    opcode: ClassVar[Opcode] = Opcode.GEMM

    wgt_factor_out: Annotated[int, Field(1, 44, 10)] = 0
    wgt_factor_in: Annotated[int, Field(1, 54, 10)] = 0


@dataclass(frozen=True, kw_only=True)
class Alu(Loops):
    """acc[dst] = acc[dst] op acc[src], or op `immediate`, at each point."""

    opcode: ClassVar[Opcode] = Opcode.ALU

    alu_opcode: Annotated[AluOpcode, Field(1, 44, 3)]
    use_immediate: Annotated[bool, Field(1, 47, 1)] = False
    immediate: Annotated[int, Field(1, 48, 16, signed=True)] = 0


@dataclass(frozen=True, kw_only=True)
class Finish(Instruction):
    """The end of a launch."""

    opcode: ClassVar[Opcode] = Opcode.FINISH


INSTRUCTIONS: dict[Opcode, type[Instruction]] = {kind.opcode: kind for kind in (Load, Store, Gemm, Finish, Alu)}


QueueName = tuple[str, str]
"""The unit that pushes and the unit that pops."""


def pops_of(instruction: Instruction) -> list[QueueName]:
    """The queues that it takes a token from."""
    return [(other, instruction.unit) for other in _neighbours(instruction, "pop")]


def pushes_of(instruction: Instruction) -> list[QueueName]:
    """The queues that it puts a token into."""
    return [(instruction.unit, other) for other in _neighbours(instruction, "push")]


def _neighbours(instruction: Instruction, verb: str) -> list[str]:
    """The units that the flags of an instruction name, those before it first."""
    own = UNITS.index(instruction.unit)
    return [UNITS[own + step] for side, step in (("prev", -1), ("next", 1)) if getattr(instruction, f"{verb}_{side}")]


# as bytes

_OPCODE = Field(0, 0, 3, Opcode)


def encode(instructions: Iterable[Instruction]) -> bytes:
    """The stream as bytes; raises UserError, with the instruction's number, where a field does not hold its value."""
    words: list[int] = []
    for number, instruction in enumerate(instructions):
        try:
            words.extend(instruction.words())
        except UserError as error:
            raise UserError(error.message, loc=error.loc, notes=[*error.notes, f"in instruction {number}"]) from None
    return np.array(words, "<u8").tobytes()


def decode(stream: bytes) -> list[Instruction]:
    """
    The instructions of a stream.

    Raises UserError, with the instruction's number, for an unknown opcode, memory or ALU operation, a token to a
    unit that is not there, and bits set that no field of the instruction has: then it is none of this version.
    """
    if len(stream) % INSTRUCTION_BYTES:
        raise UserError(f"a stream of {len(stream)} bytes: an instruction has {INSTRUCTION_BYTES}")
    pairs = np.frombuffer(stream, "<u8").reshape(-1, 2).tolist()
    found: list[Instruction] = []
    for number, words in enumerate(pairs):
        try:
            found.append(_decoded(words))
        except UserError as error:
            raise UserError(error.message, notes=[*error.notes, f"in instruction {number}"]) from None
    return found


def _decoded(words: Sequence[int]) -> Instruction:
    kind = INSTRUCTIONS[Opcode(_value(words, "opcode", _OPCODE))]
    values = {name: _value(words, name, field) for name, field in kind.fields().items()}
    rest = list(words)
    for field in (_OPCODE, *kind.fields().values()):
        rest[field.word] &= ~(((1 << field.width) - 1) << field.low)
    if any(rest):
        raise UserError(f"{kind.__name__.upper()} has bits set that mean nothing: {rest[0]:#018x} {rest[1]:#018x}")
    instruction = kind(**values)  # pyright: ignore[reportArgumentType]
    instruction.words()
    return instruction


def _value(words: Sequence[int], name: str, field: Field) -> int:
    value = (words[field.word] >> field.low) & ((1 << field.width) - 1)
    if field.signed and value >> (field.width - 1):
        value -= 1 << field.width
    if issubclass(field.type, IntEnum) and value not in tuple(field.type):
        raise UserError(f"no {name.replace('_', ' ')} is {value}")
    return field.type(value)


def micro_op_indices(stream: bytes) -> NDArray[np.int64]:
    """Micro-operations as three rows: dst, src and wgt of each."""
    if len(stream) % MICRO_OP_BYTES:
        raise UserError(f"micro-operations of {len(stream)} bytes: one has {MICRO_OP_BYTES}")
    words = np.frombuffer(stream, "<u4").astype(np.int64)
    return np.stack([(words >> field.low) & ((1 << field.width) - 1) for field in MICRO_OP.values()])
