# SPDX-License-Identifier: Apache-2.0
"""The passes that put a kernel on a machine: what they cut, what they refuse, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.parser import Parser

from penstock.dialects.accel import BarrierOp, DmaOp, ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import HOST, device_of, kernels, partition, share_on_machine
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes

TO_DEVICES = "graph-fuse,graph-to-tensor,assign-devices"
TO_LOOP = f"{TO_DEVICES},tile,licm,cse,dce,tensor-to-loop"


def lower(text: str, passes: str, edit: Callable[[TargetOp], None] | None = None) -> ModuleOp:
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, "gemmini-fp32")
    if edit is not None:
        edit(next(op for op in module.ops if isinstance(op, TargetOp)))
    run_passes(ctx, module, read_pipeline(passes))
    return module


def devices(module: ModuleOp) -> list[str]:
    return [device_of(kernel) or "" for kernel in kernels(module)]


def without(*names: str) -> Callable[[TargetOp], None]:
    """Takes parts out of the machine."""

    def edit(target: TargetOp) -> None:
        for op in list(target.walk()):
            if getattr(getattr(op, "sym_name", None), "data", "") in names:
                op.detach()

    return edit


SWISH = """func.func @main(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %p = graph.matmul %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %s = graph.sigmoid %p : tensor<8x8xf32> loc("gate")
  %y = graph.mul %s, %s : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %y : tensor<8x8xf32>
}"""

LAYER = """func.func @main(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %p = graph.matmul %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %y = graph.relu %p : tensor<8x8xf32>
  func.return %y : tensor<8x8xf32>
}"""

PADDED = """func.func @main(%x: tensor<1x4x4x4xf32>, %w: tensor<3x3x4x4xf32>) -> tensor<1x4x4x4xf32> {
  %c = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC"
      : (tensor<1x4x4x4xf32>, tensor<3x3x4x4xf32>) -> tensor<1x4x4x4xf32>
  func.return %c : tensor<1x4x4x4xf32>
}"""


def test_a_group_is_cut_where_no_intrinsic_covers_an_op() -> None:
    module = lower(SWISH, TO_DEVICES)
    assert devices(module) == ["gemmini_fp32", HOST]
    placements = partition(module)
    assert placements[1].remark.startswith('"gate": ')
    assert [placement.macs for placement in placements] == [512, 0]
    assert share_on_machine(placements) == 1.0
    x, w = (np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    gate = 1 / (1 + np.exp(-(x @ w)))
    np.testing.assert_allclose(run_module(module, [x, w], WeightStore())[0], gate * gate, rtol=1e-5)


def test_a_machine_that_only_transfers_computes_nothing() -> None:
    module = lower(LAYER, TO_DEVICES, without("gemm"))
    assert devices(module) == [HOST]
    assert share_on_machine(partition(module)) == 0.0


def test_an_accumulator_that_nothing_can_reset_keeps_the_op_on_the_host() -> None:
    module = lower(LAYER, TO_DEVICES, without("zero_acc", "zero_spad"))
    assert devices(module) == [HOST]
    assert "initial value" in partition(module)[0].remark


def test_promotion_fills_reads_and_empties_what_is_written() -> None:
    module = lower(LAYER, f"{TO_LOOP},promote")
    kernel = next(iter(kernels(module)))
    scopes = [str(op.type.memory_space) for op in kernel.walk() if isinstance(op, BufferOp)]
    assert sorted(scopes) == ['"acc"', '"spad"', '"spad"']
    # Both factors are copied in; the result leaves through the intrinsic that clamps on the way.
    assert len([op for op in kernel.walk() if isinstance(op, CopyOp)]) == 2


def test_a_scope_that_no_dma_empties_is_named() -> None:
    plain = LAYER.replace("%y = graph.relu %p : tensor<8x8xf32>", "").replace("return %y", "return %p")
    (placement,) = partition(lower(plain, f"{TO_LOOP},promote", without("mvout", "mvout_relu")))
    assert placement.device == "host"
    assert placement.remark == '@gemm leaves its result in "acc", from where no engine leads off chip'


def test_tensorize_refuses_what_matches_nothing_with_every_reason() -> None:
    module = lower(LAYER, f"{TO_LOOP},promote")
    product = next(op for op in module.walk() if isinstance(op, GenericOp) and len(op.inputs) == 2)
    assert product.library_call is None
    target = next(op for op in module.ops if isinstance(op, TargetOp))
    without("gemm")(target)
    with pytest.raises(UserError, match="is none of its intrinsics") as refusal:
        run_passes(make_context(), module, read_pipeline("tensorize"))
    assert len(refusal.value.notes) == len(target.intrinsics())


def test_commands_need_buffers_with_an_offset() -> None:
    with pytest.raises(UserError, match="has no offset") as refusal:
        lower(LAYER, f"{TO_LOOP},promote,tensorize,loop-to-accel")
    assert "mem-plan" in refusal.value.notes[0]


def test_commands_need_an_op_that_says_what_it_is() -> None:
    with pytest.raises(UserError, match="says it is no intrinsic, but it matches @") as refusal:
        lower(LAYER, f"{TO_LOOP},promote,mem-plan,loop-to-accel")
    assert "tensorize" in refusal.value.notes[0]


def test_a_window_that_hangs_over_is_filled_by_an_intrinsic_first() -> None:
    module = lower(PADDED, f"{TO_LOOP},promote,tensorize,mem-plan,loop-to-accel")
    names = [op.intrinsic_name for op in module.walk() if isinstance(op, ExecOp)]
    assert "zero_spad" in names
    assert any(op.clipped is not None for op in module.walk() if isinstance(op, DmaOp))
    assert len([op for op in module.walk() if isinstance(op, BarrierOp)]) == 1


def test_a_kernel_with_a_window_that_nobody_can_pad_stays_on_the_host() -> None:
    module = lower(PADDED, TO_DEVICES, without("zero_spad"))
    (placement,) = partition(module)
    assert placement.device == HOST
    assert placement.remark == (
        'a window of %x_padded is out of bounds by up to 1, @mvin pads 0, and no intrinsic fills "spad" with the '
        "padding"
    )


def test_a_window_that_nobody_can_pad_is_refused_when_commands_are_made() -> None:
    module = lower(PADDED, f"{TO_LOOP},promote,tensorize,mem-plan")
    without("zero_spad")(next(op for op in module.ops if isinstance(op, TargetOp)))
    with pytest.raises(UserError, match='no intrinsic fills "spad" with the padding') as refusal:
        run_passes(make_context(), module, read_pipeline("loop-to-accel"))
    assert "pad_max" in refusal.value.notes[0]


TREE = """
#id = affine_map<(m, n) -> (m, n)>
#swapped = affine_map<(m, n) -> (n, m)>
func.func private @k(%x: tensor<8x8xf16>, %y: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %e = tensor.empty() : tensor<8x8xf32>
  %w = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<8x8xf16>) outs(%e : tensor<8x8xf32>) {
  ^bb0(%a: f16, %out: f32):
    %r = arith.extf %a : f16 to f32
    linalg.yield %r : f32
  } -> tensor<8x8xf32>
  %v = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%y, %y : tensor<8x8xf32>, tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %r = arith.subf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<8x8xf32>
  %s = linalg.generic {indexing_maps = [#id, READ, #id], iterator_types = ["parallel", "parallel"]}
      ins(%v, %w : tensor<8x8xf32>, tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %r = arith.subf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<8x8xf32>
  func.return %s : tensor<8x8xf32>
}
func.func @main(%x: tensor<8x8xf16>, %y: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %s = func.call @k(%x, %y) : (tensor<8x8xf16>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %s : tensor<8x8xf32>
}
"""


@pytest.mark.parametrize(("read", "host"), [("#id", False), ("#swapped", True)])
def test_one_tile_holds_a_tree_of_ops_that_read_where_they_write(read: str, host: bool) -> None:
    ctx = make_context()
    module = Parser(ctx, TREE.replace("READ", read)).parse_module()
    attach_machine(module, "rapid-core-like")
    run_passes(ctx, module, read_pipeline("assign-devices{weigh-crossing=false},tile"))
    assert devices(module) == (["rapid_core_like", "rapid_core_like", HOST] if host else ["rapid_core_like"])
    rng = np.random.default_rng(0)
    x, y = rng.integers(-4, 5, (8, 8)).astype(np.float16), rng.integers(-4, 5, (8, 8)).astype(np.float32)
    result = -x.astype(np.float32)
    np.testing.assert_array_equal(run_module(module, [x, y], WeightStore())[0], result.T if host else result)


def test_an_op_that_is_no_command_is_refused_by_name() -> None:
    ctx = make_context()
    module = Parser(
        ctx,
        """func.func private @k(%x: memref<4xf32>) attributes {device = @gemmini_fp32} {
      %zero = arith.constant 0 : index
      %v = memref.load %x[%zero] : memref<4xf32>
      func.return
    }""",
    ).parse_module()
    attach_machine(module, "gemmini-fp32")
    with pytest.raises(UserError, match=r"memref\.load cannot run on @gemmini_fp32") as refusal:
        run_passes(ctx, module, read_pipeline("loop-to-accel"))
    assert refusal.value.status == UNSUPPORTED


def test_a_kernel_that_is_called_twice_stays_one_kernel() -> None:
    text = """func.func @main(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %p = graph.matmul %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      %q = graph.matmul %p, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      func.return %q : tensor<8x8xf32>
    }"""
    module = lower(text, TO_DEVICES)
    assert [(p.calls, p.macs) for p in partition(module)] == [(2, 1024)]
    assert len([op for op in module.walk() if isinstance(op, func.CallOp)]) == 2


ACCUMULATE = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func private @k(%a: tensor<10x6xf32>, %b: tensor<6x7xf32>, %c: tensor<10x7xf32>) -> tensor<10x7xf32> {
  %r = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<10x6xf32>, tensor<6x7xf32>) outs(%c : tensor<10x7xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.addf %z, %p : f32
    linalg.yield %s : f32
  } -> tensor<10x7xf32>
  func.return %r : tensor<10x7xf32>
}
func.func @main(%a: tensor<10x6xf32>, %b: tensor<6x7xf32>, %c: tensor<10x7xf32>) -> tensor<10x7xf32> {
  %r = func.call @k(%a, %b, %c) : (tensor<10x6xf32>, tensor<6x7xf32>, tensor<10x7xf32>) -> tensor<10x7xf32>
  func.return %r : tensor<10x7xf32>
}
"""


@pytest.mark.parametrize("tile", ["tile", "tile{sizes=4,3,2}", "tile{sizes=10,7,3}", "tile{sizes=3,7,6}"])
def test_adding_to_an_argument_reads_it_once_however_tiles_overlap(tile: str) -> None:
    rest = "licm,cse,dce,tensor-to-loop,promote,tensorize,mem-plan,loop-to-accel"
    module = lower(ACCUMULATE, f"assign-devices,{tile},{rest}")
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((10, 6), (6, 7), (10, 7)))
    kept = c.copy()
    for seed in (None, 0, 1):
        np.testing.assert_array_equal(run_module(module, [a, b, c], WeightStore(), seed=seed)[0], c + a @ b)
    np.testing.assert_array_equal(c, kept)


def test_the_machine_called_host_is_the_host() -> None:
    ctx = make_context()
    module = Parser(ctx, LAYER).parse_module()
    compile_module(module, ctx, "host", "accel")
    assert devices(module) == [HOST]
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, (8, 8)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(run_module(module, [x, w], WeightStore())[0], np.maximum(x @ w, 0))


@pytest.mark.parametrize("relu", [True, False])
def test_a_fill_goes_where_the_accumulator_is_whichever_intrinsic_is_declared_first(relu: bool) -> None:
    def swap(target: TargetOp) -> None:
        first = target.intrinsics()["zero_acc"]
        first.detach()
        target.body.block.add_op(first)
        assert list(target.intrinsics())[-2:] != ["zero_acc", "zero_spad"]

    text = (
        LAYER if relu else LAYER.replace("%y = graph.relu %p : tensor<8x8xf32>", "").replace("return %y", "return %p")
    )
    module = lower(text, f"{TO_LOOP},promote,tensorize,mem-plan,loop-to-accel", swap)
    assert devices(module) == ["gemmini_fp32"]
    assert "zero_acc" in [op.intrinsic_name for op in module.walk() if isinstance(op, ExecOp)]
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, (8, 8)).astype(np.float32) for _ in range(2))
    expected = np.maximum(x @ w, 0) if relu else x @ w
    np.testing.assert_array_equal(run_module(module, [x, w], WeightStore())[0], expected)
