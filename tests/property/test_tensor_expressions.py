# SPDX-License-Identifier: Apache-2.0
"""Random tensor expressions of the kernel language, against NumPy's einsum."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dialects.context import make_context
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_text import SourceText
from penstock.runtime.compiler import LoadedProgram
from penstock.runtime.engine import Engine

INDICES = "ijkl"


@dataclass(frozen=True)
class Product:
    """A sum of products of tensors, each of which is indexed by some letters."""

    factors: tuple[str, ...]
    result: str
    sizes: dict[str, int]

    @property
    def equation(self) -> str:
        """The product as einsum takes it."""
        return f"{','.join(self.factors)}->{self.result}"

    def text(self, form: str) -> str:
        """The product as a kernel: with a sum, with += or with a sum in a term."""
        declared = [f"f32 {_name(n)}[{_dims(each)}]" for n, each in enumerate(self.factors)]
        terms = " * ".join(f"{_name(n)}[{', '.join(each)}]" for n, each in enumerate(self.factors))
        summed = sorted({letter for each in self.factors for letter in each} - set(self.result))
        target = f"y[{', '.join(self.result)}]"
        total = f"sum({', '.join(summed)}, {terms})" if summed else terms
        match form:
            case "sum":
                lines = [f"{target} = {total}"]
            case "added":
                lines = [f"{target} = 0", f"{target} += {terms}"]
            case _:
                lines = [f"{target} = 1 + {total} - 1"]
        return "\n".join([f"kernel f({', '.join(declared)}) -> (f32 y[{_dims(self.result)}]) {{", *lines, "}"])


def _name(number: int) -> str:
    return f"x{number}"


def _dims(letters: str) -> str:
    return ", ".join(letter.upper() for letter in letters)


@st.composite
def products(draw: st.DrawFn) -> Product:
    letters = st.lists(st.sampled_from(INDICES), min_size=1, max_size=3).map("".join)
    factors = tuple(draw(st.lists(letters, min_size=1, max_size=3)))
    used = sorted(set("".join(factors)))
    result = draw(st.permutations(used))
    count = draw(st.integers(1, len(used)))
    sizes = {letter: draw(st.integers(1, 5)) for letter in used}
    return Product(factors, "".join(result[:count]), sizes)


@settings(max_examples=60, deadline=None)
@given(products(), st.sampled_from(["sum", "added", "in a term"]), st.integers(0, 100))
def test_a_product_is_that_of_einsum(product: Product, form: str, seed: int) -> None:
    file = KernelFile(SourceText("k.pk", product.text(form)))
    sizes = {letter.upper(): size for letter, size in product.sizes.items()}
    program = LoadedProgram(file.module(file.kernel(), sizes), make_context(), Path("k.pk"))
    rng = np.random.default_rng(seed)
    shapes = [[product.sizes[letter] for letter in each] for each in product.factors]
    # Small integers: sums are exact in any order.
    arrays = [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    (found,) = Engine(program.module, program.ctx, backend="interpreter").run(arrays)
    np.testing.assert_array_equal(found, np.einsum(product.equation, *arrays))
