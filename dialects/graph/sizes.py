# SPDX-License-Identifier: Apache-2.0
"""
Sizes that are not known yet: `?` in a type, as a value to compute with.

A shape is a tuple of numbers in which some may be a `Dim`: a polynomial in sizes that have a name (`N`) or none
(`?`), all of them at least 1. Shape inference computes with both alike. Two rules keep that sound:

- what must hold for the op to be valid is refused only if it is *provably* false (`may_equal`, `may_reach`); it is
  checked again, on numbers, when the sizes are bound;
- what decides something else (a comparison, a loop, a list of that length) must be provable, else it raises
  `UnknownSize`: nothing is ever guessed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import TypeAlias, cast

from xdsl.utils.exceptions import VerifyException


class UnknownSize(VerifyException):
    """Something depends on a size that is not known; `names` are the named sizes that would decide it."""

    def __init__(self, dim: Dim, why: str = "must be known here"):
        super().__init__(f"the size {dim} {why}")
        self.names = dim.names


@dataclass(frozen=True, order=True)
class Atom:
    """A size by itself: a named one, a nameless one, or a quotient of named ones that is rounded down."""

    text: str
    """How it prints; equal texts are equal sizes, except for `?`."""
    serial: int = 0
    """Tells nameless sizes apart; 0 for all others."""
    names: tuple[str, ...] = ()
    """The named sizes that it is made of."""
    least: int | None = 1
    """A number that it is not below, None if there is none."""
    quotient: tuple[Dim, int] | None = field(default=None, compare=False)
    """Of a quotient, what is divided by what."""


Monomial: TypeAlias = tuple[Atom, ...]
_serials = itertools.count(1)


class Dim:
    """
    A size that is not one known number. `==` means *provably equal*, `<` and its like raise UnknownSize where
    they cannot be proved or disproved, and so does every use as a number.
    """

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Monomial, int]):
        self.terms = dict(terms)

    # What it is.

    @property
    def names(self) -> tuple[str, ...]:
        """The named sizes that it depends on, in alphabetic order."""
        return tuple(sorted({name for monomial in self.terms for atom in monomial for name in atom.names}))

    @property
    def is_nameless(self) -> bool:
        """Whether it depends on a size without a name."""
        return any(atom.serial for monomial in self.terms for atom in monomial)

    @property
    def symbol(self) -> str | None:
        """The name, if it is a named size and nothing else."""
        match list(self.terms.items()):
            case [((Atom(text=text, names=(name,)),), 1)] if text == name:
                return name
            case _:
                return None

    @property
    def least(self) -> int | None:
        """A number that it is not below, None if there is none."""
        total = 0
        for monomial, factor in self.terms.items():
            lows = [atom.least for atom in monomial]
            if monomial and (factor < 0 or None in lows or min(cast(list[int], lows)) < 0):
                return None
            for low in lows:
                factor *= cast(int, low)
            total += factor
        return total

    def __str__(self) -> str:
        if self.is_nameless:
            return "?"
        words = ""
        for monomial, factor in sorted(self.terms.items(), key=lambda term: (-len(term[0]), term[0])):
            # `//` binds as `*` does, from the left, and a sign in front binds closer.
            leads = abs(factor) == 1 and (words or factor > 0)
            factors = [
                f"({atom.text})" if atom.quotient and not (leads and number == 0) else atom.text
                for number, atom in enumerate(monomial)
            ]
            if abs(factor) != 1 or not factors:
                factors.insert(0, str(abs(factor)))
            sign = ("-" if factor < 0 else "") if not words else (" - " if factor < 0 else " + ")
            words += sign + " * ".join(factors)
        return words

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)  # types print their sizes with the format of integers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    # Arithmetic.

    def __add__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented
        sums = dict(self.terms)
        for monomial, factor in _terms(other).items():
            sums[monomial] = sums.get(monomial, 0) + factor
        return _normal(sums)

    def __mul__(self, other: object) -> Size:
        if not isinstance(other, int | Dim):
            return NotImplemented  # so that a list of this length raises UnknownSize
        products: dict[Monomial, int] = {}
        for left, right in itertools.product(self.terms.items(), _terms(other).items()):
            monomial = tuple(sorted(left[0] + right[0]))
            products[monomial] = products.get(monomial, 0) + left[1] * right[1]
        return _normal(products)

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: Size) -> Size:
        return self * -1 + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        if (exact := exact_quotient(self, other)) is not None:
            return exact
        if not isinstance(other, int) or other <= 0 or self.is_nameless:
            return unknown_size()
        whole = _normal({monomial: factor // other for monomial, factor in self.terms.items()})
        rest = _normal({monomial: factor % other for monomial, factor in self.terms.items()})
        return whole + (_quotient(rest, other) if isinstance(rest, Dim) else 0)

    def __rfloordiv__(self, other: int) -> Size:
        return unknown_size() if other else 0

    def __mod__(self, other: Size) -> Size:
        return self - self // other * other

    def __rmod__(self, other: int) -> Size:
        raise UnknownSize(self)

    # Decisions.

    def _is_less(self, other: Size, strictly: bool) -> bool:
        return _is_positive(other - self + (0 if strictly else 1), self)

    def __lt__(self, other: Size) -> bool:
        return self._is_less(other, True)

    def __le__(self, other: Size) -> bool:
        return self._is_less(other, False)

    def __gt__(self, other: Size) -> bool:
        return not self._is_less(other, False)

    def __ge__(self, other: Size) -> bool:
        return not self._is_less(other, True)

    def __bool__(self) -> bool:
        return self >= 1 or self == 0

    def __index__(self) -> int:
        raise UnknownSize(self)

    __int__ = __index__

    def __float__(self) -> float:
        raise UnknownSize(self)

    def __truediv__(self, other: object) -> float:
        raise UnknownSize(self)

    __rtruediv__ = __truediv__


Size: TypeAlias = int | Dim


def named_size(name: str) -> int:
    """The size called `name`. It is a Dim, typed as the number that it stands for, as shapes are."""
    return cast(int, Dim({(Atom(name, names=(name,)),): 1}))


def unknown_size() -> int:
    """A size of which nothing is known but that it is at least 1, typed as the number that it stands for."""
    return cast(int, Dim({(Atom("?", next(_serials)),): 1}))


def is_known(size: Size) -> bool:
    """Whether a size is a number."""
    return not isinstance(size, Dim)


def may_equal(left: Size, right: Size) -> bool:
    """Whether two sizes are not provably different."""
    difference = left - right
    if not isinstance(difference, Dim):
        return difference == 0
    return not any(low is not None and low >= 1 for low in (difference.least, _least_of(-difference)))


def decided_equal(left: Size, right: Size) -> bool:
    """Whether two sizes are equal; raises UnknownSize if that is neither provably so nor provably not."""
    if left == right or not may_equal(left, right):
        return left == right
    raise UnknownSize(left if isinstance(left, Dim) else cast(Dim, right))


def may_reach(size: Size, bound: Size) -> bool:
    """Whether a size is not provably below `bound`."""
    low = _least_of(bound - size)
    return low is None or low <= 0


def may_broadcast_to(source: Sequence[Size], target: Sequence[Size]) -> bool:
    """Whether a shape does not provably fail to broadcast to exactly the shape `target`."""
    if len(source) > len(target):
        return False
    shared = target[len(target) - len(source) :]
    return all(size == 1 or may_equal(size, wanted) for size, wanted in zip(source, shared, strict=True))


def more_known(left: int, right: int) -> int:
    """Of two sizes that are equal, the one that says more."""
    return right if is_known(right) else left


def exact_quotient(dividend: Size, divisor: Size) -> Size | None:
    """The quotient of two sizes, None if it is not provably without a remainder."""
    if not isinstance(dividend, Dim) and not isinstance(divisor, Dim):
        return dividend // divisor if divisor and dividend % divisor == 0 else None
    over, under = _terms(dividend), _terms(divisor)
    if not over or not under:
        return None if not under else 0
    (top, factor), (bottom, by) = max(over.items()), max(under.items())
    rest = list(top)
    for atom in bottom:
        if atom not in rest:
            return None
        rest.remove(atom)
    if factor % by:
        return None
    quotient = _normal({tuple(rest): factor // by})
    return quotient if quotient * divisor == dividend else None


def _quotient(dividend: Dim, divisor: int) -> Size:
    """
    The quotient, rounded down, of a size whose factors all are below a positive divisor. Equal ones get equal texts as
    far as these rules go: what all factors share is cancelled, and a quotient that is divided again is one quotient.
    """
    named = [factor for monomial, factor in dividend.terms.items() if monomial]
    # The rounding takes care of the number: floor((g * e + r) / (g * d)) = floor((e + floor(r / g)) / d).
    if (shared := gcd(divisor, *named)) > 1:
        return Dim({monomial: factor // shared for monomial, factor in dividend.terms.items()}) // (divisor // shared)
    number = dividend.terms.get((), 0)
    match [term for term in dividend.terms.items() if term[0]]:
        case [((Atom(quotient=(inner, by)),), 1)]:
            return (inner + number * by) // (by * divisor)
        case _:
            pass
    text = f"({dividend})" if len(dividend.terms) > 1 else str(dividend)
    low = None if dividend.least is None else dividend.least // divisor
    return Dim({(Atom(f"{text} // {divisor}", 0, dividend.names, low, (dividend, divisor)),): 1})


def _terms(size: Size) -> Mapping[Monomial, int]:
    if isinstance(size, Dim):
        return size.terms
    return {(): int(size)} if size else {}


def _normal(terms: Mapping[Monomial, int]) -> Size:
    """The number, if there is nothing else."""
    kept = {monomial: factor for monomial, factor in terms.items() if factor}
    if not any(kept):
        return kept.get((), 0)
    return Dim(kept)


def _least_of(size: Size) -> int | None:
    return size.least if isinstance(size, Dim) else size


def _is_positive(size: Size, asked: Dim) -> bool:
    """Whether a size is at least 1; raises UnknownSize, for the size `asked`, if that cannot be decided."""
    low, high = _least_of(size), _least_of(-size)
    if low is not None and low >= 1:
        return True
    if high is not None and high >= 0:
        return False
    raise UnknownSize(asked)
