# SPDX-License-Identifier: Apache-2.0
"""Gemmini's model in C against NumPy, and against the executor that decodes what it logs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gemmini import CODE, FP32, INT8, NONE, NOWHERE, STRICT, Geometry, Run, Stream, acc, check, run
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.passes.toolchain import find_compiler, has_compiler
from penstock.runtime.gemmini import Instruction, Log, replay
from penstock.runtime.gemmini.isa import decode
from penstock.runtime.gemmini.log import Fence

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")


def product(geometry: Geometry, m: int, n: int, k: int, relu: bool = False, scale: float = 1) -> Stream:
    """C = A * B of a single block, with B in the scratchpad after A, from the accumulators at the width of elements."""
    random = np.random.default_rng(m * n * k)
    stream = Stream(geometry)
    a = random.integers(-4, 5, (m, k)).astype(geometry.element)
    b = random.integers(-4, 5, (k, n)).astype(geometry.element)
    size = geometry.element.itemsize
    regions = stream.array(a), stream.array(b), stream.region(m * n * size)
    stream.flush()
    stream.config_ex()
    stream.config_st(n * size, relu, scale)
    stream.config_ld(k * size)
    stream.mvin(regions[0], 0, 0, k, m)
    stream.config_ld(n * size, channel=1)
    stream.mvin(regions[1], 0, m, n, k, channel=1)
    stream.preload(m, n, k, acc(0), n, m)
    stream.compute(0, k, m)
    stream.mvout(regions[2], 0, acc(0), n, m)
    stream.fence()
    return stream


def operands(stream: Stream, found: Run, m: int, n: int, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A and B, in a type in which products are exact."""
    element, wide = stream.geometry.element, np.dtype("f8" if stream.geometry.floating else "i8")
    return found.array(0, element).reshape(m, k).astype(wide), found.array(1, element).reshape(k, n).astype(wide)


@pytest.mark.parametrize("geometry", [INT8, FP32], ids=["int8", "fp32"])
@pytest.mark.parametrize("edge", [(0, 0, 0), (3, 1, 2), (0, 3, 1)])
def test_a_block_is_a_product_also_at_an_edge(geometry: Geometry, edge: tuple[int, int, int]) -> None:
    m, n, k = (geometry.dim - less for less in edge)
    stream = product(geometry, m, n, k)
    found, counts = check(stream)
    a, b = operands(stream, found, m, n, k)
    expected = a @ b if geometry.floating else np.clip(a @ b, -128, 127)
    np.testing.assert_array_equal(found.array(2, geometry.element).reshape(m, n), expected)
    assert (counts.total, counts.configurations) == (10, 4)
    assert (counts.bytes_in, counts.bytes_out) == ((m * k + k * n) * geometry.element.itemsize, len(found.regions[2]))


def test_stores_scale_round_to_even_activate_and_clip() -> None:
    stream = product(INT8, 16, 16, 16, relu=True, scale=0.5)
    found, _ = check(stream)
    a, b = operands(stream, found, 16, 16, 16)
    expected = np.clip(np.rint((a @ b) * 0.5), 0, 127)
    assert {1, 3} <= set((a @ b % 4).ravel().tolist()), "there are halves next to an even and to an odd integer"
    np.testing.assert_array_equal(found.array(2, "i1").reshape(16, 16), expected)


def test_sums_accumulate_over_blocks_and_leave_at_full_width() -> None:
    stream = Stream()
    random = np.random.default_rng(0)
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((16, 48), (48, 16)))
    bias = random.integers(-(1 << 20), 1 << 20, (1, 16)).astype("<i4")
    regions = stream.array(a), stream.array(b), stream.array(bias), stream.region(16 * 16 * 4)
    stream.config_ex()
    stream.config_st(64)
    stream.config_ld(48, block_stride=16)
    stream.mvin(regions[0], 0, 0, 48, 16)
    stream.config_ld(16, channel=1)
    for block in range(3):
        stream.mvin(regions[1], block * 256, 64 + 16 * block, 16, 16, channel=1)
    stream.config_ld(0, channel=2)
    stream.mvin(regions[2], 0, acc(5), 16, 16, channel=2)
    for block in range(3):
        stream.preload(64 + 16 * block, 16, 16, acc(5, add=True), 16, 16)
        stream.compute(16 * block, 16, 16)
    stream.mvout(regions[3], 0, acc(5, full=True), 16, 16)
    stream.fence()
    found, counts = check(stream)
    expected = a.astype(np.int64) @ b.astype(np.int64) + bias
    np.testing.assert_array_equal(found.array(3, "<i4").reshape(16, 16), expected)
    assert counts.commands["mvin"] == 1, "one instruction has moved three blocks"


def test_weights_stay_in_the_mesh_and_rows_have_strides() -> None:
    stream = Stream()
    random = np.random.default_rng(1)
    a, b = (random.integers(-8, 9, shape).astype(np.int8) for shape in ((16, 16), (16, 16)))
    regions = stream.array(a), stream.array(b), stream.region(16 * 16)
    stream.config_ex(a_stride=2, c_stride=2)
    stream.config_st(16)
    stream.config_ld(16)
    stream.mvin(regions[0], 0, 0, 16, 16)
    stream.mvin(regions[1], 0, 100, 16, 16)
    # Even rows of A times B go to even rows of C, odd ones to odd ones.
    for first, b_row in ((0, 100), (1, NONE)):
        stream.preload(b_row, 16, 16, acc(first), 16, 8)
        stream.compute(first, 16, 8, new=b_row != NONE)
    stream.mvout(regions[2], 0, acc(0), 16, 16)
    stream.fence()
    found, _ = check(stream)
    expected = np.clip(a.astype(np.int64) @ b.astype(np.int64), -128, 127)
    np.testing.assert_array_equal(found.array(2, "i1").reshape(16, 16), expected)


def test_a_load_adds_to_sums_scales_and_widens() -> None:
    stream = Stream()
    first, second = (np.arange(start, start + 32, dtype=np.int8).reshape(2, 16) for start in (-16, -3))
    regions = stream.array(first), stream.array(second), stream.region(2 * 16)
    stream.config_st(16)
    stream.config_ld(16, narrow=True)
    stream.mvin(regions[0], 0, acc(0), 16, 2)
    stream.config_ld(16, narrow=True, scale=2.5)
    stream.mvin(regions[1], 0, acc(0, add=True), 16, 2)
    stream.mvout(regions[2], 0, acc(0), 16, 2)
    stream.fence()
    found, _ = check(stream)
    expected = np.clip(first + np.rint(second * 2.5), -128, 127)
    np.testing.assert_array_equal(found.array(2, "i1").reshape(2, 16), expected)


def test_products_add_a_matrix_of_the_scratchpad_and_return_there() -> None:
    stream = Stream()
    random = np.random.default_rng(2)
    a, b, d = (random.integers(-5, 6, (16, 16)).astype(np.int8) for _ in range(3))
    regions = stream.array(a), stream.array(b), stream.array(d), stream.region(16 * 16)
    stream.config_ex(relu=True)
    stream.config_st(16)
    stream.config_ld(16)
    for number in range(3):
        stream.mvin(regions[number], 0, 16 * number, 16, 16)
    stream.preload(16, 16, 16, 200, 16, 16)
    stream.compute(0, 16, 16, 32, 16, 16)
    stream.mvout(regions[3], 0, 200, 16, 16)
    stream.fence()
    found, _ = check(stream)
    expected = np.clip(a.astype(np.int64) @ b.astype(np.int64) + d, 0, 127)
    np.testing.assert_array_equal(found.array(3, "i1").reshape(16, 16), expected)


def test_address_zero_moves_zeros_in() -> None:
    stream = Stream()
    out = stream.region(16)
    stream.fill(out, 0, 16, 7)
    stream.config_ld(0)
    stream.config_st(16)
    stream.mvin(NOWHERE, 0, 3, 16, 1)
    stream.mvout(out, 0, 3, 16, 1)
    stream.fence()
    found, _ = check(stream)
    assert found.regions[out] == bytes(16)


def test_the_host_may_write_between_fences() -> None:
    stream = Stream()
    source, out = stream.region(16), stream.region(32)
    stream.config_ld(16)
    stream.config_st(16)
    for number in range(2):
        stream.fill(source, 0, 16, 10 * number, 1)
        stream.mvin(source, 0, 0, 16, 1)
        stream.mvout(out, 16 * number, 0, 16, 1)
        stream.fence()
    found, _ = check(stream)
    assert found.regions[out] == bytes([*range(16), *range(10, 26)])


def test_a_host_that_does_not_wait_is_noticed() -> None:
    stream = Stream()
    source, out = stream.region(16), stream.region(16)
    stream.config_ld(16)
    stream.config_st(16)
    stream.mvin(source, 0, 0, 16, 1)
    stream.mvout(out, 0, 0, 16, 1)
    stream.fill(source, 0, 16, 9)
    stream.fence()
    assert run(stream).regions[out] != run(stream, lazy=True).regions[out]


Fault = tuple[str, Callable[[Stream], object], str]


def moved(stream: Stream) -> None:
    stream.mvin(0, 0, 0, 16, 16)


FAULTS: list[Fault] = [
    ("unwritten-source", lambda s: s.mvout(1, 0, 40, 16, 1), "which nothing has written"),
    ("unwritten-column", lambda s: (s.mvin(0, 0, 40, 15, 1), s.mvout(1, 0, 40, 16, 1)), "row 40, column 15"),
    ("unwritten-sum", lambda s: s.mvin(0, 0, acc(2, add=True), 16, 1), "which nothing has written"),
    ("unwritten-a", lambda s: (s.preload(NONE, 1, 1, acc(0), 16, 16), s.compute(77, 16, 16)), "row 77, column 0"),
    ("off-chip", lambda s: s.mvin(0, 1, 0, 16, 16), "in no region"),
    ("read-only", lambda s: (moved(s), s.mvout(0, 0, 0, 16, 1)), "only read"),
    ("no-fence", lambda s: (moved(s), s.mvout(1, 0, 0, 16, 1), s.mvin(1, 15, 9, 1, 1)), "without a fence"),
    ("channel", lambda s: s.mvin(0, 0, 0, 16, 1, channel=2), "not configured"),
    ("beyond", lambda s: s.mvin(0, 0, 16384 - 15, 16, 16), "reaches row 16384"),
    ("rows", lambda s: s.mvin(0, 0, 0, 16, 17), "17 rows"),
    ("columns", lambda s: s.mvin(0, 0, 0, 65, 1), "65 columns"),
    ("overlapping-blocks", lambda s: s.mvin(0, 0, 0, 17, 2), "overwrite each other"),
    ("no-preload", lambda s: (moved(s), s.compute(0, 16, 16)), "no preload"),
    ("two-preloads", lambda s: [s.preload(NONE, 1, 1, acc(0), 1, 1) for _ in range(2)], "has had no compute"),
    ("no-weights", lambda s: (moved(s), s.preload(NONE, 1, 1, acc(0), 1, 1), s.compute(0, 1, 1, new=False)), "no B"),
    (
        "lost-weights",
        lambda s: (moved(s), s.preload(0, 1, 1, acc(0), 1, 1), s.compute(0, 1, 1, new=False)),
        "multiplies by the one before",
    ),
    ("output-stationary", lambda s: s.rocc(0, 1 << 48, 0), "stationary"),
    ("pooling", lambda s: s.rocc(2 | 1 << 4, 16, 0), "bits 0x10"),
    ("loop", lambda s: s.rocc(0, 0, 8), "funct7 8"),
    ("negative-scale", lambda s: s.config_st(16, True, -1), "negative scale"),
]


@pytest.mark.parametrize(("give", "message"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_both_notice_a_fault_at_the_same_instruction(give: Callable[[Stream], object], message: str) -> None:
    stream = Stream()
    stream.region(256, False)
    stream.region(256)
    stream.config_ex()
    stream.config_ld(16)
    stream.config_st(16)
    give(stream)
    stream.fence()
    found = run(stream)
    assert found.status == 1
    assert message in found.message
    (place,) = found.message.splitlines()
    number = place.removeprefix("gemmini: instruction ").partition(" ")[0]
    whole = Log(16, False, 16384, 1024, (*found.log.records, Fence()))
    with pytest.raises(UserError, match=rf"^error: instruction {number}: "):
        replay(whole)


def test_a_program_waits_for_its_last_instruction() -> None:
    stream = product(INT8, 16, 16, 16)
    del stream.words[-1]
    found = run(stream)
    assert found.status == 1
    assert "10 instructions after its last fence" in found.message


def test_whatever_is_changed_in_a_stream_is_noticed() -> None:
    """Each instruction dropped, and bits of its fields changed."""
    stream = product(INT8, 7, 9, 11, relu=True, scale=0.5)
    log = run(stream).log
    replay(log)
    missed: set[str] = set()
    for number, record in enumerate(log.records):
        if not isinstance(record, Instruction) or record.funct == 7:
            continue
        mutants: dict[str, tuple[Instruction, ...]] = {"dropped": ()}
        for low in (0, 3, 16, 32, 48, 56):
            mutants[f"rs1 bit {low}"] = (record._replace(rs1=record.rs1 ^ 1 << low),)
            mutants[f"rs2 bit {low}"] = (record._replace(rs2=record.rs2 ^ 1 << low),)
        for name, put in mutants.items():
            records = (*log.records[:number], *put, *log.records[number + 1 :])
            try:
                replay(Log(log.dim, log.floating, log.spad_rows, log.acc_rows, records))
            except UserError:
                continue
            missed.add(f"{type(decode(record)).__name__}, {name}")
    assert missed == {
        "ConfigEx, rs1 bit 3",  # what goes to the accumulators is not activated
        "ConfigLd, rs1 bit 16",  # no row is cut into blocks
        *("ConfigLd, rs1 bit 32", "ConfigLd, rs1 bit 48"),  # integers below 5 times 1.008 round to themselves
        *("Compute, rs2 bit 32", "Compute, rs2 bit 48", "Compute, rs2 bit 56"),  # there is no D
    }


@pytest.mark.parametrize("call", ["gemmini_spad(16384)", "gemmini_acc(1024)", "gemmini_block(0, 65536, 1)"])
def test_a_value_that_its_field_cannot_hold_is_asserted(call: str, tmp_path: Path) -> None:
    program = f'#include "gemmini.h"\n#include "model.h"\nint main(void) {{ return (int){call}; }}\n'
    words = [*find_compiler().command, *STRICT, "-DPENSTOCK_MODEL", "-I", str(CODE), "-x", "c", "-"]
    subprocess.run([*words, "-o", f"{tmp_path}/program"], input=program, text=True, check=True)
    ended = subprocess.run([f"{tmp_path}/program"], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "Assertion" in ended.stderr
