# SPDX-License-Identifier: Apache-2.0
"""Random models give the same bytes with any number of threads, and the interpreter finds no race in them."""

from __future__ import annotations

import numpy as np
import pytest
from in_c import needs_compiler

import penstock
from penstock.dialects.upstream.scf import THREADS, ForallOp
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import read_order
from penstock.runtime.llvm import has_llvm
from penstock.tools.fuzz.onnx_models import random_model


def check(seed: int, machine: str | None) -> int:
    """Compare a model; returns how many loops have threads."""
    model, inputs = random_model(seed)
    expected = penstock.compile(model, machine).run([], inputs)
    loops = 0
    for threads in (2, 3, 7):
        pipeline = f"default, parallelize{{threads={threads} fork_cycles=0}}"
        engine = penstock.compile(model, machine, threads=threads, pipeline=pipeline)
        assert isinstance(engine, Engine)
        for _ in range(2):
            for ours, theirs in zip(engine.run([], inputs), expected, strict=True):
                assert ours.tobytes() == theirs.tobytes(), f"seed {seed}, {machine}, {threads} threads"
        if has_llvm():
            by_llvm = Engine(engine.module.clone(), engine.ctx, engine.signature, "llvm")
            assert by_llvm.threads == engine.threads
            for ours, theirs in zip(by_llvm.run([], inputs), expected, strict=True):
                assert ours.tobytes() == theirs.tobytes(), f"seed {seed}, {machine}, {threads} threads by LLVM"
        loops += sum(THREADS in op.attributes for op in engine.module.walk() if isinstance(op, ForallOp))
        interpreted = Engine(engine.module.clone(), engine.ctx, engine.signature, "interpreter")
        interpreted.interleaving = read_order(str(seed))
        for ours, theirs in zip(interpreted.run([], inputs), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-3, 1e-3)
    return loops


@pytest.mark.parametrize(("seed", "machine"), [(3, "host-avx2"), (5, None)])
def test_a_random_model_has_threads(seed: int, machine: str | None) -> None:
    needs_compiler()
    assert check(seed, machine) > 0


@pytest.mark.slow
@pytest.mark.parametrize("machine", [None, "host-avx2"])
@pytest.mark.parametrize("first", range(100, 200, 10))
def test_many_random_models_have_threads(first: int, machine: str | None) -> None:
    needs_compiler()
    assert sum(check(seed, machine) for seed in range(first, first + 10)) > 0
