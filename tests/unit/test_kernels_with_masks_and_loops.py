# SPDX-License-Identifier: Apache-2.0
"""Kernels of the language whose masks are decided, and those of which the machine runs the loops alone."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from operator_cases import OperatorCase
from reference import OPERATORS
from xdsl.ir.affine import AffineExpr, AffineMap

import penstock
from penstock.passes.analysis.access import places_each
from penstock.runtime.engine import compile_program

MASKED = """\
kernel masked[B = 4](f32 x[N]) -> (f32 y[N]) {
    for n in 0:N:B {
        tile[i in 0:B] = select(n + i < N and n + i != 100, x[n + i else 0], -1)
        y[n:+B] = tile
    }
}
"""


@pytest.mark.parametrize(("size", "decided"), [(8, True), (6, False), (104, False)])
def test_a_comparison_of_indices_that_is_the_same_everywhere_is_not_computed(size: int, decided: bool) -> None:
    masked = penstock.kernel(MASKED, backend="interpreter")
    assert ("arith.cmpi" not in masked.mlir(N=size)) == decided
    x = np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(masked(x), np.where(np.arange(size) == 100, -1, x))


@pytest.mark.parametrize("relation", ["<", "<=", ">", ">=", "==", "!="])
def test_a_comparison_means_the_same_whether_it_is_decided_or_not(relation: str) -> None:
    bounds = (-1, 0, 1, 4, 5)
    results = ", ".join(f"f32 y{number}[N]" for number in range(len(bounds)))
    lines = [f"    y{n}[i] = select(not (i {relation} {bound}), x[i], 0)" for n, bound in enumerate(bounds)]
    text = "\n".join([f"kernel f(f32 x[N]) -> ({results}) {{", *lines, "}\n"])
    x, places = np.arange(1, 6, dtype=np.float32), np.arange(5)
    for found, bound in zip(penstock.kernel(text, backend="interpreter")(x), bounds, strict=True):
        difference = places - bound
        holds = {"<": difference < 0, "<=": difference <= 0, ">": difference > 0}
        holds |= {">=": difference >= 0, "==": difference == 0, "!=": difference != 0}
        np.testing.assert_array_equal(found, np.where(holds[relation], 0, x))


def test_the_parameter_of_a_function_is_not_the_index_of_its_name() -> None:
    text = """\
function first(i) = select(i < 2, 1, 0)
kernel f(i64 x[N]) -> (i64 y[N]) {
    y[i] = first(x[i])
}
"""
    x = np.array([5, 0, 1, 2])
    np.testing.assert_array_equal(penstock.kernel(text, backend="interpreter")(x), [0, 1, 1, 0])


@pytest.mark.parametrize("name", ["softmax_half", "attention_half"])
def test_the_machine_runs_the_loops_of_a_kernel_and_the_host_what_stands_beside_them(name: str) -> None:
    operator = next(each for each in OPERATORS if each.name == name)
    sizes = {**operator.sizes[0], **({"BQ": 32, "BK": 16} if name.startswith("attention") else {"B": 16})}
    case = OperatorCase(replace(operator, sizes=[sizes]), 0)
    engine = compile_program(case.program(), machine="rapid-core-like", backend="interpreter")
    devices = re.findall(rf"@({name}_\d)\w*\(.*device = @(\w+)", str(engine.module))
    assert [device for _, device in devices] == ["host", "rapid_core_like", "host"]
    case.compare(engine.run(case.arguments))


def test_loops_place_each_element_of_a_tensor_or_they_do_not() -> None:
    i, j, zero = AffineExpr.dimension(0), AffineExpr.dimension(1), AffineExpr.constant(0)
    assert places_each(AffineMap(2, 0, (zero, j, i)), (1, 4, 5))
    assert not places_each(AffineMap(2, 0, (zero, j, i)), (2, 4, 5))
    assert not places_each(AffineMap(2, 0, (i, i)), (4, 4))
    assert not places_each(AffineMap(2, 0, (i + j, j)), (4, 4))


def test_a_kernel_that_the_machine_cannot_run_stays_as_it_is_on_the_host() -> None:
    operator = next(each for each in OPERATORS if each.name == "top_k")
    case = OperatorCase(operator, 0)
    engine = compile_program(case.program(), machine="gemmini-fp32", backend="interpreter")
    assert re.findall(r"@(top_k\w*)\(.*device = @(\w+)", str(engine.module)) == [("top_k", "host")]
    case.compare(engine.run(case.arguments))
