# SPDX-License-Identifier: Apache-2.0
"""Which device each kernel gets, what crosses between the two, and what does not pay to send across."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.machine import ProcessorOp
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.machine_names import machine_text, shipped_machines
from penstock.passes.analysis.kernels import HOST, Placement, partition
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes

GROUP = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func private @k(%x: tensor<NxNxf32>, %y: tensor<NxNxf32>) -> tensor<NxNxf32> {
  %e = tensor.empty() : tensor<NxNxf32>
  %s = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<NxNxf32>) outs(%e : tensor<NxNxf32>) {
  ^bb0(%a: f32, %out: f32):
    %r = math.sin %a : f32
    linalg.yield %r : f32
  } -> tensor<NxNxf32>
  %p = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%s, %y : tensor<NxNxf32>, tensor<NxNxf32>) outs(%e : tensor<NxNxf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %r = arith.mulf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<NxNxf32>
  func.return %p : tensor<NxNxf32>
}
func.func @main(%x: tensor<NxNxf32>, %y: tensor<NxNxf32>) -> tensor<NxNxf32> {
  %p = func.call @k(%x, %y) : (tensor<NxNxf32>, tensor<NxNxf32>) -> tensor<NxNxf32>
  func.return %p : tensor<NxNxf32>
}
"""
"""A sine, which no machine here computes, and a product, which the vector unit of rapid-core-like does."""


def assigned(size: int, machine: str = "rapid-core-like", options: str = "") -> tuple[ModuleOp, list[Placement]]:
    ctx = make_context()
    module = Parser(ctx, GROUP.replace("N", str(size))).parse_module()
    attach_machine(module, machine)
    run_passes(ctx, module, read_pipeline(f"assign-devices{options}"))
    return module, partition(module)


def processor(folder: Path, ops: str) -> str:
    """rapid-core-like beside a CPU of another speed; without one if `ops` is empty."""
    _, text = machine_text("rapid-core-like")
    known = 'name = "cpu"\nops = [2, 1]\n'
    assert known in text
    if not ops:
        start = text.index("[[processor]]")
        text = text[:start] + text[text.index("\n[[", start) + 1 :]
    file = folder / "rapid.toml"
    file.write_text(text.replace(known, f'name = "cpu"\nops = {ops}\n'))
    return str(file)


def test_a_small_op_beside_the_host_is_not_worth_the_crossing_and_the_remark_weighs_it() -> None:
    _, (kernel,) = assigned(8)
    assert (kernel.device, kernel.crossing) == (HOST, 0)
    first, weighed = kernel.remark.split("; ")
    assert first == "no intrinsic computes math.sin"
    assert weighed.startswith("crossing to @vec_mul does not pay: ")
    assert weighed.endswith(" here")


def test_a_large_one_is_and_what_crosses_is_counted() -> None:
    _, (sine, product) = assigned(512)
    assert (sine.device, product.device) == (HOST, "rapid_core_like")
    assert (sine.crossing, product.crossing) == (512 * 512 * 4, 0)


def test_legality_alone_decides_if_asked_to() -> None:
    _, placements = assigned(8, options="{weigh-crossing=false}")
    assert [placement.device for placement in placements] == [HOST, "rapid_core_like"]
    assert [placement.crossing for placement in placements] == [8 * 8 * 4, 0]


@pytest.mark.parametrize(("ops", "kernels"), [("[2000, 1]", 1), ("[1, 20]", 2), ("", 2)])
def test_the_speed_of_the_processor_decides(tmp_path: Path, ops: str, kernels: int) -> None:
    _, placements = assigned(64, processor(tmp_path, ops))
    assert len(placements) == kernels


def test_devices_change_no_value() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    for options in ("", "{weigh-crossing=false}"):
        ctx = make_context()
        module, _ = assigned(8, options=options)
        (found,) = run_module(module, [x, y], ctx.weights)
        np.testing.assert_array_equal(found, np.sin(x) * y)


def test_a_machine_that_supports_nothing_leaves_everything_to_the_host(tmp_path: Path) -> None:
    file = tmp_path / "idle.toml"
    scope = '[[scope]]\nname = "spad"\nassumed = true\nsize = 1024\ngranule = 4\ndtypes = ["f32"]\n'
    file.write_text(f'[machine]\nname = "idle"\nfreq_mhz = 1\nassumed = true\n\n{scope}\n[[unit]]\nname = "none"\n')
    _, (kernel,) = assigned(8, str(file))
    assert (kernel.device, kernel.remark) == (HOST, "the machine has no intrinsics")


def test_every_shipped_machine_says_what_stands_beside_it() -> None:
    for name in shipped_machines():
        has_processor = any(isinstance(op, ProcessorOp) for op in load_machine(name).walk())
        assert has_processor == (name != HOST)
