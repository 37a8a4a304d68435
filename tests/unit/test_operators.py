"""The operators of examples/operators beside NumPy, at sizes of which the last divides nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reference import OPERATORS, Operator, Sizes
from sampling import sweep

from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_kernel.sizes import bind_numbers, shape_of_declaration
from penstock.lowering.from_kernel.syntax import Declarator
from penstock.lowering.from_text import read_text
from penstock.runtime.kernel_function import KernelFunction

FOLDER = Path(__file__).parents[2] / "examples/operators"
POSITIVE = ("logarithm", "square_root", "inverse", "divide")
"""Operators that are not defined, or not well conditioned, everywhere."""
RANGES = {"low": (-0.5, -0.4), "high": (0.7, 0.8), "scale": (0.05, 0.06), "variance": (0.5, 2), "share": (0.5, 1)}
"""Of parameters, by their names."""
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "bool": np.bool_}


@cache
def file_of(name: str) -> KernelFile:
    return KernelFile(read_text(FOLDER / f"{name}.pk"))


def input_of(
    operator: Operator, declared: Declarator, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[Any]:
    dtype = DTYPES[declared.element]
    if declared.element == "bool":
        return np.asarray(rng.random(shape) < 0.7)
    if declared.element == "i8":
        return rng.integers(-100, 100, shape).astype(dtype)
    if declared.name in RANGES:
        return np.asarray(rng.uniform(*RANGES[declared.name], shape)).astype(dtype)
    values = rng.standard_normal(shape).astype(dtype)
    return np.abs(values) + np.asarray(0.5, dtype) if operator.name in POSITIVE else values


def compare(operator: Operator, sizes: Sizes, machine: str | None, backend: Any) -> None:
    """Raise AssertionError where a kernel is not its reference, within the rounding of its type."""
    file = file_of(operator.file)
    kernel = file.kernel(operator.name)
    numbers = bind_numbers(kernel, sizes)
    rng = np.random.default_rng(0)
    given = [input_of(operator, each, shape_of_declaration(each, numbers), rng) for each in kernel.parameters]
    found = KernelFunction(file, operator.name, machine, backend)(*given)
    wide = [each.astype(np.float64) if each.dtype == np.float32 else each for each in given]
    expected = operator.reference(*wide)
    for ours, theirs in zip(_tuple(found), _tuple(expected), strict=True):
        assert ours.shape == np.shape(theirs)
        if ours.dtype == np.int8:
            # A value halfway between two integers may have been rounded in f32 before.
            assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1
            continue
        tolerance = 2e-3 if ours.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(ours, theirs, tolerance, tolerance * max(1.0, float(np.abs(theirs).max())))


def _tuple(values: NDArray[Any] | tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
    return values if isinstance(values, tuple) else (values,)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_an_operator_is_what_it_is_in_numpy(operator: Operator) -> None:
    compare(operator, operator.sizes[-1], None, "interpreter")


@pytest.mark.parametrize("machine", sweep((None, "gemmini-fp32", "rapid-core-like"), ()))
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_an_operator_compiled_is_what_it_is_in_numpy(operator: Operator, machine: str | None) -> None:
    for sizes in operator.sizes:
        compare(operator, sizes, machine, "native")
