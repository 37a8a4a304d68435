"""
SqueezeNet and ResNet-50 with seeded weights, compiled to C: every kernel's result against onnxruntime.

The graphs are those of the `onnx` wheel; examples/networks/light.py puts real distributions in place of their
constant weights. `expose-values` makes each kernel's result an output, so the comparison is node by node. The
power of the comparison is shown by exchanging two channels of one weight, which must fail it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.accel import ExecOp
from penstock.dialects.context import PenstockContext
from penstock.passes.kernels import HOST, partition, share_on_machine
from penstock.runtime.compiler import attach_machine, import_program, pipeline
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.signature import signature_of

onnxruntime: Any = pytest.importorskip("onnxruntime")
Array = NDArray[Any]
TOLERANCE = 1e-3
"""The largest |a - b| over the largest |b| of a tensor: f32 in another order of summation."""


def _light() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "networks" / "light.py"
    spec = importlib.util.spec_from_file_location("light_networks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["light_networks"] = module
    spec.loader.exec_module(module)
    return module


LIGHT = _light()


class Network:
    """A model, one input, and what onnxruntime computes for every node, by the node's first output."""

    def __init__(self, name: str, size: int | None):
        self.name = name
        self.model: onnx.ModelProto = LIGHT.light_model(name, 0, size)
        feeds = LIGHT.light_input(self.model, 1)
        self.input: Array = next(iter(feeds.values()))
        exposed = onnx.ModelProto()
        exposed.CopyFrom(self.model)
        names = [node.output[0] for node in exposed.graph.node]
        del exposed.graph.output[:]
        exposed.graph.output.extend(onnx.ValueInfoProto(name=output) for output in names)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(exposed.SerializeToString(), options)
        arrays: list[Array] = session.run(None, feeds)
        self.values: dict[str, Array] = dict(zip(names, arrays, strict=True))
        self.values.update({node.name: a for node, a in zip(self.model.graph.node, arrays, strict=True) if node.name})

    def lower(self, level: str, machine: str | None) -> tuple[ModuleOp, PenstockContext]:
        """The network at the end of `level`, every kernel's result an output."""
        program = import_program(self.model, {}, name=self.name)
        if machine is not None:
            attach_machine(program.module, machine)
        specs: list[str] = []
        for spec in pipeline(level, machine):
            specs += [spec, "expose-values"] if spec == "graph-fuse" else [spec]
        run_passes(program.ctx, program.module, read_pipeline(",".join(specs)))
        return program.module, program.ctx

    def compare(self, module: ModuleOp, outputs: Sequence[Array]) -> int:
        """Compare every output with onnxruntime's value of the node it is named after; returns how many."""
        compared = 0
        for spec, ours in zip(signature_of(module).outputs, outputs, strict=True):
            theirs = self.values.get(spec.name)
            if theirs is None:
                continue
            if ours.ndim != theirs.ndim:
                ours = ours.reshape(theirs.shape)
            elif ours.shape != theirs.shape:
                ours = np.moveaxis(ours, -1, 1)
            error = np.abs(ours - theirs).max()
            assert error <= TOLERANCE * np.abs(theirs).max(), f"{spec.name}: {error} of {np.abs(theirs).max()}"
            compared += 1
        return compared


@pytest.fixture(scope="module", params=["squeezenet", "resnet50"])
def network(request: pytest.FixtureRequest) -> Network:
    return Network(request.param, None)


@pytest.mark.parametrize(("level", "machine"), [("loop", None), ("loop", "gemmini-fp32"), ("accel", "gemmini-fp32")])
def test_every_kernel_in_c_agrees_with_onnxruntime(network: Network, level: str, machine: str | None) -> None:
    module, ctx = network.lower(level, machine)
    outputs = Engine(module, ctx, backend="native")(network.input)
    kernels = len([placement for placement in partition(module)])
    assert network.compare(module, outputs) >= kernels


def test_the_last_values_before_the_softmax_are_rich(network: Network) -> None:
    """A comparison of constants proves nothing."""
    logits = network.values[next(node for node in network.model.graph.node if node.op_type == "Softmax").input[0]]
    assert logits.std() > 0.1
    assert len(np.unique(logits)) >= 500


def test_exchanging_two_channels_of_one_weight_is_noticed(network: Network) -> None:
    module, ctx = network.lower("accel", "gemmini-fp32")
    convolutions = [name for name in ctx.weights.names() if ctx.weights[name].ndim == 4]
    name = convolutions[len(convolutions) // 2]
    weight = ctx.weights[name].copy()
    weight[..., [0, 1]] = weight[..., [1, 0]]
    ctx.weights._arrays[name] = weight  # pyright: ignore[reportPrivateUsage]
    outputs = Engine(module, ctx, backend="native")(network.input)
    with pytest.raises(AssertionError, match="of"):
        network.compare(module, outputs)


def test_nearly_all_multiply_accumulates_run_on_the_machine(network: Network) -> None:
    module, _ = network.lower("accel", "gemmini-fp32")
    placements = partition(module)
    assert share_on_machine(placements) >= 0.99
    assert all(placement.remark for placement in placements if placement.device == HOST)
    machine = [placement.kernel for placement in placements if placement.device != HOST]
    for op in module.ops:
        name = getattr(getattr(op, "sym_name", None), "data", "")
        if name in machine:
            assert any(isinstance(inner, ExecOp) for inner in op.walk()), f"@{name} runs nothing on the machine"
            assert not any(inner.name == "linalg.generic" for inner in op.walk())


def test_squeezenet_runs_on_the_interpreter_of_the_accelerator() -> None:
    network = Network("squeezenet", 64)
    module, ctx = network.lower("accel", "gemmini-fp32")
    for seed in (None, 1):
        outputs = run_module(module, [network.input], ctx.weights, seed=seed)
        assert network.compare(module, outputs) > 20
