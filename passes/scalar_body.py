# SPDX-License-Identifier: Apache-2.0
"""
The scalar arithmetic in the body of a `linalg.generic`, written as expressions.

`Body` picks the op that the element type asks for: floats take the `f` ops, integers the `i` ops, and where
signedness matters the signed or the unsigned one. Constants stand in the body, so that a generic reads
nothing but its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    AnyFloat,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    f32,
    i1,
)
from xdsl.dialects.linalg.ops import IndexOp, YieldOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.upstream.arith import RemFOp


def constant_attribute(
    value: float, element: Attribute
) -> FloatAttr[AnyFloat] | IntegerAttr[IntegerType] | IntegerAttr[IndexType]:
    """The number `value` as a scalar attribute of a signless element type; integers wrap."""
    if isinstance(element, AnyFloat):
        return FloatAttr(float(value), element)
    if isinstance(element, IndexType):
        return IntegerAttr(int(value), element)
    assert isa(element, IntegerType)
    if element.width.data == 1:
        return IntegerAttr.from_bool(bool(value))
    return IntegerAttr(int(value), element, truncate_bits=True)


def lowest(element: Attribute, unsigned: bool) -> float:
    """The number below all others of a type: minus infinity, or the least integer."""
    if isinstance(element, AnyFloat):
        return float("-inf")
    assert isa(element, IntegerType)
    return 0 if unsigned or element.width.data == 1 else -(1 << (element.width.data - 1))


def highest(element: Attribute, unsigned: bool) -> float:
    """The number above all others of a type: infinity, or the greatest integer."""
    if isinstance(element, AnyFloat):
        return float("inf")
    assert isa(element, IntegerType)
    width = element.width.data
    return (1 << width) - 1 if unsigned or width == 1 else (1 << (width - 1)) - 1


_SCALAR_OPS: Mapping[str, type[Operation]] = {
    "acos": math.AcosOp,
    "acosh": math.AcoshOp,
    "and": arith.AndIOp,
    "asin": math.AsinOp,
    "asinh": math.AsinhOp,
    "atan": math.AtanOp,
    "atanh": math.AtanhOp,
    "bitwise_and": arith.AndIOp,
    "bitwise_or": arith.OrIOp,
    "bitwise_xor": arith.XOrIOp,
    "cos": math.CosOp,
    "cosh": math.CoshOp,
    "erf": math.ErfOp,
    "expm1": math.ExpM1Op,
    "floor": math.FloorOp,
    "log1p": math.Log1pOp,
    "mod": RemFOp,
    "or": arith.OrIOp,
    "round": math.RoundEvenOp,
    "shift_left": arith.ShLIOp,
    "sin": math.SinOp,
    "sinh": math.SinhOp,
    "tan": math.TanOp,
    "tanh": math.TanhOp,
}
"""The functions in formulas that are one scalar op, whatever the type; others are comparisons, or methods of `Body`."""

_RELATIONS = {"equal": "eq", "less": "lt", "greater": "gt", "greater_or_equal": "ge"}

Compute: TypeAlias = Callable[["Body", Sequence[SSAValue]], SSAValue]
"""Appends to the body of a generic what computes its element from its arguments, and returns it."""


class Body:
    """
    Appends scalar ops to the body of one generic.

    `unsigned` says how the integers among its arguments are read; it plays no part for floats.
    Ops are made at `location`.
    """

    def __init__(self, block: Block, location: LocationAttr, unsigned: bool = False):
        self.block = block
        self.location = location
        self.unsigned = unsigned

    def emit(self, op: Operation) -> SSAValue:
        """Append `op`, which has one result, and return it; a copy of another op keeps its location."""
        if op.location is UNKNOWN_LOC:
            op.location = self.location
        self.block.add_op(op)
        return op.results[0]

    def end(self, value: SSAValue) -> None:
        """Yield `value`."""
        self.block.add_op(YieldOp(value))

    def constant(self, value: float, element: Attribute) -> SSAValue:
        """The number `value`."""
        return self.emit(arith.ConstantOp(constant_attribute(value, element)))

    def like(self, value: float, other: SSAValue) -> SSAValue:
        """The number `value` in the type of `other`."""
        return self.constant(value, other.type)

    def index(self, dim: int) -> SSAValue:
        """The index of loop `dim`."""
        return self.emit(IndexOp(dim))

    def apply(self, function: str, *elements: SSAValue) -> SSAValue:
        """A function in a formula of an op, by name."""
        if (relation := _RELATIONS.get(function)) is not None:
            return self.compare(relation, *elements)
        if (scalar := _SCALAR_OPS.get(function)) is not None:
            return self.emit(scalar(*elements))
        return getattr(self, function)(*elements)

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a + b."""
        return self.emit(arith.AddfOp(a, b) if _is_float(a) else arith.AddiOp(a, b))

    def sub(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a - b."""
        return self.emit(arith.SubfOp(a, b) if _is_float(a) else arith.SubiOp(a, b))

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a * b."""
        return self.emit(arith.MulfOp(a, b) if _is_float(a) else arith.MuliOp(a, b))

    def div(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a / b; integers truncate towards zero."""
        if _is_float(a):
            return self.emit(arith.DivfOp(a, b))
        return self.emit(arith.DivUIOp(a, b) if self.unsigned else arith.DivSIOp(a, b))

    def max(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The larger of the two; NaN if one of them is."""
        if _is_float(a):
            return self.emit(arith.MaximumfOp(a, b))
        return self.emit(arith.MaxUIOp(a, b) if self._reads_unsigned(a) else arith.MaxSIOp(a, b))

    def min(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The smaller of the two; NaN if one of them is."""
        if _is_float(a):
            return self.emit(arith.MinimumfOp(a, b))
        return self.emit(arith.MinUIOp(a, b) if self._reads_unsigned(a) else arith.MinSIOp(a, b))

    def pow(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a to the power of b."""
        return self.emit(math.PowFOp(a, b) if _is_float(a) else math.IPowIOp(a, b))

    def compare(self, relation: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """`a relation b` as an i1, for `eq`, `ne`, `lt`, `le`, `gt`, `ge`; with a NaN only `ne` holds."""
        if _is_float(a):
            prefix = "u" if relation == "ne" else "o"
            return self.emit(arith.CmpfOp(a, b, prefix + relation))
        if relation not in ("eq", "ne"):
            relation = ("u" if self._reads_unsigned(a) else "s") + relation
        return self.emit(arith.CmpiOp(a, b, relation))

    def where(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """`a` where `condition` holds, else `b`."""
        return self.emit(arith.SelectOp(condition, a, b))

    def neg(self, a: SSAValue) -> SSAValue:
        """-a; integers wrap."""
        if _is_float(a):
            return self.emit(arith.NegfOp(a))
        return self.sub(self.like(0, a), a)

    def ceil(self, a: SSAValue) -> SSAValue:
        """-floor(-a): the math dialect at hand has no ceil."""
        return self.neg(self.emit(math.FloorOp(self.neg(a))))

    def abs(self, a: SSAValue) -> SSAValue:
        """The absolute value."""
        if _is_float(a):
            return self.emit(math.AbsFOp(a))
        return a if self.unsigned else self.emit(math.AbsIOp(a))

    def sign(self, a: SSAValue) -> SSAValue:
        """1 above 0 and -1 below, else a, which is 0 or NaN."""
        zero = self.like(0, a)
        above = self.compare("gt", a, zero)
        if self.unsigned:
            return self.where(above, self.like(1, a), a)
        below = self.where(self.compare("lt", a, zero), self.like(-1, a), a)
        return self.where(above, self.like(1, a), below)

    def shift_right(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The bits of a, b places down; what comes in is the sign, if there is one."""
        return self.emit(arith.ShRUIOp(a, b) if self.unsigned else arith.ShRSIOp(a, b))

    def exp(self, a: SSAValue) -> SSAValue:
        """e to the power of a."""
        return self.emit(math.ExpOp(a))

    def log(self, a: SSAValue) -> SSAValue:
        """The natural logarithm."""
        return self.emit(math.LogOp(a))

    def sqrt(self, a: SSAValue) -> SSAValue:
        """The square root."""
        return self.emit(math.SqrtOp(a))

    def clamp(self, a: SSAValue, low: float, high: float) -> SSAValue:
        """max(low, min(high, a)); a NaN stays."""
        return self.max(self.min(a, self.like(high, a)), self.like(low, a))

    def cast(self, a: SSAValue, target: Attribute, target_unsigned: bool) -> SSAValue:
        """
        `a` in the signless type `target`, which is read unsigned if `target_unsigned`.

        Floats to integers truncate towards zero, anything to i1 is `a != 0`, and i1 is 0 or 1.
        """
        source = a.type
        if source == target:
            return a
        if target == i1:
            return self.compare("ne", a, self.like(0, a))
        if isinstance(source, AnyFloat):
            if isinstance(target, AnyFloat):
                return self._cast_float(a, source, target)
            assert isa(target, IntegerType)
            convert = arith.FPToUIOp if target_unsigned else arith.FPToSIOp
            return self.emit(convert(a, target))
        from_unsigned = self._reads_unsigned(a)
        if isinstance(target, AnyFloat):
            convert = arith.UIToFPOp if from_unsigned else arith.SIToFPOp
            return self.emit(convert(a, target))
        assert isa(source, IntegerType)
        assert isa(target, IntegerType)
        if target.width.data < source.width.data:
            return self.emit(arith.TruncIOp(a, target))
        return self.emit(arith.ExtUIOp(a, target) if from_unsigned else arith.ExtSIOp(a, target))

    def widen(self, a: SSAValue, target: Attribute, from_unsigned: bool = False) -> SSAValue:
        """`a`, which is read unsigned if `from_unsigned`, in a signless type of its kind that is as wide or wider."""
        if a.type == target:
            return a
        if _is_float(a):
            return self.emit(arith.ExtFOp(a, target))
        assert isa(target, IntegerType)
        return self.emit(arith.ExtUIOp(a, target) if from_unsigned else arith.ExtSIOp(a, target))

    def from_index(self, a: SSAValue, target: AnyFloat) -> SSAValue:
        """An index as a float."""
        wide = self.emit(arith.IndexCastOp(a, IntegerType(64)))
        return self.emit(arith.SIToFPOp(wide, target))

    def _cast_float(self, a: SSAValue, source: AnyFloat, target: AnyFloat) -> SSAValue:
        if source.bitwidth == target.bitwidth or max(source.bitwidth, target.bitwidth) <= 8:
            # f16 and bf16, or two types of 8 bits or fewer: no op goes across, so through the type that holds both.
            return self.emit(arith.TruncFOp(self.emit(arith.ExtFOp(a, f32)), target))
        widens = source.bitwidth < target.bitwidth
        return self.emit(arith.ExtFOp(a, target) if widens else arith.TruncFOp(a, target))

    def _reads_unsigned(self, a: SSAValue) -> bool:
        # An i1 holds 0 or 1, and is not -1.
        return self.unsigned or a.type == i1


def _is_float(value: SSAValue) -> bool:
    return isinstance(value.type, AnyFloat)
