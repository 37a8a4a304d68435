# SPDX-License-Identifier: Apache-2.0
"""Cycles of programs of the loop level, beside those that are simulated."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.loop.on_chip.times import kernel_time
from penstock.runtime.machines import attach_machine
from penstock.runtime.modelled import modelled_cycles
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.simulator.run import run_program

MIXED = """
func.func @main(%x: tensor<64x96xf32>, %w: tensor<96x64xf32>, %v: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %a = graph.matmul %x, %w : (tensor<64x96xf32>, tensor<96x64xf32>) -> tensor<64x64xf32>
  %b = graph.softmax %a axis 1 : tensor<64x64xf32> -> tensor<64x64xf32>
  %c = graph.matmul %b, %v : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %c : tensor<64x64xf32>
}
"""

BYTES = """
func.func @main(%a: tensor<64x64xi8>, %b: tensor<64x64xi8>) -> tensor<64x64xi32> {
  %0 = graph.matmul %a, %b accumulate i32 : (tensor<64x64xi8>, tensor<64x64xi8>) -> tensor<64x64xi32>
  func.return %0 : tensor<64x64xi32>
}
"""


@pytest.mark.parametrize(("machine", "text"), [("gap8-like", BYTES), ("gemmini", BYTES), ("neural-accelerator", MIXED)])
def test_the_cycles_of_kernels_are_those_simulated(machine: str, text: str) -> None:
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, machine)
    specs = pipeline("accel", machine)
    at = specs.index("loop-to-accel")
    run_passes(ctx, module, read_pipeline(",".join(specs[:at])))
    target, kernels = machine_kernels(module)
    assert target is not None
    found = {kernel.sym_name.data: kernel_time(kernel, target) for kernel in kernels}
    run_passes(ctx, module, read_pipeline(",".join(specs[at:])))
    simulated = {each.kernel: each.simulation.cycles for each in run_program(module).kernels}
    assert simulated
    for name, cycles in simulated.items():
        assert abs(found[name] / cycles - 1) < 0.02, name


@pytest.mark.parametrize("machine", ["gemmini-fp32", "rapid-core-like"])
def test_the_cycles_of_machine_and_host_are_near_those_simulated(machine: str) -> None:
    ctx = make_context()
    module = Parser(ctx, MIXED).parse_module()
    attach_machine(module, machine)
    specs = pipeline("accel", machine)
    at = specs.index("loop-to-accel")
    run_passes(ctx, module, read_pipeline(",".join(specs[:at])))
    found = modelled_cycles(module)
    run_passes(ctx, module, read_pipeline(",".join(specs[at:])))
    time = run_program(module).time
    assert time is not None
    assert found is not None
    assert 0 < time.host < time.serial
    assert abs(found / time.serial - 1) < 0.05


@pytest.mark.parametrize("machine", [None, "host-avx2"])
def test_without_a_machine_no_cycles_are_known(machine: str | None) -> None:
    ctx = make_context()
    module = Parser(ctx, MIXED).parse_module()
    if machine is not None:
        attach_machine(module, machine)
    run_passes(ctx, module, read_pipeline(",".join(pipeline("loop", machine, is_host=machine is not None))))
    found = modelled_cycles(module)
    assert (found is None) == (machine is None)


CALLED = """
func.func @main(%n: memref<1xindex>, %h: memref<1024xf32>, %g: memref<1024xf32>, %y: memref<1024xf32>) {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %hundred = arith.constant 100 : index
  %given = memref.load %n[%zero] : memref<1xindex>
  scf.for %i = %zero to {trips} step %one {{
    mem.copy %h to %g : memref<1024xf32> to memref<1024xf32>
    {inside}
  }}
  func.return
}}
func.func private @k(%x: memref<1024xf32>, %y: memref<1024xf32>) attributes {{device = @gemmini_fp32}} {{
  %tile = mem.buffer : memref<64x16xf32, "spad">
  func.return
}}
"""
CALL = "func.call @k(%g, %y) : (memref<1024xf32>, memref<1024xf32>) -> ()"


def modelled(text: str) -> int | None:
    module = Parser(make_context(), text).parse_module()
    attach_machine(module, "gemmini-fp32")
    return modelled_cycles(module)


def test_no_cycles_are_known_of_what_runs_as_often_as_data_says() -> None:
    assert modelled(CALLED.format(trips="%given", inside=CALL)) is None


NEST = """
func.func @main(%h: memref<64x16xf32>, %y: memref<64x16xf32>, %c: i1, %n: memref<1xindex>) {{
  func.call @k(%h, %y, %c, %n) : (memref<64x16xf32>, memref<64x16xf32>, i1, memref<1xindex>) -> ()
  func.return
}}
func.func private @k(%x: memref<64x16xf32>, %y: memref<64x16xf32>, %c: i1, %n: memref<1xindex>)
    attributes {{device = @gemmini_fp32}} {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %three = arith.constant 3 : index
  %given = memref.load %n[%zero] : memref<1xindex>
  scf.for %i = %zero to %three step %one {{
    {head} {{
      %tile = mem.buffer : memref<16x16xf32, "spad">
      mem.copy %x[%zero, %zero] to %tile : memref<64x16xf32> to memref<16x16xf32, "spad">
      mem.copy %tile to %y[%zero, %zero] : memref<16x16xf32, "spad"> to memref<64x16xf32>
    }}
  }}
  func.return
}}
"""


def test_a_loop_takes_the_mean_of_its_trips() -> None:
    """Once for the first of three iterations, never, twice, as often as data says, and in a branch."""
    heads = [f"scf.for %j = {lower} to {upper} step %one" for lower, upper in (("%zero", "%one"), ("%zero", "%i"))]
    once, triangle = (modelled(NEST.format(head=head)) for head in heads)
    assert once
    assert triangle == once
    assert modelled(NEST.format(head="scf.for %j = %one to %zero step %one")) == 0
    assert modelled(NEST.format(head="scf.for %j = %i to %three step %one")) == modelled(
        NEST.format(head="scf.for %j = %zero to %two step %one")
    )
    assert modelled(NEST.format(head="scf.for %j = %zero to %given step %one")) is None
    assert modelled(NEST.format(head="scf.if %c")) is None


def test_what_the_host_does_beside_a_call_counts_in_each_iteration() -> None:
    """The kernel that is called moves nothing."""
    alone = modelled(CALLED.format(trips="%hundred", inside=""))
    assert alone
    assert modelled(CALLED.format(trips="%hundred", inside=CALL)) == alone
    nested = f"scf.if %c {{\n{CALL}\nscf.for %j = %zero to %hundred step %one {{\n{CALL}\n}}\n}}"
    truth = "%c = arith.constant true\n"
    without = "scf.if %c {\nscf.for %j = %zero to %hundred step %one {\n}\n}"
    both = [modelled(CALLED.format(trips="%hundred", inside=truth + each)) for each in (nested, without)]
    assert both[0] == both[1]
    assert (both[0] or 0) > alone
