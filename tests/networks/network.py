# SPDX-License-Identifier: Apache-2.0
"""
What the tests of networks share: a network of examples/networks, what onnxruntime computes for each of its nodes,
the network lowered to any level, and two ways to judge what that computes.

`Network.errors` compares with onnxruntime's value of the node that a result is named after: whatever went wrong on
the way there is in the difference. `Network.own_errors` judges each kernel by itself: what it computed from what it
was given, against what the group that it comes from, in f32, makes of the very same values. A machine that stores
f16 is judged by the second, with the tolerance of f32, since an error of 1e-3 of a score is far more of its
exponential, and nobody's fault; and by the first with a tolerance of its own. The groups in f32 are run by the graph
interpreter, whose agreement with onnxruntime, node by node, is another test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import zoo
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.context import PenstockContext
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import HOST, Placement, kernels, partition, share_on_machine
from penstock.passes.graph.expose_values import layout_of, name_of
from penstock.runtime.compiler import import_program
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter.graph import evaluate_op, run_graph
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import main_function, signature_of

onnxruntime: Any = pytest.importorskip("onnxruntime")
Array = NDArray[Any]

INTEGER_NETWORKS = ("int8_cnn", "resnet18_int8")
FLOAT_NETWORKS = tuple(name for name in zoo.NETWORKS if name not in INTEGER_NETWORKS)
"""The networks that compute in floats."""

TOLERANCE = 1e-3
"""The largest |a - b| over the largest |b| of a value: f32 sums in another order stay far below."""

TOLERANCE_OF_HALVES = 1e-2
"""The same from the input to any node, with every value on the way rounded to the 11 bits of f16."""

FLOATS_MACHINE, HALVES_MACHINE = "gemmini-fp32", "rapid-core-like"
TARGETS = (("loop", None), ("loop", FLOATS_MACHINE), ("accel", FLOATS_MACHINE), ("accel", HALVES_MACHINE))
"""Level and machine: what is turned into C."""

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"

MOVES = ("Concat", "Constant", "Dropout", "Flatten", "Gather", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that compute nothing; there may be no op for them."""

NEARLY_ALL = 0.9999
SHARES = {"bvlc_alexnet": 0.997, "inception_v1": 0.9965, "zfnet512": 0.993}
"""The least share of the multiply-accumulates on a machine, where it is not NEARLY_ALL: a local response
normalisation sums squares, which no matrix unit does."""


def error(ours: Array, theirs: Array) -> float:
    """The largest difference over the largest value; infinite where either is no number."""
    assert ours.shape == theirs.shape
    scale = float(np.abs(theirs).max(initial=0.0))
    found = float(np.abs(ours.astype(np.float64) - theirs).max(initial=0.0))
    return found / scale if scale > 0 and np.isfinite(found) else np.inf


@dataclass
class Lowered:
    """A network at loop or accel level, with the result of every kernel an output."""

    module: ModuleOp
    ctx: PenstockContext

    @property
    def placements(self) -> list[Placement]:
        return partition(self.module)

    def run(self, inputs: Sequence[Array], changed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Each output by its name, images with the channels where ONNX has them; `changed` are other weights."""
        store = self.ctx.weights._arrays  # pyright: ignore[reportPrivateUsage]
        originals = {name: self.ctx.weights[name] for name in changed or {}}
        try:
            store.update(changed or {})
            outputs = Engine(self.module, self.ctx, backend="native", verify=False)(*inputs)
        finally:
            store.update(originals)
        return dict(self.named(outputs))

    def named(self, outputs: Sequence[Array]) -> Iterator[tuple[str, Array]]:
        """The outputs with their names, as ONNX lays them out."""
        names = [spec.name for spec in signature_of(self.module).outputs]
        assert len(set(names)) == len(names)
        for name, layout, output in zip(names, self._layouts(), outputs, strict=True):
            yield name, np.moveaxis(output, -1, 1) if layout == graph.NHWC else output

    def _layouts(self) -> list[str | None]:
        """For each output its layout, where `expose-values` has noted one."""
        main = main_function(self.module)
        assert isa(main.arg_attrs, ArrayAttr[DictionaryAttr])
        found = [entry.data for entry in main.arg_attrs if "graph.output" in entry.data]
        layouts = [entry.get("graph.layout") for entry in found]
        return [layout.data if isinstance(layout, StringAttr) else None for layout in layouts]

    def exchanged(self) -> dict[str, Array]:
        """
        A weight from the middle of those with channels, two of these exchanged, of the output where it has several:
        those of the least and the largest sum. Two that a rectifier sets to zero may be exchanged unnoticed.
        """
        names = [name for name in signature_of(self.module).weights if self.ctx.weights[name].ndim >= 2]
        name = names[len(names) // 2]
        weight = self.ctx.weights[name].copy()
        axis = weight.ndim - 1 if weight.shape[-1] > 1 else int(np.argmax(weight.shape))
        channels = np.moveaxis(weight, axis, 0)
        sums = channels.reshape(len(channels), -1).sum(axis=1, dtype=np.float64)
        pair = [int(sums.argmin()), int(sums.argmax())]
        channels[pair] = channels[pair[::-1]]
        return {name: weight}


@dataclass
class Network:
    """A network, of examples/networks or "digits", its input, and what onnxruntime computes for every node."""

    name: str
    small: bool
    model: onnx.ModelProto = field(init=False)
    feeds: dict[str, Array] = field(init=False)
    values: dict[str, Array] = field(init=False)
    """By the name of the node and by that of the value; the inputs too."""
    _lowered: dict[tuple[str, str | None], Lowered] = field(
        init=False, default_factory=dict[tuple[str, str | None], Lowered]
    )

    def __post_init__(self) -> None:
        self.model = (
            onnx.ModelProto.FromString(DIGITS.read_bytes())
            if self.name == "digits"
            else zoo.NETWORKS[self.name](0, small=self.small)
        )
        self.feeds = zoo.inputs(self.model, 1)
        traced = onnx.ModelProto()
        traced.CopyFrom(self.model)
        names = [name for node in traced.graph.node for name in node.output if name]
        del traced.graph.output[:]
        traced.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(traced.SerializeToString(), options)
        arrays: list[Array] = session.run(names, self.feeds)
        self.values = {**self.feeds, **dict(zip(names, arrays, strict=True))}
        self.values.update({node.name: self.values[node.output[0]] for node in self.model.graph.node if node.name})

    @property
    def inputs(self) -> list[Array]:
        return list(self.feeds.values())

    @property
    def model_outputs(self) -> list[str]:
        return [value.name for value in self.model.graph.output]

    @property
    def computing_nodes(self) -> list[str]:
        """The names, as the importer gives them, of the nodes that do more than hold, shape or move elements."""
        nodes = [node for node in self.model.graph.node if node.op_type not in MOVES]
        return [node.name or node.output[0] for node in nodes]

    @property
    def scores(self) -> Array:
        """The last value before the softmax that ends a classifier."""
        last = self.model.graph.node[-1]
        softmax = last if last.op_type == "Softmax" else None
        return self.values[softmax.input[0] if softmax else self.model.graph.output[0].name]

    @cached_property
    def imported(self) -> tuple[ModuleOp, PenstockContext]:
        """The network as it was imported."""
        program = import_program(self.model, {}, name=self.name)
        return program.module, program.ctx

    @cached_property
    def groups(self) -> tuple[ModuleOp, PenstockContext]:
        """The network after the graph passes for the host: in groups, in f32."""
        program = import_program(self.model, {}, name=self.name)
        run_passes(program.ctx, program.module, read_pipeline(",".join(pipeline("graph", None))))
        return program.module, program.ctx

    def lowered(self, level: str, machine: str | None) -> Lowered:
        """The network at the end of loop or accel level."""
        key = (level, machine)
        if key not in self._lowered:
            self._lowered[key] = self._to_loop(machine) if level == "loop" else self._to_accel(machine)
        return self._lowered[key]

    def _to_loop(self, machine: str | None) -> Lowered:
        program = import_program(self.model, {}, name=self.name)
        if machine is not None:
            attach_machine(program.module, machine)
        specs = list(pipeline("loop", machine))
        specs.insert(len(pipeline("graph", machine)), "expose-values")
        # Kernels are compared with `groups`, where the image and the filters of the first convolution are as given.
        specs = [spec for spec in specs if spec != "space-to-depth"]
        run_passes(program.ctx, program.module, read_pipeline(",".join(specs)))
        return Lowered(program.module, program.ctx)

    def _to_accel(self, machine: str | None) -> Lowered:
        loops = self.lowered("loop", machine)
        module = loops.module.clone()
        run_passes(loops.ctx, module, read_pipeline(",".join(pipeline("accel", machine, start="loop"))))
        return Lowered(module, loops.ctx)

    def errors(self, found: Mapping[str, Array]) -> dict[str, float]:
        """
        The error of each value that onnxruntime has too; the others must come from one that it has.

        Their names continue that one's: a change of layout or type (`image/NHWC`), a step of a recurrence.
        """
        errors: dict[str, float] = {}
        for name, ours in found.items():
            if (theirs := self.values.get(name)) is not None:
                # A softmax of old works on a matrix; the view of its result is in no group, and exposed as it is.
                ours = ours if ours.ndim == theirs.ndim else ours.reshape(theirs.shape)
                assert theirs.size == 1 or theirs.std() > 0, f"{name} is constant: it proves nothing"
                errors[name] = error(ours, theirs)
            else:
                parts = name.split("/")
                assert any("/".join(parts[:count]) in self.values for count in range(1, len(parts))), name
        return errors

    def own_errors(self, found: Mapping[str, Array]) -> dict[str, float]:
        """
        The error of each kernel against its group in f32 on the values that the kernel had: those in `found`.

        What no kernel computes, views and constants, comes from the interpreter, and so does what a kernel computes in
        another layout, whose name continues the group's. Groups of one name are told apart by their order, as
        `expose-values` numbers them.
        """
        named: dict[str, list[Array]] = {}
        for name, array in found.items():
            named.setdefault(re.sub(r"#\d+$", "", name), []).append(array)
        module, ctx = self.groups
        main = main_function(module)
        values: dict[SSAValue, Array] = dict(zip(main.body.block.args, self.inputs, strict=True))
        errors: dict[str, float] = {}
        for op in main.body.block.ops:
            if isinstance(op, ReturnOp):
                continue
            results = evaluate_op(op, [values[operand] for operand in op.operands], ctx.weights)
            values.update(zip(op.results, results, strict=True))
            if not isinstance(op, graph.FusedOp):
                continue
            name, theirs = name_of(op), results[0]
            if name not in named and any(each.startswith(f"{name}/") for each in named):
                continue
            ours = named[name].pop(0)
            ours = np.moveaxis(ours, 1, -1) if _channels_last(op) else ours
            errors[name] = max(errors.get(name, 0.0), error(ours, theirs))
            values[op.results[0]] = np.ascontiguousarray(ours, theirs.dtype)
        return errors


def check_agreement(network: Network, lowered: Lowered, machine: str | None) -> None:
    """Every kernel in C agrees with onnxruntime, and by itself with its group."""
    found = lowered.run(network.inputs)
    errors, own = network.errors(found), network.own_errors(found)
    assert errors
    assert set(network.model_outputs) <= set(found)
    assert max(own.values()) <= TOLERANCE, _worst(own)
    tolerance = TOLERANCE_OF_HALVES if machine == HALVES_MACHINE else TOLERANCE
    assert max(errors.values()) <= tolerance, _worst(errors)


def check_power(network: Network, lowered: Lowered) -> None:
    """Two exchanged channels of one weight are an error of some kernel, far beyond the tolerance."""
    found = lowered.run(network.inputs, lowered.exchanged())
    assert max(network.own_errors(found).values()) > 5 * TOLERANCE


def check_partition(network: Network, lowered: Lowered) -> None:
    """The machine does what it is there for, by its intrinsics, and for the rest there is a reason."""
    placements = lowered.placements
    assert share_on_machine(placements) >= SHARES.get(network.name, NEARLY_ALL)
    assert all(placement.remark for placement in placements if placement.device == HOST)
    on_machine = {placement.kernel for placement in placements if placement.device != HOST}
    for kernel in kernels(lowered.module):
        if kernel.sym_name.data in on_machine:
            assert any(isinstance(op, ExecOp | DmaOp) for op in kernel.walk()), kernel.sym_name.data
            assert not any(isinstance(op, GenericOp) for op in kernel.walk()), kernel.sym_name.data


def _worst(errors: Mapping[str, float]) -> str:
    name = max(errors, key=lambda each: errors[each])
    return f"{name}: {errors[name]:.3g} of the largest value"


def _channels_last(op: Operation) -> bool:
    layout = layout_of(op.results[0])
    return layout is not None and layout.data == graph.NHWC


def interpreted(module: ModuleOp, weights: WeightStore, inputs: Sequence[Array]) -> dict[str, Array]:
    """The value that the graph interpreter computes for each named op, as ONNX lays it out; of several, the last."""
    found: dict[str, Array] = {}

    def listen(op: Operation, results: Sequence[Array]) -> None:
        if isinstance(op, graph.ConstantOp) or not (name := name_of(op)):
            return
        found[name] = np.moveaxis(results[0], -1, 1) if _channels_last(op) else results[0]

    run_graph(module, inputs, weights, listener=listen)
    return found
