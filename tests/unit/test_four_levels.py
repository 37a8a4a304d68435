# SPDX-License-Identifier: Apache-2.0
"""The program that tests/filecheck/levels writes down at each of the four levels is one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.runtime.compiler import LoadedProgram, compile_module, load_input
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.levels import level_of
from penstock.runtime.machines import attach_machine

LEVELS = Path(__file__).parents[1] / "filecheck" / "levels"
Array = NDArray[Any]


def data() -> tuple[Array, WeightStore, Array]:
    rng = np.random.default_rng(0)
    x, w, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((64, 128), (128, 64), (64,)))
    store = WeightStore()
    store.add("fc.weight", w)
    store.add("fc.bias", b)
    return x, store, np.maximum(x @ w + b, 0)


def load(level: str) -> LoadedProgram:
    program = load_input(LEVELS / f"{level}.mlir")
    if level in ("loop", "accel"):
        attach_machine(program.module, "gemmini-fp32")
    return program


@pytest.mark.parametrize("level", ["graph", "tensor", "loop", "accel"])
def test_the_text_is_at_its_level_and_computes_the_program(level: str) -> None:
    module = load(level).module
    assert level_of(module) == level
    x, store, expected = data()
    np.testing.assert_array_equal(run_module(module, [x], store)[0], expected)


@pytest.mark.parametrize("level", ["loop", "accel"])
def test_c_computes_the_program_from_the_lower_levels(level: str) -> None:
    program = load(level)
    x, program.ctx.weights, expected = data()
    np.testing.assert_array_equal(Engine(program.module, program.ctx, backend="native")(x)[0], expected)


@pytest.mark.parametrize("seed", range(8))
def test_the_pipelined_commands_may_run_in_any_order_their_tokens_allow(seed: int) -> None:
    x, store, expected = data()
    np.testing.assert_array_equal(run_module(load("accel").module, [x], store, seed=seed)[0], expected)


def without(module: ModuleOp, kind: type[DmaOp | ExecOp], token: str) -> ModuleOp:
    """The module with one dependency of the first such command replaced by a token that is complete."""
    for op in module.walk():
        for number, value in enumerate(op.operands):
            if isinstance(op, kind) and value.name_hint == token:
                ready = next(v for o in module.walk() for v in o.results if v.name_hint == "ready")
                op.operands[number] = ready
                return module
    raise AssertionError(f"nothing waits for %{token}")


@pytest.mark.parametrize(("kind", "token"), [(DmaOp, "free"), (ExecOp, "t0"), (ExecOp, "done"), (ExecOp, "t3")])
def test_a_missing_token_is_found_by_some_order(kind: type[DmaOp | ExecOp], token: str) -> None:
    x, store, expected = data()
    module = without(load("accel").module, kind, token)
    wrong = 0
    for seed in range(24):
        try:
            wrong += not np.array_equal(run_module(module, [x], store, seed=seed)[0], expected)
        except UserError:
            wrong += 1
    assert wrong > 0


def test_the_graph_lowers_to_all_the_others() -> None:
    program = load("graph")
    x, program.ctx.weights, expected = data()
    for level in ("tensor", "loop", "accel"):
        compile_module(program.module, program.ctx, "gemmini-fp32", level)
        assert level_of(program.module) == level
        np.testing.assert_array_equal(run_module(program.module, [x], program.ctx.weights)[0], expected)
