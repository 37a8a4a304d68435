# SPDX-License-Identifier: Apache-2.0
"""Machine code by MLIR's own tools, of programs that `lower-to-upstream` has turned into MLIR's own dialects."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.targets.mlir import MLIRTarget

from penstock.dialects.context import PenstockContext
from penstock.dialects.functions import OUTPUT, WEIGHT, attribute_text
from penstock.lowering.loop_to_upstream import LowerToUpstreamPass
from penstock.lowering.to_text import module_text
from penstock.runtime.signature import main_function, signature_of

Array = NDArray[Any]
TOOLS = ("mlir-opt-19", "mlir-translate-19", "llc-19")

TO_LLVM = (
    "convert-linalg-to-loops", "expand-strided-metadata", "lower-affine", "convert-scf-to-cf", "convert-vector-to-llvm",
    "convert-math-to-llvm", "convert-math-to-libm", "finalize-memref-to-llvm", "convert-arith-to-llvm",
    "convert-func-to-llvm", "convert-cf-to-llvm", "reconcile-unrealized-casts",
)  # fmt: skip
"""The passes of mlir-opt that turn the result into its LLVM dialect; as in docs/interchange.md."""


def needs_tools() -> None:
    """Skip the test where one of them is missing."""
    for tool in (*TOOLS, "cc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def descriptor(array: Array) -> ctypes.Structure:
    """What MLIR passes for a memref: two pointers, an offset, sizes and strides in elements."""
    rank = array.ndim
    fields = [("base", ctypes.c_void_p), ("data", ctypes.c_void_p), ("offset", ctypes.c_int64)]
    numbers = [("sizes", ctypes.c_int64 * rank), ("strides", ctypes.c_int64 * rank)] if rank else []
    kind = type("Descriptor", (ctypes.Structure,), {"_fields_": [*fields, *numbers]})
    found = kind(array.ctypes.data, array.ctypes.data, 0)
    for dim in range(rank):
        found.sizes[dim] = array.shape[dim]
        found.strides[dim] = array.strides[dim] // array.itemsize
    return found


def run_by_mlir(module: ModuleOp, ctx: PenstockContext, inputs: Sequence[Array], folder: Path) -> list[Array]:
    """The outputs of a planned program at loop level, which is changed, as MLIR's tools compute them."""
    signature, main = signature_of(module), main_function(module)
    outputs = [np.full(spec.shape, 77, spec.dtype) for spec in signature.outputs]
    given, made = iter(inputs), iter(outputs)
    arguments: list[Array] = []
    for index in range(len(main.function_type.inputs)):
        if (weight := attribute_text(main, index, WEIGHT)) is not None:
            arguments.append(np.ascontiguousarray(ctx.weights[weight]))
        else:
            arguments.append(next(made) if attribute_text(main, index, OUTPUT) is not None else next(given))
    LowerToUpstreamPass().apply(ctx, module)
    module.verify()
    text = module_text(ctx, module, MLIRTarget(print_generic_format=True))
    llvm, code, library = folder / "main.ll", folder / "main.o", folder / "main.so"
    lowered = subprocess.run(
        ["mlir-opt-19", *(f"--{name}" for name in TO_LLVM)], input=text, capture_output=True, text=True, check=True
    ).stdout
    for command, given_text in (
        (["mlir-translate-19", "--mlir-to-llvmir", "-o", str(llvm)], lowered),
        (["llc-19", "-O2", "-filetype=obj", "-relocation-model=pic", str(llvm), "-o", str(code)], None),
        (["cc", "-shared", str(code), "-lm", "-o", str(library)], None),
    ):
        subprocess.run(command, input=given_text, capture_output=True, text=True, check=True)
    descriptors = [descriptor(array) for array in arguments]
    ctypes.CDLL(str(library))._mlir_ciface_main(*(ctypes.byref(each) for each in descriptors))
    return outputs
