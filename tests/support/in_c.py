# SPDX-License-Identifier: Apache-2.0
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
from penstock.runtime.llvm import has_llvm, load_llvm
from penstock.runtime.native import NativeCounters, load_native

Array = NDArray[Any]


def needs_compiler() -> None:
    """Skip the test where there is no C compiler."""
    try:
        find_compiler()
    except UserError:
        pytest.skip("no C compiler")


def needs_llvm() -> None:
    """Skip the test where llvmlite is not installed."""
    if not has_llvm():
        pytest.skip("no llvmlite")


def agree(module: ModuleOp, inputs: Sequence[Array]) -> list[Array]:
    """Run in C, by LLVM where it is installed, and in the interpreter, demand the same bits, and return the outputs."""
    needs_compiler()
    theirs = run_module(module, inputs, WeightStore(), ordered=True)
    native = load_native(module)
    ours = native.run(inputs)
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype
    agrees_by_llvm(module, inputs, ours, native.counters)
    return ours


def agrees_by_llvm(
    module: ModuleOp, inputs: Sequence[Array], ours: Sequence[Array], counters: NativeCounters | None = None
) -> None:
    """Demand the bits of C, and its counters, of LLVM, where it is installed; NaN may be any."""
    if not has_llvm():
        return
    by_llvm = load_llvm(module)
    for left, right in zip(by_llvm.run(inputs), ours, strict=True):
        assert left.dtype == right.dtype
        same = left == right
        if left.dtype.kind in "fV":
            same = (same & (np.signbit(left) == np.signbit(right))) | (np.isnan(left) & np.isnan(right))
        assert np.all(same)
    if counters is not None:
        assert by_llvm.counters == counters


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


FILL = """^bb0(%old: f32):
    %zero = arith.constant 0.25 : f32
    linalg.yield %zero : f32"""


def generic(
    dims: str, maps: Sequence[str], kinds: str, operands: Sequence[tuple[str, str]], body: str, outputs: int = 1
) -> str:
    """A linalg.generic; `kinds` has one letter a dim, operands are (name, type), the last `outputs` are written."""
    affine = ", ".join(f"affine_map<({dims}) -> ({results})>" for results in maps)
    iterators = ", ".join('"parallel"' if kind == "p" else '"reduction"' for kind in kinds)
    split = len(operands) - outputs
    parts = [
        f"{title}({', '.join('%' + name for name, _ in group)} : {', '.join(type for _, type in group)})"
        for title, group in (("ins", operands[:split]), ("outs", operands[split:]))
        if group
    ]
    return (
        f"linalg.generic {{indexing_maps = [{affine}], iterator_types = [{iterators}]}} {' '.join(parts)} {{\n"
        f"  {body}\n}}"
    )
