"""Indices as affine sums of the numbers of iterations of the loops around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.dialects import arith, scf
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from penstock.passes.analysis.index import AffineIndex, IndexReader, Opaque
from penstock.passes.analysis.loops import constant_of, trip_count
from penstock.passes.index_builder import Index


@dataclass(frozen=True)
class Count:
    """The number `constant` + the sum over loops, named by their bodies, of a coefficient times their iteration."""

    constant: int = 0
    terms: Mapping[Block, int] = field(default_factory=dict[Block, int])
    _bounds: tuple[int, int] | None = field(default=None, compare=False)

    def bounds(self) -> tuple[int, int] | None:
        """The least and the largest value; None where the trip count of a loop is not known."""
        return self._bounds


def loop_of(body: Block) -> scf.ForOp:
    """The loop with this body."""
    loop = body.parent_op()
    assert isinstance(loop, scf.ForOp)
    return loop


def trips_of(body: Block) -> int | None:
    """How often the loop with this body goes round, if its bounds are constants."""
    return trip_count(loop_of(body))


class _IterationReader(IndexReader):
    """The counter of a loop is its lower bound + step times the number of the iteration, which is the symbol."""

    def argument(self, value: BlockArgument) -> AffineIndex:
        loop = value.block.parent_op()
        if not isinstance(loop, scf.ForOp) or value.index != 0:
            return AffineIndex(rest=Opaque())
        lower, step = constant_of(loop.lb), constant_of(loop.step)
        if lower is None or step is None:
            return AffineIndex(rest=Opaque())
        trips = trip_count(loop)
        number = AffineIndex.symbol(value, Opaque(0, trips - 1 if trips else None))
        return number * step + lower

    def result(self, value: SSAValue, index: AffineIndex) -> AffineIndex:
        return index

    def unknown(self, value: SSAValue, op: Operation) -> AffineIndex:
        return AffineIndex(rest=Opaque())


def in_iterations(value: Index) -> AffineIndex:
    """An index in which the counter of a loop stands for the number of the iteration."""
    return _IterationReader().read(value)


def count_of(index: AffineIndex) -> Count | None:
    """A sum of iterations of loops with constant bounds, made by `in_iterations`; None if it is not understood."""
    if index.rest is not None:
        return None
    terms: dict[Block, int] = {}
    for symbol, coefficient in index.terms.items():
        assert isinstance(symbol, BlockArgument)
        terms[symbol.block] = coefficient
    return Count(index.base, terms, index.bounds)


def number_of(value: SSAValue, modulus: int) -> Count | None:
    """
    The number of a slot of a ring of `modulus` of them, up to multiples of that; None where it is not understood.

    Numbers count up from 0 and are never negative.
    """
    owner = value.owner
    if isinstance(owner, arith.RemUIOp | arith.RemSIOp):
        divisor = constant_of(owner.rhs)
        return number_of(owner.lhs, modulus) if divisor and divisor % modulus == 0 else None
    return count_of(in_iterations(value))
