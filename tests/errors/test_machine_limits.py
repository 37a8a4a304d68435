# SPDX-License-Identifier: Apache-2.0
"""Programs at the accelerator level that ask a machine for what it cannot do: one line with the place and the limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.lowering.from_machine_toml import load_machine

if TYPE_CHECKING:
    from tests.conftest import Command

LINE = 9
PROGRAM = """builtin.module {{
  func.func private @k(%x: memref<9x40x40x16xi8>, %y: memref<9x16xi32>) attributes {{device = @vta_pynq}} {{
    %zero = arith.constant 0 : i8
    %a = mem.buffer at 0 : memref<9x16xi8, "inp">
    %tile = mem.buffer at 0 : memref<1x3x20x16xi8, "inp">
    %box = mem.buffer at 0 : memref<2x3x4x16xi8, "inp">
    %w = mem.buffer at 0 : memref<16x16xi8, "wgt">
    %c = mem.buffer at 0 : memref<9x16xi32, "acc">
    {command}
    accel.barrier
    func.return
  }}
  func.func @main(%x: memref<9x40x40x16xi8>, %y: memref<9x16xi32> {{graph.output = "y"}}) {{
    func.call @k(%x, %y) : (memref<9x40x40x16xi8>, memref<9x16xi32>) -> ()
    func.return
  }}
  {machine}
}}
"""
IMAGE = "memref<9x40x40x16xi8>"
GEMM = (
    "maps [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]"
    ' ({}, %w, %c) : {}, memref<16x16xi8, "wgt">, memref<9x16xi32, "acc">'
)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            f'accel.dma %x[0, 0, 0, 0] to %box on "load_inp" : {IMAGE} to memref<2x3x4x16xi8, "inp">',
            "@load_inp has descriptors of 2 dims, and this needs 3",
        ),
        (
            f'accel.dma %x[0, 0, -16, 0] to %tile else %zero on "load_inp" : {IMAGE} to memref<1x3x20x16xi8, "inp">',
            "@load_inp pads at most 15 entries on a side, and this needs 16",
        ),
        (
            f'accel.dma %x[0, 0, 0, 0] to %box on "load_wgt" : {IMAGE} to memref<2x3x4x16xi8, "inp">',
            'the engine "load_wgt" does not go from "dram" to "inp"',
        ),
        (
            f'accel.dma %x[0, 0, 0, 0] to %box on "load" : {IMAGE} to memref<2x3x4x16xi8, "inp">',
            '@vta_pynq has no DMA engine "load"',
        ),
        (
            'accel.dma %c to %y on "store_out" : memref<9x16xi32, "acc"> to memref<9x16xi32>',
            "@store_out makes i8 of i32 (truncate), and this moves i32",
        ),
        (
            "accel.exec @gemm extents [9, 16, 16] " + GEMM.format("%w", 'memref<16x16xi8, "wgt">'),
            'operand inp of @gemm is i8 in "inp", not i8 in "wgt"',
        ),
        (
            "accel.exec @gemm extents [9, 16, 8] " + GEMM.format("%a", 'memref<9x16xi8, "inp">'),
            'intrinsic "gemm" takes at least 16 in dim k, but the last block of 8 is smaller',
        ),
        (
            "accel.exec @conv extents [9, 16, 16] " + GEMM.format("%a", 'memref<9x16xi8, "inp">'),
            "@vta_pynq has no intrinsic @conv",
        ),
    ],
)
def test_what_a_machine_cannot_do_is_refused_where_it_stands(
    penstock: Command, tmp_path: Path, command: str, message: str
) -> None:
    text = PROGRAM.format(command=f"%t = {command}", machine=str(load_machine("vta-pynq")))
    (tmp_path / "program.mlir").write_text(text, encoding="utf-8")
    finished = penstock("simulate", "program.mlir")
    assert finished.status == 1
    assert f"program.mlir:{LINE}:" in finished.err
    assert message in finished.err
    assert "Traceback" not in finished.err


def test_a_stride_that_no_descriptor_holds_is_refused_where_it_stands(penstock: Command, tmp_path: Path) -> None:
    text = PROGRAM.replace("9x40x40x16", "2x65536x1x16").replace("1x3x20x16", "2x1x1x16")
    command = 'accel.dma %x[0, 0, 0, 0] to %tile on "load_inp" : memref<2x65536x1x16xi8> to memref<2x1x1x16xi8, "inp">'
    text = text.format(command=f"%t = {command}", machine=str(load_machine("vta-pynq")))
    (tmp_path / "program.mlir").write_text(text, encoding="utf-8")
    finished = penstock("simulate", "program.mlir")
    assert finished.status == 1
    assert f"program.mlir:{LINE}:" in finished.err
    assert "@load_inp steps at most 65535 entries from row to row, and this needs 65536" in finished.err
