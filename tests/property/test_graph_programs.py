# SPDX-License-Identifier: Apache-2.0
"""
Random graphs on small integers: no graph pass changes a value, bit for bit, and each leaves valid IR, from which the
levels below compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples
from tests.support.tensors import tensor_type_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from penstock.dialects import graph
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.graph import WeightAttr, tensor_of
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]

PIPELINES = [
    "fold-batch-norm",
    "fold-constants",
    "simplify",
    "value-cse,value-dce",
    "layout",
    'layout{layout="NHWC4c"}',
    'layout{layout="NCHW2c"},fold-constants,graph-fuse',
    "graph-fuse",
    "layout,fold-constants,graph-fuse",
    "fold-batch-norm,layout,fold-constants,graph-fuse",
    "layout,fold-batch-norm,fold-constants,graph-fuse",
    "simplify,layout,fold-constants,simplify,value-cse,value-dce,graph-fuse,value-cse",
    "transpose-operands,combine-matmuls",
    "fold-scale,reorder-matmuls,fold-constants,combine-matmuls,fold-constants,graph-fuse",
]

LOWERED = [("tensor", None), ("loop", None), ("accel", "gemmini-fp32"), ("accel", "neural-accelerator")]


class Drawn:
    """A context with weights, a module, and an input; a failure shows the text, not the objects, which never end."""

    def __init__(self, ctx: PenstockContext, module: ModuleOp, x: Array):
        self.ctx, self.module, self.x = ctx, module, x
        self.text = str(module)

    def __repr__(self) -> str:
        return f"{self.text}\ninput of shape {self.x.shape}"


@dataclass
class Writer:
    """Writes a random graph, op by op; every op keeps integers integers, and small."""

    draw: st.DrawFn
    ctx: PenstockContext = field(default_factory=make_context)
    block: Block = field(default_factory=Block)
    values: list[SSAValue] = field(default_factory=list[SSAValue])
    weights: dict[tuple[int, ...], list[SSAValue]] = field(default_factory=dict[tuple[int, ...], list[SSAValue]])
    """Constants of -1 to 2, by their shape."""
    count: int = 0

    def emit(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        self.values.append(op.results[0])
        return op.results[0]

    def keep_small(self, value: SSAValue) -> SSAValue:
        return self.emit(graph.ClipOp(value, min=-9, max=9))

    def weight(self, shape: tuple[int, ...], values: tuple[int, ...] = (-1, 0, 1, 2)) -> SSAValue:
        """A constant; one of small numbers often is one that something else reads too."""
        known = self.weights.setdefault(shape, []) if values == (-1, 0, 1, 2) else []
        if known and self.draw(st.booleans()):
            return self.draw(st.sampled_from(known))
        rng = np.random.default_rng(self.draw(st.integers(0, 99)))
        array = rng.choice(np.array(values, np.float32), shape)
        name = self.ctx.weights.add(f"w{self.count}", array)
        self.count += 1
        op = graph.ConstantOp(WeightAttr(name), tensor_type_of(array))
        self.block.add_op(op)
        known.append(op.result)
        return op.result

    def pick(self, *ranks: int) -> SSAValue | None:
        found = [value for value in self.values if tensor_of(value).get_num_dims() in ranks]
        return self.draw(st.sampled_from(found)) if found else None

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))


def shape_of(value: SSAValue) -> tuple[int, ...]:
    return tensor_of(value).get_shape()


def conv(writer: Writer, x: SSAValue) -> None:
    channels = shape_of(x)[1]
    group = writer.draw(st.sampled_from([g for g in (1, 2, channels) if channels % g == 0]))
    kernel = [min(writer.integer(1, 3), size) for size in shape_of(x)[2:]]
    w = writer.weight((2 * group, channels // group, *kernel))
    b = writer.weight((2 * group,)) if writer.draw(st.booleans()) else None
    pads = [writer.integer(0, 1) for _ in range(4)]
    strides = [writer.integer(1, 2) for _ in range(2)]
    y = writer.keep_small(writer.emit(graph.ConvOp(x, w, b, strides=strides, pads=pads, group=group)))
    if writer.draw(st.booleans()):
        batch_norm(writer, y)


def batch_norm(writer: Writer, x: SSAValue) -> None:
    size = (shape_of(x)[1],)
    # var + epsilon is 4 or 16, and the scales are multiples of their roots
    scale, var = writer.weight(size, (-4, 4, 8)), writer.weight(size, (3, 15))
    bias, mean = writer.weight(size), writer.weight(size)
    writer.keep_small(writer.emit(graph.BatchNormalizationOp(x, scale, bias, mean, var, epsilon=1.0)))


def pool(writer: Writer, x: SSAValue) -> None:
    if writer.draw(st.booleans()):
        writer.emit(graph.GlobalMaxPoolOp(x))
        return
    kernel = [min(writer.integer(1, 3), size) for size in shape_of(x)[2:]]
    writer.emit(graph.MaxPoolOp(x, kernel_shape=kernel, strides=[1, 2], ceil_mode=writer.draw(st.booleans())))


def unary(writer: Writer, x: SSAValue) -> None:
    kinds: list[Callable[[SSAValue], Operation]] = [graph.ReluOp, graph.NegOp, graph.AbsOp, graph.SignOp]
    writer.emit(writer.draw(st.sampled_from(kinds))(x))


def binary(writer: Writer, x: SSAValue) -> None:
    shape = shape_of(x)
    alike = [value for value in writer.values if shape_of(value) == shape]
    if writer.draw(st.booleans()):
        other = writer.draw(st.sampled_from(alike))
    else:
        kept = writer.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
        sizes = [size if keep else 1 for size, keep in zip(shape, kept, strict=True)]
        other = writer.weight(tuple(sizes[writer.integer(0, len(shape)) :]))
    kinds: list[Callable[[SSAValue, SSAValue], Operation]] = [
        *(graph.AddOp, graph.SubOp, graph.MaxOp, graph.MinOp, graph.MulOp, graph.PreluOp),
    ]
    operands = [x, other]
    kind = writer.draw(st.sampled_from(kinds))
    if kind is not graph.PreluOp and writer.draw(st.booleans()):
        operands.reverse()
    writer.keep_small(writer.emit(kind(*operands)))


def select(writer: Writer, x: SSAValue) -> None:
    zero = writer.weight((), (0,))
    condition = graph.GreaterOp(x, zero)
    writer.block.add_op(condition)
    writer.emit(graph.WhereOp(condition.result, x, zero))


def move(writer: Writer, x: SSAValue) -> None:
    shape = shape_of(x)
    rank = len(shape)
    match writer.integer(0, 4):
        case 0:
            writer.emit(graph.TransposeOp(x, perm=writer.draw(st.permutations(range(rank)))))
        case 1:
            writer.emit(graph.PadOp(x, pads=[writer.integer(0, 1) for _ in range(2 * rank)], value=-1))
        case 2:
            starts = [writer.integer(0, size - 1) for size in shape]
            steps = [writer.draw(st.sampled_from([-2, -1, 1, 2])) for _ in shape]
            sizes = [
                writer.integer(1, 1 + ((size - 1 - start) if step > 0 else start) // abs(step))
                for size, start, step in zip(shape, starts, steps, strict=True)
            ]
            writer.emit(graph.SliceOp(x, starts=starts, sizes=sizes, steps=steps))
        case 3:
            axis = writer.integer(0, rank - 1)
            fitting = [
                value
                for value in writer.values
                if len(shape_of(value)) == rank
                and all(dim == axis or shape_of(value)[dim] == size for dim, size in enumerate(shape))
            ]
            inputs = [x, writer.draw(st.sampled_from(fitting))]
            if sum(shape_of(value)[axis] for value in inputs) <= 12:
                writer.emit(graph.ConcatOp(inputs, axis=axis))
        case _:
            reshape(writer, x)


def reshape(writer: Writer, x: SSAValue) -> None:
    shape = list(shape_of(x))
    at = writer.integer(0, len(shape) - 1)
    if writer.draw(st.booleans()) and len(shape) > 1:
        at = min(at, len(shape) - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    elif len(shape) < 5:
        factor = writer.draw(st.sampled_from([f for f in (1, 2, 3) if shape[at] % f == 0]))
        shape[at : at + 1] = [factor, shape[at] // factor]
    writer.emit(graph.ReshapeOp(x, shape))


def expand(writer: Writer, x: SSAValue) -> None:
    """Repeat each dim of size one; half the time, reduce some of them again."""
    shape = shape_of(x)
    repeated = [writer.integer(2, 3) if size == 1 else size for size in shape]
    if list(shape) != repeated and len(repeated) < 5:
        y = writer.emit(graph.ExpandOp(x, repeated))
        if writer.draw(st.booleans()):
            reduce(writer, y)


def product(writer: Writer, x: SSAValue) -> None:
    """Products of one value with weights, which other values may have been multiplied with."""
    for _ in range(writer.integer(1, 2)):
        factor = writer.weight((shape_of(x)[-1], writer.draw(st.sampled_from([2, 3]))))
        if len(shape_of(x)) == 2 and writer.draw(st.booleans()):
            y = writer.emit(graph.GemmOp(x, factor, writer.weight(shape_of(factor)[1:])))
        else:
            y = writer.emit(graph.MatmulOp(x, factor))
        writer.keep_small(y)


def reduce(writer: Writer, x: SSAValue) -> None:
    rank = len(shape_of(x))
    axes = writer.draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
    kind = writer.draw(st.sampled_from([graph.ReduceSumOp, graph.ReduceMaxOp, graph.ReduceMinOp]))
    writer.keep_small(writer.emit(kind(x, axes=axes, keepdims=writer.draw(st.booleans()))))


IMAGE_STEPS = (conv, conv, batch_norm, pool)
STEPS = (unary, binary, binary, select, move, move, reduce, expand, product, product)


@st.composite
def programs(draw: st.DrawFn) -> Drawn:
    """A random program."""
    writer = Writer(draw)
    sizes = (writer.integer(1, 2), writer.integer(1, 4), writer.integer(3, 5), writer.integer(3, 5))
    x = np.random.default_rng(writer.integer(0, 99)).integers(-4, 5, sizes).astype(np.float32)
    writer.values.append(writer.block.insert_arg(tensor_type_of(x), 0))
    for _ in range(writer.integer(1, 12)):
        image = writer.pick(4)
        if image is not None and writer.draw(st.booleans()):
            writer.draw(st.sampled_from(IMAGE_STEPS))(writer, image)
        elif (value := writer.pick(1, 2, 3, 4, 5)) is not None:
            writer.draw(st.sampled_from(STEPS))(writer, value)
    results = writer.values[-1:] + draw(st.lists(st.sampled_from(writer.values), max_size=2))
    writer.block.add_op(ReturnOp(*results))
    types = ([tensor_type_of(x)], [value.type for value in results])
    module = ModuleOp([FuncOp("main", types, Region(writer.block))])
    module.verify()
    return Drawn(writer.ctx, module, x)


@pytest.mark.parametrize("pipeline", PIPELINES)
@examples(20)
@given(program=programs())
def test_passes_keep_every_value(pipeline: str, program: Drawn) -> None:
    ctx, module, x = program.ctx, program.module, program.x
    before = run_graph(module, [x], ctx.weights)
    run_passes(ctx, module, read_pipeline(pipeline))
    for expected, found in zip(before, run_graph(module, [x], ctx.weights), strict=True):
        np.testing.assert_array_equal(found, expected)
    text = str(module)
    run_passes(ctx, module, read_pipeline(pipeline))
    assert str(module) == text, "a second run changed something"


@pytest.mark.parametrize(("level", "machine"), LOWERED)
@examples(25)
@given(program=programs())
def test_fused_programs_keep_every_value_below(level: str, machine: str | None, program: Drawn) -> None:
    ctx, module, x = program.ctx, program.module, program.x
    before = run_graph(module, [x], ctx.weights)
    compile_module(module, ctx, machine, level)
    for expected, found in zip(before, run_module(module, [x], ctx.weights), strict=True):
        np.testing.assert_array_equal(found, expected)


@examples(25)
@given(program=programs())
def test_ops_of_the_host_that_are_inlined_keep_every_value(program: Drawn) -> None:
    ctx, module, x = program.ctx, program.module, program.x
    before = run_graph(module, [x], ctx.weights)
    run_passes(ctx, module, read_pipeline("layout,graph-fuse,graph-to-tensor,fuse-elementwise"))
    for spec in ("cse", "tensor-to-loop"):
        for expected, found in zip(before, run_module(module, [x], ctx.weights), strict=True):
            np.testing.assert_array_equal(found, expected)
        run_passes(ctx, module, read_pipeline(spec))
    for expected, found in zip(before, run_module(module, [x], ctx.weights), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_programs_are_worth_it() -> None:
    """The generator makes what the passes are about: one test that the others test something."""
    seen: set[str] = set()

    @settings(max_examples=60, derandomize=True)
    @given(program=programs())
    def collect(program: Drawn) -> None:
        seen.update(op.name for op in program.module.walk())

    collect()
    assert {"graph.conv", "graph.batch_normalization", "graph.concat", "graph.transpose", "graph.prelu"} <= seen
    assert {"graph.matmul", "graph.expand", "graph.reduce_sum"} <= seen
