"""Random kernels compute what their texts say, element by element: interpreted, in C, and on machines."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from kernel_values import Array, results_of

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.runtime.engine import Backend
from penstock.tools.fuzz.kernel_texts import KernelWriter, mutated


def check(seed: int, machine: str | None, backend: Backend) -> None:
    rng = random.Random(seed)
    writer = KernelWriter(rng)
    text = writer.text()
    shape = writer.sizes["N"], writer.sizes["M"]
    numbers = np.random.default_rng(seed)
    arguments: list[Array] = [numbers.integers(-3, 4, each).astype(np.float64) for each in (shape, shape, shape[1:])]
    block = int(text[len("kernel f[B = ")])
    (expected,) = results_of(text, arguments, {**writer.sizes, "B": block})
    kernel = penstock.kernel(text, machine=machine, backend=backend)
    found = kernel(*(each.astype(np.float32) for each in arguments))
    np.testing.assert_array_equal(found, expected, err_msg=text)


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_mutated_kernel_is_lowered_or_refused_at_a_place(count: int) -> None:
    places = [_refused_at(seed) for seed in range(count)]
    refused = [place for place in places if place is not None]
    assert [place for place in refused if not re.fullmatch(r"<kernel>:\d+:\d+", place)] == []
    assert 0.2 * count < len(refused) < 0.8 * count


def _refused_at(seed: int) -> str | None:
    """Where a mutated text is refused; None if it is lowered."""
    rng = random.Random(seed)
    writer = KernelWriter(rng)
    text = mutated(writer.text(), rng)
    try:
        kernel = penstock.kernel(text, backend="interpreter")
        kernel.file.function(kernel.kernel, writer.sizes)
    except UserError as fault:
        return str(fault.loc)
    return None


@pytest.mark.parametrize("seed", range(8))
def test_a_random_kernel_computes_what_it_says(seed: int) -> None:
    check(seed, None, "interpreter")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_many_random_kernels_compute_what_they_say(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed, None, "interpreter")


@pytest.mark.slow
@pytest.mark.parametrize("machine", [None, "gemmini-fp32", "rapid-core-like"])
def test_compiled_kernels_compute_it_too(machine: str | None) -> None:
    for seed in range(60):
        check(seed, machine, "native" if machine is None else "interpreter")


def test_a_selection_by_the_row_is_vectorised_right() -> None:
    # GCC 12 without jump threading takes the wrong side of it.
    check(44, None, "native")
