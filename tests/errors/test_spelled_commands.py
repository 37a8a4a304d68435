# SPDX-License-Identifier: Apache-2.0
"""Machine files whose commands are no C, or cannot hold a program: a place, what is wrong, and never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from in_c import needs_compiler

if TYPE_CHECKING:
    from tests.conftest import Command

HEADER = "#include <stdint.h>\nstatic inline void put(int what, const void *at, uint64_t a, uint64_t b) {}\n"
MACHINE = """
[machine]
name = "small"
freq_mhz = { value = 100, assumed = true }

[code]
order = "program"
barrier = "put(0, 0, 0, 0);"
headers = ["small.h"]
files = ["small.h"]

[[scope]]
name = "buf"
size = 4096
granule = 16
dtypes = ["f32"]
assumed = true

[[unit]]
name = "core"
"""
ENGINE = """
[[dma]]
name = "{name}"
unit = "core"
from = ["{start}"]
to = ["{end}"]
dims = 2
latency = 1
row_overhead = 1
outstanding = 1
emit = "{emit}"
assumed = true
"""
IN = "put(1, {src}, {dst.row} | {dst.rows.rows} << 20, {rows} | {columns} << 8 | {src.bytes.rows:7} << 16);"
OUT = "put(2, {dst}, {src.row} | {src.rows.rows} << 20, {rows} | {columns} << 8 | {dst.bytes.rows} << 16);"
COPY = """
builtin.module {{
  func.func private @k(%x: memref<8x{pitch}xf32>, %y: memref<8x4xf32>) attributes {{device = @small}} {{
    %a = mem.buffer at 0 : memref<8x4xf32, "buf">
    %t = accel.dma %x[0, 0] to %a on "in" : memref<8x{pitch}xf32> to memref<8x4xf32, "buf">
    %u = accel.dma %a to %y on "out" after (%t) : memref<8x4xf32, "buf"> to memref<8x4xf32>
    accel.barrier
    func.return
  }}
  func.func @main(%x: memref<8x{pitch}xf32>, %y: memref<8x4xf32> {{graph.output = "y"}}) {{
    func.call @k(%x, %y) : (memref<8x{pitch}xf32>, memref<8x4xf32>) -> ()
    func.return
  }}
}}
"""


def machine(folder: Path, *, emit: str = IN, header: str = HEADER, text: str = MACHINE) -> Path:
    """A machine with one scope, and engines both ways."""
    engines = (("in", "dram", "buf", emit), ("out", "buf", "dram", OUT))
    tables = [ENGINE.replace("{emit}", code) for *_, code in engines]
    for number, (name, start, end, _) in enumerate(engines):
        for key, value in (("name", name), ("start", start), ("end", end)):
            tables[number] = tables[number].replace(f"{{{key}}}", value, 1)
    path = folder / "small.toml"
    path.write_text(text + "".join(tables))
    (folder / "small.h").write_text(header)
    return path


def test_a_machine_whose_commands_are_c_is_valid(tmp_path: Path, penstock: Command) -> None:
    needs_compiler()
    finished = penstock("machines", "validate", "--code", machine(tmp_path))
    assert (finished.status, finished.err) == (0, "")


def test_a_function_that_no_header_has_is_told_at_its_table(tmp_path: Path, penstock: Command) -> None:
    needs_compiler()
    path = machine(tmp_path, emit=IN.replace("put(1", "poke(1"))
    finished = penstock("machines", "validate", "--code", path)
    assert finished.status == 1
    assert f"{path}:22:1: error: the C compiler refuses it: " in finished.err
    assert "poke" in finished.err
    assert finished.err.splitlines()[1] == "[[dma]]"


def test_a_header_that_is_no_c_is_told_at_the_code(tmp_path: Path, penstock: Command) -> None:
    needs_compiler()
    path = machine(tmp_path, header=HEADER.replace("int what", "integer what"))
    finished = penstock("machines", "validate", "--code", path)
    assert finished.status == 1
    assert f"{path}:6:1: error: the C compiler refuses it: " in finished.err
    assert "Traceback" not in finished.err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, penstock: Command) -> None:
    path = machine(tmp_path)
    (tmp_path / "small.h").unlink()
    finished = penstock("machines", "validate", "--code", path)
    assert finished.status == 1
    assert 'cannot read the file "small.h" of machine "small"' in finished.err


@pytest.mark.parametrize(("pitch", "fits"), [(16, True), (64, False)])
def test_a_stride_that_its_field_cannot_hold_is_told_of_the_command(
    pitch: int, fits: bool, tmp_path: Path, penstock: Command
) -> None:
    program = tmp_path / "copy.mlir"
    program.write_text(COPY.format(pitch=pitch))
    finished = penstock(
        "compile", program, "--machine", machine(tmp_path), "--emit", "device-c", "-o", tmp_path / "out"
    )
    assert (finished.status == 0) is fits, finished.err
    if not fits:
        assert 'copy.mlir:5:5: error: dma "in": src.bytes.rows has 7 bits, too few for 256' in finished.err
        assert not (tmp_path / "out").exists()


def test_queues_that_nothing_spells_cannot_keep_the_order(tmp_path: Path, penstock: Command) -> None:
    queue = '\n[[unit]]\nname = "other"\n\n[[queue]]\nfrom = "core"\nto = "other"\ncapacity = 4\non_full = "block"\n'
    text = MACHINE.replace('order = "program"', 'order = "queues"') + queue + "assumed = true\n"
    finished = penstock("machines", "validate", machine(tmp_path, text=text))
    assert finished.status == 1
    assert "commands are ordered by queues, and nothing spells push and pop" in finished.err


@pytest.mark.parametrize("bits", [65, 99999999999999999999])
def test_a_field_may_be_as_wide_as_it_is_told(bits: int, tmp_path: Path, penstock: Command) -> None:
    path = machine(tmp_path, emit=IN.replace("{rows}", f"{{rows:{bits}}}"))
    finished = penstock("machines", "validate", path)
    assert finished.status == 0, finished.err
