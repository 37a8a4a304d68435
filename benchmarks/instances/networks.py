# SPDX-License-Identifier: Apache-2.0
"""
Problems of graphs: what networks keep in memory from operator to operator, and what a training step of one does.

The nine light networks have their full size, four variants each: float32, one buffer a result (`fp32-raw`);
elementwise operators computed over their operand (`fp32-fused`); the same with a byte an element (`int8-fused`); and
with the weights beside, brought in one operator ahead (`int8-weights`). Training steps are those of `graph-gradient`.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp

from benchmarks.instances.instance import Instance
from benchmarks.lifetimes import Lifetimes, lifetimes
from benchmarks.networks import network
from penstock.runtime.compiler import LoadedProgram, import_program
from penstock.runtime.pass_manager import read_pipeline, run_passes

LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
VARIANTS = {
    "fp32-raw": Lifetimes(),
    "fp32-fused": Lifetimes(in_place=True),
    "int8-fused": Lifetimes(element_bytes=1, in_place=True),
    "int8-weights": Lifetimes(element_bytes=1, in_place=True, weights="prefetched"),
}
CLEAN_UP = "simplify,fold-batch-norm,simplify,value-cse,value-dce"
"""An inference has no batch normalisation of its own."""
TRAINED = ("squeezenet", "mobilenet_v1", "mobilenet_v2", "resnet50", "inception_v1", "bert_layer", "lstm")
"""In their small sizes, for their values do not matter and their structure is that of the large ones."""


def _graph(program: LoadedProgram, name: str) -> FuncOp:
    return next(op for op in program.module.ops if isinstance(op, FuncOp) and op.sym_name.data == name)


def inference(quick: bool) -> Iterator[Instance]:
    """The 36 problems of the light networks."""
    for name in LIGHT[4:7] if quick else LIGHT:
        program = import_program(network(name, small=quick)[0], {})
        raw = lifetimes(_graph(program, "main"), VARIANTS["fp32-raw"])
        yield Instance("inference", f"{name}-fp32-raw", raw)
        run_passes(program.ctx, program.module, read_pipeline(CLEAN_UP))
        for variant in list(VARIANTS)[1:]:
            yield Instance("inference", f"{name}-{variant}", lifetimes(_graph(program, "main"), VARIANTS[variant]))


def gradients(quick: bool) -> Iterator[Instance]:
    """Forward and backward in one graph, with and without weights."""
    for name in TRAINED[:1] if quick else TRAINED:
        program = import_program(network(name, small=True)[0], {})
        passes = f"{CLEAN_UP},graph-gradient{{primal=true}},simplify,value-cse,value-dce"
        run_passes(program.ctx, program.module, read_pipeline(passes))
        step = _graph(program, "main_gradient")
        for variant, options in (
            ("fp32", Lifetimes()),
            ("fp32-fused", Lifetimes(in_place=True)),
            ("fp32-weights", Lifetimes(in_place=True, weights="used")),
            ("int8-aligned", Lifetimes(element_bytes=1, in_place=True, weights="prefetched", alignment=64)),
        ):
            yield Instance("gradients", f"{name}-{variant}", lifetimes(step, options))
