# SPDX-License-Identifier: Apache-2.0
"""
Every machine that ships: a small network compiled for it, as C and as commands, against onnxruntime.

Machines of 16-bit floats store in f16 what onnxruntime keeps in f32, so their tolerance is that of rounding each
stored value to 11 bits; sums are f32 in both. Machines of 8-bit integers compute what onnxruntime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
from network import Array, Lowered, Network, error
from sampling import sweep
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.machine_names import shipped_machines
from penstock.passes.analysis.kernels import HOST, partition, share_on_machine
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module


@dataclass(frozen=True)
class Case:
    """The networks for a machine, the first for the quick suite, and what is expected of them."""

    networks: tuple[str, ...]
    tolerance: float
    """The largest |a - b| over the largest |b| of the output."""
    share: float
    """The least share of the multiply-accumulates that the machine does."""


F32, F16, INT = 1e-5, 5e-3, 1e-6
FLOATS, INTEGERS = ("digits", "squeezenet"), ("int8_cnn",)
CASES = {
    # Without intrinsics: its cores would be filled by ordinary copies, so all is left to the host.
    "epiphany-iii": Case(INTEGERS, INT, 0.0),
    "cortex-m7-nn": Case(INTEGERS, INT, 1.0),
    "eyeriss-like": Case(FLOATS, F16, 1.0),
    "gap8-like": Case(INTEGERS, INT, 1.0),
    "gemmini": Case(INTEGERS, INT, 1.0),
    "gemmini-fp32": Case(FLOATS, F32, 1.0),
    "h100-sm": Case(FLOATS, F16, 1.0),
    "neural-accelerator": Case(FLOATS, F16, 1.0),
    "neural-cluster": Case(FLOATS, F16, 1.0),
    "onsram-study": Case(FLOATS, F16, 1.0),
    "rapid-core-like": Case(FLOATS, F16, 1.0),
    "smaug-smv": Case(FLOATS, F16, 1.0),
    "snax-opengemm": Case(INTEGERS, INT, 1.0),
    "snitch-cluster": Case(FLOATS, F32, 1.0),
    "tpu-v1-like": Case(INTEGERS, INT, 1.0),
    # It wants blocks of 16x16 weights that adjoin; no layout stores them so yet.
    "vta-fsim": Case(INTEGERS, INT, 0.0),
    "vta-hls": Case(INTEGERS, INT, 0.0),
    "vta-pynq": Case(INTEGERS, INT, 0.0),
    "vta-rtl": Case(INTEGERS, INT, 0.0),
}


LIKE_OTHERS = ("epiphany-iii", "vta-fsim", "vta-hls", "vta-rtl")
"""The host does all for them, as for vta-pynq."""


@cache
def network(name: str) -> Network:
    return Network(name, small=True)


def worst(reference: Network, outputs: Sequence[Array]) -> float:
    """The largest error of an output against onnxruntime's."""
    expected = [reference.values[name] for name in reference.model_outputs]
    return max(error(ours, theirs) for ours, theirs in zip(outputs, expected, strict=True))


def check_placement(module: ModuleOp, share: float) -> None:
    """The machine does its share, in commands only, and a remark says why the host does the rest."""
    placements = partition(module)
    assert share_on_machine(placements) >= share
    assert all(placement.remark for placement in placements if placement.device == HOST)
    kernels = {placement.kernel for placement in placements if placement.device != HOST}
    assert kernels or not share
    for op in module.ops:
        name = getattr(getattr(op, "sym_name", None), "data", "")
        if name in kernels:
            assert any(isinstance(inner, DmaOp | ExecOp) for inner in op.walk()), f"@{name} runs nothing on the machine"
            assert not any(inner.name == "linalg.generic" for inner in op.walk())


def test_every_machine_has_a_network() -> None:
    assert sorted(CASES) == [name for name in shipped_machines() if not load_machine(name).is_host]


# One test a machine, since compiling the network takes most of the time.
@pytest.mark.parametrize(
    ("machine", "name"),
    sweep(
        [(machine, name) for machine, case in CASES.items() for name in case.networks],
        lambda value: value[1] == CASES[value[0]].networks[0] and value[0] not in LIKE_OTHERS,
    ),
)
def test_the_network_agrees_with_onnxruntime_and_one_wrong_weight_does_not(machine: str, name: str) -> None:
    case = CASES[machine]
    reference = network(name)
    inputs = list(reference.feeds.values())
    program = import_program(reference.model, {}, name=name)
    module, ctx = program.module, program.ctx
    compile_module(module, ctx, machine, "accel")
    check_placement(module, case.share)
    engine = Engine(module, ctx, backend="native", verify=False)
    assert worst(reference, engine(*inputs)) <= case.tolerance
    for seed in (None, 0, 1):
        assert worst(reference, run_module(module, inputs, ctx.weights, seed=seed)) <= case.tolerance
    ctx.weights._arrays.update(Lowered(module, ctx).exchanged())  # pyright: ignore[reportPrivateUsage]
    assert worst(reference, Engine(module, ctx, backend="native", verify=False)(*inputs)) > 2 * case.tolerance
