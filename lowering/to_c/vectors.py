"""
Vectors of GCC and Clang in generated C: what a tile of the registers is kept in, so that no compiler has to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xdsl.dialects import arith, math
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.lowering.to_c.text import Expr
from penstock.lowering.to_c.types import CType, attribute_number, literal

_INFIX: dict[type[Operation], str] = {arith.AddfOp: "+", arith.SubfOp: "-", arith.MulfOp: "*"}


@dataclass(frozen=True)
class VectorType:
    """So many elements of a type side by side."""

    element: CType
    lanes: int

    @property
    def helper(self) -> str:
        """The key of its helpers in the prelude."""
        return f"vector_{self.element.name}x{self.lanes}"

    @property
    def name(self) -> str:
        return f"pen_{self.element.name}x{self.lanes}"

    def at(self, lvalue: str) -> str:
        """The vector that begins at an element in memory."""
        return f"*({self.name} *)&{lvalue}"

    def load(self, lvalue: str) -> str:
        """The same, only read."""
        return f"*(const {self.name} *)&{lvalue}"

    def splat(self, scalar: Expr) -> str:
        """A number in every lane."""
        return f"pen_splat_{self.element.name}x{self.lanes}({scalar.text})"

    def results(self, body: Block, values: Mapping[SSAValue, Expr], outside: Callable[[SSAValue], Expr]) -> list[Expr]:
        """What a body yields, given its arguments as vectors and what is `outside` as scalars."""
        known = dict(values)

        def value(operand: SSAValue) -> Expr:
            return known[operand] if operand in known else Expr(self.splat(outside(operand)), is_atom=True)

        for op in body.ops:
            if isinstance(op, arith.ConstantOp):
                number = attribute_number(op.value)
                assert number is not None
                known[op.result] = Expr(self.splat(literal(self.element, number)), is_atom=True)
            elif isinstance(op, math.FmaOp):
                texts = ", ".join(value(operand).text for operand in op.operands)
                known[op.results[0]] = Expr(f"pen_fma_{self.element.name}x{self.lanes}({texts})", is_atom=True)
            elif not isinstance(op, YieldOp):
                left, right = (value(operand).atom for operand in op.operands)
                known[op.results[0]] = Expr(f"{left} {_INFIX[type(op)]} {right}")
        terminator = body.last_op
        assert terminator is not None
        return [value(operand) for operand in terminator.operands]


def is_vectorizable(body: Block, element: CType) -> bool:
    """Whether a body computes on nothing but elements of one type, in which vectors do what scalars do."""
    known = (arith.ConstantOp, math.FmaOp, YieldOp, *_INFIX)
    values = [*body.args, *(result for op in body.ops for result in op.results)]
    return (
        element.name in ("f32", "f64")
        and all(isinstance(op, known) for op in body.ops)
        and all(str(value.type) == element.name for value in values)
    )
