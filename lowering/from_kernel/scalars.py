# SPDX-License-Identifier: Apache-2.0
"""
Scalar expressions, appended to the body of a `linalg.generic`: the right sides of kernels and of machine files.

A number takes the type of what it stands beside; everything else must agree in type, and `cast` converts. Integers are
signless in the IR: the type of an expression knows whether they are signed, and each operation says it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    LocationAttr,
    Signedness,
    i1,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import Numbers, Value, number_of
from penstock.lowering.from_kernel.syntax import Binary, Call, Expression, Function, Name, Node, Position, Unary
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import signless

_FLOATS: dict[str, AnyFloat] = {
    str(each): each
    for each in (BFloat16Type(), Float8E4M3FNType(), Float8E5M2Type(), Float16Type(), Float32Type(), Float64Type())
}


def element_called(name: str) -> IntegerType | AnyFloat | None:
    """The element type of a name: `f32`, `i8`, `ui8`, `bool`; None if there is none."""
    if name == "bool":
        return i1
    if (found := re.fullmatch(r"(u?)i([1-9][0-9]?)", name)) is not None:
        return IntegerType(int(found[2]), Signedness.UNSIGNED if found[1] else Signedness.SIGNLESS)
    return _FLOATS.get(name)


def name_of(element: Attribute) -> str:
    """What an element type is called."""
    return "bool" if element == i1 else "an index" if isinstance(element, IndexType) else str(element)


@dataclass(frozen=True)
class Operand:
    """What a part of an expression stands for: an element that is read, with its type."""

    element: Attribute
    value: SSAValue | None = None
    """None while only types are asked for."""


def require_element(number: Value, element: Attribute, node: Node) -> None:
    """Raise Fault unless a number of the text is one of an element type, or is one of floats once it is rounded."""
    if element == i1:
        if not isinstance(number, bool):
            raise Fault(f"{number} meets bool", node, ["true and false are the numbers of bool"])
        return
    if isinstance(number, bool):
        raise Fault(f"a bool meets {name_of(element)}", node, ["cast(type, x) converts"])
    if isinstance(element, AnyFloat):
        fits = not math.isfinite(number) or _is_finite(float(number), element)
    elif not isinstance(number, int):
        whole = math.isfinite(number) and number.is_integer()
        notes = [f"write {int(number)}"] if whole else []
        raise Fault(f"{number} is no integer, but meets {name_of(element)}", node, notes)
    elif isa(element, IntegerType):
        span = 1 << element.width.data
        low = 0 if is_unsigned(element) else -span // 2
        fits = low <= number < low + span
    else:
        fits = True
    if not fits:
        raise Fault(f"{number} does not fit into {element}", node)


def _is_finite(number: float, element: AnyFloat) -> bool:
    """Whether a finite number is one still where it is rounded to a type."""
    try:
        return math.isfinite(element.unpack(element.pack((number,)), 1)[0])
    except OverflowError:
        return False


_Emit: TypeAlias = Callable[[Body, tuple[SSAValue, ...]], SSAValue]


@dataclass(frozen=True)
class _Scalar:
    """A function of scalars of one type: how many, of which kinds, and what it becomes."""

    arity: int
    emit: _Emit
    of: str = "any"
    """`float`, `integer`, `bool` or `any`."""


def _named(function: str) -> _Emit:
    return lambda body, xs: body.apply(function, *xs)


def _reciprocal(body: Body, x: SSAValue) -> SSAValue:
    return body.div(body.like(1, x), x)


def _sigmoid(body: Body, xs: tuple[SSAValue, ...]) -> SSAValue:
    one = body.like(1, xs[0])
    return body.div(one, body.add(one, body.exp(body.neg(xs[0]))))


def _quotient(body: Body, xs: tuple[SSAValue, ...]) -> SSAValue:
    """The quotient rounded down."""
    if isinstance(xs[0].type, AnyFloat):
        return body.apply("floor", body.div(*xs))
    return body.div(*xs) if body.unsigned else body.emit(arith.FloorDivSIOp(xs[0], xs[1]))


def _remainder(body: Body, xs: tuple[SSAValue, ...]) -> SSAValue:
    """What is left of x after the quotient rounded down, with the sign of the divisor."""
    return body.sub(xs[0], body.mul(_quotient(body, xs), xs[1]))


_OF_FLOATS = ("ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "round", "sin", "sqrt", "tan", "tanh")
FUNCTIONS: Mapping[str, _Scalar] = {
    **{name: _Scalar(1, _named(name), "float") for name in _OF_FLOATS},
    "abs": _Scalar(1, _named("abs")),
    "max": _Scalar(2, _named("max")),
    "min": _Scalar(2, _named("min")),
    "pow": _Scalar(2, _named("pow")),
    "reciprocal": _Scalar(1, lambda body, xs: _reciprocal(body, *xs), "float"),
    "rsqrt": _Scalar(1, lambda body, xs: _reciprocal(body, body.sqrt(xs[0])), "float"),
    "shl": _Scalar(2, _named("shift_left"), "integer"),
    "shr": _Scalar(2, _named("shift_right"), "integer"),
    "sigmoid": _Scalar(1, _sigmoid, "float"),
    "sign": _Scalar(1, _named("sign")),
}
"""Functions of scalars; `cast(type, x)` and `select(condition, x, y)` are beside them."""
_ARITY = {name: each.arity for name, each in FUNCTIONS.items()} | {"cast": 2, "select": 3}
SCALAR_NAMES = tuple(_ARITY)
"""All that may be called in a scalar expression, but for functions and reductions of one's own."""

_OPERATORS: Mapping[str, _Scalar] = {
    "+": _Scalar(2, _named("add")),
    "-": _Scalar(2, _named("sub")),
    "*": _Scalar(2, _named("mul")),
    "/": _Scalar(2, _named("div")),
    "//": _Scalar(2, _quotient),
    "%": _Scalar(2, _remainder),
    "**": _Scalar(2, _named("pow")),
    "and": _Scalar(2, _named("and"), "bool"),
    "or": _Scalar(2, _named("or"), "bool"),
}
_SQUARE = _Scalar(1, lambda body, xs: body.mul(xs[0], xs[0]))
_RELATIONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_FITS: Mapping[str, Callable[[Attribute], bool]] = {
    "any": lambda element: element != i1,
    "float": lambda element: isinstance(element, AnyFloat),
    "integer": lambda element: isa(element, IntegerType) and element != i1,
    "bool": lambda element: element == i1,
}


def unknown_function(node: Call, known: Sequence[str]) -> Fault:
    """The fault of a call of what is none of the functions that are known."""
    note = did_you_mean(node.function, known) or f"the functions are {', '.join(known)}"
    return Fault(f'unknown function "{node.function}"', node, [note])


class Scalars:
    """
    The types of the parts of an expression, and their values in a body.

    `operands` are the parts that are read, whole: `x[i]`, a name, a reduction. `functions` are those of the text, and
    `types` says which types may be named. `decide` says what a comparison of indices is if it is the same everywhere.
    """

    def __init__(
        self,
        operands: Mapping[Node, Operand],
        numbers: Mapping[str, Value],
        functions: Mapping[str, Function] | None = None,
        types: Callable[[str], Attribute | None] = element_called,
        locate: Callable[[Position], LocationAttr] | None = None,
        decide: Callable[[Binary], bool | None] = lambda node: None,
    ):
        self._operands = operands
        self._numbers: Numbers = numbers
        self._functions = functions or {}
        self._named_types = types
        self._locate = locate
        self._decide = decide
        self._types: dict[int, Attribute | None] = {}

    # types

    def type_of(self, node: Expression) -> Attribute | None:
        """The type of a part, or None for one made of numbers only, which fits any type. Raises Fault."""
        if id(node) not in self._types:
            self._types[id(node)] = self._type_of(node)
        return self._types[id(node)]

    def _type_of(self, node: Expression) -> Attribute | None:
        if (operand := self._operands.get(node)) is not None:
            return operand.element
        if number_of(node, self._numbers) is not None:
            return None
        match node:
            case Name():
                raise Fault(f'unknown name "{node.name}"', node)
            case Call():
                return self._type_of_call(node)
            case Unary():
                scalar = _Scalar(1, _named("neg"), "bool" if node.operator == "not" else "any")
                return self._fitting(node.operator, scalar, node, self.type_of(node.operand))
            case Binary(operator=sign) if sign in _RELATIONS:
                self._agreeing(node, (node.left, node.right))
                return i1
            case Binary():
                found = self._agreeing(node, (node.left, node.right))
                return self._fitting(node.operator, _OPERATORS[node.operator], node, found)
            case _:
                raise Fault("this is not a scalar", node)

    def _type_of_call(self, node: Call) -> Attribute | None:
        arguments = self.arguments(node)
        if (function := self._functions.get(node.function)) is not None:
            return self._inside(node, function).type_of(function.value)
        if node.function == "cast":
            self.type_of(arguments[1])
            return self._type_named(arguments[0])
        if node.function == "select":
            if self.type_of(arguments[0]) not in (i1, None):
                raise Fault(f"the condition is {name_of(self.type_of(arguments[0]) or i1)}, not bool", arguments[0])
            return self._agreeing(node, arguments[1:])
        return self._fitting(node.function, FUNCTIONS[node.function], node, self._agreeing(node, arguments))

    def arguments(self, node: Call) -> tuple[Expression, ...]:
        """The arguments of a call of a scalar function, which are as many as it takes. Raises Fault."""
        function = self._functions.get(node.function)
        if node.function in ("load", "store"):
            notes = ["x = load(y[i, :]) and store(y[i, :], x) copy tiles"]
            raise Fault(f"{node.function} stands alone, and not in an expression", node, notes)
        if function is None and node.function not in _ARITY:
            raise unknown_function(node, [*_ARITY, *self._functions])
        arity = _ARITY[node.function] if function is None else len(function.parameters)
        if len(node.arguments) != arity:
            plural = "" if arity == 1 else "s"
            raise Fault(f"{node.function} takes {arity} argument{plural}, not {len(node.arguments)}", node)
        plain = tuple(each for each in node.arguments if isinstance(each, Expression))
        if len(plain) != arity:
            raise Fault(f"{node.function} takes values, and no range of an index", node)
        return plain

    def _agreeing(self, node: Node, parts: tuple[Expression, ...]) -> Attribute | None:
        """The one type of all parts that have one."""
        known: Attribute | None = None
        for part in parts:
            found = self.type_of(part)
            if known is not None and found is not None and known != found:
                raise Fault(f"{name_of(known)} meets {name_of(found)}", node, ["cast(type, x) converts"])
            known = known or found
        return known

    def _fitting(self, name: str, scalar: _Scalar, node: Node, element: Attribute | None) -> Attribute | None:
        if element is not None and not _FITS[scalar.of](element):
            notes = ["cast(type, x) converts"] if isinstance(element, IndexType) or element == i1 else []
            raise Fault(f"{name} is not defined on {name_of(element)}", node, notes)
        return element

    def _type_named(self, node: Expression) -> Attribute:
        found = self._named_types(node.name) if isinstance(node, Name) else None
        if found is None:
            raise Fault(f'unknown type "{node.name}"' if isinstance(node, Name) else "a type is expected", node)
        return found

    def _inside(self, call: Call, function: Function, body: Body | None = None) -> Scalars:
        """The same within a function, whose parameters stand for the arguments; with values where there is a body."""
        operands: dict[Node, Operand] = {}
        numbers: dict[str, Value] = {}
        for name, argument in zip(function.parameters, self.arguments(call), strict=True):
            element = self.type_of(argument)
            if element is None:
                number = number_of(argument, self._numbers)
                assert number is not None
                numbers[name] = number
            else:
                value = None if body is None else self.emit(body, argument, element)
                operands[Name(name)] = Operand(element, value)
        return Scalars(operands, numbers, self._functions, self._named_types, self._locate)

    # values

    def emit(self, body: Body, node: Expression, expected: Attribute) -> SSAValue:
        """The value of a part, whose type is `expected` as far as it does not know its own."""
        if (operand := self._operands.get(node)) is not None:
            assert operand.value is not None
            return operand.value
        if self._locate is not None:
            body.location = self._locate(node.at)
        if (number := number_of(node, self._numbers)) is not None:
            return self._constant(body, node, number, expected)
        element = self.type_of(node) or expected
        match node:
            case Call() if (function := self._functions.get(node.function)) is not None:
                return self._inside(node, function, body).emit(body, function.value, element)
            case Call(function="cast", arguments=(_, inner)) if isinstance(inner, Expression):
                return self._cast(body, inner, element)
            case Call(function="select"):
                condition, left, right = self.arguments(node)
                if (chosen := self._known(condition)) is not None:
                    return self.emit(body, left if chosen else right, element)
                values = self.emit(body, condition, i1), self.emit(body, left, element), self.emit(body, right, element)
                return body.where(*values)
            case Call():
                return self._operation(body, FUNCTIONS[node.function], self.arguments(node), element, node)
            case Unary(operator="not"):
                return body.apply("bitwise_xor", self.emit(body, node.operand, i1), body.constant(1, i1))
            case Unary():
                return self._operation(body, _Scalar(1, _named("neg")), (node.operand,), element, node)
            case Binary(operator=sign) if sign in _RELATIONS:
                if (known := self._known(node)) is not None:
                    return body.constant(known, i1)
                compared = self._agreeing(node, (node.left, node.right)) or element
                relation = _Scalar(2, lambda body, xs: body.compare(_RELATIONS[sign], *xs), "any")
                return self._operation(body, relation, (node.left, node.right), compared, node)
            case Binary(operator="**") if number_of(node.right, self._numbers) == 2:
                return self._operation(
                    body, _Scalar(1, lambda body, xs: body.mul(xs[0], xs[0])), (node.left,), element, node
                )
            case Binary():
                return self._operation(body, _OPERATORS[node.operator], (node.left, node.right), element, node)
            case _:
                raise Fault("this is not a scalar", node)

    def _known(self, node: Expression) -> bool | None:
        """What a condition on indices is, if it is the same everywhere."""
        match node:
            case Binary(operator="and" | "or" as sign):
                sides = self._known(node.left), self._known(node.right)
                if (sign == "or") in sides:
                    return sign == "or"
                return None if None in sides else sign == "and"
            case Unary(operator="not"):
                known = self._known(node.operand)
                return None if known is None else not known
            case Binary(operator=sign) if sign in _RELATIONS and isinstance(
                self._agreeing(node, (node.left, node.right)), IndexType
            ):
                return self._decide(node)
            case _:
                return None

    def _operation(
        self, body: Body, scalar: _Scalar, parts: tuple[Expression, ...], element: Attribute, node: Node
    ) -> SSAValue:
        values = tuple(self.emit(body, part, element) for part in parts)
        body.unsigned = is_unsigned(element)
        if self._locate is not None:
            body.location = self._locate(node.at)
        return scalar.emit(body, values)

    def _cast(self, body: Body, inner: Expression, target: Attribute) -> SSAValue:
        source = self.type_of(inner) or target
        value = self.emit(body, inner, source)
        if isinstance(source, IndexType):
            value, source = body.emit(arith.IndexCastOp(value, IntegerType(64))), IntegerType(64)
        body.unsigned = is_unsigned(source)
        return body.cast(value, signless(target), is_unsigned(target))

    def _constant(self, body: Body, node: Node, number: Value, element: Attribute) -> SSAValue:
        require_element(number, element, node)
        return body.constant(number, signless(element))
