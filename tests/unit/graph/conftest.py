# SPDX-License-Identifier: Apache-2.0
"""What the tests of the graph level share: programs in text, and single ops run by the interpreter and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper
from tests.support.tensors import tensor_type_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region

from penstock.dialects import graph
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

# onnxruntime has no types
ort: Any = onnxruntime

Array = NDArray[Any]
Build = Callable[..., Operation]


def _function_of(arrays: Sequence[Array], build: Build) -> FuncOp:
    block = Block(arg_types=[tensor_type_of(array) for array in arrays])
    op = build(*block.args)
    block.add_ops([op, ReturnOp(*op.results)])
    types = [argument.type for argument in block.args], [result.type for result in op.results]
    func = FuncOp("main", types, Region(block))
    ModuleOp([func]).verify()
    return func


def _followed_by(build: Build, *constants: Any, **properties: Any) -> Build:
    """`build` of values that are followed by `constants` and `properties`."""
    return lambda *values: build(*values, *constants, **properties)


def _interpret(arrays: Sequence[Array], build: Build, *constants: Any, **properties: Any) -> Array:
    func = _function_of(arrays, _followed_by(build, *constants, **properties))
    (result,) = run_graph(func, arrays, WeightStore())
    return result


def _onnx_result(op_type: str, arrays: Sequence[Array | None], opset: int = 22, **attributes: Any) -> Array:
    names = ["" if array is None else f"x{index}" for index, array in enumerate(arrays)]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
        if array is not None
    ]
    output = helper.make_empty_tensor_value_info("y")
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, [output]),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        onnx.shape_inference.infer_shapes(model).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    feeds = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    return cast(Array, session.run(None, feeds)[0])


class Program:
    """A module at graph level with the weights it names."""

    def __init__(self, text: str, **weights: Any):
        self.ctx: PenstockContext = make_context()
        self.ctx.weights = WeightStore()
        for name, array in weights.items():
            self.ctx.weights.add(name, np.asarray(array, np.float32))
        self.module: ModuleOp = parse_text(self.ctx, SourceText("test.mlir", text)).module

    def run(self, *inputs: Array) -> list[Array]:
        return run_graph(self.module, inputs, self.ctx.weights)

    def after(self, pipeline: str) -> Program:
        run_passes(self.ctx, self.module, read_pipeline(pipeline))
        return self

    @property
    def main(self) -> FuncOp:
        func = self.module.body.block.first_op
        assert isinstance(func, FuncOp)
        return func

    @property
    def text(self) -> str:
        return str(self.module)

    def ops(self) -> list[Operation]:
        """The ops of @main, without those inside groups."""
        return list(self.main.body.block.ops)

    def count(self, *classes: type[Operation]) -> int:
        """How many ops of these classes there are, groups included."""
        return sum(isinstance(op, classes) for op in self.module.walk())

    def groups(self) -> list[list[str]]:
        """The names of the ops of each group."""
        return [
            [inner.name.removeprefix("graph.") for inner in op.body.block.ops][:-1]
            for op in self.ops()
            if isinstance(op, graph.FusedOp)
        ]

    def assert_kept(self, pipeline: str, *inputs: Array) -> None:
        """The pipeline changes no value (integers: every sum is exact), and a second run changes nothing at all."""
        before = self.run(*inputs)
        after = self.after(pipeline).run(*inputs)
        for expected, found in zip(before, after, strict=True):
            np.testing.assert_array_equal(found, expected)
        text = self.text
        assert self.after(pipeline).text == text


@pytest.fixture
def make() -> type[Program]:
    """`make(text, name=array, ...)`: a program and its weights."""
    return Program


@pytest.fixture
def function_of() -> Callable[[Sequence[Array], Build], FuncOp]:
    """`@main` whose arguments have the types of the arrays, and whose result is that of the op built on them."""
    return _function_of


@pytest.fixture
def interpret() -> Callable[..., Array]:
    """
    The value that the interpreter gives an op on the arrays, with what its constructor takes after the
    operands: `interpret([x], graph.ReshapeOp, [2, -1])`, `interpret([x], graph.LrnOp, size=3)`.
    """
    return _interpret


@pytest.fixture
def onnx_result() -> Callable[..., Array]:
    """
    What onnxruntime, its graph optimisations off, computes for a model of one node:
    `onnx_result("Conv", [x, w, None], pads=[1, 1])`; None is an absent input.
    """
    return _onnx_result
