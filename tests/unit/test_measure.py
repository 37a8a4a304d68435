# SPDX-License-Identifier: Apache-2.0
"""Schedules that are chosen by measured times: what they are, that they are replayed, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_c import needs_compiler

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_text import module_text
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.engine import Engine
from penstock.runtime.measure import choose
from penstock.runtime.schedules import read_schedules, schedules_text

PROGRAM = """func.func @main(
    %x: tensor<24x40xf32> {graph.name = "x"}, %v: tensor<1x320xf32> {graph.name = "v"},
    %w: tensor<40x48xf32> {graph.name = "w"}, %m: tensor<320x64xf32> {graph.name = "m"})
    -> (tensor<24x48xf32> {graph.name = "product"}, tensor<1x64xf32> {graph.name = "vector"}) {
  %p = graph.matmul %x, %w : (tensor<24x40xf32>, tensor<40x48xf32>) -> tensor<24x48xf32>
  %product = graph.relu %p : tensor<24x48xf32>
  %vector = graph.matmul %v, %m : (tensor<1x320xf32>, tensor<320x64xf32>) -> tensor<1x64xf32>
  func.return %product, %vector : tensor<24x48xf32>, tensor<1x64xf32>
}"""
SHAPES = ((24, 40), (1, 320), (40, 48), (320, 64))
MACHINE = "host-avx512-vnni"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return path


def lowered(program: Path, schedule: str | None = None, **options: Any) -> tuple[str, str]:
    """The text of a program at its lowest level, and the schedules of its kernels."""
    loaded = load_input(program)
    if schedule is not None:
        file = program.with_suffix(".schedule.mlir")
        file.write_text(schedule)
        loaded.ctx.schedules.given = read_schedules(file)
    compile_module(loaded.module, loaded.ctx, MACHINE, **options)
    return module_text(loaded.ctx, loaded.module), schedules_text(loaded.ctx, loaded.ctx.schedules.applied)


def test_what_is_measured_is_a_schedule_that_makes_the_same_program_again(program: Path) -> None:
    needs_compiler()
    text, schedule = lowered(program, measure=True)
    assert schedule.count("that were measured: ") == 2
    assert lowered(program, schedule) == (text, schedule)


def test_kernels_with_a_schedule_are_not_measured(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_compiler()
    _, schedule = lowered(program)
    monkeypatch.setattr("penstock.runtime.measure.build", None)  # what would be called
    assert lowered(program, schedule, measure=True)[1] == schedule


def test_any_tile_that_may_be_chosen_computes_the_same(program: Path) -> None:
    needs_compiler()
    rng = np.random.default_rng(3)
    inputs = [rng.integers(-8, 9, shape).astype(np.float32) for shape in SHAPES]
    x, v, w, m = inputs
    texts: set[str] = set()
    for rank in range(-1, 4):
        texts.add(lowered(program, pipeline=f"default, tile{{rank={rank}}}")[0])
        engine = penstock.compile(program, MACHINE, pipeline=f"default, tile{{rank={rank}}}")
        product, vector = engine(*inputs)
        np.testing.assert_array_equal(product, np.maximum(x @ w, 0))
        np.testing.assert_array_equal(vector, v @ m)
    assert len(texts) >= 4


def test_an_engine_is_compiled_with_what_was_measured(program: Path) -> None:
    needs_compiler()
    engine = penstock.compile(program, MACHINE, measure=True)
    assert isinstance(engine, Engine)
    inputs = [np.ones(shape, np.float32) for shape in SHAPES]
    np.testing.assert_array_equal(engine(*inputs)[0], np.full((24, 48), 40, np.float32))


def test_another_tile_is_chosen_for_what_is_no_noise() -> None:
    assert choose([10e-6, 9.9e-6, 12e-6]) == (0, "the fastest of 3 that were measured: 10 us")
    assert choose([10e-6, 9e-6, 8e-6]) == (
        2,
        "the fastest of 3 that were measured: 8 us; the first one by the model: 10 us",
    )


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        (None, {}, "kernels are measured on a machine that is a host"),
        ("gemmini-fp32", {}, "kernels are measured on a machine that is a host"),
        (MACHINE, {"until": "graph"}, "there are no kernels to measure"),
        (MACHINE, {"pipeline": "tile"}, "measure nothing"),
        (MACHINE, {"pipeline": "default, measure{candidates=1}"}, "at least two candidates"),
        (MACHINE, {"pipeline": "default, tile{rank=-2}"}, "a rank of -2"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    program: Path, machine: str | None, options: dict[str, Any], message: str
) -> None:
    loaded = load_input(program)
    with pytest.raises(UserError, match=message):
        compile_module(loaded.module, loaded.ctx, machine, measure=True, **options)
