# SPDX-License-Identifier: Apache-2.0
"""The graph passes: values stay, the structure becomes what the passes promise, and twice is once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr, TensorType
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import Array
from penstock.passes.graph.expose_values import name_of

Make = Callable[..., Any]


def integers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


# fold-batch-norm

X = "tensor<1x3x6x6xf32>"
Y = "tensor<1x4x4x4xf32>"
NORM = """
  %scale = graph.constant #graph.weight<"scale"> : tensor<4xf32>
  %bias = graph.constant #graph.weight<"bias"> : tensor<4xf32>
  %mean = graph.constant #graph.weight<"mean"> : tensor<4xf32>
  %var = graph.constant #graph.weight<"var"> : tensor<4xf32>
"""
CONV = f"""
  %w = graph.constant #graph.weight<"w"> : tensor<4x3x3x3xf32>
  %c = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
      : ({X}, tensor<4x3x3x3xf32>) -> {Y} loc("conv1")
"""
BN = "(tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)"[1:-1]
# var + epsilon are squares, and the scales multiples of their roots
PARAMETERS: dict[str, Any] = {
    "w": integers(4, 3, 3, 3, seed=1),
    "scale": [2, -2, 8, 4],
    "bias": [1, 2, -3, 4],
    "mean": [5, -1, 2, 0],
    "var": [3, 3, 15, 15],
}


def test_batch_norm_folds_into_the_weights_of_a_convolution(make: Make) -> None:
    text = f"""
    func.func @main(%x: {X}) -> {Y} {{ {NORM} {CONV}
      %y = graph.batch_normalization %c, %scale, %bias, %mean, %var epsilon 1.0 : ({Y}, {BN}) -> {Y} loc("bn1")
      func.return %y : {Y}
    }}"""
    program = make(text, **PARAMETERS)
    program.assert_kept("fold-batch-norm,fold-constants", integers(1, 3, 6, 6))
    assert [op.name for op in program.ops()] == ["graph.constant"] * 2 + ["graph.conv", "func.return"]
    assert name_of(program.ops()[2]) == "bn1"  # it computes what the normalisation did
    assert [op.weight for op in program.ops() if isinstance(op, graph.ConstantOp)] == ["bias/sub", "w/mul"]


def test_batch_norm_folds_with_a_bias_in_channels_last_layout(make: Make) -> None:
    image, result = "tensor<1x6x6x3xf32>", "tensor<1x4x4x4xf32>"
    text = f"""
    func.func @main(%x: {image}) -> {result} {{ {NORM}
      %w = graph.constant #graph.weight<"w"> : tensor<3x3x3x4xf32>
      %b = graph.constant #graph.weight<"b"> : tensor<4xf32>
      %c = graph.conv %x, %w, %b strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC"
          : ({image}, tensor<3x3x3x4xf32>, tensor<4xf32>) -> {result}
      %y = graph.batch_normalization %c, %scale, %bias, %mean, %var epsilon 1.0 axis 3
          : ({result}, {BN}) -> {result}
      func.return %y : {result}
    }}"""
    weights = PARAMETERS | {"w": integers(3, 3, 3, 4, seed=1), "b": [7, -7, 1, 0]}
    program = make(text, **weights)
    program.assert_kept("fold-batch-norm,fold-constants", integers(1, 6, 6, 3))
    assert program.count(graph.BatchNormalizationOp, graph.MulOp, graph.AddOp) == 0


@pytest.mark.parametrize("trans_b", ["true", "false"])
def test_batch_norm_folds_into_a_gemm(make: Make, trans_b: str) -> None:
    matrix = "tensor<4x3xf32>" if trans_b == "true" else "tensor<3x4xf32>"
    text = f"""
    func.func @main(%x: tensor<2x3xf32>) -> tensor<2x4xf32> {{ {NORM}
      %w = graph.constant #graph.weight<"w"> : {matrix}
      %b = graph.constant #graph.weight<"b"> : tensor<4xf32>
      %c = graph.gemm %x, %w, %b alpha 2.0 beta 3.0 trans_b {trans_b}
          : (tensor<2x3xf32>, {matrix}, tensor<4xf32>) -> tensor<2x4xf32>
      %y = graph.batch_normalization %c, %scale, %bias, %mean, %var epsilon 1.0
          : (tensor<2x4xf32>, {BN}) -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }}"""
    shape = (4, 3) if trans_b == "true" else (3, 4)
    program = make(text, **(PARAMETERS | {"w": integers(*shape), "b": [7, -7, 1, 0]}))
    program.assert_kept("fold-batch-norm,fold-constants", integers(2, 3))
    assert program.count(graph.BatchNormalizationOp, graph.MulOp, graph.AddOp) == 0


@pytest.mark.parametrize("axis", [2, 3])
def test_batch_norm_along_another_axis_is_not_folded_into_a_convolution(make: Make, axis: int) -> None:
    """The image has as many rows and columns as channels."""
    text = f"""
    func.func @main(%x: {X}) -> {Y} {{ {NORM} {CONV}
      %y = graph.batch_normalization %c, %scale, %bias, %mean, %var epsilon 1.0 axis {axis} : ({Y}, {BN}) -> {Y}
      func.return %y : {Y}
    }}"""
    program = make(text, **PARAMETERS)
    program.assert_kept("fold-batch-norm,fold-constants", integers(1, 3, 6, 6))
    assert program.count(graph.MulOp, graph.AddOp) == 2


def test_batch_norm_of_the_rows_of_a_gemm_is_not_folded_into_its_columns(make: Make) -> None:
    square = "tensor<4x4xf32>"
    text = f"""
    func.func @main(%x: {square}) -> {square} {{ {NORM}
      %w = graph.constant #graph.weight<"w"> : {square}
      %c = graph.gemm %x, %w : ({square}, {square}) -> {square}
      %y = graph.batch_normalization %c, %scale, %bias, %mean, %var epsilon 1.0 axis 0 : ({square}, {BN}) -> {square}
      func.return %y : {square}
    }}"""
    program = make(text, **(PARAMETERS | {"w": integers(4, 4)}))
    program.assert_kept("fold-batch-norm,fold-constants", integers(4, 4))
    assert program.count(graph.MulOp, graph.AddOp) == 2


def test_batch_norm_of_a_value_that_is_used_twice_becomes_a_product_and_a_sum(make: Make) -> None:
    text = f"""
    func.func @main(%x: {X}) -> ({Y}, {Y}) {{ {NORM} {CONV}
      %y = graph.batch_normalization %c, %scale, %bias, %mean, %var epsilon 1.0 : ({Y}, {BN}) -> {Y}
      func.return %y, %c : {Y}, {Y}
    }}"""
    program = make(text, **PARAMETERS)
    program.assert_kept("fold-batch-norm,fold-constants", integers(1, 3, 6, 6))
    names = Counter(op.name for op in program.ops())
    assert (names["graph.conv"], names["graph.mul"], names["graph.add"]) == (1, 1, 1)
    assert program.count(graph.BatchNormalizationOp, graph.ReshapeOp) == 0


def test_batch_norm_with_computed_parameters_stays(make: Make) -> None:
    text = f"""
    func.func @main(%x: {X}, %scale: tensor<4xf32>) -> {Y} {{ {NORM.split("#graph.weight", 1)[0].split("%scale")[0]}
      %bias = graph.constant #graph.weight<"bias"> : tensor<4xf32> {CONV}
      %y = graph.batch_normalization %c, %scale, %bias, %bias, %scale : ({Y}, {BN}) -> {Y}
      func.return %y : {Y}
    }}"""
    program = make(text, **PARAMETERS)
    before = program.text
    assert program.after("fold-batch-norm").text == before


# fold-constants


def test_only_what_the_program_reads_becomes_a_weight(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<20xf32>) -> tensor<20xf32> {
      %w = graph.constant #graph.weight<"w"> : tensor<20xf32>
      %a = graph.exp %w : tensor<20xf32>
      %b = graph.sqrt %a : tensor<20xf32>
      %c = graph.neg %b : tensor<20xf32>
      %y = graph.mul %x, %c : (tensor<20xf32>, tensor<20xf32>) -> tensor<20xf32>
      %z = graph.add %y, %b : (tensor<20xf32>, tensor<20xf32>) -> tensor<20xf32>
      func.return %z : tensor<20xf32>
    }"""
    program = make(text, w=integers(20))
    program.assert_kept("fold-constants", integers(20, seed=1))
    assert program.ctx.weights.names() == ("w", "w/sqrt", "w/neg")
    np.testing.assert_array_equal(program.ctx.weights["w/neg"], -np.sqrt(np.exp(integers(20))))


def test_names_that_are_taken_get_a_number_and_equal_data_is_shared(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<20xf32>) -> tensor<20xf32> {
      %w = graph.constant #graph.weight<"w"> : tensor<20xf32>
      %u = graph.constant #graph.weight<"u"> : tensor<20xf32>
      %a = graph.add %w, %u : (tensor<20xf32>, tensor<20xf32>) -> tensor<20xf32>
      %b = graph.add %w, %w : (tensor<20xf32>, tensor<20xf32>) -> tensor<20xf32>
      %c = graph.add %w, %u : (tensor<20xf32>, tensor<20xf32>) -> tensor<20xf32>
      %0 = graph.add %x, %a : (tensor<20xf32>, tensor<20xf32>) -> tensor<20xf32>
      %1 = graph.mul %0, %b : (tensor<20xf32>, tensor<20xf32>) -> tensor<20xf32>
      %2 = graph.mul %1, %c : (tensor<20xf32>, tensor<20xf32>) -> tensor<20xf32>
      func.return %2 : tensor<20xf32>
    }"""
    program = make(text, w=integers(20), u=integers(20, seed=1)).after("fold-constants")
    named = [op.weight for op in program.ops() if isinstance(op, graph.ConstantOp)]
    assert named == ["w/add", "w/add.1", "w/add"]


def test_what_would_grow_out_of_a_scalar_stays_an_op(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<600x600xf32>) -> (tensor<600x600xf32>, tensor<600x600xf32>) {
      %one = graph.constant dense<1.0> : tensor<f32>
      %w = graph.constant #graph.weight<"w"> : tensor<1x600xf32>
      %a = graph.expand %one : tensor<f32> -> tensor<600x600xf32>
      %b = graph.expand %w : tensor<1x600xf32> -> tensor<600x600xf32>
      %0 = graph.add %x, %a : (tensor<600x600xf32>, tensor<600x600xf32>) -> tensor<600x600xf32>
      %1 = graph.add %x, %b : (tensor<600x600xf32>, tensor<600x600xf32>) -> tensor<600x600xf32>
      func.return %0, %1 : tensor<600x600xf32>, tensor<600x600xf32>
    }"""
    program = make(text, w=integers(1, 600)).after("fold-constants")
    expands = [op for op in program.ops() if isinstance(op, graph.ExpandOp)]
    assert [isinstance(op.x.owner, graph.ConstantOp) for op in expands] == [True]
    assert "w/expand" in program.ctx.weights


def test_programs_below_the_graph_level_are_left_as_they_are(make: Make) -> None:
    text = """func.func @main(%x: memref<2x3xf32>, %y: memref<2x3xf32> {graph.output = "y"}) {
      mem.copy %x to %y : memref<2x3xf32> to memref<2x3xf32>
      func.return
    }"""
    program = make(text)
    before = str(program.module)
    program.after("fold-batch-norm,transpose-operands,layout,fold-constants,graph-fuse,storage-type,expose-values")
    assert str(program.module) == before


def test_a_missing_weight_is_the_users_fault(make: Make) -> None:
    text = """
    func.func @main() -> tensor<2xf32> {
      %w = graph.constant #graph.weight<"w"> : tensor<2xf32>
      %y = graph.neg %w : tensor<2xf32>
      func.return %y : tensor<2xf32>
    }"""
    with pytest.raises(UserError, match='no weight is called "w"'):
        make(text).after("fold-constants")


# graph-fuse


def weighted_conv(name: str, x: str, relu: bool = False) -> str:
    """IR of a 3x3 convolution of 4 channels to 4."""
    tensor = "tensor<1x4x5x5xf32>"
    lines = f"""
      %{name}_w = graph.constant #graph.weight<"{name}"> : tensor<4x4x3x3xf32>
      %{name} = graph.conv %{x}, %{name}_w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
          : ({tensor}, tensor<4x4x3x3xf32>) -> {tensor} loc("{name}")"""
    return lines + (f'\n%{name}_r = graph.relu %{name} : {tensor} loc("{name}_r")' if relu else "")


T = "tensor<1x4x5x5xf32>"
FILTERS: dict[str, Any] = {name: integers(4, 4, 3, 3, seed=seed) for seed, name in enumerate("abc")}


def test_a_residual_addition_joins_the_convolution_that_is_computed_last(make: Make) -> None:
    text = f"""
    func.func @main(%x: {T}) -> {T} {{ {weighted_conv("a", "x")} {weighted_conv("b", "x")}
      %s = graph.add %a, %b : ({T}, {T}) -> {T} loc("sum")
      %y = graph.relu %s : {T} loc("relu")
      func.return %y : {T}
    }}"""
    program = make(text, **FILTERS)
    program.assert_kept("graph-fuse", integers(1, 4, 5, 5))
    assert program.groups() == [["conv"], ["conv", "add", "relu"]]
    fused = [op for op in program.ops() if isinstance(op, graph.FusedOp)]
    assert [name_of(op) for op in fused] == ["a", "relu"]


def test_a_diamond_goes_into_its_group_and_a_value_that_is_returned_ends_it(make: Make) -> None:
    text = f"""
    func.func @main(%x: {T}) -> ({T}, {T}) {{ {weighted_conv("a", "x", relu=True)}
      %n = graph.neg %a_r : {T}
      %m = graph.mul %n, %a_r : ({T}, {T}) -> {T}
      %e = graph.abs %m : {T}
      func.return %e, %m : {T}, {T}
    }}"""
    program = make(text, **FILTERS)
    program.assert_kept("graph-fuse", integers(1, 4, 5, 5))
    assert program.groups() == [["conv", "relu", "neg", "mul"], ["abs"]]


def test_an_addition_whose_other_operand_cannot_take_it_is_not_left_alone(make: Make) -> None:
    text = f"""
    func.func @main(%x: {T}) -> ({T}, {T}) {{ {weighted_conv("a", "x")} {weighted_conv("b", "x")}
      %s = graph.add %a, %b : ({T}, {T}) -> {T}
      func.return %s, %b : {T}, {T}
    }}"""
    program = make(text, **FILTERS)
    program.assert_kept("graph-fuse", integers(1, 4, 5, 5))
    assert program.groups() == [["conv"], ["conv", "add"]]


def test_a_constant_without_elements_is_an_operand_of_its_group(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<3x1xi64>) -> tensor<3x0xi1> {
      %none = graph.constant dense<> : tensor<0xi64>
      %c = graph.less %x, %none : (tensor<3x1xi64>, tensor<0xi64>) -> tensor<3x0xi1>
      %y = graph.not %c : tensor<3x0xi1>
      func.return %y : tensor<3x0xi1>
    }"""
    program = make(text)
    program.assert_kept("graph-fuse", np.zeros((3, 1), np.int64))
    assert program.groups() == [["less", "not"]]


def test_single_numbers_go_into_the_group_and_weights_are_operands(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %two = graph.constant dense<2.0> : tensor<f32>
      %w = graph.constant #graph.weight<"w"> : tensor<4xf32>
      %0 = graph.mul %x, %two : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
      %1 = graph.add %0, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %2 = graph.max %1, %two : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
      func.return %2 : tensor<4xf32>
    }"""
    program = make(text, w=[1, 2, 3, 4])
    program.assert_kept("graph-fuse", integers(4))
    assert program.groups() == [["constant", "mul", "add", "max"]]
    (group,) = (op for op in program.ops() if isinstance(op, graph.FusedOp))
    assert [operand.name_hint for operand in group.inputs] == ["x", "w"]
    assert sum(isinstance(op, graph.ConstantOp) for op in program.ops()) == 1


def test_views_concatenations_and_constants_stay_outside_and_all_else_goes_in(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<2x8xf32>) -> tensor<4x4xf32> {
      %a = graph.softmax %x axis 1 : tensor<2x8xf32> -> tensor<2x8xf32>
      %b = graph.concat %a, %x axis 0 : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<4x8xf32>
      %c = graph.reshape %b : tensor<4x8xf32> -> tensor<8x4xf32>
      %d = graph.slice %c starts [0, 0] sizes [4, 4] steps [2, 1] : tensor<8x4xf32> -> tensor<4x4xf32>
      %e = graph.neg %d : tensor<4x4xf32>
      %f = graph.reduce_sum %e axes [1] keepdims true : tensor<4x4xf32> -> tensor<4x1xf32>
      %g = graph.sub %e, %f : (tensor<4x4xf32>, tensor<4x1xf32>) -> tensor<4x4xf32>
      func.return %g : tensor<4x4xf32>
    }"""
    program = make(text)
    program.assert_kept("graph-fuse", integers(2, 8))
    assert [op.name.split(".")[-1] for op in program.ops()] == [
        *("fused", "concat", "reshape", "slice", "fused", "fused", "fused", "return"),
    ]
    assert program.groups() == [["softmax"], ["neg"], ["reduce_sum"], ["sub"]]


@pytest.mark.parametrize(
    ("starts", "sizes", "steps", "view"),
    [
        ([0, 2, 0], [4, 3, 1], [1, 1, 1], True),
        ([1, 0, 0], [2, 6, 1], [2, 1, 1], True),
        # Along a dim of which one index is taken, the step says nothing.
        ([3, 0, 0], [1, 6, 1], [-1, 1, 2], True),
        ([2, 1, 0], [1, 1, 1], [1, -2, 1], True),
        # A column, every other element, backwards, nothing at all.
        ([0, 1, 0], [4, 1, 1], [1, 1, 1], False),
        ([0, 0, 0], [4, 3, 1], [1, 2, 1], False),
        ([3, 0, 0], [4, 6, 1], [-1, 1, 1], False),
        ([0, 6, 0], [4, 0, 1], [1, 1, 1], False),
    ],
)
def test_a_slice_of_rows_is_a_view_and_any_other_is_a_group(
    make: Make, starts: list[int], sizes: list[int], steps: list[int], view: bool
) -> None:
    shape = "x".join(map(str, sizes))
    text = f"""
    func.func @main(%x: tensor<4x6x1xf32>) -> tensor<{shape}xf32> {{
      %y = graph.slice %x starts {starts} sizes {sizes} steps {steps} : tensor<4x6x1xf32> -> tensor<{shape}xf32>
      func.return %y : tensor<{shape}xf32>
    }}"""
    program = make(text)
    program.assert_kept("graph-fuse", integers(4, 6, 1))
    assert program.groups() == ([] if view else [["slice"]])


def test_a_group_never_reads_what_is_computed_after_it(make: Make) -> None:
    # The chain a -> sub cannot run before b, whose own chain reads nothing of it.
    text = f"""
    func.func @main(%x: {T}) -> {T} {{ {weighted_conv("a", "x")} {weighted_conv("b", "x", relu=True)}
      %p = graph.max_pool %b_r kernel_shape [3, 3] strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] : {T} -> {T}
      %t = graph.softmax %p axis 1 : {T} -> {T}
      %s = graph.sub %a, %t : ({T}, {T}) -> {T}
      func.return %s : {T}
    }}"""
    program = make(text, **FILTERS)
    program.assert_kept("graph-fuse", integers(1, 4, 5, 5))  # verified, dominance included
    assert program.groups() == [["conv", "relu"], ["max_pool"], ["softmax"], ["conv", "sub"]]


# expose-values


def names_in(attributes: DictionaryAttr) -> tuple[str | None, str | None]:
    """The name and the layout that a result carries."""
    found = [attributes.data.get(f"graph.{key}") for key in ("name", "layout")]
    return tuple(each.data if isinstance(each, StringAttr) else None for each in found)  # pyright: ignore


def test_exposed_values_carry_names_and_layouts(make: Make) -> None:
    text = f"""
    func.func @main(%x: {T} {{graph.name = "x"}}) -> ({T} {{graph.name = "y"}}) {{
      {weighted_conv("a", "x", relu=True)} {weighted_conv("b", "a_r", relu=True)}
      func.return %b_r : {T}
    }}"""
    program = make(text, **FILTERS)
    x = integers(1, 4, 5, 5)
    (expected,) = program.run(x)
    program.after("layout,fold-constants,graph-fuse,expose-values").assert_kept("expose-values", x)
    assert isa(program.main.res_attrs, ArrayAttr[DictionaryAttr])
    results = dict(zip([names_in(each) for each in program.main.res_attrs], program.run(x), strict=True))
    assert list(results) == [
        ("y", None),
        ("x/NHWC", "NHWC"),
        ("a_r", "NHWC"),
        ("b_r", "NHWC"),
        ("b_r/NCHW", None),
    ]
    np.testing.assert_array_equal(np.moveaxis(results["b_r", "NHWC"], -1, 1), expected)
    np.testing.assert_array_equal(results["y", None], expected)


def test_a_value_that_is_stored_in_f16_keeps_its_layout(make: Make) -> None:
    text = f"""
    func.func @main(%x: {T} {{graph.name = "x"}}) -> ({T} {{graph.name = "y"}}) {{
      {weighted_conv("a", "x", relu=True)} {weighted_conv("b", "a_r", relu=True)}
      func.return %b_r : {T}
    }}"""
    program = make(text, **FILTERS)
    program.after('layout,fold-constants,graph-fuse,storage-type{type="f16"},expose-values')
    assert isa(program.main.res_attrs, ArrayAttr[DictionaryAttr])
    types = [str(value.element_type) for value in program.main.function_type.outputs if isa(value, TensorType)]
    found = dict(zip(map(names_in, program.main.res_attrs), types, strict=True))
    assert found["a_r", "NHWC"] == "f16"


def test_all_ops_are_exposed_before_there_are_groups(make: Make) -> None:
    text = f"""
    func.func @main(%x: {T}) -> {T} {{ {weighted_conv("a", "x", relu=True)}
      func.return %a_r : {T}
    }}"""
    program = make(text, **FILTERS)
    x = integers(1, 4, 5, 5)
    (expected,) = program.run(x)
    returned, conv, relu = program.after('expose-values{of="ops"}').run(x)
    np.testing.assert_array_equal(returned, expected)
    np.testing.assert_array_equal(np.maximum(conv, 0), relu)
    assert conv.min() < 0
