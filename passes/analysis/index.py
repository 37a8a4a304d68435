# SPDX-License-Identifier: Apache-2.0
"""
Index arithmetic: what an index value is, as an affine sum of other values, with its range and its divisors.

`AffineIndex.of(value)` looks through `arith` and `affine` ops. What is not affine in there (a remainder, a minimum of
which no side is always the least) becomes a symbol of the sum: the value itself, of which the range and the greatest
known divisor are kept. `apply` is the same arithmetic on numbers and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from math import gcd
from typing import Any

import numpy as np
from xdsl.builder import Builder
from xdsl.dialects import affine, arith, scf
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.loops import constant_of, trip_count
from penstock.passes.index_builder import Index, add, scale

Range = tuple[int | None, int | None]
"""The least and the largest value; None where there is no known bound."""


@dataclass(frozen=True)
class Opaque:
    """An integer of which only its range, a divisor, and the symbols that it is computed from are known."""

    lo: int | None = None
    hi: int | None = None
    divisor: int = 1
    sources: frozenset[SSAValue] = frozenset()

    def times(self, factor: int) -> Opaque:
        """This integer multiplied by a constant."""
        lo, hi = (None if end is None else factor * end for end in (self.lo, self.hi))
        return Opaque(*((lo, hi) if factor >= 0 else (hi, lo)), self.divisor * abs(factor), self.sources)

    def plus(self, other: Opaque | None) -> Opaque:
        """The sum with another integer."""
        if other is None:
            return self
        lo, hi = _sum(self.lo, other.lo), _sum(self.hi, other.hi)
        return Opaque(lo, hi, gcd(self.divisor, other.divisor), self.sources | other.sources)


_UNKNOWN = Opaque()


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True)
class AffineIndex:
    """
    The index `base` + the sum of coefficient times symbol + `rest`.

    Operators are those on integers: `//` rounds down, `%` has the sign of the divisor.
    """

    base: int = 0
    terms: Mapping[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    symbols: Mapping[SSAValue, Opaque] = field(default_factory=dict[SSAValue, Opaque], compare=False)
    """What is known of the symbols in `terms`."""
    rest: Opaque | None = None
    """What is not affine and has no symbol of its own; None in what `of` returns."""

    @staticmethod
    def of(value: Index) -> AffineIndex:
        """What is known of an index."""
        return IndexReader().read(value)

    @staticmethod
    def symbol(value: SSAValue, known: Opaque = _UNKNOWN) -> AffineIndex:
        """The index that is a value, without looking into it."""
        return AffineIndex(0, {value: 1}, {value: known})

    @property
    def constant(self) -> int | None:
        """The integer that it is, if it depends on nothing."""
        return None if self.terms or self.rest is not None else self.base

    @cached_property
    def _opaque(self) -> Opaque:
        known = Opaque(self.base, self.base, abs(self.base))
        for symbol, coefficient in self.terms.items():
            known = known.plus(replace(self.symbols[symbol].times(coefficient), sources=frozenset({symbol})))
        return known.plus(self.rest)

    @property
    def range(self) -> Range:
        """The least and the largest value, each None if there is no known bound."""
        known = self._opaque
        return known.lo, known.hi

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The least and the largest value; None unless both are known."""
        lo, hi = self.range
        return None if lo is None or hi is None else (lo, hi)

    @property
    def divisor(self) -> int:
        """The greatest known divisor of all its values; 0 for the constant zero."""
        return self._opaque.divisor

    def is_multiple_of(self, number: int) -> bool:
        """Whether it is certainly a multiple of a positive number."""
        return self.divisor % number == 0

    def only(self, symbols: Iterable[SSAValue]) -> AffineIndex:
        """The terms of these symbols, without the base."""
        kept = set(symbols)
        terms = {symbol: coefficient for symbol, coefficient in self.terms.items() if symbol in kept}
        return AffineIndex(0, terms, self.symbols)

    def build(self, builder: Builder) -> Index:
        """The index, computed where `builder` inserts."""
        products = (scale(builder, symbol, coefficient) for symbol, coefficient in self.terms.items())
        total: Index = reduce(lambda left, right: add(builder, left, right), products, 0)
        return add(builder, total, self.base)

    # arithmetic

    def __add__(self, other: AffineIndex | int) -> AffineIndex:
        other = _index(other)
        terms = dict(self.terms)
        for symbol, coefficient in other.terms.items():
            terms[symbol] = terms.get(symbol, 0) + coefficient
        terms = {symbol: coefficient for symbol, coefficient in terms.items() if coefficient}
        rest = other.rest if self.rest is None else self.rest.plus(other.rest)
        return AffineIndex(self.base + other.base, terms, {**self.symbols, **other.symbols}, rest)

    def __neg__(self) -> AffineIndex:
        return self * -1

    def __sub__(self, other: AffineIndex | int) -> AffineIndex:
        return self + _index(other) * -1

    def __mul__(self, other: AffineIndex | int) -> AffineIndex:
        other = _index(other)
        if (factor := other.constant) is None:
            return self._product(other) if self.constant is None else other * self.constant
        if factor == 0:
            return AffineIndex()
        terms = {symbol: coefficient * factor for symbol, coefficient in self.terms.items()}
        return AffineIndex(
            self.base * factor, terms, self.symbols, None if self.rest is None else self.rest.times(factor)
        )

    def _product(self, other: AffineIndex) -> AffineIndex:
        one, two = self._opaque, other._opaque
        lo = hi = None
        if one.lo is not None and one.hi is not None and two.lo is not None and two.hi is not None:
            corners = [a * b for a in (one.lo, one.hi) for b in (two.lo, two.hi)]
            lo, hi = min(corners), max(corners)
        elif one.lo is not None and one.lo >= 0 and two.lo is not None and two.lo >= 0:
            lo = one.lo * two.lo
        return _of_rest(Opaque(lo, hi, one.divisor * two.divisor, one.sources | two.sources))

    def _divided(self, divisor: int) -> tuple[AffineIndex, AffineIndex]:
        """A part of the quotient, and what is still to be divided: self = divisor * first + second."""
        whole: dict[SSAValue, int] = {}
        left: dict[SSAValue, int] = {}
        rest: Opaque | None = None
        for symbol, coefficient in self.terms.items():
            known = replace(self.symbols[symbol].times(coefficient), sources=frozenset({symbol}))
            if coefficient % divisor == 0:
                whole[symbol] = coefficient // divisor
            elif known.divisor % divisor == 0:
                rest = _exact_quotient(known, divisor).plus(rest)
            else:
                left[symbol] = coefficient
        still = self.rest
        if still is not None and still.divisor % divisor == 0:
            rest, still = _exact_quotient(still, divisor).plus(rest), None
        return (
            AffineIndex(self.base // divisor, whole, self.symbols, rest),
            AffineIndex(self.base % divisor, left, self.symbols, still),
        )

    def __floordiv__(self, other: AffineIndex | int) -> AffineIndex:
        other = _index(other)
        if (divisor := other.constant) is None or divisor <= 0:
            return _of_rest(Opaque(sources=self._sources | other._sources))
        quotient, left = self._divided(divisor)
        lo, hi = (None if end is None else end // divisor for end in left.range)
        if lo is not None and lo == hi:
            return quotient + lo
        return quotient + _of_rest(Opaque(lo, hi, 1, left._sources))

    def __mod__(self, other: AffineIndex | int) -> AffineIndex:
        other = _index(other)
        if (divisor := other.constant) is None or divisor <= 0:
            return _of_rest(Opaque(sources=self._sources | other._sources))
        _, left = self._divided(divisor)
        lo, hi = (None if end is None else end // divisor for end in left.range)
        if lo is not None and lo == hi:
            return left - lo * divisor
        step = gcd(left.divisor, divisor)
        return _of_rest(Opaque(0, divisor - step, step, left._sources))

    __radd__ = __add__
    __rmul__ = __mul__

    def __rfloordiv__(self, other: int) -> AffineIndex:
        return _index(other) // self

    def __rmod__(self, other: int) -> AffineIndex:
        return _index(other) % self

    def minimum(self, other: AffineIndex | int) -> AffineIndex:
        """The lesser of two indices."""
        other = _index(other)
        lo, hi = (self - other).range
        if hi is not None and hi <= 0:
            return self
        if lo is not None and lo >= 0:
            return other
        terms = {symbol: each for symbol, each in self.terms.items() if other.terms.get(symbol) == each}
        common = AffineIndex(0, terms, self.symbols)
        one, two = (self - common)._opaque, (other - common)._opaque
        lo = None if one.lo is None or two.lo is None else min(one.lo, two.lo)
        hi = min((end for end in (one.hi, two.hi) if end is not None), default=None)
        return common + _of_rest(Opaque(lo, hi, gcd(one.divisor, two.divisor), one.sources | two.sources))

    def maximum(self, other: AffineIndex | int) -> AffineIndex:
        """The greater of two indices."""
        return -(-self).minimum(-_index(other))

    def unsigned(self) -> AffineIndex:
        """The index as an unsigned operation sees it."""
        lo, _ = self.range
        return self if lo is not None and lo >= 0 else _of_rest(Opaque(sources=self._sources))

    @property
    def _sources(self) -> frozenset[SSAValue]:
        return frozenset(self.terms) | (_UNKNOWN if self.rest is None else self.rest).sources

    def named(self, value: SSAValue) -> AffineIndex:
        """The index without a rest: where it has one, the value that computes it becomes a symbol."""
        return self if self.rest is None else AffineIndex.symbol(value, self._opaque)


def _index(value: AffineIndex | int) -> AffineIndex:
    return AffineIndex(value) if isinstance(value, int) else value


def _of_rest(rest: Opaque) -> AffineIndex:
    if rest.lo is not None and rest.lo == rest.hi:
        return AffineIndex(rest.lo)
    return AffineIndex(rest=rest)


def _exact_quotient(known: Opaque, divisor: int) -> Opaque:
    lo, hi = (None if end is None else end // divisor for end in (known.lo, known.hi))
    return Opaque(lo, hi, known.divisor // divisor, known.sources)


# operations


def _minimum(left: Any, right: Any) -> Any:
    if isinstance(left, int):
        left, right = right, left
    if isinstance(left, int):
        return min(left, right)
    return left.minimum(right) if isinstance(left, AffineIndex) else np.minimum(left, right)


def _maximum(left: Any, right: Any) -> Any:
    if isinstance(left, int):
        left, right = right, left
    if isinstance(left, int):
        return max(left, right)
    return left.maximum(right) if isinstance(left, AffineIndex) else np.maximum(left, right)


def _unsigned_maximum(left: Any, right: Any) -> Any:
    """A negative operand is the larger one, so that nothing is known of the result where one may be negative."""
    if isinstance(left, AffineIndex) and isinstance(right, AffineIndex) and None in (left.range[0], right.range[0]):
        return _of_rest(Opaque(sources=left._sources | right._sources))  # pyright: ignore[reportPrivateUsage]
    return _maximum(left, right)


def _unsigned(value: Any, width: int) -> Any:
    """What an unsigned op of so many bits sees of a value; Python's integers where one of an array is negative."""
    if isinstance(value, AffineIndex):
        return value.unsigned()
    if isinstance(value, int):
        return value % (1 << width)
    # An object array of no dimensions becomes an integer by arithmetic, and is made one again.
    return value if np.all(value >= 0) else np.asarray(np.asarray(value, np.object_) % (1 << width), np.object_)


def _signed(value: Any, width: int) -> Any:
    """The integer of so many bits that an unsigned op has computed."""
    half = 1 << width - 1
    if isinstance(value, int):
        return (value + half) % (2 * half) - half
    if isinstance(value, AffineIndex) or value.dtype != np.object_:
        return value
    return np.asarray((value + half) % (2 * half) - half, np.object_).astype(np.int64)


def _truncated_quotient(left: Any, right: Any) -> Any:
    if isinstance(left, AffineIndex):
        return left.maximum(0) // right - (-left).maximum(0) // right
    return np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right))


def _truncated_remainder(left: Any, right: Any) -> Any:
    if isinstance(left, AffineIndex):
        return left.maximum(0) % right - (-left).maximum(0) % right
    return np.fmod(left, right)


_OPERATIONS: dict[type[Operation], Callable[[Any, Any], Any]] = {
    arith.AddiOp: lambda a, b: a + b,
    arith.SubiOp: lambda a, b: a - b,
    arith.MuliOp: lambda a, b: a * b,
    arith.FloorDivSIOp: lambda a, b: a // b,
    arith.CeilDivSIOp: lambda a, b: -(-a // b),
    arith.DivSIOp: _truncated_quotient,
    arith.RemSIOp: _truncated_remainder,
    arith.MinSIOp: _minimum,
    arith.MaxSIOp: _maximum,
    arith.DivUIOp: lambda a, b: a // b,
    arith.RemUIOp: lambda a, b: a % b,
    arith.CeilDivUIOp: lambda a, b: -(-a // b),
    arith.MinUIOp: _minimum,
    arith.MaxUIOp: _unsigned_maximum,
}
_UNSIGNED_OPERATIONS = (arith.DivUIOp, arith.RemUIOp, arith.CeilDivUIOp, arith.MinUIOp, arith.MaxUIOp)
_INDEX_BITS = 64


def is_index_arithmetic(op: object) -> bool:
    """Whether `apply` knows the op."""
    return isinstance(op, arith.IndexCastOp | affine.ApplyOp | affine.MinOp) or type(op) in _OPERATIONS


def apply(op: Operation, operands: Sequence[Any]) -> Any:
    """
    What an op of index arithmetic computes: of AffineIndex as much as is known, of integers and of arrays the result.

    Numbers are taken to fit their types.
    """
    match op:
        case arith.IndexCastOp():
            return operands[0]
        case affine.ApplyOp() | affine.MinOp():
            index_map = op.map.data
            dims, symbols = operands[: index_map.num_dims], operands[index_map.num_dims :]
            return reduce(_minimum, (expr.eval(dims, symbols) for expr in index_map.results))
        case _:
            operation = _OPERATIONS[type(op)]
            if type(op) not in _UNSIGNED_OPERATIONS:
                return operation(*operands)
            result = op.results[0].type
            width = result.width.data if isa(result, IntegerType) else _INDEX_BITS
            seen: list[Any] = [_unsigned(each, width) for each in operands]
            if any(getattr(each, "dtype", None) == np.object_ for each in seen):
                # NumPy does not compute with integers of 64 bits and larger ones together.
                seen = [np.asarray(each, np.object_) for each in seen]
            return _signed(operation(*seen), width)


class IndexReader:
    """Reads indices as affine sums; what counts as a symbol can be overridden. Results are kept by value."""

    def __init__(self) -> None:
        self._known: dict[SSAValue, AffineIndex] = {}

    def read(self, value: Index) -> AffineIndex:
        """What is known of an index."""
        if isinstance(value, int):
            return AffineIndex(value)
        if (found := self._known.get(value)) is None:
            found = self._known[value] = self._read(value)
        return found

    def _read(self, value: SSAValue) -> AffineIndex:
        if (constant := constant_of(value)) is not None:
            return AffineIndex(constant)
        if isinstance(value, BlockArgument):
            return self.argument(value)
        op = value.owner
        assert isinstance(op, Operation)
        if not is_index_arithmetic(op):
            return self.unknown(value, op)
        found = _index(apply(op, [self.read(operand) for operand in op.operands]))
        if isa(value.type, IntegerType) and not _fits(found, value.type.width.data):
            found = _of_rest(Opaque(sources=found._sources))  # pyright: ignore[reportPrivateUsage]
        return self.result(value, found)

    def argument(self, value: BlockArgument) -> AffineIndex:
        """What is known of an argument of a block."""
        return AffineIndex.symbol(value, self.counter(value))

    def counter(self, value: BlockArgument) -> Opaque:
        """The range and the divisor of the counter of a loop; nothing for another argument."""
        loop = value.block.parent_op()
        if isinstance(loop, ForallOp) and value.index < len(loop.indices):
            return self._forall_index(loop, value.index)
        if not isinstance(loop, scf.ForOp) or value.index != 0:
            return _UNKNOWN
        lower, step = self.read(loop.lb), self.read(loop.step)
        lo, hi = lower.range[0], self.read(loop.ub).range[1]
        if (trips := trip_count(loop)) is not None:
            hi = None if lo is None or step.constant is None else lo + (trips - 1) * step.constant
        elif hi is not None:
            hi -= 1
        if lo is not None and hi is not None and lo > hi:
            return _UNKNOWN
        return Opaque(lo, hi, gcd(lower.divisor, step.divisor))

    def _forall_index(self, loop: ForallOp, dim: int) -> Opaque:
        """The range and the divisor of an index of iterations that run at once."""
        lower, upper, step = (self.read(each[dim]) for each in (loop.lower_bounds, loop.upper_bounds, loop.steps))
        lo, hi = lower.range[0], _sum(upper.range[1], -1)
        if hi is not None and lower.constant is not None and step.constant is not None:
            hi = lower.constant + (hi - lower.constant) // step.constant * step.constant
        if lo is not None and hi is not None and lo > hi:
            return _UNKNOWN
        return Opaque(lo, hi, gcd(lower.divisor, step.divisor))

    def result(self, value: SSAValue, index: AffineIndex) -> AffineIndex:
        """What is known of a value that has been computed as `index`."""
        return index.named(value)

    def unknown(self, value: SSAValue, op: Operation) -> AffineIndex:
        """What is known of the result of an op that is no index arithmetic."""
        return AffineIndex.symbol(value)


def _fits(index: AffineIndex, width: int) -> bool:
    bounds = index.bounds
    return bounds is not None and -(1 << width - 1) <= bounds[0] and bounds[1] < 1 << width - 1


def stays_in_range(value: SSAValue) -> bool:
    """
    Whether index arithmetic leads to a value without leaving 64 bits: that of counters of loops and constants, mostly.

    What is computed from data may leave them, and wraps.
    """
    return _stays_in_range(IndexReader(), value)


def _stays_in_range(reader: IndexReader, value: SSAValue) -> bool:
    if not _fits(reader.read(value), _INDEX_BITS):
        return False
    op = value.owner
    if isinstance(op, affine.ApplyOp | affine.MinOp):
        index_map = op.map.data
        known: list[Any] = [reader.read(operand) for operand in op.operands]
        dims, symbols = known[: index_map.num_dims], known[index_map.num_dims :]
        parts = (part for result in index_map.results for part in result.dfs())
        if not all(_fits(_index(part.eval(dims, symbols)), _INDEX_BITS) for part in parts):
            return False
    operands = op.operands if is_index_arithmetic(op) and isinstance(op, Operation) else ()
    return all(_stays_in_range(reader, operand) for operand in operands)
