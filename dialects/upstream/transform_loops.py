"""
Ops of MLIR's `transform` dialect on loops and on the loops of structured ops, as mlir-opt 19 reads and prints them.

See https://mlir.llvm.org/docs/Dialects/Transform/
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import transform as base
from xdsl.dialects.builtin import BoolAttr, DenseArrayBase, IntegerAttr, i1, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)

from penstock.dialects.window import IntegerList

ANY_OP = base.AnyOpType()


@irdl_op_definition
class LoopUnrollOp(IRDLOperation):
    """Repeat the body of a loop. https://mlir.llvm.org/docs/Dialects/Transform/#transformloopunroll"""

    name = "transform.loop.unroll"
    target = operand_def(base.TransformOpHandleType)
    factor = prop_def(IntegerAttr.constr(i64))
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$target attr-dict `:` type($target)"

    def __init__(self, target: SSAValue, factor: int):
        super().__init__(operands=[target], properties={"factor": IntegerAttr(factor, i64)})


@irdl_op_definition
class LoopPeelOp(IRDLOperation):
    """Make a loop of its own of the last iteration where the step does not divide, or of the first one.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformlooppeel
    """

    name = "transform.loop.peel"
    target = operand_def(base.TransformOpHandleType)
    peel_front = opt_prop_def(IntegerAttr.constr(i1))
    fail_if_already_divisible = opt_prop_def(IntegerAttr.constr(i1))
    peeled_loop = result_def(base.TransformOpHandleType)
    remainder_loop = result_def(base.TransformOpHandleType)
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$target attr-dict `:` functional-type(operands, results)"

    def __init__(self, target: SSAValue, *, peel_front: bool = False):
        super().__init__(
            operands=[target],
            properties={"peel_front": BoolAttr.from_bool(True) if peel_front else None},
            result_types=[ANY_OP, ANY_OP],
        )


@irdl_op_definition
class LoopCoalesceOp(IRDLOperation):
    """Make one loop of a perfect nest. https://mlir.llvm.org/docs/Dialects/Transform/#transformloopcoalesce"""

    name = "transform.loop.coalesce"
    target = operand_def(base.TransformOpHandleType)
    transformed = result_def(base.TransformOpHandleType)
    assembly_format = "$target attr-dict `:` functional-type(operands, results)"

    def __init__(self, target: SSAValue):
        super().__init__(operands=[target], result_types=[ANY_OP])


@irdl_op_definition
class InterchangeOp(IRDLOperation):
    """Give the dims of a structured op another order.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredinterchange
    """

    name = "transform.structured.interchange"
    target = operand_def(base.TransformOpHandleType)
    iterator_interchange = prop_def(DenseArrayBase.constr(i64))
    transformed = result_def(base.TransformOpHandleType)
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$target `iterator_interchange` `=` custom<IntegerList>($iterator_interchange) attr-dict"
        " `:` functional-type(operands, results)"
    )
    custom_directives = (IntegerList,)

    def __init__(self, target: SSAValue, interchange: Sequence[int]):
        super().__init__(
            operands=[target],
            properties={"iterator_interchange": DenseArrayBase.from_list(i64, list(interchange))},
            result_types=[ANY_OP],
        )


@irdl_op_definition
class ConvertToLoopsOp(IRDLOperation):
    """Make loops around scalars of a structured op.
    https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredconvert_to_loops
    """

    name = "transform.structured.convert_to_loops"
    target = operand_def(base.TransformOpHandleType)
    result = result_def(base.TransformOpHandleType)
    assembly_format = "$target attr-dict `:` functional-type(operands, results)"

    def __init__(self, target: SSAValue):
        super().__init__(operands=[target], result_types=[ANY_OP])


OPS = (LoopUnrollOp, LoopPeelOp, LoopCoalesceOp, InterchangeOp, ConvertToLoopsOp)
"""All of them."""
