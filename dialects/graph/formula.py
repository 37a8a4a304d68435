"""
Formulas of elementwise ops: what one element of the result is, stated once for all levels.

A formula is written on `Scalar`s. What they stand for is up to the `ScalarArithmetic` behind them: arrays in the
interpreter, scalars in the body of a `linalg.generic` in `graph-to-tensor`. The functions that every arithmetic has are
those of the ops that have no other formula than their own name, and `expm1`, `log1p` and `greater_or_equal`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class ScalarArithmetic(Protocol[T]):
    """What evaluates formulas on values of one kind."""

    def like(self, value: float, other: T) -> T:
        """The number `value` in the type of `other`."""
        ...

    def apply(self, function: str, *elements: T) -> T:
        """A function of elements, by name."""
        ...


@dataclass(frozen=True)
class Scalar(Generic[T]):
    """An element. Python numbers in its arithmetic become constants of its type."""

    value: T
    arithmetic: ScalarArithmetic[T]

    def number(self, value: float) -> Scalar[T]:
        """A number in the type of this element."""
        return Scalar(self.arithmetic.like(value, self.value), self.arithmetic)

    def apply(self, function: str, *others: Scalar[T] | float) -> Scalar[T]:
        """A function of this element and others."""
        values = [(each if isinstance(each, Scalar) else self.number(each)).value for each in others]
        return Scalar(self.arithmetic.apply(function, self.value, *values), self.arithmetic)

    def __add__(self, other: Scalar[T] | float) -> Scalar[T]:
        return self.apply("add", other)

    def __mul__(self, other: Scalar[T] | float) -> Scalar[T]:
        return self.apply("mul", other)

    def __radd__(self, other: float) -> Scalar[T]:
        return self.number(other) + self

    def __rmul__(self, other: float) -> Scalar[T]:
        return self.number(other) * self

    def __sub__(self, other: Scalar[T] | float) -> Scalar[T]:
        return self.apply("sub", other)

    def __rsub__(self, other: float) -> Scalar[T]:
        return self.number(other) - self

    def __rtruediv__(self, other: float) -> Scalar[T]:
        return self.number(other) / self

    def __truediv__(self, other: Scalar[T] | float) -> Scalar[T]:
        return self.apply("div", other)

    def __neg__(self) -> Scalar[T]:
        return self.apply("neg")

    def __lt__(self, other: Scalar[T] | float) -> Scalar[T]:
        return self.apply("less", other)

    def __gt__(self, other: Scalar[T] | float) -> Scalar[T]:
        return self.apply("greater", other)

    def __ge__(self, other: Scalar[T] | float) -> Scalar[T]:
        return self.apply("greater_or_equal", other)

    def __abs__(self) -> Scalar[T]:
        return self.apply("abs")

    def max(self, other: Scalar[T] | float) -> Scalar[T]:
        """The larger of the two; NaN if one of them is."""
        return self.apply("max", other)

    def min(self, other: Scalar[T] | float) -> Scalar[T]:
        """The smaller of the two; NaN if one of them is."""
        return self.apply("min", other)

    def clamp(self, low: float, high: float) -> Scalar[T]:
        """max(low, min(high, x)); a NaN stays."""
        return self.min(high).max(low)

    def where(self, then: Scalar[T], otherwise: Scalar[T]) -> Scalar[T]:
        """`then` where this, a truth value, holds, else `otherwise`."""
        return self.apply("where", then, otherwise)


def function(name: str) -> Callable[..., Any]:
    """The formula of an op that is a function which every arithmetic has."""

    def formula(op: object, first: Scalar[Any], *others: Scalar[Any]) -> Scalar[Any]:
        return first.apply(name, *others)

    return formula
