# SPDX-License-Identifier: Apache-2.0
"""Reductions where sums overflow, are infinite, or are of integers: against onnxruntime, at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import agree, onnxruntime_of, run_at
from onnx import TensorProto, helper, numpy_helper

ALONG = np.array([1])
INFINITE = np.array([[-np.inf, -np.inf], [np.inf, 1], [np.inf, -np.inf], [1000, 1000], [-3, np.nan]])


@pytest.mark.parametrize(
    ("operator", "x"),
    [
        ("ReduceMean", np.array([[2**31 - 1, 2**31 - 1, 5], [-7, -8, -8]], np.int32)),
        ("ReduceL2", np.array([[3, 4, 5], [0, 0, 2]], np.int32)),
        # The axes have the type of the data.
        ("ReduceL2", np.array([[3, 4, 5], [0, 0, 2]])),
        ("ReduceLogSumExp", INFINITE.astype(np.float32)),
        ("ReduceLogSumExp", INFINITE),
        ("ReduceMean", np.full((1, 4), 60000, np.float16)),
        ("ReduceL2", np.full((1, 4), 300, np.float16)),
        ("ReduceProd", np.array([[60000, 60000, 1e-4, 1e-4]], np.float16)),
        ("ReduceSum", np.ones((1, 4096), np.float16)),
    ],
    ids=lambda value: str(getattr(value, "dtype", value)),
)
def test_a_reduction_is_that_of_onnxruntime(operator: str, x: np.ndarray[Any, Any]) -> None:
    agree(operator, [x, ALONG], known=[1], keepdims=0)


def test_a_layer_normalisation_of_float64_is_computed_in_it() -> None:
    agree("LayerNormalization", [np.array([[1e9, 1e9 + 1, 1e9 + 3]]), np.ones(3)], rtol=1e-6)


def test_the_reduction_of_a_computed_value_drops_its_axes() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("ReduceLogSumExp", ["r", "a"], ["y"], keepdims=0)]
    x = np.linspace(-3, 4, 12, dtype=np.float32).reshape(3, 4)
    infos = [helper.make_tensor_value_info(*each) for each in (("x", TensorProto.FLOAT, x.shape), ("y", 1, [3]))]
    graph = helper.make_graph(nodes, "test", infos[:1], infos[1:], [numpy_helper.from_array(ALONG, "a")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    for _, (found,) in run_at(model, [x], ("graph", "loop")):
        np.testing.assert_allclose(found, onnxruntime_of(model, {"x": x})[0], rtol=1e-6)
