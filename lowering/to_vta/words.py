"""Streams of instructions and micro-operations as bytes, there and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.isa import (
    INSTRUCTION_BYTES,
    INSTRUCTIONS,
    MICRO_OP,
    MICRO_OP_BYTES,
    Field,
    Instruction,
    Opcode,
)

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
