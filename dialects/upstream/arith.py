"""
`arith.remf`, which MLIR's arith dialect has and xDSL's does not: see
https://mlir.llvm.org/docs/Dialects/ArithOps/#arithremf-arithremfop
"""

from __future__ import annotations

from xdsl.dialects.arith import Arith, FloatingPointLikeBinaryOperation
from xdsl.ir import Dialect
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import Pure


@irdl_op_definition
class RemFOp(FloatingPointLikeBinaryOperation):
    """The remainder of two floats, exact, with the sign of the dividend: C's `fmod`."""

    name = "arith.remf"

    traits = traits_def(Pure())


DIALECT = Dialect("arith", [*Arith.operations, RemFOp], list(Arith.attributes))
"""xDSL's arith dialect with `arith.remf`."""
