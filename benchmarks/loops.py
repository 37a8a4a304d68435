# SPDX-License-Identifier: Apache-2.0
"""
Loops on machines: what stays on chip between their iterations, and what that is worth.

    python -m benchmarks.loops [--machines NAME ...] [--networks NAME ...] [--steps N]

An LSTM and a GRU of one row, 32 features and a state of 32, and a Scan whose state of 8 x 32 is relu(h R + x), each as
a loop of which nothing stays on chip (`mem-promote{strategy=none}`), as the compiler leaves it, and with all
iterations written out before `mem-promote`. Cycles of the machine's kernels; of the whole with the host's part, one
after the other; and bytes over the edge of the chip, counted on the commands. What the three compute is the same to
the bit, which is checked first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import say
from benchmarks.planning_runs import text_table
from penstock.passes.analysis.commands.traffic import traffic
from penstock.passes.schedule.primitives.unroll import unroll
from penstock.runtime.compiler import import_program
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import signature_of
from penstock.runtime.simulator.run import run_program

MACHINES = ("gemmini-fp32", "rapid-core-like")
NETWORKS = ("LSTM", "GRU", "Scan")
FORMS = ("loop", "on chip", "written out")
STEPS, STATE = 16, 32
GATES = {"LSTM": 4, "GRU": 3}
ROWS = 8
"""Of the Scan."""


def _weight(rng: np.random.Generator, name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array((rng.integers(-2, 3, shape) * 0.125).astype(np.float32), name)


def network(kind: str, steps: int) -> ModelProto:
    """One of the networks for so many steps."""
    rng = np.random.default_rng(0)
    rows = ROWS if kind == "Scan" else 1
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, rows, STATE])
    if kind == "Scan":
        state = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, STATE]) for name in ("h", "n", "y")]
        line = helper.make_tensor_value_info("line", TensorProto.FLOAT, [rows, STATE])
        nodes = [
            helper.make_node("MatMul", ["h", "R"], ["m"]),
            helper.make_node("Add", ["m", "line"], ["a"]),
            helper.make_node("Relu", ["a"], ["n"]),
            helper.make_node("Identity", ["n"], ["y"]),
        ]
        body = helper.make_graph(nodes, "body", [state[0], line], state[1:])
        node = helper.make_node("Scan", ["first", "x"], ["last", "all"], body=body, num_scan_inputs=1)
        first = helper.make_tensor_value_info("first", TensorProto.FLOAT, [rows, STATE])
        last = helper.make_tensor_value_info("last", TensorProto.FLOAT, [rows, STATE])
        lines = helper.make_tensor_value_info("all", TensorProto.FLOAT, [steps, rows, STATE])
        graph = helper.make_graph([node], kind, [first, x], [last, lines], [_weight(rng, "R", STATE, STATE)])
    else:
        gates = GATES[kind] * STATE
        weights = [_weight(rng, "W", 1, gates, STATE), _weight(rng, "R", 1, gates, STATE)]
        node = helper.make_node(kind, ["x", "W", "R"], ["all"], hidden_size=STATE)
        lines = helper.make_tensor_value_info("all", TensorProto.FLOAT, [steps, 1, rows, STATE])
        graph = helper.make_graph([node], kind, [x], [lines], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _write_out(module: ModuleOp) -> None:
    """No loop in `@main`."""
    main = next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")
    while (loop := next((op for op in main.walk() if isinstance(op, scf.ForOp)), None)) is not None:
        unroll(loop)


def compiled(kind: str, steps: int, machine: str, form: str) -> tuple[ModuleOp, list[Any]]:
    """A network at accel level in one of the forms, and what it computes."""
    program = import_program(network(kind, steps), {})
    module, ctx = program.module, program.ctx
    attach_machine(module, machine)
    before, after = ",".join(pipeline("accel", machine)).split("rotate-carried,mem-promote")
    run_passes(ctx, module, read_pipeline(before.rstrip(",")), parsed=program.parsed)
    if form == "written out":
        run_passes(ctx, module, read_pipeline("rotate-carried"))
        _write_out(module)
    rest = {"loop": "mem-promote{strategy=none}", "on chip": "rotate-carried,mem-promote"}.get(form, "mem-promote")
    run_passes(ctx, module, read_pipeline(rest + after))
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-2, 3, spec.shape).astype(spec.dtype) for spec in signature_of(module).inputs]
    return module, run_module(module, inputs, ctx.weights)


def rows(kind: str, steps: int, machine: str) -> list[list[str]]:
    """The cells of a network on a machine, a row for each form."""
    found: list[list[str]] = []
    expected: list[Any] | None = None
    for form in FORMS:
        say(f"loops: {kind} on {machine}, {form}")
        module, outputs = compiled(kind, steps, machine, form)
        expected = expected or outputs
        for ours, theirs in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        run, moved = run_program(module), traffic(module)
        whole = "" if run.time is None else f"{run.time.serial:,}"
        found.append([kind, machine, form, f"{run.cycles:,}", whole, f"{moved.bytes_in + moved.bytes_out:,}"])
    return found


def main(words: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="loops on machines")
    parser.add_argument("--machines", nargs="+", default=MACHINES)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args(words)
    cells = [row for kind in args.networks for machine in args.machines for row in rows(kind, args.steps, machine)]
    header = ["network", "machine", "form", "cycles", "with the host", "bytes off chip"]
    print(text_table(f"loops of {args.steps} steps", header, cells))


if __name__ == "__main__":
    main()
