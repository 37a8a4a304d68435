# SPDX-License-Identifier: Apache-2.0
"""One graph written in several orders: the same results, and the same peak of the arena, which is what is promised."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import wired
import zoo
from onnx import ModelProto, NodeProto
from sampling import sweep

from penstock.dialects.remarks import Remark, listening
from penstock.passes.analysis.memory.memory_problems import ARENA, plan_report
from penstock.runtime.compiler import LoadedProgram, compile_module, import_program
from penstock.runtime.dynamic_engine import compile
from penstock.runtime.interpreter import run_module

onnxruntime: Any = pytest.importorskip("onnxruntime")
Build = Callable[[int], ModelProto]
NETWORKS: dict[str, Build] = {
    "cells": lambda seed: wired.nasnet_like(seed, cells=2, channels=8, size=8),
    "randomly wired": lambda seed: wired.randomly_wired(seed, nodes=10, channels=8, size=8),
    "branches": lambda seed: wired.branches(seed, channels=4, size=8),
}
SPELLINGS = 3


def respelled(model: ModelProto, seed: int) -> ModelProto:
    """The same graph, its nodes in another order."""
    draw = Random(seed)
    known = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    waiting: list[NodeProto] = list(model.graph.node)
    order: list[NodeProto] = []
    while waiting:
        node = draw.choice([each for each in waiting if known.issuperset(each.input)])
        waiting.remove(node)
        known.update(node.output)
        order.append(node)
    other = ModelProto()
    other.CopyFrom(model)
    del other.graph.node[:]
    other.graph.node.extend(order)
    return other


def arena(program: LoadedProgram) -> int:
    return sum(plan.peak for plan in plan_report(program.module) if plan.scope == ARENA)


CASES = [
    (kind, seed, machine) for kind in NETWORKS for seed in range(6) for machine in (None, "native", "gemmini-fp32")
]


@pytest.mark.parametrize(
    ("kind", "seed", "machine"), sweep(CASES, lambda case: case in (("cells", 1, None), ("branches", 1, "native")))
)
def test_every_spelling_of_a_graph_has_one_peak_and_the_same_results(kind: str, seed: int, machine: str | None) -> None:
    model = NETWORKS[kind](seed)
    feeds = zoo.inputs(model, seed)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    peaks: list[int] = []
    remarks: list[Remark] = []
    for spelling in range(SPELLINGS):
        program = import_program(respelled(model, spelling), {})
        with listening(remarks.append):
            compile_module(program.module, program.ctx, machine, "loop")
        peaks.append(arena(program))
        (found,) = run_module(program.module, list(feeds.values()), program.ctx.weights)
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    orders = [each.message for each in remarks if "order of" in each.message and each.function == "main"]
    assert len(orders) == SPELLINGS
    if all("none is lower" in each for each in orders):
        assert len(set(peaks)) == 1, (peaks, orders)


def test_the_order_reaches_c() -> None:
    model = NETWORKS["branches"](0)
    feeds = zoo.inputs(model, 0)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (found,) = compile(model, machine="native")(*feeds.values())
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_fewer_bytes_are_alive_than_in_the_order_of_the_model() -> None:
    model = NETWORKS["branches"](0)
    peaks: list[int] = []
    for pipeline in ("default, -topological-sort, -order-ops", "default"):
        program = import_program(model, {})
        compile_module(program.module, program.ctx, "native", "loop", pipeline=pipeline)
        peaks.append(arena(program))
    assert peaks[1] <= 0.75 * peaks[0], peaks
