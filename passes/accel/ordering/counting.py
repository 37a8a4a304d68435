"""Indices as sums of the counts of loops: how a value depends on how often each loop around it has gone round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.dialects import arith, scf
from xdsl.ir import Block, SSAValue

from penstock.passes.analysis.loops import constant_of, trip_count
from penstock.passes.analysis.memory.footprint import Linear, linear_of


@dataclass(frozen=True)
class Count:
    """The number `constant` + the sum over loops, named by their bodies, of a coefficient times their round."""

    constant: int = 0
    terms: Mapping[Block, int] = field(default_factory=dict[Block, int])

    def plus(self, other: Count, factor: int = 1) -> Count:
        """This number and `factor` times the other."""
        terms = dict(self.terms)
        for loop, coefficient in other.terms.items():
            terms[loop] = terms.get(loop, 0) + factor * coefficient
        kept = {loop: coefficient for loop, coefficient in terms.items() if coefficient}
        return Count(self.constant + factor * other.constant, kept)

    def bounds(self) -> tuple[int, int] | None:
        """The least and the largest value; None where the rounds of a loop are not known."""
        low = high = self.constant
        for loop, coefficient in self.terms.items():
            if not (trips := trips_of(loop)):
                return None
            low += min(0, coefficient * (trips - 1))
            high += max(0, coefficient * (trips - 1))
        return low, high


def loop_of(body: Block) -> scf.ForOp:
    """The loop with this body."""
    loop = body.parent_op()
    assert isinstance(loop, scf.ForOp)
    return loop


def trips_of(body: Block) -> int | None:
    """How often the loop with this body goes round, if its bounds are constants."""
    return trip_count(loop_of(body))


def count_of(linear: Linear) -> Count | None:
    """A sum of loop counters in rounds; None where a term is no counter of a loop with constant bounds."""
    total = Count(linear.constant)
    for atom, coefficient in linear.terms.items():
        body = atom.owner
        if not isinstance(body, Block) or not isinstance(loop := body.parent_op(), scf.ForOp):
            return None
        lower, step = constant_of(loop.lb), constant_of(loop.step)
        if atom is not body.args[0] or lower is None or step is None:
            return None
        total = total.plus(Count(lower, {body: step}), coefficient)
    return total


def number_of(value: SSAValue, modulus: int) -> Count | None:
    """
    The number of a slot of a ring of `modulus` of them, up to multiples of that; None where it is not understood.

    Numbers count up from 0 and are never negative.
    """
    owner = value.owner
    if isinstance(owner, arith.RemUIOp | arith.RemSIOp):
        divisor = constant_of(owner.rhs)
        return number_of(owner.lhs, modulus) if divisor and divisor % modulus == 0 else None
    return _exact(value)


def _exact(value: SSAValue) -> Count | None:
    match value.owner:
        case arith.AddiOp(lhs=left, rhs=right):
            return _sum(left, right, 1)
        case arith.SubiOp(lhs=left, rhs=right):
            return _sum(left, right, -1)
        case arith.MuliOp(lhs=left, rhs=right):
            for factor, factored in ((constant_of(left), right), (constant_of(right), left)):
                if factor is not None and (found := _exact(factored)) is not None:
                    return Count().plus(found, factor)
            return None
        case arith.DivUIOp(lhs=left, rhs=right) | arith.DivSIOp(lhs=left, rhs=right):
            return _quotient(_exact(left), constant_of(right))
        case _:
            return count_of(linear_of(value))


def _sum(left: SSAValue, right: SSAValue, sign: int) -> Count | None:
    one, other = _exact(left), _exact(right)
    return None if one is None or other is None else one.plus(other, sign)


def _quotient(count: Count | None, divisor: int | None) -> Count | None:
    if count is None or not divisor or divisor < 0:
        return None
    # Whole numbers of rounds: what is left over stays below the divisor, whatever the rounds.
    if count.constant < 0 or any(coefficient % divisor for coefficient in count.terms.values()):
        return None
    return Count(count.constant // divisor, {loop: each // divisor for loop, each in count.terms.items()})
