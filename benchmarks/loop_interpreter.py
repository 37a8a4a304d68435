# SPDX-License-Identifier: Apache-2.0
"""
A scalar loop, load-load-mulf-addf-store: our interpreter beside xDSL's stock one, on the same module.

The two are compared on 20,000 iterations, compilation included; our own cost of one scalar operation is measured on
2,000,000, and so is that of one command of an accelerator.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.interpreters import register_implementations
from xdsl.interpreters.shaped_array import ShapedArray
from xdsl.interpreters.utils.ptr import TypedPtr
from xdsl.parser import Parser

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, cpu_seconds, limited, once, paired, report, say
from penstock.dialects.context import make_context
from penstock.runtime.interpreter import run_function

COMPARED = 20_000
LONG = 2_000_000
OPERATIONS = 5
"""Scalar operations in an iteration."""
COMMANDS = 3_000

_LOOP = """
func.func @axpy(%a: memref<{n}xf32>, %x: memref<{n}xf32>, %y: memref<{n}xf32>) {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %n = arith.constant {n} : index
  %c = arith.constant 0.75 : f32
  scf.for %i = %zero to %n step %one {{
    %s = memref.load %a[%i] : memref<{n}xf32>
    %t = memref.load %x[%i] : memref<{n}xf32>
    %p = arith.mulf %s, %t : f32
    %r = arith.addf %p, %c : f32
    memref.store %r, %y[%i] : memref<{n}xf32>
  }}
  func.return
}}
"""

_COPIES = """
machine.target @toy frequency 1000 {{
  machine.scope @spad size 8192 granule 16 dtypes [f32] parent @dram
  machine.unit @load
  machine.dma @mvin unit @load from [@dram] to [@spad] dims 2 latency 10 row_overhead 1 outstanding 4
}}
func.func @load(%x: memref<16x{width}xf32>) {{
  %zero = arith.constant 0 : index
  %step = arith.constant 16 : index
  %end = arith.constant {width} : index
  scf.for %i = %zero to %end step %step {{
    %b = mem.buffer at 0 : memref<16x16xf32, "spad">
    %t = accel.dma %x[0, %i] to %b on "mvin" : memref<16x{width}xf32> to memref<16x16xf32, "spad">
  }}
  accel.barrier
  func.return
}}
"""


def module_of(text: str) -> ModuleOp:
    """A verified module."""
    module = Parser(make_context(), text).parse_module()
    module.verify()
    return module


def data(n: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Two operands whose products f32 cannot hold exactly."""
    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((2, n)).astype(np.float32)
    return a, x


def ours(module: ModuleOp, n: int) -> NDArray[np.float32]:
    """The loop by our interpreter."""
    y = np.zeros(n, np.float32)
    run_function(module, "axpy", [*data(n), y])
    return y


def theirs(module: ModuleOp, n: int) -> list[float]:
    """The loop by xDSL's interpreter."""
    interpreter = Interpreter(module)
    register_implementations(interpreter, make_context())
    arrays = [ShapedArray(TypedPtr.new_float32([float(v) for v in array]), [n]) for array in data(n)]
    result = ShapedArray(TypedPtr.new_float32([0.0] * n), [n])
    interpreter.call_op("axpy", (*arrays, result))
    return result.data


def rows() -> Sequence[Row]:
    """The comparison, and our own costs."""
    module = module_of(_LOOP.format(n=COMPARED))
    mine, other = ours(module, COMPARED), theirs(module, COMPARED)
    a, x = data(COMPARED)
    assert mine.tobytes() == (a * x + np.float32(0.75)).tobytes(), "our loop rounds wrongly"
    assert np.allclose(mine, other, atol=1e-6), "the two compute something else"
    say("loop interpreter: beside xDSL's")
    found = [
        paired(
            f"{COMPARED:,} iterations, load-load-mulf-addf-store",
            lambda: ours(module, COMPARED),
            "xDSL's interpreter",
            lambda: theirs(module, COMPARED),
            repetitions=5,
            at_most=0.05,
        )
    ]
    say("loop interpreter: a scalar operation")
    long = module_of(_LOOP.format(n=LONG))
    seconds = min(once(lambda: ours(long, LONG), cpu_seconds) for _ in range(3))
    found.append(limited("one scalar operation", seconds / LONG / OPERATIONS * 1e6, 1.0, unit="us"))
    say("loop interpreter: a command of an accelerator")
    copies, image = module_of(_COPIES.format(width=16 * COMMANDS)), np.zeros((16, 16 * COMMANDS), np.float32)
    seconds = min(once(lambda: run_function(copies, "load", [image]), cpu_seconds) for _ in range(3))
    found.append(limited("one command, 16x16 floats in", seconds / COMMANDS * 1e6, 100.0, unit="us"))
    return found


if __name__ == "__main__":
    report(rows, __doc__)
