"""Random programs on small scopes: whatever a strategy keeps, the results are the same, and the bytes as predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import find_target
from penstock.passes.loop.on_chip.prediction import predicted_traffic
from penstock.passes.planning.on_chip.registry import strategy_names
from penstock.runtime.compiler import attach_machine, pipeline
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.signature import signature_of

SCOPES = {"rapid-core-like": "spm", "neural-cluster": "sram"}
ROWS, COLUMNS = 16, 64
TYPE = f"tensor<{ROWS}x{COLUMNS}xf32>"
SQUARE = f"tensor<{COLUMNS}x{COLUMNS}xf32>"


def program(steps: Sequence[tuple[str, int, int]]) -> str:
    """A graph on matrices of one type; each step takes two of what was made before, counted from the last."""
    values = ["%x"]
    lines: list[str] = []
    for number, (kind, first, second) in enumerate(steps):
        left, right = values[-1 - first % len(values)], values[-1 - second % len(values)]
        if kind == "matmul":
            lines.append(f"%v{number} = graph.matmul {left}, %w : ({TYPE}, {SQUARE}) -> {TYPE}")
        elif kind == "relu":
            lines.append(f"%v{number} = graph.relu {left} : {TYPE}")
        else:
            lines.append(f"%v{number} = graph.{kind} {left}, {right} : ({TYPE}, {TYPE}) -> {TYPE}")
        values.append(f"%v{number}")
    outputs = values[-2:]
    types = ", ".join(TYPE for _ in outputs)
    body = "\n  ".join(lines)
    return f"""
func.func @main(%x: {TYPE}, %w: {SQUARE}) -> ({types}) {{
  {body}
  func.return {", ".join(outputs)} : {types}
}}"""


steps = st.lists(
    st.tuples(st.sampled_from(["matmul", "matmul", "relu", "add", "sub"]), st.integers(0, 3), st.integers(0, 3)),
    min_size=2,
    max_size=7,
)


@examples(12)
@given(
    steps,
    st.sampled_from(sorted(SCOPES)),
    st.sampled_from([12288, 16384, 24576, 65536]),
    st.sampled_from([0.0, 0.5]),
    st.data(),
)
def test_a_random_program_computes_the_same_and_moves_what_was_predicted(
    drawn: list[tuple[str, int, int]], machine: str, size: int, reserve: float, data: st.DataObject
) -> None:
    strategy = data.draw(st.sampled_from(strategy_names()))
    ctx = make_context()
    module = Parser(ctx, program(drawn)).parse_module()
    attach_machine(module, machine)
    target = find_target(module)
    assert target is not None
    target.scope(SCOPES[machine]).size = IntegerAttr(size, i64)
    specs = list(pipeline("loop", machine))
    specs = [f"tile{{reserve={reserve}}}" if spec == "tile" else spec for spec in specs]
    try:
        run_passes(ctx, module, read_pipeline(",".join(specs[: specs.index("tensorize") + 1])))
    except UserError:
        return
    inputs = [
        np.random.default_rng(0).integers(-1, 2, spec.shape).astype(spec.dtype) for spec in signature_of(module).inputs
    ]
    plain = module.clone()
    run_passes(ctx, plain, read_pipeline("mem-plan"))
    expected = run_module(plain, inputs, ctx.weights)
    run_passes(ctx, module, read_pipeline(f"mem-promote{{strategy={strategy}}}"))
    prediction = predicted_traffic(module)
    if prediction is None:
        return
    for lowering in ("mem-plan,mem-verify", "loop-to-accel,cse,mem-verify"):
        run_passes(ctx, module, read_pipeline(lowering))
        counters = Counters()
        found = run_module(module, inputs, ctx.weights, counters=counters, seed=1)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert (counters.bytes_in, counters.bytes_out) == (prediction.bytes_in, prediction.bytes_out)
