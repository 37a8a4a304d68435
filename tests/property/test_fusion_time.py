"""A kernel keeps its epilogue where that is not slower: convolutions, fused and with the epilogue weighed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import PenstockContext, make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import machine_kernels
from penstock.runtime.compiler import attach_machine, pipeline
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.simulator.run import run_program

LEFT_OUT = ("simplify", "fold-scale", "fold-batch-norm")
"""Passes that would fold a scale into the weights."""
TOLERANCE = 1.1
"""How far off the model of a kernel's time may be."""


def convolution(channels: int, size: int, window: int, groups: int, epilogue: str) -> str:
    """A convolution and ops on its result: `*` and `+` by channel, `a` adds an image, `r` cuts at 0."""
    x, row = f"tensor<1x{channels}x{size}x{size}xf32>", f"tensor<{channels}x1x1xf32>"
    w, pad = f"tensor<{channels}x{channels // groups}x{window}x{window}xf32>", window // 2
    lines = [
        f"%0 = graph.conv %x, %w strides [1, 1] pads [{pad}, {pad}, {pad}, {pad}] dilations [1, 1]"
        f" group {groups} : ({x}, {w}) -> {x}"
    ]
    for number, letter in enumerate(epilogue):
        op, other, type = {"*": ("mul", ", %s", row), "+": ("add", ", %b", row), "a": ("add", ", %x", x)}.get(
            letter, ("relu", "", "")
        )
        types = f"({x}, {type}) -> {x}" if type else x
        lines.append(f"%{number + 1} = graph.{op} %{number}{other} : {types}")
    body = "\n  ".join(lines)
    arguments = ", ".join(
        f'%{name}: {t} {{graph.name = "{name}"}}' for name, t in zip("xwsb", (x, w, row, row), strict=True)
    )
    return f"""func.func @main({arguments}) -> ({x} {{graph.name = "y"}}) {{
  {body}
  func.return %{len(epilogue)} : {x}
}}"""


def compiled(text: str, machine: str, *, weigh: bool, until: str | None = None) -> tuple[PenstockContext, ModuleOp]:
    """The program at the accelerator level, or behind the pass `until`."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("program.mlir", text)).module
    attach_machine(module, machine)
    # What stays on chip between kernels would hide what cutting costs.
    swapped = {
        "assign-devices": f"assign-devices{{weigh-fusion={str(weigh).lower()}}}",
        "mem-promote": "mem-promote{strategy=none}",
    }
    passes = pipeline("accel", machine)
    passes = passes if until is None else passes[: passes.index(until) + 1]
    specs = [swapped.get(spec, spec) for spec in passes if spec not in LEFT_OUT]
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    return ctx, module


def cycles(module: ModuleOp) -> int:
    return run_program(module).cycles


def test_the_epilogue_of_a_depthwise_convolution_uses_all_lanes() -> None:
    text = convolution(32, 4, 3, 32, "*+r")
    ctx, module = compiled(text, "rapid-core-like", weigh=True)
    _, whole = compiled(text, "rapid-core-like", weigh=False)
    assert cycles(module) < 0.75 * cycles(whole)
    assert len(machine_kernels(module)[1]) == len(machine_kernels(whole)[1]) + 1
    rng = np.random.default_rng(0)
    shapes = ((1, 32, 4, 4), (32, 1, 3, 3), (32, 1, 1), (32, 1, 1))
    inputs = [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    results = [run_module(each, inputs, ctx.weights)[0] for each in (module, whole)]
    assert np.count_nonzero(results[0])
    np.testing.assert_array_equal(results[0], results[1])


def test_a_dense_convolution_keeps_its_epilogue() -> None:
    text = convolution(16, 4, 1, 1, "+r")
    kernels = [
        len(machine_kernels(compiled(text, "gemmini-fp32", weigh=weigh, until="assign-devices")[1])[1])
        for weigh in (True, False)
    ]
    assert kernels[0] == kernels[1] > 0


def random_case(seed: int) -> tuple[str, str]:
    rng = Random(seed)
    channels, size = rng.choice((16, 24, 64, 128)), rng.choice((4, 7, 10))
    groups = rng.choice((1, channels // 8, channels, channels))
    epilogue = "".join(rng.choices("*+ar", k=rng.randint(1, 4)))
    return convolution(channels, size, rng.choice((1, 3)), groups, epilogue), rng.choice(
        ("rapid-core-like", "rapid-core-like", "smaug-smv", "gemmini-fp32")
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(80))
def test_what_is_cut_off_is_not_slower(seed: int) -> None:
    text, machine = random_case(seed)
    found = [cycles(compiled(text, machine, weigh=weigh)[1]) for weigh in (True, False)]
    assert found[0] <= TOLERANCE * found[1], f"{machine}\n{text}"
