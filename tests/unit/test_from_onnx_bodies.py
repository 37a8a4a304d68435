# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX defines by functions, and those whose definition is not the formula that runtimes compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from xdsl.dialects.builtin import NameLoc
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import AddOp
from penstock.lowering.from_onnx import import_model
from penstock.lowering.from_onnx.table import IMPORTERS, as_declared, imports

onnxruntime: Any = pytest.importorskip("onnxruntime")
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


def unary(operator: str, kind: int = FLOAT, **attributes: Any) -> ModelProto:
    """A model of one node called `one`."""
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], "one", **attributes)],
        "test",
        [helper.make_tensor_value_info("x", kind, [512])],
        [helper.make_empty_tensor_value_info("y")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8)


def test_celu_is_its_input_above_zero() -> None:
    model = unary("Celu", alpha=0.7)
    x = np.random.default_rng(0).normal(0, 3, 512).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    (found,) = penstock.compile(model, backend="interpreter")(x)
    np.testing.assert_array_equal(found[x > 0], expected[x > 0])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("operator", ["Mish", "Softsign", "ThresholdedRelu"])
def test_the_result_of_a_function_has_the_names_of_the_node(operator: str) -> None:
    module, _ = import_model(unary(operator))
    (function,) = module.ops
    assert isinstance(function, FuncOp)
    last = function.body.block.last_op
    assert last is not None
    (result,) = last.operands
    assert result.name_hint == "y"
    assert isinstance(result.owner, Operation)
    assert isinstance(result.owner.location, NameLoc)
    assert result.owner.location.desc.data == "one"


def test_what_a_function_refuses_is_refused_of_its_node() -> None:
    with pytest.raises(UserError) as caught:
        import_model(unary("Mish", INT32), name="model.onnx")
    assert str(caught.value).startswith('model.onnx: error: node "one" (Mish): Mish takes no tensor(int32) as input 0')


@pytest.mark.parametrize("count", [1, 3])
def test_a_binary_op_of_a_package_has_two_operands(count: int) -> None:
    imports("com.lab.Plus")(as_declared(AddOp))
    try:
        graph = helper.make_graph(
            [helper.make_node("Plus", ["x"] * count, ["y"], "one", domain="com.lab")],
            "test",
            [helper.make_tensor_value_info("x", FLOAT, [4])],
            [helper.make_empty_tensor_value_info("y")],
        )
        opsets = [helper.make_opsetid("", 22), onnx.helper.make_opsetid("com.lab", 1)]
        message = rf'node "one" \(com.lab.Plus\): it takes 2 operands, and has {count}'
        with pytest.raises(UserError, match=message):
            import_model(helper.make_model(graph, opset_imports=opsets))
    finally:
        del IMPORTERS["com.lab.Plus"]
