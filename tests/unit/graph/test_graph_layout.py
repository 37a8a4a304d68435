# SPDX-License-Identifier: Apache-2.0
"""The layout pass: what becomes channels-last, and where transposes remain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.dialects import graph

Make = Callable[..., Any]

T = "tensor<1x4x6x6xf32>"


def integers(*shape: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


FILTERS: dict[str, Any] = {"a": integers(4, 4, 3, 3, seed=1), "b": integers(4, 4, 3, 3, seed=2)}


def conv(name: str, x: str, of: str = T) -> str:
    """IR of a 3x3 convolution of 4 channels to 4."""
    return f"""
      %{name}_w = graph.constant #graph.weight<"{name}"> : tensor<4x4x3x3xf32>
      %{name} = graph.conv %{x}, %{name}_w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
          : ({of}, tensor<4x4x3x3xf32>) -> {of}"""


def function(body: str, result: str, result_type: str) -> str:
    return f"func.func @main(%x: {T}) -> {result_type} {{ {body}\nfunc.return %{result} : {result_type} }}"


def changes(program: Any) -> list[str]:
    """The changes of layout of a program."""
    found = (op for op in program.ops() if isinstance(op, graph.LayoutTransformOp))
    return [f"{op.source.data} -> {op.target.data}" for op in found]


def test_one_transpose_goes_in_and_one_comes_out(make: Make) -> None:
    text = function(
        f"""{conv("a", "x")}
      %r = graph.relu %a : {T}
      %p = graph.max_pool %r kernel_shape [3, 3] strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] : {T} -> {T}
      %l = graph.lrn %p size 3 : {T} -> {T} {conv("b", "l")}
      %s = graph.add %b, %r : ({T}, {T}) -> {T}""",
        "s",
        T,
    )
    program = make(text, **FILTERS)
    x = integers(1, 4, 6, 6)
    (before,) = program.run(x)
    (after,) = program.after("layout,fold-constants").run(x)
    # lrn divides, and the sums of the second convolution are then no integers: some terms cancel.
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6 * np.abs(before).max())
    assert changes(program) == ["NCHW -> NHWC", "NHWC -> NCHW"]
    layouts = [op.layout.data for op in program.ops() if hasattr(op, "layout")]
    assert layouts == ["NHWC"] * 4


def test_filters_are_transposed_in_the_store(make: Make) -> None:
    program = make(function(conv("a", "x"), "a", T), **FILTERS)
    program.assert_kept("layout,fold-constants", integers(1, 4, 6, 6))
    weights = [op.weight for op in program.ops() if isinstance(op, graph.ConstantOp)]
    assert weights == ["a/layout_transform"]
    np.testing.assert_array_equal(program.ctx.weights["a/layout_transform"], FILTERS["a"].transpose(2, 3, 1, 0))


def test_a_transpose_that_moves_only_sizes_of_one_is_a_reshape(make: Make) -> None:
    text = function(
        f"""{conv("a", "x")}
      %g = graph.global_average_pool %a : {T} -> tensor<1x4x1x1xf32>""",
        "g",
        "tensor<1x4x1x1xf32>",
    )
    program = make(text, **FILTERS)
    program.assert_kept("layout,fold-constants", integers(1, 4, 6, 6))
    assert [op.name for op in program.ops()][-3:] == ["graph.global_average_pool", "graph.reshape", "func.return"]


def test_a_channel_shuffle_costs_only_the_transpose_that_it_is(make: Make) -> None:
    split = "tensor<1x2x2x6x6xf32>"
    text = function(
        f"""{conv("a", "x")}
      %0 = graph.reshape %a : {T} -> {split}
      %1 = graph.transpose %0 perm [0, 2, 1, 3, 4] : {split} -> {split}
      %2 = graph.reshape %1 : {split} -> {T} {conv("b", "2")}""",
        "b",
        T,
    )
    program = make(text, **FILTERS)
    program.assert_kept("layout,fold-constants", integers(1, 4, 6, 6))
    assert changes(program) == ["NCHW -> NHWC", "NHWC -> NCHW"]
    assert [op.perm.get_values() for op in program.ops() if isinstance(op, graph.TransposeOp)] == [(0, 1, 2, 4, 3)]


ROW = "tensor<6xf32>"
BROADCAST = [
    ("tensor<4x1x1xf32>", (4, 1, 1), "tensor<4xf32>"),
    ("tensor<6xf32>", (6,), "tensor<6x1xf32>"),
    ("tensor<1x4x1x1xf32>", (1, 4, 1, 1), "tensor<1x1x1x4xf32>"),
    ("tensor<1xf32>", (1,), "tensor<1xf32>"),
    ("tensor<6x6xf32>", (6, 6), "tensor<1x6x6x1xf32>"),
    ("tensor<4x1x6xf32>", (4, 1, 6), "tensor<6x4xf32>"),
]


@pytest.mark.parametrize(("given", "shape", "expected"), BROADCAST)
def test_operands_of_lower_rank_broadcast_as_they_did(
    make: Make, given: str, shape: tuple[int, ...], expected: str
) -> None:
    text = function(
        f"""{conv("a", "x")}
      %v = graph.constant #graph.weight<"v"> : {given}
      %s = graph.mul %a, %v : ({T}, {given}) -> {T}""",
        "s",
        T,
    )
    program = make(text, v=integers(*shape, seed=5), **FILTERS)
    program.assert_kept("layout,fold-constants", integers(1, 4, 6, 6))
    (product,) = (op for op in program.ops() if isinstance(op, graph.MulOp))
    assert str(product.b.type) in (expected, "tensor<6x6x1xf32>")


PROPAGATED = [
    ("graph.concat %a, %a axis 1 : ({T}, {T}) -> tensor<1x8x6x6xf32>", "tensor<1x8x6x6xf32>"),
    ("graph.pad %a pads [0, 1, 0, 2, 0, 0, 3, 0] : {T} -> tensor<1x5x9x8xf32>", "tensor<1x5x9x8xf32>"),
    (
        "graph.slice %a starts [0, 3, 1, 0] sizes [1, 2, 3, 6] steps [1, -2, 2, 1] : {T} -> tensor<1x2x3x6xf32>",
        "tensor<1x2x3x6xf32>",
    ),
    ("graph.reduce_sum %a axes [1] : {T} -> tensor<1x1x6x6xf32>", "tensor<1x1x6x6xf32>"),
    ("graph.reduce_max %a axes [2, 3] keepdims false : {T} -> tensor<1x4xf32>", "tensor<1x4xf32>"),
    ("graph.reduce_sum %a axes [0] keepdims false : {T} -> tensor<4x6x6xf32>", "tensor<4x6x6xf32>"),
    ("graph.cast %a : {T} -> tensor<1x4x6x6xi32>", "tensor<1x4x6x6xi32>"),
    ("graph.expand %a : {T} -> tensor<2x4x6x6xf32>", "tensor<2x4x6x6xf32>"),
    ("graph.transpose %a perm [0, 2, 3, 1] : {T} -> tensor<1x6x6x4xf32>", "tensor<1x6x6x4xf32>"),
    ("graph.reshape %a : {T} -> tensor<1x4x36xf32>", "tensor<1x4x36xf32>"),
    ("graph.reshape %a : {T} -> tensor<1x144xf32>", "tensor<1x144xf32>"),
    ("graph.reshape %a : {T} -> tensor<4x1x6x1x6xf32>", "tensor<4x1x6x1x6xf32>"),
]


@pytest.mark.parametrize(("op", "type"), PROPAGATED)
def test_ops_on_channels_last_values_compute_what_they_did(make: Make, op: str, type: str) -> None:
    program = make(function(f"{conv('a', 'x')}\n%y = {op.replace('{T}', T)}", "y", type), **FILTERS)
    program.assert_kept("layout,fold-constants", integers(1, 4, 6, 6))


def test_an_explicit_transpose_to_channels_last_vanishes(make: Make) -> None:
    type = "tensor<1x6x6x4xf32>"
    body = f"{conv('a', 'x')}\n%y = graph.transpose %a perm [0, 2, 3, 1] : {T} -> {type}\n%z = graph.relu %y : {type}"
    program = make(function(body, "z", type), **FILTERS)
    program.assert_kept("layout,fold-constants", integers(1, 4, 6, 6))
    assert [op.name for op in program.ops()] == [
        *("graph.layout_transform", "graph.constant", "graph.conv", "graph.relu", "func.return"),
    ]
    relu = program.ops()[3]
    assert "graph.layout" not in relu.attributes  # the value was in this order to begin with


@pytest.mark.parametrize(("name", "axis"), [("softmax", 1), ("log_softmax", 3)])
def test_softmax_keeps_its_axis(make: Make, name: str, axis: int) -> None:
    body = f"{conv('a', 'x')}\n%y = graph.{name} %a axis {axis} : {T} -> {T}"
    program = make(function(body, "y", T), **FILTERS)
    x = integers(1, 4, 6, 6)
    (before,) = program.run(x)
    (after,) = program.after("layout,fold-constants").run(x)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spatial", [(7,), (3, 4, 5)])
def test_lines_and_volumes_have_layouts_too(make: Make, spatial: tuple[int, ...]) -> None:
    rank = len(spatial)
    sizes = "x".join(map(str, spatial))
    ones, threes = "x".join("1" * rank), "x".join("3" * rank)
    numbers = [[value] * count for value, count in ((1, rank), (1, 2 * rank), (1, rank))]
    image = f"tensor<2x3x{sizes}xf32>"
    filters = f"tensor<5x3x{threes}xf32>"
    text = f"""
    func.func @main(%x: {image}) -> tensor<2x5x{ones}xf32> {{
      %w = graph.constant #graph.weight<"w"> : {filters}
      %c = graph.conv %x, %w strides {numbers[0]} pads {numbers[1]} dilations {numbers[2]}
          : ({image}, {filters}) -> tensor<2x5x{sizes}xf32>
      %g = graph.global_max_pool %c : tensor<2x5x{sizes}xf32> -> tensor<2x5x{ones}xf32>
      func.return %g : tensor<2x5x{ones}xf32>
    }}"""
    program = make(text, w=integers(5, 3, *[3] * rank))
    program.assert_kept("layout,fold-constants", integers(2, 3, *spatial))
    assert [op.layout.data for op in program.ops() if hasattr(op, "layout")] == ["NHWC"] * 2
