# SPDX-License-Identifier: Apache-2.0
"""
Numbers that are known when a kernel is compiled: sizes, constants, and what is computed of numbers alone.

They are computed as Python computes them, integers exactly and others in f64, and rounded once where they meet a type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.syntax import Binary, Call, Expression, Name, Node, Number, Slice, Unary

Value: TypeAlias = int | float | bool
"""A number, or whether something holds."""
Numbers: TypeAlias = Mapping[str, Value]
"""Sizes and constants by their names."""

NAMED: Numbers = {"inf": math.inf, "nan": math.nan, "pi": math.pi, "true": True, "false": False}
"""Numbers that have a name in every kernel."""

_MOST_BITS = 64
"""An integer that needs more is no size, and no element either."""

_BINARY: Mapping[str, Callable[[Any, Any], Value]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
}


def _largest(a: Value, b: Value) -> Value:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _smallest(a: Value, b: Value) -> Value:
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


def _logarithm(x: float) -> float:
    return math.log(x)


def _rounded(x: float) -> int:
    return round(x)


def _reciprocal(x: float) -> float:
    return 1 / x


def _reciprocal_root(x: float) -> float:
    return 1 / math.sqrt(x)


def _shifted_left(x: int, by: int) -> int:
    # Without this a shift by ten digits takes all memory.
    if by > _MOST_BITS:
        raise OverflowError
    return x << by


def _shifted_right(x: int, by: int) -> int:
    return x >> by


def _sigmoid(x: float) -> float:
    return 0.5 + 0.5 * math.tanh(0.5 * x)


def _sign(x: Value) -> int:
    return (x > 0) - (x < 0)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("ceil", "cos", "erf", "exp", "expm1", "floor", "log1p", "pow")},
    **{name: getattr(math, name) for name in ("sin", "sqrt", "tan", "tanh")},
    "abs": abs,
    "log": _logarithm,
    "max": _largest,
    "min": _smallest,
    "reciprocal": _reciprocal,
    "round": _rounded,
    "rsqrt": _reciprocal_root,
    "shl": _shifted_left,
    "shr": _shifted_right,
    "sigmoid": _sigmoid,
    "sign": _sign,
}


def number_of(node: Node, names: Numbers) -> Value | None:
    """
    The number that an expression is; None where it is made of anything but numbers.

    Raises Fault for a number that does not exist, such as 1 / 0, and for an integer of more than 64 bits.
    """
    match node:
        case Number():
            number = int(node.text) if node.text.isdecimal() else float(node.text)
            if number == math.inf:
                raise Fault(f"{node.text} does not fit into f64", node, ["inf is a number of every type of floats"])
            return _bounded(number, node)
        case Name():
            return names.get(node.name, NAMED.get(node.name))
        case Call() if not node.arguments or node.function not in _FUNCTIONS:
            return None
        case Unary() | Binary() | Call():
            read: list[Value] = []
            for part in _parts(node):
                if (found := number_of(part, names)) is None:
                    return None
                read.append(found)
            return applied(node, read)
        case _:
            return None


def applied(node: Unary | Binary | Call, values: Sequence[Value]) -> Value:
    """What an operation on numbers is, of the values of its operands. Raises Fault as `number_of` does."""
    match node:
        case Unary():
            return _bounded(-values[0] if node.operator == "-" else not values[0], node)
        case Binary():
            function = _power if node.operator == "**" else _BINARY[node.operator]
        case Call():
            function = _FUNCTIONS[node.function]
    try:
        return _bounded(function(*values), node)
    except (ArithmeticError, ValueError):
        raise Fault("there is no such number", node) from None
    except TypeError:
        raise Fault(
            f"{node.function if isinstance(node, Call) else 'this'} does not take these numbers", node
        ) from None


def _bounded(value: Value, node: Node) -> Value:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise Fault(f"this integer has more than {_MOST_BITS} bits", node)
    return value


def integer_of(node: Expression | Slice, names: Numbers, what: str) -> int:
    """
    The integer that an expression is, which serves as `what`.

    Raises Fault for a name that is no number, and for what is no integer.
    """
    if isinstance(node, Name) and node.name not in names and node.name not in NAMED:
        notes = [f"sizes: {', '.join(names) or 'none'}", "a bare name in the shape of a parameter is a size"]
        raise Fault(f'unknown size "{node.name}"', node, notes)
    value = number_of(node, names)
    if value is None:
        for part in (part for part in _parts(node) if isinstance(part, Name)):
            integer_of(part, names, what)
        raise Fault(f"{what} must be made of sizes, constants and integers", node)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Fault(f"{what} must be an integer, not {value}", node)
    return value


def _parts(node: Node) -> list[Node]:
    match node:
        case Unary():
            return [node.operand]
        case Binary():
            return [node.left, node.right]
        case Call():
            return list(node.arguments)
        case _:
            return []


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        # Without this an exponent of ten digits takes all memory.
        if exponent * base.bit_length() > 2 * _MOST_BITS:
            raise OverflowError
        return base**exponent
    return math.pow(base, exponent)
