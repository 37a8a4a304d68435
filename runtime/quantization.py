# SPDX-License-Identifier: Apache-2.0
"""
Post-training quantisation as a whole: inputs to calibrate with, ranges, the quantised program, and what it lost.

Calibration runs the graph in the reference interpreter, sample by sample. `min-max` takes the extremes. The other
methods cut off what is rare, from a histogram of a second run: `percentile` leaves a share outside, `mse` chooses the
range for which the mean of squared errors of 8-bit integers is least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.quantization.quantizer import QuantizedLayer
from penstock.passes.graph.quantization.ranges import Range, checked_ranges, value_names
from penstock.passes.graph.quantization.scales import HIGHEST, LOWEST
from penstock.passes.graph.quantize import QUANTIZERS, Scheme, quantize_module
from penstock.runtime.compiler import LoadedProgram, load_input
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.signature import main_function, signature_of
from penstock.runtime.symbolic_dims import require_bound
from penstock.runtime.tensor_specs import Signature

if TYPE_CHECKING:
    from onnx import ModelProto

    from penstock.runtime.engine import Backend, Engine

Array = NDArray[Any]
Sample = Sequence[Array]
"""The inputs of one run, in order."""

Method = Literal["min-max", "percentile", "mse"]
METHODS: tuple[Method, ...] = ("min-max", "percentile", "mse")

BINS = 2048
"""Of a histogram: 8 for each number that 8 bits hold."""
CANDIDATES = 100
"""How many widths the search for the least error tries."""
NARROWEST = 0.3
"""The least share of the width that it tries."""

PREPARATION = "fold-batch-norm,fold-constants"
"""What is done to a program before it is calibrated: ranges are of what is left then."""
MEASURED = 32
"""How many samples the loss is measured on."""


@dataclass(frozen=True)
class LayerReport:
    """How one value was quantised, and what that cost."""

    layer: QuantizedLayer
    sqnr: float | None
    """The least ratio of signal to quantisation noise over the samples measured, in dB; infinite without noise."""

    def words(self) -> list[str]:
        """The columns of a table: name, operation, scale, zero point, shift, range, SQNR."""
        layer = self.layer
        low, high = layer.range
        shift = "-" if layer.shift is None else str(layer.shift)
        sqnr = "-" if self.sqnr is None else "exact" if math.isinf(self.sqnr) else f"{self.sqnr:.1f} dB"
        scale = f"{layer.scale.factor:.6g}"
        if math.frexp(layer.scale.factor)[0] == 0.5:
            scale = f"2^{layer.scale.exponent}"
        operation = layer.operation.removeprefix("graph.")
        return [layer.name, operation, scale, str(layer.scale.zero), shift, f"{low:.4g} to {high:.4g}", sqnr]


HEAD = ["value", "operation", "scale", "zero", "shift", "range", "worst SQNR"]


@dataclass
class QuantizedModel:
    """A quantised program, at graph level, with the ranges it was made from and a report on each value."""

    program: LoadedProgram
    """The program."""
    scheme: Scheme
    """How it was quantised."""
    ranges: dict[str, Range]
    """The least and the largest number that each value took, by its name."""
    layers: list[LayerReport] = field(default_factory=list[LayerReport])
    """What was quantised, with what that cost."""
    remarks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Name and reason of what stays in float although integers reach it."""

    def integer(self) -> QuantizedModel:
        """The same with products of integers in place of quantisation around ops in float; see `integer-arithmetic`."""
        from penstock.dialects.context import make_context

        ctx = make_context()
        ctx.weights = self.program.ctx.weights.copy()
        copy = replace(self.program, module=self.program.module.clone(), ctx=ctx)
        run_passes(ctx, copy.module, read_pipeline("integer-arithmetic"))
        return replace(self, program=copy)

    def compile(self, machine: str | None = None, backend: Backend = "native") -> Engine:
        """Compile the integer form for a machine, or the host; the program itself is not changed."""
        from penstock.runtime.engine import compile_program

        return compile_program(self.integer().program, machine=machine, backend=backend)

    def __call__(self, *arrays: Any, **named: Any) -> list[Array]:
        """The outputs by the reference interpreter at graph level."""
        inputs = signature_of(self.program.module).bind(arrays, named)
        return run_graph(self.program.module, inputs, self.program.ctx.weights)

    def lines(self) -> list[str]:
        """The report as a table, and the remarks."""
        rows = [HEAD, *(report.words() for report in self.layers)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        text = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return text + [f"in float: {name}: {reason}" for name, reason in self.remarks]


def quantize(
    model: str | Path | ModelProto | LoadedProgram,
    calibration: Any = None,
    *,
    scheme: Scheme = "qdq",
    per_channel: bool = True,
    method: Method = "min-max",
    percentile: float = 99.99,
    ranges: Mapping[str, Range] | None = None,
    dims: Mapping[str, int] | None = None,
) -> QuantizedModel:
    """
    Quantise an ONNX model, or a program at graph level, to 8-bit integers after training.

    `calibration` is an array with samples along its first dimension, a mapping from the names of inputs to such
    arrays, or a sequence of them; or `ranges` is a table of an earlier calibration, and then `calibration` only serves
    to measure the loss. A model for batches of B takes B samples a run. See the passes `quantize` for the schemes and
    the top of this file for the methods. A `LoadedProgram` is changed in place.

    Raises UserError for inputs that do not fit, are empty, or hold what is not finite, for dimensions that are not
    bound, and for ranges of another program.
    """
    if scheme not in QUANTIZERS:
        raise UserError(f'there is no scheme "{scheme}"', notes=[nearest_or_all(scheme, QUANTIZERS, "schemes")])
    program = model if isinstance(model, LoadedProgram) else load_input(model, dims=dims)
    require_bound(program.module, str(program.path))
    if program.level != "graph":
        raise UserError(f"the program is at {program.level} level, and graphs are quantised", loc=str(program.path))
    samples = [] if calibration is None else samples_of(signature_of(program.module), calibration)
    run_passes(program.ctx, program.module, read_pipeline(PREPARATION), parsed=program.parsed)
    store = program.ctx.weights
    if ranges is None:
        table = calibrate(program.module, store, samples, method, percentile)
    else:
        table = checked_ranges(dict(ranges))
    original = program.module.clone()
    done = quantize_module(program.module, table, store, scheme, per_channel)
    losses = _losses(program, original, done.layers, samples[:MEASURED])
    reports = [LayerReport(layer, losses.get(layer.name)) for layer in done.layers]
    return QuantizedModel(replace(program, parsed=None), scheme, table, reports, done.remarks)


# calibration inputs


def samples_of(signature: Signature, calibration: Any) -> list[Sample]:
    """
    The runs that calibration inputs come to; see `quantize`.

    Raises UserError where there is none, and for inputs that do not fit, or hold what is not finite.
    """
    parts: list[Any] = [calibration]
    if isinstance(calibration, list | tuple):
        parts = list(cast(Sequence[Any], calibration))
    runs: list[Sample] = []
    for part in parts:
        runs += _runs_of(signature, part)
    if not runs:
        raise UserError("there are no calibration inputs", notes=[signature.describe()])
    return runs


def _runs_of(signature: Signature, part: Any) -> list[Sample]:
    given: Mapping[Any, Any]
    if isinstance(part, Mapping):
        given = cast(Mapping[Any, Any], part)
    else:
        if len(signature.inputs) != 1:
            raise UserError(
                f"the program takes {len(signature.inputs)} inputs: give calibration inputs by name",
                notes=[signature.describe()],
            )
        given = {signature.inputs[0].name: part}
    arrays: dict[str, Array] = {str(name): np.asarray(array) for name, array in given.items()}
    split: dict[str, list[Array]] = {}
    for spec in signature.inputs:
        if (array := arrays.get(spec.name)) is not None:
            split[spec.name] = _split(spec.name, array, spec.shape)
    unknown = {name: array for name, array in arrays.items() if name not in split}
    counts = {name: len(pieces) for name, pieces in split.items()}
    if len(set(counts.values())) > 1:
        words = ", ".join(f'"{name}" {count}' for name, count in counts.items())
        raise UserError(f"the calibration inputs have different numbers of runs: {words}")
    number = next(iter(counts.values()), 1)
    runs: list[Sample] = []
    for index in range(number):
        bound = signature.bind([], {name: pieces[index] for name, pieces in split.items()} | unknown)
        for spec, array in zip(signature.inputs, bound, strict=True):
            if array.dtype.kind not in "biu" and not np.isfinite(array.astype(np.float64)).all():
                raise UserError(f'the calibration input "{spec.name}" holds NaN or infinities, in run {index}')
        runs.append(bound)
    return runs


def _split(name: str, array: Array, shape: tuple[int, ...]) -> list[Array]:
    """The runs in an array: along a leading dimension, or in batches along the first."""
    if array.ndim == len(shape) + 1:
        return list(array)
    if array.ndim != len(shape) or not shape or array.shape[1:] != shape[1:]:
        return [array]  # as it is; whether it fits is checked there
    if array.shape[0] % shape[0]:
        raise UserError(f'{array.shape[0]} calibration inputs "{name}" do not fill batches of {shape[0]}')
    return np.split(array, array.shape[0] // shape[0]) if array.shape[0] else []


# ranges


@dataclass
class _Extremes:
    """The lowest and highest number of each value."""

    found: dict[str, Range] = field(default_factory=dict[str, Range])

    def take(self, name: str, array: Array) -> None:
        if not array.size:
            return
        low, high = float(array.min()), float(array.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise UserError(
                f'the value "{name}" is not finite on the calibration inputs',
                notes=["infinities and NaN have no 8-bit integers: leave such inputs out, or correct the model"],
            )
        before = self.found.get(name, (low, high))
        self.found[name] = (min(before[0], low), max(before[1], high))


@dataclass
class _Histograms:
    """How often each value lies where between its extremes."""

    ranges: dict[str, Range]
    counts: dict[str, NDArray[np.int64]] = field(default_factory=dict[str, NDArray[np.int64]])

    def take(self, name: str, array: Array) -> None:
        if array.size:
            counts, _ = np.histogram(array, BINS, self.ranges[name])
            self.counts[name] = self.counts.get(name, 0) + counts


def calibrate(
    module: ModuleOp,
    weights: WeightStore,
    samples: Sequence[Sequence[Array]],
    method: Method = "min-max",
    percentile: float = 99.99,
) -> dict[str, Range]:
    """
    The range of each float value of @main over `samples`, each of them the inputs of one run, in order.

    `percentile` is the share of numbers, in per cent, that the method of that name keeps, half of the rest cut off at
    each end. The table is the same for the same inputs, in the order of the graph.

    Raises UserError without samples, where a sample has another type than the inputs, and where a value is not finite.
    """
    if method not in METHODS:
        raise UserError(
            f'there is no method "{method}" of calibration', notes=[nearest_or_all(method, METHODS, "methods")]
        )
    if not samples:
        raise UserError("there are no calibration inputs")
    if not 50 < percentile <= 100:
        raise UserError(f"a percentile is above 50 and at most 100, not {percentile}")
    func = main_function(module)
    names = value_names(func)
    extremes = _Extremes()
    _observe(func, names, weights, samples, extremes.take)
    if method == "min-max":
        return extremes.found
    histograms = _Histograms(extremes.found)
    _observe(func, names, weights, samples, histograms.take)
    return {
        name: _percentile(counts, extremes.found[name], percentile)
        if method == "percentile"
        else _least_error(counts, extremes.found[name])
        for name, counts in histograms.counts.items()
    }


def _observe(
    func: FuncOp,
    names: dict[SSAValue, str],
    weights: WeightStore,
    samples: Sequence[Sequence[Array]],
    take: Callable[[str, Array], None],
) -> None:
    def listener(op: Operation, results: Sequence[Array]) -> None:
        for result, array in zip(op.results, results, strict=True):
            if (name := names.get(result)) is not None:
                take(name, array)

    for sample in samples:
        for argument, array in zip(func.body.block.args, sample, strict=False):
            if (name := names.get(argument)) is not None:
                take(name, np.asarray(array))
        run_graph(func, sample, weights, listener=listener)


def _edges(found: Range) -> NDArray[np.float64]:
    return np.linspace(found[0], found[1], BINS + 1)


def _percentile(counts: NDArray[np.int64], found: Range, percentile: float) -> Range:
    """The bins that are left when the rarest numbers at both ends are cut off."""
    edges, total = _edges(found), int(counts.sum())
    below = np.cumsum(counts)
    outside = total * (100 - percentile) / 200
    first = int(np.searchsorted(below, outside, side="right"))
    last = int(np.searchsorted(below, total - outside, side="left"))
    return float(edges[min(first, BINS - 1)]), float(edges[min(last, BINS - 1) + 1])


def _least_error(counts: NDArray[np.int64], found: Range) -> Range:
    """The narrowing of a range, about 0, for which 8-bit integers lose least; the whole range if nothing is better."""
    edges = _edges(found)
    centres = (edges[:-1] + edges[1:]) / 2
    low, high = min(found[0], 0.0), max(found[1], 0.0)
    best, least = found, np.inf
    for share in np.linspace(1.0, NARROWEST, CANDIDATES):
        step = (high - low) * share / (HIGHEST - LOWEST)
        if step <= 0:
            break
        restored = np.clip(np.rint(centres / step), np.rint(low * share / step), np.rint(high * share / step)) * step
        loss = float(np.sum(counts * (restored - centres) ** 2))
        if loss < least:
            best, least = (found[0] * float(share), found[1] * float(share)), loss
    return best


# what was lost


def _losses(
    program: LoadedProgram, original: ModuleOp, layers: Sequence[QuantizedLayer], samples: Sequence[Sample]
) -> dict[str, float]:
    """The least signal-to-quantisation-noise ratio of each value, in dB."""
    store = program.ctx.weights
    before, after = main_function(original), main_function(program.module)
    names = value_names(before)
    known = {layer.value: layer for layer in layers}
    losses: dict[str, float] = {}
    for sample in samples:
        exact: dict[str, Array] = {}
        rounded: dict[str, Array] = {}

        def keep(values: Sequence[SSAValue], arrays: Sequence[Array], exact: dict[str, Array] = exact) -> None:
            for value, array in zip(values, arrays, strict=True):
                if (name := names.get(value)) is not None:
                    exact[name] = np.asarray(array, np.float64)

        def restore(op: Operation, arrays: Sequence[Array], rounded: dict[str, Array] = rounded) -> None:
            for value, array in zip(op.results, arrays, strict=True):
                if (layer := known.get(value)) is not None:
                    rounded[layer.name] = (array.astype(np.float64) - layer.scale.zero) * layer.scale.factor

        keep(before.body.block.args, sample)
        run_graph(before, sample, store, listener=lambda op, arrays: keep(op.results, arrays))
        run_graph(after, sample, store, listener=restore)
        for name, array in rounded.items():
            if name in exact:
                losses[name] = min(losses.get(name, math.inf), _sqnr(exact[name], array))
    return losses


def _sqnr(exact: Array, rounded: Array) -> float:
    noise, signal = float(np.sum((exact - rounded) ** 2)), float(np.sum(exact**2))
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
