# SPDX-License-Identifier: Apache-2.0
"""
Random ONNX models, compiled with `-v` for the host and for machines, and run from the plan: no command fails, and the
values are those of onnxruntime.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from one_node import onnxruntime_of

from penstock.runtime.engine import Engine
from penstock.tools.fuzz.onnx_models import random_model

if TYPE_CHECKING:
    from tests.conftest import Command

TOLERANCES = {"host": 1e-4, "host-avx2": 1e-4, "gemmini-fp32": 1e-4, "rapid-core-like": 3e-2}
"""Of the largest value of an output; the last machine stores f16 between kernels."""


def check(penstock: Command, folder: Path, seed: int, machine: str) -> None:
    model, inputs = random_model(seed)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    words = ["--machine", machine] if machine != "host" else []
    finished = penstock("compile", folder / "model.onnx", "-v", "-o", folder / f"{seed}.plan", *words)
    assert finished.status == 0, f"seed {seed}, {machine}: {finished.err[-1000:]}"
    found = Engine.load(folder / f"{seed}.plan", "interpreter").run([], inputs)
    for ours, theirs in zip(found, onnxruntime_of(model, inputs), strict=True):
        assert ours.shape == theirs.shape, f"seed {seed}, {machine}"
        scale = max(1.0, float(np.abs(theirs).max(initial=0)))
        bound = TOLERANCES[machine]
        np.testing.assert_allclose(ours, theirs, bound, bound * scale, err_msg=f"seed {seed}, {machine}")


@pytest.mark.parametrize("seed", [1, 2, 50])
def test_a_random_model_runs_on_the_host(penstock: Command, tmp_path: Path, seed: int) -> None:
    check(penstock, tmp_path, seed, "host")


@pytest.mark.parametrize(("seed", "machine"), [(3, "gemmini-fp32"), (4, "rapid-core-like"), (5, "host-avx2")])
def test_a_random_model_runs_on_machines(penstock: Command, tmp_path: Path, seed: int, machine: str) -> None:
    check(penstock, tmp_path, seed, machine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", TOLERANCES)
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_many_random_models_run(penstock: Command, tmp_path: Path, first: int, machine: str) -> None:
    for seed in range(first, first + 20):
        check(penstock, tmp_path, seed, machine)


def test_the_models_are_of_many_kinds() -> None:
    """The generator makes what the others are about: shared weights, and expansions that are reduced."""
    operators: Counter[str] = Counter()
    shared = expanded = 0
    for seed in range(150):
        model, _ = random_model(seed)
        operators.update(node.op_type for node in model.graph.node)
        reads = Counter(name for node in model.graph.node for name in node.input if name.startswith("w"))
        shared += any(count > 1 for count in reads.values())
        makers = {name: node.op_type for node in model.graph.node for name in node.output}
        expanded += any(
            makers.get(node.input[0]) in ("Expand", "Tile") and node.op_type.startswith(("Reduce", "Softmax", "Cum"))
            for node in model.graph.node
        )
    assert len(operators) > 80
    assert shared > 30
    assert expanded > 3
