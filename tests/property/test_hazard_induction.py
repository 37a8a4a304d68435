# SPDX-License-Identifier: Apache-2.0
"""Hazards of loops by induction against the enumeration of all rounds, on random nests of loops."""

from __future__ import annotations

from random import Random

import pytest
from loop_nests import Nest, kernel_of
from sampling import sweep

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.commands.hazards import check
from penstock.passes.analysis.commands.hazards.induction import UndecidedError, decide
from penstock.passes.analysis.commands.trace import trace

SEEDS = 40


def agree(seeds: range) -> tuple[int, int]:
    """How many of the kernels with loops that can be cut are free of hazards, and how many are not."""
    clean = wrong = 0
    for seed in seeds:
        random = Random(seed)
        outstanding = random.choice((1, 4))
        kernel, target = kernel_of(Nest(random).text(), outstanding=outstanding)
        try:
            program = trace(kernel, target, limit=20_000)
        except UserError:
            continue
        try:
            found, part = decide(kernel, target)
        except UndecidedError:
            continue
        assert len(part.commands) < len(program.commands)
        every = check(program)
        assert bool(found) == bool(every), seed
        clean, wrong = clean + (not found), wrong + bool(found)
    return clean, wrong


@pytest.mark.parametrize("start", sweep(range(0, 4 * SEEDS, SEEDS), [SEEDS]))
def test_induction_finds_hazards_where_going_through_all_rounds_does(start: int) -> None:
    clean, wrong = agree(range(start, start + SEEDS))
    assert clean >= 3
    assert wrong >= 3


@pytest.mark.slow
def test_induction_agrees_on_many_nests() -> None:
    agree(range(10_000, 10_200))
