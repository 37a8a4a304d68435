# SPDX-License-Identifier: Apache-2.0
"""Random graphs in f64: the gradient along a random direction is what central finite differences give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
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
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.gradient import GraphGradientPass
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]

STEP = 1e-6


@dataclass(repr=False)
class Program:
    """A graph with the values of its arguments; its weights are in the store of its context."""

    ctx: PenstockContext
    module: ModuleOp
    arguments: list[Array]

    def __repr__(self) -> str:
        return str(self.module)

    @property
    def functions(self) -> list[FuncOp]:
        return [op for op in self.module.body.block.ops if isinstance(op, FuncOp)]


@dataclass
class Writer:
    """Writes a random graph; values stay in a range where rounding does not hide a difference."""

    draw: st.DrawFn
    ctx: PenstockContext = field(default_factory=make_context)
    block: Block = field(default_factory=Block)
    arguments: list[Array] = field(default_factory=list[Array])
    values: list[SSAValue] = field(default_factory=list[SSAValue])
    arrays: int = 0

    def emit(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def tame(self, op: Operation) -> None:
        """Append an op that may make large numbers, and bring them back."""
        self.values.append(self.emit(graph.TanhOp(self.emit(op))))

    def plain(self, op: Operation) -> None:
        self.values.append(self.emit(op))

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def array(self, shape: tuple[int, ...]) -> Array:
        """Numbers that no other array of the program has: where two are equal there may be a kink."""
        self.arrays += 1
        return np.random.default_rng([self.integer(0, 99), self.arrays]).uniform(-1.5, 1.5, shape)

    def fresh(self, shape: tuple[int, ...]) -> SSAValue:
        """A new argument or a weight."""
        array = self.array(shape)
        if self.draw(st.booleans()):
            self.arguments.append(array)
            return self.block.insert_arg(tensor_type_of(array), len(self.block.args))
        name = self.ctx.weights.add(f"w{len(self.ctx.weights.names())}", array)
        return self.emit(graph.ConstantOp(WeightAttr(name), tensor_type_of(array)))

    def other(self, shape: tuple[int, ...]) -> SSAValue:
        """A value that broadcasts to `shape`: an old one or a new one."""
        alike = [value for value in self.values if shape_of(value) == shape]
        if alike and self.draw(st.booleans()):
            return self.draw(st.sampled_from(alike))
        sizes = [size if self.draw(st.booleans()) else 1 for size in shape]
        return self.fresh(tuple(sizes[self.integer(0, len(shape)) :]))

    def positive(self, value: SSAValue) -> SSAValue:
        """Numbers from 0.1 on."""
        dense = graph.dense_of(np.asarray(0.1))
        assert dense is not None
        return self.emit(graph.AddOp(self.emit(graph.SoftplusOp(value)), self.emit(graph.ConstantOp(dense))))


def shape_of(value: SSAValue) -> tuple[int, ...]:
    return tensor_of(value).get_shape()


UNARY: list[Callable[[SSAValue], Operation]] = [
    *(graph.AbsOp, graph.NegOp, graph.ErfOp, graph.ReluOp, graph.SigmoidOp, graph.TanhOp, graph.SoftplusOp),
    *(graph.HardSwishOp, graph.LeakyReluOp, graph.EluOp, graph.SeluOp, graph.GeluOp, graph.SinOp, graph.CosOp),
    *(graph.AtanOp, graph.AsinhOp, graph.HardSigmoidOp, graph.ExpOp, graph.SinhOp, graph.FloorOp),
]
OF_POSITIVE: list[Callable[[SSAValue], Operation]] = [graph.LogOp, graph.SqrtOp, graph.ReciprocalOp]
BINARY: list[Callable[[SSAValue, SSAValue], Operation]] = [
    *(graph.AddOp, graph.SubOp, graph.MulOp, graph.MaxOp, graph.MinOp, graph.PreluOp),
]


def unary(writer: Writer, x: SSAValue) -> None:
    if writer.draw(st.booleans()):
        writer.tame(writer.draw(st.sampled_from(OF_POSITIVE))(writer.positive(x)))
    else:
        writer.tame(writer.draw(st.sampled_from(UNARY))(x))


def binary(writer: Writer, x: SSAValue) -> None:
    writer.plain(writer.draw(st.sampled_from(BINARY))(x, writer.other(shape_of(x))))


def quotient(writer: Writer, x: SSAValue) -> None:
    writer.tame(graph.DivOp(x, writer.positive(writer.other(shape_of(x)))))


def power(writer: Writer, x: SSAValue) -> None:
    writer.tame(graph.PowOp(writer.positive(x), writer.other(shape_of(x))))


def select(writer: Writer, x: SSAValue) -> None:
    other = writer.other(shape_of(x))
    writer.plain(graph.WhereOp(writer.emit(graph.GreaterOp(x, other)), other, x))


def product(writer: Writer, x: SSAValue) -> None:
    inner = shape_of(x)[-1]
    shapes: list[tuple[int, ...]] = [(inner, writer.integer(1, 3)), (inner,)]
    if len(shape_of(x)) == 3:
        shapes.append((shape_of(x)[0], inner, 2))
    y = graph.MatmulOp(x, writer.fresh(writer.draw(st.sampled_from(shapes))))
    writer.tame(y) if shape_of(y.result) else writer.tame(graph.ReshapeOp(writer.emit(y), [1]))


def reduction(writer: Writer, x: SSAValue) -> None:
    kinds = [graph.ReduceSumOp, graph.ReduceMeanOp, graph.ReduceMaxOp, graph.ReduceMinOp, graph.ReduceProdOp]
    rank = len(shape_of(x))
    axes = writer.draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
    keepdims = len(axes) == rank or writer.draw(st.booleans())
    writer.tame(writer.draw(st.sampled_from(kinds))(x, axes=axes, keepdims=keepdims))


def softmax(writer: Writer, x: SSAValue) -> None:
    kind = writer.draw(st.sampled_from([graph.SoftmaxOp, graph.LogSoftmaxOp]))
    writer.plain(kind(x, axis=writer.integer(0, len(shape_of(x)) - 1)))


def move(writer: Writer, x: SSAValue) -> None:
    shape, rank = shape_of(x), len(shape_of(x))
    match writer.integer(0, 5):
        case 0:
            writer.plain(graph.TransposeOp(x, perm=writer.draw(st.permutations(range(rank)))))
        case 1:
            writer.plain(graph.PadOp(x, pads=[writer.integer(0, 1) for _ in range(2 * rank)], value=-1))
        case 2:
            starts = [writer.integer(0, size - 1) for size in shape]
            steps = [writer.draw(st.sampled_from([-2, -1, 1, 2])) for _ in shape]
            sizes = [
                writer.integer(1, 1 + ((size - 1 - start) if step > 0 else start) // abs(step))
                for size, start, step in zip(shape, starts, steps, strict=True)
            ]
            writer.plain(graph.SliceOp(x, starts=starts, sizes=sizes, steps=steps))
        case 3:
            writer.plain(graph.ConcatOp([x, x], axis=writer.integer(0, rank - 1)))
        case 4:
            writer.plain(graph.ReshapeOp(x, [-1, shape[-1]] if writer.draw(st.booleans()) else [-1]))
        case _:
            writer.plain(graph.ExpandOp(x, [2, *shape]) if rank < 3 else graph.IdentityOp(x))


def gather(writer: Writer, x: SSAValue) -> None:
    axis = writer.integer(0, len(shape_of(x)) - 1)
    size = shape_of(x)[axis]
    places = np.array(writer.draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=3)), np.int64)
    dense = graph.dense_of(places)
    assert dense is not None
    writer.plain(graph.GatherOp(x, writer.emit(graph.ConstantOp(dense)), axis=axis))


def conv(writer: Writer, x: SSAValue) -> None:
    channels = shape_of(x)[1]
    group = writer.draw(st.sampled_from([1, channels]))
    kernel = [min(writer.integer(1, 3), size) for size in shape_of(x)[2:]]
    w = writer.fresh((2 * group, channels // group, *kernel))
    b = writer.fresh((2 * group,)) if writer.draw(st.booleans()) else None
    pads = [writer.integer(0, 1) for _ in range(4)]
    strides = [writer.integer(1, 2) for _ in range(2)]
    writer.tame(graph.ConvOp(x, w, b, strides=strides, pads=pads, group=group))


def pool(writer: Writer, x: SSAValue) -> None:
    kernel = [min(writer.integer(1, 3), size) for size in shape_of(x)[2:]]
    strides = [writer.integer(1, 3) for _ in range(2)]
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "ceil_mode": writer.draw(st.booleans())}
    writer.plain(writer.draw(st.sampled_from([graph.MaxPoolOp, graph.AveragePoolOp]))(x, **given))


def normalize(writer: Writer, x: SSAValue) -> None:
    size = (shape_of(x)[1],)
    scale, bias, mean = (writer.fresh(size) for _ in range(3))
    writer.tame(graph.BatchNormalizationOp(x, scale, bias, mean, writer.positive(writer.fresh(size))))


STEPS = [unary, binary, quotient, power, select, product, reduction, softmax, move, gather]
IMAGE_STEPS = [conv, pool, normalize]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A graph of one or two results, whose values are all used."""
    writer = Writer(draw)
    writer.ctx.weights = WeightStore()
    shape = draw(st.sampled_from([(3,), (2, 3), (2, 3, 2), (1, 2, 5, 4)]))
    array = writer.array(shape)
    writer.arguments.append(array)
    writer.values.append(writer.block.insert_arg(tensor_type_of(array), 0))
    for _ in range(writer.integer(1, 8)):
        images = [value for value in writer.values if len(shape_of(value)) == 4]
        if images and draw(st.booleans()):
            draw(st.sampled_from(IMAGE_STEPS))(writer, draw(st.sampled_from(images)))
            continue
        found = [value for value in writer.values if shape_of(value) and np.prod(shape_of(value)) <= 200]
        if found:
            draw(st.sampled_from(STEPS))(writer, draw(st.sampled_from(found[-3:])))
    results = writer.values[-2:]
    writer.block.add_op(ReturnOp(*results))
    types = list(writer.block.arg_types), [value.type for value in results]
    module = ModuleOp([FuncOp("main", types, Region(writer.block))])
    module.verify()
    return Program(writer.ctx, module, writer.arguments)


def moved(arrays: list[Array], directions: list[Array], step: float) -> list[Array]:
    return [array + step * direction for array, direction in zip(arrays, directions, strict=True)]


@examples(150)
@given(program=programs())
def test_the_gradient_is_what_finite_differences_give(program: Program) -> None:
    ctx, store = program.ctx, program.ctx.weights
    main = program.functions[0]
    names = sorted({op.weight for op in main.walk() if isinstance(op, graph.ConstantOp) and op.weight is not None})
    wrt = (*range(len(program.arguments)), *names)
    run_passes(ctx, program.module, [GraphGradientPass(wrt=wrt), *read_pipeline("cse,dce")])
    rng = np.random.default_rng(5)
    arguments, weights = program.arguments, [store[name] for name in names]
    along, along_weights = ([rng.uniform(-1, 1, each.shape) for each in group] for group in (arguments, weights))

    def at(step: float) -> list[Array]:
        there = WeightStore()
        for name, array in zip(names, moved(weights, along_weights, step), strict=True):
            there.add(name, array)
        return run_graph(main, moved(arguments, along, step), there)

    ends = at(STEP), at(-STEP)
    seeds = [rng.uniform(0.5, 1.5, output.shape) for output in ends[0]]
    expected = sum(float(np.sum(s * (a - b))) for s, a, b in zip(seeds, *ends, strict=True)) / (2 * STEP)
    gradients = run_graph(program.functions[1], [*arguments, *seeds], store)
    found = sum(float(np.sum(g * d)) for g, d in zip(gradients, [*along, *along_weights], strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_programs_are_worth_it() -> None:
    """The generator makes what the rules are about."""
    seen: set[str] = set()

    @settings(max_examples=200, derandomize=True)
    @given(program=programs())
    def collect(program: Program) -> None:
        seen.update(op.name.removeprefix("graph.") for op in program.module.walk())

    collect()
    assert {"conv", "max_pool", "average_pool", "matmul", "softmax", "gather", "slice", "where", "reduce_prod"} <= seen
