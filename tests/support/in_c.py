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
