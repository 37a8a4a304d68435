# SPDX-License-Identifier: Apache-2.0
"""What is proposed where buffers do not fit: which dims are one tile, and what it costs to cut them."""

from __future__ import annotations

import pytest
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.loop.repairs import TileClass, price_of_cut, tile_classes

PRODUCT = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func @main(%x: memref<64x32xf32>, %w: memref<32x16xf32>, %y: memref<64x16xf32>) {
  %zero = arith.constant 0 : index
  %end = arith.constant 64 : index
  %step = arith.constant 16 : index
  %b = mem.buffer : memref<32x16xf32, "spad">
  mem.copy %w to %b : memref<32x16xf32> to memref<32x16xf32, "spad">
  scf.for %i = %zero to %end step %step {
    %a = mem.buffer : memref<16x32xf32, "spad">
    %c = mem.buffer : memref<16x16xf32, "acc">
    mem.copy %x[%i, 0] to %a : memref<64x32xf32> to memref<16x32xf32, "spad">
    linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%a, %b : memref<16x32xf32, "spad">, memref<32x16xf32, "spad">) outs(%c : memref<16x16xf32, "acc">) {
    ^bb0(%p: f32, %q: f32, %r: f32):
      %s = arith.mulf %p, %q : f32
      %t = arith.addf %r, %s : f32
      linalg.yield %t : f32
    }
    %e = mem.buffer : memref<16x16xf32, "spad">
    mem.copy %c to %e : memref<16x16xf32, "acc"> to memref<16x16xf32, "spad">
    mem.copy %e to %y[%i, 0] : memref<16x16xf32, "spad"> to memref<64x16xf32>
  }
  func.return
}
"""

WINDOW = """
#image = affine_map<(o, k) -> (o * 2 + k)>
#filter = affine_map<(o, k) -> (k)>
#out = affine_map<(o, k) -> (o)>
func.func @main(%x: memref<33xf32>, %w: memref<3xf32>, %y: memref<16xf32>) {
  %a = mem.buffer : memref<33xf32, "spad">
  %b = mem.buffer : memref<3xf32, "spad">
  %c = mem.buffer : memref<16xf32, "spad">
  mem.copy %x to %a : memref<33xf32> to memref<33xf32, "spad">
  mem.copy %w to %b : memref<3xf32> to memref<3xf32, "spad">
  linalg.generic {indexing_maps = [#image, #filter, #out], iterator_types = ["parallel", "reduction"]}
      ins(%a, %b : memref<33xf32, "spad">, memref<3xf32, "spad">) outs(%c : memref<16xf32, "spad">) {
  ^bb0(%p: f32, %q: f32, %r: f32):
    %s = arith.mulf %p, %q : f32
    %t = arith.addf %r, %s : f32
    linalg.yield %t : f32
  }
  mem.copy %c to %y : memref<16xf32, "spad"> to memref<16xf32>
  func.return
}
"""


def classes(text: str) -> list[TileClass]:
    module: ModuleOp = parse_text(make_context(), SourceText("test.mlir", text)).module
    [main] = [op for op in module.ops if isinstance(op, func.FuncOp)]
    return tile_classes(main)


def shapes(tile: TileClass, size: int) -> dict[str, tuple[int, ...]]:
    return {op.results[0].name_hint or "": shape for op, shape in tile.cut(size).shapes.items()}


def test_a_dim_goes_through_products_and_copies_as_one() -> None:
    k, m, n = sorted(classes(PRODUCT), key=lambda tile: sorted(shapes(tile, tile.extent // 2)))
    assert shapes(k, 16) == {"a": (16, 16), "b": (16, 16)}
    assert shapes(m, 8) == {"a": (8, 32), "c": (8, 16), "e": (8, 16)}
    assert shapes(n, 8) == {"b": (32, 8), "c": (16, 8), "e": (16, 8)}


@pytest.mark.parametrize(
    ("extents", "size", "price"),
    [
        # tiles of m: a loop inside that over i, in which %b stays
        ({"a", "c", "e"}, 8, 0),
        # of n: inside, each round of i fetches all of %b again; outside, each part all of %x: 3 x 2048 < 8192 bytes
        ({"b", "c", "e"}, 8, 6144),
        # of k: inside, the same; outside, sums would be stored and fetched again
        ({"a", "b"}, 16, 6144),
        ({"a", "b"}, 8, 6144),
    ],
)
def test_the_loop_over_the_parts_stands_where_it_costs_least(extents: set[str], size: int, price: int) -> None:
    [tile] = [tile for tile in classes(PRODUCT) if set(shapes(tile, size)) == extents]
    assert price_of_cut(tile.cut(size)) == price


def test_the_parts_of_an_image_overlap_by_the_window() -> None:
    outputs, filters = classes(WINDOW)
    assert (outputs.extent, filters.extent) == (16, 3)
    # 8 outputs at a stride of 2 with a window of 3: 17 elements of the image
    assert shapes(outputs, 8) == {"a": (17,), "c": (8,)}
    # two parts of 17 instead of one of 33
    assert price_of_cut(outputs.cut(8)) == 4 * (2 * 17 - 33)
    assert shapes(filters, 2) == {"a": (32,), "b": (2,)}


def test_a_loop_whose_rounds_are_not_known_leaves_the_price_open() -> None:
    open_ended = PRODUCT.replace("%y: memref<64x16xf32>)", "%y: memref<64x16xf32>, %end: index)").replace(
        "  %end = arith.constant 64 : index\n", ""
    )
    assert [price_of_cut(tile.cut(8)) for tile in classes(open_ended)] == [None] * 3
