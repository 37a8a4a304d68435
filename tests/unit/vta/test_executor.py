# SPDX-License-Identifier: Apache-2.0
"""Streams that were written by hand, executed, against sums that NumPy takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.vta import micro_op_bytes

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.disassembler import assemble
from penstock.lowering.to_vta.isa import encode
from penstock.runtime.vta import Executor

INP, WGT, ACC, OUT, UOP, END = 0, 1024, 2048, 4096, 6144, 6400
"""Where things are off chip, in bytes."""

MicroOp = tuple[int, int, int]
"""dst, src, wgt."""

RNG = np.random.default_rng(0)
VECTORS = RNG.integers(-128, 128, (4, 16)).astype(np.int8)
BLOCKS = RNG.integers(-128, 128, (2, 16, 16)).astype(np.int8)
SUMS = RNG.integers(-(2**31), 2**31, (8, 16)).astype(np.int32)


def memory(micro_ops: list[MicroOp]) -> NDArray[np.uint8]:
    dram = np.zeros(END, np.uint8)
    contents: list[tuple[int, NDArray[Any]]] = [
        (INP, VECTORS),
        (WGT, BLOCKS),
        (ACC, SUMS),
        (UOP, np.frombuffer(micro_op_bytes(*micro_ops), np.uint8)),
    ]
    for start, array in contents:
        dram[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    return dram


def executed(text: str, micro_ops: list[MicroOp], *, seed: int | None = None) -> Executor:
    executor = Executor(memory(micro_ops))
    executor.run(encode(assemble(text)), seed=seed)
    return executor


def fault(text: str, micro_ops: list[MicroOp] | None = None) -> UserError:
    with pytest.raises(UserError) as error:
        executed(text, micro_ops or [(0, 0, 0)])
    return error.value


LOAD_ALL = f"""
load inp sram 0 dram {INP // 16} rows 1 of 4 stride 4
load wgt sram 0 dram {WGT // 256} rows 1 of 2 stride 2 push_next
load acc sram 0 dram {ACC // 64} rows 1 of 8 stride 8
load uop sram 0 dram {UOP // 4} rows 1 of 8 stride 8
"""


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_matrix_product_with_two_loops_and_two_micro_operations(seed: int | None) -> None:
    # acc[2 i + u] += inp[i] . wgt[u]^T, for 4 vectors and 2 blocks; then the low bytes go out.
    text = f"""{LOAD_ALL}
gemm uops 0..2 loops 2x2 dst 4,2 src 2,1 wgt 0,0 pop_prev
alu add imm 0 uops 0..1 loops 1x8 dst 0,1 src 0,0 push_next
store out sram 0 dram {OUT // 16} rows 4 of 2 stride 4 pop_prev push_prev
load uop sram 0 dram 0 rows 0 of 0 stride 0 pop_next
finish
"""
    executor = executed(text, [(0, 0, 0), (1, 0, 1)], seed=seed)
    expected = SUMS.astype(np.int64)
    for vector in range(4):
        for block in range(2):
            product = VECTORS[vector].astype(np.int64) @ BLOCKS[block].astype(np.int64).T
            expected[2 * vector + block] += product
    low = expected.astype(np.int32).astype(np.int8)
    stored = executor.memories.dram[OUT : OUT + 4 * 64].view(np.int8).reshape(4, 4, 16)
    np.testing.assert_array_equal(stored[:, :2], low.reshape(4, 2, 16))
    assert not stored[:, 2:].any()
    assert executor.counts.applications == 8
    assert executor.counts.moved == {"INP": 64, "WGT": 512, "ACC": 512, "UOP": 32, "OUT": 128}


def test_padding_is_zeros_around_the_rows() -> None:
    text = f"load inp sram 3 dram {INP // 16} rows 2 of 1 stride 2 pad 1,2,3,1\nfinish"
    executor = Executor(memory([]))
    executor.memories.inp.write(slice(0, 2048), np.full((2048, 16), 99))
    with pytest.raises(UserError, match="FINISH is reached before all instructions are done"):
        executor.run(encode(assemble("finish\n" + text)))
    executor.run(
        encode(
            assemble(f"{text.splitlines()[0]} push_next\nload uop sram 0 dram 0 rows 0 of 0 stride 0 pop_prev\nfinish")
        )
    )
    box = np.zeros((5, 5, 16), np.int8)
    box[1:3, 3] = VECTORS[[0, 2]]
    np.testing.assert_array_equal(executor.memories.inp.data[3:28], box.reshape(25, 16))
    assert (executor.memories.inp.data[[2, 28]] == 99).all()


def test_narrow_loads_of_accumulators_keep_the_sign() -> None:
    text = f"load acc_8bit sram 1 dram {INP // 16} rows 2 of 2 stride 2\nfinish"
    executor = executed(text, [])
    np.testing.assert_array_equal(executor.memories.acc.data[1:5], VECTORS.astype(np.int32))


@pytest.mark.parametrize(
    ("operation", "compute"),
    [
        ("min", np.minimum),
        ("max", np.maximum),
        ("add", np.add),
        ("mul", np.multiply),
    ],
)
def test_the_alu_on_two_vectors_and_on_an_immediate(operation: str, compute: Any) -> None:
    text = f"""{LOAD_ALL.replace(" push_next", "")}
alu {operation} uops 0..1 loops 1x4 dst 0,1 src 0,1
alu {operation} imm -300 uops 1..2 loops 2x1 dst 1,0 src 0,0
load inp sram 0 dram 0 rows 0 of 0 stride 0 push_next
load uop sram 0 dram 0 rows 0 of 0 stride 0 pop_prev
finish
"""
    executor = executed(text, [(0, 4, 0), (5, 0, 0)])
    acc = executor.memories.acc.data
    np.testing.assert_array_equal(acc[:4], compute(SUMS[:4], SUMS[4:]))
    np.testing.assert_array_equal(acc[4:8], [SUMS[4], *compute(SUMS[5:7], np.int32(-300)), SUMS[7]])


def test_points_that_read_what_earlier_ones_wrote_go_in_order() -> None:
    # acc[i + 1] += acc[i] one after the other is a running sum.
    text = f"""load acc sram 0 dram {ACC // 64} rows 1 of 8 stride 8
load uop sram 0 dram {UOP // 4} rows 1 of 1 stride 1
alu add uops 0..1 loops 1x7 dst 0,1 src 0,1
finish
"""
    executor = executed(text, [(1, 0, 0)])
    np.testing.assert_array_equal(executor.memories.acc.data[:8], np.cumsum(SUMS, axis=0, dtype=np.int32))


def test_a_deadlock_names_what_every_unit_waits_for() -> None:
    error = fault("gemm uops 0..0 loops 1x1 dst 0,0 src 0,0 wgt 0,0 pop_prev\nfinish")
    assert error.message == "deadlock: every unit waits for a token"
    assert error.notes == (
        "compute waits for load to compute in instruction 0: gemm uops 0..0 loops 1x1 dst 0,0 src 0,0 wgt 0,0 pop_prev",
    )


EMPTY_LOAD = "load inp sram 0 dram 0 rows 0 of 0 stride 0"
EMPTY_COMPUTE = "load uop sram 0 dram 0 rows 0 of 0 stride 0"


@pytest.mark.parametrize("tokens", [255, 256])
def test_a_counter_saturates_at_255_and_a_further_token_is_lost(tokens: int) -> None:
    pushes = [f"{EMPTY_LOAD} push_next"] * tokens
    busy, pops = [EMPTY_COMPUTE] * 300, [f"{EMPTY_COMPUTE} pop_prev"] * tokens
    stream = encode(assemble("\n".join([*pushes, *busy, *pops, "finish"])))
    executor = Executor(memory([]))
    if tokens == 255:
        executor.run(stream)
    else:
        with pytest.raises(UserError, match="deadlock") as error:
            executor.run(stream)
        assert error.value.notes[-1] == "1 tokens from load to compute were lost at 255"
    assert executor.counts.most_tokens == 255


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gemm uops 0..1 loops 1x1 dst 0,0 src 0,0 wgt 0,0\nfinish", "reads UOP entry 0, which nothing has written"),
        (
            f"load uop sram 0 dram {UOP // 4} rows 1 of 1 stride 1\n"
            f"load acc sram 0 dram {ACC // 64} rows 1 of 1 stride 1\n"
            "gemm uops 0..1 loops 1x1 dst 0,0 src 0,0 wgt 0,0",
            "reads INP entry 0, which nothing has written",
        ),
        (f"load acc sram 2040 dram {ACC // 64} rows 1 of 9 stride 9\nfinish", "fills ACC up to entry 2049"),
        ("load inp sram 0 dram 400 rows 1 of 1 stride 1\nfinish", "reaches byte 6416 off chip, and there are 6400"),
        ("load acc sram 0 dram 32 rows 1 of 1 stride 1 pad 1,0,0,0\nfinish", "only loads of INP pad, not of ACC"),
        ("load out sram 0 dram 0 rows 1 of 1 stride 1\nfinish", "LOAD does not fill OUT"),
        ("store acc sram 0 dram 0 rows 1 of 1 stride 1", "STORE empties OUT, not ACC"),
        (
            f"load acc sram 0 dram {ACC // 64} rows 1 of 1 stride 1 push_next\n"
            "store out sram 0 dram 0 rows 1 of 1 stride 1 pop_prev",
            "stores OUT entry 0, which no GEMM or ALU has computed",
        ),
        (f"{EMPTY_LOAD} push_next\n{EMPTY_COMPUTE}\nfinish", "the launch leaves tokens in its queues: 1 from load"),
        (EMPTY_COMPUTE, "the stream ends without FINISH"),
        (
            f"load acc sram 0 dram {ACC // 64} rows 1 of 1 stride 1\n"
            f"load uop sram 0 dram {UOP // 4} rows 1 of 1 stride 1\n"
            "alu shr imm -1 uops 0..1 loops 1x1 dst 0,0 src 0,0\nfinish",
            "shifts by less than 0 or more than 31 bits",
        ),
    ],
)
def test_what_no_hardware_promises_is_an_error(text: str, message: str) -> None:
    assert message in fault(text).message
