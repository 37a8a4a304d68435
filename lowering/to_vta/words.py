"""Streams of instructions and micro-operations as bytes, there and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.isa import (
    FLAGS,
    INSTRUCTION_BYTES,
    MICRO_OP,
    MICRO_OP_BYTES,
    OPCODE,
    Alu,
    AluOpcode,
    Field,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    MicroOp,
    Opcode,
    Store,
)

_KINDS: dict[Opcode, type[Instruction]] = {
    Opcode.LOAD: Load,
    Opcode.STORE: Store,
    Opcode.GEMM: Gemm,
    Opcode.FINISH: Finish,
    Opcode.ALU: Alu,
}
_ENUMS: dict[str, type[IntEnum]] = {"memory": Memory, "alu_opcode": AluOpcode}
_BOOLS = frozenset({*FLAGS, "reset", "use_immediate"})


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
    kind = _KINDS[_enumerated("opcode", Opcode, _bits(words, OPCODE))]
    values: dict[str, int | bool] = {}
    rest = list(words)
    for name, field in {"opcode": OPCODE, **kind.FIELDS}.items():
        value = _bits(words, field)
        rest[field.word] &= ~(((1 << field.width) - 1) << field.low)
        if name in _ENUMS:
            values[name] = _enumerated(name, _ENUMS[name], value)
        elif name != "opcode":
            values[name] = bool(value) if name in _BOOLS else value
    if any(rest):
        raise UserError(f"{kind.__name__.upper()} has bits set that mean nothing: {rest[0]:#018x} {rest[1]:#018x}")
    instruction = kind(**values)  # pyright: ignore[reportArgumentType]
    instruction.words()
    return instruction


_EnumT = TypeVar("_EnumT", bound=IntEnum)


def _enumerated(name: str, kind: type[_EnumT], value: int) -> _EnumT:
    if value not in tuple(kind):
        raise UserError(f"no {name.replace('_', ' ')} is {value}")
    return kind(value)


def _bits(words: Sequence[int], field: Field) -> int:
    value = (words[field.word] >> field.low) & ((1 << field.width) - 1)
    return value - (1 << field.width) if field.signed and value >> (field.width - 1) else value


def encode_micro_ops(micro_ops: Iterable[MicroOp]) -> bytes:
    """Micro-operations as bytes; raises UserError where a field does not hold its value."""
    return np.array([each.word() for each in micro_ops], "<u4").tobytes()


def decode_micro_ops(stream: bytes) -> list[MicroOp]:
    """The micro-operations of bytes; every 32 bits are one."""
    columns = micro_op_indices(stream)
    return [MicroOp(*row) for row in columns.T.tolist()]


def micro_op_indices(stream: bytes) -> NDArray[np.int64]:
    """Micro-operations as three rows: dst, src and wgt of each."""
    if len(stream) % MICRO_OP_BYTES:
        raise UserError(f"micro-operations of {len(stream)} bytes: one has {MICRO_OP_BYTES}")
    words = np.frombuffer(stream, "<u4").astype(np.int64)
    return np.stack([(words >> field.low) & ((1 << field.width) - 1) for field in MICRO_OP.values()])
