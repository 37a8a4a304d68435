# SPDX-License-Identifier: Apache-2.0
"""Random programs on small scopes: whatever a strategy keeps, the results are the same, and the bytes as predicted."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples, sweep
from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import find_target
from penstock.dialects.mem import CopyOp
from penstock.passes.analysis.commands.loop_domain import iteration_domain, sum_over_loops
from penstock.passes.loop.on_chip.prediction import predicted_traffic
from penstock.passes.planning.on_chip.registry import strategy_names
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
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


def loop_program(
    steps: Sequence[tuple[str, int, int]], carried: Sequence[int], line: int | None, trips: int, *, reverse: bool
) -> str:
    """
    A loop whose body is such steps, on what it carries and a line; it carries on, and gives as a line, what was made
    in it, or what it was given, counted from the last.
    """
    given = [f"%h{number}" for number in range(len(carried))]
    values = [*given, "%x"]
    lines: list[str] = []
    for number, (kind, first, second) in enumerate(steps):
        left, right = values[-1 - first % len(values)], values[-1 - second % len(values)]
        if kind == "matmul":
            lines.append(f"%v{number} = graph.matmul {left}, %m : ({TYPE}, {SQUARE}) -> {TYPE}")
        elif kind == "relu":
            lines.append(f"%v{number} = graph.relu {left} : {TYPE}")
        else:
            lines.append(f"%v{number} = graph.{kind} {left}, {right} : ({TYPE}, {TYPE}) -> {TYPE}")
        values.append(f"%v{number}")
    yielded = [values[-1 - place % len(values)] for place in (*carried, *([] if line is None else [line]))]
    stacked = f"tensor<{trips}x{ROWS}x{COLUMNS}xf32>"
    types = [TYPE] * len(carried) + ([] if line is None else [stacked])
    results = [f"%r{number}" for number in range(len(types))]
    firsts = [f"%f{number}" for number in range(len(carried))]
    arguments = ", ".join([*(f"{each}: {TYPE}" for each in firsts), f"%xs: {stacked}", f"%w: {SQUARE}"])
    body = "\n    ".join(lines)
    return f"""
func.func @main({arguments}) -> ({", ".join(types)}) {{
  {", ".join(results)} = graph.loop{" reverse" if reverse else ""}
      carry({", ".join(firsts)} : {", ".join([TYPE] * len(carried))})
      slices(%xs : {stacked}) reads(%w : {SQUARE}) {{
  ^bb0(%i: tensor<i64>, {", ".join(f"{each}: {TYPE}" for each in given)}, %x: {TYPE}, %m: {SQUARE}):
    {body}
    graph.yield {", ".join(yielded)} : {", ".join([TYPE] * len(yielded))}
  }} -> {", ".join(types)}
  func.return {", ".join(results)} : {", ".join(types)}
}}"""


steps = st.lists(
    st.tuples(st.sampled_from(["matmul", "matmul", "relu", "add", "sub"]), st.integers(0, 3), st.integers(0, 3)),
    min_size=2,
    max_size=7,
)


def check(text: str, machine: str, size: int, reserve: float, strategy: str) -> ModuleOp | None:
    """
    The program with what stays on chip, planned: it computes the same as without, and moves what was predicted. None
    where the scope is too small for it.
    """
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, machine)
    target = find_target(module)
    assert target is not None
    target.scope(SCOPES[machine]).size = IntegerAttr(size, i64)
    specs = list(pipeline("loop", machine))
    specs = [f"tile{{reserve={reserve}}}" if spec == "tile" else spec for spec in specs]
    try:
        run_passes(ctx, module, read_pipeline(",".join(specs[: specs.index("tensorize") + 1])))
    except UserError:
        return None
    inputs = [
        np.random.default_rng(0).integers(-1, 2, spec.shape).astype(spec.dtype) for spec in signature_of(module).inputs
    ]
    plain = module.clone()
    run_passes(ctx, plain, read_pipeline("mem-plan"))
    expected = run_module(plain, inputs, ctx.weights)
    run_passes(ctx, module, read_pipeline(f"rotate-carried,mem-promote{{strategy={strategy}}}"))
    prediction = predicted_traffic(module)
    if prediction is None:
        return None
    for lowering in ("mem-plan,mem-verify", "loop-to-accel,cse,mem-verify,accel-check-hazards"):
        run_passes(ctx, module, read_pipeline(lowering))
        counters = Counters()
        found = run_module(module, inputs, ctx.weights, counters=counters, seed=1)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert (counters.bytes_in, counters.bytes_out) == (prediction.bytes_in, prediction.bytes_out)
    return module


machines = st.sampled_from(sorted(SCOPES))
sizes = st.sampled_from([12288, 16384, 24576, 65536])
reserves = st.sampled_from([0.0, 0.5])
strategies = st.sampled_from(strategy_names())


@examples(12)
@given(steps, machines, sizes, reserves, strategies)
def test_a_random_program_computes_the_same_and_moves_what_was_predicted(
    drawn: list[tuple[str, int, int]], machine: str, size: int, reserve: float, strategy: str
) -> None:
    check(program(drawn), machine, size, reserve, strategy)


@examples(24)
@given(
    steps,
    st.lists(st.integers(0, 4), min_size=1, max_size=2),
    st.none() | st.integers(0, 3),
    st.integers(2, 5),
    st.booleans(),
    machines,
    sizes,
    reserves,
    strategies,
)
def test_a_random_loop_computes_the_same_and_moves_what_was_predicted(
    drawn: list[tuple[str, int, int]],
    carried: list[int],
    line: int | None,
    trips: int,
    reverse: bool,
    machine: str,
    size: int,
    reserve: float,
    strategy: str,
) -> None:
    check(loop_program(drawn, carried, line, trips, reverse=reverse), machine, size, reserve, strategy)


LINE = "memref<16xf32>"
ENDS = ("output", "copied out", "dropped")
"""What becomes of a value behind its loop: it is an argument, or an allocation."""


def handed_on(
    firsts: Sequence[int], ends: Sequence[str], reads: Sequence[int], order: Sequence[int], trips: int, *, late: bool
) -> str:
    """
    A program at the loop level. Each value is first a copy of a value before it, or of an input, counted from the last;
    each iteration makes new ones from any of them, and copies those to them in some order. `late`: all but the last are
    copies of inputs then, so that a value changes after another was copied from it.
    """
    count = len(firsts)
    names = [f"%y{number}" for number in range(count)]
    outputs = [each for each, end in zip(names, ends, strict=True) if end == "output"]
    outputs += [f"%o{number}" for number, end in enumerate(ends) if end == "copied out"]
    inputs = ["%h0", "%h1", "%h2"]
    arguments = [f"{each}: {LINE}" for each in inputs]
    arguments += [f'{each}: {LINE} {{graph.output = "{each[1:]}"}}' for each in outputs]
    made = [each for each, end in zip(names, ends, strict=True) if end != "output"]
    sources = [*inputs, *names]

    def copy(source: str, dest: str) -> str:
        return f"mem.copy {source} to {dest} : {LINE} to {LINE}"

    before = [f"{each} = memref.alloc() : {LINE}" for each in made]
    before += [copy(sources[number + 2 - first % (number + 3)], names[number]) for number, first in enumerate(firsts)]
    before += [copy(inputs[number], each) for number, each in enumerate(names[:-1])] if late else []
    body = [f"%n{number} = memref.alloc() : {LINE}" for number in range(count)]
    body += [f"func.call @k(%y{read}, %n{number}) : ({LINE}, {LINE}) -> ()" for number, read in enumerate(reads)]
    body += [copy(f"%n{number}", names[number]) for number in order]
    after = [copy(names[number], f"%o{number}") for number, end in enumerate(ends) if end == "copied out"]
    lines = [*before, "scf.for %i = %c0 to %trips step %c1 {", *(f"  {each}" for each in body), "}", *after]
    text = "\n  ".join(lines)
    return f"""
func.func @main({", ".join(arguments)}) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %trips = arith.constant {trips} : index
  {text}
  func.return
}}
func.func private @k(%x: {LINE}, %y: {LINE}) attributes {{device = @gemmini_fp32}} {{
  %tile = mem.buffer : memref<16xf32, "spad">
  mem.copy %x to %tile : {LINE} to memref<16xf32, "spad">
  mem.copy %tile to %y : memref<16xf32, "spad"> to {LINE}
  func.return
}}"""


def copies_in(module: ModuleOp) -> int:
    """How often the host copies."""
    (main,) = (op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")
    return sum(sum_over_loops(iteration_domain(op)) for op in main.walk() if isinstance(op, CopyOp))


@pytest.mark.parametrize("seed", sweep(range(50), range(12)))
def test_values_that_are_copied_to_each_other_before_a_loop_take_turns(seed: int) -> None:
    rng = Random(seed)
    count = rng.randint(2, 3)
    firsts, ends = [rng.choice([0, 0, 1, 2]) for _ in range(count)], rng.choices(ENDS, [3, 2, 1], k=count)
    reads, order = (rng.sample(range(count), count) for _ in range(2))
    text = handed_on(firsts, ends, reads, order, rng.randint(2, 5), late=rng.random() < 0.3)
    strategy, ctx = rng.choice(strategy_names()), make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, "gemmini-fp32")
    inputs = [np.full(16, number, np.float32) for number in (1, 2, 3)]
    plain = module.clone()
    run_passes(ctx, plain, read_pipeline("mem-plan"))
    expected = run_module(plain, inputs, ctx.weights)
    before = copies_in(module)
    run_passes(ctx, module, read_pipeline("rotate-carried"))
    assert copies_in(module) <= before
    promoted = module.clone()
    run_passes(ctx, promoted, read_pipeline(f"mem-promote{{strategy={strategy}}},mem-plan,mem-verify"))
    run_passes(ctx, module, read_pipeline("mem-plan,mem-verify"))
    counters = Counters()
    for found in (
        run_module(module, inputs, ctx.weights, seed=1),
        run_module(promoted, inputs, ctx.weights, counters=counters, seed=1),
    ):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    prediction = predicted_traffic(promoted)
    assert prediction is not None
    assert (counters.bytes_in, counters.bytes_out) == (prediction.bytes_in, prediction.bytes_out)
    assert prediction.total <= prediction.if_streamed
