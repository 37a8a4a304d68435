# SPDX-License-Identifier: Apache-2.0
"""Buffers that become tiles of results, those that do not, and that values stay as they are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from sampling import sweep
from xdsl.dialects import memref, scf

import penstock
from penstock.dialects.context import make_context
from penstock.dialects.mem import BufferOp, memref_of, scope_of
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.loop.compute_in_results import ComputeInResultsPass
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine


def rows(node: str, shape: tuple[int, int], machine: str = "host-avx512", threads: int = 1) -> penstock.Engine:
    graph = helper.make_graph(
        [helper.make_node(node, ["x"], ["y"], axis=-1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    engine = penstock.compile(model, machine, threads=threads)
    assert isinstance(engine, penstock.Engine)
    return engine


def largest(engine: penstock.Engine) -> int:
    """The elements of the largest buffer off chip."""
    found = [op for op in engine.module.walk() if isinstance(op, BufferOp) and scope_of(op.memref.type) is None]
    return max((int(np.prod(memref_of(op.memref).get_shape())) for op in found), default=0)


@pytest.mark.parametrize("threads", sweep([1, 2], [2]))
@pytest.mark.parametrize(
    ("node", "shape"), [("Softmax", (64, 1024)), ("Softmax", (13, 1000)), ("LogSoftmax", (6, 700))]
)
def test_values_stay_as_they_are(node: str, shape: tuple[int, int], threads: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 20
    x[0, :3] = -np.inf, 60, -200
    x[1, 5] = np.nan
    engine = rows(node, shape, threads=threads)
    (found,) = engine(x)
    interpreted: NDArray[Any] = run_module(engine.module, [x], WeightStore())[0]
    np.testing.assert_array_equal(found, interpreted)
    plain: NDArray[Any] = rows(node, shape, "host")(x)[0]
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)


def test_the_exponentials_of_a_row_lie_in_the_result_and_rows_run_at_once() -> None:
    engine = rows("Softmax", (64, 1024), threads=2)
    assert largest(engine) < 1024
    assert any(isinstance(op, scf.ParallelOp) or op.name == "scf.forall" for op in engine.module.walk())


SHARES = """
#row = affine_map<(i, j) -> (i, j)>
#scalar = affine_map<(i, j) -> (i)>
func.func @main(%x: memref<64x32xf32>, %s: memref<1xf32>, %y: memref<64x32xf32>) {
  %0 = arith.constant 0 : index
  %n = arith.constant 64 : index
  %step = arith.constant 1 : index
  scf.for %i = %0 to %n step %step {
    %row = memref.subview %x[%i, 0] [1, 32] [1, 1] : memref<64x32xf32> to memref<1x32xf32, strided<[32, 1], offset: ?>>
    %out = memref.subview %y[%i, 0] [1, 32] [1, 1] : memref<64x32xf32> to memref<1x32xf32, strided<[32, 1], offset: ?>>
    %e = memref.alloc() : memref<1x32xf32>
    linalg.generic {indexing_maps = [#row, #row], iterator_types = ["parallel", "parallel"]}
        ins(%row : memref<1x32xf32, strided<[32, 1], offset: ?>>) outs(%e : memref<1x32xf32>) {
    ^bb0(%a: f32, %b: f32):
      %r = arith.addf %a, %a : f32
      linalg.yield %r : f32
    }
    linalg.generic {indexing_maps = [#row, #scalar, #row], iterator_types = ["parallel", "parallel"]}
        ins(%e, %s : memref<1x32xf32>, memref<1xf32>) outs(%out : memref<1x32xf32, strided<[32, 1], offset: ?>>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %r = arith.divf %a, %b : f32
      linalg.yield %r : f32
    }
  }
  func.return
}
"""


def buffers_left(text: str, machine: str | None = "host-avx512") -> int:
    ctx = make_context()
    module = parse_text(ctx, SourceText("shares.mlir", text)).module
    if machine is not None:
        attach_machine(module, machine)
    ComputeInResultsPass().apply(ctx, module)
    module.verify()
    return sum(isinstance(op, memref.AllocOp) for op in module.walk())


def test_a_buffer_becomes_the_tile_of_the_result() -> None:
    assert buffers_left(SHARES) == 0


OTHERS = {
    "tiles overlap": (
        r"\[1, 32\] \[1, 1\] : (memref<64x32xf32>) to memref<1x32",
        r"[2, 32] [1, 1] : \1 to memref<2x32",
    ),
    "the old value is read": (r"%r = arith.divf %a, %b", "%r = arith.divf %c, %b"),
    "read in another order": (r"\[#row, #scalar, #row\]", "[affine_map<(i, j) -> (i, 31 - j)>, #scalar, #row]"),
    "the result is read elsewhere": (
        "  func.return",
        '  "memref.copy"(%y, %x) : (memref<64x32xf32>, memref<64x32xf32>) -> ()\n  func.return',
    ),
    "the result has another name": (
        r"(  scf.for .*\n)((?:.*\n)*?)(.*)memref.subview %y\[%i, 0\]",
        r"  %z = memref.subview %y[0, 0] [64, 32] [1, 1] : memref<64x32xf32> to memref<64x32xf32, strided<[32, 1]>>\n"
        r"\1\2\3memref.subview %z[%i, 0]",
    ),
    "the elements have another type": (
        r"(?s)(%y: )memref<64x32xf32>(.*memref.subview %y.*: )memref<64x32xf32> to memref<1x32xf32(.*)"
        r"outs\(%out : memref<1x32xf32(.*)%c: f32(.*)arith.divf %a, %b : f32\n",
        r"\1memref<64x32xf16>\2memref<64x32xf16> to memref<1x32xf16\3"
        r"outs(%out : memref<1x32xf16\4%c: f16\5arith.truncf %a : f32 to f16\n",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_buffer_stays_where(name: str) -> None:
    old, new = OTHERS[name]
    text = re.sub(old, new, SHARES)
    assert text != SHARES
    if name == "tiles overlap":
        text = text.replace("memref<1x32xf32", "memref<2x32xf32").replace("memref<1xf32>", "memref<2xf32>")
        text = text.replace("constant 64", "constant 63")
    if name == "the result has another name":
        text = text.replace(
            "%z[%i, 0] [1, 32] [1, 1] : memref<64x32xf32>",
            "%z[%i, 0] [1, 32] [1, 1] : memref<64x32xf32, strided<[32, 1]>>",
        )
    if name == "the elements have another type":
        text = text.replace("linalg.yield %r : f32\n    }\n  }", "linalg.yield %r : f16\n    }\n  }")
    assert buffers_left(text) == 1


def test_a_softmax_of_halves_keeps_its_buffer() -> None:
    text = """func.func @main(%x: tensor<64x256xf16>) -> tensor<64x256xf16> {
      %y = graph.softmax %x axis 1 : tensor<64x256xf16> -> tensor<64x256xf16>
      func.return %y : tensor<64x256xf16>
    }"""
    ctx = make_context()
    module = parse_text(ctx, SourceText("halves.mlir", text)).module
    compile_module(module, ctx, "host-avx512")
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float16)
    expected = np.exp(x.astype(np.float32) - x.max(1, keepdims=True))
    np.testing.assert_allclose(
        run_module(module, [x], WeightStore())[0], expected / expected.sum(1, keepdims=True), rtol=2e-3
    )


def test_without_a_host_that_is_described_nothing_happens() -> None:
    assert buffers_left(SHARES, None) == 1


def test_a_kernel_that_is_called_with_one_memory_twice_keeps_its_buffer() -> None:
    kernel = SHARES.replace("func.func @main", "func.func private @kernel")
    call = """
func.func @main(%x: memref<64x32xf32>, %s: memref<1xf32>, %y: memref<64x32xf32>) {
  func.call @kernel(%x, %s, %y) : (memref<64x32xf32>, memref<1xf32>, memref<64x32xf32>) -> ()
  func.return
}
"""
    assert buffers_left(kernel + call) == 0
    assert buffers_left(kernel + call.replace("(%x, %s, %y)", "(%x, %s, %x)")) == 1
