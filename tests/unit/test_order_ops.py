# SPDX-License-Identifier: Apache-2.0
"""`order-ops` where it must not move anything, as for what a later pass will change, and the peak that it says."""

from __future__ import annotations

from random import Random

import pytest

from penstock.dialects.context import make_context
from penstock.dialects.remarks import Remark, listening
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.memory.memory_problems import memory_problems
from penstock.passes.planning.problem import peak
from penstock.runtime.pass_manager import read_pipeline, run_passes

HEAD = """
func.func private @double(memref<16xf32>, memref<64xf32>)
func.func private @sum(memref<64xf32>, memref<16xf32>)
"""
BRANCHES = """
func.func @main(%x: memref<16xf32>, %y: memref<16xf32>, %z: memref<16xf32>) {
  %a = memref.alloc() : memref<64xf32>
  func.call @double(%x, %a) : (memref<16xf32>, memref<64xf32>) -> ()
  %b = memref.alloc() : memref<64xf32>
  FIRST
  func.call @double(%y, %b) : (memref<16xf32>, memref<64xf32>) -> ()
  func.call @sum(%a, %x) : (memref<64xf32>, memref<16xf32>) -> ()
  SECOND
  func.call @sum(%b, %z) : (memref<64xf32>, memref<16xf32>) -> ()
  func.return
}
"""
GLOBAL = (
    '"memref.global"() <{sym_name = "kept", sym_visibility = "private", type = memref<64xf32>, '
    "initial_value = dense<1.0> : tensor<64xf32>}> : () -> ()"
)


def texts(text: str) -> tuple[str, str]:
    """The program before and after the pass."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("program.mlir", text)).module
    before = str(module)
    run_passes(ctx, module, read_pipeline("order-ops"))
    return before, str(module)


def test_the_branches_are_executed_one_after_the_other() -> None:
    before, after = texts(HEAD + BRANCHES.replace("FIRST", "").replace("SECOND", ""))
    assert before != after


def test_what_goes_through_a_global_keeps_its_order() -> None:
    read = """%g = "memref.get_global"() <{name = @kept}> : () -> memref<64xf32>
    mem.copy %g to %b : memref<64xf32> to memref<64xf32>"""
    written = "mem.copy %a to %g : memref<64xf32> to memref<64xf32>"
    before, after = texts(GLOBAL + HEAD + BRANCHES.replace("FIRST", read).replace("SECOND", written))
    assert before == after


@pytest.mark.parametrize("count", [2, 4])
def test_buffers_of_iterations_that_run_at_once_are_left_to_later_passes(count: int) -> None:
    loop = f"""scf.forall (%i) in ({count}) {{
    %t = memref.alloc() : memref<64xf32>
    func.call @double(%x, %t) : (memref<16xf32>, memref<64xf32>) -> ()
    scf.forall.in_parallel {{
    }}
  }}"""
    before, after = texts(HEAD + BRANCHES.replace("FIRST", loop).replace("SECOND", ""))
    assert before == after


PARTS = """
func.func @p(%x: tensor<1x64xf32>) -> tensor<1x64xf32> {
  %e = tensor.empty() : tensor<1x64xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]} ins(%x : tensor<1x64xf32>) outs(%e : tensor<1x64xf32>) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %a, %a : f32
    linalg.yield %r : f32
  } -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}
"""


def parts_at(draw: Random) -> str:
    """A chain of calls, of whose values some are written into places of one that is read by parts."""
    count = draw.randint(3, 5)
    whole = f"tensor<{count}x64xf32>"
    lines, values, last = [f"%w0 = tensor.empty() : {whole}"], ["%x"], 0

    def call(value: str) -> None:
        values.append(f"%v{len(values)}")
        lines.append(f"{values[-1]} = func.call @p({value}) : (tensor<1x64xf32>) -> tensor<1x64xf32>")

    for place in draw.sample(range(count), count):
        for _ in range(draw.randint(1, 2)):
            call(draw.choice(values[-2:]))
        lines.append(
            f"%w{last + 1} = tensor.insert_slice {values[-1]} into %w{last}[{place}, 0] [1, 64] [1, 1] "
            f": tensor<1x64xf32> into {whole}"
        )
        last += 1
    for number, place in enumerate(draw.sample(range(count), 2)):
        lines.append(
            f"%s{number} = tensor.extract_slice %w{last}[{place}, 0] [1, 64] [1, 1] : {whole} to tensor<1x64xf32>"
        )
        call(f"%s{number}")
    text = "\n  ".join([*lines, f"func.return {values[-1]} : tensor<1x64xf32>"])
    return f"{PARTS}func.func @main(%x: tensor<1x64xf32>) -> tensor<1x64xf32> {{\n  {text}\n}}\n"


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_that_of_the_lifetimes_that_are_planned(seed: int) -> None:
    ctx, remarks = make_context(), list[Remark]()
    module = parse_text(ctx, SourceText("program.mlir", parts_at(Random(seed)))).module
    with listening(remarks.append):
        run_passes(ctx, module, read_pipeline("copy-parts, tensor-to-loop, order-ops"))
    now = f"{peak(memory_problems(module)[0].problem)[1]:,} bytes of the arena"
    *copied, ordered = [each.message for each in remarks if each.function == "main"]
    assert now in ordered
    if copied and "->" not in ordered:
        assert now in copied[0]


def row_wise(name: str, rows: tuple[int, int], iterator: str) -> str:
    """A function of some rows that gives others: each the sum of those given, or each the one."""
    source, result = (f"tensor<{each}x64xf32>" for each in rows)
    maps = ", ".join(f"affine_map<(i, j) -> ({'0' if each == 1 else 'i'}, j)>" for each in rows)
    return f"""
func.func @{name}(%x: {source}) -> {result} {{
  %e = arith.constant dense<0.0> : {result}
  %y = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["{iterator}", "parallel"]}}
    ins(%x : {source}) outs(%e : {result}) {{
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %a, %b : f32
    linalg.yield %r : f32
  }} -> {result}
  func.return %y : {result}
}}
"""


def test_parts_are_copied_that_would_keep_what_lies_between_them() -> None:
    wide = row_wise("wide", (1, 32), "parallel") + row_wise("narrow", (32, 1), "reduction")
    kept = row_wise("middle", (1, 16), "parallel") + row_wise("join", (18, 1), "reduction")
    main = """
func.func @main(%x: tensor<1x64xf32>) -> tensor<1x64xf32> {
  %z = tensor.empty() : tensor<18x64xf32>
  %a = func.call @p(%x) : (tensor<1x64xf32>) -> tensor<1x64xf32>
  %b = func.call @p(%a) : (tensor<1x64xf32>) -> tensor<1x64xf32>
  %w = func.call @wide(%b) : (tensor<1x64xf32>) -> tensor<32x64xf32>
  %n = func.call @narrow(%w) : (tensor<32x64xf32>) -> tensor<1x64xf32>
  %m = func.call @middle(%n) : (tensor<1x64xf32>) -> tensor<16x64xf32>
  %z0 = tensor.insert_slice %a into %z[0, 0] [1, 64] [1, 1] : tensor<1x64xf32> into tensor<18x64xf32>
  %z1 = tensor.insert_slice %b into %z0[17, 0] [1, 64] [1, 1] : tensor<1x64xf32> into tensor<18x64xf32>
  %z2 = tensor.insert_slice %m into %z1[1, 0] [16, 64] [1, 1] : tensor<16x64xf32> into tensor<18x64xf32>
  %y = func.call @join(%z2) : (tensor<18x64xf32>) -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}
"""
    peaks: list[int] = []
    for first in ("", "copy-parts, "):
        ctx = make_context()
        module = parse_text(ctx, SourceText("program.mlir", PARTS + wide + kept + main)).module
        run_passes(ctx, module, read_pipeline(f"{first}tensor-to-loop"))
        peaks.append(peak(memory_problems(module)[0].problem)[1] // 256)
    # The rows between the first and the last wait with them; copied, either is one row.
    assert peaks == [51, 35]
