# SPDX-License-Identifier: Apache-2.0
"""The digits network in integers on vta-pynq, down to its commands: bit for bit what the graph level computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling import sweep

import penstock
from penstock.dialects.accel import ExecOp
from penstock.passes.analysis.kernels import HOST, partition, share_on_machine
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module

EXAMPLES = Path(__file__).parents[2] / "examples" / "digits"
MACHINE = "vta-pynq"
Array = NDArray[Any]


@pytest.fixture(scope="module")
def model() -> penstock.QuantizedModel:
    with np.load(EXAMPLES / "calibration_images.npz") as file:
        return penstock.quantize(EXAMPLES / "digits.onnx", file["image"], scheme="power-of-two")


@pytest.fixture(scope="module")
def images() -> Array:
    with np.load(EXAMPLES / "test_images.npz") as file:
        return file["images"]


def test_all_images_as_c_at_accel_level(model: penstock.QuantizedModel, images: Array) -> None:
    engine = model.compile(MACHINE)
    for image in images:
        np.testing.assert_array_equal(engine(image[None])[0], model(image[None])[0])


@pytest.mark.parametrize("seed", sweep([0, 1], quick=[1]))
def test_an_image_in_the_accel_interpreter(model: penstock.QuantizedModel, images: Array, seed: int) -> None:
    """In a legal order of commands drawn from the seed, with every byte of the scopes checked."""
    program = model.integer().program
    compile_module(program.module, program.ctx, MACHINE)
    image = images[seed : seed + 1]
    (found,) = run_module(program.module, [image], program.ctx.weights, seed=seed)
    np.testing.assert_array_equal(found, model(image)[0])


def test_every_contraction_is_vtas_and_ends_in_its_alu(model: penstock.QuantizedModel) -> None:
    program = model.integer().program
    compile_module(program.module, program.ctx, MACHINE)
    placements = partition(program.module)
    assert share_on_machine(placements) == 1.0
    assert all(placement.remark for placement in placements if placement.device == HOST)
    issued = {op.intrinsic.string_value() for op in program.module.walk() if isinstance(op, ExecOp)}
    assert {"gemm_reset", "gemm", "alu_add", "alu_shr_imm", "alu_max_imm", "alu_min_imm", "store_narrow"} <= issued
