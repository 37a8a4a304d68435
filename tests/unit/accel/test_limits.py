# SPDX-License-Identifier: Apache-2.0
"""What a machine cannot do is told with its limit; what the compiler makes breaks none."""

from __future__ import annotations

from pathlib import Path

import pytest
from sampling import sweep
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.machine_names import machine_text
from penstock.passes.analysis.commands.limits import LimitFault, limit_faults
from penstock.passes.analysis.commands.trace import trace, trace_calls
from penstock.passes.analysis.kernels import machine_kernels, machine_of
from penstock.runtime.compiler import compile_module

CONTEXT = make_context()
VTA = str(load_machine("vta-pynq"))
PLACE = 'loc("kernel.py":7:3)'
ROWS = "affine_map<(i, j) -> (i, j)>"


def kernel(body: str, arguments: str, machine: str = VTA, device: str = "vta_pynq", end: str = "accel.barrier") -> str:
    return f"""
      {machine}
      func.func private @k({arguments}) attributes {{device = @{device}}} {{
        %0 = arith.constant 0 : index
        %1 = arith.constant 1 : index
        %9 = arith.constant 9 : index
        %zero = arith.constant 0 : i8
        {body}
        {end}
        func.return
      }}"""


def faults(text: str) -> list[LimitFault]:
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    target, (function,) = machine_kernels(module)
    assert target is not None
    return list(limit_faults(trace(function, target), target))


def message(text: str, *notes: str) -> str:
    """The one fault, which is located and has these notes."""
    (fault,) = faults(text)
    error = fault.error()
    assert error.loc == "kernel.py:7:3"
    assert tuple(error.notes) == notes
    return fault.message


def load(image: str, tile: str, at: str, how: str = "else %zero") -> str:
    """A load of activations off chip into a tile."""
    body = f"""
      %tile = mem.buffer at 0 : memref<{tile}xi8, "inp">
      %t = accel.dma %x[{at}] to %tile {how} on "load_inp" : memref<{image}xi8> to memref<{tile}xi8, "inp"> {PLACE}"""
    return kernel(body, f"%x: memref<{image}xi8>")


# transfers


def test_what_a_descriptor_holds_is_no_fault() -> None:
    assert faults(load("40x40x2x16", "20x20x2x16", "-7, -7, 0, 0")) == []
    assert faults(load("40x40x16", "30x20x16", "-15, -15, 0")) == []
    assert faults(load("40x40x16", "30x20x16", "-16, -20, 0", "clipped")) == []


def test_too_many_dims() -> None:
    text = load("9x40x40x16", "2x3x4x16", "0, 0, 0, 0", "")
    assert message(text) == "@load_inp has descriptors of 2 dims, and this needs 3"


def test_too_much_padding_of_rows() -> None:
    text = load("40x40x16", "18x20x16", "-16, 0, 0")
    assert message(text) == "@load_inp pads at most 15 rows on a side, and this needs 16"


def test_too_much_padding_of_entries() -> None:
    text = load("40x40x16", "3x20x16", "0, -16, 0")
    assert message(text) == "@load_inp pads at most 15 entries on a side, and this needs 16"


def test_padding_behind_counts_as_that_before() -> None:
    text = load("40x40x16", "3x20x16", "0, 36, 0")
    assert message(text) == "@load_inp pads at most 15 entries on a side, and this needs 16"


def test_padding_by_an_engine_that_has_none() -> None:
    body = f"""
      %tile = mem.buffer at 0 : memref<2x16x16xi8, "wgt">
      %t = accel.dma %x[-1, 0, 0] to %tile else %zero on "load_wgt"
        : memref<9x16x16xi8> to memref<2x16x16xi8, "wgt"> {PLACE}"""
    assert message(kernel(body, "%x: memref<9x16x16xi8>")) == "@load_wgt pads no rows, and this needs 1"


def test_a_fault_names_the_round_in_which_it_first_is_one() -> None:
    body = f"""
      %c36 = arith.constant 36 : index
      %tile = mem.buffer at 0 : memref<3x20x16xi8, "inp">
      scf.for %i = %0 to %c36 step %9 {{
        scf.for %j = %9 to %c36 step %9 {{
          %at = arith.subi %i, %j : index
          %t = accel.dma %x[0, %at, 0] to %tile else %zero on "load_inp"
            : memref<40x40x16xi8> to memref<3x20x16xi8, "inp"> {PLACE}
        }}
      }}"""
    text = kernel(body, "%x: memref<40x40x16xi8>")
    note = "first in iteration 0, 1 of the loops around it, counted from 0"
    assert message(text, note) == "@load_inp pads at most 15 entries on a side, and this needs 18"


def test_too_long_a_stride() -> None:
    text = load("2x65536x16", "2x3x16", "0, 0, 0", "")
    assert message(text) == "@load_inp steps at most 65535 entries from row to row, and this needs 65536"


def limited(**changes: str) -> str:
    """gemmini-fp32 with other limits of its first engine."""
    text = machine_text("gemmini-fp32")[1]
    for key, value in changes.items():
        old = next(line for line in text.splitlines() if line.startswith(f"{key} ="))
        text = text.replace(old, f"{key} = {{ value = {value}, assumed = true }}", 1)
    return text


def on_gemmini(body: str, folder: Path, **changes: str) -> str:
    path = folder / "limited.toml"
    path.write_text(limited(**changes), encoding="utf-8")
    return kernel(body, "%x: memref<40x40xf32>", str(load_machine(str(path))), "gemmini_fp32")


LOAD_ROWS = f"""
  %tile = mem.buffer at 0 : memref<12x30xf32, "spad">
  %t = accel.dma %x[0, 0] to %tile on "mvin" : memref<40x40xf32> to memref<12x30xf32, "spad"> {PLACE}"""


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("[11, 99]", "@mvin counts at most 11 rows in a dim, and this needs 12"),
        # 30 elements of 4 bytes, in granules of 16
        ("[12, 7]", "@mvin counts at most 7 entries in a dim, and this needs 8"),
    ],
)
def test_too_many_rows_and_entries(limits: str, expected: str, tmp_path: Path) -> None:
    assert message(on_gemmini(LOAD_ROWS, tmp_path, max_count=limits)) == expected
    assert faults(on_gemmini(LOAD_ROWS, tmp_path, max_count="[12, 8]")) == []


def test_a_buffer_off_chip_that_begins_between_two_places_of_the_engine() -> None:
    body = f"""
      %tile = mem.buffer at 0 : memref<4x64xf16, "smem">
      %far = mem.buffer at 72 : memref<9x64xf16>
      %t = accel.dma %far[0, 0] to %tile on "tma_load" : memref<9x64xf16> to memref<4x64xf16, "smem"> {PLACE}"""
    text = kernel(body, "", str(load_machine("h100-sm")), "h100_sm")
    expected = "@tma_load needs buffers off chip to begin at multiples of 16 bytes, and this begins at 72"
    assert message(text) == expected
    assert faults(text.replace("at 72", "at 64")) == []


def test_an_engine_that_converts_moves_nothing_as_it_is() -> None:
    body = f"""
      %tile = mem.buffer at 0 : memref<4x16xi32, "acc">
      %t = accel.dma %tile to %y on "store_out" : memref<4x16xi32, "acc"> to memref<4x16xi32> {PLACE}"""
    text = kernel(body, "%y: memref<4x16xi32>")
    assert message(text) == "@store_out makes i8 of i32 (truncate), and this moves i32"


def test_what_an_engine_does_on_the_way_has_its_limits() -> None:
    body = f"""
      %tile = mem.buffer at 0 : memref<4x3x32xi32, "acc">
      %z = accel.exec @gemm_reset extents [4, 3, 32] maps [affine_map<(i, j, k) -> (i, j, k)>] (%tile)
        : memref<4x3x32xi32, "acc">
      %t = accel.exec @store_narrow extents [4, 3, 16]
        maps [affine_map<(i, j, k) -> (i, j, k)>, affine_map<(i, j, k) -> (i, j, k)>] (%tile, %y) after (%z)
        : memref<4x3x32xi32, "acc">, memref<4x5x16xi8> {PLACE}"""
    text = kernel(body, "%y: memref<4x5x16xi8>")
    assert message(text) == "@store_out has descriptors of 2 dims, and this needs 3"


# commands of units


def reset(extents: list[int], buffer: str, results: str | None = None) -> str:
    dims = ", ".join(f"d{number}" for number in range(len(extents)))
    body = f"""
      %acc = mem.buffer at 0 : memref<{buffer}xi32, "acc">
      %t = accel.exec @gemm_reset extents {extents} maps [affine_map<({dims}) -> ({results or dims})>] (%acc)
        : memref<{buffer}xi32, "acc"> {PLACE}"""
    return kernel(body, "")


def test_loops_and_a_list_of_micro_operations_hold_a_command() -> None:
    assert faults(reset([2, 3, 4, 5, 16], "2x3x4x5x16")) == []


def test_too_many_loops(tmp_path: Path) -> None:
    dims = "d0, d1, d2"
    body = f"""
      %p = mem.buffer at 0 : memref<8x8x8xf32, "spad">
      %c = mem.buffer at 0 : memref<8x8xf32, "acc">
      %t = accel.exec @gemm extents [8, 8, 8]
        maps [affine_map<({dims}) -> (0, d0, d2)>, affine_map<({dims}) -> (0, d2, d1)>,
              affine_map<({dims}) -> (d0, d1)>] (%p, %p, %c)
        : memref<8x8x8xf32, "spad">, memref<8x8x8xf32, "spad">, memref<8x8xf32, "acc"> {PLACE}"""
    assert faults(on_gemmini(body, tmp_path)) == []
    text = on_gemmini(body, tmp_path, max_iterations="[9, 9]")
    assert message(text) == "a command of @gemm has 2 loops, and this needs 3"
    text = on_gemmini(body, tmp_path, max_iterations="[1, 2, 2]")
    assert message(text) == "a loop of @gemm has at most one iteration, and this needs 2"


def test_too_many_micro_operations() -> None:
    text = reset([2, 2, 4, 4, 16], "2x2x4x4x16").replace("micro_ops 8192", "micro_ops 3")
    assert message(text) == "a command of @gemm_reset lists at most 3 micro-operations, and this needs 4"


def test_a_block_that_is_smaller_than_an_intrinsic_takes() -> None:
    with pytest.raises(
        UserError, match=r'"gemm_reset" takes at least 16 in dim n, but the last block of 8 is'
    ) as caught:
        faults(reset([4, 8], "4x8"))
    assert caught.value.loc == "kernel.py:7:3"


def test_operands_that_lie_as_an_intrinsic_does_not_take_them() -> None:
    scattered = message(reset([4, 16], "4x32", "d0, d1 * 2"))
    assert scattered.startswith("@gemm_reset does not take these operands: nothing can play its dim n: ")
    crooked = message(reset([4, 16], "4x24"))
    assert crooked.startswith("@gemm_reset does not take these operands: nothing can play its dim m: ")
    assert crooked.endswith("d0 moves operand acc by 96 bytes, not a multiple of 64")


def test_operands_that_are_interchanged() -> None:
    body = f"""
      %p = mem.buffer at 0 : memref<4x4xf32, "spad">
      %c = mem.buffer at 0 : memref<4x4xf32, "acc">
      %t = accel.exec @gemm extents [4, 4, 4] maps [affine_map<(m, n, k) -> (k, n)>,
        affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (m, n)>] (%p, %p, %c)
        : memref<4x4xf32, "spad">, memref<4x4xf32, "spad">, memref<4x4xf32, "acc"> {PLACE}"""
    text = kernel(body, "", str(load_machine("gemmini-fp32")), "gemmini_fp32")
    assert message(text) == "@gemm does not take these operands: they are interchanged"


# scopes and endings


def test_a_scope_that_is_too_small() -> None:
    body = f"""
      %tile = mem.buffer at 32640 : memref<4x64xi8, "inp">
      %t = accel.dma %x to %tile on "load_inp" : memref<4x64xi8> to memref<4x64xi8, "inp"> {PLACE}"""
    text = kernel(body, "%x: memref<4x64xi8>")
    assert message(text) == "@inp has 32768 bytes, and this reaches from byte 32640 to 32896"


def test_a_kernel_that_ends_while_its_stores_may_run() -> None:
    text = load("4x16", "4x16", "0, 0", "").replace("accel.barrier", "accel.wait %t")
    (fault,) = faults(text)
    assert fault.message == "@k returns while its commands may still run"
    assert fault.notes == ("end it in accel.barrier, after all stores",)


# what the compiler makes


MATMUL = """
func.func @main(%x: tensor<41x97xf32>, %w: tensor<97x73xf32>) -> tensor<41x73xf32> {
  %y = graph.matmul %x, %w : (tensor<41x97xf32>, tensor<97x73xf32>) -> tensor<41x73xf32>
  %z = graph.relu %y : tensor<41x73xf32>
  func.return %z : tensor<41x73xf32>
}"""
CONVOLUTION = """
func.func @main(%x: tensor<1x5x19x17xf32>, %w: tensor<7x5x3x3xf32>) -> tensor<1x7x10x9xf32> {
  %y = graph.conv %x, %w strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] group 1
      : (tensor<1x5x19x17xf32>, tensor<7x5x3x3xf32>) -> tensor<1x7x10x9xf32>
  func.return %y : tensor<1x7x10x9xf32>
}"""
BYTES = """
func.func @main(%x: tensor<48x96xi8>, %w: tensor<96x64xi8>) -> tensor<48x64xi32> {
  %y = graph.matmul %x, %w accumulate i32 : (tensor<48x96xi8>, tensor<96x64xi8>) -> tensor<48x64xi32>
  func.return %y : tensor<48x64xi32>
}"""

BLOCKED = """
#x = affine_map<(n, h, w, ob, o, kh, kw, ib, i) -> (n, h * 1 + kh, w * 1 + kw, ib, i)>
#w = affine_map<(n, h, w, ob, o, kh, kw, ib, i) -> (kh, kw, ob, ib, o, i)>
#y = affine_map<(n, h, w, ob, o, kh, kw, ib, i) -> (n, h, w, ob, o)>
#id = affine_map<(n, h, w, ob, o) -> (n, h, w, ob, o)>
#b = affine_map<(n, h, w, ob, o) -> (ob, o)>
func.func @main(%x: IMAGE, %w: FILTERS, %b: BIAS)
    -> IMAGE {
  %y = func.call @conv(%x, %w, %b) : (IMAGE, FILTERS, BIAS) -> IMAGE
  func.return %y : IMAGE
}
func.func private @conv(%x: IMAGE, %w: FILTERS, %b: BIAS) -> IMAGE {
  %zero8 = arith.constant 0 : i8
  %p = tensor.pad %x low[0, 1, 1, 0, 0] high[0, 1, 1, 0, 0] {
  ^bb0(%q0: index, %q1: index, %q2: index, %q3: index, %q4: index):
    tensor.yield %zero8 : i8
  } : IMAGE to PADDED
  %e = tensor.empty() : SUMS
  %zero = arith.constant 0 : i32
  %f = linalg.generic {indexing_maps = [#id], iterator_types = [PARALLEL]} outs(%e : SUMS) {
  ^bb0(%out: i32):
    linalg.yield %zero : i32
  } -> SUMS
  %c = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = [REDUCING]}
      ins(%p, %w : PADDED, FILTERS) outs(%f : SUMS) {
  ^bb0(%a: i8, %v: i8, %acc: i32):
    %a1 = arith.extsi %a : i8 to i32
    %v1 = arith.extsi %v : i8 to i32
    %m = arith.muli %a1, %v1 : i32
    %s = arith.addi %acc, %m : i32
    linalg.yield %s : i32
  } -> SUMS
  %e2 = tensor.empty() : IMAGE
  %six = arith.constant 6 : i32
  %most = arith.constant 127 : i32
  %y = linalg.generic {indexing_maps = [#id, #b, #id], iterator_types = [PARALLEL]}
      ins(%c, %b : SUMS, BIAS) outs(%e2 : IMAGE) {
  ^bb0(%in: i32, %bias: i32, %o: i8):
    %1 = arith.addi %in, %bias : i32
    %2 = arith.shrsi %1, %six : i32
    %3 = arith.maxsi %2, %zero : i32
    %4 = arith.minsi %3, %most : i32
    %5 = arith.trunci %4 : i32 to i8
    linalg.yield %5 : i8
  } -> IMAGE
  func.return %y : IMAGE
}
"""
SHORT = {
    "REDUCING": "PARALLEL" + ', "reduction"' * 4,
    "PARALLEL": ", ".join(['"parallel"'] * 5),
    "IMAGE": "tensor<1x10x10x2x16xi8>",
    "PADDED": "tensor<1x12x12x2x16xi8>",
    "SUMS": "tensor<1x10x10x2x16xi32>",
    "FILTERS": "tensor<3x3x2x2x16x16xi8>",
    "BIAS": "tensor<2x16xi32>",
}


@pytest.mark.parametrize(
    ("program", "machine"),
    sweep(
        [
            *(
                (MATMUL, name)
                for name in ("gemmini-fp32", "rapid-core-like", "neural-accelerator", "smaug-smv", "h100-sm")
            ),
            *((CONVOLUTION, name) for name in ("gemmini-fp32", "rapid-core-like", "neural-accelerator", "h100-sm")),
            *((BYTES, name) for name in ("gemmini", "snax-opengemm")),
            (BLOCKED, "vta-pynq"),
        ],
        quick=[(MATMUL, "h100-sm"), (CONVOLUTION, "gemmini-fp32"), (BYTES, "snax-opengemm"), (BLOCKED, "vta-pynq")],
    ),
)
def test_what_the_compiler_makes_breaks_no_limit(program: str, machine: str) -> None:
    ctx = make_context()
    for short, spelled in SHORT.items():
        program = program.replace(short, spelled)
    module = Parser(ctx, program).parse_module()
    compile_module(module, ctx, machine, "accel")
    target = machine_of(module)
    assert target is not None
    commands = 0
    for call in trace_calls(module):
        if call.program is not None:
            commands += len(call.program.commands)
            assert list(limit_faults(call.program, target)) == []
    assert commands
