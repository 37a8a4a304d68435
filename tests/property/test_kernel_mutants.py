# SPDX-License-Identifier: Apache-2.0
"""
Mutated texts of kernels through the whole lowering: each is lowered, to IR that verifies, or refused at a place in it;
what is lowered computes at lower levels what it does at tensor level.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.kernel_mutants import KernelText, mutant
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation
from xdsl.utils.hints import isa

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.verifier import Verifier
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_kernel.sizes import sizes_of
from penstock.lowering.from_text import SourceText
from penstock.passes.analysis.loops import trip_count
from penstock.runtime.compiler import LoadedProgram, compile_module
from penstock.runtime.engine import compile_program
from penstock.runtime.interpreter import run_module
from penstock.runtime.signature import signature_of

MOST_WORK = 100_000
"""Elements that a kernel computes or holds, above which it is not run."""


def lowered(text: KernelText) -> ModuleOp:
    """The program that a text is; a name of a size that it has only now is 5. Raises UserError."""
    file = KernelFile(SourceText("k.pk", text.text))
    kernel = file.kernel()
    return file.module(kernel, {name: text.sizes.get(name, 5) for name in sizes_of(kernel)})


def outcome(text: KernelText) -> str:
    """What becomes of a text; raises AssertionError for a refusal without a place in it."""
    try:
        Verifier().verify(lowered(text))
    except UserError as error:
        fault = error
    else:
        return "lowered"
    place = re.fullmatch(r"k\.pk:(\d+):(\d+)", fault.loc or "")
    if place is None:
        assert fault.loc == "k.pk"
        assert re.search("kernels? in this text", fault.message)
        return "not one kernel"
    line, column = int(place[1]), int(place[2])
    lines = text.text.split("\n")
    assert 1 <= line <= len(lines)
    assert 1 <= column <= len(lines[line - 1]) + 1
    return "refused"


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_mutated_operator_is_lowered_or_refused_at_a_place_in_it(count: int) -> None:
    found = Counter(outcome(mutant(seed)) for seed in range(count))
    assert found["lowered"] > 0.15 * count
    assert found["refused"] > 0.6 * count


def work_of(module: ModuleOp) -> int:
    """How many elements a program computes or holds, about."""
    total = 0
    for op in module.walk():
        total += sum(prod(each.type.get_shape()) for each in op.results if isa(each.type, TensorType))
        if isinstance(op, GenericOp):
            total += prod(op.get_static_loop_ranges()) * prod(trip_count(loop) or 1 for loop in loops_around(op))
    return total


def loops_around(op: Operation) -> Iterator[scf.ForOp]:
    parent = op.parent_op()
    while parent is not None:
        if isinstance(parent, scf.ForOp):
            yield parent
        parent = parent.parent_op()


def run_below(module: ModuleOp, machine: str | None, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """What a program computes: as C without a machine, else in the interpreter at the accel level."""
    ctx = make_context()
    if machine is None:
        return compile_program(LoadedProgram(module, ctx, Path("k"))).run(inputs)
    compile_module(module, ctx, machine, "accel")
    return run_module(module, inputs, ctx.weights)


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "first"), [(None, 0), ("gemmini-fp32", 1000), ("rapid-core-like", 2000)])
def test_what_a_mutated_operator_computes_is_the_same_at_every_level(machine: str | None, first: int) -> None:
    seen: set[str] = set()
    run = 0
    for seed in range(first, first + 1000):
        try:
            module = lowered(mutant(seed))
        except UserError:
            continue
        if str(module) in seen or work_of(module) > MOST_WORK:
            continue
        seen.add(str(module))
        rng = np.random.default_rng(seed)
        given = [np.asarray(rng.standard_normal(each.shape)) for each in signature_of(module).inputs]
        inputs = [
            (each > 0 if spec.dtype.kind == "b" else each).astype(spec.dtype)
            for each, spec in zip(given, signature_of(module).inputs, strict=True)
        ]
        with np.errstate(all="ignore"):
            expected = run_module(module.clone(), inputs, WeightStore())
            found = run_below(module, machine, inputs)
        for ours, theirs in zip(found, expected, strict=True):
            tolerance = 1e-2 if ours.dtype.itemsize == 2 else 1e-4
            ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
            np.testing.assert_allclose(ours, theirs, tolerance, tolerance, err_msg=mutant(seed).text)
        run += 1
    assert run > 50
