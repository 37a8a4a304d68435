# SPDX-License-Identifier: Apache-2.0
"""`penstock plan --share`: several models in one memory."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.passes.planning.minimalloc_csv import load_csv

if TYPE_CHECKING:
    from tests.conftest import Command

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "first.onnx", tmp_path / "second.onnx"
    for path in paths:
        shutil.copy(DIGITS, path)
    return paths


def spans(file: Path) -> list[tuple[int, int]]:
    problem, plan = load_csv(file)
    return [(plan.offsets[each.id], plan.offsets[each.id] + each.size) for each in problem.buffers]


def test_side_by_side_no_byte_is_of_two_models(penstock: Command, models: tuple[Path, Path]) -> None:
    found = penstock("plan", *models, "--machine", "gemmini-fp32", "--share", "space", "-o", "plans")
    assert found.status == 0, found.err
    rows = [line.split("  ")[0].strip() for line in found.out.splitlines()]
    assert rows == ["memory", "spad", "acc", "arena"]
    for scope in ("arena", "spad", "acc"):
        own, other = (
            [span for file in Path("plans", model).glob(f"*{scope}.csv") for span in spans(file)]
            for model in ("first", "second")
        )
        assert own
        assert all(one[1] <= two[0] or two[1] <= one[0] for one, two in product(own, other))
    for file in Path("plans").glob("*/*.csv"):
        assert penstock("plan", file, "--verify").status == 0


def test_one_after_the_other_all_begin_at_the_bottom(penstock: Command, models: tuple[Path, Path]) -> None:
    words = ("plan", *models, "--machine", "gemmini-fp32", "--scope", "arena")
    found = penstock(*words, "--share", "time", "-o", "plans")
    assert found.status == 0, found.err
    assert "[0, 5,120)" in found.out
    assert spans(Path("plans/first/arena.csv")) == spans(Path("plans/second/arena.csv"))
    assert "[5,120, 10,240)" in penstock(*words, "--share", "space").out


def test_a_program_with_offsets_is_planned_anew(penstock: Command, models: tuple[Path, Path]) -> None:
    words = ("--machine", "gemmini-fp32")
    assert penstock("compile", models[0], *words, "--emit=loop", "-o", "planned.mlir").status == 0
    found = penstock("plan", models[1], "planned.mlir", *words, "--share", "space")
    assert found.status == 0, found.err
    assert "[5,760, 11,520)" in found.out
