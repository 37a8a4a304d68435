# SPDX-License-Identifier: Apache-2.0
"""What a graph op declares is all that there is to say: fallbacks of all ops, and a new one in one class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import pytest
from xdsl.dialects.builtin import (
    FileLineColLoc,
    Float32Type,
    FloatAttr,
    FunctionType,
    IntAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region
from xdsl.irdl import irdl_op_definition, prop_def, traits_def
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

import penstock
from penstock.dialects import graph
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import formula
from penstock.dialects.graph.base import (
    HasQuantizedForm,
    IsConstantAlmostEverywhere,
    KeepsFinite,
    SelectsElements,
    single,
)
from penstock.dialects.graph.formula import Scalar
from penstock.dialects.graph.number import Number
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_onnx import import_model
from penstock.lowering.from_onnx.table import IMPORTERS, as_declared, imports
from penstock.lowering.graph_to_tensor import GraphToTensorPass
from penstock.lowering.graph_to_tensor.kernel import lowering_of
from penstock.passes.graph import gradient as _rules  # noqa: F401  # pyright: ignore[reportUnusedImport]
from penstock.passes.graph.gradients.code import RULES as GRADIENTS
from penstock.passes.graph.layouts.rules import RULES as LAYOUTS
from penstock.passes.scalar_body import _RELATIONS, _SCALAR_OPS, Body  # pyright: ignore[reportPrivateUsage]
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import IMPLEMENTATIONS, implementation_of
from penstock.runtime.interpreter.graph.formulas import FUNCTIONS

DOC = Path(__file__).parents[3] / "docs" / "graph_ops.md"
T = TypeVar("T")

APART = {graph.ConstantOp, graph.FusedOp, graph.IfOp, graph.KernelOp, graph.LoopOp, graph.YieldOp}
"""Ops without operands, those that hold or end regions, and calls of kernels."""
TRAITS = (KeepsFinite, SelectsElements, HasQuantizedForm, IsConstantAlmostEverywhere)


def computed(op_class: type[graph.GraphOp]) -> str:
    return "registered" if IMPLEMENTATIONS.find(op_class) else "formula"


def derivative(op_class: type[graph.GraphOp]) -> str:
    if op_class.has_trait(IsConstantAlmostEverywhere):
        return "zero"
    return "rule" if GRADIENTS.find(op_class) else "refused"


def layout(op_class: type[graph.GraphOp]) -> str:
    if issubclass(op_class, graph.PointwiseOp):
        return "any order" if op_class.has_trait(KeepsFinite) else "any order without padding"
    has_own = "layout" in op_class.get_irdl_definition().properties
    return "own" if has_own else "rule" if LAYOUTS.find(op_class) else "as it was"


def rows() -> Iterator[str]:
    for op_class in graph.OPS:
        if issubclass(op_class, graph.GraphOp) and op_class not in APART:
            traits = ", ".join(f"`{trait.__name__}`" for trait in TRAITS if op_class.has_trait(trait))
            cells = (computed(op_class), derivative(op_class), layout(op_class), traits)
            yield f"| `{op_class.name.removeprefix('graph.')}` | {' | '.join(cells)} |"


def test_the_documented_fallback_of_every_op_is_the_one_it_takes() -> None:
    lines = DOC.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `")] == list(rows())


def test_every_op_is_computed_and_lowered() -> None:
    ops = [op_class for op_class in graph.OPS if op_class not in APART]
    assert [op_class.name for op_class in ops if implementation_of(op_class) is None] == []
    assert [op_class.name for op_class in ops if lowering_of(op_class) is None] == []


@irdl_op_definition
class HardTanhOp(graph.UnaryOp):
    """max(-limit, min(limit, x)): all that a package writes for it."""

    name = "lab.hard_tanh"

    limit = prop_def(FloatAttr[Float32Type], default_value=single(1.0))
    custom_directives = (Number,)
    traits = traits_def(KeepsFinite(), HasQuantizedForm())
    assembly_format = "$x (`limit` custom<Number>($limit)^)? attr-dict `:` type($x)"

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        return x.clamp(-self.limit.value.data, self.limit.value.data)


@pytest.fixture
def model() -> Iterator[onnx.ModelProto]:
    imports("com.lab.HardTanh")(as_declared(HardTanhOp))
    made = onnx.helper.make_graph(
        [onnx.helper.make_node("HardTanh", ["x"], ["y"], "bounded", domain="com.lab", limit=2.5)],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 8])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 8])],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.lab", 1)]
    yield onnx.helper.make_model(made, opset_imports=opsets)
    del IMPORTERS["com.lab.HardTanh"]


X = np.linspace(-4, 4, 32, dtype=np.float32).reshape(4, 8)


def test_a_new_elementwise_op_is_one_class(model: onnx.ModelProto) -> None:
    module, store = import_model(model)
    assert "lab.hard_tanh %x limit 2.5 : tensor<4x8xf32>" in str(module)
    np.testing.assert_array_equal(run_module(module, [X], store)[0], np.clip(X, -2.5, 2.5))
    GraphToTensorPass().apply(make_context(), module)
    assert "lab.hard_tanh" not in str(module)
    np.testing.assert_array_equal(run_module(module, [X], WeightStore())[0], np.clip(X, -2.5, 2.5))


@pytest.mark.parametrize(("machine", "backend"), [(None, "native"), ("gemmini-fp32", "interpreter")])
def test_a_new_elementwise_op_is_compiled(model: onnx.ModelProto, machine: str | None, backend: str) -> None:
    engine = penstock.compile(model, machine=machine, backend=backend)  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(engine(X)[0], np.clip(X, -2.5, 2.5))


class OnArrays:
    def like(self, value: float, other: Array) -> Array:
        return other.dtype.type(value)

    def apply(self, function: str, *elements: Array) -> Array:
        return FUNCTIONS[function](*elements)


def test_a_formula_is_written_with_the_operators_of_python() -> None:
    x = Scalar(np.array([-2.0, 0.5, 4.0], np.float32), OnArrays())
    found = [1 - x, 2 * x - 3, 1 + x, 1 / x, x - x, -x / 2]
    expected = [1 - x.value, 2 * x.value - 3, 1 + x.value, 1 / x.value, x.value - x.value, -x.value / 2]
    for each, values in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each.value, values)
    np.testing.assert_array_equal((x < 0.5).value, [True, False, False])


def test_the_functions_of_formulas_are_documented_and_known_at_all_levels() -> None:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in sorted(formula.FUNCTIONS.items())]
    assert "\n".join(rows) in (DOC.parent / "reference" / "formulas.md").read_text()
    assert set(FUNCTIONS) == set(formula.FUNCTIONS)
    missing = {
        name for name in formula.FUNCTIONS if name not in {**_SCALAR_OPS, **_RELATIONS} and not hasattr(Body, name)
    }
    assert missing == {"identity"}, "which is no op at tensor level"


@irdl_op_definition
class BentOp(graph.UnaryOp):
    """Not what it looks like."""

    name = "lab.bent"

    def formula(self, x: Scalar[Any]) -> Scalar[Any]:
        return x.apply("tanhh")


def test_an_unknown_function_is_an_error_at_the_op() -> None:
    pair = TensorType(f32, [2])
    block = Block(arg_types=[pair])
    op = BentOp(block.args[0])
    op.location = FileLineColLoc(StringAttr("lab.mlir"), IntAttr(3), IntAttr(4))
    block.add_ops([op, ReturnOp(op.result)])
    module = ModuleOp([FuncOp("main", FunctionType.from_lists([pair], [pair]), Region(block))])
    run: tuple[Callable[[], object], ...] = (
        lambda: run_module(module, [X[0, :2]], WeightStore()),
        lambda: GraphToTensorPass().apply(make_context(), module),
    )
    for each in run:
        with pytest.raises(UserError, match=r'lab\.bent: a formula applies "tanhh", which is no function') as raised:
            each()
        assert raised.value.notes == ('did you mean "tanh"?',)
        assert "lab.mlir" in str(raised.value.loc)


def test_a_bound_of_integers_is_a_number() -> None:
    text = "func.func @main(%x: tensor<4xi32>) {\n  %y = graph.clip %x min nan : tensor<4xi32>\n  func.return\n}"
    with pytest.raises(VerifyException, match="a bound of integers is NaN"):
        Parser(make_context(), text).parse_module().verify()
