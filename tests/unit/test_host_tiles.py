# SPDX-License-Identifier: Apache-2.0
"""Kernels of the host in tiles that its registers hold, beside onnxruntime."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from one_node import onnxruntime_of
from onnx import TensorProto, helper, numpy_helper
from programs import parsed_in_context

import penstock
from penstock.dialects.mem import CopyOp, memref_of, span_in_bytes
from penstock.lowering.to_text import module_text
from penstock.passes.analysis.kernels import kernels
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes

MACHINES = ("host-avx2", "host-avx512-vnni", "host-neon")

Weights = dict[str, NDArray[Any]]


def model(nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: Weights) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutions(seed: int) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """Two convolutions of random shapes, the second with what the first makes added."""
    draw, values = random.Random(seed), np.random.default_rng(seed)
    channels, size = draw.choice([3, 8, 16, 24, 32, 48]), draw.randint(3, 15)
    kernel, stride, dilation = draw.choice([1, 1, 3, 5]), draw.choice([1, 1, 2]), draw.choice([1, 1, 2])
    pads = [draw.randint(0, 2) for _ in range(4)]
    if min(size + pads[0] + pads[2], size + pads[1] + pads[3]) <= (kernel - 1) * dilation:
        kernel = 1
    group = draw.choice([1, 1, 1, channels, channels // 8 if channels % 8 == 0 else 1])
    outputs = draw.choice([1, 2, 3]) * (group if group > 1 else draw.choice([8, 16, 10]))
    weights: Weights = {
        "w": values.standard_normal((outputs, channels // group, kernel, kernel)).astype(np.float32),
        "b": values.standard_normal(outputs).astype(np.float32),
        "v": values.standard_normal((outputs, outputs, 1, 1)).astype(np.float32),
    }
    attributes: dict[str, Any] = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads, "group": group}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], **attributes),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"]),
        helper.make_node("Add", ["d", "r"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["y"]),
    ]
    shape = (draw.choice([1, 1, 2]), channels, size, size + draw.randint(0, 3))
    return model(nodes, shape, weights), shape


def products(seed: int) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """Products with a constant, a gemm, and a product of two values, of random shapes."""
    draw, values = random.Random(seed), np.random.default_rng(seed)
    rows, k, n, m = (draw.choice([1, 3, 8, 16, 17, 32, 48, 64, 100]) for _ in range(4))
    batch, turned = draw.choice([(), (), (2,), (1, 3)]), draw.random() < 0.5
    weights: Weights = {
        "w": values.standard_normal((k, n)).astype(np.float32) / k,
        "b": values.standard_normal(n).astype(np.float32),
        "v": values.standard_normal((m, n) if turned else (n, m)).astype(np.float32) / (rows * n * n),
        "flat": np.array([-1, n]),
        "c": values.standard_normal(draw.choice([(m,), (1, m), (1,)])).astype(np.float32),
    }
    order = [*range(len(batch)), len(batch) + 1, len(batch)]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=order),
        helper.make_node("MatMul", ["r", "t"], ["s"]),
        helper.make_node("MatMul", ["s", "r"], ["u"]),
        helper.make_node("Reshape", ["u", "flat"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "c"], ["g"], transB=int(turned), alpha=draw.choice([1.0, 0.5])),
        helper.make_node("Tanh", ["g"], ["y"]),
    ]
    shape = (*batch, rows, k)
    return model(nodes, shape, weights), shape


def pools(seed: int) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """A pool of random shapes with what follows it, and a normalisation over channels."""
    draw, values = random.Random(seed), np.random.default_rng(seed)
    channels, size = draw.choice([8, 16, 20, 24, 48, 64]), draw.randint(4, 15)
    kernel = [draw.randint(1, 3), draw.randint(2, 3)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw.choice([1, 2]), draw.choice([1, 1, 2, 3])]}
    attributes["pads"] = [draw.randint(0, kernel[n % 2] - 1) for n in range(4)]
    weights: Weights = {
        "w": values.standard_normal((channels, 8, 1, 1)).astype(np.float32),
        "s": values.standard_normal((1, channels, 1, 1)).astype(np.float32),
    }
    pool = (
        helper.make_node("MaxPool", ["c"], ["p"], **attributes)
        if draw.random() < 0.6
        else helper.make_node("AveragePool", ["c"], ["p"], count_include_pad=draw.randint(0, 1), **attributes)
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        pool,
        helper.make_node("Mul", ["p", "s"], ["m"]),
        helper.make_node("LRN", ["m"], ["y"], size=draw.choice([3, 5]), alpha=0.5, beta=draw.choice([0.5, 0.75, 0.6])),
    ]
    shape = (draw.choice([1, 2]), 8, size, size + draw.randint(0, 3))
    return model(nodes, shape, weights), shape


def check(given: onnx.ModelProto, shape: tuple[int, ...], machine: str, what: str) -> penstock.Engine:
    """C and the interpreter beside onnxruntime."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    engine = penstock.compile(given, machine)
    assert isinstance(engine, penstock.Engine)
    (expected,) = onnxruntime_of(given, {"x": x})
    (found,) = engine.run([x])
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4, err_msg=what)
    (interpreted,) = run_module(engine.module, [x], engine.ctx.weights)
    np.testing.assert_allclose(interpreted, expected, 1e-4, 1e-4, err_msg=what)
    return engine


Make = Callable[[int], tuple[onnx.ModelProto, tuple[int, ...]]]


def has_tiles(make: Make, seed: int) -> bool:
    """Compare a random model with onnxruntime; whether sums of it are in registers."""
    engine = check(*make(seed), MACHINES[seed % 3], f"seed {seed}")
    return ', "registers">' in module_text(engine.ctx, engine.module)


@pytest.mark.parametrize("make", [convolutions, pools, products])
def test_random_models_in_tiles(make: Make) -> None:
    assert sum(has_tiles(make, seed) for seed in range(3)) >= 2, "little was tiled"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, 20))
@pytest.mark.parametrize("make", [convolutions, pools, products])
def test_many_random_models_in_tiles(make: Make, first: int) -> None:
    assert sum(has_tiles(make, seed) for seed in range(first, first + 20)) >= 16, "little was tiled"


@pytest.mark.parametrize("machine", ["host", *MACHINES])
def test_products_of_operands_of_all_ranks(machine: str) -> None:
    shapes: list[tuple[int, ...]] = [(16,), (3, 16), (2, 3, 16), (1, 2, 3, 16)]
    columns: list[tuple[int, ...]] = [(16,), (16, 32), (2, 16, 32), (1, 2, 16, 32)]
    for shape, column in itertools.product(shapes, columns):
        weights: Weights = {"w": np.random.default_rng(0).standard_normal(column).astype(np.float32)}
        given = model([helper.make_node("MatMul", ["x", "w"], ["y"])], shape, weights)
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        engine = penstock.compile(given, machine, backend="interpreter")
        assert isinstance(engine, penstock.Engine)
        np.testing.assert_allclose(engine.run([x])[0], x @ weights["w"], 1e-4, 1e-4, err_msg=f"{shape} x {column}")


def test_the_columns_of_a_constant_factor_are_packed() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    given = model(nodes, (48, 64), {"w": np.ones((64, 80), np.float32)})
    engine = check(given, (48, 64), "host-avx2", "one product")
    source = engine._source  # pyright: ignore[reportPrivateUsage]
    assert source is not None
    assert "x64x16xf32" in module_text(engine.ctx, engine.module)
    assert "scratch" not in source.source, "nothing is packed at run time"


def test_filters_of_groups_are_packed_where_blocks_divide_them_and_others_are_padded() -> None:
    values = np.random.default_rng(1)
    weights: Weights = {
        "w": (values.standard_normal((96, 32, 3, 3)) * 0.05).astype(np.float32),
        "b": (values.standard_normal(96) * 0.05).astype(np.float32),
        "v": (values.standard_normal((44, 96, 1, 1)) * 0.05).astype(np.float32),
        "u": (values.standard_normal((44, 11, 3, 3)) * 0.05).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], group=2, strides=[2, 1], pads=[1, 0, 1, 1]),
        helper.make_node("Conv", ["c", "v"], ["d"]),
        helper.make_node("Relu", ["d"], ["r"]),
        # Groups of 11 channels: no block divides them.
        helper.make_node("Conv", ["r", "u"], ["y"], group=4),
    ]
    shape = (2, 64, 9, 10)
    engine = check(model(nodes, shape, weights), shape, "host-avx2", "groups")
    layouts = [name for name in engine.ctx.weights if "layout_transform" in name]
    shapes = {tuple(engine.ctx.weights[name].shape) for name in layouts}
    assert {(6, 3, 3, 2, 16, 16), (3, 1, 1, 6, 16, 16)} <= shapes


def test_a_pool_combines_vectors_in_registers_with_the_limits_of_the_interpreter() -> None:
    x = np.random.default_rng(3).standard_normal((1, 16, 9, 9)).astype(np.float32)
    x[0, :, 2:5, 1:8:2] = np.array([np.nan, np.inf, -np.inf, -0.0] * 4, np.float32)[:, None, None]
    x[0, :, 7, 7] = 0.0
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0])
    engine = penstock.compile(model([node], x.shape, {}), "host-avx2")
    assert isinstance(engine, penstock.Engine)
    assert ', "registers">' in module_text(engine.ctx, engine.module)
    (found,), (interpreted,) = engine.run([x]), run_module(engine.module, [x], engine.ctx.weights)
    np.testing.assert_array_equal(found, interpreted)
    np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(interpreted[found == 0]))


def test_sums_are_local_variables_and_multiply_adds_are_fused() -> None:
    shape, weights = (1, 16, 12, 12), {"w": np.ones((32, 16, 3, 3), np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4), helper.make_node("Relu", ["c"], ["y"])]
    given = model(nodes, shape, weights)
    engine = check(given, shape, "host-avx2", "one convolution")
    text = module_text(engine.ctx, engine.module)
    (sums,) = {*re.findall(r'mem.buffer at 0 : memref<([\dx]+)xf32, "registers">', text)}
    assert "math.fma" in text
    source = engine._source  # pyright: ignore[reportPrivateUsage]
    assert source is not None
    assert re.search(rf"float \w+\[{prod(map(int, sums.split('x')))}\];", source.source)
    assert "scope_registers" not in source.header + source.source


PRODUCT = """
func.func @main(%x: tensor<100x96xf32>, %w: tensor<96x64xf32>) -> tensor<100x64xf32> {
  %r = func.call @k(%x, %w) : (tensor<100x96xf32>, tensor<96x64xf32>) -> tensor<100x64xf32>
  func.return %r : tensor<100x64xf32>
}
func.func private @k(%x: tensor<100x96xf32>, %w: tensor<96x64xf32>) -> tensor<100x64xf32> {
  %e = tensor.empty() : tensor<100x64xf32>
  %f = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<100x64xf32>) {
  ^bb0(%o: f32):
    %zero = arith.constant 0.0 : f32
    linalg.yield %zero : f32
  } -> tensor<100x64xf32>
  %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>,
      affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<100x96xf32>, tensor<96x64xf32>) outs(%f : tensor<100x64xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<100x64xf32>
  func.return %p : tensor<100x64xf32>
}
"""


@pytest.mark.parametrize(("sizes", "block"), [("6,16,96", "6x16"), ("5,32,40", "5x32"), ("900,16,7", "100x16")])
def test_given_sizes_are_those_of_the_tile(tmp_path: Path, sizes: str, block: str) -> None:
    (tmp_path / "product.mlir").write_text(PRODUCT)
    pipeline = f'default, tile{{kernel="k" sizes={sizes}}}'
    engine = penstock.compile(tmp_path / "product.mlir", "host-avx2", pipeline=pipeline)
    assert isinstance(engine, penstock.Engine)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((100, 96), (96, 64)))
    np.testing.assert_allclose(engine(x, w)[0], x @ w, 1e-4, 1e-4)
    assert f": memref<{block}xf32" in module_text(engine.ctx, engine.module)


@pytest.mark.parametrize(("stride", "dilation", "pads"), [(1, 1, [1, 1, 1, 1]), (2, 2, [0, 3, 2, 1])])
def test_only_the_window_of_a_tile_of_a_depthwise_convolution_is_padded(
    stride: int, dilation: int, pads: list[int]
) -> None:
    shape, weights = (1, 48, 41, 38), {"w": np.random.default_rng(1).standard_normal((48, 1, 3, 3)).astype(np.float32)}
    attributes: dict[str, Any] = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads, "group": 48}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], **attributes),
        helper.make_node("Clip", ["c", "low", "high"], ["y"]),
    ]
    bounds = {"low": np.array(-1, np.float32), "high": np.array(2, np.float32)}
    engine = check(model(nodes, shape, {**weights, **bounds}), shape, "host-avx2", "depthwise")
    windows = [op for op in engine.module.walk() if isinstance(op, CopyOp) and op.padding is not None]
    assert windows
    assert all(span_in_bytes(memref_of(op.dest)) <= 32768 for op in windows)


def test_sums_that_nothing_follows_are_kept_in_registers_and_copied_out() -> None:
    shape, weights = (1, 16, 12, 13), {"w": np.random.default_rng(1).standard_normal((32, 16, 3, 3)).astype(np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
    engine = check(model(nodes, shape, weights), shape, "host-avx2", "one convolution alone")
    assert re.search(r'mem.copy .*"registers"> to memref', module_text(engine.ctx, engine.module))


def test_a_transpose_goes_by_tiles() -> None:
    shape = (1, 30, 31, 70)
    engine = check(
        model([helper.make_node("Transpose", ["x"], ["y"], perm=[0, 3, 1, 2])], shape, {}), shape, "host-avx2", ""
    )
    assert any("tiling" in kernel.attributes for kernel in kernels(engine.module))


@pytest.mark.parametrize(
    ("machine", "helper"),
    [("host-avx2", "f32x8"), ("host-avx512", "f32x16"), ("host-neon", "f32x4"), ("host-avx2", "f64x4")],
)
def test_a_transpose_is_made_of_squares_in_vectors(tmp_path: Path, machine: str, helper: str) -> None:
    # Beside dims that vectors divide, some that end in overlapping squares.
    for shape, order in [((2, 16, 32), (0, 2, 1)), ((19, 3, 37), (2, 1, 0)), ((17, 5, 2, 16), (1, 3, 2, 0))]:
        element = helper.partition("x")[0]
        source, target = ("x".join(map(str, (*each, element))) for each in (shape, [shape[dim] for dim in order]))
        read, written = (", ".join(f"d{dim}" for dim in dims) for dims in (range(len(shape)), order))
        dims, kinds = read, ", ".join(['"parallel"'] * len(shape))
        text = f"""
        func.func @main(%x: tensor<{source}>) -> tensor<{target}> {{
          %e = tensor.empty() : tensor<{target}>
          %y = linalg.generic {{
              indexing_maps = [affine_map<({dims}) -> ({read})>, affine_map<({dims}) -> ({written})>],
              iterator_types = [{kinds}]}}
              ins(%x : tensor<{source}>) outs(%e : tensor<{target}>) {{
          ^bb0(%a: {element}, %b: {element}):
            linalg.yield %a : {element}
          }} -> tensor<{target}>
          func.return %y : tensor<{target}>
        }}"""
        (tmp_path / "transpose.mlir").write_text(text)
        engine = penstock.compile(tmp_path / "transpose.mlir", machine)
        assert isinstance(engine, penstock.Engine)
        x = np.random.default_rng(0).standard_normal(shape).astype("f8" if element == "f64" else "f4")
        (found,) = engine.run([x])
        np.testing.assert_array_equal(found, x.transpose(order))
        source_text = engine._source  # pyright: ignore[reportPrivateUsage]
        assert source_text is not None
        assert f"pen_transpose_{helper}(&" in source_text.source


def test_few_input_channels_leave_output_channels_in_blocks() -> None:
    values = np.random.default_rng(1)
    weights: Weights = {"w": (values.standard_normal((64, 3, 5, 5)) * 0.1).astype(np.float32)}
    shape = (1, 3, 17, 21)
    engine = check(
        model([helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2])], shape, weights), shape, "host-avx2", ""
    )
    assert (4, 5, 5, 3, 16) in [engine.ctx.weights[name].shape for name in engine.ctx.weights]


@pytest.mark.parametrize(
    ("width", "stride", "channels_last"),
    [(48, 1, False), (48, 2, False), (9, 1, False), (14, 2, False), (7, 1, True), (7, 3, True), (3, 1, True)],
)
def test_vectors_of_columns_are_for_rows_that_they_fill_and_that_lie_together(
    width: int, stride: int, channels_last: bool
) -> None:
    shape, weights = (1, 48, 20, width), {"w": np.random.default_rng(1).standard_normal((48, 1, 3, 3)).astype("f4")}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], group=48, pads=[1] * 4, strides=[stride] * 2)]
    engine = check(model(nodes, shape, weights), shape, "host-avx2", f"{width}, {stride}")
    assert ("x/NHWC" in module_text(engine.ctx, engine.module)) == channels_last


def test_the_sums_of_nested_loops_share_the_registers() -> None:
    shape = (1, 2, 128, 64)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "t"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    engine = check(model(nodes, shape, {"scale": np.array(0.125, np.float32)}), shape, "host-avx2", "attention")
    assert '"registers"' in module_text(engine.ctx, engine.module)


TWO_PRODUCTS = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func @main(%a: tensor<32x16xf32>, %b: tensor<16x32xf32>, %d: tensor<32x32xf32>) -> tensor<32x32xf32> {
  %r = func.call @k(%a, %b, %d) : (tensor<32x16xf32>, tensor<16x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  func.return %r : tensor<32x32xf32>
}
func.func private @k(%a: tensor<32x16xf32>, %b: tensor<16x32xf32>, %d: tensor<32x32xf32>) -> tensor<32x32xf32> {
  %zero = arith.constant dense<0.0> : tensor<32x32xf32>
  %p = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<32x16xf32>, tensor<16x32xf32>) outs(%zero : tensor<32x32xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %m = arith.mulf %x, %y : f32
    %s = arith.addf %z, %m : f32
    linalg.yield %s : f32
  } -> tensor<32x32xf32>
  %q = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%p, %d : tensor<32x32xf32>, tensor<32x32xf32>) outs(%zero : tensor<32x32xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %m = arith.mulf %x, %y : f32
    %s = arith.addf %z, %m : f32
    linalg.yield %s : f32
  } -> tensor<32x32xf32>
  func.return %q : tensor<32x32xf32>
}
"""


def test_a_kernel_of_two_products_is_left_whole(tmp_path: Path) -> None:
    (tmp_path / "two.mlir").write_text(TWO_PRODUCTS)
    engine = penstock.compile(tmp_path / "two.mlir", "host-avx2")
    a, b, d = (
        np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((32, 16), (16, 32), (32, 32))
    )
    np.testing.assert_allclose(engine(a, b, d)[0], a @ b @ d, 1e-4, 1e-4)


def test_reductions_are_joined_only_in_their_order() -> None:
    text = """
    func.func @main(%x: tensor<2x4x3xf32>) -> tensor<2xf32> {
      %r = func.call @k(%x) : (tensor<2x4x3xf32>) -> tensor<2xf32>
      func.return %r : tensor<2xf32>
    }
    func.func private @k(%x: tensor<2x4x3xf32>) -> tensor<2xf32> attributes {device = @host} {
      %e = tensor.empty() : tensor<2xf32>
      %s = linalg.generic {indexing_maps = [affine_map<(n, a, b) -> ORDER>, affine_map<(n, a, b) -> (n)>],
          iterator_types = ["parallel", "reduction", "reduction"]}
          ins(%x : tensor<2x4x3xf32>) outs(%e : tensor<2xf32>) {
      ^bb0(%0: f32, %1: f32):
        %2 = arith.addf %1, %0 : f32
        linalg.yield %2 : f32
      } -> tensor<2xf32>
      func.return %s : tensor<2xf32>
    }
    """
    for order, joined in (("(n, a, b)", "tensor<2x12xf32>"), ("(n, b, a)", "tensor<2x4x3xf32>")):
        ctx, module = parsed_in_context(text.replace("ORDER", order))
        attach_machine(module, "host-avx2")
        run_passes(ctx, module, read_pipeline("collapse-dims"))
        (kernel,) = kernels(module)
        assert str(kernel.function_type.inputs.data[0]) == joined
