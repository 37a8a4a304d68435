# SPDX-License-Identifier: Apache-2.0
"""Names in the text that nothing has: each message has its place, and the nearest name that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

PROGRAM = """machine.target @small frequency 100 {
  machine.scope @sram size 4096 granule 16 dtypes [f32]
  machine.unit @load
  machine.unit @store
  machine.dma @mvin unit @load from [@dram] to [@sram] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.dma @mvout unit @store from [@sram] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.intrinsic @mvout_relu dma @mvout operands [src, dst] shape {i = ?} {
  ^bb0(%s: memref<?xf32, "sram">, %d: memref<?xf32>):
    linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
        iterator_types = ["parallel"]} ins(%s : memref<?xf32, "sram">) outs(%d : memref<?xf32>) {
    ^bb0(%a: f32, %b: f32):
      %zero = arith.constant 0.0 : f32
      %c = arith.maximumf %a, %zero : f32
      linalg.yield %c : f32
    }
  }
  machine.queue from @load to @store capacity 4 on_full "block"
}
func.func @kernel(%x: memref<16xf32>) attributes {device = @small} {
  %b = mem.buffer at 0 : memref<16xf32, "sram">
  %t = accel.dma %x to %b on "mvin" : memref<16xf32> to memref<16xf32, "sram">
  %u = accel.exec @mvout_relu extents [16] maps [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>] (%b, %x) after (%t)
      : memref<16xf32, "sram">, memref<16xf32>
  accel.push "load" to "store"
  accel.pop "store" from "load"
  accel.wait %u
  func.return
}
func.func @main(%x: memref<16xf32>) {
  func.call @kernel(%x) : (memref<16xf32>) -> ()
  func.return
}
"""


MISSPELT = {
    'on "mvin"': ('on "mvni"', "mvin"),
    "@mvout_relu extents": ("@mvuot_relu extents", "mvout_relu"),
    'push "load"': ('push "laod"', "load"),
    'from "load"\n': ('from "lod"\n', "load"),
    "device = @small": ("device = @smal", "small"),
    "call @kernel": ("call @kernle", "kernel"),
    "mvin unit @load": ("mvin unit @laod", "load"),
    "from [@sram]": ("from [@srma]", "sram"),
    "dma @mvout op": ("dma @mvuot op", "mvout"),
}


def test_the_program_itself_is_valid(penstock_opt: Command) -> None:
    finished = penstock_opt(stdin=PROGRAM)
    assert (finished.status, finished.err) == (0, "")


@pytest.mark.parametrize("right", MISSPELT)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(right: str, penstock_opt: Command) -> None:
    wrong, meant = MISSPELT[right]
    assert PROGRAM.count(right) == 1
    finished = penstock_opt(stdin=PROGRAM.replace(right, wrong))
    assert finished.status == 1
    assert f'did you mean "{meant}"?' in finished.err
    assert "<stdin>:" in finished.err or "-:" in finished.err


def test_a_scope_that_is_nearly_right_is_answered_with_the_right_one(penstock_opt: Command) -> None:
    text = PROGRAM.replace('at 0 : memref<16xf32, "sram">', 'at 0 : memref<16xf32, "srma">')
    text = text.replace('memref<16xf32> to memref<16xf32, "sram">', 'memref<16xf32> to memref<16xf32, "srma">')
    finished = penstock_opt(
        stdin=text.replace(
            '(%b, %x) after (%t)\n      : memref<16xf32, "sram">', '(%b, %x) after (%t)\n      : memref<16xf32, "srma">'
        )
    )
    assert finished.status == 1
    assert 'has no scope "srma"\n' in finished.err
    assert 'note: did you mean "sram"?' in finished.err


def test_a_name_that_is_like_none_is_answered_with_all(penstock_opt: Command) -> None:
    finished = penstock_opt(stdin=PROGRAM.replace('on "mvin"', 'on "xyz"'))
    assert "note: its engines: mvin, mvout" in finished.err


def test_a_kernel_for_a_machine_that_is_attached_later_is_valid(penstock_opt: Command) -> None:
    text = "func.func @kernel() attributes {device = @gemmini} {\n  func.return\n}\n"
    assert penstock_opt(stdin=text).status == 0
