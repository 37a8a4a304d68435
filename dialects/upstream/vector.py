# SPDX-License-Identifier: Apache-2.0
"""
The vector dialect with what xDSL 0.74 lacks of MLIR's: `vector.load` and `vector.store` of memrefs of vectors, and
`vector.print` of punctuation and of text. See https://mlir.llvm.org/docs/Dialects/Vector
"""

from __future__ import annotations

from typing import cast

from xdsl.dialects import vector
from xdsl.dialects.builtin import MemRefType, StringAttr, VectorType
from xdsl.dialects.vector import Vector
from xdsl.ir import Dialect
from xdsl.irdl import AnyAttr, BaseAttr, IRDLOperation, irdl_op_definition, opt_operand_def, opt_prop_def
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream import amend


def _check(op: vector.LoadOp | vector.StoreOp) -> None:
    memref = cast(MemRefType, op.base.type)
    type = cast(VectorType, op.result.type if isinstance(op, vector.LoadOp) else op.vector.type)
    if memref.element_type not in (type.element_type, type):
        raise VerifyException("MemRef element type should match the Vector element type.")
    if memref.get_num_dims() != len(op.indices):
        raise VerifyException("Expected an index for each dimension.")


amend.check(vector.LoadOp, _check)
amend.check(vector.StoreOp, _check)


@irdl_op_definition
class PrintOp(IRDLOperation):
    """Print a value, a text or punctuation; https://mlir.llvm.org/docs/Dialects/Vector/#vectorprint-vectorprintop."""

    name = "vector.print"

    source = opt_operand_def()
    punctuation = opt_prop_def(AnyAttr())
    stringLiteral = opt_prop_def(BaseAttr(StringAttr))

    def verify_(self) -> None:
        if self.source is not None and self.stringLiteral is not None:
            raise VerifyException("prints a value or a text, and not both")


_OURS = {PrintOp.name: PrintOp}
DIALECT = Dialect("vector", [_OURS.get(op.name, op) for op in Vector.operations], list(Vector.attributes))
"""xDSL's vector dialect with our `vector.print` in place of its own."""
