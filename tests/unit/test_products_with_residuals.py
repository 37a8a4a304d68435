# SPDX-License-Identifier: Apache-2.0
"""Adding what is computed on the chip, on a machine whose accumulators are also added to by a load."""

from __future__ import annotations

from pathlib import Path

from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.lowering.from_machine_toml import read_machine
from penstock.lowering.machine_names import machine_text
from penstock.passes.analysis.kernels import partition
from penstock.passes.analysis.memory.memory_problems import memory_problems
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import signature_of
from penstock.tools.lockstep import default_inputs, lockstep

TPU = Path(__file__).parents[1] / "machines" / "tpu1_like.toml"
RESIDUAL = """
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>, %v: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %r = graph.matmul %x, %w : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %m = graph.matmul %r, %v : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %y = graph.add %m, %r : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
"""


def test_a_residual_that_is_widened_on_the_chip_is_not_loaded_from_off_chip() -> None:
    ctx = make_context()
    module = Parser(ctx, RESIDUAL).parse_module()
    attach_machine(module, str(TPU))
    passes = read_pipeline(",".join(pipeline("loop", "tpu1-like")))
    report = lockstep(module, ctx, passes, default_inputs(signature_of(module)))
    assert report.culprit is None
    assert {each.device for each in partition(module)} == {"tpu1_like"}


def test_a_result_that_only_leaves_converted_makes_the_machine_invalid() -> None:
    file, text = machine_text(str(TPU))
    cut = text.replace('from = ["ub", "acc"]', 'from = ["ub"]')
    messages = [str(fault) for fault in read_machine(file, cut)[1]]
    assert any('"c" is written in "acc", from where nothing leads off chip' in each for each in messages)


def test_places_off_chip_are_multiples_of_what_each_engine_wants() -> None:
    text = """
    func.func @main(%x: memref<4x4xf32>, %y: memref<4x4xf32>) {
      %a = mem.buffer : memref<5xi8>
      %b = mem.buffer : memref<64xf32>
      %c = mem.buffer : memref<5xi8>
      %d = mem.buffer : memref<64xf32>
      func.call @load(%b) : (memref<64xf32>) -> ()
      func.call @host(%a, %c, %d) : (memref<5xi8>, memref<5xi8>, memref<64xf32>) -> ()
      func.return
    }
    func.func private @host(memref<5xi8>, memref<5xi8>, memref<64xf32>)
    func.func private @load(%s: memref<64xf32>) attributes {device = @rapid_core_like} {
      %v = memref.subview %s[0] [32] [1] : memref<64xf32> to memref<32xf32, strided<[1]>>
      %t = mem.buffer : memref<32xf32, "SCOPE">
      mem.copy %v to %t : memref<32xf32, strided<[1]>> to memref<32xf32, "SCOPE">
      func.return
    }
    """
    from penstock.lowering.from_machine_toml import load_machine

    target = load_machine("rapid-core-like")
    engine = next(dma for dma in target.dmas().values() if "dram" in dma.sources)
    ctx = make_context()
    module = Parser(ctx, text.replace("SCOPE", engine.destinations[0])).parse_module()
    attach_machine(module, "rapid-core-like")
    (arena,) = [memory for memory in memory_problems(module) if memory.scope is None]
    assert engine.alignment == 128
    assert [buffer.alignment for buffer in arena.problem.buffers] == [64, 128, 64, 64]
