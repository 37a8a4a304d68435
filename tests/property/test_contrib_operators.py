# SPDX-License-Identifier: Apache-2.0
"""Operators of onnxruntime's own compute what onnxruntime does, at graph level and in C."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import contrib_cases as cases
import numpy as np
import pytest
from contrib_cases import Array, Case, Draw, model_of
from one_node import LEVELS, onnxruntime_of, run_at
from sampling import sweep

Drawn = Callable[[Draw], Case]

GROUPS: dict[str, Sequence[Drawn]] = {
    "fused": (*cases.ELEMENTWISE, *cases.PRODUCTS, *cases.NORMALISATIONS),
    "quantised": cases.QUANTISED,
    "attention": cases.ATTENTION,
    "classical": cases.CLASSICAL,
    "trees": cases.TREES,
    "tree": [cases.tree_ensemble],
}
QUICK, ALL = 2, 60
"""How many models of a group there are, with one random node of each operator."""


def expected_of(chosen: Sequence[Case]) -> list[list[Array]]:
    """What is right for each case: what onnxruntime computes, of all together, or the case itself knows."""
    of_runtime = [case for case in chosen if case.reference is None]
    found = iter(onnxruntime_of(*model_of(of_runtime)) if of_runtime else [])
    return [
        [next(found) for name in case.node.output if name]
        if case.reference is None
        else list(case.reference(case.inputs | case.weights))
        for case in chosen
    ]


def check_cases(chosen: Sequence[Case]) -> None:
    expected = expected_of(chosen)
    model, inputs = model_of(chosen)
    for level, results in run_at(model, list(inputs.values()), [each for each in LEVELS if each != "loop"]):
        found = iter(results)
        for case, wanted in zip(chosen, expected, strict=True):
            numbers = [number for number, name in enumerate(case.node.output) if name]
            for number, theirs in zip(numbers, wanted, strict=True):
                case.agree(number, next(found), theirs, level)


@pytest.mark.parametrize(
    ("group", "seed"),
    sweep([(group, seed) for group in GROUPS for seed in range(ALL)], lambda each: each[1] < QUICK),
)
def test_random_nodes_compute_what_onnxruntime_does(group: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    check_cases([draw(Draw(rng)) for draw in GROUPS[group]])
