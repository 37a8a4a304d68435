"""
Numbers that are known when a kernel is compiled: sizes, constants, and what is computed of numbers alone.

They are computed as Python computes them, integers exactly and others in f64, and rounded once where they meet a type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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


def _reciprocal(x: float) -> float:
    return 1 / x


def _reciprocal_root(x: float) -> float:
    return 1 / math.sqrt(x)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "pow")},
    **{name: getattr(math, name) for name in ("sin", "sqrt", "tan", "tanh")},
    "abs": abs,
    "max": max,
    "min": min,
    "reciprocal": _reciprocal,
    "round": round,
    "rsqrt": _reciprocal_root,
}


def number_of(node: Node, names: Numbers) -> Value | None:
    """
    The number that an expression is; None where it is made of anything but numbers.

    Raises Fault for a number that does not exist, such as 1 / 0, and for an integer of more than 64 bits.
    """
    match node:
        case Number():
            value = int(node.text) if node.text.isdecimal() else float(node.text)
        case Name():
            return names.get(node.name, NAMED.get(node.name))
        case Unary():
            if (operand := number_of(node.operand, names)) is None:
                return None
            value = -operand if node.operator == "-" else not operand
        case Binary():
            left, right = number_of(node.left, names), number_of(node.right, names)
            if left is None or right is None:
                return None
            value = _computed(node, _power if node.operator == "**" else _BINARY[node.operator], left, right)
        case Call() if node.arguments and node.function in _FUNCTIONS:
            read: list[Value] = []
            for argument in node.arguments:
                if (found := number_of(argument, names)) is None:
                    return None
                read.append(found)
            value = _computed(node, _FUNCTIONS[node.function], *read)
        case _:
            return None
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise Fault(f"this integer has more than {_MOST_BITS} bits", node)
    return value


def integer_of(node: Expression | Slice, names: Numbers, what: str) -> int:
    """
    The integer that an expression is, which serves as `what`.

    Raises Fault for a name that is no number, and for what is no integer.
    """
    if isinstance(node, Name) and node.name not in names and node.name not in NAMED:
        raise Fault(f'unknown size "{node.name}"', node, [f"sizes: {', '.join(names) or 'none'}"])
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


def _computed(node: Node, function: Callable[..., Value], *values: Value) -> Value:
    try:
        return function(*values)
    except (ArithmeticError, ValueError):
        raise Fault("there is no such number", node) from None
    except TypeError:
        raise Fault(
            f"{node.function if isinstance(node, Call) else 'this'} does not take these numbers", node
        ) from None
