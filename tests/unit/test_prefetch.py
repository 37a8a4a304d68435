# SPDX-License-Identifier: Apache-2.0
"""What loops of rows ask for ahead, and that it changes no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import penstock
from penstock.dialects.mem import PrefetchOp
from penstock.dialects.weights import WeightStore
from penstock.lowering.to_c.module import emit_c
from penstock.lowering.to_llvm.module import emit_llvm
from penstock.runtime.interpreter import run_module


def softmax(rows: int, columns: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def compiled(rows: int, columns: int, machine: str | None = "host-avx512", threads: int = 1) -> penstock.Engine:
    engine = penstock.compile(softmax(rows, columns), machine, threads=threads)
    assert isinstance(engine, penstock.Engine)
    return engine


def prefetches(engine: penstock.Engine) -> list[PrefetchOp]:
    return [op for op in engine.module.walk() if isinstance(op, PrefetchOp)]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_next_rows_are_asked_for_and_values_stay(threads: int) -> None:
    # The tiles of 13 rows overlap at the end: the last iterations ask for rows that are there.
    x = np.random.default_rng(0).standard_normal((13, 1000)).astype(np.float32)
    engine = compiled(13, 1000, threads=threads)
    assert len(prefetches(engine)) == threads
    (found,) = engine(x)
    interpreted: NDArray[Any] = run_module(engine.module, [x], WeightStore())[0]
    np.testing.assert_array_equal(found, interpreted)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)


def test_both_languages_write_it() -> None:
    module = compiled(64, 1024).module
    assert "PENSTOCK_PREFETCH(&v" in emit_c(module).source
    assert "call void @llvm.prefetch.p0(ptr" in emit_llvm(module).text


@pytest.mark.parametrize(
    ("rows", "columns", "machine"),
    [(64, 1024, None), (64, 8, "host-avx512"), (64, 100_000, "host-avx512")],
    ids=["no machine", "a line", "more than the cache holds"],
)
def test_nothing_is_asked_for_where_it_would_not_help(rows: int, columns: int, machine: str | None) -> None:
    assert not prefetches(compiled(rows, columns, machine))
