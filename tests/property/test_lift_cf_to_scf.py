# SPDX-License-Identifier: Apache-2.0
"""Random functions of several blocks: as they are, lifted, as C, as LLVM IR, and by MLIR's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_graphs import block_graph, decisions
from in_c import agree
from numpy.typing import NDArray
from programs import checked, parsed_in_context
from sampling import sweep
from upstream_tools import needs_tools, run_by_mlir
from xdsl.dialects import cf
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.weights import WeightStore
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes


def lifted(text: str) -> ModuleOp:
    module = checked(text)
    run_passes(make_context(), module, read_pipeline("lift-cf-to-scf"))
    assert not [op.name for op in module.walk() if isinstance(op, cf.BranchOp | cf.ConditionalBranchOp | cf.SwitchOp)]
    return module


def inputs(seed: int) -> list[NDArray[Any]]:
    return [np.array(decisions(seed), np.int32), np.array([3, -5, 7, 2**30], np.int32)]


@pytest.mark.parametrize("part", sweep(range(20), [0]))
def test_a_function_of_several_blocks_computes_the_same_when_it_is_lifted(part: int) -> None:
    for seed in range(40 * part, 40 * (part + 1)):
        text = block_graph(seed)
        before, after = checked(text), lifted(text)
        for run in range(3):
            given = inputs(3 * seed + run)
            ours, theirs = (run_module(module, given, WeightStore())[0] for module in (after, before))
            np.testing.assert_array_equal(ours, theirs, str(seed))


@pytest.mark.parametrize("seed", sweep(range(100), range(4)))
def test_a_lifted_function_computes_the_same_in_c(seed: int) -> None:
    given, text = inputs(seed), block_graph(seed)
    np.testing.assert_array_equal(agree(lifted(text), given)[0], run_module(checked(text), given, WeightStore())[0])


@pytest.mark.parametrize("seed", sweep(range(100), range(2)))
def test_mlir_computes_the_same_of_the_blocks(seed: int, tmp_path: Path) -> None:
    needs_tools()
    given, text = inputs(seed), block_graph(seed)
    ctx, module = parsed_in_context(text)
    theirs = run_by_mlir(module, ctx, given, tmp_path)[0]
    np.testing.assert_array_equal(run_module(lifted(text), given, WeightStore())[0], theirs)
