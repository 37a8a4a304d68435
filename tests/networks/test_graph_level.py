# SPDX-License-Identifier: Apache-2.0
"""
SqueezeNet and ResNet-50 in the graph interpreter after the graph passes, which fold batch normalisations, store
images channels-last and group ops: each group against the node that its last op was imported from.

What is imported, node by node, is compared in test_every_network.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from network import TOLERANCE, Network, error, interpreted
from sampling import sweep
from xdsl.dialects.builtin import StringAttr

from penstock.dialects import graph
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.expose_values import name_of
from penstock.runtime.compiler import import_program
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.signature import main_function

PASSES = "fold-batch-norm,layout,fold-constants,graph-fuse,expose-values"


@pytest.fixture(scope="module", params=sweep(("squeezenet", "resnet50"), ("squeezenet",)))
def network(request: pytest.FixtureRequest) -> Network:
    return Network(request.param, small=request.param == "resnet50")


def test_every_group_agrees_with_onnxruntime_after_the_graph_passes(network: Network) -> None:
    program = import_program(network.model, {}, name=network.name)
    run_passes(program.ctx, program.module, read_pipeline(PASSES))
    results = run_graph(program.module, network.inputs, program.ctx.weights)
    main = main_function(program.module)
    assert main.res_attrs is not None
    errors: dict[str, float] = {}
    for attributes, array in zip(main.res_attrs.data, results, strict=True):
        name, layout = (attributes.data.get(key) for key in ("graph.name", "graph.layout"))
        assert isinstance(name, StringAttr)
        if (node := network.values.get(name.data)) is None:
            # only the input's way to channels-last and back is no node of the network
            assert name.data.endswith(("/NHWC", "/NCHW"))
            continue
        array = array if layout is None else np.moveaxis(array, -1, 1)
        # an old softmax is computed on a matrix; the reshape back is a view, and in no group
        errors[name.data] = error(array if node.ndim == array.ndim else array.reshape(node.shape), node)
    groups = [op for op in main.body.block.ops if isinstance(op, graph.FusedOp)]
    assert sum(isinstance(op, graph.BatchNormalizationOp) for op in main.walk()) == 0
    assert len(errors) >= len(groups) - 2
    assert max(errors.values()) <= TOLERANCE


def test_exchanging_two_channels_of_one_weight_is_noticed(network: Network) -> None:
    module, ctx = network.imported
    convolutions = [op for op in main_function(module).body.block.ops if isinstance(op, graph.ConvOp)]
    weight = convolutions[len(convolutions) // 2].w.owner
    assert isinstance(weight, graph.ConstantOp)
    assert weight.weight is not None
    exchanged = ctx.weights[weight.weight].copy()
    exchanged[[0, 1]] = exchanged[[1, 0]]
    changed = WeightStore()
    for name in ctx.weights:
        changed.add(name, exchanged if name == weight.weight else ctx.weights[name])
    errors = network.errors(interpreted(module, changed, network.inputs))
    assert errors[list(errors)[-1]] > TOLERANCE  # down to the last node


def test_models_are_made_the_same_each_time_and_differ_by_seed() -> None:
    first, again, other = (zoo.light.light_model("squeezenet", seed).SerializeToString() for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_resnet50_of_full_size_agrees_with_onnxruntime() -> None:
    network = Network("resnet50", small=False)
    module, ctx = network.groups
    found = interpreted(module, ctx.weights, network.inputs)
    errors = network.errors({name: array for name, array in found.items() if name in network.values})
    assert len(errors) > 90
    assert max(errors.values()) <= TOLERANCE


def test_groups_are_named_after_nodes(network: Network) -> None:
    """What `Network.own_errors` relies on."""
    names = [name_of(op) for op in main_function(network.groups[0]).body.block.ops if isinstance(op, graph.FusedOp)]
    assert len(set(names)) == len(names)
    assert all(name in network.values or name.endswith(("/NHWC", "/NCHW", "/siblings")) for name in names)
