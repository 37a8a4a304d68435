# SPDX-License-Identifier: Apache-2.0
"""Arrays that begin with a line of the caches: outputs, and weights wherever they come from."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import penstock
from penstock.dialects import alignment
from penstock.dialects.weights import WeightStore
from penstock.runtime import engine as engines


def is_on_line(array: NDArray[Any]) -> bool:
    return array.size == 0 or array.ctypes.data % alignment.ALIGNMENT == 0


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, ml_dtypes.bfloat16, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 7), (3, 1, 129)])
def test_new_arrays_and_copies_are_as_numpy_makes_them(shape: tuple[int, ...], dtype: Any) -> None:
    made = alignment.empty(shape, np.dtype(dtype))
    assert is_on_line(made)
    assert (made.shape, made.dtype) == (shape, np.dtype(dtype))
    assert made.flags.c_contiguous
    assert made.flags.writeable
    values = np.ones((*shape, 2), np.dtype(dtype))[..., 1]
    copy = alignment.copied(values)
    assert is_on_line(copy)
    np.testing.assert_array_equal(copy, values)


def test_an_array_on_a_line_stays_and_another_one_is_copied() -> None:
    array = alignment.empty([17], np.dtype(np.float32))
    array[:] = np.arange(17)
    assert alignment.on_line(array) is array
    other = alignment.on_line(array[1:])
    assert is_on_line(other)
    np.testing.assert_array_equal(other, array[1:])


def test_the_store_keeps_what_is_computed_on_lines() -> None:
    values = alignment.empty([33, 5], np.dtype(np.float32))
    values[:] = 1
    store = WeightStore()
    for array in (values[1:], values.T, values[:, 1:]):
        stored = store[store.add("w", array)]
        assert is_on_line(stored)
        np.testing.assert_array_equal(stored, array)


def test_outputs_and_weights_of_an_engine_are_on_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.random.default_rng(0).standard_normal((24, 20)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 20])],
        [numpy_helper.from_array(matrix, "w")],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    bound: list[NDArray[Any]] = []
    on_line = alignment.on_line

    def noted(array: NDArray[Any]) -> NDArray[Any]:
        bound.append(on_line(array))
        return bound[-1]

    monkeypatch.setattr(engines.alignment, "on_line", noted)
    engine = penstock.compile(model, "host-avx512")
    assert isinstance(engine, penstock.Engine)
    x = np.ones((1, 24), np.float32)
    (found,) = engine(x)
    assert is_on_line(found)
    assert bound
    assert all(map(is_on_line, bound))
    np.testing.assert_allclose(found, x @ matrix, rtol=1e-5)
