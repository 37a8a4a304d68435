# SPDX-License-Identifier: Apache-2.0
"""From a program at the accelerator level to a folder of instructions, with what they must compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.lowering.to_vta.isa import decode, encode
from penstock.lowering.to_vta.launch_check import check_launch
from penstock.lowering.to_vta.module import VtaModule, encode_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.simulator import simulate
from penstock.runtime.tensor_specs import Signature
from penstock.runtime.vta.folder import save_folder
from penstock.runtime.vta.reference import observe

Array = NDArray[Any]

TOLERANCE = 1e-5
"""How far outputs in floats may be from those of the higher level, relative to the largest; integers not at all."""


@dataclass(frozen=True)
class Emission:
    """What was written."""

    encoded: VtaModule
    cycles: tuple[int, ...]
    """Of each launch, in order."""


def emit(
    path: str | Path,
    module: ModuleOp,
    reference: ModuleOp,
    weights: WeightStore,
    signature: Signature,
    inputs: Sequence[Array],
) -> Emission:
    """
    Write the folder `path` for `module`, which is at the accelerator level.

    `reference` is the program at a higher level: it says what the outputs for `inputs` must be, and `signature` is its
    own. The instructions themselves are checked for hazards and timed. Raises UserError for what is no instruction of
    VTA, for a hazard, and as an internal fault where the two levels differ.
    """
    encoded = encode_module(module)
    cycles = launch_cycles(encoded)
    outputs = run_module(reference, inputs, weights)
    observed = observe(module, encoded, inputs, weights)
    expected: list[tuple[Any, Array]] = []
    for spec, wanted, found in zip(signature.outputs, outputs, observed.outputs, strict=True):
        array = np.ascontiguousarray(wanted).astype(spec.dtype, copy=False)
        _check(spec.name, array, found)
        expected.append((spec, array))
    save_folder(path, encoded, observed, expected, cycles)
    return Emission(encoded, cycles)


def launch_cycles(encoded: VtaModule) -> tuple[int, ...]:
    """
    The cycles that each launch takes, of its instructions as they are, micro-operations and empty ones included.

    Raises UserError for instructions that are no launch: see `check_launch`.
    """
    store = encoded.micro_ops
    found: dict[int, int] = {}
    cycles: list[int] = []
    for step in encoded.steps:
        if step.instructions is None:
            continue
        if id(step.instructions) not in found:
            instructions = decode(encode(step.instructions))
            program = check_launch(instructions, encoded.target, store.data, store.base, step.kernel)
            found[id(step.instructions)] = simulate(program).cycles
        cycles.append(found[id(step.instructions)])
    return tuple(cycles)


def _check(name: str, wanted: Array, found: Array) -> None:
    if wanted.dtype.kind in "iub":
        same = wanted.tobytes() == found.tobytes()
    else:
        bound = TOLERANCE * float(np.abs(wanted).max(initial=0))
        same = wanted.shape == found.shape and bool(np.all(np.abs(wanted - found) <= bound))
    if not same:
        raise UserError(
            f'the accel level computes another "{name}" than the level that it was compiled from', status=70
        )
