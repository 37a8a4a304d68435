# SPDX-License-Identifier: Apache-2.0
"""The operators of examples/operators on arrays: what to call each with, and whether what it gives is its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reference import OPERATORS, Operator, Sizes

from penstock.dialects.context import make_context
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_kernel.sizes import bind_numbers, shape_of_declaration
from penstock.lowering.from_kernel.syntax import Declarator, Kernel
from penstock.lowering.from_text import SourceText, read_text
from penstock.runtime.compiler import LoadedProgram

Array = NDArray[Any]

FOLDER = Path(__file__).parents[2] / "examples/operators"
POSITIVE = ("logarithm", "square_root", "inverse", "divide")
"""Operators that are not defined, or not well conditioned, everywhere."""
RANGES = {"low": (-0.5, -0.4), "high": (0.7, 0.8), "scale": (0.05, 0.06), "variance": (0.5, 2), "share": (0.5, 1)}
"""Of parameters, by their names."""
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "i64": np.int64, "bool": np.bool_}
SINGLE, HALF = "f32", "f16"


@cache
def file_of(name: str, element: str = SINGLE) -> KernelFile:
    """A file of kernels as it is, or with floats of another width."""
    text = read_text(FOLDER / f"{name}.pk")
    return KernelFile(SourceText(text.name, text.text.replace(SINGLE, element)))


@dataclass(frozen=True)
class OperatorCase:
    """An operator at some sizes, its floats of a width."""

    operator: Operator
    number: int
    """Which of its sizes."""
    element: str = SINGLE

    @property
    def sizes(self) -> Sizes:
        """The sizes that are given."""
        return self.operator.sizes[self.number]

    @property
    def kernel(self) -> Kernel:
        """The kernel in its file."""
        return file_of(self.operator.file, self.element).kernel(self.operator.name)

    @property
    def is_half(self) -> bool:
        """Whether the text itself is in f16."""
        text = file_of(self.operator.file)
        return any(each.element == HALF for each in text.kernel(self.operator.name).parameters)

    def shapes(self, declared: Sequence[Declarator]) -> list[tuple[int, ...]]:
        """The shapes of parameters or results."""
        numbers = bind_numbers(self.kernel, self.sizes)
        return [shape_of_declaration(each, numbers) for each in declared]

    @cached_property
    def arguments(self) -> Sequence[Array]:
        """What the operator is called with, always the same."""
        rng = np.random.default_rng(0)
        parameters = self.kernel.parameters
        return [self._input(each, shape, rng) for each, shape in zip(parameters, self.shapes(parameters), strict=True)]

    def program(self) -> LoadedProgram:
        """The kernel at its sizes, called by @main. Raises UserError."""
        file = file_of(self.operator.file, self.element)
        module = file.module(self.kernel, self.sizes)
        return LoadedProgram(module, make_context(), Path(file.text.name))

    def compare(self, found: Sequence[Array]) -> None:
        """Raise AssertionError where results are not those of the reference, within the rounding of their type."""
        wide = [each.astype(np.float64) if each.dtype.kind == "f" else each for each in self.arguments]
        expected = self.operator.reference(*wide)
        for ours, theirs in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            assert ours.shape == np.shape(theirs)
            if ours.dtype == np.int8:
                # A value halfway between two integers may have been rounded in f32 before.
                assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1
                continue
            tolerance = 2e-3 if ours.dtype == np.float16 else 2e-5
            np.testing.assert_allclose(ours, theirs, tolerance, tolerance * max(1.0, float(np.abs(theirs).max())))

    def _input(self, declared: Declarator, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        dtype = DTYPES[declared.element]
        if declared.element == "bool":
            return np.asarray(rng.random(shape) < 0.7)
        if declared.element == "i8":
            return rng.integers(-100, 100, shape).astype(dtype)
        if declared.name in RANGES:
            return np.asarray(rng.uniform(*RANGES[declared.name], shape)).astype(dtype)
        values = np.asarray(rng.standard_normal(shape)).astype(dtype)
        return np.abs(values) + np.asarray(0.5, dtype) if self.operator.name in POSITIVE else values


def cases(*elements: str) -> list[OperatorCase]:
    """Every operator at all its sizes; what is written in f16 only once."""
    found = [OperatorCase(each, number, element) for each in OPERATORS for element in elements for number in range(3)]
    return [case for case in found if case.element == SINGLE or not case.is_half]
