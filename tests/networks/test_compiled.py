# SPDX-License-Identifier: Apache-2.0
"""
Networks of full size, compiled to C: every kernel against onnxruntime and by itself. See network.py.

The graphs of the published ones are those of the `onnx` wheel, with real distributions in place of their constant
weights. All networks, at small sizes and on more machines, are in test_every_network.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from network import (
    FLOATS_MACHINE,
    HALVES_MACHINE,
    TOLERANCE,
    Network,
    check_agreement,
    check_partition,
    check_power,
)

from penstock.runtime.interpreter import run_module

pytestmark = pytest.mark.slow

NETWORKS = ("squeezenet", "resnet50", "mobilenet_v2", "bert_layer", "lstm")


@pytest.fixture(scope="module", params=NETWORKS)
def network(request: pytest.FixtureRequest) -> Network:
    return Network(request.param, small=False)


@pytest.mark.parametrize(("level", "machine"), [("loop", None), ("loop", FLOATS_MACHINE), ("accel", FLOATS_MACHINE)])
def test_every_kernel_in_c_agrees_with_onnxruntime(network: Network, level: str, machine: str | None) -> None:
    check_agreement(network, network.lowered(level, machine), machine)


def test_the_scores_are_rich(network: Network) -> None:
    """A comparison of constants proves nothing."""
    assert network.scores.std() > 0.1
    assert len(np.unique(network.scores)) >= 0.5 * network.scores.size


def test_exchanging_two_channels_of_one_weight_is_noticed(network: Network) -> None:
    check_power(network, network.lowered("accel", FLOATS_MACHINE))


def test_nearly_all_multiply_accumulates_run_on_the_machine(network: Network) -> None:
    check_partition(network, network.lowered("accel", FLOATS_MACHINE))


@pytest.mark.parametrize("name", ["squeezenet", "bert_layer"])
def test_a_machine_of_halves_agrees_at_full_size(name: str) -> None:
    network = Network(name, small=False)
    lowered = network.lowered("accel", HALVES_MACHINE)
    check_agreement(network, lowered, HALVES_MACHINE)
    check_partition(network, lowered)


def test_squeezenet_runs_on_the_interpreter_of_the_accelerator() -> None:
    network = Network("squeezenet", small=True)
    lowered = network.lowered("accel", FLOATS_MACHINE)
    for seed in (None, 1):
        outputs = run_module(lowered.module, network.inputs, lowered.ctx.weights, seed=seed)
        errors = network.errors(dict(lowered.named(outputs)))
        assert len(errors) > 20
        assert max(errors.values()) <= TOLERANCE
