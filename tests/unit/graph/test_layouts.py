# SPDX-License-Identifier: Apache-2.0
"""Layouts as words, the change from one to another, and convolutions and pools on blocks of channels."""

# The builders are lambdas of values and properties.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples
from xdsl.dialects.builtin import TensorType, i8, i32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects import graph
from penstock.dialects.context import make_context
from penstock.dialects.graph.layout import Layout, image_layout, layout_of_rank, parse_layout, steps_between
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.interpreter.graph.shape import transformed
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]
Interpret = Callable[..., Array]
FunctionOf = Callable[..., FuncOp]

few = examples(40)


@pytest.mark.parametrize("text", ["NCHW", "NHWC", "NCHW16c", "NHWC8c", "OIHW16i16o", "HWOI16o16i", "OI4i2i", "C"])
def test_a_layout_prints_as_it_was_read(text: str) -> None:
    assert str(parse_layout(text)) == text


BAD = ["", "nchw", "NCHWc", "NN", "NCH16w", "16cNC", "NC0c", "N-C", "HW16c"]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(VerifyException):
        parse_layout(text)


@pytest.mark.parametrize("text", ["NCWH", "CNHW", "NC16cHW", "NHCW", "NCHW16w", "NHWC4c4c", "OIHW", "NC"])
def test_only_some_layouts_are_layouts_of_images(text: str) -> None:
    with pytest.raises(VerifyException):
        image_layout(text, parse_layout("NCHW").rank + (text[-1].islower()))


def test_hw_stands_for_all_spatial_dimensions() -> None:
    assert [str(image_layout("NHWC16c", rank)) for rank in (4, 5, 6)] == ["NWC16c", "NHWC16c", "NDHWC16c"]
    assert image_layout("NCDHW", 5) == image_layout("NCHW", 5)


def naive(x: Array, source: Layout, target: Layout, shape: tuple[int, ...]) -> Array:
    """Element by element, by the definition of a layout."""
    result = np.zeros(shape, x.dtype)
    extents = source.extents(x.shape)
    for index in np.ndindex(*shape):
        at = place(target, index)
        if all(at[dim] < extents[dim] for dim in at):
            result[index] = x[stored(source, at)]
    return result


def place(layout: Layout, index: tuple[int, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (dim, block), at in zip(layout.parts, index, strict=True):
        found[dim] = at if block is None else found[dim] * block + at
    return found


def stored(layout: Layout, at: dict[str, int]) -> tuple[int, ...]:
    index: list[int] = []
    for number, (dim, block) in enumerate(layout.parts):
        inner = prod(part.block or 1 for part in layout.parts[number + 1 :] if part.dim == dim)
        digit = at[dim] // inner
        index.append(digit if block is None else digit % block)
    return tuple(index)


WORDS = ["NCHW", "NHWC", "NCHW4c", "NHWC4c", "NCHW8c", "NHWC2c", "CHWN", "NCHW2c4c", "CN2nHW4c"]


@given(st.data())
@few
def test_a_change_of_layout_keeps_every_element_and_fills_with_zeros(data: st.DataObject) -> None:
    sizes = {dim: data.draw(st.integers(1, top)) for dim, top in (("N", 3), ("C", 19), ("H", 3), ("W", 2))}
    one, other = (parse_layout(data.draw(st.sampled_from(WORDS))) for _ in range(2))
    plain = parse_layout("NCHW")
    x = np.arange(1, 1 + prod(sizes.values())).reshape(plain.shape(sizes))
    first = transformed(x, plain, one)
    np.testing.assert_array_equal(first, naive(x, plain, one, first.shape))
    second = transformed(first, one, other, other.shape(sizes))
    np.testing.assert_array_equal(second, naive(first, one, other, second.shape))
    back = transformed(second, other, plain, x.shape)
    np.testing.assert_array_equal(back, x)


@given(st.data())
@few
def test_it_lowers_to_what_it_is(data: st.DataObject) -> None:
    sizes = {dim: data.draw(st.integers(1, top)) for dim, top in (("N", 2), ("C", 19), ("H", 3), ("W", 2))}
    source, target = (data.draw(st.sampled_from(WORDS)) for _ in range(2))
    shape, result = parse_layout(source).shape(sizes), parse_layout(target).shape(sizes)
    x = np.arange(1, 1 + prod(shape), dtype=np.float32).reshape(shape)
    types = "x".join(map(str, shape)), "x".join(map(str, result))
    text = f"""func.func @main(%x: tensor<{types[0]}xf32>) -> tensor<{types[1]}xf32> {{
      %y = graph.layout_transform %x from "{source}" to "{target}" : tensor<{types[0]}xf32> -> tensor<{types[1]}xf32>
      func.return %y : tensor<{types[1]}xf32>
    }}"""
    ctx = make_context()
    module = parse_text(ctx, SourceText("t.mlir", text)).module
    (before,) = run_graph(module, [x], WeightStore())
    run_passes(ctx, module, read_pipeline("graph-to-tensor"))
    (after,) = run_module(module, [x], WeightStore())
    np.testing.assert_array_equal(after, before)
    generics = [op for op in module.walk() if op.name == "linalg.generic"]
    steps = steps_between(parse_layout(source), parse_layout(target), shape, result)
    if steps.is_view(shape, result):
        assert not generics


def test_blocks_of_innermost_channels_are_a_view() -> None:
    whole, partial = TensorType(i8, [1, 3, 3, 32]), TensorType(i8, [1, 3, 3, 20])
    is_view: list[bool] = []
    for type, to in ((whole, "NHWC16c"), (whole, "NCHW16c"), (partial, "NHWC16c")):
        op = graph.LayoutTransformOp(graph.ConstantOp(graph.WeightAttr("x"), type), source="NHWC", target=to)
        op.verify()
        is_view.append(op.is_view)
    assert is_view == [True, False, False]


def test_the_type_of_the_result_says_where_the_dimension_ends() -> None:
    x = graph.ConstantOp(graph.WeightAttr("x"), TensorType(i8, [1, 3, 3, 2, 16]))
    assert graph.LayoutTransformOp(x, source="NHWC16c", target="NHWC").result_type.get_shape() == (1, 3, 3, 32)
    for channels, fits in ((32, True), (17, True), (16, False), (33, False)):
        type = TensorType(i8, [1, 3, 3, channels])
        op = graph.LayoutTransformOp(x, source="NHWC16c", target="NHWC", result_type=type)
        if fits:
            op.verify()
        else:
            with pytest.raises(VerifyException, match="its operands and properties give tensor<1x3x3x32xi8>"):
                op.verify()


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("NCHW", "NHW", "do not have the same dimensions"),
        ("NCHW", "NCHWc", "is no layout"),
        ("NCHWD", "NCHW", "has 5 dimensions"),
    ],
)
def test_layouts_that_do_not_go_together_are_refused(source: str, target: str, message: str) -> None:
    x = graph.ConstantOp(graph.WeightAttr("x"), TensorType(i8, [1, 4, 3, 3]))
    with pytest.raises(VerifyException, match=message):
        graph.LayoutTransformOp(x, source=source, target=target)


def test_blocks_that_do_not_nest_are_refused() -> None:
    x = graph.ConstantOp(graph.WeightAttr("x"), TensorType(i8, [1, 2, 3, 3, 6]))
    with pytest.raises(VerifyException, match="no multiples of one another"):
        graph.LayoutTransformOp(x, source="NCHW6c", target="NCHW4c")


# convolution and pools on blocks

BLOCKED = [("NHWC16c", "HWOI16o16i"), ("NCHW16c", "OIHW16i16o"), ("NHWC4c", "HWOI4i4o"), ("NHWC", "HWOI")]


def both_levels(function_of: FunctionOf, arrays: list[Array], build: Callable[..., Operation]) -> Array:
    """The value at graph level, which must be that at tensor level."""
    func = function_of(arrays, build)
    module = func.parent_op()
    (before,) = run_graph(func, arrays, WeightStore())
    run_passes(make_context(), module, read_pipeline("graph-to-tensor"))  # pyright: ignore[reportArgumentType]
    (after,) = run_module(module, arrays, WeightStore())  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(after, before)
    return before


@pytest.mark.parametrize(
    ("layout", "filters", "group"), [*((*each, 1) for each in BLOCKED), *((*each, 2) for each in BLOCKED[:3])]
)
@pytest.mark.parametrize(("spatial", "biased"), [((6, 5), True), ((7,), False), ((3, 4, 2), True)])
def test_a_convolution_on_blocks_is_that_on_channels(
    function_of: FunctionOf,
    interpret: Interpret,
    layout: str,
    filters: str,
    group: int,
    spatial: tuple[int, ...],
    biased: bool,
) -> None:
    rng = np.random.default_rng(1)
    rank = len(spatial)
    # Blocks divide the channels of groups.
    inputs, outputs = (5, 18) if group == 1 else (32, 64)
    x = rng.integers(-100, 100, (2, inputs, *spatial)).astype(np.int8)
    w = rng.integers(-100, 100, (outputs, inputs // group, *([3, 2, 1][:rank]))).astype(np.int8)
    b = rng.integers(-100, 100, outputs).astype(np.int32)
    given = {"group": group, "strides": [2, 1, 1][:rank], "pads": [1] * rank + [0] * rank, "accumulator": i32}
    plain = interpret([x, w, b] if biased else [x, w], graph.ConvOp, **given)

    images = layout_of_rank(layout, rank + 2 + ("c" in layout))
    words = {1: "W", 2: "HW", 3: "DHW"}[rank]
    source = parse_layout(f"OI{words}"), parse_layout(filters.replace("HW", words))
    arrays = [transformed(x, parse_layout(f"NC{words}"), images), transformed(w, *source)]
    if biased:
        block = images.block("C")
        padded = np.pad(b, (0, -len(b) % block))
        arrays.append(padded.reshape(-1, block) if block > 1 else padded)
    found = both_levels(
        function_of, arrays, lambda *values: graph.ConvOp(*values, layout=layout, filters=filters, **given)
    )
    np.testing.assert_array_equal(transformed(found, images, parse_layout(f"NC{words}"), plain.shape), plain)


POOLS: list[tuple[str, Callable[..., Operation]]] = [
    ("max", lambda x, **rest: graph.MaxPoolOp(x, kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 1], **rest)),
    ("mean", lambda x, **rest: graph.AveragePoolOp(x, kernel_shape=[3, 2], pads=[1, 0, 1, 1], **rest)),
    ("ceil", lambda x, **rest: graph.MaxPoolOp(x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=True, **rest)),
    ("global max", lambda x, **rest: graph.GlobalMaxPoolOp(x, **rest)),
    ("global mean", lambda x, **rest: graph.GlobalAveragePoolOp(x, **rest)),
]


@pytest.mark.parametrize("layout", ["NHWC16c", "NCHW4c"])
@pytest.mark.parametrize(("name", "pool"), POOLS)
def test_pools_work_on_blocks(function_of: FunctionOf, layout: str, name: str, pool: Callable[..., Operation]) -> None:
    x = np.random.default_rng(2).integers(-9, 9, (2, 6, 6, 7)).astype(np.float32)
    plain = both_levels(function_of, [x], pool)
    images, nchw = parse_layout(layout), parse_layout("NCHW")
    found = both_levels(function_of, [transformed(x, nchw, images)], lambda x: pool(x, layout=layout))
    np.testing.assert_array_equal(transformed(found, images, nchw, plain.shape), plain)


X = TensorType(i8, [1, 4, 4, 2, 16])


@pytest.mark.parametrize(
    ("filters", "shape", "more", "message"),
    [
        (None, [3, 3, 1, 2, 16, 16], {}, "need `filters`"),
        ("HWIO", [3, 3, 32, 16], {}, "of rank 4 do not match"),
        ("HWOI8o16i", [3, 3, 2, 2, 8, 16], {}, "blocks of channels are of one size in both"),
        ("HWOI16o16i", [3, 3, 1, 3, 16, 16], {}, "32 input channels do not match 48 in the filters"),
        ("HWOI16o16i", [3, 3, 1, 2, 16, 8], {}, "blocks of 16 elements of I, not of 8"),
        ("HWOI16o16i", [3, 3, 3, 1, 16, 16], {"group": 2}, "groups of 16 and 24 channels do not divide into blocks"),
        ("HWNI16n16i", [3, 3, 2, 1, 16, 16], {}, "the layout of filters has O, I and the spatial"),
    ],
)
def test_filters_that_do_not_go_with_blocks_of_channels_are_refused(
    filters: str | None, shape: list[int], more: dict[str, Any], message: str
) -> None:
    x = graph.ConstantOp(graph.WeightAttr("x"), X)
    w = graph.ConstantOp(graph.WeightAttr("w"), TensorType(i8, shape))
    with pytest.raises(VerifyException, match=message):
        graph.ConvOp(x, w, layout="NHWC16c", filters=filters, **more)


def test_a_bias_of_blocks_has_blocks() -> None:
    x: SSAValue = graph.ConstantOp(graph.WeightAttr("x"), X).result
    w = graph.ConstantOp(graph.WeightAttr("w"), TensorType(i8, [1, 1, 3, 2, 16, 16]))
    biases = [graph.ConstantOp(graph.WeightAttr("b"), TensorType(i8, shape)) for shape in ([3, 16], [48], [16, 3])]
    graph.ConvOp(x, w, biases[0], layout="NHWC16c", filters="HWOI16o16i").verify()
    for b in biases[1:]:
        with pytest.raises(VerifyException, match="the bias must have the shape 3x16"):
            graph.ConvOp(x, w, b, layout="NHWC16c", filters="HWOI16o16i")


def test_the_loops_of_a_blocked_convolution_are_those_of_its_words(function_of: FunctionOf) -> None:
    arrays = [np.ones(shape, np.int8) for shape in ((1, 4, 4, 2, 16), (3, 3, 3, 2, 16, 16))]
    func = function_of(arrays, lambda x, w: graph.ConvOp(x, w, layout="NHWC16c", filters="HWOI16o16i", accumulator=i32))
    module = func.parent_op()
    assert module is not None
    run_passes(make_context(), module, read_pipeline("graph-to-tensor"))  # pyright: ignore[reportArgumentType]
    *_, conv = (op for op in module.walk() if op.name == "linalg.generic")
    maps = [str(each) for each in conv.properties["indexing_maps"]]  # pyright: ignore
    loops = ", ".join(f"d{number}" for number in range(9))
    assert maps == [
        f"affine_map<({loops}) -> {indices}>"
        for indices in (
            "(d0, (d1 + d5), (d2 + d6), d7, d8)",
            "(d5, d6, d3, d7, d4, d8)",
            "(d0, d1, d2, d3, d4)",
        )
    ]
    assert str(conv.properties["iterator_types"]).count("reduction") == 4
