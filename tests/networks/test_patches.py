# SPDX-License-Identifier: Apache-2.0
"""A network by patches: the bits of the whole one in C, in an arena of the limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zoo
from in_c import needs_compiler
from numpy.typing import NDArray

from penstock.passes.analysis.memory.memory_problems import ARENA, plan_report
from penstock.runtime.dynamic_engine import compile
from penstock.runtime.engine import Engine

LIMIT = 120 * 1024


@pytest.mark.slow
def test_a_mobilenet_fits_a_limit_with_the_same_bits() -> None:
    needs_compiler()
    model = zoo.NETWORKS["mobilenet_v2"](seed=0, small=True)
    feeds = zoo.inputs(model, seed=1)
    pipeline = f"default, +patch{{limit={LIMIT}}} before graph-fuse"
    arenas: list[int] = []
    outputs: list[NDArray[Any]] = []
    for each in (None, pipeline):
        engine = compile(model, machine="native", pipeline=each)
        assert isinstance(engine, Engine)
        arenas.append(sum(plan.peak for plan in plan_report(engine.module) if plan.scope == ARENA))
        outputs += engine(*feeds.values())
    # The limit is that of the images; what kernels need inside comes on top.
    assert arenas[1] <= 1.15 * LIMIT < arenas[0] / 1.5, arenas
    whole, patched = outputs
    assert np.array_equal(whole, patched)
