# SPDX-License-Identifier: Apache-2.0
"""
Reductions: a fill and a generic whose accumulator has a type in which sums do not lose their terms.

Every reduction of every op comes through `accumulate`, and there its accumulator gets a type: f32 for floats of fewer
bits, stated in the text by the type of the tensor and by `arith.extf` in the body. What rounds the sum says
`arith.truncf`. Attention, whose loops are its own, takes its types from `summed_in` too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import Attribute, SSAValue

from penstock.dialects.accumulators import accumulator_of
from penstock.dialects.graph.base import is_float
from penstock.passes.generics import first_of
from penstock.passes.scalar_body import Body, Compute, highest, lowest
from penstock.passes.shapes import Dims, element_of, loops, shape_of
from penstock.passes.tensor.tensor_builder import TensorBuilder


@dataclass(frozen=True)
class Reduction:
    """A commutative combination: where it starts, and its step `(body, accumulator, term)`."""

    start: Callable[[Attribute, bool], float]
    """From the element type and whether it is unsigned."""
    step: Callable[[Body, SSAValue, SSAValue], SSAValue]
    is_exact: bool = False
    """Whether a step rounds nothing, as a maximum: it is then carried in the type of the elements."""


SUM = Reduction(lambda element, unsigned: 0, Body.add)
PRODUCT = Reduction(lambda element, unsigned: 1, Body.mul)
MAX = Reduction(lowest, Body.max, is_exact=True)
MIN = Reduction(highest, Body.min, is_exact=True)


def accumulate(
    kernel: TensorBuilder,
    reduction: Reduction,
    element: Attribute,
    inputs: Sequence[tuple[SSAValue, Dims]],
    shape: Sequence[int],
    reductions: int,
    *,
    term: Compute = first_of,
    ranges: Sequence[tuple[SSAValue, Dims]] = (),
    unsigned: bool = False,
) -> SSAValue:
    """
    Combine the terms of `inputs` over `reductions` loops, for each element of `shape`.

    `element` is the type of the elements, or the wider one that an op asks for; `term(body, elements)` is computed in
    that of the accumulator. `ranges` are operands that only lend their shape to loops.
    """
    wide = element if reduction.is_exact else accumulator_of(element)
    start = kernel.fill(shape, wide, reduction.start(wide, unsigned))

    def step(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        read = [body.widen(each, wide) if is_float(wide) else each for each in elements[: len(inputs)]]
        return reduction.step(body, elements[-1], term(body, read))

    return kernel.generic([*inputs, *ranges], (start, loops(len(shape))), reductions, step, unsigned=unsigned)


def reduce(
    kernel: TensorBuilder,
    value: SSAValue,
    axes: Sequence[int],
    reduction: Reduction,
    *,
    element: Attribute | None = None,
    term: Compute = first_of,
    keep: bool = False,
    unsigned: bool = False,
) -> SSAValue:
    """Combine a tensor along `axes`, which vanish or, with `keep`, become 1; see `accumulate`."""
    shape = shape_of(value)
    kept = [dim for dim in range(len(shape)) if keep or dim not in axes]
    place = dict(zip(kept, loops(len(kept)), strict=True))
    place |= dict(zip(axes, loops(len(axes), len(kept)), strict=True))
    read = value, [place[dim] for dim in range(len(shape))]
    sizes = [1 if dim in axes else shape[dim] for dim in kept]
    element = element or element_of(value)
    return accumulate(kernel, reduction, element, [read], sizes, len(axes), term=term, unsigned=unsigned)
