# SPDX-License-Identifier: Apache-2.0
"""Products with matrices on machines whose matrix intrinsic reads its factors by rows, or by columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto

import penstock
from penstock.dialects.weights import Array
from penstock.runtime.engine import Engine

M, N, K = 6, 10, 12

MACHINE = """
[machine]
name = "oriented"
freq_mhz = { value = 500, assumed = true }

[[scope]]
name = "sram"
size = 8192
granule = 16
dtypes = ["f32"]
assumed = true

[[scope]]
name = "acc"
size = 2048
granule = 16
dtypes = ["f32"]
assumed = true

[[unit]]
name = "mover"

[[unit]]
name = "mac"

[[dma]]
name = "fill"
unit = "mover"
from = ["dram"]
to = ["sram", "acc"]
dims = 2
latency = 40
row_overhead = 1
outstanding = 4
assumed = true

[[dma]]
name = "drain"
unit = "mover"
from = ["acc"]
to = ["dram"]
dims = 2
latency = 40
row_overhead = 1
outstanding = 4
assumed = true

[[intrinsic]]
name = "multiply"
unit = "mac"
behaviour = "acc[m,n] += a[{a}] * b[{b}]"
operands = [
  {{ name = "a", scope = "sram", dtype = "f32", role = "in", strides = "row" }},
  {{ name = "b", scope = "sram", dtype = "f32", role = "in", strides = "row" }},
  {{ name = "acc", scope = "acc", dtype = "f32", role = "inout", strides = "row" }},
]
shape = {{ m = [1, 4], n = [1, 4], k = [1, 8] }}
ii = 8
depth = 10
assumed = true

[[intrinsic]]
name = "zero"
dma = "fill"
behaviour = "dst[i,j] = 0"
operands = [{{ name = "dst", scope = "acc", dtype = "f32", role = "out", strides = "row" }}]
assumed = true
"""


def machine(folder: Path, trans_a: bool, trans_b: bool) -> str:
    head, _, tail = MACHINE.partition("[[intrinsic]]")
    tail = tail.format(a="k,m" if trans_a else "m,k", b="n,k" if trans_b else "k,n")
    path = folder / "oriented.toml"
    path.write_text(head + "[[intrinsic]]" + tail, encoding="utf-8")
    return str(path)


def model(nodes: list[NodeProto], x: list[int], y: list[int], weights: dict[str, Array], given: bool) -> ModelProto:
    """A model of `x` whose weights are in it, or are inputs of it if they are `given`."""
    inputs = [oh.make_tensor_value_info("x", TensorProto.FLOAT, x)]
    if given:
        inputs += [oh.make_tensor_value_info(n, TensorProto.FLOAT, list(w.shape)) for n, w in weights.items()]
    outputs = [oh.make_tensor_value_info("y", TensorProto.FLOAT, y)]
    kept = [] if given else [onh.from_array(w, n) for n, w in weights.items()]
    graph = oh.make_graph(nodes, "g", inputs, outputs, kept)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


def integers(*shape: int) -> Array:
    """Small ones, whose sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def layers() -> Iterator[tuple[str, list[NodeProto], list[int], list[int], dict[str, Array]]]:
    """Every way to write a layer: name, nodes, the shapes of x and y, weights."""
    for trans_a, trans_b, bias in product((0, 1), (0, 1), (False, True)):
        w = integers(N, K) if trans_b else integers(K, N)
        weights = {"w": w, "c": integers(N)} if bias else {"w": w}
        node = oh.make_node("Gemm", ["x", *weights], ["y"], transA=trans_a, transB=trans_b)
        yield f"gemm {trans_a}{trans_b}{bias}", [node], [K, M] if trans_a else [M, K], [M, N], weights
    yield "matmul", [oh.make_node("MatMul", ["x", "w"], ["y"])], [M, K], [M, N], {"w": integers(K, N)}
    yield "batched", [oh.make_node("MatMul", ["x", "w"], ["y"])], [2, 3, K], [2, 3, N], {"w": integers(K, N)}
    turned = oh.make_node("Transpose", ["w"], ["t"], perm=[1, 0])
    linear = [turned, oh.make_node("MatMul", ["x", "t"], ["p"]), oh.make_node("Add", ["p", "c"], ["y"])]
    yield "linear", linear, [M, K], [M, N], {"w": integers(N, K), "c": integers(N)}
    yield "linear of batches", linear, [2, 3, K], [2, 3, N], {"w": integers(N, K), "c": integers(N)}


Case = tuple[bool, bool, str, list[NodeProto], list[int], list[int], dict[str, Array], bool]
CASES: list[Case] = [
    (trans_a, trans_b, *layer, given)
    for (trans_a, trans_b), layer, given in product(product((False, True), repeat=2), layers(), (False, True))
]


def check(case: Case, folder: Path) -> None:
    trans_a, trans_b, name, nodes, x, y, weights, given = case
    made = model(nodes, x, y, weights, given)
    engine = penstock.compile(made, machine=machine(folder, trans_a, trans_b), backend="interpreter")
    assert isinstance(engine, Engine)
    (share,) = [line for line in engine.report.lines() if "multiply-accumulates" in line]
    assert share.startswith("oriented: 100.0% of"), (name, given, engine.report.lines())
    arrays = {"x": integers(*x), **(weights if given else {})}
    expected = cast(Any, onnxruntime).InferenceSession(made.SerializeToString()).run(None, arrays)[0]
    np.testing.assert_array_equal(engine.run(list(arrays.values()), {})[0], expected, err_msg=f"{name} {given}")


@pytest.mark.parametrize("case", CASES[3::19], ids=lambda case: f"{case[2]} on {case[0]:d}{case[1]:d}")
def test_a_layer_runs_on_the_machine_whichever_way_its_factors_are_stored(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.slow
def test_every_layer_runs_on_the_machine_whichever_way_its_factors_are_stored(tmp_path: Path) -> None:
    for case in CASES:
        check(case, tmp_path)
