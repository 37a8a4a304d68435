# SPDX-License-Identifier: Apache-2.0
"""A contraction of f16 with all that may follow it, in one kernel of rapid-core-like: one tile, and back to f16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.parser import Parser

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import HOST, partition
from penstock.passes.toolchain import find_compiler
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

Array = NDArray[Any]
M, N, K = 40, 50, 20
WIDE, NARROW = f"tensor<{M}x{N}xf32>", f"tensor<{M}x{N}xf16>"


def pointwise(name: str, operands: list[tuple[str, str]], result: str, body: str) -> str:
    """`%name`, a generic over m and n; operands are values with their types, [N] ones broadcast over rows."""
    maps = ["#n" if type.count("x") == 1 else "#mn" for _, type in operands]
    elements = ", ".join(f"%a{i}: {type[-4:-1]}" for i, (_, type) in enumerate(operands))
    ins = ", ".join(value for value, _ in operands), ", ".join(type for _, type in operands)
    indexing = f'indexing_maps = [{", ".join([*maps, "#mn"])}], iterator_types = ["parallel", "parallel"]'
    return f"""
      %{name}_e = tensor.empty() : {result}
      %{name} = linalg.generic {{{indexing}}}
          ins({ins[0]} : {ins[1]}) outs(%{name}_e : {result}) {{
      ^bb0({elements}, %out: {result[-4:-1]}):
        {body}
        linalg.yield %r : {result[-4:-1]}
      }} -> {result}"""


ARGUMENTS = [("%x", f"tensor<{M}x{K}xf16>"), ("%w", f"tensor<{K}x{N}xf16>"), ("%b", f"tensor<{N}xf32>"), ("%o", NARROW)]
TYPES = ", ".join(type for _, type in ARGUMENTS)
NAMES = ", ".join(name for name, _ in ARGUMENTS)
TYPED = ", ".join(f"{name}: {type}" for name, type in ARGUMENTS)
PROGRAM = f"""
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#out = affine_map<(m, n, k) -> (m, n)>
#mn = affine_map<(m, n) -> (m, n)>
#n = affine_map<(m, n) -> (n)>
func.func private @kernel({TYPED}) -> {NARROW} {{
  %zero = arith.constant 0.000000e+00 : f32
  %half = arith.constant 5.000000e-01 : f32
  %e = tensor.empty() : {WIDE}
  %fill = linalg.generic {{indexing_maps = [#mn], iterator_types = ["parallel", "parallel"]}} outs(%e : {WIDE}) {{
  ^bb0(%out: f32):
    linalg.yield %zero : f32
  }} -> {WIDE}
  %product = linalg.generic {{indexing_maps = [#mk, #kn, #out], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %w : tensor<{M}x{K}xf16>, tensor<{K}x{N}xf16>) outs(%fill : {WIDE}) {{
  ^bb0(%p: f16, %q: f16, %s: f32):
    %pw = arith.extf %p : f16 to f32
    %qw = arith.extf %q : f16 to f32
    %t = arith.mulf %pw, %qw : f32
    %r = arith.addf %s, %t : f32
    linalg.yield %r : f32
  }} -> {WIDE}
  {pointwise("biased", [("%product", WIDE), ("%b", f"tensor<{N}xf32>")], WIDE, "%r = arith.addf %a0, %a1 : f32")}
  {pointwise("wide", [("%o", NARROW)], WIDE, "%r = arith.extf %a0 : f16 to f32")}
  {pointwise("added", [("%biased", WIDE), ("%wide", WIDE)], WIDE, "%r = arith.addf %a0, %a1 : f32")}
  {pointwise("relu", [("%added", WIDE)], WIDE, "%r = arith.maximumf %a0, %zero : f32")}
  {pointwise("scaled", [("%relu", WIDE)], WIDE, "%r = arith.mulf %a0, %half : f32")}
  {pointwise("y", [("%scaled", WIDE)], NARROW, "%r = arith.truncf %a0 : f32 to f16")}
  func.return %y : {NARROW}
}}
func.func @main({TYPED}) -> {NARROW} {{
  %y = func.call @kernel({NAMES}) : ({TYPES}) -> {NARROW}
  func.return %y : {NARROW}
}}"""


def inputs() -> list[Array]:
    rng = np.random.default_rng(0)
    shapes = ((M, K), (K, N), (N,), (M, N))
    types = (np.float16, np.float16, np.float32, np.float16)
    return [rng.integers(-4, 5, shape).astype(dtype) for shape, dtype in zip(shapes, types, strict=True)]


def expected(x: Array, w: Array, b: Array, o: Array) -> Array:
    return (np.maximum(x.astype(np.float32) @ w.astype(np.float32) + b + o, 0) / 2).astype(np.float16)


def lowered(tile: str = "tile") -> ModuleOp:
    ctx = make_context()
    module = Parser(ctx, PROGRAM).parse_module()
    module.verify()
    attach_machine(module, "rapid-core-like")
    swapped = {"tile": tile, "mem-promote": "mem-promote{strategy=none}"}
    specs = [swapped.get(spec, spec) for spec in pipeline("accel", "rapid-core-like", start="tensor")]
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    return module


def test_everything_runs_on_the_machine_and_only_the_result_is_stored() -> None:
    module = lowered(f"tile{{sizes={M},{N},{K}}}")
    (kernel,) = partition(module)
    assert kernel.device != HOST
    names = [op.intrinsic_name for op in module.walk() if isinstance(op, ExecOp)]
    # What is added goes where the sums are.
    assert names == [
        "vec_zero", "fma", "vec_sum", "vec_widen", "vec_sum", "vec_max_imm", "vec_mul_imm", "vec_narrow"
    ]  # fmt: skip
    assert [op.engine.data for op in module.walk() if isinstance(op, DmaOp)] == ["load_spm"] * 4 + ["store_spm"]


@pytest.mark.parametrize("tile", ["tile", "tile{sizes=16,24,7}"])
def test_it_computes_the_same_in_every_order_and_in_tiles(tile: str) -> None:
    module = lowered(tile)
    for seed in (None, 0, 1):
        got = run_module(module, inputs(), WeightStore(), seed=seed)[0]
        np.testing.assert_array_equal(got, expected(*inputs()))


def test_it_computes_the_same_in_c() -> None:
    try:
        find_compiler()
    except UserError:
        pytest.skip("no C compiler")
    np.testing.assert_array_equal(Engine(lowered(), make_context())(*inputs())[0], expected(*inputs()))


def clipped(operator: str) -> str:
    """min(max(x, -1.5), 6), and with it what `operator` makes of that, in one body."""
    type = "tensor<6x40xf32>"
    return f"""
    #id = affine_map<(m, n) -> (m, n)>
    func.func private @kernel(%x: {type}) -> {type} {{
      %high = arith.constant 6.000000e+00 : f32
      %e = tensor.empty() : {type}
      %y = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}}
          ins(%x : {type}) outs(%e : {type}) {{
      ^bb0(%in: f32, %out: f32):
        %low = arith.constant -1.500000e+00 : f32
        %a = arith.maximumf %in, %low : f32
        %b = arith.minimumf %a, %high : f32
        %c = {operator}
        linalg.yield %c : f32
      }} -> {type}
      func.return %y : {type}
    }}
    func.func @main(%x: {type}) -> {type} {{
      %y = func.call @kernel(%x) : ({type}) -> {type}
      func.return %y : {type}
    }}"""


def assigned(text: str, passes: str) -> ModuleOp:
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, "rapid-core-like")
    run_passes(ctx, module, read_pipeline(passes))
    return module


def test_a_body_of_several_operations_runs_as_several_commands() -> None:
    passes = ",".join(pipeline("accel", "rapid-core-like", start="tensor"))
    module = assigned(clipped("arith.mulf %b, %in : f32"), passes)
    names = [op.intrinsic_name for op in module.walk() if isinstance(op, ExecOp)]
    assert names == ["vec_max_imm", "vec_min_imm", "vec_mul"]
    assert [op.engine.data for op in module.walk() if isinstance(op, DmaOp)] == ["load_spm", "store_spm"]
    x = np.random.default_rng(0).integers(-9, 10, (6, 40)).astype(np.float32)
    for seed in (None, 0):
        got = run_module(module, [x], WeightStore(), seed=seed)[0]
        np.testing.assert_array_equal(got, np.clip(x, -1.5, 6) * x)


def test_a_body_of_which_one_operation_is_missing_is_left_as_it_was() -> None:
    text = clipped("math.tanh %b : f32")
    module = assigned(text, "assign-devices")
    (kernel,) = partition(module)
    assert kernel.device == HOST
    generic = next(op for op in module.walk() if isinstance(op, GenericOp) and op.results)
    assert [op.name for op in generic.body.block.ops][1:4] == ["arith.maximumf", "arith.minimumf", "math.tanh"]
    assert len(list(generic.inputs[0].uses)) == 1
