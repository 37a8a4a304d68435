# SPDX-License-Identifier: Apache-2.0
"""Functions of the host as polynomials, so that their loops are vectorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.passes.analysis.kernels import host_functions
from penstock.passes.polynomials import PolynomialBody, polynomial_of


def _expand(op: Operation, *, fused: bool) -> None:
    """Put ops of `arith` in the place of an op that is a function, in f32 whatever float of up to 32 bits it is of."""
    if (function := polynomial_of(op)) is None:
        return
    type = op.results[0].type
    block = Block(arg_types=[type])
    body = PolynomialBody(block, op.location, fused=fused)
    found = function(body, body.widen(block.args[0], f32))
    result = found if found.type == type else body.emit(arith.TruncFOp(found, type))
    Rewriter.inline_block(block, InsertPoint.before(op), op.operands[:1])
    Rewriter.replace_op(op, [], [result])


@dataclass(frozen=True)
class MathPolynomialApproximationPass(ModulePass):
    """
    Replace exp, exp2, expm1, log, log1p, erf and tanh on the host by polynomials, as MLIR's patterns of this name do,
    and powers of 1/4, 1/2 and 3/4 by square roots.

    A loop that calls the C library is not vectorised, and its results are those of the library at hand. The ops that
    come in their place are of `arith`, with bit casts and selections and no branch, so that a C compiler makes vectors
    of them, and the interpreter and C agree bit for bit. All within 2 units in the last place over all f32, with the
    limits of the C library (see docs/correctness.md). In f16 and bf16 they are computed in f32 and rounded once more.

    Required: the loop level; scalars, in the bodies of `linalg.generic` or not. Left as they are: f64, other functions
    (sin, other powers, ...), whose reductions take branches or more bits, and kernels of a machine, whose intrinsics
    have functions of their own.

    Before:
    ```mlir
    func.func @power(%x: f32) -> f32 {
      %y = math.exp2 %x : f32
      func.return %y : f32
    }
    ```
    After (`math-polynomial-approximation{fma=true}`):
    ```mlir
    func.func @power(%x: f32) -> f32 {
      %0 = arith.constant 0x4B4000FE : f32
      %1 = arith.addf %x, %0 : f32
      %2 = arith.subf %1, %0 : f32
      %3 = arith.bitcast %1 : f32 to i32
      %4 = arith.subf %x, %2 : f32
      %5 = arith.constant 1.000000e+00 : f32
      %6 = arith.constant 0.693147182 : f32
      %7 = arith.constant 0.240226477 : f32
      %8 = arith.constant 5.550360e-02 : f32
      %9 = arith.constant 0.00961850584 : f32
      %10 = arith.constant 0.00133908063 : f32
      %11 = arith.constant 0.000153264627 : f32
      %12 = math.fma %11, %4, %10 : f32
      %13 = math.fma %12, %4, %9 : f32
      %14 = math.fma %13, %4, %8 : f32
      %15 = math.fma %14, %4, %7 : f32
      %16 = math.fma %15, %4, %6 : f32
      %17 = math.fma %16, %4, %5 : f32
      %18 = arith.constant 1 : i32
      %19 = arith.shrsi %3, %18 : i32
      %20 = arith.constant 23 : i32
      %21 = arith.shli %19, %20 : i32
      %22 = arith.bitcast %21 : i32 to f32
      %23 = arith.mulf %17, %22 : f32
      %24 = arith.subi %3, %19 : i32
      %25 = arith.shli %24, %20 : i32
      %26 = arith.bitcast %25 : i32 to f32
      %27 = arith.mulf %23, %26 : f32
      %28 = arith.constant -1.510000e+02 : f32
      %29 = arith.cmpf olt, %x, %28 : f32
      %30 = arith.constant 0.000000e+00 : f32
      %31 = arith.select %29, %30, %27 : f32
      %32 = arith.constant 1.290000e+02 : f32
      %33 = arith.cmpf ogt, %x, %32 : f32
      %34 = arith.constant 0x7f800000 : f32
      %y = arith.select %33, %34, %31 : f32
      func.return %y : f32
    }
    ```
    """

    name = "math-polynomial-approximation"
    reassociates: ClassVar[bool] = True
    """Functions are rounded otherwise than those of a library."""

    fma: bool = False
    """
    Whether a * b + c is a `math.fma`, which rounds once: for a processor that has it. Without it, it is a product and
    a sum, and results are the same on all processors.
    """

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in host_functions(op):
            for each in list(function.walk()):
                _expand(each, fused=self.fma)
