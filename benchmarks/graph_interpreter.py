# SPDX-License-Identifier: Apache-2.0
"""
An inference of resnet50 (batch 1) by the interpreter at graph level, beside onnxruntime.

Both run the graph as it was imported, node by node, on one thread: onnxruntime without its optimisations.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Read by the BLAS that NumPy brings when it is first imported.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, limited, paired, report, say
from benchmarks.networks import check_agreement, network, onnxruntime_on_one_thread

AT_MOST = 4.0
"""Seconds an inference aimed at."""


def rows() -> Sequence[Row]:
    """The time of an inference, and its ratio to the reference's."""
    from penstock.runtime.compiler import import_program
    from penstock.runtime.interpreter import run_module

    model, feeds = network("resnet50")
    theirs = onnxruntime_on_one_thread(model, feeds, optimised=False)
    program = import_program(model, {})
    inputs = list(feeds.values())

    def ours() -> Sequence[object]:
        return run_module(program.module, inputs, program.ctx.weights)

    check_agreement(ours(), theirs(), "resnet50")
    say("graph_interpreter: resnet50")
    row = paired(
        "resnet50, graph interpreter, 1 thread", ours, "onnxruntime, unoptimised", theirs, repetitions=5, warm=False
    )
    assert row.ours is not None
    return [row, limited("an inference", row.ours, AT_MOST)]


if __name__ == "__main__":
    report(rows, __doc__)
