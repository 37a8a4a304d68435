"""A network by patches: the bits of the whole one in C, in an arena of the limit."""

from __future__ import annotations

import numpy as np
import zoo
from in_c import needs_compiler

from penstock.passes.analysis.memory.memory_problems import ARENA, plan_report
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.dynamic_engine import compile

LIMIT = 120 * 1024


def test_a_mobilenet_fits_a_limit_with_the_same_bits() -> None:
    needs_compiler()
    model = zoo.NETWORKS["mobilenet_v2"](seed=0, small=True)
    feeds = zoo.inputs(model, seed=1)
    pipeline = f"default, +patch{{limit={LIMIT}}} before graph-fuse"
    arenas: list[int] = []
    for each in (None, pipeline):
        program = import_program(model, {})
        compile_module(program.module, program.ctx, "native", "loop", pipeline=each)
        arenas.append(sum(plan.peak for plan in plan_report(program.module) if plan.scope == ARENA))
    # The limit is that of the images; what kernels need inside comes on top.
    assert arenas[1] <= 1.15 * LIMIT < arenas[0] / 1.5, arenas
    (whole,) = compile(model, machine="native")(*feeds.values())
    (patched,) = compile(model, machine="native", pipeline=pipeline)(*feeds.values())
    assert np.array_equal(whole, patched)
