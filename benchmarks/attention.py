# SPDX-License-Identifier: Apache-2.0
"""
Attention of 8 heads of 64 over long sequences: with the scores in memory, and a block at a time.

Milliseconds of CPU an inference in generated C beside onnxruntime, on one thread; the arena, which is what is
intermediate and off chip; and the bytes that rapid-core-like moves. The last two are worked out, not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, paired, report, say
from benchmarks.networks import check_agreement, onnxruntime_on_one_thread

LENGTHS = (512, 1024, 2048)
HEADS, WIDTH = 8, 64
MACHINE = "rapid-core-like"
PASS = "fuse-attention"


def model(length: int) -> tuple[Any, dict[str, Any]]:
    """Attention over `length` positions with a mask of positions, as an ONNX model, and inputs."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    shape = [1, HEADS, length, WIDTH]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkv"]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1, 1, 1, length]))
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["products"]),
        helper.make_node("Div", ["products", "root"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    root = numpy_helper.from_array(np.array(np.sqrt(WIDTH), np.float32), "root")
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, [root])
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {name: rng.standard_normal(shape).astype(np.float32) for name in "qkv"}
    feeds["mask"] = np.where(rng.random((1, 1, 1, length)) < 0.2, -np.inf, 0).astype(np.float32)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), feeds


def lowered(source: Any, machine: str | None, *, fused: bool) -> Any:
    """The program at its lowest level, as an engine's parts: (program, signature)."""
    from penstock.runtime.compiler import import_program
    from penstock.runtime.machines import attach_machine
    from penstock.runtime.pass_manager import read_pipeline, run_passes
    from penstock.runtime.pipeline import pipeline
    from penstock.runtime.signature import signature_of

    program = import_program(source, {})
    signature = signature_of(program.module)
    if machine is not None:
        attach_machine(program.module, machine)
    specs = [spec for spec in pipeline("accel", machine) if spec != PASS]
    run_passes(program.ctx, program.module, read_pipeline(",".join([*[PASS] * fused, *specs])))
    return program, signature


def rows() -> Sequence[Row]:
    """Each length with and without the pass."""
    from penstock.passes.analysis.commands.traffic import traffic
    from penstock.runtime.engine import Engine

    found: list[Row] = []
    for length in LENGTHS:
        source, feeds = model(length)
        theirs = onnxruntime_on_one_thread(source, feeds, optimised=True)
        for fused in (False, True):
            what = f"{length} positions, {'a block at a time' if fused else 'scores in memory'}"
            say(f"attention: compiling {what}")
            program, signature = lowered(source, None, fused=fused)
            engine = Engine(program.module, program.ctx, signature, "native")

            def ours(engine: Engine = engine, feeds: dict[str, Any] = feeds) -> Sequence[object]:
                return engine.run(list(feeds.values()))

            check_agreement(ours(), theirs(), what)
            found.append(paired(what, ours, "onnxruntime", theirs, repetitions=5, warm=False, scale=1e3, unit="ms"))
            arena = engine.report.arena
            assert arena is not None
            found.append(Row(f"{what}: arena", arena.peak / 1024, unit="KiB"))
            moved = traffic(lowered(source, MACHINE, fused=fused)[0].module)
            found.append(Row(f"{what}: {MACHINE} moves", (moved.bytes_in + moved.bytes_out) / 2**20, unit="MiB"))
    return found


if __name__ == "__main__":
    report(rows, __doc__)
