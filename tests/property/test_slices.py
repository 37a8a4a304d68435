# SPDX-License-Identifier: Apache-2.0
"""Random graphs in which slices, reshapes and concatenations meet kernels: the same bits at every level."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
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
from penstock.passes.analysis.kernels import partition, share_on_machine
from penstock.passes.graph.values import is_view
from penstock.runtime.compiler import compile_module
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph

Array = NDArray[Any]


@dataclass
class Writer:
    """Writes a random graph on small integers, most of whose ops are slices or read them."""

    rng: np.random.Generator
    ctx: PenstockContext = field(default_factory=make_context)
    block: Block = field(default_factory=Block)
    values: list[SSAValue] = field(default_factory=list[SSAValue])

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def pick(self) -> SSAValue:
        # What is new is picked more often: chains of views come about.
        return self.values[-1 - min(self.integer(0, len(self.values) - 1), self.integer(0, len(self.values) - 1))]

    def emit(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        self.values.append(op.results[0])
        return op.results[0]

    def weight(self, *shape: int) -> SSAValue:
        array = self.rng.integers(-1, 2, shape).astype(np.float32)
        name = self.ctx.weights.add(f"w{len(list(self.block.ops))}", array)
        op = graph.ConstantOp(WeightAttr(name), tensor_type_of(array))
        self.block.add_op(op)
        return op.result

    def slice(self, x: SSAValue) -> None:
        starts: list[int] = []
        sizes: list[int] = []
        steps: list[int] = []
        for size in shape_of(x):
            whole = self.integer(0, 2) == 0
            step = 1 if whole else int(self.rng.choice([1, 1, 1, 1, 2, -1]))
            start = 0 if whole else self.integer(0, size - 1)
            room = start // -step if step < 0 else (size - 1 - start) // step
            starts.append(start)
            steps.append(step)
            sizes.append(size if whole else self.integer(1 + room // 2, 1 + room))
        self.emit(graph.SliceOp(x, starts=starts, sizes=sizes, steps=steps))

    def split(self, x: SSAValue) -> None:
        shape = shape_of(x)
        axis = int(self.rng.choice([dim for dim, size in enumerate(shape) if size > 1] or [0]))
        cut = max(shape[axis] // 2, 1)
        for start, size in ((0, cut), (cut, shape[axis] - cut)):
            if size:
                starts = [start if dim == axis else 0 for dim in range(len(shape))]
                sizes = [size if dim == axis else extent for dim, extent in enumerate(shape)]
                self.emit(graph.SliceOp(x, starts=starts, sizes=sizes))

    def reshape(self, x: SSAValue) -> None:
        shape = list(shape_of(x))
        at = self.integer(0, len(shape) - 1)
        if len(shape) > 2:
            at = min(at, len(shape) - 2)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        else:
            factor = next(f for f in (3, 2, 1) if shape[at] % f == 0)
            shape[at : at + 1] = [factor, shape[at] // factor]
        self.emit(graph.ReshapeOp(x, shape))

    def concat(self, x: SSAValue) -> None:
        shape, axis = shape_of(x), self.integer(0, len(shape_of(x)) - 1)
        fitting = [
            value
            for value in self.values
            if len(shape_of(value)) == len(shape)
            and all(dim == axis or shape_of(value)[dim] == size for dim, size in enumerate(shape))
        ]
        inputs = [x, fitting[self.integer(0, len(fitting) - 1)]]
        if sum(prod(shape_of(value)) for value in inputs) <= 600:
            self.emit(graph.ConcatOp(inputs, axis=axis))

    def compute(self, x: SSAValue) -> None:
        alike = [value for value in self.values if shape_of(value) == shape_of(x)]
        sum_op = graph.AddOp(x, alike[self.integer(0, len(alike) - 1)])
        self.block.add_op(sum_op)
        self.emit(graph.ClipOp(sum_op.result, min=-9, max=9))

    def product(self, x: SSAValue) -> None:
        shape = shape_of(x)
        if len(shape) != 2:
            return self.compute(x)
        fitting = [value for value in self.values if len(shape_of(value)) == 2 and shape_of(value)[0] == shape[1]]
        factor = fitting[0] if fitting and self.integer(0, 1) else self.weight(shape[1], self.integer(1, 9))
        matmul = graph.MatmulOp(x, factor)
        self.block.add_op(matmul)
        bias = self.weight(shape_of(matmul.result)[1])
        biased = graph.AddOp(matmul.result, bias)
        self.block.add_op(biased)
        self.emit(graph.ClipOp(biased.result, min=-9, max=9))


def shape_of(value: SSAValue) -> tuple[int, ...]:
    return tuple(tensor_of(value).get_shape())


def program(seed: int) -> tuple[PenstockContext, ModuleOp, list[Array]]:
    """A context with weights, a module, and its inputs."""
    rng = np.random.default_rng(seed)
    writer = Writer(rng)
    inputs = [
        rng.integers(-4, 5, shape).astype(np.float32)
        for shape in ((writer.integer(2, 6), writer.integer(2, 12)), (2, writer.integer(2, 6), writer.integer(2, 6)))
    ]
    for array in inputs:
        writer.values.append(writer.block.insert_arg(tensor_type_of(array), len(writer.block.args)))
    steps = (
        *(writer.slice, writer.slice, writer.split, writer.reshape, writer.concat),
        *(writer.compute, writer.product, writer.product),
    )
    for _ in range(writer.integer(3, 12)):
        steps[writer.integer(0, len(steps) - 1)](writer.pick())
    results = [writer.values[-1], *(writer.pick() for _ in range(writer.integer(0, 2)))]
    writer.block.add_op(ReturnOp(*results))
    types = (list(writer.block.arg_types), [value.type for value in results])
    module = ModuleOp([FuncOp("main", types, Region(writer.block))])
    module.verify()
    return writer.ctx, module, inputs


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"])
@examples(25)
@given(seed=st.integers(0, 2**31))
def test_programs_of_slices_are_the_same_at_every_level(machine: str | None, seed: int) -> None:
    ctx, module, inputs = program(seed)
    expected = run_graph(module, inputs, ctx.weights)
    for level in ("tensor", "loop", "accel") if machine else ("tensor", "loop"):
        compile_module(module, ctx, machine, level)
        for found, wanted in zip(run_module(module, inputs, ctx.weights), expected, strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=level)


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"])
@pytest.mark.parametrize("seed", range(4))
def test_programs_of_slices_are_the_same_in_c(machine: str | None, seed: int) -> None:
    ctx, module, inputs = program(1000 + seed)
    expected = run_graph(module, inputs, ctx.weights)
    compile_module(module, ctx, machine, "accel" if machine else "loop")
    for found, wanted in zip(Engine(module, ctx).run(inputs), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_programs_are_worth_it() -> None:
    """The generator makes what the tests are about: views, slices that are none, and views that a machine reads."""
    views = copies = on_machine = 0
    for seed in range(10):
        ctx, module, _ = program(seed)
        slices = [op for op in module.walk() if isinstance(op, graph.SliceOp)]
        views += sum(is_view(op) for op in slices)
        copies += sum(not is_view(op) for op in slices)
        compile_module(module, ctx, "gemmini-fp32", "tensor")
        on_machine += share_on_machine(partition(module)) > 0
    assert min(views, copies, on_machine) >= 3, (views, copies, on_machine)
