# SPDX-License-Identifier: Apache-2.0
"""Useful, redundant and padded multiply-accumulates of products in tiles of any size, beside what the tiles say."""

from __future__ import annotations

from math import ceil, prod
from random import Random

import pytest
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64

from penstock.dialects.context import PenstockContext, make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import MACS, machine_kernels
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.simulator.run import KernelRun, run_program

MACHINE, BLOCK = "gemmini-fp32", 4


def product(m: int, n: int, k: int) -> str:
    a, b, c = (f"tensor<{rows}x{columns}xf32>" for rows, columns in ((m, k), (k, n), (m, n)))
    return f"""
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#sum = affine_map<(m, n, k) -> (m, n)>
#mn = affine_map<(m, n) -> (m, n)>
func.func @main(%a: {a} {{graph.name = "a"}}, %b: {b} {{graph.name = "b"}}) -> ({c} {{graph.name = "c"}}) {{
  %c = func.call @product(%a, %b) : ({a}, {b}) -> {c}
  func.return %c : {c}
}}
func.func private @product(%a: {a}, %b: {b}) -> {c} {{
  %zero = arith.constant 0.000000e+00 : f32
  %e = tensor.empty() : {c}
  %f = linalg.generic {{indexing_maps = [#mn], iterator_types = ["parallel", "parallel"]}} outs(%e : {c}) {{
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  }} -> {c}
  %c = linalg.generic {{indexing_maps = [#mk, #kn, #sum], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%a, %b : {a}, {b}) outs(%f : {c}) {{
  ^bb0(%x: f32, %y: f32, %o: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32
  }} -> {c}
  func.return %c : {c}
}}
"""


def simulated(shape: tuple[int, int, int], tile: tuple[int, int, int]) -> tuple[PenstockContext, ModuleOp, KernelRun]:
    ctx = make_context()
    module = parse_text(ctx, SourceText("product.mlir", product(*shape))).module
    attach_machine(module, MACHINE)
    sizes = f"tile{{sizes={','.join(map(str, tile))}}}"
    swapped = {"tile": sizes, "mem-promote": "mem-promote{strategy=none}"}
    specs = [swapped.get(spec, spec) for spec in pipeline("accel", MACHINE, start="tensor")]
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    (kernel,) = run_program(module).kernels
    return ctx, module, kernel


def judge(shape: tuple[int, int, int], tile: tuple[int, int, int]) -> KernelRun:
    tile = (min(tile[0], shape[0]), min(tile[1], shape[1]), min(tile[2], shape[2]))
    _, _, kernel = simulated(shape, tile)
    (m, n, k), work = shape, kernel.macs
    trips = [ceil(extent / size) for extent, size in zip(shape, tile, strict=True)]
    computed = [count * size for count, size in zip(trips, tile, strict=True)]
    assert work.useful == m * n * k
    again = (computed[0] * computed[1] - m * n) * k
    assert work.redundant == again
    assert work.issued == prod(trips) * prod(ceil(size / BLOCK) * BLOCK for size in tile)
    assert work.padded == work.issued - m * n * k - again >= 0
    return kernel


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((32, 24, 16), (16, 8, 16)),  # divides: nothing but useful work
        ((30, 24, 16), (16, 8, 8)),  # two rows are computed twice
        ((21, 10, 13), (8, 10, 5)),  # overlaps, blocks that are not full, and zeros behind the end of the reduction
    ],
)
def test_the_three_add_up_to_what_is_issued(shape: tuple[int, int, int], tile: tuple[int, int, int]) -> None:
    judge(shape, tile)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_the_three_add_up_for_any_tile(seed: int) -> None:
    rng = Random(seed)
    shape = rng.randint(1, 40), rng.randint(1, 40), rng.randint(1, 40)
    judge(shape, (rng.randint(1, 40), rng.randint(1, 40), rng.randint(1, 40)))


def test_work_done_twice_is_not_useful_and_what_a_kernel_says_must_fit_what_it_does() -> None:
    _, module, kernel = simulated((30, 24, 16), (16, 8, 16))
    assert kernel.macs.issued == 32 * 24 * 16
    (function,) = machine_kernels(module)[1]
    # Rows that are stored twice take products, too; and there are not more than are done.
    for stated in (None, 32 * 24 * 16, 32 * 24 * 16 + 1):
        del function.attributes[MACS]
        if stated is not None:
            function.attributes[MACS] = IntegerAttr(stated, i64)
        (found,) = run_program(module).kernels
        assert (found.macs.useful, found.macs.redundant, found.macs.padded) == (None, None, None)
        function.attributes[MACS] = IntegerAttr(0, i64)
