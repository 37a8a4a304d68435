# SPDX-License-Identifier: Apache-2.0
"""
Whether a reducer may be applied in any order: it is computed on samples, and refused if they contradict a law.

A reduction combines its terms in an order that the compiler chooses, in parts that start from the identity. That a
reducer is associative and commutative, and its identity, are tested where it is defined, on some numbers of each kind
of elements that it takes, in f64 or on unbounded integers. Rounding is no contradiction, and where there is no number,
as at a division by zero, nothing is tested. A reducer that passes may still be wrong at numbers that are no samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product

from xdsl.dialects.builtin import Float16Type, Float32Type, IntegerType, i1
from xdsl.ir import Attribute

from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import Value, applied, number_of
from penstock.lowering.from_kernel.reductions import reduction_of
from penstock.lowering.from_kernel.syntax import Binary, Call, Expression, Function, Name, Reducer, Unary

_TOLERANCE = 1e-9
"""Of what f64 rounds, relative to the largest number."""
_SAMPLES: Mapping[str, tuple[Value, ...]] = {
    "float": (1.0, 2.0, 0.0, -1.0, 0.25, -3.0),
    "integer": (1, 2, 0, -1, 6, -7),
    "bool": (True, False),
}
_TYPES: Mapping[str, tuple[Attribute, ...]] = {
    "float": (Float32Type(), Float16Type()),
    "integer": (IntegerType(32), IntegerType(64), IntegerType(8)),
    "bool": (i1,),
}


def require_laws(reducer: Reducer, functions: Mapping[str, Function]) -> None:
    """Raise Fault, with the numbers that show it, for a reducer whose terms may not be combined in any order."""
    kinds = list(_kinds(reducer, functions))
    if not kinds:
        # Of no kind of elements: what is wrong with floats says why.
        reduction_of(reducer, Float32Type(), functions)
    for kind in kinds:
        _Combination(reducer, functions, kind).require_laws()


def _kinds(reducer: Reducer, functions: Mapping[str, Function]) -> Iterator[str]:
    """The kinds of elements that a reducer takes."""
    for kind, types in _TYPES.items():
        for element in types:
            try:
                reduction_of(reducer, element, functions)
            except Fault:
                continue
            yield kind
            break


_ANY_ORDER = "the terms of a reduction are combined in any order; a for loop combines them one after the other"


class _Combination:
    """What a reducer makes of two numbers of a kind."""

    def __init__(self, reducer: Reducer, functions: Mapping[str, Function], kind: str):
        self._reducer = reducer
        self._functions = functions
        self._kind = kind
        self._known: dict[tuple[Value, Value], Value | None] = {}

    def require_laws(self) -> None:
        """Raise Fault for a law that samples contradict."""
        reducer, samples = self._reducer, _SAMPLES[self._kind]
        name, of = reducer.name, self._of
        for a, b, c in product(samples, repeat=3):
            if self._differ(found := of(of(a, b), c), other := of(a, of(b, c))):
                equation = f"{name}({name}({a}, {b}), {c}) is {found}, and {name}({a}, {name}({b}, {c})) is {other}"
                raise self._fault(f"is not associative: {equation}", reducer.value)
        for a, b in product(samples, repeat=2):
            if self._differ(found := of(a, b), other := of(b, a)):
                equation = f"{name}({a}, {b}) is {found}, and {name}({b}, {a}) is {other}"
                raise self._fault(f"is not commutative: {equation}", reducer.value)
        identity = number_of(reducer.identity, {})
        assert identity is not None
        for a in samples:
            if self._differ(found := of(identity, a), a):
                note = "what is done to each element stands in what is reduced: sum(i, abs(x[i]))"
                raise self._fault(f"has another identity: {name}({identity}, {a}) is {found}", reducer.identity, note)

    def _fault(self, message: str, at: Expression, note: str = _ANY_ORDER) -> Fault:
        return Fault(f'the reducer "{self._reducer.name}" {message}', at, [note])

    def _differ(self, a: Value | None, b: Value | None) -> bool:
        """Whether two numbers differ by more than rounding; not where there is none."""
        if a is None or b is None or math.isnan(a) or math.isnan(b) or a == b:
            return False
        if self._kind != "float" or not (math.isfinite(a) and math.isfinite(b)):
            return True
        return abs(a - b) > _TOLERANCE * max(1, abs(a), abs(b))

    def _of(self, a: Value | None, b: Value | None) -> Value | None:
        """The combination of two numbers; None where there is none."""
        if a is None or b is None:
            return None
        if (a, b) not in self._known:
            try:
                found = self._value(self._reducer.value, {self._reducer.left: a, self._reducer.right: b})
            except Fault:
                found = None
            self._known[a, b] = found
        return self._known[a, b]

    def _value(self, node: Expression, names: Mapping[str, Value]) -> Value:
        """An expression of scalars, computed as its IR would be, but for rounding. Raises Fault where there is none."""
        match node:
            case Call(function="cast", arguments=(Name(name=type), inner)) if isinstance(inner, Expression):
                return _cast(type, self._value(inner, names), node)
            case Call(function="select", arguments=(condition, *cases)):
                return self._value(_plain(cases[0 if self._value(_plain(condition), names) else 1]), names)
            case Call() if (function := self._functions.get(node.function)) is not None:
                values = (self._value(_plain(each), names) for each in node.arguments)
                return self._value(function.value, dict(zip(function.parameters, values, strict=True)))
            case Call():
                return applied(node, [self._value(_plain(each), names) for each in node.arguments])
            case Unary():
                return applied(node, [self._value(node.operand, names)])
            case Binary():
                left, right = self._value(node.left, names), self._value(node.right, names)
                if node.operator == "/" and self._kind == "integer":
                    return _truncated(left, right, node)
                return applied(node, [left, right])
            case _:
                found = number_of(node, names)
                if found is None:
                    raise Fault("there is no such number", node)
                return found


def _plain(node: object) -> Expression:
    assert isinstance(node, Expression)
    return node


def _truncated(left: Value, right: Value, node: Binary) -> Value:
    """The quotient rounded towards zero."""
    if right == 0:
        raise Fault("there is no such number", node)
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _cast(type: str, value: Value, node: Call) -> Value:
    if type == "bool":
        return bool(value)
    if type.startswith(("f", "bf")):
        return float(value)
    if not math.isfinite(value):
        raise Fault("there is no such number", node)
    return int(value)
