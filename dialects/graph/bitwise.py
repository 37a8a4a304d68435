"""Operators on the bits of integers."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import irdl_op_definition

from penstock.dialects.graph.base import Elements, is_integer
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
