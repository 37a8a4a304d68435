# SPDX-License-Identifier: Apache-2.0
"""Building generics, and letting one start from one of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import UNKNOWN_LOC, AffineMapAttr, LocationAttr, TensorType
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineMap
from xdsl.rewriter import Rewriter
from xdsl.utils.hints import isa
from xdsl.utils.type import get_element_type_or_self

from penstock.passes.scalar_body import Body, Compute
from penstock.passes.shapes import Dims


def first_of(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
    """The element of the first input as it is: what a copy computes."""
    return elements[0]


def structured(
    inputs: Sequence[tuple[SSAValue, Dims]],
    output: tuple[SSAValue, Dims],
    compute: Compute,
    location: LocationAttr | None = None,
    *,
    reductions: int = 0,
    unsigned: bool = False,
) -> GenericOp:
    """
    A generic of tensors, memrefs and scalars, not inserted yet; operands are given with how the loops index them.

    There is a parallel loop for each dim of the output that is not indexed by a constant, and after them `reductions`
    reduction loops. `compute(body, elements)` gives the element to write; the last of the elements is the output's.
    """
    operands = [*inputs, output]
    location = location or UNKNOWN_LOC
    block = Block(arg_types=[get_element_type_or_self(value.type) for value, _ in operands])
    body = Body(block, location, unsigned)
    body.end(compute(body, block.args))
    dest, place = output
    parallel = sum(not isinstance(each, AffineConstantExpr) for each in place)
    maps = [AffineMapAttr(AffineMap(parallel + reductions, 0, tuple(each))) for _, each in operands]
    kinds = [IteratorTypeAttr.parallel()] * parallel + [IteratorTypeAttr.reduction()] * reductions
    results = [dest.type] if isa(dest.type, TensorType) else []
    made = GenericOp([value for value, _ in inputs], [dest], Region(block), maps, kinds, results)
    made.location = location
    for result in made.results:
        result.name_hint = dest.name_hint
    return made


def accumulate_in_place(generic: GenericOp, number: int) -> GenericOp:
    """Make input `number` the output's initial value; the body reads it there."""
    source = generic.inputs[number]
    maps = [m for position, m in enumerate(generic.indexing_maps) if position != number]
    inputs = [v for position, v in enumerate(generic.inputs) if position != number]
    body = generic.detach_region(generic.body)
    block = body.block
    block.args[number].replace_all_uses_with(block.args[-1])
    block.erase_arg(block.args[number])
    new = GenericOp(inputs, [source], body, maps, generic.iterator_types, [r.type for r in generic.results])
    new.location = generic.location
    new.results[0].name_hint = generic.results[0].name_hint
    Rewriter.replace_op(generic, new)
    return new
