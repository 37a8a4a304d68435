# SPDX-License-Identifier: Apache-2.0
"""Programs with control flow through every pass: each handles them, or refuses them at a place."""

from __future__ import annotations

from itertools import product

import pytest
from control_flow import LEVELS, program

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.tools.universe import PASSES

# The three left out need options that fit the program.
OPTIONS = {"patch": "patch{patches=2,2}"}
SPECS = [OPTIONS.get(spec, spec) for spec in PASSES if spec not in ("bind-dims", "quantize", "graph-gradient")]
CASES = list(product(range(40), LEVELS, SPECS))


def check(seed: int, level: str, spec: str) -> None:
    """Run one pass on one program; anything but a result and a located error is raised."""
    ctx = make_context()
    parsed = parse_text(ctx, SourceText("program.mlir", program(level, seed)))
    refusal: UserError | None = None
    try:
        run_passes(ctx, parsed.module, read_pipeline(spec), parsed=parsed)
    except UserError as error:
        refusal = error
    assert refusal is None or refusal.loc, f"{level} {seed} {spec}: {refusal}"


@pytest.mark.parametrize("part", range(4))
def test_a_pass_handles_control_flow_or_refuses_it_at_a_place(part: int) -> None:
    for case in CASES[part * 23 :: 241]:
        check(*case)


def test_a_pass_that_breaks_on_another_level_is_refused_at_a_place() -> None:
    check(4, "loop", "outline-kernels")


@pytest.mark.slow
def test_every_pass_handles_control_flow_or_refuses_it_at_a_place() -> None:
    for case in CASES:
        check(*case)
