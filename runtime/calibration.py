"""
Calibration: which numbers the values of a graph take on given inputs.

The graph runs in the reference interpreter, sample by sample. `min-max` takes the extremes. The other methods cut off
what is rare, from a histogram of a second run: `percentile` leaves a share outside, `mse` chooses the range for which
the mean of squared errors of 8-bit integers is least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.quantization.ranges import Range, value_names
from penstock.passes.graph.quantization.scales import HIGHEST, LOWEST
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.signature import main_function

Array = NDArray[Any]
Method = Literal["min-max", "percentile", "mse"]
METHODS: tuple[Method, ...] = ("min-max", "percentile", "mse")

BINS = 2048
"""Of a histogram: 8 for each number that 8 bits hold."""
CANDIDATES = 100
"""How many widths the search for the least error tries."""
NARROWEST = 0.3
"""The least share of the width that it tries."""


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
