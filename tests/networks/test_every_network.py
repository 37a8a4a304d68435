# SPDX-License-Identifier: Apache-2.0
"""
Every network of examples/networks, at a small size: on the graph interpreter, and in C from loop and from accel level
for the host and two machines, kernel by kernel. See network.py for what is compared. The quick suite interprets
those whose operators no other has, and lowers one of them; in test_machines.py it lowers others.
"""

from __future__ import annotations

import numpy as np
import pytest
from network import (
    FLOAT_NETWORKS,
    FLOATS_MACHINE,
    HALVES_MACHINE,
    TARGETS,
    TOLERANCE,
    Network,
    check_agreement,
    check_partition,
    check_power,
    interpreted,
)
from sampling import sweep

from penstock.dialects.accel import ExecOp
from penstock.dialects.machine import find_target
from penstock.dialects.mem import memref_of
from penstock.passes.analysis.kernels import is_contraction

LOWERED = pytest.mark.parametrize("network", sweep(FLOAT_NETWORKS, ("bert_layer",)), indirect=True)
LIKE_OTHERS = (
    "bvlc_alexnet", "zfnet512", "vgg19", "inception_v2", "inception_v3", "inception_v4", "mobilenet_v1", "densenet121",
    "resnext50", "ssd300",
)  # fmt: skip
"""Their operators are those of the others: grouped convolution, local response normalisation, concatenation."""


@pytest.fixture(scope="module", params=sweep(FLOAT_NETWORKS, lambda name: name not in LIKE_OTHERS))
def network(request: pytest.FixtureRequest) -> Network:
    return Network(request.param, small=True)


def test_the_scores_are_rich(network: Network) -> None:
    """A comparison of constants proves nothing."""
    scores = network.scores
    assert scores.std() > 0.02 * np.abs(scores).max()
    assert len(np.unique(scores)) >= 0.8 * scores.size


def test_every_node_agrees_on_the_graph_interpreter(network: Network) -> None:
    module, ctx = network.imported
    found = interpreted(module, ctx.weights, network.inputs)
    errors = network.errors(found)
    assert set(network.computing_nodes) <= set(errors)
    assert max(errors.values()) <= TOLERANCE


@LOWERED
@pytest.mark.parametrize(("level", "machine"), TARGETS)
def test_every_kernel_in_c_agrees(network: Network, level: str, machine: str | None) -> None:
    check_agreement(network, network.lowered(level, machine), machine)


@LOWERED
@pytest.mark.parametrize("machine", [FLOATS_MACHINE, HALVES_MACHINE])
def test_exchanging_two_channels_of_one_weight_is_noticed(network: Network, machine: str) -> None:
    check_power(network, network.lowered("accel", machine))


@LOWERED
@pytest.mark.parametrize("machine", [FLOATS_MACHINE, HALVES_MACHINE])
def test_the_multiply_accumulates_run_on_the_machine(network: Network, machine: str) -> None:
    check_partition(network, network.lowered("accel", machine))


@LOWERED
def test_the_machine_of_halves_reads_halves_and_sums_floats(network: Network) -> None:
    module = network.lowered("accel", HALVES_MACHINE).module
    target = find_target(module)
    assert target is not None
    products = {name for name, intrinsic in target.intrinsics().items() if is_contraction(intrinsic.generic)}
    execs = [op for op in module.walk() if isinstance(op, ExecOp) and op.intrinsic.string_value() in products]
    assert execs
    for op in execs:
        types = [str(memref_of(buffer).element_type) for buffer in op.buffers]
        assert types == ["f16", "f16", "f32"]
