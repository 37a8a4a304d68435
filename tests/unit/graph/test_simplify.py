# SPDX-License-Identifier: Apache-2.0
"""`simplify`: every rule fires where it may, keeps every bit of NaN, infinities and signed zeros, and refuses else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from tests.support.tensors import tensor_type_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from penstock.dialects import graph
from penstock.dialects.context import make_context
from penstock.dialects.graph import tensor_of
from penstock.dialects.weights import Array
from penstock.passes.graph.simplify import RULES
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

Make = Callable[..., Any]

F, INT, B = "tensor<3x8xf32>", "tensor<3x8xi32>", "tensor<3x8xi1>"
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-45], np.float32)
FLOATS = np.stack([SPECIAL, np.roll(SPECIAL, 3), SPECIAL * np.float32(0.3)])
INTS = np.array([[0, 1, -1, 7, -8, 2**31 - 1, -(2**31), 3]] * 3, np.int32)
BOOLS = FLOATS > 0
IMAGE = np.random.default_rng(0).integers(-4, 5, (2, 3, 4, 5)).astype(np.float32)
M = "tensor<2x3x4x5xf32>"


def bits(array: Array) -> bytes:
    """The bits, with one NaN for all."""
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return array.tobytes()


def simplified(make: Make, text: str, x: Array, **weights: Any) -> list[str]:
    """The names of what is left, of a program that computes the same bits."""
    program = make(text, **weights)
    (before,) = program.run(x)
    (after,) = program.after("simplify").run(x)
    assert bits(after) == bits(before)
    assert after.dtype == before.dtype
    assert after.shape == before.shape
    once = program.text
    assert program.after("simplify").text == once
    return [op.name.removeprefix("graph.") for op in program.ops()][:-1]


def unary(line: str, type: str) -> str:
    return f"func.func @main(%x: {type}) -> {type} {{ {line} func.return %y : {type} }}"


def with_number(op: str, number: str, type: str, *, first: bool = False, scalar: str | None = None) -> str:
    """x op number, or number op x."""
    element = f"tensor<{type.rstrip('>').split('x')[-1]}>"
    operands, types = ("%c, %x", f"{element}, {type}") if first else ("%x, %c", f"{type}, {element}")
    return unary(
        f"%c = graph.constant dense<{number}> : {element} %y = graph.{op} {operands} : ({types}) -> {type}", type
    )


GOES = [
    (with_number("add", "0", INT), INTS),
    (with_number("add", "0", INT, first=True), INTS),
    (with_number("add", "-0.0", F), FLOATS),
    (with_number("sub", "0", INT), INTS),
    (with_number("sub", "0.0", F), FLOATS),
    (with_number("mul", "1", INT), INTS),
    (with_number("mul", "1.0", F, first=True), FLOATS),
    (with_number("div", "1", INT), INTS),
    (with_number("div", "1.0", F), FLOATS),
    (with_number("pow", "1.0", F), FLOATS),
    (with_number("and", "true", B), BOOLS),
    (with_number("or", "false", B), BOOLS),
    (unary(f"%y = graph.identity %x : {F}", F), FLOATS),
    (unary(f"%a = graph.neg %x : {F} %y = graph.neg %a : {F}", F), FLOATS),
    (unary(f"%a = graph.not %x : {B} %y = graph.not %a : {B}", B), BOOLS),
    (unary(f"%y = graph.max %x, %x : ({F}, {F}) -> {F}", F), FLOATS),
    (unary(f"%y = graph.clip %x : {F}", F), FLOATS),
    (unary(f"%y = graph.cast %x : {F} -> {F}", F), FLOATS),
    (unary(f"%a = graph.cast %x : {F} -> tensor<3x8xf64> %y = graph.cast %a : tensor<3x8xf64> -> {F}", F), FLOATS),
    (unary(f"%a = graph.cast %x : {INT} -> tensor<3x8xf64> %y = graph.cast %a : tensor<3x8xf64> -> {INT}", INT), INTS),
    (unary(f"%y = graph.reshape %x : {F} -> {F}", F), FLOATS),
    (unary(f"%a = graph.reshape %x : {F} -> tensor<24xf32> %y = graph.reshape %a : tensor<24xf32> -> {F}", F), FLOATS),
    (unary(f"%y = graph.expand %x : {F} -> {F}", F), FLOATS),
    (unary(f"%y = graph.slice %x starts [0, 0] sizes [3, 8] steps [1, 1] : {F} -> {F}", F), FLOATS),
    (unary(f"%y = graph.pad %x pads [0, 0, 0, 0] : {F} -> {F}", F), FLOATS),
    (unary(f"%y = graph.concat %x axis 0 : ({F}) -> {F}", F), FLOATS),
    (unary(f"%y = graph.reduce_min %x axes [] : {F} -> {F}", F), FLOATS),
    (unary(f"%y = graph.reduce_sum %x axes [] : {INT} -> {INT}", INT), INTS),
    (unary(f"%c = graph.equal %x, %x : ({F}, {F}) -> {B}"
           f" %y = graph.where %c, %x, %x : ({B}, {F}, {F}) -> {F}", F), FLOATS),
    (
        unary(
            f"%a = graph.transpose %x perm [1, 0] : {F} -> tensor<8x3xf32>"
            f" %y = graph.transpose %a perm [1, 0] : tensor<8x3xf32> -> {F}",
            F,
        ),
        FLOATS,
    ),
    (
        unary(
            f"%a = graph.slice %x starts [0, 0] sizes [3, 5] steps [1, 1] : {F} -> tensor<3x5xf32>"
            f" %b = graph.slice %x starts [0, 5] sizes [3, 3] steps [1, 1] : {F} -> tensor<3x3xf32>"
            f" %y = graph.concat %a, %b axis 1 : (tensor<3x5xf32>, tensor<3x3xf32>) -> {F}",
            F,
        ),
        FLOATS,
    ),
    (
        unary(
            f"%a = graph.concat %x, %x axis 0 : ({F}, {F}) -> tensor<6x8xf32>"
            f" %y = graph.slice %a starts [3, 0] sizes [3, 8] steps [1, 1] : tensor<6x8xf32> -> {F}",
            F,
        ),
        FLOATS,
    ),
    (
        unary(
            f"%y = graph.max_pool %x kernel_shape [1, 1] strides [1, 1] pads [0, 0, 0, 0]"
            f" dilations [1, 1] : {M} -> {M}", M
        ),
        IMAGE,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "x"), GOES)
def test_what_computes_nothing_goes(make: Make, text: str, x: Array) -> None:
    assert simplified(make, text, x) == []


BECOMES = [
    (with_number("sub", "0", INT, first=True), INTS, ["neg"]),
    (with_number("mul", "0", INT), INTS, ["constant", "expand"]),
    (unary(f"%y = graph.sub %x, %x : ({INT}, {INT}) -> {INT}", INT), INTS, ["constant", "expand"]),
    (with_number("pow", "2.0", F), FLOATS, ["mul"]),
    (with_number("div", "8.0", F), FLOATS, ["constant", "mul"]),
    (unary(f"%a = graph.relu %x : {F} %y = graph.relu %a : {F}", F), FLOATS, ["relu"]),
    (unary(f"%a = graph.exp %x : {F} %y = graph.abs %a : {F}", F), FLOATS, ["exp"]),
    (unary(f"%a = graph.sigmoid %x : {F} %y = graph.relu %a : {F}", F), FLOATS, ["sigmoid"]),
    (unary(f"%a = graph.relu %x : {F} %y = graph.clip %a max 6.0 : {F}", F), FLOATS, ["clip"]),
    (unary(f"%a = graph.clip %x min -1.0 max 6.0 : {F} %y = graph.relu %a : {F}", F), FLOATS, ["clip"]),
    (unary(f"%a = graph.clip %x min 0.0 : {F} %y = graph.clip %a min -3.0 : {F}", F), FLOATS, ["clip"]),
    (
        unary(f"%a = graph.cast %x : {INT} -> tensor<3x8xi64> %b = graph.cast %a : tensor<3x8xi64> -> tensor<3x8xi8>"
              f" %y = graph.cast %b : tensor<3x8xi8> -> {INT}", INT), INTS, ["cast", "cast"],
    ),
    (
        unary(f"%z = graph.constant dense<0.0> : tensor<f32> %a = graph.abs %x : {F}"
              f" %y = graph.add %a, %z : ({F}, tensor<f32>) -> {F}", F), FLOATS, ["abs"],
    ),
    (
        unary(f"%c = graph.constant dense<3> : tensor<i32>"
              f" %d = graph.constant dense<[[1], [2], [3]]> : tensor<3x1xi32>"
              f" %a = graph.add %c, %x : (tensor<i32>, {INT}) -> {INT}"
              f" %y = graph.add %a, %d : ({INT}, tensor<3x1xi32>) -> {INT}", INT), INTS,
        ["constant", "constant", "add", "add"],
    ),
    (
        unary(f"%c = graph.constant dense<3.0> : tensor<f32> %e = graph.expand %c : tensor<f32> -> {F}"
              f" %y = graph.add %x, %e : ({F}, {F}) -> {F}", F), FLOATS, ["constant", "add"],
    ),
    (
        f"func.func @main(%x: {F}) -> tensor<1x3x8x1xf32> {{ %a = graph.reshape %x : {F} -> tensor<3x8x1x1xf32>"
        " %y = graph.transpose %a perm [2, 0, 1, 3] : tensor<3x8x1x1xf32> -> tensor<1x3x8x1xf32>"
        " func.return %y : tensor<1x3x8x1xf32> }", FLOATS, ["reshape"],
    ),
    (
        f"func.func @main(%x: {F}) -> tensor<2x2xf32> {{"
        f" %a = graph.slice %x starts [2, 7] sizes [3, 3] steps [-1, -2] : {F} -> tensor<3x3xf32>"
        " %y = graph.slice %a starts [0, 1] sizes [2, 2] steps [2, 1] : tensor<3x3xf32> -> tensor<2x2xf32>"
        " func.return %y : tensor<2x2xf32> }", FLOATS, ["slice"],
    ),
    (
        f"func.func @main(%x: {F}) -> tensor<6x10xf32> {{"
        f" %a = graph.pad %x pads [1, 0, 0, 1] value 2.0 : {F} -> tensor<4x9xf32>"
        " %y = graph.pad %a pads [0, 1, 2, 0] value 2.0 : tensor<4x9xf32> -> tensor<6x10xf32>"
        " func.return %y : tensor<6x10xf32> }", FLOATS, ["pad"],
    ),
    (
        f"func.func @main(%x: {F}) -> tensor<9x8xf32> {{"
        f" %a = graph.concat %x, %x axis 0 : ({F}, {F}) -> tensor<6x8xf32>"
        f" %y = graph.concat %a, %x axis 0 : (tensor<6x8xf32>, {F}) -> tensor<9x8xf32>"
        " func.return %y : tensor<9x8xf32> }", FLOATS, ["concat"],
    ),
    (
        "func.func @main(%x: tensor<3x8x1xf32>) -> tensor<3x8xf32> {"
        " %y = graph.reduce_max %x axes [2] keepdims false : tensor<3x8x1xf32> -> tensor<3x8xf32>"
        " func.return %y : tensor<3x8xf32> }", FLOATS[:, :, None], ["reshape"],
    ),
    (
        "func.func @main(%x: tensor<3x8x1xf32>) -> tensor<3xf32> {"
        " %y = graph.reduce_max %x axes [1, 2] keepdims false : tensor<3x8x1xf32> -> tensor<3xf32>"
        " func.return %y : tensor<3xf32> }", FLOATS[:, :, None], ["reduce_max"],
    ),
    (
        f"func.func @main(%x: {M}) -> tensor<2x3x5x5xf32> {{"
        " %y = graph.max_pool %x kernel_shape [1, 1] strides [1, 1] pads [1, 0, 0, 0]"
        f" dilations [1, 1] : {M} -> tensor<2x3x5x5xf32>"
        " func.return %y : tensor<2x3x5x5xf32> }", IMAGE, ["max_pool"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "x", "left"), BECOMES)
def test_what_can_be_said_with_less_is(make: Make, text: str, x: Array, left: list[str]) -> None:
    assert simplified(make, text, x) == left


STAYS = [
    (with_number("add", "0.0", F), FLOATS, ["constant", "add"]),
    (with_number("sub", "-0.0", F), FLOATS, ["constant", "sub"]),
    (with_number("sub", "0.0", F, first=True), FLOATS, ["constant", "sub"]),
    (with_number("mul", "0.0", F), FLOATS, ["constant", "mul"]),
    (with_number("div", "3.0", F), FLOATS, ["constant", "div"]),
    (with_number("pow", "0.5", F), FLOATS, ["constant", "pow"]),
    (unary(f"%y = graph.sub %x, %x : ({F}, {F}) -> {F}", F), FLOATS, ["sub"]),
    (unary(f"%a = graph.cast %x : {F} -> tensor<3x8xf16> %y = graph.cast %a : tensor<3x8xf16> -> {F}", F), FLOATS,
     ["cast", "cast"]),
    (unary(f"%a = graph.cast %x : {INT} -> tensor<3x8xf32> %y = graph.cast %a : tensor<3x8xf32> -> {INT}", INT),
     INTS // 2,
     ["cast", "cast"]),
    (unary(f"%a = graph.exp %x : {F} %y = graph.neg %a : {F}", F), FLOATS, ["exp", "neg"]),
    (
        unary(f"%c = graph.constant dense<1.0> : tensor<f32> %a = graph.add %x, %c : ({F}, tensor<f32>) -> {F}"
              f" %y = graph.add %a, %c : ({F}, tensor<f32>) -> {F}", F), FLOATS, ["constant", "add", "add"],
    ),
    (
        unary(f"%t = graph.transpose %x perm [1, 0] : {F} -> tensor<8x3xf32> %r = graph.relu %t : tensor<8x3xf32>"
              f" %y = graph.reshape %r : tensor<8x3xf32> -> {F}", F), FLOATS, ["transpose", "relu", "reshape"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "x", "left"), STAYS)
def test_what_would_change_a_bit_or_gain_nothing_stays(make: Make, text: str, x: Array, left: list[str]) -> None:
    assert simplified(make, text, x) == left


# biases and pads

IN, OUT = "tensor<1x3x6x6xf32>", "tensor<1x4x4x4xf32>"
WEIGHTS = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
PHOTO = np.random.default_rng(2).standard_normal((1, 3, 6, 6)).astype(np.float32)
CONV = f"""
  %w = graph.constant #graph.weight<"w"> : tensor<4x3x3x3xf32>
  %c = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] : ({IN}, tensor<4x3x3x3xf32>) -> {OUT}
"""


@pytest.mark.parametrize(
    ("shape", "left"),
    [
        ((4, 1, 1), ["constant", "constant", "reshape", "conv"]),
        ((1, 4, 1, 1), ["constant", "constant", "reshape", "conv"]),
        ((1,), ["constant", "constant", "reshape", "expand", "conv"]),
        ((4,), ["constant", "constant", "conv", "add"]),
        ((4, 4, 4), ["constant", "constant", "conv", "add"]),
    ],
)
def test_a_constant_for_each_channel_becomes_the_bias_of_a_convolution(
    make: Make, shape: tuple[int, ...], left: list[str]
) -> None:
    words = "x".join(map(str, shape))
    text = f"""func.func @main(%x: {IN}) -> {OUT} {{ {CONV}
      %b = graph.constant #graph.weight<"b"> : tensor<{words}xf32>
      %y = graph.add %b, %c : (tensor<{words}xf32>, {OUT}) -> {OUT}
      func.return %y : {OUT}
    }}"""
    b = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    assert sorted(simplified(make, text, PHOTO, w=WEIGHTS, b=b)) == sorted(left)


def test_a_second_float_bias_is_not_added_to_the_first(make: Make) -> None:
    text = f"""func.func @main(%x: {IN}) -> {OUT} {{ {CONV}
      %b = graph.constant #graph.weight<"b"> : tensor<4x1x1xf32>
      %s = graph.add %c, %b : ({OUT}, tensor<4x1x1xf32>) -> {OUT}
      %y = graph.add %s, %b : ({OUT}, tensor<4x1x1xf32>) -> {OUT}
      func.return %y : {OUT}
    }}"""
    b = np.full((4, 1, 1), 0.1, np.float32)
    left = simplified(make, text, PHOTO, w=WEIGHTS, b=b)
    assert (left.count("conv"), left.count("add")) == (1, 1)


def test_a_padded_image_is_padded_by_the_convolution(make: Make) -> None:
    text = f"""func.func @main(%x: {IN}) -> tensor<1x4x7x6xf32> {{
      %w = graph.constant #graph.weight<"w"> : tensor<4x3x3x3xf32>
      %p = graph.pad %x pads [0, 0, 1, 0, 0, 0, 2, 1] : {IN} -> tensor<1x3x9x7xf32>
      %y = graph.conv %p, %w strides [1, 1] pads [0, 1, 0, 0] dilations [1, 1]
          : (tensor<1x3x9x7xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x7x6xf32>
      func.return %y : tensor<1x4x7x6xf32>
    }}"""
    assert simplified(make, text, PHOTO, w=WEIGHTS) == ["constant", "conv"]


@pytest.mark.parametrize("product", ["matmul %x, %w", "gemm %x, %w alpha 0.3"])
def test_a_constant_added_to_a_matrix_product_becomes_its_addend(make: Make, product: str) -> None:
    text = f"""func.func @main(%x: tensor<3x8xf32>) -> tensor<3x5xf32> {{
      %w = graph.constant #graph.weight<"w"> : tensor<8x5xf32>
      %b = graph.constant #graph.weight<"b"> : tensor<5xf32>
      %p = graph.{product} : (tensor<3x8xf32>, tensor<8x5xf32>) -> tensor<3x5xf32>
      %y = graph.add %b, %p : (tensor<5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
      func.return %y : tensor<3x5xf32>
    }}"""
    rng = np.random.default_rng(3)
    w, b = rng.standard_normal((8, 5)), rng.standard_normal(5)
    x = rng.standard_normal((3, 8)).astype(np.float32)
    assert simplified(make, text, x, w=w, b=b) == ["constant", "constant", "gemm"]


# transposes


def test_transposes_meet_through_what_stands_between(make: Make) -> None:
    text = f"""func.func @main(%x: {M}) -> {M} {{
      %b = graph.constant #graph.weight<"b"> : tensor<3xf32>
      %t = graph.transpose %x perm [0, 2, 3, 1] : {M} -> tensor<2x4x5x3xf32>
      %a = graph.add %t, %b : (tensor<2x4x5x3xf32>, tensor<3xf32>) -> tensor<2x4x5x3xf32>
      %p = graph.pad %a pads [0, 1, 0, 0, 0, 0, 1, 0] : tensor<2x4x5x3xf32> -> tensor<2x5x6x3xf32>
      %s = graph.slice %p starts [0, 1, 0, 0] sizes [2, 4, 5, 3] steps [1, 1, 1, 1]
          : tensor<2x5x6x3xf32> -> tensor<2x4x5x3xf32>
      %m = graph.softmax %s axis 3 : tensor<2x4x5x3xf32> -> tensor<2x4x5x3xf32>
      %y = graph.transpose %m perm [0, 3, 1, 2] : tensor<2x4x5x3xf32> -> {M}
      func.return %y : {M}
    }}"""
    left = simplified(make, text, IMAGE, b=[1, 2, 3])
    assert left == ["constant", "reshape", "add", "pad", "slice", "softmax"]


def test_two_transposes_that_meet_in_a_sum_are_one_behind_it(make: Make) -> None:
    text = f"""func.func @main(%x: {F}) -> tensor<8x3xf32> {{
      %r = graph.relu %x : {F}
      %s = graph.transpose %x perm [1, 0] : {F} -> tensor<8x3xf32>
      %t = graph.transpose %r perm [1, 0] : {F} -> tensor<8x3xf32>
      %y = graph.add %s, %t : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<8x3xf32>
      func.return %y : tensor<8x3xf32>
    }}"""
    assert simplified(make, text, FLOATS) == ["relu", "add", "transpose"]


@pytest.mark.parametrize("keepdims", ["true", "false"])
def test_a_transpose_is_smaller_behind_a_reduction(make: Make, keepdims: str) -> None:
    result = "tensor<5x1x2x3xf32>" if keepdims == "true" else "tensor<5x2x3xf32>"
    text = f"""func.func @main(%x: {M}) -> {result} {{
      %t = graph.transpose %x perm [3, 2, 0, 1] : {M} -> tensor<5x4x2x3xf32>
      %y = graph.reduce_max %t axes [1] keepdims {keepdims} : tensor<5x4x2x3xf32> -> {result}
      func.return %y : {result}
    }}"""
    assert simplified(make, text, IMAGE) == ["reduce_max", "transpose"]


def test_a_transpose_that_someone_else_needs_stays(make: Make) -> None:
    text = f"""func.func @main(%x: {F}) -> (tensor<8x3xf32>) {{
      %t = graph.transpose %x perm [1, 0] : {F} -> tensor<8x3xf32>
      %r = graph.relu %t : tensor<8x3xf32>
      %u = graph.transpose %r perm [1, 0] : tensor<8x3xf32> -> {F}
      %v = graph.reshape %u : {F} -> tensor<8x3xf32>
      %w = graph.reshape %t : tensor<8x3xf32> -> tensor<24xf32>
      %z = graph.reshape %w : tensor<24xf32> -> tensor<8x3xf32>
      %y = graph.add %v, %z : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<8x3xf32>
      func.return %y : tensor<8x3xf32>
    }}"""
    assert simplified(make, text, FLOATS).count("transpose") == 2


def test_an_order_of_terms_is_not_turned_around(make: Make) -> None:
    text = f"""func.func @main(%x: {M}) -> tensor<4x2x1x1xf32> {{
      %t = graph.transpose %x perm [2, 0, 3, 1] : {M} -> tensor<4x2x5x3xf32>
      %y = graph.reduce_sum %t axes [2, 3] : tensor<4x2x5x3xf32> -> tensor<4x2x1x1xf32>
      func.return %y : tensor<4x2x1x1xf32>
    }}"""
    assert simplified(make, text, IMAGE) == ["transpose", "reduce_sum"]


# all of them together

OPS: list[Callable[[SSAValue, SSAValue], graph.GraphOp]] = [
    lambda x, c: graph.TransposeOp(x, perm=[1, 2, 0]),
    lambda x, c: graph.TransposeOp(x, perm=[1, 0, 2]),
    lambda x, c: graph.ReshapeOp(x, [*tensor_of(x).get_shape()[::-1]]),
    lambda x, c: graph.ReluOp(x),
    lambda x, c: graph.NegOp(x),
    lambda x, c: graph.AbsOp(x),
    lambda x, c: graph.ClipOp(x, min=-3, max=5),
    lambda x, c: graph.AddOp(x, c),
    lambda x, c: graph.AddOp(c, x),
    lambda x, c: graph.SubOp(x, c),
    lambda x, c: graph.MulOp(x, c),
    lambda x, c: graph.MaxOp(x, c),
    lambda x, c: graph.MinOp(c, x),
    lambda x, c: graph.PadOp(x, pads=[1, 0, 0, 0, 0, 1]),
    lambda x, c: graph.SliceOp(x, starts=[0, 0, 0], sizes=[max(1, size - 1) for size in tensor_of(x).get_shape()]),
    lambda x, c: graph.ReduceMaxOp(x, axes=[1]),
    lambda x, c: graph.ReduceSumOp(x, axes=[0]),
    lambda x, c: graph.ConcatOp([x, x], axis=2),
    lambda x, c: graph.CastOp(x, tensor_of(c).element_type),
]  # fmt: skip


@examples(60)
@given(data=st.data())
def test_random_programs_keep_their_bits(data: st.DataObject) -> None:
    array = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-6, 7, (2, 3, 4)).astype(np.float32)
    array[0, 0] = [np.nan, np.inf, -0.0, 0.0]
    block = Block(arg_types=[tensor_type_of(array)])
    values: list[SSAValue] = [block.args[0]]
    constants: list[SSAValue] = []
    for number in (0.0, -0.0, 1.0, -2.0):
        op = graph.ConstantOp(graph.dense_of(np.asarray(number, np.float32)))  # type: ignore
        block.add_op(op)
        constants.append(op.result)
    for _ in range(data.draw(st.integers(1, 10))):
        # Mostly a chain, along which rules meet.
        x = values[-1] if data.draw(st.integers(0, 4)) else data.draw(st.sampled_from(values))
        alike = [value for value in values if value.type == x.type]
        c = data.draw(st.sampled_from([*constants, *alike]))
        op = data.draw(st.sampled_from(OPS))(x, c)
        if np.prod(tensor_of(op.result).get_shape()) <= 512:
            block.add_op(op)
            values.append(op.result)
    results = [values[-1], data.draw(st.sampled_from(values))]
    block.add_op(ReturnOp(*results))
    types = [argument.type for argument in block.args], [value.type for value in results]
    module = ModuleOp([FuncOp("main", types, Region(block))])
    ctx = make_context()
    with np.errstate(invalid="ignore"):
        before = run_graph(module, [array], ctx.weights)
        run_passes(ctx, module, read_pipeline("simplify"))
        after = run_graph(module, [array], ctx.weights)
    assert [bits(each) for each in after] == [bits(each) for each in before]
    once = str(module)
    run_passes(ctx, module, read_pipeline("simplify"))
    assert str(module) == once


def test_every_rule_is_for_an_op_of_the_dialect() -> None:
    assert {op_class.name for op_class in RULES} <= {op_class.name for op_class in graph.OPS}
