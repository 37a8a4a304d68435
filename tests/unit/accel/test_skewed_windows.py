# SPDX-License-Identifier: Apache-2.0
"""Windows that a unit pads before they are loaded: skewed nests compute the same in every order, and lose no time."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from programs import parsed_in_context
from sampling import examples

from penstock.passes.analysis.kernels import PIPELINING, machine_kernels
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.interleaving import Order
from penstock.runtime.simulator.run import run_program


def depthwise(channels: int, size: int, stride: int) -> str:
    out = (size - 1) // stride + 1
    x, w, y = (f"tensor<1x{channels}x{n}x{n}xf32>" for n in (size, 3, out))
    w = f"tensor<{channels}x1x3x3xf32>"
    return f"""func.func @main(%x: {x}, %w: {w}) -> {y} {{
      %y = graph.conv %x, %w strides [{stride}, {stride}] pads [1, 1, 1, 1] dilations [1, 1] group {channels}
          : ({x}, {w}) -> {y}
      func.return %y : {y}
    }}"""


@examples(4)
@given(
    st.sampled_from(["gemmini-fp32", "rapid-core-like"]),
    st.sampled_from([4, 24, 130]),
    st.integers(4, 40),
    st.integers(1, 2),
    st.integers(0, 1000),
)
def test_padded_windows_are_the_same_in_every_order_and_no_slower(
    machine: str, channels: int, size: int, stride: int, seed: int
) -> None:
    text = depthwise(channels, size, stride)
    cycles: list[int] = []
    outputs: list[np.ndarray] = []
    draw = np.random.default_rng(seed)
    inputs = [draw.integers(-3, 4, s).astype(np.float32) for s in ((1, channels, size, size), (channels, 1, 3, 3))]
    orders: tuple[Order, ...] = ("asap", "alap", seed)
    for pipeline in ("default, accel-pipeline{skew=false}", None):
        ctx, module = parsed_in_context(text)
        compile_module(module, ctx, machine, pipeline=pipeline)
        # Every kernel is proved free of hazards before it is simulated.
        cycles.append(run_program(module).cycles)
        outputs += [run_module(module, inputs, ctx.weights, interleaving=order)[0] for order in orders]
    assert all(np.array_equal(outputs[0], other) for other in outputs)
    assert cycles[1] <= cycles[0] * 1.02


def test_the_next_window_is_padded_and_loaded_while_one_is_computed() -> None:
    ctx, module = parsed_in_context(depthwise(384, 14, 1))
    compile_module(module, ctx, "rapid-core-like")
    names = {kernel.sym_name.data for kernel in machine_kernels(module)[1] if "macs" in kernel.attributes}
    (run,) = (each for each in run_program(module).kernels if each.kernel in names)
    said = str(next(k for k in machine_kernels(module)[1] if k.sym_name.data in names).attributes[PIPELINING])
    assert re.search(r"[12] loops? skewed", said)
    assert run.simulation.cycles < 1.05 * float(run.simulation.ideal.cycles)
