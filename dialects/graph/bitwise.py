"""Operators on the bits of integers."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import AnyFloat, IntegerType
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, traits_def
from xdsl.utils.hints import isa

from penstock.dialects.graph.base import (
    TENSOR,
    Elements,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    Value,
    is_integer,
    require,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.broadcast import BinaryOp

INTEGERS = Elements("integers", is_integer)


@irdl_op_definition
class BitwiseAndOp(BinaryOp):
    """The bits that are set in both."""

    name = "graph.bitwise_and"
    ACCEPTS: ClassVar[Elements] = INTEGERS


@irdl_op_definition
class BitwiseOrOp(BinaryOp):
    """The bits that are set in either."""

    name = "graph.bitwise_or"
    ACCEPTS: ClassVar[Elements] = INTEGERS


@irdl_op_definition
class BitwiseXorOp(BinaryOp):
    """The bits that are set in one of the two."""

    name = "graph.bitwise_xor"
    ACCEPTS: ClassVar[Elements] = INTEGERS


@irdl_op_definition
class ShiftLeftOp(BinaryOp):
    """The bits of a, b places up; 0 if all are shifted out, as a negative b, read without a sign, does."""

    name = "graph.shift_left"
    ACCEPTS: ClassVar[Elements] = INTEGERS


@irdl_op_definition
class ShiftRightOp(BinaryOp):
    """The bits of a, b places down; what comes in is the sign, or 0 for integers without one."""

    name = "graph.shift_right"
    ACCEPTS: ClassVar[Elements] = INTEGERS


def _bytes_of(element: Attribute) -> int:
    """The bytes of an element whose bits may be read as another type; 0 for the types below a byte."""
    if isa(element, IntegerType):
        return 1 if element.width.data == 1 else element.width.data // 8
    assert isinstance(element, AnyFloat)
    return element.bitwidth // 8


@irdl_op_definition
class BitcastOp(GraphOp):
    """The bits of each element of `x`, read as the element type of the result; i1 is a byte that is 0 or 1."""

    name = "graph.bitcast"

    x = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.ELEMENTWISE))
    assembly_format = "$x attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, element_type: Attribute):
        super().__init__(x, result_type=self.infer(tensor_of(x), element_type))

    @classmethod
    def infer(cls, x: Tensor, element_type: Attribute) -> Tensor:
        """The shape of `x` with other elements."""
        before, after = _bytes_of(x.element_type), _bytes_of(element_type)
        require(
            before == after > 0,
            f"{cls.name} reads whole bytes, as many as there are: not {x.element_type} as {element_type}",
        )
        return tensor_type(element_type, x.get_shape())

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.result_type.element_type)
