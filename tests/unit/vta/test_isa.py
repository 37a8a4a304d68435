# SPDX-License-Identifier: Apache-2.0
"""Instructions and micro-operations against words that were worked out by hand from the tables of `hw_spec.h`."""

from __future__ import annotations

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.disassembler import assemble, disassemble
from penstock.lowering.to_vta.isa import (
    Alu,
    AluOpcode,
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

GOLDEN: list[tuple[Instruction, int, int]] = [
    (
        Load(
            memory=MemoryType.INP, sram_base=5, dram_base=0x12345, y_size=14, x_size=29, x_stride=56,
            y_pad_0=1, y_pad_1=2, x_pad_0=3, x_pad_1=4, push_next=True,
        ),
        0x0000_048D_1400_1540,
        0x4321_0038_001D_000E,
    ),
    (
        Store(
            memory=MemoryType.OUT, sram_base=2047, dram_base=0xFFFF_FFFF, y_size=1, x_size=16, x_stride=16,
            pop_prev=True, push_prev=True,
        ),
        0x03FF_FFFF_FC1F_FE29,
        0x0000_0010_0010_0001,
    ),
    (
        Gemm(
            reset=True, uop_begin=3, uop_end=11, iter_out=14, iter_in=7, dst_factor_out=14, dst_factor_in=1,
            src_factor_out=58, src_factor_in=2, wgt_factor_out=1023, wgt_factor_in=1,
            pop_prev=True, pop_next=True, push_prev=True, push_next=True,
        ),
        0x000E_0070_0160_03FA,
        0x007F_F004_0E80_080E,
    ),
    (
        Alu(
            alu_opcode=AluOpcode.SHR, use_immediate=True, immediate=-2, uop_end=1, iter_in=98,
            dst_factor_in=1, src_factor_in=1, push_next=True,
        ),
        0x00C4_0008_0020_0044,
        0xFFFE_B002_0000_0800,
    ),
    (Finish(), 3, 0),
]  # fmt: skip


@pytest.mark.parametrize(("instruction", "low", "high"), GOLDEN, ids=[each.opcode.name for each, *_ in GOLDEN])
def test_an_instruction_has_the_bits_of_the_tables(instruction: Instruction, low: int, high: int) -> None:
    assert instruction.words() == (low, high)
    stream = low.to_bytes(8, "little") + high.to_bytes(8, "little")
    assert encode([instruction]) == stream
    assert decode(stream) == [instruction]


def test_a_micro_operation_has_the_bits_of_the_tables() -> None:
    assert micro_op_indices(bytes.fromhex("ff0fc0ff")).T.tolist() == [[2047, 1, 1023]]


def test_units_are_told_by_opcode_and_memory() -> None:
    loads = {memory: Load(memory=memory).unit for memory in MemoryType if memory is not MemoryType.OUT}
    assert loads == {
        MemoryType.INP: "load",
        MemoryType.WGT: "load",
        MemoryType.UOP: "compute",
        MemoryType.ACC: "compute",
        MemoryType.ACC_8BIT: "compute",
    }
    assert [each.unit for each, *_ in GOLDEN] == ["load", "store", "compute", "compute", "compute"]


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (Load(memory=MemoryType.INP, y_pad_0=16), "LOAD y_pad_0 is 16, and its 4 bits hold 0 to 15"),
        (Load(memory=MemoryType.INP, x_size=-1), "LOAD x_size is -1, and its 16 bits hold 0 to 65535"),
        (Gemm(wgt_factor_in=1024), "GEMM wgt_factor_in is 1024, and its 10 bits hold 0 to 1023"),
        (Gemm(iter_out=16384), "GEMM iter_out is 16384, and its 14 bits hold 0 to 16383"),
        (
            Alu(alu_opcode=AluOpcode.ADD, immediate=32768),
            "ALU immediate is 32768, and its 16 bits hold -32768 to 32767",
        ),
        (Load(memory=MemoryType.INP, pop_prev=True), "the load unit has no prev unit to pass a token to or from"),
        (Store(memory=MemoryType.OUT, push_next=True), "the store unit has no next unit to pass a token to or from"),
    ],
)  # fmt: skip
def test_what_a_field_cannot_hold_is_refused(instruction: Instruction, message: str) -> None:
    with pytest.raises(UserError) as error:
        encode([Finish(), instruction])
    assert error.value.message == message
    assert error.value.notes == ("in instruction 1",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((5, 0), "no opcode is 5"),
        ((0 | 6 << 7, 0), "no memory is 6"),
        ((4, 5 << 44), "no alu opcode is 5"),
        ((3 | 1 << 20, 0), "FINISH has bits set that mean nothing"),
        ((1 | 4 << 7, 1 << 60), "STORE has bits set that mean nothing"),
        ((0 | 2 << 7 | 1 << 3, 0), "the load unit has no prev unit"),
    ],
)
def test_bits_that_are_no_instruction_are_refused(words: tuple[int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        decode(b"".join(word.to_bytes(8, "little") for word in words))


def test_a_stream_that_ends_in_the_middle_is_refused() -> None:
    with pytest.raises(UserError, match="a stream of 17 bytes"):
        decode(bytes(17))


def test_the_text_names_every_field_and_reads_back() -> None:
    instructions = [instruction for instruction, *_ in GOLDEN]
    text = disassemble(instructions)
    assert text.splitlines() == [
        "0000 load inp sram 5 dram 74565 rows 14 of 29 stride 56 pad 1,2,3,4 push_next",
        "0001 store out sram 2047 dram 4294967295 rows 1 of 16 stride 16 pop_prev push_prev",
        "0002 gemm reset uops 3..11 loops 14x7 dst 14,1 src 58,2 wgt 1023,1 pop_prev pop_next push_prev push_next",
        "0003 alu shr imm -2 uops 0..1 loops 1x98 dst 0,1 src 0,1 push_next",
        "0004 finish",
    ]
    assert assemble(text) == instructions


@pytest.mark.parametrize(
    "line",
    [
        "load",
        "0000 store out sram 0 dram 0 rows 1 of 1 stride 1 pad 1,0,0,0",
        "finish now",
        "load nil sram 0 dram 0 rows 1 of 1 stride 1",
        "gemm add uops 0..1 loops 1x1 dst 0,0 src 0,0 wgt 0,0",
    ],
)
def test_text_that_is_no_instruction_is_refused(line: str) -> None:
    with pytest.raises(UserError, match="no instruction") as error:
        assemble(f"finish\n{line}\n")
    assert error.value.notes == ("in line 2",)
