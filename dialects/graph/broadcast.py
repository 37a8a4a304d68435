"""Operators on two operands that broadcast by NumPy's rule, and `where` on three."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from xdsl.dialects.builtin import i1
from xdsl.irdl import irdl_op_definition, operand_def, traits_def

from penstock.dialects.graph.base import (
    ANY_ELEMENTS,
    BOOLS,
    FLOATS,
    NUMBERS,
    TENSOR,
    Elements,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    broadcast_shapes,
    require,
    same_element,
    tensor_type,
)
from penstock.dialects.graph.sizes import may_broadcast_to


class BinaryOp(GraphOp, ABC):
    """An op on the elements of `a` and `b`, which broadcast to the result by NumPy's rule."""

    ACCEPTS: ClassVar[Elements] = NUMBERS
    """The element types it is defined on."""

    a = operand_def(TENSOR)
    b = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.BROADCAST))
    assembly_format = "$a `,` $b attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, a: Tensor, b: Tensor) -> Tensor:
        """The broadcast shape with the elements of the operands."""
        cls.ACCEPTS.check(a, cls.name)
        element = same_element((a, b), cls.name)
        return tensor_type(element, broadcast_shapes(a.get_shape(), b.get_shape()))


@irdl_op_definition
class AddOp(BinaryOp):
    """a + b."""

    name = "graph.add"


@irdl_op_definition
class SubOp(BinaryOp):
    """a - b."""

    name = "graph.sub"


@irdl_op_definition
class MulOp(BinaryOp):
    """a * b."""

    name = "graph.mul"


@irdl_op_definition
class DivOp(BinaryOp):
    """a / b; integers truncate towards zero."""

    name = "graph.div"


@irdl_op_definition
class ModOp(BinaryOp):
    """The remainder of a / b with the sign of a, exact: C's `fmod`."""

    name = "graph.mod"
    ACCEPTS: ClassVar[Elements] = FLOATS


@irdl_op_definition
class PowOp(BinaryOp):
    """a to the power of b."""

    name = "graph.pow"


@irdl_op_definition
class MaxOp(BinaryOp):
    """The larger of the two; NaN if one of them is."""

    name = "graph.max"


@irdl_op_definition
class MinOp(BinaryOp):
    """The smaller of the two; NaN if one of them is."""

    name = "graph.min"


@irdl_op_definition
class PreluOp(BinaryOp):
    """a where a >= 0, else a * b: `b` is the slope, and broadcasts to the shape of `a`."""

    name = "graph.prelu"

    @classmethod
    def infer(cls, a: Tensor, b: Tensor) -> Tensor:
        """The type of `a`."""
        super().infer(a, b)
        require(
            may_broadcast_to(b.get_shape(), a.get_shape()),
            f"{cls.name}: the slope {b} does not broadcast to {a}",
        )
        return a


class CompareOp(BinaryOp, ABC):
    """A comparison: the result has i1 elements."""

    @classmethod
    def infer(cls, a: Tensor, b: Tensor) -> Tensor:
        """The broadcast shape with i1 elements."""
        return tensor_type(i1, super().infer(a, b).get_shape())


@irdl_op_definition
class EqualOp(CompareOp):
    """a == b."""

    name = "graph.equal"
    ACCEPTS: ClassVar[Elements] = ANY_ELEMENTS


@irdl_op_definition
class LessOp(CompareOp):
    """a < b."""

    name = "graph.less"


@irdl_op_definition
class GreaterOp(CompareOp):
    """a > b."""

    name = "graph.greater"


@irdl_op_definition
class AndOp(BinaryOp):
    """The logical and."""

    name = "graph.and"
    ACCEPTS: ClassVar[Elements] = BOOLS


@irdl_op_definition
class OrOp(BinaryOp):
    """The logical or."""

    name = "graph.or"
    ACCEPTS: ClassVar[Elements] = BOOLS


@irdl_op_definition
class WhereOp(GraphOp):
    """The element of `a` where `cond` is true, else that of `b`; all three broadcast."""

    name = "graph.where"

    cond = operand_def(TENSOR)
    a = operand_def(TENSOR)
    b = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.BROADCAST))
    assembly_format = "$cond `,` $a `,` $b attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """The broadcast shape of all three with the elements of `a` and `b`."""
        BOOLS.check(cond, f"the condition of {cls.name}")
        element = same_element((a, b), cls.name)
        shape = broadcast_shapes(cond.get_shape(), a.get_shape(), b.get_shape())
        return tensor_type(element, shape)
