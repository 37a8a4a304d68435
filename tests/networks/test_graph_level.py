"""
SqueezeNet and ResNet-50 with seeded weights in the graph interpreter: every node's value against onnxruntime's.

As imported, and after the graph passes, which fold batch normalisations, store images channels-last and group
ops: then each group is compared with the node that its last op was imported from.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from penstock.dialects import graph
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_onnx import import_model
from penstock.passes.graph.expose_values import layout_of, name_of
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

onnxruntime: Any = pytest.importorskip("onnxruntime")

Array = NDArray[Any]

PASSES = "fold-batch-norm,layout,fold-constants,graph-fuse,expose-values"
TOLERANCE = 1e-3
"""Of the largest absolute value of a node: float32 sums in another order stay far below."""


def _load_light() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "networks" / "light.py"
    spec = importlib.util.spec_from_file_location("examples_networks_light", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


light: Any = _load_light()


class Reference:
    """A network, an input, and the value of every node by name as onnxruntime computes it, unoptimised."""

    def __init__(self, name: str, input_size: int | None = None):
        self.model: onnx.ModelProto = light.light_model(name, seed=0, input_size=input_size)
        self.feeds: dict[str, Array] = light.light_input(self.model, seed=1)
        traced = onnx.ModelProto()
        traced.CopyFrom(self.model)
        nodes = [node for node in traced.graph.node if node.op_type not in ("Reshape", "Dropout", "Unsqueeze")]
        known = {output.name for output in traced.graph.output}
        traced.graph.output.extend(
            onnx.helper.make_empty_tensor_value_info(node.output[0]) for node in nodes if node.output[0] not in known
        )
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(traced.SerializeToString(), options)
        names = [node.output[0] for node in nodes]
        self.values: dict[str, Array] = dict(
            zip([node.name for node in nodes], session.run(names, self.feeds), strict=True)
        )

    def program(self) -> tuple[ModuleOp, PenstockContext]:
        module, store = import_model(self.model)
        ctx = make_context()
        ctx.weights = store
        return module, ctx

    @property
    def inputs(self) -> list[Array]:
        return list(self.feeds.values())


def main_of(module: ModuleOp) -> FuncOp:
    func = module.body.block.first_op
    assert isinstance(func, FuncOp)
    return func


def values_by_node(module: ModuleOp, inputs: Sequence[Array], store: WeightStore) -> dict[str, Array]:
    """The value that the interpreter computes for each node, as ONNX lays it out: of several ops the last one's."""
    found: dict[str, Array] = {}

    def listen(op: Operation, results: Sequence[Array]) -> None:
        if isinstance(op, graph.ConstantOp) or not (name := name_of(op)):
            return
        layout = layout_of(op.results[0])
        channels_last = layout is not None and layout.data == graph.NHWC
        found[name] = np.moveaxis(results[0], -1, 1) if channels_last else results[0]

    run_graph(module, inputs, store, listener=listen)
    return found


def errors(found: Mapping[str, Array], expected: Mapping[str, Array]) -> dict[str, float]:
    """For each node that both know: the largest difference over the largest value."""
    shared = [name for name in expected if name in found]
    assert all(found[name].shape == expected[name].shape for name in shared)
    return {name: float(np.abs(found[name] - expected[name]).max() / np.abs(expected[name]).max()) for name in shared}


@pytest.fixture(scope="module", params=[("squeezenet", None), ("resnet50", 96)], ids=["squeezenet", "resnet50"])
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference(*request.param)


def test_the_outputs_would_show_an_error(reference: Reference) -> None:
    logits = reference.values[reference.model.graph.node[-2].name]
    assert logits.std() > 0.1
    assert len(np.unique(list(reference.values.values())[-1])) >= 500


def test_every_node_agrees_with_onnxruntime(reference: Reference) -> None:
    module, ctx = reference.program()
    found = errors(values_by_node(module, reference.inputs, ctx.weights), reference.values)
    assert list(found) == list(reference.values)
    assert max(found.values()) <= TOLERANCE


def test_every_group_agrees_with_onnxruntime_after_the_graph_passes(reference: Reference) -> None:
    module, ctx = reference.program()
    run_passes(ctx, module, read_pipeline(PASSES))
    results = run_graph(module, reference.inputs, ctx.weights)
    main = main_of(module)
    assert main.res_attrs is not None
    found: dict[str, Array] = {}
    for attributes, array in zip(main.res_attrs.data, results, strict=True):
        name, layout = (attributes.data.get(key) for key in ("graph.name", "graph.layout"))
        assert isinstance(name, StringAttr)
        array = array if layout is None else np.moveaxis(array, -1, 1)
        node = reference.values.get(name.data, array)
        # an old softmax is computed on a matrix; the reshape back is a view, and in no group
        found[name.data] = array if node.ndim == array.ndim else array.reshape(node.shape)
    groups = [op for op in main.body.block.ops if isinstance(op, graph.FusedOp)]
    # only the input's way to channels-last and back is no node of the network
    unknown = [name_of(op) for op in groups if name_of(op) not in reference.values]
    assert all(name.endswith(("/NHWC", "/NCHW")) for name in unknown)
    assert len(unknown) <= 2
    assert sum(isinstance(op, graph.BatchNormalizationOp) for op in main.walk()) == 0
    differences = errors(found, reference.values)
    assert len(differences) >= len(groups) - len(unknown)
    assert max(differences.values()) <= TOLERANCE


def test_exchanging_two_channels_of_one_weight_is_noticed(reference: Reference) -> None:
    module, ctx = reference.program()
    convolutions = [op for op in main_of(module).body.block.ops if isinstance(op, graph.ConvOp)]
    weight = convolutions[len(convolutions) // 2].w.owner
    assert isinstance(weight, graph.ConstantOp)
    assert weight.weight is not None
    exchanged = ctx.weights[weight.weight].copy()
    exchanged[[0, 1]] = exchanged[[1, 0]]
    changed = WeightStore()
    for name in ctx.weights:
        changed.add(name, exchanged if name == weight.weight else ctx.weights[name])
    found = errors(values_by_node(module, reference.inputs, changed), reference.values)
    assert max(found.values()) > TOLERANCE
    (output,) = list(found)[-1:]
    assert found[output] > TOLERANCE  # down to the last node


def test_models_are_made_the_same_each_time_and_differ_by_seed() -> None:
    first, again, other = (light.light_model("squeezenet", seed).SerializeToString() for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_resnet50_of_full_size_is_fast_and_agrees_with_onnxruntime() -> None:
    reference = Reference("resnet50")
    module, ctx = reference.program()
    run_passes(ctx, module, read_pipeline(PASSES.removesuffix(",expose-values")))
    began = time.process_time()
    found = values_by_node(module, reference.inputs, ctx.weights)
    assert time.process_time() - began < 8.0  # on two cores 4 seconds; one busy thread must not fail it
    differences = errors(found, reference.values)
    assert len(differences) > 90
    assert max(differences.values()) <= TOLERANCE
