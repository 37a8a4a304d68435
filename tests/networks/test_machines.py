"""
Every machine that ships: one small network compiled for it, as C and as commands, against onnxruntime.

Machines of 16-bit floats store in f16 what onnxruntime keeps in f32, so their tolerance is that of rounding each
stored value to 11 bits; sums are f32 in both. Machines of 8-bit integers compute what onnxruntime does.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from penstock.dialects.accel import ExecOp
from penstock.dialects.context import PenstockContext
from penstock.lowering.from_machine_toml import shipped_machines
from penstock.passes.kernels import HOST, partition, share_on_machine
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.weights import WEIGHT_ARGUMENT

onnxruntime: Any = pytest.importorskip("onnxruntime")
Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A network for a machine, and what is expected of it."""

    network: str
    tolerance: float
    """The largest |a - b| over the largest |b| of the output."""
    share: float
    """The least share of the multiply-accumulates that the machine does."""


F32, F16, INT = 1e-5, 5e-3, 1e-6
CASES = {
    # Without intrinsics: its cores would be filled by ordinary copies, so all is left to the host.
    "epiphany-iii": Case("int8_cnn", INT, 0.0),
    "gemmini": Case("int8_cnn", INT, 1.0),
    "gemmini-fp32": Case("squeezenet", F32, 1.0),
    "h100-sm": Case("squeezenet", F16, 1.0),
    "neural-accelerator": Case("squeezenet", F16, 1.0),
    "neural-cluster": Case("squeezenet", F16, 1.0),
    "rapid-core-like": Case("squeezenet", F16, 1.0),
    "smaug-smv": Case("squeezenet", F16, 1.0),
    "snax-opengemm": Case("int8_cnn", INT, 1.0),
    # It wants blocks of 16x16 weights that adjoin; no layout stores them so yet.
    "vta-pynq": Case("int8_cnn", INT, 0.0),
}


def _zoo() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "networks" / "zoo.py"
    spec = importlib.util.spec_from_file_location("network_zoo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["network_zoo"] = module
    spec.loader.exec_module(module)
    return module


ZOO = _zoo()


@dataclass
class Network:
    """A model, its inputs, and what onnxruntime makes of them."""

    name: str
    model: onnx.ModelProto = field(init=False)
    feeds: dict[str, Array] = field(init=False)
    expected: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        self.model = ZOO.NETWORKS[self.name](0, small=True)
        self.feeds = ZOO.inputs(self.model, 1)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(self.model.SerializeToString(), options)
        self.expected = session.run(None, self.feeds)

    def error(self, outputs: list[Array]) -> float:
        """The largest difference to onnxruntime's outputs, relative to the largest value of the output."""
        assert len(outputs) == len(self.expected)
        return max(
            float(np.abs(ours - theirs).max() / np.abs(theirs).max())
            for ours, theirs in zip(outputs, self.expected, strict=True)
        )


@cache
def network(name: str) -> Network:
    return Network(name)


def weights_read(module: ModuleOp) -> list[str]:
    """The names of the weights that @main takes."""
    (main,) = (op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "main")
    assert main.arg_attrs is not None
    names = [attributes.data.get(WEIGHT_ARGUMENT) for attributes in main.arg_attrs]
    return [name.data for name in names if isinstance(name, StringAttr)]


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
            assert any(isinstance(inner, ExecOp) for inner in op.walk()), f"@{name} runs nothing on the machine"
            assert not any(inner.name == "linalg.generic" for inner in op.walk())


def exchange_channels(module: ModuleOp, ctx: PenstockContext) -> None:
    """Exchange two output channels of the weight of a layer in the middle."""
    names = [name for name in weights_read(module) if ctx.weights[name].ndim == 4]
    name = names[len(names) // 2]
    changed = ctx.weights[name].copy()
    changed[..., [0, 1]] = changed[..., [1, 0]]
    ctx.weights._arrays[name] = changed  # pyright: ignore[reportPrivateUsage]


def test_every_machine_has_a_network() -> None:
    assert sorted(CASES) == [name for name in shipped_machines() if name != "host"]


# One test a machine, since compiling the network takes most of the time.
@pytest.mark.parametrize("machine", CASES)
def test_the_network_agrees_with_onnxruntime_and_one_wrong_weight_does_not(machine: str) -> None:
    case = CASES[machine]
    reference = network(case.network)
    inputs = list(reference.feeds.values())
    program = import_program(reference.model, {}, name=case.network)
    module, ctx = program.module, program.ctx
    compile_module(module, ctx, machine, "accel")
    check_placement(module, case.share)
    engine = Engine(module, ctx, backend="native")
    assert reference.error(list(engine(*inputs))) <= case.tolerance
    for seed in (None, 0, 1):
        assert reference.error(list(run_module(module, inputs, ctx.weights, seed=seed))) <= case.tolerance
    exchange_channels(module, ctx)
    assert reference.error(list(Engine(module, ctx, backend="native")(*inputs))) > 2 * case.tolerance
