# SPDX-License-Identifier: Apache-2.0
"""Kernels of 8-bit integers that VTA runs as a whole: shortcuts, products with matrices, and a network of them."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from blocked_convolutions import Layer
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp

from penstock.dialects import graph
from penstock.dialects.accel import ExecOp
from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import HOST, device_of, kernels
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.signature import signature_of

MACHINE, WITH_ACC8 = "vta-pynq", "vta-fsim"


def issued(module: ModuleOp) -> set[str]:
    return {op.intrinsic_name for op in module.walk() if isinstance(op, ExecOp)}


@pytest.mark.parametrize("planes", [False, True], ids=["NHWC16c", "NCHW16c"])
@pytest.mark.parametrize(
    ("machine", "devices"), [(WITH_ACC8, ["vta_fsim"]), (MACHINE, ["host", "vta_pynq"])], ids=[WITH_ACC8, MACHINE]
)
def test_a_shortcut_of_8_bits_is_added(planes: bool, machine: str, devices: list[str]) -> None:
    """Widened on its way where a load does that, else by the host, which the machine then loads in 32 bits."""
    layer = Layer(9, 32, 48, stride=1 + planes, planes=planes, shortcut=True)
    ctx = make_context()
    module = parse_text(ctx, SourceText("block.mlir", layer.text())).module
    compile_module(module, ctx, machine, "accel")
    assert {"gemm_reset", "gemm", "alu_add", "alu_shr_imm", "store_narrow"} <= issued(module)
    assert ("load_acc8" in issued(module)) == (machine == WITH_ACC8)
    assert [device_of(kernel) for kernel in kernels(module)] == devices
    inputs = layer.draw(np.random.default_rng(5))
    expected = layer.evaluate(*inputs)
    assert 0 < np.count_nonzero(expected) < expected.size
    for seed in (None, 1):
        np.testing.assert_array_equal(run_module(module, list(inputs), ctx.weights, seed=seed)[0], expected)
    np.testing.assert_array_equal(Engine(module, ctx, backend="native").run(inputs, {})[0], expected)


PRODUCT = """
func.func @main(%x: tensor<4x96xi8>, %w: tensor<96x40xi8>, %b: tensor<40xi32>) -> tensor<4x40xi8> {
  %s = graph.constant dense<5> : tensor<i32>
  %0 = graph.matmul %x, %w accumulate i32 : (tensor<4x96xi8>, tensor<96x40xi8>) -> tensor<4x40xi32>
  %1 = graph.add %0, %b : (tensor<4x40xi32>, tensor<40xi32>) -> tensor<4x40xi32>
  %2 = graph.shift_right %1, %s : (tensor<4x40xi32>, tensor<i32>) -> tensor<4x40xi32>
  %3 = graph.clip %2 min -128 max 127 : tensor<4x40xi32>
  %y = graph.cast %3 : tensor<4x40xi32> -> tensor<4x40xi8>
  func.return %y : tensor<4x40xi8>
}
"""


def test_a_product_with_its_requantisation_is_vtas() -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("product.mlir", PRODUCT)).module
    compile_module(module, ctx, MACHINE, "accel")
    assert any(device_of(kernel) == "vta_pynq" for kernel in kernels(module))
    assert {"gemm", "alu_add", "alu_shr_imm", "alu_max_imm", "alu_min_imm", "store_narrow"} <= issued(module)
    rng = np.random.default_rng(2)
    x, w = rng.integers(-20, 20, (4, 96), np.int8), rng.integers(-20, 20, (96, 40), np.int8)
    b = rng.integers(-999, 999, 40, np.int32)
    expected = np.clip((x.astype(np.int64) @ w + b) >> 5, -128, 127)
    assert len(np.unique(expected)) > 50
    np.testing.assert_array_equal(Engine(module, ctx, backend="native").run([x, w, b], {})[0], expected)


@pytest.mark.slow
def test_resnet18_is_vtas_but_for_its_ends_its_pools_and_widening() -> None:
    model = zoo.NETWORKS["resnet18_int8"](0, small=True)
    x = zoo.inputs(model, seed=1)["input"]
    reference = import_program(model, {})
    (expected,) = run_module(reference.module, [x], reference.ctx.weights)
    program = import_program(model, {})
    signature = signature_of(program.module)
    compile_module(program.module, program.ctx, MACHINE, "accel")
    on_host = [kernel for kernel in kernels(program.module) if device_of(kernel) == HOST]
    remarks = [kernel.attributes["device_remark"] for kernel in on_host]
    assert all(isinstance(remark, StringAttr) for remark in remarks)
    # The shortcuts of four layers are widened there: no load of this machine does.
    names = ("QuantizeLinear", "MaxPool", *["Cast"] * 5, "DequantizeLinear", "GlobalAveragePool", "Gemm")
    assert [name for name, remark in zip(names, remarks, strict=True) if name in str(remark)] == list(names)
    on_machine = [kernel for kernel in kernels(program.module) if kernel not in on_host]
    calls = [op for op in program.module.walk() if isinstance(op, CallOp)]
    assert sum(op.callee.string_value() in {each.sym_name.data for each in on_machine} for op in calls) == 20
    (found,) = Engine(program.module, program.ctx, signature, "native").run([x], {})
    # One step of one feature moves the scores by more than a thousand times this; sums of floats differ in order.
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(expected) > 1


def test_each_shortcut_is_added_in_the_kernel_of_the_second_convolution() -> None:
    program = import_program(zoo.NETWORKS["resnet18_int8"](0, small=True), {})
    attach_machine(program.module, MACHINE)
    run_passes(program.ctx, program.module, read_pipeline("integer-arithmetic,simplify,fold-constants,layout"))
    run_passes(program.ctx, program.module, read_pipeline("fold-constants,graph-fuse"))
    found = [op for op in program.module.walk() if isinstance(op, graph.FusedOp)]
    names = [[op.name for op in each.body.block.ops] for each in found]
    with_shortcut = [each for each in names if "graph.conv" in each and "graph.add" in each]
    assert len(with_shortcut) == 8
    # Whatever goes from kernel to kernel has 8 bits, so each shortcut is widened where it is added.
    assert all(each.count("graph.cast") == 2 for each in with_shortcut)
    assert not any("i32" in str(each.results[0].type) for each in found)
