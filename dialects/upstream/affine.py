# SPDX-License-Identifier: Apache-2.0
"""
The affine dialect with two operations as MLIR has them in generic form: the condition of `affine.if` is among the
discardable attributes, where xDSL has a property, which MLIR does not read; and the reductions of `affine.parallel`
are numbers of `arith` operations, where xDSL expects strings, which MLIR does not have.
"""

from __future__ import annotations

from xdsl.dialects import affine
from xdsl.dialects.builtin import (
    I64,
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    DenseIntElementsAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
)
from xdsl.ir import Dialect
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import RecursivelySpeculatable, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException


@irdl_op_definition
class IfOp(IRDLOperation):
    """A conditional on an affine set; see https://mlir.llvm.org/docs/Dialects/Affine/#affineif-affineaffineifop."""

    name = "affine.if"

    args = var_operand_def(IndexType)
    res = var_result_def()

    condition = attr_def(AffineSetAttr)

    then_region = region_def("single_block")
    else_region = region_def()

    traits = traits_def(RecursiveMemoryEffect(), RecursivelySpeculatable())


@irdl_op_definition
class ParallelOp(IRDLOperation):
    """Nested loops in any order, https://mlir.llvm.org/docs/Dialects/Affine/#affineparallel-affineaffineparallelop."""

    name = "affine.parallel"

    map_operands = var_operand_def(IndexType)
    res = var_result_def()

    reductions = prop_def(ArrayAttr[IntegerAttr[I64]])
    lowerBoundsMap = prop_def(AffineMapAttr)
    lowerBoundsGroups = prop_def(DenseIntElementsAttr)
    upperBoundsMap = prop_def(AffineMapAttr)
    upperBoundsGroups = prop_def(DenseIntElementsAttr)
    steps = prop_def(ArrayAttr[IntegerAttr[IntegerType]])

    body = region_def("single_block")

    def verify_(self) -> None:
        bounds = self.lowerBoundsMap.data, self.upperBoundsMap.data
        wanted = sum(bound.num_dims + bound.num_symbols for bound in bounds)
        if len(self.operands) != wanted:
            raise VerifyException(f"has {len(self.operands)} operands for the {wanted} of its bounds")
        for groups, bound in zip((self.lowerBoundsGroups, self.upperBoundsGroups), bounds, strict=True):
            if sum(groups.get_values()) != len(bound.results):
                raise VerifyException("needs a group of bounds for each bound")


_OURS = {op.name: op for op in (IfOp, ParallelOp)}
DIALECT = Dialect("affine", [_OURS.get(op.name, op) for op in affine.Affine.operations], list(affine.Affine.attributes))
"""xDSL's affine dialect with these operations in place of its own."""
