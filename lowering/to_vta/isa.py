"""
The instructions of VTA in its default configuration, bit for bit: 128 bits each, and micro-operations of 32 bits.

After `hw_spec.h` of apache/tvm-vta. An instruction is two 64-bit words, little-endian, and no field crosses a word.
Three units execute in order, each what is its own; prev and next are its neighbours in load -> compute -> store.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

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


class Memory(IntEnum):
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
    Memory.UOP: MICRO_OP_BYTES,
    Memory.WGT: BLOCK * BLOCK,
    Memory.INP: BLOCK,
    Memory.ACC: 4 * BLOCK,
    Memory.OUT: BLOCK,
    Memory.ACC_8BIT: BLOCK,
}
"""Bytes of one entry off chip; sizes, strides and addresses of a LOAD or STORE count entries."""

DEPTHS = {
    Memory.UOP: 8192,
    Memory.WGT: 1024,
    Memory.INP: 2048,
    Memory.ACC: 2048,
    Memory.OUT: 2048,
    Memory.ACC_8BIT: 2048,
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
    signed: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest value."""
        if self.signed:
            return -(1 << (self.width - 1)), (1 << (self.width - 1)) - 1
        return 0, (1 << self.width) - 1


FLAGS = {
    "pop_prev": Field(0, 3, 1),
    "pop_next": Field(0, 4, 1),
    "push_prev": Field(0, 5, 1),
    "push_next": Field(0, 6, 1),
}
OPCODE = Field(0, 0, 3)
_LOOPS = {
    "reset": Field(0, 7, 1),
    "uop_begin": Field(0, 8, 13),
    "uop_end": Field(0, 21, 14),
    "iter_out": Field(0, 35, 14),
    "iter_in": Field(0, 49, 14),
    "dst_factor_out": Field(1, 0, 11),
    "dst_factor_in": Field(1, 11, 11),
    "src_factor_out": Field(1, 22, 11),
    "src_factor_in": Field(1, 33, 11),
}
MICRO_OP = {"dst": Field(0, 0, 11), "src": Field(0, 11, 11), "wgt": Field(0, 22, 10)}


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """The part that all instructions have: the tokens that it waits for, and those that it gives when it is done."""

    FIELDS: ClassVar[dict[str, Field]] = FLAGS

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False

    @property
    def opcode(self) -> Opcode:
        raise NotImplementedError

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
        for name, field in self.FIELDS.items():
            value = int(getattr(self, name))
            _check(f"{self.opcode.name} {name}", value, field)
            words[field.word] |= (value & ((1 << field.width) - 1)) << field.low
        self._check_flags()
        return words[0], words[1]

    def _check_flags(self) -> None:
        missing = {LOAD_UNIT: ("prev", "load"), STORE_UNIT: ("next", "store")}.get(self.unit)
        if missing is not None:
            side, unit = missing
            if getattr(self, f"pop_{side}") or getattr(self, f"push_{side}"):
                raise UserError(f"the {unit} unit has no {side} unit to pass a token to or from")


@dataclass(frozen=True, kw_only=True)
class Transfer(Instruction):
    """LOAD or STORE: `y_size` rows of `x_size` entries, `x_stride` apart off chip and adjacent on chip."""

    FIELDS: ClassVar[dict[str, Field]] = {
        **FLAGS,
        "memory": Field(0, 7, 3),
        "sram_base": Field(0, 10, 16),
        "dram_base": Field(0, 26, 32),
        "y_size": Field(1, 0, 16),
        "x_size": Field(1, 16, 16),
        "x_stride": Field(1, 32, 16),
        "y_pad_0": Field(1, 48, 4),
        "y_pad_1": Field(1, 52, 4),
        "x_pad_0": Field(1, 56, 4),
        "x_pad_1": Field(1, 60, 4),
    }

    memory: Memory
    sram_base: int = 0
    dram_base: int = 0
    y_size: int = 0
    x_size: int = 0
    x_stride: int = 0

    @property
    def is_empty(self) -> bool:
        return self.x_size == 0


@dataclass(frozen=True, kw_only=True)
class Load(Transfer):
    """Rows into a memory on chip, with zeros around them: `y_pad_*` whole rows, `x_pad_*` entries in each row."""

    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0

    @property
    def opcode(self) -> Opcode:
        return Opcode.LOAD

    @property
    def unit(self) -> str:
        return LOAD_UNIT if self.memory in (Memory.INP, Memory.WGT) else COMPUTE_UNIT


@dataclass(frozen=True, kw_only=True)
class Store(Transfer):
    """Rows of a memory on chip to off chip; it cannot pad."""

    FIELDS: ClassVar[dict[str, Field]] = {name: field for name, field in Transfer.FIELDS.items() if "_pad_" not in name}

    @property
    def opcode(self) -> Opcode:
        return Opcode.STORE

    @property
    def unit(self) -> str:
        return STORE_UNIT


@dataclass(frozen=True, kw_only=True)
class Loops(Instruction):
    """GEMM or ALU: for i < `iter_out`, j < `iter_in`, each micro-operation from `uop_begin` up to `uop_end`."""

    reset: bool = False
    uop_begin: int = 0
    uop_end: int = 0
    iter_out: int = 1
    iter_in: int = 1
    dst_factor_out: int = 0
    dst_factor_in: int = 0
    src_factor_out: int = 0
    src_factor_in: int = 0

    @property
    def iterations(self) -> int:
        """How often it applies a micro-operation."""
        return self.iter_out * self.iter_in * max(0, self.uop_end - self.uop_begin)

    @property
    def is_empty(self) -> bool:
        return self.iterations == 0


@dataclass(frozen=True, kw_only=True)
class Gemm(Loops):
    """
    acc[dst] += inp[src] . wgt[wgt]^T at each point, with `reset` acc[dst] = 0.

    An index is that of the micro-operation + i times the outer factor + j times the inner one.
    """

    FIELDS: ClassVar[dict[str, Field]] = {
        **FLAGS,
        **_LOOPS,
        "wgt_factor_out": Field(1, 44, 10),
        "wgt_factor_in": Field(1, 54, 10),
    }

    wgt_factor_out: int = 0
    wgt_factor_in: int = 0

    @property
    def opcode(self) -> Opcode:
        return Opcode.GEMM


@dataclass(frozen=True, kw_only=True)
class Alu(Loops):
    """acc[dst] = acc[dst] op acc[src], or op `immediate`, at each point."""

    FIELDS: ClassVar[dict[str, Field]] = {
        **FLAGS,
        **_LOOPS,
        "alu_opcode": Field(1, 44, 3),
        "use_immediate": Field(1, 47, 1),
        "immediate": Field(1, 48, 16, signed=True),
    }

    alu_opcode: AluOpcode
    use_immediate: bool = False
    immediate: int = 0

    @property
    def opcode(self) -> Opcode:
        return Opcode.ALU


@dataclass(frozen=True, kw_only=True)
class Finish(Instruction):
    """The end of a launch."""

    @property
    def opcode(self) -> Opcode:
        return Opcode.FINISH


@dataclass(frozen=True)
class MicroOp:
    """Three indices that the loops around it move."""

    dst: int
    src: int = 0
    wgt: int = 0

    def word(self) -> int:
        """The micro-operation as a word; raises UserError where a field does not hold its value."""
        word = 0
        for name, field in MICRO_OP.items():
            value = int(getattr(self, name))
            _check(f"micro-operation {name}", value, field)
            word |= value << field.low
        return word


def _check(what: str, value: int, field: Field) -> None:
    low, high = field.bounds
    if not low <= value <= high:
        raise UserError(f"{what} is {value}, and its {field.width} bits hold {low} to {high}")


QueueName = tuple[str, str]
"""The unit that pushes and the unit that pops."""


def pops_of(instruction: Instruction) -> list[QueueName]:
    """The queues that it takes a token from."""
    place = UNITS.index(instruction.unit)
    before = [(UNITS[place - 1], instruction.unit)] if instruction.pop_prev else []
    return before + ([(UNITS[place + 1], instruction.unit)] if instruction.pop_next else [])


def pushes_of(instruction: Instruction) -> list[QueueName]:
    """The queues that it puts a token into."""
    place = UNITS.index(instruction.unit)
    before = [(instruction.unit, UNITS[place - 1])] if instruction.push_prev else []
    return before + ([(instruction.unit, UNITS[place + 1])] if instruction.push_next else [])
