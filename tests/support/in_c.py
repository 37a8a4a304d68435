"""Programs of the loop level in C beside the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.passes.toolchain import find_compiler
from penstock.runtime.interpreter import run_module
from penstock.runtime.native import load_native

Array = NDArray[Any]


def needs_compiler() -> None:
    """Skip the test where there is no C compiler."""
    try:
        find_compiler()
    except UserError:
        pytest.skip("no C compiler")


def agree(module: ModuleOp, inputs: Sequence[Array]) -> list[Array]:
    """Run in C and in the interpreter, demand the same bits, and return the outputs."""
    needs_compiler()
    ours = load_native(module).run(inputs)
    theirs = run_module(module, inputs, WeightStore(), ordered=True)
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype
    return ours


def memref(shape: Sequence[int], element: str = "f32") -> str:
    return f"memref<{''.join(f'{size}x' for size in shape)}{element}>"


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def main(arguments: Sequence[tuple[str, str]], body: str, outputs: int = 1) -> str:
    """A module with one @main; the last `outputs` arguments are its outputs."""
    first = len(arguments) - outputs
    listed = [
        f'%{name}: {type} {{graph.{"name" if number < first else "output"} = "{name}"}}'
        for number, (name, type) in enumerate(arguments)
    ]
    return f"func.func @main({', '.join(listed)}) {{\n{body}\nfunc.return\n}}"
