# SPDX-License-Identifier: Apache-2.0
"""Structured ops on arrays: what each is refused for, and the paths that random ops rarely take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.generic import evaluate_generic
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.runtime.interpreter import contraction, run_function
from penstock.runtime.interpreter.generic import Evaluator

CONTEXT = make_context()


def module_of(text: str, *, verified: bool = True) -> ModuleOp:
    module = Parser(CONTEXT, text).parse_module()
    if verified:
        module.verify()
    return module


def generic_of(
    maps: list[str], iterators: str, types: list[str], body: str, outputs: int = 1, *, verified: bool = True
) -> GenericOp:
    """A generic on tensors: `iterators` has p or r for each loop, `body` names its arguments %0, %1, ..."""
    arguments = ", ".join(f"%a{number}: {type}" for number, type in enumerate(types))
    elements = [type.removesuffix(">").split("<")[1].split("x")[-1] for type in types]
    scalars = ", ".join(f"%s{number}: {element}" for number, element in enumerate(elements))
    inputs = len(types) - outputs
    names = [f"%a{number}" for number in range(len(types))]
    kinds = {"p": '"parallel"', "r": '"reduction"'}
    results = ", ".join(types[inputs:])
    ins = f"ins({', '.join(names[:inputs])} : {', '.join(types[:inputs])})" if inputs else ""
    text = f"""
    func.func @f({arguments}) {{
      %r:{outputs} = linalg.generic {{
        indexing_maps = [{", ".join(f"affine_map<{index_map}>" for index_map in maps)}],
        iterator_types = [{", ".join(kinds[kind] for kind in iterators)}]}}
        {ins} outs({", ".join(names[inputs:])} : {results}) {{
      ^bb0({scalars}):
        {body}
      }} -> {results}
      func.return
    }}"""
    module = module_of(text.replace("%r:1 ", "%r "), verified=verified)
    return next(op for op in module.walk() if isinstance(op, GenericOp))


MULTIPLY_ADD = "%p = arith.mulf %s0, %s1 : f32\n%t = arith.addf %s2, %p : f32\nlinalg.yield %t : f32"
CONVOLUTION = [
    "(n, h, w, o, kh, kw, c) -> (n, h * 2 + kh, w * 2 + kw * 2, c)",
    "(n, h, w, o, kh, kw, c) -> (kh, kw, c, o)",
    "(n, h, w, o, kh, kw, c) -> (n, h, w, o)",
]


def integers(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def convolution(x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """A convolution with stride 2 and dilation 1 by 2, the plain way."""
    kh, kw, _, channels = w.shape
    height, width = (x.shape[1] - kh) // 2 + 1, (x.shape[2] - 2 * (kw - 1) - 1) // 2 + 1
    out = np.zeros((x.shape[0], height, width, channels), x.dtype)
    for i in range(height):
        for j in range(width):
            window = x[:, 2 * i : 2 * i + kh, 2 * j : 2 * j + 2 * kw - 1 : 2]
            out[:, i, j] = np.einsum("nhwc,hwco->no", window, w)
    return out


def test_a_strided_dilated_convolution_is_that_of_its_windows() -> None:
    x, w = integers(0, 2, 9, 11, 5), integers(1, 3, 3, 5, 7)
    expected = convolution(x, w)
    shape = "x".join(str(size) for size in expected.shape)
    types = ["tensor<2x9x11x5xf32>", "tensor<3x3x5x7xf32>", f"tensor<{shape}xf32>"]
    op = generic_of(CONVOLUTION, "pppprrr", types, MULTIPLY_ADD)
    (found,) = evaluate_generic(op, [x, w, np.zeros(expected.shape, np.float32)])
    assert np.array_equal(found, expected)
    assert found.dtype == np.float32


def test_a_convolution_too_large_to_gather_loops_over_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contraction, "GATHER_LIMIT", 10)
    test_a_strided_dilated_convolution_is_that_of_its_windows()


def test_a_depthwise_convolution_is_done_by_loops_and_not_by_tiny_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a matrix product of one column")

    monkeypatch.setattr("penstock.runtime.interpreter.generic.contract", refuse)
    maps = ["(h, w, c, k) -> (h + k, w, c)", "(h, w, c, k) -> (k, c)", "(h, w, c, k) -> (h, w, c)"]
    op = generic_of(maps, "pppr", ["tensor<6x5x8xf32>", "tensor<3x8xf32>", "tensor<4x5x8xf32>"], MULTIPLY_ADD)
    x, w = integers(0, 6, 5, 8), integers(1, 3, 8)
    (found,) = evaluate_generic(op, [x, w, np.zeros((4, 5, 8), np.float32)])
    assert np.array_equal(found, sum(x[k : k + 4] * w[k] for k in range(3)))


def test_a_product_of_large_integers_wraps() -> None:
    body = "%p = arith.muli %s0, %s1 : i32\n%t = arith.addi %s2, %p : i32\nlinalg.yield %t : i32"
    maps = ["(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"]
    op = generic_of(maps, "ppr", ["tensor<2x3xi32>", "tensor<3x2xi32>", "tensor<2x2xi32>"], body)
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-(2**31), 2**31, shape).astype(np.int32) for shape in ((2, 3), (3, 2), (2, 2)))
    exact = c.astype(object) + a.astype(object) @ b.astype(object)
    wrapped = ((exact + 2**31) % 2**32 - 2**31).astype(np.int32)
    assert np.array_equal(evaluate_generic(op, [a, b, c])[0], wrapped)


def test_16_bit_sums_round_at_every_step() -> None:
    body = MULTIPLY_ADD.replace("f32", "f16")
    op = generic_of(["(k) -> (k)", "(k) -> (k)", "(k) -> ()"], "r", ["tensor<5xf16>"] * 2 + ["tensor<f16>"], body)
    a = np.array([2048, 1, 1, 1, 1], np.float16)
    (found,) = evaluate_generic(op, [a, np.ones(5, np.float16), np.zeros((), np.float16)])
    assert found == 2048  # 2049 is no f16; a wide accumulator would find 2052


def test_two_outputs_with_different_maps_see_the_same_points() -> None:
    body = """%q = arith.mulf %s0, %s0 : f32
      %m = arith.maximumf %s2, %s0 : f32
      linalg.yield %q, %m : f32, f32"""
    op = generic_of(
        ["(i, j) -> (i, j)", "(i, j) -> (i, j)", "(i, j) -> (i)"],
        "pr",
        ["tensor<3x4xf32>", "tensor<3x4xf32>", "tensor<3xf32>"],
        body,
        outputs=2,
    )
    x = integers(0, 3, 4)
    square, largest = evaluate_generic(op, [x, np.zeros_like(x), np.full(3, -np.inf, np.float32)])
    assert np.array_equal(square, x * x)
    assert np.array_equal(largest, x.max(axis=1))


def test_a_scattering_map_accumulates_where_points_collide() -> None:
    maps = ["(i, k) -> (i)", "(i, k) -> (k)", "(i, k) -> (i + k)"]
    op = generic_of(maps, "rr", ["tensor<4xf32>", "tensor<3xf32>", "tensor<6xf32>"], MULTIPLY_ADD)
    x, w = integers(0, 4), integers(1, 3)
    (found,) = evaluate_generic(op, [x, w, np.zeros(6, np.float32)])
    assert np.array_equal(found, np.convolve(x, w))


def test_a_fill_needs_no_inputs_and_reads_nothing() -> None:
    op = generic_of(["(i) -> (i)"], "p", ["tensor<3xf32>"], "%c = arith.constant 2.5 : f32\nlinalg.yield %c : f32")
    (found,) = evaluate_generic(op, [np.full(3, np.nan, np.float32)])
    assert found.tolist() == [2.5] * 3


def test_an_empty_domain_leaves_the_outputs() -> None:
    maps = ["(m, k) -> (m, k)", "(m, k) -> (m, k)", "(m, k) -> (m)"]
    op = generic_of(maps, "pr", ["tensor<2x0xf32>", "tensor<2x0xf32>", "tensor<2xf32>"], MULTIPLY_ADD)
    empty = np.zeros((2, 0), np.float32)
    (found,) = evaluate_generic(op, [empty, empty, np.array([3, 4], np.float32)])
    assert found.tolist() == [3, 4]


def test_a_map_that_leaves_its_operand_is_located() -> None:
    op = generic_of(
        ["(i) -> (i + 2)", "(i) -> (i)"],
        "p",
        ["tensor<?xf32>", "tensor<4xf32>"],
        "linalg.yield %s0 : f32",
    )
    with pytest.raises(UserError, match="operand 0 is indexed from 2 to 5 in dim 0, which has size 5"):
        evaluate_generic(op, [np.zeros(5, np.float32), np.zeros(4, np.float32)])


def test_operands_that_disagree_about_a_loop_are_refused() -> None:
    op = generic_of(["(i) -> (i)", "(i) -> (i)"], "p", ["tensor<?xf32>"] * 2, "linalg.yield %s0 : f32")
    with pytest.raises(UserError, match="loop 0 runs to 5"):
        evaluate_generic(op, [np.zeros(5, np.float32), np.zeros(4, np.float32)])


MIRROR = """
func.func @f(%a: memref<6xf32>) {
  %x = memref.subview %a[0] [5] [1] : memref<6xf32> to memref<5xf32, strided<[1]>>
  %y = memref.subview %a[1] [5] [1] : memref<6xf32> to memref<5xf32, strided<[1], offset: 1>>
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
    ins(%IN : memref<5xf32, LAYOUT>) outs(%y : memref<5xf32, strided<[1], offset: 1>>) {
  ^bb0(%s: f32, %t: f32):
    %r = arith.addf %s, %s : f32
    linalg.yield %r : f32
  }
  func.return
}"""


def test_an_output_may_be_an_input_that_is_indexed_alike() -> None:
    text = MIRROR.replace("%IN", "%y").replace("LAYOUT", "strided<[1], offset: 1>")
    a = np.arange(6, dtype=np.float32)
    run_function(module_of(text), "f", [a])
    assert a.tolist() == [0, 2, 4, 6, 8, 10]


def test_an_output_that_overlaps_an_input_otherwise_is_refused() -> None:
    text = MIRROR.replace("%IN", "%x").replace("LAYOUT", "strided<[1]>")
    with pytest.raises(UserError, match="operand 0 overlaps output 0"):
        run_function(module_of(text), "f", [np.zeros(6, np.float32)])


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        ("maximumf", np.nan, 1.0, np.nan),
        ("maxnumf", np.nan, 1.0, 1.0),
        ("minimumf", 1.0, np.nan, np.nan),
        ("minnumf", 1.0, np.nan, 1.0),
        ("maximumf", -0.0, 0.0, 0.0),
        ("maximumf", 0.0, -0.0, 0.0),
        ("maximumf", -0.0, -0.0, -0.0),
        ("minimumf", 0.0, -0.0, -0.0),
        ("minimumf", -0.0, 0.0, -0.0),
        ("minimumf", 0.0, 0.0, 0.0),
    ],
)
def test_maxima_and_minima_of_nan_and_of_zeros(op: str, a: float, b: float, expected: float) -> None:
    body = f"%r = arith.{op} %s0, %s1 : f32\nlinalg.yield %r : f32"
    generic = generic_of(["(i) -> (i)"] * 3, "p", ["tensor<1xf32>"] * 3, body)
    operands = [np.array([value], np.float32) for value in (a, b, 0)]
    found = float(evaluate_generic(generic, operands)[0][0])
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        ("divsi", -7, 2, -3),
        ("floordivsi", -7, 2, -4),
        ("ceildivsi", 7, 2, 4),
        ("divui", -1, 2, 127),
        ("remsi", -7, 2, -1),
        ("remui", -1, 16, 15),
        ("minui", -1, 1, 1),
        ("maxui", -1, 1, -1),
        ("minsi", -1, 1, -1),
        ("shli", 1, 7, -128),
        ("shli", 1, 8, 0),
        ("shrui", -1, 4, 15),
        ("shrsi", -128, 3, -16),
        ("shrsi", -1, 9, -1),
        ("addi", 127, 1, -128),
        ("muli", 64, 4, 0),
        ("xori", 5, 3, 6),
    ],
)
def test_signless_integers_mean_what_the_op_says(op: str, a: int, b: int, expected: int) -> None:
    body = f"%r = arith.{op} %s0, %s1 : i8\nlinalg.yield %r : i8"
    generic = generic_of(["(i) -> (i)"] * 3, "p", ["tensor<1xi8>"] * 3, body)
    operands = [np.array([value], np.int8) for value in (a, b, 0)]
    assert int(evaluate_generic(generic, operands)[0][0]) == expected


def test_integers_of_odd_width_wrap_at_their_width() -> None:
    body = "%r = arith.addi %s0, %s1 : i4\nlinalg.yield %r : i4"
    generic = generic_of(["(i) -> (i)"] * 3, "p", ["tensor<2xi4>"] * 3, body)
    operands = [np.array([7, -8], np.int8), np.array([1, -1], np.int8), np.zeros(2, np.int8)]
    assert evaluate_generic(generic, operands)[0].tolist() == [-8, 7]


def test_a_division_by_zero_is_located() -> None:
    body = "%r = arith.divsi %s0, %s1 : i8\nlinalg.yield %r : i8"
    generic = generic_of(["(i) -> (i)"] * 3, "p", ["tensor<1xi8>"] * 3, body)
    with pytest.raises(UserError, match="division by zero"):
        evaluate_generic(generic, [np.ones(1, np.int8), np.zeros(1, np.int8), np.zeros(1, np.int8)])


def test_a_fused_multiply_add_rounds_once() -> None:
    body = "%r = math.fma %s0, %s1, %s2 : f32\nlinalg.yield %r : f32"
    generic = generic_of(["(i) -> (i)"] * 4, "p", ["tensor<1xf32>"] * 4, body)
    # (1 + 2^-12)^2 - 1 = 2^-11 + 2^-24: the product alone would lose the last term
    a, c = np.array([1 + 2.0**-12], np.float32), np.array([-1], np.float32)
    assert evaluate_generic(generic, [a, a, c, np.zeros(1, np.float32)])[0][0] == 2.0**-11 + 2.0**-24


def test_an_operand_that_lends_its_shape_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = ["(i, k) -> (i + k)", "(i, k) -> (k)", "(i, k) -> (i)"]
    body = "%r = arith.maximumf %s2, %s0 : f32\nlinalg.yield %r : f32"
    op = generic_of(maps, "pr", ["tensor<6xf32>", "tensor<3xf32>", "tensor<4xf32>"], body)
    x = np.array([1, 5, 2, 0, 7, 3], np.float32)
    found = evaluate_generic(op, [x, np.full(3, np.nan, np.float32), np.full(4, -np.inf, np.float32)])[0]
    assert found.tolist() == [5, 5, 7, 7]


def test_a_body_with_control_flow_is_not_supported() -> None:
    body = """%c = arith.cmpf ogt, %s0, %s1 : f32
      %r = scf.if %c -> (f32) { scf.yield %s0 : f32 } else { scf.yield %s1 : f32 }
      linalg.yield %r : f32"""
    op = generic_of(["(i) -> (i)"] * 2, "p", ["tensor<1xf32>"] * 2, body)
    with pytest.raises(UserError, match=r"scf\.if has no elementwise meaning") as caught:
        evaluate_generic(op, [np.zeros(1, np.float32)] * 2)
    assert caught.value.status == 3


def test_an_evaluator_runs_over_a_part_of_its_operands() -> None:
    maps = ["(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"]
    op = generic_of(maps, "ppr", ["tensor<4x4xf32>"] * 3, MULTIPLY_ADD)
    a, b, c = integers(0, 4, 4), integers(1, 4, 4), np.zeros((4, 4), np.float32)
    evaluator = Evaluator(op, op.body.block, [attr.data for attr in op.indexing_maps], 1)
    evaluator.run([a, b, c], (2, 3, 4))
    assert np.array_equal(c[:2, :3], a[:2] @ b[:, :3])
    assert not c[2:].any()
    assert not c[:, 3:].any()
