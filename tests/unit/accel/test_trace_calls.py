# SPDX-License-Identifier: Apache-2.0
"""What one run of a program gives to the machine, kernel by kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sampling import sweep
from xdsl.dialects import func
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.passes.analysis.commands.traffic import traffic
from penstock.passes.analysis.kernels import machine_of
from penstock.runtime.compiler import LoadedProgram as Compiled
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.signature import signature_of

ROOT = Path(__file__).parents[3]
CONTEXT = make_context()
GEMMINI = str(load_machine("gemmini-fp32"))
CHAIN = """
func.func @main(%x: tensor<64x96xf32>, %v: tensor<96x96xf32>, %w: tensor<96x72xf32>) -> tensor<64x72xf32> {
  %y = graph.matmul %x, %v : (tensor<64x96xf32>, tensor<96x96xf32>) -> tensor<64x96xf32>
  %z = graph.tanh %y : tensor<64x96xf32>
  %u = graph.matmul %z, %w : (tensor<64x96xf32>, tensor<96x72xf32>) -> tensor<64x72xf32>
  %s = graph.relu %u : tensor<64x72xf32>
  func.return %s : tensor<64x72xf32>
}"""
CONVOLUTION = """
func.func @main(%x: tensor<1x5x11x9xf32>, %w: tensor<7x5x3x3xf32>) -> tensor<1x7x6x5xf32> {
  %y = graph.conv %x, %w strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] group 1
      : (tensor<1x5x11x9xf32>, tensor<7x5x3x3xf32>) -> tensor<1x7x6x5xf32>
  func.return %y : tensor<1x7x6x5xf32>
}"""


def lowered(text: str, machine: str) -> Compiled:
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    compile_module(module, ctx, machine, "accel")
    return Compiled(module, ctx, Path("text.mlir"))


@pytest.mark.parametrize(
    ("text", "machine"),
    sweep(
        [
            (CHAIN, "gemmini-fp32"),
            (CHAIN, "rapid-core-like"),
            (CHAIN, "neural-cluster"),
            (CHAIN, "h100-sm"),
            (CHAIN, "smaug-smv"),
            (CONVOLUTION, "gemmini-fp32"),
            (CONVOLUTION, "rapid-core-like"),
            (CONVOLUTION, "neural-accelerator"),
        ],
        quick=[(CHAIN, "neural-cluster"), (CONVOLUTION, "gemmini-fp32")],
    ),
)
def test_traced_calls_move_and_compute_what_the_interpreter_counts(text: str, machine: str) -> None:
    assert_counts(lowered(text, machine))


def test_traces_of_the_digits_network_move_and_compute_what_the_interpreter_counts() -> None:
    program = load_input(ROOT / "examples" / "digits" / "digits.onnx")
    compile_module(program.module, program.ctx, "gemmini-fp32")
    assert_counts(program)


def assert_counts(compiled: Compiled) -> None:
    counters = Counters()
    inputs = [np.zeros(spec.shape, spec.dtype) for spec in signature_of(compiled.module).inputs]
    run_module(compiled.module, inputs, compiled.ctx.weights, counters=counters)
    moved: dict[tuple[str, str], int] = {}
    issues: dict[str, int] = {}
    macs = 0
    engines: dict[str, int] = {}
    for call in trace_calls(compiled.module):
        for command in () if call.program is None else call.program.commands:
            for source, dest, size in command.moved:
                moved[source, dest] = moved.get((source, dest), 0) + size
            if command.engine is not None:
                engines[command.engine] = engines.get(command.engine, 0) + 1
            if command.iterations:
                issues[command.name] = issues.get(command.name, 0) + command.iterations
            macs += command.macs
    static = traffic(compiled.module)
    assert {ends: size for ends, size in moved.items() if size} == {
        e: size for e, size in static.between().items() if size
    }
    assert sum(size for (source, _), size in moved.items() if source == "dram") == counters.bytes_in > 0
    assert sum(size for (_, dest), size in moved.items() if dest == "dram") == counters.bytes_out > 0
    assert engines == static.commands == {name: count.commands for name, count in counters.dma.items()}
    assert issues == {name: count.issues for name, count in counters.intrinsics.items() if count.issues}
    assert macs == counters.macs > 0


def test_calls_come_in_the_order_of_the_run_with_those_of_the_host_named() -> None:
    compiled = lowered(CHAIN, "gemmini-fp32")
    calls = list(trace_calls(compiled.module))
    order = [op.callee.string_value() for op in compiled.module.walk() if isinstance(op, func.CallOp)]
    assert [call.function.sym_name.data for call in calls] == order
    assert any(call.program is None for call in calls)
    first = next(call for call in calls if call.program is not None)
    assert first.program is not None
    assert first.program.storages[first.arguments[0].storage if first.arguments[0] else 0] == "%x"


def test_what_stays_on_chip_between_kernels_lies_where_it_does_in_the_run() -> None:
    compiled = lowered(CHAIN.replace("%z = graph.tanh %y", "%z = graph.relu %y"), "rapid-core-like")
    written: set[tuple[str, int, int]] = set()
    shared = 0
    for call in trace_calls(compiled.module):
        for view in call.arguments:
            assert view is not None
            if view.space == "spm":
                assert view.storage == 0
                shared += (view.space, view.storage, view.start) in written
        for command in () if call.program is None else call.program.commands:
            written |= {(region.space, region.storage, region.start) for region in command.writes}
    assert shared
    target = machine_of(compiled.module)
    assert target is not None
    assert all(start < target.scope("spm").size_bytes for space, _, start in written if space == "spm")


def test_a_kernel_called_again_on_the_same_memory_is_traced_once() -> None:
    call = "func.call @k(%x, %y) : (memref<10x16xf32>, memref<10x16xf32>) -> ()"
    other = call.replace("%x, %y", "%z, %y")
    text = f"""
      {GEMMINI}
      func.func private @k(%x: memref<10x16xf32>, %y: memref<10x16xf32>) attributes {{device = @gemmini_fp32}} {{
        %a = mem.buffer at 0 : memref<4x16xf32, "spad">
        %t = accel.dma %x[0, 0] to %a on "mvin" : memref<10x16xf32> to memref<4x16xf32, "spad">
        accel.barrier
        func.return
      }}
      func.func @main(%x: memref<10x16xf32>, %y: memref<10x16xf32> {{graph.output = "y"}}) {{
        %0 = arith.constant 0 : index
        %1 = arith.constant 1 : index
        %3 = arith.constant 3 : index
        %z = mem.buffer at 640 : memref<10x16xf32>
        scf.for %i = %0 to %3 step %1 {{ {call} }}
        {other}
        func.return
      }}
    """
    calls = list(trace_calls(Parser(CONTEXT, text).parse_module()))
    programs = [call.program for call in calls]
    assert programs[0] is programs[1] is programs[2] is not programs[3]
    assert programs[0] is not None
    assert programs[3] is not None
    assert programs[0].commands[0].reads == (Region("dram", 1, 0, 256),)
    assert programs[3].commands[0].reads == (Region("dram", 0, 640, 256),)


def test_a_function_of_the_host_that_calls_itself_is_none_of_the_machine() -> None:
    text = """
func.func @k() attributes {device = @gemmini_fp32} {
  accel.barrier
  func.return
}
func.func @h(%x: memref<4xf32>) attributes {device = @host} {
  func.call @h(%x) : (memref<4xf32>) -> ()
  func.return
}
func.func @main(%x: memref<4xi1>, %y: memref<4xf32>) {
  func.call @k() : () -> ()
  %c0 = arith.constant 0 : index
  %b = memref.load %x[%c0] : memref<4xi1>
  scf.if %b {
    func.call @h(%y) : (memref<4xf32>) -> ()
  }
  func.return
}"""
    module = Parser(make_context(), GEMMINI + text).parse_module()
    assert [call.function.sym_name.data for call in trace_calls(module)] == ["k"]
