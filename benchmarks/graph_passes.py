# SPDX-License-Identifier: Apache-2.0
"""
The graph level: what the passes leave of the networks, how long they take, and how that grows.

Operators are counted without constants, groups as what is in them. The light models and MobileNets have their full
size. In the measurement of growth the layers of BERT are 96 wide, with 4 heads and 16 tokens: their graph is that of
BERT-base, whose weights of 28 MB a layer would only be carried along.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Read by the BLAS that NumPy brings when it is first imported.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, cpu_seconds, limited, once, paired, report, say
from benchmarks.networks import check_agreement, layers_of_bert, network, onnxruntime_on_one_thread

CLEAN_UP = (
    "simplify", "fold-batch-norm", "fold-scale", "reorder-matmuls", "fold-constants", "simplify", "value-cse",
    "value-dce",
)  # fmt: skip
"""What removes operators before those that are left are laid out and grouped."""
DONE = ("fold-batch-norm", "fold-scale", "reorder-matmuls", "simplify", "value-dce")
AT_MOST = 10.0
"""Seconds that all passes of the graph level may take together, on either of the two large graphs."""
LAYERS = (1, 2, 4, 8, 16, 32, 48)
SMALL = {"sequence": 16, "hidden": 96, "heads": 4, "feed_forward": 384}
NETWORKS = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512", "mobilenet_v1", "mobilenet_v2", "bert_layer",
)  # fmt: skip


def _operators(module: Any) -> int:
    from penstock.dialects.graph import ConstantOp, GraphOp

    return sum(isinstance(op, GraphOp) and not isinstance(op, ConstantOp) for op in module.walk())


def _run(program: Any, passes: Sequence[str]) -> None:
    from penstock.runtime.pass_manager import read_pipeline, run_passes

    run_passes(program.ctx, program.module, read_pipeline(",".join(passes)))


def _lay_out_and_fuse() -> list[str]:
    """The passes of the compiler's own graph level, without what the clean-up has done for good."""
    from penstock.runtime.pipeline import pipeline

    return [each for each in pipeline("graph", None) if each not in DONE]


def counts(name: str) -> list[Row]:
    """Operators before and after the clean-up, and the kernels that fusion makes of them."""
    from penstock.dialects.graph import FusedOp
    from penstock.runtime.compiler import import_program

    program = import_program(network(name)[0], {})
    before = _operators(program.module)
    _run(program, CLEAN_UP)
    after = _operators(program.module)
    _run(program, _lay_out_and_fuse())
    kernels = sum(isinstance(op, FusedOp) for op in program.module.walk())
    say(f"graph_passes: {name}: {before} operators, {after} after the clean-up, {kernels} kernels")
    row = Row(f"{name}: operators, of those imported", after, "imported", before, after / before, unit="")
    return [row, Row(f"{name}: kernels", kernels, unit="")]


def seconds(model: Any) -> float:
    """CPU seconds of all graph passes, verification included, on a program that has just been imported."""
    from penstock.runtime.compiler import import_program

    program = import_program(model, {})
    return once(lambda: _run(program, (*CLEAN_UP, *_lay_out_and_fuse())), cpu_seconds)


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The slope of the line through the logarithms: 1 is linear growth."""
    xs, ys = [math.log(size) for size in sizes], [math.log(time) for time in times]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def growth() -> list[Row]:
    """The passes on ever more layers."""
    seconds(layers_of_bert(1, **SMALL))  # what is imported or made once
    times: list[float] = []
    for layers in LAYERS:
        model = layers_of_bert(layers, **SMALL)
        times.append(min(seconds(model) for _ in range(2)))
        say(f"graph_passes: {layers} layers of BERT: {times[-1]:.2f} s")
    slope = exponent(LAYERS, times)
    rows = [Row(f"passes, BERT of {n} narrow layers", time) for n, time in zip(LAYERS, times, strict=True)]
    return [*rows, limited("exponent of the growth from 1 to 48 layers", slope, 1.15, unit="")]


def interpreter(name: str) -> Row:
    """An inference by the graph interpreter beside onnxruntime's, both node by node."""
    from penstock.runtime.compiler import import_program
    from penstock.runtime.interpreter import run_module

    model, feeds = network(name)
    theirs = onnxruntime_on_one_thread(model, feeds, optimised=False)
    program, inputs = import_program(model, {}), list(feeds.values())

    def ours() -> Sequence[object]:
        return run_module(program.module, inputs, program.ctx.weights)

    check_agreement(ours(), theirs(), name)
    what = f"{name}, graph interpreter, 1 thread"
    return paired(what, ours, "onnxruntime, unoptimised", theirs, repetitions=5, warm=False)


def rows() -> Sequence[Row]:
    """All of it."""
    found = [row for name in NETWORKS for row in counts(name)]
    say("graph_passes: times")
    found.append(limited("passes, densenet121", seconds(network("densenet121")[0]), AT_MOST))
    found.append(limited("passes, BERT-base of 12 layers", seconds(layers_of_bert(12)), AT_MOST))
    found += growth()
    return [*found, *(interpreter(name) for name in ("resnet50", "bert_layer"))]


if __name__ == "__main__":
    report(rows, __doc__)
