# SPDX-License-Identifier: Apache-2.0
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
    writer = KernelWriter(random.Random(seed))
    check_text(writer.text(), writer.sizes, machine, backend, seed)


def check_text(text: str, sizes: dict[str, int], machine: str | None, backend: Backend, seed: int = 0) -> None:
    shape = sizes["N"], sizes["M"]
    numbers = np.random.default_rng(seed)
    arguments: list[Array] = [numbers.integers(-3, 4, each).astype(np.float64) for each in (shape, shape, shape[1:])]
    block = int(text[len("kernel f[B = ")])
    (expected,) = results_of(text, arguments, {**sizes, "B": block})
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


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        pytest.param(
            """
            f32 t[N, M]
            t[i, j] = v[j] - t[i - 2, j else 1]
            y[i, j] = a[i, j] + t[i, j]""",
            5,
            id="a row that later rows read, put into a local",
        ),
        pytest.param(
            """
            f32 t[N, M]
            grid i0 in 0:N:B {
              tile = b[i0:+B, : else 2]
              tile = tile + max(tile, 1)
              t[i0:+B, :] = tile
            }
            y[i, j] = a[i, j] + t[i, j] + t[i, j - 1 else 3]""",
            5,
            id="a padded window of what tiles are put into",
        ),
        pytest.param(
            """
            f32 t[N, M] = b
            for n in 0:N {
              t[n, j] += a[n, j]
            }
            y[i, j] = a[i, j] + t[i, j] - t[i + 1, j - 2 else 3] + v[j]""",
            5,
            id="a padded window of what a loop updates",
        ),
        pytest.param(
            """
            f32 t[N, M] = 1
            for i0 in 0:N:B {
              t[i0:+B, :] += b[i0:+B, : else 0]
            }
            y[i, j] = a[i, j] + t[i, j] + t[i - 1, j - 2 else 3]""",
            2,
            id="a sum that begins as a pad",
        ),
        pytest.param(
            """
            f32 t[N, M]
            t[0, j] = a[0, j] - b[1, j]
            t[i in 1:N, j] = cast(f32, j)
            f32 u[N, M]
            u[0, j] = t[0, j - 1 else 3] - b[0, j]
            u[i in 1:N, j] = 2 * b[i, j]
            y[i, j] = t[i, j] + u[i, j]""",
            5,
            id="coordinates",
        ),
    ],
)
def test_what_no_engine_copies_on_chip_goes_another_way(body: str, rows: int) -> None:
    text = f"kernel f[B = 3](f32 a[N, M], f32 b[N, M], f32 v[M]) -> (f32 y[N, M]) {{{body}\n}}"
    check_text(text, {"N": rows, "M": 5}, "rapid-core-like", "interpreter")
