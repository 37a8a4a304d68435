"""
The type that a contraction sums in.

An op that sums or multiplies up floats of fewer than 32 bits computes in f32 (`element_types.accumulator_of`) and
rounds its result once. A contraction may name a wider accumulator, to which its result then belongs.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Attribute, Operation

from penstock.dialects.element_types import accumulator_of
from penstock.dialects.graph.base import (
    NUMBERS,
    Tensor,
    integer_bounds,
    is_float,
    is_integer,
    require,
    same_element,
    tensor_of,
)


def accumulated(
    factors: Sequence[Tensor], addend: Tensor | None, accumulator: Attribute | None, op_name: str
) -> Attribute:
    """
    The element type of the sum of products of the `factors`, and of the `addend` (a bias) on top of it.

    Without an `accumulator` it is the one type of all operands, to which the sum is rounded. With one, each product of
    factors is computed and summed in that type: floats of one type are widened to it, integers of any signedness to
    one that holds all their numbers. Raises VerifyException for an accumulator that narrows or has nothing to do with
    the factors.
    """
    for factor in factors:
        NUMBERS.check(factor, op_name)
    if accumulator is None:
        return same_element(factors if addend is None else (*factors, addend), op_name)
    elements = [factor.element_type for factor in factors]
    if all(is_float(element) for element in elements):
        same_element(factors, op_name)
    for element in elements:
        require(
            is_float(element) == is_float(accumulator) and (is_float(element) or is_integer(accumulator)),
            f"{op_name} cannot accumulate {element} in {accumulator}: floats are summed in floats, and integers in"
            " integers",
        )
        require(
            holds(accumulator, element),
            f"{op_name} cannot accumulate {element} in {accumulator}, which does not hold every {element}",
        )
    if addend is not None:
        require(
            addend.element_type == accumulator,
            f"{op_name} accumulates in {accumulator} and adds a {addend}: their element types must agree",
        )
    return accumulator


def summed_in(op: Operation) -> Attribute:
    """The type in which a contraction, or an attention, sums: the one that it names, or that for its first operand."""
    named = op.properties.get("accumulator")
    return accumulator_of(tensor_of(op.operands[0]).element_type) if named is None else named


def holds(wide: Attribute, narrow: Attribute) -> bool:
    """Whether every number of the type `narrow` is one of the type `wide`."""
    if wide == narrow:
        return True
    inner, outer = integer_bounds(narrow), integer_bounds(wide)
    if inner is not None and outer is not None:
        return outer.start <= inner.start and inner.stop <= outer.stop
    if not isinstance(wide, AnyFloat) or not isinstance(narrow, AnyFloat):
        return False
    return narrow.bitwidth < wide.bitwidth
