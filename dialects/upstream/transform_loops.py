# SPDX-License-Identifier: Apache-2.0
"""
Ops of MLIR's `transform` dialect on loops and on the loops of structured ops, as mlir-opt 19 reads and prints them.

See https://mlir.llvm.org/docs/Dialects/Transform/
"""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, i1
from xdsl.dialects.transform import TransformOpHandleType
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def

from penstock.dialects.upstream.handle_ops import FUNCTIONAL, I64, I64_ARRAY, HandleOp
from penstock.dialects.window import IntegerList


@irdl_op_definition
class LoopUnrollOp(HandleOp):
    """Repeat the body of a loop. https://mlir.llvm.org/docs/Dialects/Transform/#transformloopunroll"""

    name = "transform.loop.unroll"
    target = operand_def(TransformOpHandleType)
    factor = prop_def(I64)
    assembly_format = "$target attr-dict `:` type($target)"


@irdl_op_definition
class LoopPeelOp(HandleOp):
    """Make a loop of its own of the last iteration where the step does not divide, or of the first one.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformlooppeel
    """

    name = "transform.loop.peel"
    target = operand_def(TransformOpHandleType)
    peel_front = opt_prop_def(IntegerAttr.constr(i1))
    fail_if_already_divisible = opt_prop_def(IntegerAttr.constr(i1))
    peeled_loop = result_def(TransformOpHandleType)
    remainder_loop = result_def(TransformOpHandleType)
    assembly_format = FUNCTIONAL


@irdl_op_definition
class LoopCoalesceOp(HandleOp):
    """Make one loop of a perfect nest. https://mlir.llvm.org/docs/Dialects/Transform/#transformloopcoalesce"""

    name = "transform.loop.coalesce"
    target = operand_def(TransformOpHandleType)
    transformed = result_def(TransformOpHandleType)
    assembly_format = FUNCTIONAL


@irdl_op_definition
class InterchangeOp(HandleOp):
    """Give the dims of a structured op another order.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredinterchange
    """

    name = "transform.structured.interchange"
    target = operand_def(TransformOpHandleType)
    iterator_interchange = prop_def(I64_ARRAY)
    transformed = result_def(TransformOpHandleType)
    assembly_format = (
        "$target `iterator_interchange` `=` custom<IntegerList>($iterator_interchange) attr-dict"
        " `:` functional-type(operands, results)"
    )
    custom_directives = (IntegerList,)


@irdl_op_definition
class ConvertToLoopsOp(HandleOp):
    """Make loops around scalars of a structured op.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredconvert_to_loops
    """

    name = "transform.structured.convert_to_loops"
    target = operand_def(TransformOpHandleType)
    result = result_def(TransformOpHandleType)
    assembly_format = FUNCTIONAL


OPS = (LoopUnrollOp, LoopPeelOp, LoopCoalesceOp, InterchangeOp, ConvertToLoopsOp)
"""All of them."""
