# SPDX-License-Identifier: Apache-2.0
"""What stays on chip between kernels: the same results, and the bytes that were predicted, at every level."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling import sweep
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.parser import Parser
from xdsl.utils.hints import isa

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import find_target
from penstock.dialects.mem import BufferOp, CopyOp
from penstock.passes.analysis.commands.traffic import compulsory_bytes, traffic
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.loop.on_chip import pinned_kernels
from penstock.passes.loop.on_chip.prediction import predicted_traffic
from penstock.passes.loop.on_chip.program import edge_traffic, program_use
from penstock.passes.loop.on_chip.times import kernel_time
from penstock.passes.planning.on_chip.registry import strategy_names
from penstock.passes.planning.problem import Outcome
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import signature_of
from penstock.runtime.simulator.run import run_program

Array = NDArray[Any]

STRATEGIES = ("milp", "toplib", "onsram-static", "onsram-eager")

MLP = """
func.func @main(%x: tensor<32x96xf32>, %w: tensor<96x48xf32>, %v: tensor<48x64xf32>) -> tensor<32x64xf32> {
  %a = graph.matmul %x, %w : (tensor<32x96xf32>, tensor<96x48xf32>) -> tensor<32x48xf32>
  %b = graph.relu %a : tensor<32x48xf32>
  %c = graph.matmul %b, %v : (tensor<32x48xf32>, tensor<48x64xf32>) -> tensor<32x64xf32>
  %d = graph.relu %c : tensor<32x64xf32>
  %e = graph.mul %d, %c : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  %f = graph.add %e, %d : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  func.return %f : tensor<32x64xf32>
}
"""

BLOCK = """
func.func @main(%x: tensor<1x8x10x10xf32>, %w: tensor<8x8x3x3xf32>, %v: tensor<8x8x3x3xf32>, %u: tensor<8x8x1x1xf32>)
    -> tensor<1x8x10x10xf32> {
  %a = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
    : (tensor<1x8x10x10xf32>, tensor<8x8x3x3xf32>) -> tensor<1x8x10x10xf32>
  %b = graph.relu %a : tensor<1x8x10x10xf32>
  %c = graph.conv %b, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
    : (tensor<1x8x10x10xf32>, tensor<8x8x3x3xf32>) -> tensor<1x8x10x10xf32>
  %d = graph.relu %c : tensor<1x8x10x10xf32>
  %e = graph.conv %d, %u strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
    : (tensor<1x8x10x10xf32>, tensor<8x8x1x1xf32>) -> tensor<1x8x10x10xf32>
  %f = graph.add %e, %b : (tensor<1x8x10x10xf32>, tensor<1x8x10x10xf32>) -> tensor<1x8x10x10xf32>
  func.return %f : tensor<1x8x10x10xf32>
}
"""
"""A residual block: padded windows, and a tensor that is read again two kernels later."""

BIASED = """
func.func @main(%x: tensor<1x8x10x10xf32>, %w: tensor<8x8x3x3xf32>, %b: tensor<8xf32>) -> tensor<1x8x10x10xf32> {
  %a = graph.conv %x, %w, %b strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
    : (tensor<1x8x10x10xf32>, tensor<8x8x3x3xf32>, tensor<8xf32>) -> tensor<1x8x10x10xf32>
  func.return %a : tensor<1x8x10x10xf32>
}
"""
"""A convolution whose bias an engine adds on the way."""

FIRE = """
func.func @main(%x: tensor<1x64x6x6xf32>, %s: tensor<32x64x1x1xf32>, %w: tensor<64x32x1x1xf32>,
    %v: tensor<64x32x3x3xf32>, %u: tensor<32x128x1x1xf32>) -> tensor<1x32x6x6xf32> {
  %q = graph.conv %x, %s strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
    : (tensor<1x64x6x6xf32>, tensor<32x64x1x1xf32>) -> tensor<1x32x6x6xf32>
  %a = graph.conv %q, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
    : (tensor<1x32x6x6xf32>, tensor<64x32x1x1xf32>) -> tensor<1x64x6x6xf32>
  %b = graph.conv %q, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
    : (tensor<1x32x6x6xf32>, tensor<64x32x3x3xf32>) -> tensor<1x64x6x6xf32>
  %c = graph.concat %a, %b axis 1 : (tensor<1x64x6x6xf32>, tensor<1x64x6x6xf32>) -> tensor<1x128x6x6xf32>
  %d = graph.conv %c, %u strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
    : (tensor<1x128x6x6xf32>, tensor<32x128x1x1xf32>) -> tensor<1x32x6x6xf32>
  func.return %d : tensor<1x32x6x6xf32>
}
"""
"""A tensor that two kernels make in parts."""


@cache
def tensorized(text: str, machine: str, scope: str, size: int, tile: str) -> ModuleOp:
    """A graph at the loop level, before scopes are planned, on a machine of which one scope has `size` bytes."""
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, machine)
    target = find_target(module)
    assert target is not None
    if size:
        target.scope(scope).size = IntegerAttr(size, i64)
    specs = pipeline("loop", machine)
    specs = [tile if spec == "tile" else spec for spec in specs[: specs.index("tensorize") + 1]]
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    return module


def promoted(text: str, machine: str, spec: str, scope: str = "", size: int = 0, tile: str = "tile") -> ModuleOp:
    """The same after `spec`, a `mem-promote`."""
    module = tensorized(text, machine, scope, size, tile).clone()
    run_passes(make_context(), module, read_pipeline(spec))
    return module


def inputs_of(module: ModuleOp) -> list[Array]:
    """Small integers, whose sums are exact."""
    rng = np.random.default_rng(0)
    return [rng.integers(-1, 2, spec.shape).astype(spec.dtype) for spec in signature_of(module).inputs]


def run_everywhere(module: ModuleOp, *, in_c: bool = True) -> tuple[list[Array], int]:
    """
    Run at loop and accel level, and in C: all the same, to the bit, and the bytes those predicted.
    """
    prediction = predicted_traffic(module)
    assert prediction is not None
    expected = prediction.bytes_in, prediction.bytes_out
    assert edge_traffic(module) == expected
    ctx, inputs, runs = make_context(), inputs_of(module), list[list[Array]]()
    for level, lowering in (("loop", "mem-plan,mem-verify"), ("accel", "loop-to-accel,cse,mem-verify")):
        run_passes(ctx, module, read_pipeline(lowering))
        counters = Counters()
        runs.append(run_module(module, inputs, ctx.weights, counters=counters))
        assert (counters.bytes_in, counters.bytes_out) == expected, level
    if in_c:
        native = load_native(module).new_context()
        runs.append(native(inputs))
        assert (native.counters.bytes_in, native.counters.bytes_out) == expected
    static = traffic(module)
    assert (static.bytes_in, static.bytes_out) == expected
    runs.append(run_module(module, inputs, ctx.weights, seed=1))
    for run in runs[1:]:
        for output, first in zip(run, runs[0], strict=True):
            np.testing.assert_array_equal(output, first)
    return runs[0], prediction.total


def called(module: ModuleOp) -> list[str]:
    """The kernels that `@main` calls, in order."""
    return [op.callee.string_value() for op in main_of(module).walk() if isinstance(op, func.CallOp)]


def main_of(module: ModuleOp) -> func.FuncOp:
    return next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")


def remarks_of(module: ModuleOp) -> list[str]:
    found = main_of(module).attributes.get("on_chip_allocation", ArrayAttr[StringAttr]([]))
    assert isa(found, ArrayAttr[StringAttr])
    return [remark.data for remark in found]


CASES = [
    pytest.param(MLP, "rapid-core-like", "spm", 0, "tile", id="mlp in one scope", marks=pytest.mark.slow),
    pytest.param(
        MLP,
        "rapid-core-like",
        "spm",
        20480,
        "tile{reserve=0.5}",
        id="mlp in one small scope, with reserve",
        marks=pytest.mark.slow,
    ),
    pytest.param(MLP, "neural-cluster", "sram", 12288, "tile", id="mlp in a small shared scope"),
    pytest.param(BLOCK, "rapid-core-like", "spm", 0, "tile", id="residual block in one scope", marks=pytest.mark.slow),
    pytest.param(
        BLOCK,
        "rapid-core-like",
        "spm",
        40960,
        "tile{reserve=0.4}",
        id="residual block in a small scope",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        BLOCK,
        "neural-cluster",
        "sram",
        12288,
        "tile",
        id="residual block in a small shared scope",
        marks=pytest.mark.slow,
    ),
    pytest.param(FIRE, "rapid-core-like", "spm", 0, "tile", id="parts in one scope", marks=pytest.mark.slow),
    pytest.param(
        FIRE,
        "neural-cluster",
        "sram",
        24576,
        "tile",
        id="parts in a small shared scope",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("text", "machine", "scope", "size", "tile"), CASES)
def test_every_strategy_computes_the_same_and_moves_what_it_predicts(
    text: str, machine: str, scope: str, size: int, tile: str
) -> None:
    expected, most = run_everywhere(promoted(text, machine, "mem-promote{strategy=none}", scope, size, tile))
    moved: dict[str, int] = {}
    done: dict[str, int] = {}
    for strategy in STRATEGIES:
        module = promoted(text, machine, f"mem-promote{{strategy={strategy}}}", scope, size, tile)
        text_of_all = str(module).replace(strategy, "")
        if text_of_all not in done:
            found, done[text_of_all] = run_everywhere(module, in_c=strategy == "milp")
            np.testing.assert_array_equal(found[0], expected[0])
        moved[strategy] = done[text_of_all]
    assert moved["milp"] == min(moved.values())
    assert moved["milp"] < most
    assert max(moved.values()) <= most


def test_with_room_for_all_a_chain_moves_only_what_comes_from_outside() -> None:
    # Tiles of 64 elements of f16 begin with a granule, as those of 96 / 3 do not.
    module = promoted(MLP.replace("96", "128"), "rapid-core-like", "mem-promote")
    prediction = predicted_traffic(module)
    assert prediction is not None
    assert prediction.bytes_in == 4 * (32 * 128 + 128 * 48 + 48 * 64)
    assert prediction.bytes_out == 4 * 32 * 64
    assert not any(isinstance(op, memref.AllocOp) for op in main_of(module).walk())
    run_passes(make_context(), module, read_pipeline("mem-plan,loop-to-accel"))
    assert compulsory_bytes(module) == (prediction.bytes_in, prediction.bytes_out)


def test_a_bias_that_each_command_reads_again_counts_as_often() -> None:
    """In 9 tiles that are parts of the result, which stays on chip; so each of their 4 rows takes a command."""
    module = promoted(BIASED, "gemmini-fp32", "mem-promote", tile="tile{sizes=1,4,4,8,3,3,8}")
    prediction = predicted_traffic(module)
    assert prediction is not None
    ctx, at_loops, at_commands = make_context(), Counters(), Counters()
    run_passes(ctx, module, read_pipeline("mem-plan"))
    run_module(module, inputs_of(module), ctx.weights, counters=at_loops)
    run_passes(ctx, module, read_pipeline("loop-to-accel"))
    run_module(module, inputs_of(module), ctx.weights, counters=at_commands)
    assert (at_commands.bytes_in, at_commands.bytes_out) == (prediction.bytes_in, prediction.bytes_out)
    assert at_commands.bytes_in - at_loops.bytes_in == (4 - 1) * 9 * 8 * 4


@pytest.mark.parametrize(("text", "machine"), [("MLP", "rapid-core-like"), ("BLOCK", "gemmini-fp32")])
def test_the_pipeline_takes_what_it_has_planned(text: str, machine: str) -> None:
    """The loop level is text that people compile on from."""
    module = tensorized({"MLP": MLP, "BLOCK": BLOCK}[text], machine, "", 0, "tile").clone()
    ctx = make_context()
    run_passes(ctx, module, read_pipeline("mem-promote,mem-plan"))
    expected = run_module(module, inputs_of(module), ctx.weights)[0]
    run_passes(ctx, module, read_pipeline(",".join(pipeline("accel", machine, start="loop"))))
    np.testing.assert_array_equal(run_module(module, inputs_of(module), ctx.weights)[0], expected)


def test_nothing_stays_where_nothing_is_to_stay() -> None:
    before = tensorized(MLP, "rapid-core-like", "spm", 0, "tile")
    module = promoted(MLP, "rapid-core-like", "mem-promote{strategy=none}")
    prediction = predicted_traffic(module)
    assert prediction is not None
    assert (prediction.bytes_in, prediction.bytes_out) == edge_traffic(before)
    assert called(module) == called(before)


def test_windows_that_hang_over_the_edge_find_a_border_of_zeros_on_chip() -> None:
    module = promoted(BLOCK, "rapid-core-like", "mem-promote")
    assert "border" in called(module)
    borders = [op for op in main_of(module).walk() if isinstance(op, BufferOp) and "12x12x8" in str(op.type)]
    assert borders
    border = next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "border")
    assert [op.library_call.data for op in border.walk() if isinstance(op, GenericOp) and op.library_call] == [
        "vec_zero_f16"
    ]
    clones = [op for op in module.ops if isinstance(op, func.FuncOp) and "on_chip" in op.sym_name.data]
    assert not any(copy.padding is not None for clone in clones for copy in clone.walk() if isinstance(copy, CopyOp))


LONG = """
func.func @main(%x: tensor<32x64xf32>, %w: tensor<64x64xf32>) -> tensor<32x64xf32> {
  %k = graph.relu %x : tensor<32x64xf32>
  %a = graph.matmul %k, %w : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %b = graph.matmul %a, %w : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %c = graph.matmul %b, %w : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
  %d = graph.add %c, %k : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  %e = graph.mul %d, %k : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  func.return %e : tensor<32x64xf32>
}
"""


def test_kernels_that_are_shared_get_one_copy_for_each_way_in_which_they_are_called() -> None:
    before = tensorized(LONG, "rapid-core-like", "spm", 0, "tile")
    module = promoted(LONG, "rapid-core-like", "mem-promote")
    shared = max(set(called(before)), key=called(before).count)
    assert called(before).count(shared) > 1
    copies = [op.sym_name.data for op in module.ops if isinstance(op, func.FuncOp) and shared in op.sym_name.data]
    assert set(copies) == {name for name in called(module) if shared in name}
    assert str(module) == str(promoted(LONG, "rapid-core-like", "mem-promote"))
    run_everywhere(module)


SPILL = """
machine.target @tight frequency 100 {
  machine.scope @spad size 288 granule 16 dtypes [f32]
  machine.unit @load
  machine.dma @fetch unit @load from [@dram] to [@spad] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @put unit @load from [@spad] to [@dram] dims 2 latency 1 row_overhead 0 outstanding 1
}
func.func @main(%x: memref<32xf32>, %y: memref<32xf32> {graph.output = "y"}) {
  %t = memref.alloc() : memref<32xf32>
  %u = memref.alloc() : memref<32xf32>
  func.call @twice(%x, %t) : (memref<32xf32>, memref<32xf32>) -> ()
  func.call @thrice(%t, %u) : (memref<32xf32>, memref<32xf32>) -> ()
  func.call @twice(%u, %y) : (memref<32xf32>, memref<32xf32>) -> ()
  func.return
}
func.func private @twice(%x: memref<32xf32>, %y: memref<32xf32>) attributes {device = @tight} {
  %tile = mem.buffer : memref<32xf32, "spad">
  mem.copy %x[0] to %tile : memref<32xf32> to memref<32xf32, "spad">
  mem.copy %tile to %y : memref<32xf32, "spad"> to memref<32xf32>
  mem.copy %x[0] to %tile : memref<32xf32> to memref<32xf32, "spad">
  mem.copy %tile to %y : memref<32xf32, "spad"> to memref<32xf32>
  func.return
}
func.func private @thrice(%x: memref<32xf32>, %y: memref<32xf32>) attributes {device = @tight} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %many = arith.constant 3 : index
  %end = arith.constant 32 : index
  %step = arith.constant 8 : index
  scf.for %again = %zero to %many step %one {
    scf.for %i = %zero to %end step %step {
      %tile = mem.buffer : memref<8xf32, "spad">
      mem.copy %x[%i] to %tile : memref<32xf32> to memref<8xf32, "spad">
      mem.copy %tile to %y[%i] : memref<8xf32, "spad"> to memref<32xf32>
    }
  }
  func.return
}
"""
"""Copies only. What `@thrice` moves three times pays a fill or a spill; `@twice` uses its tile again."""


def test_what_one_kernel_moves_often_is_filled_before_or_spilled_behind_it() -> None:
    ctx = make_context()
    modules = [Parser(ctx, SPILL).parse_module() for _ in range(2)]
    run_passes(ctx, modules[0], read_pipeline("mem-promote{strategy=none}"))
    run_passes(ctx, modules[1], read_pipeline("mem-promote"))
    expected, most = run_everywhere(modules[0])
    found, least = run_everywhere(modules[1])
    np.testing.assert_array_equal(found[0], expected[0])
    assert called(modules[1]) in (
        ["twice", "fill", "thrice_on_chip", "twice"],
        ["twice", "thrice_on_chip", "spill", "twice"],
    )
    assert (most, least) == (128 * (2 + 2 + 3 + 3 + 2 + 2), 128 * (2 + 2 + 3 + 1 + 2 + 2))
    remarks = remarks_of(modules[1])
    assert any("fill 128" in remark or "spill 128" in remark for remark in remarks)


@pytest.mark.parametrize("strategy", strategy_names())
def test_a_call_that_does_not_touch_what_it_is_given_makes_no_part_of_it(strategy: str) -> None:
    text = SPILL.replace("func.call @thrice", "func.call @unused(%t) : (memref<32xf32>) -> ()\n  func.call @thrice", 1)
    text += "func.func private @unused(%t: memref<32xf32>) attributes {device = @host} {\n  func.return\n}\n"
    module = Parser(ctx := make_context(), text).parse_module()
    run_passes(ctx, module, read_pipeline(f"mem-promote{{strategy={strategy}}}"))
    run_everywhere(module)


PARTLY = """
func.func @main(%h: memref<32x16xf32>, %y: memref<32x16xf32> {graph.output = "y"},
    %z: memref<32x16xf32> {graph.output = "z"}, %w: memref<32x16xf32> {graph.output = "w"}) {
  func.call @make(%h, %y) : (memref<32x16xf32>, memref<32x16xf32>) -> ()
  func.call @top(%y, %z) : (memref<32x16xf32>, memref<32x16xf32>) -> ()
  func.call @top(%y, %w) : (memref<32x16xf32>, memref<32x16xf32>) -> ()
  func.return
}
func.func private @top(%x: memref<32x16xf32>, %y: memref<32x16xf32>) attributes {device = @gemmini_fp32} {
  %c0 = arith.constant 0 : index
  %tile = mem.buffer : memref<16x16xf32, "spad">
  mem.copy %x[%c0, %c0] to %tile : memref<32x16xf32> to memref<16x16xf32, "spad">
  mem.copy %tile to %y[%c0, %c0] : memref<16x16xf32, "spad"> to memref<32x16xf32>
  func.return
}
func.func private @make(%x: memref<32x16xf32>, %y: memref<32x16xf32>) attributes {device = @gemmini_fp32} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %trips = arith.constant 2 : index
  %rows = arith.constant 16 : index
  scf.for %i = %c0 to %trips step %c1 {
    %row = arith.muli %i, %rows : index
    %tile = mem.buffer : memref<16x16xf32, "spad">
    mem.copy %x[%row, %c0] to %tile : memref<32x16xf32> to memref<16x16xf32, "spad">
    mem.copy %tile to %y[%row, %c0] : memref<16x16xf32, "spad"> to memref<32x16xf32>
  }
  func.return
}
"""
"""A tensor that tiles make, two of them, and that is read twice."""


@pytest.mark.parametrize("tiles", [1, 2])
def test_what_a_kernel_does_not_write_whole_is_not_copied_whole(tiles: int) -> None:
    ctx = make_context()
    module = Parser(ctx, PARTLY.replace("%trips = arith.constant 2", f"%trips = arith.constant {tiles}")).parse_module()
    attach_machine(module, "gemmini-fp32")
    run_passes(ctx, module, read_pipeline("mem-promote,mem-plan,mem-verify"))
    prediction = predicted_traffic(module)
    assert prediction is not None
    counters, half = Counters(), np.arange(256, dtype=np.float32).reshape(16, 16)
    found = run_module(module, [np.vstack([half, -half])], ctx.weights, counters=counters, seed=1)
    for value in found:
        np.testing.assert_array_equal(value[:16], half)
    assert (counters.bytes_in, counters.bytes_out) == (prediction.bytes_in, prediction.bytes_out)
    stays = [remark for remark in remarks_of(module) if remark.startswith("%y stays in ")]
    assert bool(stays) == (tiles == 2)


def test_a_host_kernel_between_reads_what_was_written_back() -> None:
    text = """
      func.func @main(%x: tensor<32x64xf32>, %w: tensor<64x64xf32>) -> (tensor<64x32xf32>, tensor<32x64xf32>) {
        %a = graph.matmul %x, %w : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
        %t = graph.transpose %a perm [1, 0] : tensor<32x64xf32> -> tensor<64x32xf32>
        %b = graph.matmul %a, %w : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
        func.return %t, %b : tensor<64x32xf32>, tensor<32x64xf32>
      }"""
    module = promoted(text, "neural-cluster", "mem-promote")
    assert any("device" in op.attributes and "@host" in str(op.attributes["device"]) for op in module.ops)
    assert called(module).index("fused_2_on_chip") < called(module).index("spill") < called(module).index("fused_3_0")
    assert any(remark.startswith("%a stays") and "write-back 4,096" in remark for remark in remarks_of(module))
    run_everywhere(module)


LOCALS = """
machine.target @one_scope frequency 100 {
  machine.scope @spad size 1024 granule 16 dtypes [f32]
  machine.unit @load
  machine.dma @fetch unit @load from [@dram] to [@spad] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @put unit @load from [@spad] to [@dram] dims 2 latency 1 row_overhead 0 outstanding 1
}
func.func @main(%x: memref<16xf32>, %y: memref<16xf32> {graph.output = "y"}) {
  %t = memref.alloc() : memref<16xf32>
  %unused = memref.alloc() : memref<16xf32>
  %placed = mem.buffer : memref<16xf32>
  %once = memref.alloc() : memref<16xf32>
  func.call @k(%x, %t) : (memref<16xf32>, memref<16xf32>) -> ()
  func.call @k(%t, %placed) : (memref<16xf32>, memref<16xf32>) -> ()
  func.call @k(%placed, %y) : (memref<16xf32>, memref<16xf32>) -> ()
  func.call @k(%x, %once) : (memref<16xf32>, memref<16xf32>) -> ()
  func.return
}
func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @one_scope} {
  %b = mem.buffer : memref<16xf32, "spad">
  %local = memref.alloc() : memref<16xf32>
  mem.copy %x to %b : memref<16xf32> to memref<16xf32, "spad">
  mem.copy %b to %local : memref<16xf32, "spad"> to memref<16xf32>
  mem.copy %local to %b : memref<16xf32> to memref<16xf32, "spad">
  mem.copy %b to %y : memref<16xf32, "spad"> to memref<16xf32>
  func.return
}
"""


@pytest.mark.parametrize("strategy", [name for name in strategy_names() if name != "milp"])
def test_every_buffer_that_stays_off_chip_says_why(strategy: str) -> None:
    module = Parser(make_context(), LOCALS).parse_module()
    run_passes(make_context(), module, read_pipeline(f"mem-promote{{strategy={strategy}}}"))
    said = {remark.split(" ")[0] for remark in remarks_of(module)}
    assert said >= {"%t", "%unused", "%placed", "%once", "%local"}
    assert "%local of @k stays off chip, 64 bytes: it is made in @k" in "\n".join(remarks_of(module))


def test_remarks_say_what_stays_where_and_why_others_do_not() -> None:
    remarks = remarks_of(promoted(BLOCK, "rapid-core-like", "mem-promote"))
    kept = [remark for remark in remarks if re.search(r'stays in "spm" at \d+ from @fused_\w+ to @fused_', remark)]
    assert kept
    assert all("bytes saved" in remark for remark in kept)
    assert any("accessed from off chip by what does not run on the machine" in remark for remark in remarks)
    remarks = remarks_of(promoted(BLOCK, "gemmini-fp32", "mem-promote"))
    assert any("@mvout_relu" in remark and "streams" in remark for remark in remarks)


def test_on_a_machine_whose_kernels_cannot_use_it_on_chip_nothing_stays_between_kernels() -> None:
    module = promoted(BLOCK, "gemmini-fp32", "mem-promote")
    stays = [found.groups() for r in remarks_of(module) if (found := re.search(r"from @(\w+) to @(\w+):", r))]
    # What the tiles of one kernel read again and again may.
    assert all(first == last for first, last in stays)
    run_everywhere(module)


def test_a_module_without_a_machine_is_left_alone() -> None:
    ctx = make_context()
    module = Parser(ctx, MLP).parse_module()
    run_passes(ctx, module, read_pipeline(",".join(pipeline("loop", None)[:-1])))
    before = str(module)
    run_passes(ctx, module, read_pipeline("mem-promote"))
    assert str(module) == before
    assert program_use(module) is None
    assert predicted_traffic(module) is None


def test_an_unknown_strategy_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match='"onsram-statik"') as fault:
        promoted(MLP, "rapid-core-like", "mem-promote{strategy=onsram-statik}")
    assert any("onsram-static" in note for note in fault.value.notes)


def test_where_the_planner_finds_no_plan_that_of_the_strategy_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> Outcome:
        return Outcome(None)

    monkeypatch.setattr(pinned_kernels, "find_plan", nothing)
    module = promoted(LONG, "rapid-core-like", "mem-promote", "spm", 24576)
    inside = [op for op in module.walk() if isinstance(op, BufferOp)]
    assert inside
    assert all(op.byte_offset is not None for op in inside)
    monkeypatch.undo()
    verify(module)
    run_everywhere(module)


def test_an_index_is_known_to_be_a_multiple() -> None:
    text = """
      func.func @f() {
        %zero = arith.constant 0 : index
        %four = arith.constant 4 : index
        %six = arith.constant 6 : index
        %end = arith.constant 64 : index
        scf.for %i = %zero to %end step %four {
          %a = arith.addi %i, %six : index
          %b = arith.muli %i, %six : index
          %c = arith.minsi %b, %six : index
          "test.use"(%i, %a, %b, %c) : (index, index, index, index) -> ()
        }
        func.return
      }"""
    ctx = make_context()
    ctx.allow_unregistered = True
    use = next(op for op in Parser(ctx, text).parse_module().walk() if len(op.operands) == 4 and not op.results)
    known = [
        [number for number in (2, 4, 6, 8, 24) if AffineIndex.of(value).is_multiple_of(number)]
        for value in use.operands
    ]
    assert known == [[2, 4], [2], [2, 4, 6, 8, 24], [2, 6]]


def test_a_kernel_that_does_not_fit_by_itself_is_left_to_the_planner_to_explain() -> None:
    module = tensorized(MLP, "rapid-core-like", "spm", 0, "tile").clone()
    target = find_target(module)
    assert target is not None
    target.scope("spm").size = IntegerAttr(1024, i64)
    run_passes(make_context(), module, read_pipeline("mem-promote"))
    with pytest.raises(UserError, match="does not fit"):
        run_passes(make_context(), module, read_pipeline("mem-plan"))


def simulated(module: ModuleOp) -> tuple[int, int]:
    """The cycles of all kernels that a run takes, as they are timed at the loop level, and as they are simulated."""
    target, kernels = machine_kernels(module)
    assert target is not None
    timed = {kernel.sym_name.data: kernel_time(kernel, target) for kernel in kernels}
    rest = "multi-buffer{depth=auto},mem-plan,loop-to-accel,accel-pipeline,accel-check-hazards"
    run_passes(make_context(), module, read_pipeline(rest))
    run = run_program(module)
    return sum(each.runs * timed[each.kernel] for each in run.kernels), run.cycles


@pytest.mark.parametrize(
    ("text", "machine"),
    sweep(
        [(text, machine) for text in (MLP, BLOCK, FIRE, LONG) for machine in ("gemmini-fp32", "rapid-core-like")],
        [(MLP, "rapid-core-like"), (BLOCK, "gemmini-fp32")],
    ),
)
def test_what_is_chosen_by_cycles_is_as_fast_as_the_fewest_bytes_and_computes_the_same(text: str, machine: str) -> None:
    found: dict[str, tuple[int, int]] = {}
    for options in ("strategy=none", "objective=bytes", "objective=cycles"):
        module = promoted(text, machine, f"mem-promote{{{options}}}")
        timed, cycles = simulated(module)
        assert abs(timed / cycles - 1) < 0.1, options
        prediction = predicted_traffic(module)
        assert prediction is not None
        found[options] = cycles, prediction.total
    assert found["objective=cycles"][0] <= min(cycles for cycles, _ in found.values()) * 1.001
    assert found["objective=bytes"][1] == min(total for _, total in found.values())
    expected, _ = run_everywhere(promoted(text, machine, "mem-promote{strategy=none}"), in_c=False)
    chosen, _ = run_everywhere(promoted(text, machine, "mem-promote{objective=cycles}"), in_c=False)
    np.testing.assert_array_equal(chosen[0], expected[0])


def test_a_tensor_streams_where_its_kernel_hides_that_and_filling_takes_time() -> None:
    """The weight of both products is read off chip while they compute; to fill it would stop everything."""
    by_bytes = promoted(LONG, "gemmini-fp32", "mem-promote{objective=bytes}")
    by_cycles = promoted(LONG, "gemmini-fp32", "mem-promote{objective=cycles}")
    filled = [sum(name.startswith("fill") for name in called(module)) for module in (by_bytes, by_cycles)]
    assert filled == [2, 1]


def test_an_objective_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match='there is no objective "cycle"') as fault:
        promoted(MLP, "rapid-core-like", "mem-promote{objective=cycle}")
    assert 'did you mean "cycles"' in fault.value.notes[0]
