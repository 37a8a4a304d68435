# SPDX-License-Identifier: Apache-2.0
"""What the models say of kernels, beside the cycles of the simulator: ResNet's convolutions on VTA, and a network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from blocked_convolutions import Layer

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import PIPELINING, TILING, kernels
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.simulator.figures import total_of
from penstock.runtime.simulator.run import run_program
from penstock.runtime.simulator.workloads import Workloads

OF_RESNET_18 = [
    *[(size, channels, channels, 3, 1) for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512))],
    *[(size, channels, 2 * channels, 3, 2) for size, channels in ((56, 64), (28, 128), (14, 256))],
    *[(size, channels, 2 * channels, 1, 2) for size, channels in ((56, 64), (28, 128), (14, 256))],
]
"""Size, channels, outputs, kernel and stride; those of ResNet-34 are the same."""

OF_RESNET_50 = [
    *[(size, channels, 4 * channels, 1, 1) for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512))],
    *[(size, 4 * channels, channels, 1, 1) for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512))],
    *[(size, channels, channels // 2, 1, 1) for size, channels in ((56, 256), (28, 512), (14, 1024))],
    *[(size, channels, channels, 3, 2) for size, channels in ((56, 128), (28, 256), (14, 512))],
    *[(size, channels, 2 * channels, 1, 2) for size, channels in ((56, 256), (28, 512), (14, 1024))],
    (56, 64, 64, 1, 1),
]
"""Those that are not of ResNet-18; those of ResNet-101 are the same."""

QUICK = [(7, 512, 2048, 1, 1), (14, 256, 512, 1, 2), (28, 128, 256, 3, 2)]
"""One whose prefetches would delay the loads of biases, one with a reduction in tiles, one with a window."""


def modelled_and_simulated(shape: tuple[int, int, int, int, int]) -> tuple[list[int], int]:
    """What tiling and pipelining say of a convolution, and the cycles that it takes."""
    size, channels, outputs, kernel, stride = shape
    ctx = make_context()
    text = Layer(size, channels, outputs, kernel, stride).text()
    module = parse_text(ctx, SourceText("layer.mlir", text)).module
    workloads = Workloads()
    compile_module(module, ctx, "vta-pynq", "accel", observers=[workloads])
    (kernel_op,) = kernels(module)
    words = [str(kernel_op.attributes[name]) for name in (TILING, PIPELINING)]
    found = [re.search(r"modelled ([\d,]+) cycles", each) for each in words]
    said = [int(each[1].replace(",", "")) for each in found if each is not None]
    return said, total_of(run_program(module, workloads)).cycles


@pytest.mark.parametrize(
    "shape",
    [
        *QUICK,
        *(pytest.param(shape, marks=pytest.mark.slow) for shape in OF_RESNET_18 + OF_RESNET_50 if shape not in QUICK),
    ],
    ids=lambda shape: "{}-{}-{}-{}x{}-stride-{}".format(*shape[:4], *shape[3:]),
)
def test_the_model_is_within_a_twentieth_of_the_simulation(shape: tuple[int, int, int, int, int]) -> None:
    said, cycles = modelled_and_simulated(shape)
    assert len(said) == 2
    for each in said:
        assert abs(each - cycles) <= cycles / 20


def test_every_shape_of_the_networks_is_there_once() -> None:
    assert len(set(OF_RESNET_18 + OF_RESNET_50)) == 28 == len(OF_RESNET_18 + OF_RESNET_50)
    assert set(QUICK) <= set(OF_RESNET_18 + OF_RESNET_50)


DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "digits.onnx"


@pytest.mark.parametrize("machine", ["gemmini-fp32", "rapid-core-like", "smaug-smv"])
def test_the_model_of_kernels_with_short_loops_is_within_a_fiftieth_of_the_simulation(machine: str) -> None:
    program = load_input(DIGITS)
    compile_module(program.module, program.ctx, machine, "accel")
    said = {
        k.sym_name.data: str(k.attributes[PIPELINING]) for k in kernels(program.module) if PIPELINING in k.attributes
    }
    runs = [run for run in run_program(program.module).kernels if run.kernel in said]
    assert any("skewed" in said[run.kernel] for run in runs)
    for run in runs:
        found = re.search(r"modelled ([\d,]+) cycles", said[run.kernel])
        assert found is not None
        assert int(found[1].replace(",", "")) == pytest.approx(run.simulation.cycles, rel=0.02), run.kernel
