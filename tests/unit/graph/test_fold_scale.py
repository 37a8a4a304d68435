# SPDX-License-Identifier: Apache-2.0
"""`fold-scale`: products and sums with constants go into weights, or become one of each; values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sampling import sweep

from penstock.dialects import graph
from penstock.dialects.weights import Array

Make = Callable[..., Any]

PIPELINE = "fold-scale,fold-constants"


def integers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def weight(name: str, shape: str) -> str:
    return f'%{name} = graph.constant #graph.weight<"{name}"> : tensor<{shape}xf32>'


def affine(first: str, last: str, type: str, vector: str, *steps: str) -> str:
    """`first` through steps such as "mul s", "add t" with vectors, to `last`."""
    lines: list[str] = []
    before = first
    for number, step in enumerate(steps):
        op, name = step.split()
        after = last if number == len(steps) - 1 else f"{last}{number}"
        lines.append(f"%{after} = graph.{op} %{before}, %{name} : ({type}, tensor<{vector}xf32>) -> {type}")
        before = after
    return "\n".join(lines)


LAYOUTS = [
    ("NCHW", "tensor<1x3x6x6xf32>", "4x3x3x3", "tensor<1x4x4x4xf32>", "4x1x1", (4, 1, 1)),
    ("NHWC", "tensor<1x6x6x3xf32>", "3x3x3x4", "tensor<1x4x4x4xf32>", "4", (4,)),
]


@pytest.mark.parametrize(("layout", "x", "w", "y", "vector", "shape"), LAYOUTS)
@pytest.mark.parametrize("bias", [False, True])
def test_scales_and_shifts_go_into_a_convolution(
    make: Make, layout: str, x: str, w: str, y: str, vector: str, shape: tuple[int, ...], bias: bool
) -> None:
    b_type = ", tensor<4xf32>" if bias else ""
    text = f"""func.func @main(%x: {x}) -> {y} {{
      {weight("w", w)} {weight("b", "4")} {weight("s", vector)} {weight("t", vector)}
      %c = graph.conv %x, %w{", %b" if bias else ""} strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] layout "{layout}"
          : ({x}, tensor<{w}xf32>{b_type}) -> {y}
      {affine("c", "y", y, vector, "mul s", "add t", "mul t", "add s")}
      func.return %y : {y}
    }}"""
    sizes = [int(size) for size in w.split("x")]
    weights = {"w": integers(*sizes, seed=1), "b": integers(4, seed=2)}
    weights |= {"s": integers(*shape, seed=3), "t": integers(*shape, seed=4)}
    program = make(text, **weights)
    program.assert_kept(PIPELINE, integers(*(int(size) for size in x[7:-5].split("x"))))
    assert [op.name for op in program.ops()] == ["graph.constant"] * 2 + ["graph.conv", "func.return"]


def test_every_group_of_a_grouped_convolution_gets_its_own_scales(make: Make) -> None:
    x, y = "tensor<1x4x5x5xf32>", "tensor<1x4x3x3xf32>"
    text = f"""func.func @main(%x: {x}) -> {y} {{
      {weight("w", "4x1x3x3")} {weight("s", "4x1x1")}
      %c = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] group 4
          : ({x}, tensor<4x1x3x3xf32>) -> {y}
      {affine("c", "y", y, "4x1x1", "mul s")}
      func.return %y : {y}
    }}"""
    program = make(text, w=integers(4, 1, 3, 3, seed=1), s=integers(4, 1, 1, seed=2))
    program.assert_kept(PIPELINE, integers(1, 4, 5, 5))
    assert program.count(graph.MulOp) == 0


@pytest.mark.parametrize(
    ("product", "a", "w", "y"),
    [
        ("gemm %x, %w, %c alpha 2.0 trans_b true", "3x8", "5x8", "3x5"),
        ("gemm %x, %w, %c beta 3.0", "3x8", "8x5", "3x5"),
        ("matmul %x, %w", "3x8", "8x5", "3x5"),
        ("matmul %x, %w", "2x3x8", "8x5", "2x3x5"),
        ("matmul %x, %w", "8", "8x5", "5"),
    ],
)
def test_scales_go_into_the_matrix(make: Make, product: str, a: str, w: str, y: str) -> None:
    c = ", tensor<5xf32>" if "%c" in product else ""
    text = f"""func.func @main(%x: tensor<{a}xf32>) -> tensor<{y}xf32> {{
      {weight("w", w)} {weight("c", "5")} {weight("s", "5")}
      %p = graph.{product} : (tensor<{a}xf32>, tensor<{w}xf32>{c}) -> tensor<{y}xf32>
      %y = graph.mul %s, %p : (tensor<5xf32>, tensor<{y}xf32>) -> tensor<{y}xf32>
      func.return %y : tensor<{y}xf32>
    }}"""
    shape = [int(size) for size in w.split("x")]
    program = make(text, w=integers(*shape, seed=1), c=integers(5, seed=2), s=integers(5, seed=3))
    program.assert_kept(PIPELINE, integers(*(int(size) for size in a.split("x"))))
    assert program.count(graph.MulOp) == 0


def test_a_scale_a_shift_a_scale_and_a_shift_are_one_of_each(make: Make) -> None:
    x = "tensor<1x4x3x3xf32>"
    text = f"""func.func @main(%x: {x}) -> {x} {{
      {weight("s", "4x1x1")} {weight("t", "4x1x1")}
      {affine("x", "y", x, "4x1x1", "mul s", "add t", "mul t", "add s")}
      func.return %y : {x}
    }}"""
    program = make(text, s=integers(4, 1, 1, seed=1), t=integers(4, 1, 1, seed=2))
    program.assert_kept(PIPELINE, integers(1, 4, 3, 3))
    assert [op.name for op in program.ops() if not isinstance(op, graph.ConstantOp)] == [
        "graph.mul",
        "graph.add",
        "func.return",
    ]


@pytest.mark.parametrize(
    ("vector", "more"),
    [("4x4x4", ""), ("1x4", ""), ("4x1x1", "%u = graph.relu %c : tensor<1x4x4x4xf32>")],
    ids=["each element", "along another axis", "another use"],
)
def test_what_is_not_a_number_for_each_channel_of_one_product_stays(make: Make, vector: str, more: str) -> None:
    x, y = "tensor<1x3x6x6xf32>", "tensor<1x4x4x4xf32>"
    result = "%u" if more else "%y"
    text = f"""func.func @main(%x: {x}) -> ({y}, {y}) {{
      {weight("w", "4x3x3x3")} {weight("s", vector)}
      %c = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] : ({x}, tensor<4x3x3x3xf32>) -> {y}
      {more}
      {affine("c", "y", y, vector, "mul s")}
      func.return %y, {result} : {y}, {y}
    }}"""
    s = integers(*(int(size) for size in vector.split("x")), seed=2)
    program = make(text, w=integers(4, 3, 3, 3, seed=1), s=s)
    program.assert_kept(PIPELINE, integers(1, 3, 6, 6))
    assert program.count(graph.MulOp) == 1


def number(rng: np.random.Generator) -> np.float32:
    """Of any magnitude, often near the ends of the range."""
    exponent = rng.choice([rng.uniform(-148, 128), rng.uniform(100, 128), rng.uniform(-148, -100), rng.uniform(-3, 3)])
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(rng.choice([-1, 1]) * 2.0**exponent)


@pytest.mark.parametrize(("product", "count"), sweep(
    [(product, count) for product in ("none", "matmul", "gemm") for count in (100, 3_000)],
    quick=lambda case: case[1] == 100,
))  # fmt: skip
def test_a_result_in_range_stays_where_a_product_of_the_constants_is_not(make: Make, product: str, count: int) -> None:
    rng = np.random.default_rng(0)
    smallest, largest, compared, folds = 2.0**-126, 2.0**127, 0, 0
    for _ in range(count):
        names = ["s", "t", "u", "v"][: rng.integers(2, 5)]
        kinds = [str(rng.choice(["mul", "mul", "add"])) for _ in names]
        values = {name: np.array([number(rng)]) for name in (*names, "c")}
        alpha = float(np.float32(2.0 ** rng.integers(-60, 60))) if rng.random() < 0.5 else 1.0
        w = np.clip(number(rng) * 2.0 ** rng.uniform(-6, 6, (3, 1)), -largest, largest).astype(np.float32)
        x = np.array([[number(rng)]]) if product == "none" else number(rng) * rng.uniform(0, 1, (1, 3))
        x = x.astype(np.float32)
        first = {
            "none": "",
            "matmul": "%p = graph.matmul %x, %w : (tensor<1x3xf32>, tensor<3x1xf32>) -> tensor<1x1xf32>",
            "gemm": f"%p = graph.gemm %x, %w, %c alpha {alpha:e} : "
            "(tensor<1x3xf32>, tensor<3x1xf32>, tensor<1xf32>) -> tensor<1x1xf32>",
        }[product]
        steps = affine(
            "p" if first else "x", "y", "tensor<1x1xf32>", "1", *map(" ".join, zip(kinds, names, strict=True))
        )
        text = f"""func.func @main(%x: tensor<1x{x.size}xf32>) -> tensor<1x1xf32> {{
          {weight("w", "3x1")} {weight("c", "1")} {" ".join(weight(name, "1") for name in names)}
          {first} {steps}
          func.return %y : tensor<1x1xf32>
        }}"""
        # The terms of the result, how large they are, all that is computed on the way, and that without signs. A
        # weight that underflows is off by a small part of the largest of its channel.
        terms = np.float64(x[0]) * np.float64(w[:, 0]) if first else np.float64(x[0])
        sizes = np.abs(np.float64(x[0])) * np.abs(np.float64(w)).max() if first else np.abs(terms)
        exact = [terms.sum(), sizes.sum()]
        if product == "gemm":
            terms, sizes = np.append(terms * alpha, values["c"]), np.append(sizes * alpha, np.abs(values["c"]))
            exact += [terms[:-1].sum(), terms.sum(), sizes.sum()]
        for kind, name in zip(kinds, names, strict=True):
            scale = np.float64(values[name])
            terms = terms * scale if kind == "mul" else np.append(terms, scale)
            sizes = sizes * np.abs(scale) if kind == "mul" else np.append(sizes, np.abs(scale))
            exact += [terms.sum(), sizes.sum()]
        if not all(smallest <= abs(number) < largest for number in exact):
            continue
        compared += 1
        program = make(text, w=w, **values)
        before = str(program.module)
        (found,) = program.after(PIPELINE).run(x)
        folds += str(program.module) != before
        assert abs(found.item() - terms.sum()) <= 16 * 2.0**-23 * sizes.sum(), text
    assert min(compared, folds) >= count // 40
