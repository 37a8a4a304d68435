# SPDX-License-Identifier: Apache-2.0
"""C for structured ops: run, and compared with the interpreter bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from in_c import FILL, agree, floats, generic, main, memref, needs_compiler
from numpy.typing import NDArray
from programs import verified

from penstock.lowering.codegen.nest import plan_nest
from penstock.lowering.to_c import emit_c
from penstock.passes.planning.register_blocks import Domain, is_injective, parallel_dims
from penstock.runtime.native import load_native

Array = NDArray[Any]


MULTIPLY_ADD = """^bb0(%left: f32, %right: f32, %sum: f32):
    %product = arith.mulf %left, %right : f32
    %total = arith.addf %sum, %product : f32
    linalg.yield %total : f32"""


def filled(name: str, shape: Sequence[int]) -> str:
    dims = ", ".join(f"d{n}" for n in range(len(shape)))
    return generic(dims, [dims], "p" * len(shape), [(name, memref(shape))], FILL)


# structured ops


def convolution(h: int, w: int, c: int, o: int, k: int, stride: int) -> str:
    x, f, y = (1, (h - 1) * stride + k, (w - 1) * stride + k, c), (k, k, c, o), (1, h, w, o)
    maps = [f"n, h * {stride} + p, w * {stride} + q, c", "p, q, c, o", "n, h, w, o"]
    operands = [("x", memref(x)), ("f", memref(f)), ("y", memref(y))]
    nest = generic("n, h, w, o, p, q, c", maps, "pppprrr", operands, MULTIPLY_ADD)
    return main(operands, filled("y", y) + "\n" + nest)


@pytest.mark.parametrize(
    ("h", "w", "c", "o", "k", "stride"),
    [
        (5, 9, 3, 40, 3, 1),  # rows with a rest, whole lanes
        (13, 13, 5, 67, 3, 2),  # rows and lanes with a rest
        (14, 14, 8, 64, 1, 1),  # rows and columns merged, packed
        (2, 15, 300, 32, 2, 1),  # a reduction that is cut between its dims
        (4, 8, 1200, 33, 1, 1),  # a reduction that is cut within a dim
        (1, 1, 7, 5, 3, 1),  # a single position
        (6, 6, 4, 1, 3, 1),  # a single channel
    ],
)
def test_a_convolution_sums_in_the_order_of_its_loops(h: int, w: int, c: int, o: int, k: int, stride: int) -> None:
    module = verified(convolution(h, w, c, o, k, stride))
    x, f = (np.empty(spec.shape, spec.dtype) for spec in emit_c(module).inputs)
    agree(module, [floats(*x.shape), floats(*f.shape)])


def test_a_product_with_a_transposed_operand_packs_it() -> None:
    m, n, k = 30, 45, 50
    operands = [("a", memref((m, k))), ("b", memref((n, k))), ("c", memref((m, n)))]
    nest = generic("m, n, k", ["m, k", "n, k", "m, n"], "ppr", operands, MULTIPLY_ADD)
    module = verified(main(operands, filled("c", (m, n)) + "\n" + nest))
    assert "panel0" in emit_c(module).source
    agree(module, [floats(m, k), floats(n, k)])


def test_a_depthwise_convolution_and_a_grouped_one() -> None:
    for groups, inner, outer in ((24, 1, 1), (3, 4, 8)):
        x, f, y = (6, 7, groups, inner), (3, 3, inner, groups, outer), (4, 5, groups, outer)
        maps = ["h + p, w + q, g, c", "p, q, c, g, o", "h, w, g, o"]
        operands = [("x", memref(x)), ("f", memref(f)), ("y", memref(y))]
        nest = generic("h, w, g, o, p, q, c", maps, "pppprrr", operands, MULTIPLY_ADD)
        agree(verified(main(operands, filled("y", y) + "\n" + nest)), [floats(*x), floats(*f)])


def test_a_maximum_over_windows_reads_only_the_shape_of_its_window() -> None:
    x, y = (9, 9, 20), (4, 4, 20)
    operands = [("x", memref(x)), ("win", "memref<3x3xf32, strided<[0, 0]>>"), ("y", memref(y))]
    body = """^bb0(%a: f32, %unread: f32, %acc: f32):
      %m = arith.maximumf %acc, %a : f32
      linalg.yield %m : f32"""
    nest = generic("h, w, c, p, q", ["h * 2 + p, w * 2 + q, c", "p, q", "h, w, c"], "ppprr", operands, body)
    cast = f"""%win = memref.reinterpret_cast %x to offset: [0], sizes: [3, 3], strides: [0, 0]
      : {memref(x)} to memref<3x3xf32, strided<[0, 0]>>"""
    arguments = [operands[0], operands[2]]
    agree(verified(main(arguments, f"{filled('y', y)}\n{cast}\n{nest}")), [floats(*x)])


def test_sums_along_the_contiguous_dim_and_of_everything() -> None:
    x = (37, 11)
    add = """^bb0(%a: f32, %acc: f32):
      %s = arith.addf %acc, %a : f32
      linalg.yield %s : f32"""
    rows = generic("i, j", ["i, j", "i"], "pr", [("x", memref(x)), ("y", memref((37,)))], add)
    everything = generic("i, j", ["i, j", ""], "rr", [("x", memref(x)), ("z", memref(()))], add)
    text = main(
        [("x", memref(x)), ("y", memref((37,))), ("z", memref(()))],
        "\n".join([filled("y", (37,)), filled("z", ()), rows, everything]),
        outputs=2,
    )
    agree(verified(text), [floats(*x)])


def test_two_outputs_that_depend_on_each_other_change_at_once() -> None:
    """The largest element of each row and its place."""
    body = """^bb0(%a: f32, %best: f32, %place: index):
      %j = linalg.index 1 : index
      %is = arith.cmpf ogt, %a, %best : f32
      %b = arith.select %is, %a, %best : f32
      %p = arith.select %is, %j, %place : index
      linalg.yield %b, %p : f32, index"""
    operands = [("x", memref((12, 9))), ("y", memref((12,))), ("z", memref((12,), "index"))]
    nest = generic("i, j", ["i, j", "i", "i"], "pr", operands, body, outputs=2)
    zero = """^bb0(%old: index):
    %zero = arith.constant 0 : index
    linalg.yield %zero : index"""
    start = generic("i", ["i"], "p", [operands[2]], zero)
    x = np.abs(floats(12, 9)) + 1
    best, place = agree(verified(main(operands, f"{filled('y', (12,))}\n{start}\n{nest}", outputs=2)), [x])
    np.testing.assert_array_equal(place, x.argmax(1))
    np.testing.assert_array_equal(best, x.max(1))


def test_elementwise_ops_follow_broadcast_transposed_strided_and_reversed_operands() -> None:
    body = """^bb0(%a: f32, %b: f32, %c: f32, %old: f32):
      %s = arith.addf %a, %b : f32
      %t = arith.mulf %s, %c : f32
      linalg.yield %t : f32"""
    operands = [("x", memref((6, 8))), ("y", memref((8,))), ("z", memref((16, 6))), ("o", memref((6, 8)))]
    nest = generic("i, j", ["i, j * -1 + 7", "j", "j * 2 + 1, i", "i, j"], "pp", operands, body)
    # A linear map may run backwards.
    agree(verified(main(operands, nest)), [floats(6, 8), floats(8), floats(16, 6)])


def test_a_buffer_named_after_a_function_of_the_c_library_does_not_hide_it() -> None:
    type = memref((5,), "f64")
    body = """^bb0(%a: f64, %old: f64):
    %r = math.exp %a : f64
    linalg.yield %r : f64"""
    nest = generic("i", ["i", "i"], "p", [("log", type), ("exp", type)], body)
    agree(verified(main([("log", type), ("exp", type)], nest)), [np.linspace(-1.0, 1.0, 5)])


def test_a_buffer_without_elements_has_a_place() -> None:
    empty, row = memref((3, 0)), memref((3,))
    body = """^bb0(%a: f32, %sum: f32):
    %total = arith.addf %sum, %a : f32
    linalg.yield %total : f32"""
    nest = f"%e = mem.buffer at 0 : {empty}\n{filled('e', (3, 0))}\n{filled('y', (3,))}\n"
    nest += generic("i, j", ["i, j", "i"], "pr", [("e", empty), ("y", row)], body)
    [found] = agree(verified(main([("y", row)], nest)), [])
    np.testing.assert_array_equal(found, np.full(3, 0.25, np.float32))


def test_maps_that_are_not_linear_are_evaluated_at_every_point() -> None:
    body = """^bb0(%a: f32, %old: f32):
      linalg.yield %a : f32"""
    operands = [("x", memref((3, 5))), ("o", memref((7, 10)))]
    nest = generic("i, j", ["i floordiv 3, j mod 5", "i, j"], "pp", operands, body)
    x = floats(3, 5)
    (out,) = agree(verified(main(operands, nest)), [x])
    np.testing.assert_array_equal(out, x[np.arange(7) // 3][:, np.arange(10) % 5])


def test_points_that_meet_in_one_output_keep_their_order() -> None:
    """out[i + j] = out * 0.5 + x[i, j]: neither dim is parallel."""
    body = """^bb0(%a: f32, %old: f32):
      %half = arith.constant 0.5 : f32
      %h = arith.mulf %old, %half : f32
      %s = arith.addf %h, %a : f32
      linalg.yield %s : f32"""
    operands = [("x", memref((5, 6))), ("o", memref((10,)))]
    nest = generic("i, j", ["i, j", "i + j"], "rr", operands, body)
    x = floats(5, 6)
    expected = np.full(10, 0.25, np.float32)
    for i in range(5):
        for j in range(6):
            expected[i + j] = expected[i + j] * np.float32(0.5) + x[i, j]
    needs_compiler()
    module = verified(main(operands, f"{filled('o', (10,))}\n{nest}"))
    np.testing.assert_array_equal(load_native(module).run([x])[0], expected)


def test_sixteen_bit_sums_are_rounded_after_every_step() -> None:
    for type in ("f16", "bf16"):
        body = MULTIPLY_ADD.replace("f32", type)
        operands = [("a", memref((20, 64), type)), ("b", memref((64, 40), type)), ("c", memref((20, 40), type))]
        nest = generic("m, n, k", ["m, k", "k, n", "m, n"], "ppr", operands, body)
        start = generic("m, n", ["m, n"], "pp", [operands[2]], FILL.replace("f32", type))
        module = verified(main(operands, f"{start}\n{nest}"))
        a, b = (floats(*spec.shape).astype(spec.dtype) for spec in emit_c(module).inputs)
        agree(module, [a, b])


def test_products_of_bytes_are_summed_in_32_bits() -> None:
    body = """^bb0(%left: i8, %right: i8, %acc: i32):
      %x = arith.extsi %left : i8 to i32
      %y = arith.extsi %right : i8 to i32
      %p = arith.muli %x, %y : i32
      %s = arith.addi %acc, %p : i32
      linalg.yield %s : i32"""
    zero = """^bb0(%old: i32):
      %z = arith.constant 2147483000 : i32
      linalg.yield %z : i32"""
    operands = [("a", memref((9, 70), "i8")), ("b", memref((70, 33), "i8")), ("c", memref((9, 33), "i32"))]
    nest = generic("m, n, k", ["m, k", "k, n", "m, n"], "ppr", operands, body)
    start = generic("m, n", ["m, n"], "pp", [operands[2]], zero)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (9, 70), np.int8), rng.integers(-128, 128, (70, 33), np.int8)
    agree(verified(main(operands, f"{start}\n{nest}")), [a, b])


def test_a_tile_of_dynamic_extent_is_computed() -> None:
    """The last of the tiles of 4 in 10 rows has 2."""
    dynamic = "memref<?x6xf32, strided<[6, 1], offset: ?>>"
    body = """^bb0(%a: f32, %old: f32):
      %d = arith.addf %a, %a : f32
      linalg.yield %d : f32"""
    nest = generic("i, j", ["i, j", "i, j"], "pp", [("xs", dynamic), ("os", dynamic)], body)
    views = "\n".join(
        f"%{n}s = memref.subview %{n}[%i, 0] [%size, 6] [1, 1] : {memref((10, 6))} to {dynamic}" for n in "xo"
    )
    text = main(
        [("x", memref((10, 6))), ("o", memref((10, 6)))],
        f"""%c0 = arith.constant 0 : index
        %c4 = arith.constant 4 : index
        %c10 = arith.constant 10 : index
        scf.for %i = %c0 to %c10 step %c4 {{
          %left = arith.subi %c10, %i : index
          %size = arith.minsi %left, %c4 : index
          {views}
          {nest}
        }}""",
    )
    x = floats(10, 6)
    (out,) = agree(verified(text), [x])
    np.testing.assert_array_equal(out, x + x)


def test_a_scalar_from_outside_and_a_scalar_operand_enter_a_body() -> None:
    body = """^bb0(%a: f32, %b: f32, %old: f32):
      %s = arith.addf %a, %b : f32
      %t = arith.mulf %s, %outside : f32
      linalg.yield %t : f32"""
    operands = [("x", memref((5,))), ("scalar", "f32"), ("o", memref((5,)))]
    nest = generic("i", ["i", "", "i"], "p", operands, body)
    load = f"""%c3 = arith.constant 3 : index
    %outside = memref.load %x[%c3] : {memref((5,))}
    %scalar = arith.negf %outside : f32"""
    agree(verified(main([operands[0], operands[2]], f"{load}\n{nest}")), [floats(5)])


# the plan of a nest


def test_the_lanes_are_contiguous_and_the_reduction_keeps_its_order() -> None:
    # y[h, w, o] += x[h + p, w + q, c] * f[p, q, c, o]
    extents = (8, 14, 64, 3, 3, 16)
    x, f, y = (16 * 16, 16, 0, 16 * 16, 16, 1), (0, 0, 1, 3 * 16 * 64, 16 * 64, 64), (14 * 64, 64, 1, 0, 0, 0)
    found = plan_nest(Domain(extents, (x, f, y), 1))
    assert found is not None
    assert found.lanes is not None
    assert found.lanes.loop.dims == (2,)
    assert found.rows is not None
    assert found.rows.loop.dims == (1,)
    assert [loop.dims for loop in found.sequential] == [(3,), (4, 5)]
    assert found.packed == 1


def test_an_indexed_dim_is_not_merged() -> None:
    contiguous = (6, 1)
    merged = plan_nest(Domain((4, 6), (contiguous, contiguous), 1))
    assert merged is not None
    assert merged.lanes is not None
    assert merged.lanes.loop.dims == (0, 1)
    kept = plan_nest(Domain((4, 6), (contiguous, contiguous), 1, frozenset([1])))
    assert kept is not None
    assert kept.lanes is not None
    assert kept.lanes.loop.dims == (1,)


def test_dims_that_meet_in_an_element_are_not_parallel() -> None:
    assert is_injective((6, 1), (4, 6))
    assert not is_injective((5, 1), (4, 6))
    assert is_injective((1, 0), (4, 1))
    assert parallel_dims(Domain((4, 6), ((6, 1), (1, 1)), 1)) is None
    assert parallel_dims(Domain((4, 6), ((6, 1), (1, 0)), 1)) == {0}
    assert parallel_dims(Domain((4, 6), ((6, 1), (1, 0), (0, 1)), 2)) is None


def test_what_is_outside_an_empty_source_is_padding() -> None:
    module = verified("""func.func @main(
        %x: memref<0x4xf32> {graph.input = "x"}, %y: memref<2x4xf32> {graph.output = "y"}
    ) {
      %c = arith.constant 7.0 : f32
      %i = arith.constant 0 : index
      mem.copy %x[%i, %i] to %y else %c : memref<0x4xf32> to memref<2x4xf32>
      func.return
    }""")
    (y,) = agree(module, [np.zeros((0, 4), np.float32)])
    assert np.array_equal(y, np.full((2, 4), 7, np.float32))
