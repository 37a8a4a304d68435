"""The scalar part of a tensor expression: from its syntax tree to `arith` and `math` operations in a body."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lark import Token, Tree
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import did_you_mean

Node = Tree[Token]

_FLOATS: tuple[AnyFloat, ...] = (
    BFloat16Type(),
    Float8E4M3FNType(),
    Float8E5M2Type(),
    Float16Type(),
    Float32Type(),
    Float64Type(),
)
_FLOAT_NAMES = {str(each): each for each in _FLOATS}

_FLOAT_OPS: dict[str, type[IRDLOperation]] = {
    "add": arith.AddfOp,
    "sub": arith.SubfOp,
    "mul": arith.MulfOp,
    "max": arith.MaximumfOp,
    "min": arith.MinimumfOp,
    "exp": math.ExpOp,
    "reciprocal": arith.DivfOp,
}
_INTEGER_OPS: dict[str, type[IRDLOperation]] = {
    "add": arith.AddiOp,
    "sub": arith.SubiOp,
    "mul": arith.MuliOp,
    "max": arith.MaxSIOp,
    "min": arith.MinSIOp,
    "shr": arith.ShRSIOp,
}
_ARITY = {"max": 2, "min": 2, "shr": 2, "exp": 1, "reciprocal": 1}
_FUNCTIONS = ("cast", *_ARITY)


class ExpressionFault(Exception):
    """What is wrong with an expression, and at which column of its text, counted from 0."""

    def __init__(self, message: str, column: int, notes: tuple[str, ...] = ()):
        super().__init__(message)
        self.message = message
        self.column = column
        self.notes = notes


def column_of(node: Node | Token) -> int:
    """The column at which a part of an expression begins, counted from 0."""
    column = node.column if isinstance(node, Token) else node.meta.column
    assert column is not None
    return column - 1


def scalar_type(name: str) -> IntegerType | AnyFloat | None:
    """The element type called `name` in a machine file (`i8`, `f32`, ...), or None if there is none."""
    if re.fullmatch(r"i[1-9][0-9]?", name):
        return IntegerType(int(name[1:]))
    return _FLOAT_NAMES.get(name)


class ScalarBuilder:
    """
    Appends the operations of an expression to `body`, whose arguments `values` names.

    A number takes the type of what it stands beside; everything else must agree in type, and `cast` converts.
    Raises ExpressionFault where that does not hold.
    """

    def __init__(self, body: Block, values: Mapping[str, SSAValue]):
        self.body = body
        self.values = values

    def assign(self, value: Node, out: SSAValue, *, accumulates: bool) -> SSAValue:
        """The element that `out = value` or `out += value` stores."""
        found = self._type_of(value)
        if found is not None and found != out.type:
            raise ExpressionFault(
                f"the right side is {found}, but the left {out.type}",
                column_of(value),
                (f"cast({out.type}, ...) converts it",),
            )
        result = self._emit(value, out.type)
        return self._apply("add", out, result) if accumulates else result

    def _type_of(self, node: Node) -> Attribute | None:
        """The type of a part, or None for one made of numbers only, which fits any type."""
        match node.data, node.children:
            case "number", _:
                return None
            case "reference" | "name", [Token() as name, *_]:
                return self.values[str(name)].type
            case "cast", [Token() as name, _]:
                return self._named_type(name)
            case "call", [Token() as name, *arguments]:
                self._check_call(name, len(arguments))
                return self._common_type(node, arguments)
            case _:
                return self._common_type(node, node.children)

    def _common_type(self, node: Node, parts: list[Node | Token]) -> Attribute | None:
        known: Attribute | None = None
        for part in parts:
            assert isinstance(part, Tree)
            found = self._type_of(part)
            if known is not None and found is not None and known != found:
                raise ExpressionFault(f"{known} meets {found}", column_of(node), ("cast(type, x) converts",))
            known = known or found
        return known

    def _named_type(self, name: Token) -> IntegerType | AnyFloat:
        found = scalar_type(str(name))
        if found is None:
            raise ExpressionFault(f'unknown type "{name}"', column_of(name))
        return found

    def _check_call(self, name: Token, arguments: int) -> None:
        if name not in _ARITY:
            near = did_you_mean(str(name), _FUNCTIONS)
            note = near or f"the functions are {', '.join(_FUNCTIONS)}"
            raise ExpressionFault(f'unknown function "{name}"', column_of(name), (note,))
        if arguments != _ARITY[str(name)]:
            raise ExpressionFault(f"{name} takes {_ARITY[str(name)]} arguments, not {arguments}", column_of(name))

    def _emit(self, node: Node | Token, expected: Attribute) -> SSAValue:
        """The value of a part, whose type is `expected` as far as it does not know its own."""
        assert isinstance(node, Tree)
        match node.data, node.children:
            case "number", [Token() as number]:
                return self._constant(number, str(number), expected)
            case "negate", [Tree(data="number", children=[Token() as number])]:
                return self._constant(number, f"-{number}", expected)
            case "reference" | "name", [Token() as name, *_]:
                return self.values[str(name)]
            case "cast", [Token() as name, Tree() as inner]:
                target = self._named_type(name)
                return self._cast(self._emit(inner, self._type_of(inner) or target), target)
            case _:
                return self._emit_operation(node, self._type_of(node) or expected)

    def _emit_operation(self, node: Node, dtype: Attribute) -> SSAValue:
        name, parts = node.data, list(node.children)
        if name == "call":
            name, parts = str(parts[0]), parts[1:]
        ops = _INTEGER_OPS if isa(dtype, IntegerType) else _FLOAT_OPS
        if name != "negate" and name not in ops:
            raise ExpressionFault(f"{name} is not defined on {dtype}", column_of(node))
        values = [self._emit(part, dtype) for part in parts]
        match name:
            case "negate" if isa(dtype, IntegerType):
                return self._apply("sub", self._number(0, dtype), values[0])
            case "negate":
                return self._append(arith.NegfOp(values[0]))
            case "reciprocal":
                return self._apply(name, self._number(1, dtype), values[0])
            case _:
                return self._apply(name, *values)

    def _apply(self, name: str, *values: SSAValue) -> SSAValue:
        dtype = values[0].type
        op_type = (_INTEGER_OPS if isa(dtype, IntegerType) else _FLOAT_OPS)[name]
        return self._append(op_type.build(operands=values, result_types=[dtype]))

    def _append(self, op: Operation) -> SSAValue:
        self.body.add_op(op)
        return op.results[0]

    def _constant(self, token: Token, text: str, dtype: Attribute) -> SSAValue:
        if not isa(dtype, IntegerType):
            return self._number(float(text), dtype)
        width = dtype.width.data
        if not text.lstrip("-").isdecimal():
            raise ExpressionFault(f"{text} is no integer, but meets {dtype}", column_of(token))
        if not -(1 << (width - 1)) <= int(text) < 1 << (width - 1):
            raise ExpressionFault(f"{text} does not fit into {dtype}", column_of(token))
        return self._number(int(text), dtype)

    def _number(self, value: float, dtype: Attribute) -> SSAValue:
        if isa(dtype, IntegerType):
            return self._append(arith.ConstantOp(IntegerAttr(int(value), dtype)))
        assert isinstance(dtype, AnyFloat)
        return self._append(arith.ConstantOp(FloatAttr(float(value), dtype)))

    def _cast(self, value: SSAValue, target: IntegerType | AnyFloat) -> SSAValue:
        source = value.type
        if source == target:
            return value
        op_type: type[IRDLOperation]
        match source, target:
            case IntegerType(), IntegerType():
                wider = target.width.data > source.width.data
                op_type = arith.ExtSIOp if wider else arith.TruncIOp
            case IntegerType(), _:
                op_type = arith.SIToFPOp
            case _, IntegerType():
                op_type = arith.FPToSIOp
            case _:
                assert isinstance(source, AnyFloat)
                assert isinstance(target, AnyFloat)
                op_type = arith.ExtFOp if target.bitwidth > source.bitwidth else arith.TruncFOp
        return self._append(op_type.build(operands=[value], result_types=[target]))
