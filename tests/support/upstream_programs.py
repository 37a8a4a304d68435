# SPDX-License-Identifier: Apache-2.0
"""What MLIR's own tools make of a text, and compute: the witness of texts that are taken in."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from upstream_tools import TO_LLVM, descriptor

Array = NDArray[Any]

COPY = Path(__file__).parent / "memref_copy.c"

FROM_TOSA = (
    "--pass-pipeline=builtin.module(func.func(tosa-optional-decompositions,canonicalize,tosa-infer-shapes,"
    "tosa-make-broadcastable,tosa-to-linalg-named,canonicalize,tosa-make-broadcastable,tosa-to-linalg,tosa-to-tensor,"
    "tosa-to-arith{include-apply-rescale=true},canonicalize))"
)
TO_MEMREFS = (
    "--one-shot-bufferize=bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map",
    "--buffer-results-to-out-params",
    "--canonicalize",
    "--llvm-request-c-wrappers",
)


def upstream(text: str, *options: str) -> str:
    """What mlir-opt prints."""
    done = subprocess.run(["mlir-opt-19", *options], input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return done.stdout


def run_upstream(text: str, inputs: Sequence[Array], outputs: Sequence[Array], folder: Path) -> list[Array]:
    """What `@main` of a text of linalg on tensors computes, in arrays such as `outputs`, by MLIR's own code."""
    llvm = upstream(upstream(text, *TO_MEMREFS), *(f"--{name}" for name in TO_LLVM))
    code, library = folder / "main.o", folder / "main.so"
    for command, given in (
        (["mlir-translate-19", "--mlir-to-llvmir", "-o", str(folder / "main.ll")], llvm),
        (["llc-19", "-O2", "-filetype=obj", "-relocation-model=pic", str(folder / "main.ll"), "-o", str(code)], None),
        (["cc", "-O1", "-shared", "-fPIC", str(code), str(COPY), "-lm", "-o", str(library)], None),
    ):
        subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    found = [np.zeros_like(each) for each in outputs]
    descriptors = [descriptor(np.ascontiguousarray(each)) for each in (*inputs, *found)]
    ctypes.CDLL(str(library))._mlir_ciface_main(*(ctypes.byref(each) for each in descriptors))
    return found
