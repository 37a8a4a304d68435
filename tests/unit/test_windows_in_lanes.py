# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions and pools on the vector units of machines: what runs there, and its numbers."""

from __future__ import annotations

import numpy as np
import pytest
from sampling import sweep

from penstock.dialects.accel import ExecOp
from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

IMAGE, SMALL = "tensor<1x9x9x32xf32>", "tensor<1x5x5x32xf32>"
WINDOW = "strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1]"
OPS = {
    "depthwise": f'conv %x, %w {WINDOW} group 32 layout "NHWC" : ({IMAGE}, tensor<3x3x1x32xf32>) -> {SMALL}',
    "maximum": f'max_pool %x kernel_shape [3, 3] {WINDOW} layout "NHWC" : {IMAGE} -> {SMALL}',
    "average": f'average_pool %x kernel_shape [3, 3] {WINDOW} layout "NHWC" : {IMAGE} -> {SMALL}',
}
MACHINES = ("rapid-core-like", "h100-sm", "neural-accelerator", "neural-cluster")
CASES = tuple((op, machine) for op in OPS for machine in MACHINES)
QUICK = (
    ("depthwise", "rapid-core-like"),
    ("depthwise", "h100-sm"),
    ("maximum", "rapid-core-like"),
    ("maximum", "neural-cluster"),
    ("average", "h100-sm"),
)


@pytest.mark.parametrize(("op", "machine"), sweep(CASES, QUICK))
def test_windows_are_computed_in_lanes(op: str, machine: str) -> None:
    text = f"""func.func @main(%x: {IMAGE} {{graph.name = "x"}}, %w: tensor<3x3x1x32xf32> {{graph.name = "w"}})
        -> ({SMALL} {{graph.name = "y"}}) {{
      %y = graph.{OPS[op]}
      func.return %y : {SMALL}
    }}"""
    ctx = make_context()
    expected, module = (parse_text(ctx, SourceText("window.mlir", text)).module for _ in range(2))
    attach_machine(module, machine)
    run_passes(ctx, module, read_pipeline(",".join(pipeline("accel", machine))))
    extents = [each.extents.get_values() for each in module.walk() if isinstance(each, ExecOp)]
    # The window is in the domain of one command, and so are all lanes.
    assert any(each.count(3) >= 2 and 32 in each for each in map(list, extents))
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-8, 9, shape).astype(np.float32) for shape in ((1, 9, 9, 32), (3, 3, 1, 32))]
    found, wanted = (run_module(each, inputs, ctx.weights)[0] for each in (module, expected))
    assert np.count_nonzero(wanted)
    np.testing.assert_array_equal(found, wanted)
