# SPDX-License-Identifier: Apache-2.0
"""Products and sums of the host as fused multiply-adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import Float32Type, Float64Type, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.passes.analysis.kernels import has_fma, host_functions


def _product(value: SSAValue, user: arith.AddfOp) -> arith.MulfOp | None:
    """The product that `value` is, if only the sum beside it uses it."""
    match value.owner:
        case arith.MulfOp() as product if product.parent is user.parent and value.has_one_use():
            return product
        case _:
            return None


@dataclass(frozen=True)
class ContractPass(ModulePass):
    """
    Make a product of f32 or f64 that only a sum uses one op with it, `math.fma`, on the host.

    A fused multiply-add rounds once, and a processor that has it does two operations in one. It is in the IR, and no
    compiler flag decides: the interpreter and C round alike. For a processor without it `math.fma` is a slow call of
    the C library, so by default the pipeline runs it with `declared` alone, for a machine that is the host itself and
    whose file says that it has them, such as `host-avx2`; without a machine it has to be asked for:
    `-p 'default, +contract after math-polynomial-approximation'`. Of a sum of two products the first becomes part of
    it. MLIR's `math-uplift-to-fma` does the same.

    Required: the loop level. Guaranteed: a contraction stays one, and sums keep their order. Kernels of a machine are
    left as they are, and so are ops of the host with a `library_call`: they are its intrinsics.

    Before:
    ```mlir
    func.func @line(%a: f32, %x: f32, %b: f32) -> f32 {
      %m = arith.mulf %a, %x : f32
      %y = arith.addf %b, %m : f32
      func.return %y : f32
    }
    ```
    After (`contract`):
    ```mlir
    func.func @line(%a: f32, %x: f32, %b: f32) -> f32 {
      %y = math.fma %a, %x, %b : f32
      func.return %y : f32
    }
    ```
    """

    name = "contract"
    reassociates: ClassVar[bool] = True
    """A product is no longer rounded before it is added."""

    declared: bool = False
    """Only where the machine's file says that the host has fused multiply-adds."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.declared and not has_fma(op):
            return
        for function in host_functions(op):
            for each in list(function.walk()):
                if _is_named(each.parent_op()) or not isinstance(each, arith.AddfOp):
                    continue
                if isinstance(each.result.type, Float32Type | Float64Type):
                    _contract(each)


def _is_named(op: Operation | None) -> bool:
    """Whether an intrinsic computes an op, whose body says what that does."""
    return isinstance(op, GenericOp) and op.library_call is not None


def _contract(total: arith.AddfOp) -> None:
    for value, other in ((total.lhs, total.rhs), (total.rhs, total.lhs)):
        if (product := _product(value, total)) is not None:
            fused = math.FmaOp(product.lhs, product.rhs, other)
            fused.location = total.location
            Rewriter.replace_op(total, fused)
            Rewriter.erase_op(product)
            return
