# SPDX-License-Identifier: Apache-2.0
"""
Formulas of elementwise ops: what one element of the result is, stated once for all levels.

A formula is written on `Scalar`s. What these are is up to the `ScalarArithmetic` that they carry: arrays in the
interpreter, scalars in the body of a `linalg.generic` in `graph-to-tensor`, tensors of the graph where a pass writes
graph ops as expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from penstock.dialects.diagnostics import did_you_mean

T = TypeVar("T")

FUNCTIONS: dict[str, str] = {
    "expm1": "e^x - 1, exact near 0.",
    "greater_or_equal": "a >= b.",
    "log1p": "log(1 + x), exact near 0.",
}
"""The functions that a formula may apply, by name, and what they are: these, and those of the ops that are one."""


class UnknownFunction(Exception):
    """A formula applies what is not in the table; `notes` say what is."""

    def __init__(self, name: str, known: Mapping[str, object]):
        super().__init__(f'a formula applies "{name}", which is no function')
        self.notes = [did_you_mean(name, known) or f"the functions are {', '.join(sorted(known))}"]


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

    KNOWN: ClassVar[Mapping[str, object]] = FUNCTIONS
    """The functions that there are."""

    value: T
    """What the arithmetic computes with: an array, a scalar of the IR, a term."""
    arithmetic: ScalarArithmetic[T]
    """What applies functions to values."""

    def number(self, value: float) -> Self:
        """A number in the type of this element."""
        return self._of(self.arithmetic.like(value, self.value))

    def apply(self, function: str, *others: Self | float) -> Self:
        """A function of this element and others; raises UnknownFunction."""
        if function not in self.KNOWN:
            raise UnknownFunction(function, self.KNOWN)
        values = [(each if isinstance(each, Scalar) else self.number(each)).value for each in others]
        return self._of(self.arithmetic.apply(function, self.value, *values))

    def __add__(self, other: Self | float) -> Self:
        return self.apply("add", other)

    def __mul__(self, other: Self | float) -> Self:
        return self.apply("mul", other)

    def __radd__(self, other: float) -> Self:
        return self.number(other) + self

    def __rmul__(self, other: float) -> Self:
        return self.number(other) * self

    def __sub__(self, other: Self | float) -> Self:
        return self.apply("sub", other)

    def __rsub__(self, other: float) -> Self:
        return self.number(other) - self

    def __rtruediv__(self, other: float) -> Self:
        return self.number(other) / self

    def __truediv__(self, other: Self | float) -> Self:
        return self.apply("div", other)

    def __neg__(self) -> Self:
        return self.apply("neg")

    def __lt__(self, other: Self | float) -> Self:
        return self.apply("less", other)

    def __gt__(self, other: Self | float) -> Self:
        return self.apply("greater", other)

    def __ge__(self, other: Self | float) -> Self:
        return self.apply("greater_or_equal", other)

    def __abs__(self) -> Self:
        return self.apply("abs")

    def max(self, other: Self | float) -> Self:
        """The larger of the two; NaN if one of them is."""
        return self.apply("max", other)

    def min(self, other: Self | float) -> Self:
        """The smaller of the two; NaN if one of them is."""
        return self.apply("min", other)

    def clamp(self, low: float, high: float) -> Self:
        """max(low, min(high, x)); a NaN stays."""
        return self.min(high).max(low)

    def where(self, then: Self | float, otherwise: Self | float) -> Self:
        """`then` where this, a truth value, holds, else `otherwise`; one of the two may be a number."""
        like = then if isinstance(then, Scalar) else otherwise
        assert isinstance(like, Scalar)
        chosen = [each if isinstance(each, Scalar) else like.number(each) for each in (then, otherwise)]
        return self.apply("where", *chosen)

    def _of(self, value: T) -> Self:
        return type(self)(value, self.arithmetic)


def function(name: str, meaning: str) -> Callable[..., Any]:
    """The formula of an op that is a function, which is one that other formulas may apply from now on."""
    FUNCTIONS[name] = meaning

    def formula(op: object, first: Scalar[Any], *others: Scalar[Any]) -> Scalar[Any]:
        return first.apply(name, *others)

    return formula
