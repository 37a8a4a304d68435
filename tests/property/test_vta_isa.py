# SPDX-License-Identifier: Apache-2.0
"""Any instruction is itself again after encoding, decoding, and the way through text."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.vta import micro_op_bytes

from penstock.lowering.to_vta.disassembler import assemble, disassemble
from penstock.lowering.to_vta.isa import (
    FLAGS,
    MICRO_OP,
    Alu,
    AluOpcode,
    Field,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryType,
    Store,
    decode,
    encode,
    micro_op_indices,
)

MISSING = {"load": ("pop_prev", "push_prev"), "store": ("pop_next", "push_next"), "compute": ()}


def values(field: Field) -> st.SearchStrategy[int]:
    low, high = field.bounds
    return st.one_of(st.sampled_from([low, high]), st.integers(low, high))


@st.composite
def instructions(draw: st.DrawFn) -> Instruction:
    kind: type[Instruction] = draw(st.sampled_from([Load, Store, Gemm, Alu, Finish]))
    fields: dict[str, Any] = {}
    for name, field in kind.fields().items():
        if name == "memory":
            fields[name] = draw(st.sampled_from(MemoryType))
        elif name == "alu_opcode":
            fields[name] = draw(st.sampled_from(AluOpcode))
        else:
            value = draw(values(field))
            fields[name] = bool(value) if name in {*FLAGS, "reset", "use_immediate"} else value
    unit = kind(**fields).unit
    fields |= dict.fromkeys(MISSING[unit], False)
    return kind(**fields)


@given(st.lists(instructions(), max_size=5))
def test_instructions_survive_bits_and_text(stream: list[Instruction]) -> None:
    encoded = encode(stream)
    assert len(encoded) == 16 * len(stream)
    assert decode(encoded) == stream
    assert encode(decode(encoded)) == encoded
    assert assemble(disassemble(stream)) == stream


@given(st.lists(st.tuples(*(values(field) for field in MICRO_OP.values())), max_size=5))
def test_micro_operations_survive_bits(micro_ops: list[tuple[int, ...]]) -> None:
    encoded = micro_op_bytes(*micro_ops)
    assert len(encoded) == 4 * len(micro_ops)
    assert micro_op_indices(encoded).T.tolist() == [list(each) for each in micro_ops]


@given(st.binary(min_size=4, max_size=4))
def test_every_word_is_a_micro_operation(word: bytes) -> None:
    assert micro_op_bytes(*micro_op_indices(word).T.tolist()) == word
