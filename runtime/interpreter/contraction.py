# SPDX-License-Identifier: Apache-2.0
"""
Contractions on BLAS: `acc += f(x) * g(y)`, with `f` and `g` elementwise, as matrix products over strided views.

The dims of the domain are sorted into batch (in x, y and the output), m (x and output), n (y and output) and k (x
and y only); a convolution is such a product, its windows being views that overlap. Floats stay in their type;
their sums may be associated differently from the loops. Integers are exact: they go through floats only where
every partial sum fits into the significand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.linalg.ops import IndexOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from penstock.dialects.products import added_product
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.body import CompiledBody, compile_expression
from penstock.runtime.interpreter.domain import OperandAccess, points, self_overlaps, view_over
from penstock.runtime.interpreter.values import has_own_dtype, in_type

GATHER_LIMIT = 1 << 22
"""Elements of overlapping windows that are laid out at once; beyond it, window dims become loops."""
NARROW_LIMIT = 64
"""The longest sum of a batch of matrix-vector products (a depthwise convolution) that loops do faster."""


@dataclass(frozen=True)
class ProductFactor:
    """One side of the product: an elementwise function of one operand, and of scalars."""

    operand: int
    scalars: tuple[int, ...]
    body: CompiledBody | None
    """None for the operand itself."""

    def of(self, operands: Sequence[Any], captured: Sequence[Any]) -> Array:
        """Its value at every element of its operand."""
        if self.body is None:
            return operands[self.operand]
        needed = (self.operand, *self.scalars)
        arguments = [operand if index in needed else None for index, operand in enumerate(operands)]
        return np.asarray(self.body.function(*arguments, *captured)[0])


@dataclass(frozen=True)
class ProductSum:
    """A body that is `acc + left * right`."""

    left: ProductFactor
    right: ProductFactor


@dataclass(frozen=True)
class DimSorts:
    """The dims of a domain by their part in a product; `windows` are those of k that overlap with others."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    windows: tuple[int, ...]


def find_contraction(
    block: Block, accesses: Sequence[OperandAccess], inputs: int, captured: Sequence[SSAValue]
) -> ProductSum | None:
    """
    The contraction that a body with one output is, if it is one.

    A product of two functions of one element is none: a sum of squares, or of exponentials, which are computed as
    polynomials and may end in a product. It keeps the order of the loops, as all sums do.
    """
    factors = added_product(block) if len(block.args) == inputs + 1 else None
    if factors is None or not block.args[-1].has_one_use() or not has_own_dtype(block.args[-1].type):
        return None
    left, right = (_factor(factor, block, accesses, captured) for factor in factors)
    return None if left is None or right is None or left.operand == right.operand else ProductSum(left, right)


def _factor(
    value: SSAValue, block: Block, accesses: Sequence[OperandAccess], captured: Sequence[SSAValue]
) -> ProductFactor | None:
    arguments: set[int] = set()
    ops: set[Operation] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if isinstance(current, BlockArgument) and current.owner is block:
            arguments.add(current.index)
        elif isinstance(current.owner, Operation) and current.owner.parent is block:
            if isinstance(current.owner, IndexOp):
                return None
            ops.add(current.owner)
            stack.extend(current.owner.operands)
    shaped = [index for index in sorted(arguments) if accesses[index].index_map.results]
    if len(shaped) != 1:
        return None
    scalars = tuple(sorted(arguments - set(shaped)))
    if not ops:
        return ProductFactor(shaped[0], scalars, None)
    ordered = [op for op in block.ops if op in ops]
    return ProductFactor(shaped[0], scalars, compile_expression(block.args, ordered, [value], captured))


def sort_dims(
    contraction: ProductSum, accesses: Sequence[OperandAccess], extents: Sequence[int], out_shape: Sequence[int]
) -> DimSorts | None:
    """The parts of the dims, or None where the product is better, or only, done by loops."""
    left, right = accesses[contraction.left.operand], accesses[contraction.right.operand]
    output = accesses[-1]
    if left.forms is None or right.forms is None or output.forms is None:
        return None
    in_left, in_right, in_out = left.dims(extents), right.dims(extents), output.dims(extents)
    summed = (in_left | in_right) - in_out
    if not summed or not summed <= (in_left & in_right) or not in_out <= (in_left | in_right):
        return None
    if self_overlaps(out_shape, output, sorted(in_out), extents):
        return None
    sorts = DimSorts(
        batch=tuple(sorted(in_out & in_left & in_right)),
        m=tuple(sorted((in_out & in_left) - in_right)),
        n=tuple(sorted((in_out & in_right) - in_left)),
        k=tuple(sorted(summed)),
        windows=tuple(sorted(summed & (_entangled(left, extents) | _entangled(right, extents)))),
    )
    batch, m, n, k = (prod(extents[dim] for dim in dims) for dims in (sorts.batch, sorts.m, sorts.n, sorts.k))
    if batch > 1 and min(m, n) == 1 and k <= NARROW_LIMIT:
        return None
    if batch * max(m, n) * k <= GATHER_LIMIT or sorts.windows == sorts.k:
        return DimSorts(sorts.batch, sorts.m, sorts.n, sorts.k, ())
    return sorts


def _entangled(access: OperandAccess, extents: Sequence[int]) -> set[int]:
    """The dims that share an index of the operand with another dim."""
    assert access.forms is not None
    shared = [form.dims(extents) for form in access.forms]
    return {dim for dims in shared if len(dims) > 1 for dim in dims}


def contract(
    operands: tuple[Array, Array, Array],
    accesses: tuple[OperandAccess, OperandAccess, OperandAccess],
    extents: Sequence[int],
    sorts: DimSorts,
) -> None:
    """Add the product of the first two operands to the third, in place."""
    left, right, out = operands
    left_access, right_access, out_access = accesses
    inner = tuple(dim for dim in sorts.k if dim not in sorts.windows)
    batch, m, n, k = (prod(extents[dim] for dim in dims) for dims in (sorts.batch, sorts.m, sorts.n, inner))
    a_view = view_over(left, left_access, (*sorts.windows, *sorts.batch, *sorts.m, *inner), extents)
    b_view = view_over(right, right_access, (*sorts.windows, *sorts.batch, *inner, *sorts.n), extents)
    out_view = view_over(out, out_access, (*sorts.batch, *sorts.m, *sorts.n), extents)
    shape = out_view.shape
    for point in points(sorts.windows, extents):
        a, b = a_view[point], b_view[point]
        if batch == 1:
            product = np.matmul(a.reshape(m, k), b.reshape(k, n))
        else:
            product = np.matmul(a.reshape(batch, m, k), b.reshape(batch, k, n))
        out_view += in_type(product.reshape(shape), out.dtype)
