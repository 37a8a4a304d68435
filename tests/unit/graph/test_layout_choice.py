# SPDX-License-Identifier: Apache-2.0
"""Which layouts the pass chooses: what machines prefer, that no choice costs less, and that blocks change no value."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from penstock.dialects import graph
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import tensor_of
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.graph.layouts.choices import LayoutProblem
from penstock.passes.graph.layouts.forms import Forms, bytes_of, moves_units_only, plain, rank_of
from penstock.passes.graph.layouts.preferences import Preferences, matrix_intrinsic
from penstock.passes.graph.layouts.rules import emit
from penstock.passes.graph.values import is_constant
from penstock.passes.shapes import shape_of
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]
Make = Callable[..., Any]

# preferences


@pytest.mark.parametrize(
    ("machine", "layouts"),
    [
        ("vta-pynq", [("NHWC16c", "HWOI16o16i", "i8", "i32")]),
        ("gemmini-fp32", [("NHWC", None, "f32", "f32")]),
        ("gemmini", [("NHWC", None, "i8", "i32")]),
        ("rapid-core-like", [("NHWC", None, "f16", "f32")]),
        ("h100-sm", [("NHWC", None, "f16", "f32")]),
        ("host", []),
    ],
)
def test_a_machine_prefers_what_its_matrix_intrinsic_reads(machine: str, layouts: list[Any]) -> None:
    found = [matrix_intrinsic(each) for each in load_machine(machine).intrinsics().values()]
    assert [
        (preference.images, preference.filters, str(each.elements[0]), str(each.elements[2]))
        for each in found
        if each is not None
        for preference in each.preferences()[:1]
    ] == layouts


def conv_text(x: str, w: str, y: str, channels: int, outputs: int, more: str = "") -> str:
    shapes = f"tensor<1x{channels}x6x6x{x}>", f"tensor<{outputs}x{channels}x1x1x{w}>", f"tensor<1x{outputs}x6x6x{y}>"
    return f"""func.func @main(%x: {shapes[0]}, %w: {shapes[1]}) -> {shapes[2]} {{
      %y = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] {more}
          : ({shapes[0]}, {shapes[1]}) -> {shapes[2]}
      func.return %y : {shapes[2]}
    }}"""


@pytest.mark.parametrize(
    ("machine", "text", "layout"),
    [
        ("vta-pynq", conv_text("i8", "i8", "i32", 32, 16, "accumulate i32"), "NCHW16c"),
        ("vta-pynq", conv_text("i8", "i8", "i32", 3, 20, "accumulate i32"), "NCHW16c"),
        ("vta-pynq", conv_text("ui8", "i8", "i32", 32, 16, "accumulate i32"), "NHWC"),
        ("vta-pynq", conv_text("f32", "f32", "f32", 32, 16), "NHWC"),
        ("gemmini", conv_text("i8", "i8", "i32", 32, 16, "accumulate i32"), "NHWC"),
        ("gemmini-fp32", conv_text("f32", "f32", "f32", 32, 16), "NHWC"),
        (None, conv_text("f32", "f32", "f32", 32, 16), "NHWC"),
    ],
)
def test_a_convolution_is_stored_as_the_unit_that_computes_its_types_wants_it(
    make: Make, machine: str | None, text: str, layout: str
) -> None:
    program = make(text)
    if machine is not None:
        attach_machine(program.module, machine)
    run_passes(program.ctx, program.module, read_pipeline("layout"))
    (conv,) = (op for op in program.module.walk() if isinstance(op, graph.ConvOp))
    assert conv.layout.data == layout
    assert (conv.filters is None) == (layout == "NHWC")


def test_a_layout_that_is_none_of_images_is_refused(make: Make) -> None:
    for word in ("NHCW", "OIHW", "nhwc", "NCHW16w"):
        with pytest.raises(UserError, match="layout"):
            make(conv_text("f32", "f32", "f32", 4, 4)).after(f'layout{{layout="{word}"}}')


# no choice costs less


class Writer:
    """A random graph on images in which every value but the first has one user: a tree."""

    def __init__(self, draw: st.DrawFn, *, element: Attribute, is_tree: bool):
        self.draw, self.element, self.is_tree = draw, element, is_tree
        self.block = Block()
        self.free: list[SSAValue] = []

    def value(self) -> SSAValue:
        """An operand: a new argument, or a value that has been computed."""
        if not self.free or self.draw(st.integers(0, 3)) == 0:
            channels, size = self.draw(st.sampled_from([2, 4, 6])), self.draw(st.sampled_from([2, 3]))
            self.free.append(self.block.insert_arg(TensorType(self.element, [1, channels, size, size]), 0))
        found = self.draw(st.sampled_from(self.free))
        if self.is_tree:
            self.free.remove(found)
        return found

    def constant(self, *shape: int) -> SSAValue:
        op = graph.ConstantOp(graph.WeightAttr(f"w{prod(shape)}"), TensorType(self.element, shape))
        self.block.add_op(op)
        return op.result

    def step(self) -> None:
        x = self.value()
        _, channels, height, width = shape = tensor_of(x).get_shape()
        match self.draw(st.integers(0, 5)):
            case 0 | 1 if channels < 9:
                outputs = self.draw(st.sampled_from([2, 4]))
                op: Any = graph.ConvOp(x, self.constant(outputs, channels, 1, 1))
            case 2:
                op = graph.MaxPoolOp(x, kernel_shape=[min(2, height), min(2, width)])
            case 3:
                same = [value for value in self.free if tensor_of(value).get_shape() == shape]
                other = self.draw(st.sampled_from(same)) if same else self.constant(channels, 1, 1)
                if same and self.is_tree:
                    self.free.remove(other)
                op = graph.AddOp(x, other)
            case 4:
                op = graph.TransposeOp(x, perm=self.draw(st.sampled_from([(0, 1, 3, 2), (0, 2, 3, 1), (0, 3, 1, 2)])))
            case _:
                op = graph.ReluOp(x)
        self.block.add_op(op)
        self.free.append(op.result)

    def module(self) -> ModuleOp:
        results = [value for value in self.free if not isinstance(value.owner, Block)] or [self.value()]
        self.block.add_op(ReturnOp(*results[-3:]))
        types = self.block.arg_types, [value.type for value in results[-3:]]
        return ModuleOp([FuncOp("main", types, Region(self.block))])


@st.composite
def texts(draw: st.DrawFn, *, is_tree: bool) -> str:
    """IR, which hypothesis can print."""
    writer = Writer(draw, element=f32, is_tree=is_tree)
    for _ in range(draw(st.integers(1, 5))):
        writer.step()
    return str(writer.module())


def changes_of_layout(module: ModuleOp) -> list[int]:
    """The bytes read and written by each change of layout or transpose in which elements of no constant move."""
    return [
        bytes_of(op.operands[0]) + bytes_of(op.result)
        for op in module.walk()
        if isinstance(op, graph.GraphOp) and _moves(op) and not is_constant(op.result)
    ]


def _moves(op: graph.GraphOp) -> bool:
    if isinstance(op, graph.LayoutTransformOp):
        return not op.is_view
    return isinstance(op, graph.TransposeOp) and not moves_units_only(shape_of(op.x), op.perm.get_values())


def cost_by_rebuilding(module: ModuleOp, problem: LayoutProblem, options: tuple[int, ...]) -> int:
    """
    The penalties of a choice, and the bytes that the changes of layout move which it takes: counted in the IR. One into
    blocks or out of them that moves no element counts one.
    """
    func = module.body.block.first_op
    assert isinstance(func, FuncOp)
    new = Block(arg_types=func.body.block.arg_types)
    forms = Forms(new)
    for old, argument in zip(func.body.block.args, new.args, strict=True):
        forms.define(old, argument, plain(rank_of(argument)))
    for variable, option in zip(problem.variables, options, strict=True):
        emit(forms, variable.op, variable.choices[option])
    types = new.arg_types, [value.type for value in new.last_op.operands]  # pyright: ignore[reportOptionalMemberAccess]
    rebuilt = ModuleOp([FuncOp("main", types, Region(new))])
    rebuilt.verify()
    penalties = sum(
        variable.penalties[option]
        for variable, option in zip(problem.variables, options, strict=True)
        if not isinstance(variable.op, graph.TransposeOp)  # those that stay are counted as changes
    )
    views = [op for op in rebuilt.walk() if isinstance(op, graph.LayoutTransformOp) and op.is_view]
    parted = [op for op in views if not is_constant(op.result) and not (op.source.data + op.target.data).isupper()]
    return penalties + sum(changes_of_layout(rebuilt)) + len(parted)


@pytest.mark.parametrize("demanded", [None, "NHWC4c"])
@given(text=texts(is_tree=True))
@examples(25)
def test_on_trees_no_choice_costs_less(demanded: str | None, text: str) -> None:
    assert_best(text, demanded)


@given(text=texts(is_tree=False))
@examples(25)
def test_on_small_graphs_no_choice_costs_less(text: str) -> None:
    assert_best(text, None)


def assert_best(text: str, demanded: str | None) -> None:
    module = parse_text(make_context(), SourceText("test.mlir", text)).module
    func = module.body.block.first_op
    assert isinstance(func, FuncOp)
    problem = LayoutProblem(func.body.block, Preferences(module, demanded))
    found = problem.solve()
    assert found.is_optimal
    every = [range(len(variable.choices)) for variable in problem.variables]
    assert found.cost == cost_by_rebuilding(module, problem, found.options)
    if prod(map(len, every)) <= 100:
        assert found.cost == min(cost_by_rebuilding(module, problem, options) for options in product(*every))


# an integer network in blocks

NETWORK = """func.func @main(%x: tensor<1x3x8x8xi8>) -> tensor<1x10xi8> {
  %w = graph.constant #graph.weight<"w"> : tensor<20x3x3x3xi8>
  %b = graph.constant #graph.weight<"b"> : tensor<20x1x1xi32>
  %s = graph.constant dense<6> : tensor<i32>
  %0 = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] accumulate i32
          : (tensor<1x3x8x8xi8>, tensor<20x3x3x3xi8>) -> tensor<1x20x8x8xi32>
  %1 = graph.add %0, %b : (tensor<1x20x8x8xi32>, tensor<20x1x1xi32>) -> tensor<1x20x8x8xi32>
  %2 = graph.shift_right %1, %s : (tensor<1x20x8x8xi32>, tensor<i32>) -> tensor<1x20x8x8xi32>
  %3 = graph.clip %2 min 0 max 127 : tensor<1x20x8x8xi32>
  %4 = graph.cast %3 : tensor<1x20x8x8xi32> -> tensor<1x20x8x8xi8>
  %p = graph.max_pool %4 kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1]
          : tensor<1x20x8x8xi8> -> tensor<1x20x4x4xi8>
  %w2 = graph.constant #graph.weight<"w2"> : tensor<32x20x3x3xi8>
  %b2 = graph.constant #graph.weight<"b2"> : tensor<32x1x1xi32>
  %5 = graph.conv %p, %w2 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] accumulate i32
          : (tensor<1x20x4x4xi8>, tensor<32x20x3x3xi8>) -> tensor<1x32x4x4xi32>
  %6 = graph.add %5, %b2 : (tensor<1x32x4x4xi32>, tensor<32x1x1xi32>) -> tensor<1x32x4x4xi32>
  %7 = graph.shift_right %6, %s : (tensor<1x32x4x4xi32>, tensor<i32>) -> tensor<1x32x4x4xi32>
  %8 = graph.clip %7 min 0 max 127 : tensor<1x32x4x4xi32>
  %9 = graph.cast %8 : tensor<1x32x4x4xi32> -> tensor<1x32x4x4xi8>
  %f = graph.reshape %9 : tensor<1x32x4x4xi8> -> tensor<1x512xi8>
  %w3 = graph.constant #graph.weight<"w3"> : tensor<512x10xi8>
  %b3 = graph.constant #graph.weight<"b3"> : tensor<10xi32>
  %10 = graph.matmul %f, %w3 accumulate i32
          : (tensor<1x512xi8>, tensor<512x10xi8>) -> tensor<1x10xi32>
  %11 = graph.add %10, %b3 : (tensor<1x10xi32>, tensor<10xi32>) -> tensor<1x10xi32>
  %12 = graph.shift_right %11, %s : (tensor<1x10xi32>, tensor<i32>) -> tensor<1x10xi32>
  %13 = graph.clip %12 min -127 max 127 : tensor<1x10xi32>
  %14 = graph.cast %13 : tensor<1x10xi32> -> tensor<1x10xi8>
  func.return %14 : tensor<1x10xi8>
}"""
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "w": ((20, 3, 3, 3), np.int8),
    "b": ((20, 1, 1), np.int32),
    "w2": ((32, 20, 3, 3), np.int8),
    "b2": ((32, 1, 1), np.int32),
    "w3": ((512, 10), np.int8),
    "b3": ((10,), np.int32),
}


def integer_network(rng: np.random.Generator) -> tuple[Any, ModuleOp, Array]:
    """The context, the module for vta-pynq and an input. 3, 20 and 10 channels are no multiples of its 16."""
    ctx = make_context()
    ctx.weights = WeightStore()
    for name, (shape, dtype) in SHAPES.items():
        ctx.weights.add(name, rng.integers(-8, 9, shape).astype(dtype))
    module = parse_text(ctx, SourceText("network.mlir", NETWORK)).module
    attach_machine(module, "vta-pynq")
    return ctx, module, rng.integers(-8, 9, (1, 3, 8, 8)).astype(np.int8)


def test_an_integer_network_in_blocks_computes_what_it_did() -> None:
    ctx, module, x = integer_network(np.random.default_rng(0))
    (before,) = run_graph(module, [x], ctx.weights)
    run_passes(ctx, module, read_pipeline("layout,fold-constants"))
    (after,) = run_graph(module, [x], ctx.weights)
    assert len(np.unique(before)) > 2
    np.testing.assert_array_equal(after, before)
    convolutions = [op for op in module.walk() if isinstance(op, graph.ConvOp)]
    layouts = [(op.layout.data, str(op.filter_layout)) for op in convolutions]
    assert layouts == [*[("NCHW16c", "HWOI16o16i")] * 2, ("NHWC16c", "HWOI16o16i")]  # the last one is the product
    text = str(module)
    run_passes(ctx, module, read_pipeline("layout,fold-constants"))
    assert str(module) == text
    run_passes(ctx, module, read_pipeline("graph-fuse,graph-to-tensor"))
    (below,) = run_module(module, [x], ctx.weights)
    np.testing.assert_array_equal(below, before)


def test_each_contraction_takes_its_whole_epilogue_along_into_blocks() -> None:
    ctx, module, _ = integer_network(np.random.default_rng(0))
    run_passes(ctx, module, read_pipeline("layout,fold-constants,graph-fuse"))
    groups = [[inner.name for inner in op.body.block.ops] for op in module.walk() if isinstance(op, graph.FusedOp)]
    epilogue = ["graph.add", "graph.constant", "graph.shift_right", "graph.clip", "graph.cast"]
    contractions = [names for names in groups if names[0] == "graph.conv"]
    assert len(contractions) == 3
    assert all(names[1:6] == epilogue for names in contractions)
