# SPDX-License-Identifier: Apache-2.0
"""
`linalg.generic` on arrays: the reference semantics of every structured op below graph level.

The body is executed at every point of the domain, in the order of its dims, the last one running fastest. An
`Evaluator` does so a whole slab at a time: it vectorises over the dims in which no two points write the same
element, and loops over the others in their order, so that each output sees its updates in the order of the loops
and every result is, bit for bit, that of scalar loops. Long sums of few elements go through `ufunc.accumulate`,
which keeps that order. Contractions go to BLAS (`contraction`), which does not keep it for floats, unless
`ordered` is asked for.

Inputs are read in place: an output may be the same memory as an input if both have the same map, which is what
elementwise ops in place are. Any other overlap is refused, as its result would depend on the order of the points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from xdsl.dialects import arith
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.body import (
    accumulation,
    captured_values,
    compile_block,
    compile_expression,
)
from penstock.runtime.interpreter.contraction import (
    DimSorts,
    contract,
    find_contraction,
    sort_dims,
)
from penstock.runtime.interpreter.domain import OperandAccess, axis_indices, points, self_overlaps, view_over
from penstock.runtime.interpreter.values import dtype_of, element_of, exact_floats, is_float

SCAN_WIDTH = 256
"""The most elements that a step of a long sum may have for the sum to be scanned and not looped."""
SCAN_SIZE = 1 << 22
"""The most terms that are laid out at once for a scan."""
_OVERLAP_EFFORT = 100_000
"""Candidates tried to tell whether two strided arrays overlap; past it they are taken to."""
_SCANS: dict[type[Operation], np.ufunc] = {
    arith.AddfOp: np.add,
    arith.AddiOp: np.add,
    arith.MulfOp: np.multiply,
    arith.MuliOp: np.multiply,
}


@dataclass(frozen=True)
class _SizedDomain:
    """What is known about a domain once its extents and the operands' shapes are."""

    extents: tuple[int, ...]
    loops: tuple[int, ...]
    """The dims that are looped over, in order."""
    vector: tuple[int, ...]
    steps: int
    """Points of the loops."""
    product: DimSorts | None
    """How to do it as a matrix product, where that is the thing to do."""


class Evaluator:
    """
    A body, and maps that index its operands, ready to run over any domain.

    `block` has an argument for each of `maps`: inputs, then `outputs` outputs; `captured` are the values that it
    uses from outside. `op` is where faults are reported.
    """

    def __init__(
        self, op: Operation, block: Block, maps: Sequence[AffineMap], outputs: int, captured: Sequence[SSAValue] = ()
    ):
        self._op = op
        self.captured = tuple(captured)
        """The values from outside that the body uses."""
        self._inputs = len(maps) - outputs
        self._accesses = [OperandAccess.of(index_map) for index_map in maps]
        self._body = compile_block(block, captured)
        self._contraction = find_contraction(block, self._accesses, self._inputs, captured)
        self._needed = [read or number >= self._inputs for number, read in enumerate(self._body.reads)]
        self._terms = self._find_terms(block, captured)
        self._domains: dict[Any, _SizedDomain | None] = {}

    @property
    def reads(self) -> tuple[bool, ...]:
        """For each operand whether its elements are read; an operand that only lends its shape is not."""
        return self._body.reads

    @property
    def accesses(self) -> Sequence[OperandAccess]:
        """How each operand is indexed."""
        return self._accesses

    @property
    def is_contraction(self) -> bool:
        """Whether the body multiplies and adds."""
        return self._contraction is not None

    def covers(self, output: int, shape: Sequence[int], extents: Sequence[int]) -> bool:
        """Whether every element of an output of that shape is written."""
        box = self._accesses[self._inputs + output].box(extents)
        return box is not None and all(
            len(range(*part.indices(size))) == size for part, size in zip(box, shape, strict=True)
        )

    def check(self, operands: Sequence[Any], extents: Sequence[int]) -> None:
        """Raises UserError where a map leaves its operand."""
        self._domain(operands, tuple(extents))

    def run(
        self, operands: Sequence[Any], extents: Sequence[int], captured: Sequence[Any] = (), *, ordered: bool = False
    ) -> None:
        """
        Execute the body over the domain and leave the results in the outputs.

        `operands` are arrays, and NumPy scalars for scalar inputs; `captured` the scalars from outside. With
        `ordered`, sums of floats are taken in the order of the loops.

        Raises UserError where a map leaves its operand, or an output overlaps an operand indexed otherwise.
        """
        domain = self._domain(operands, tuple(extents))
        if domain is None:
            return
        aliased = self._check_overlap(operands, domain.extents)
        if not aliased and not ordered and self._contract(operands, domain, captured):
            return
        if not aliased and self._scan(operands, domain, captured):
            return
        self._loop(operands, domain, captured, aliased)

    def _domain(self, operands: Sequence[Any], extents: tuple[int, ...]) -> _SizedDomain | None:
        key = (extents, *(operand.shape for operand in operands))
        if key in self._domains:
            return self._domains[key]
        domain = None
        if 0 not in extents:
            self._check_bounds(operands, extents)
            loops = self._loops(operands, extents)
            vector = tuple(dim for dim in range(len(extents)) if dim not in loops)
            product = None
            if self._contraction is not None and _is_for_blas(operands[-1].dtype):
                product = sort_dims(self._contraction, self._accesses, extents, operands[-1].shape)
            domain = _SizedDomain(extents, loops, vector, prod(extents[dim] for dim in loops), product)
        self._domains[key] = domain
        return domain

    def _check_bounds(self, operands: Sequence[Any], extents: Sequence[int]) -> None:
        for number, (operand, access) in enumerate(zip(operands, self._accesses, strict=True)):
            for dim, ((low, high), size) in enumerate(zip(access.ranges(extents), operand.shape, strict=True)):
                if low < 0 or high >= size:
                    raise UserError(
                        f"operand {number} is indexed from {low} to {high} in dim {dim}, which has size {size}",
                        loc=location_of(self._op),
                    )

    def _loops(self, operands: Sequence[Any], extents: Sequence[int]) -> tuple[int, ...]:
        """The dims to loop over: those that an output lacks; all of them if that leaves points that collide."""
        outputs = list(zip(operands[self._inputs :], self._accesses[self._inputs :], strict=True))
        every = range(len(extents))
        lacking = {dim for _, access in outputs for dim in every if dim not in access.dims(extents)}
        loops = [dim for dim in every if dim in lacking and extents[dim] > 1]
        vector = [dim for dim in every if dim not in loops]
        if any(access.forms is None or self_overlaps(out.shape, access, vector, extents) for out, access in outputs):
            return tuple(every)
        return tuple(loops)

    def _check_overlap(self, operands: Sequence[Any], extents: Sequence[int]) -> bool:
        """Whether some input is an output, indexed by the same map; raises UserError where they overlap otherwise."""
        aliased = False
        for o in range(self._inputs, len(operands)):
            for i in range(o):
                if not self.reads[i] and i < self._inputs:
                    continue
                if _is_array(operands[i]) and np.may_share_memory(operands[i], operands[o]):
                    aliased = self._overlap(i, o, operands, extents) or aliased
        return aliased

    def _overlap(self, i: int, o: int, operands: Sequence[Any], extents: Sequence[int]) -> bool:
        parts: list[Array] = []
        for index in (i, o):
            box = self._accesses[index].box(extents)
            parts.append(operands[index] if box is None else operands[index][box])
        if not _share_memory(parts[0], parts[1]):
            return False
        if i < self._inputs and _same_view(operands[i], operands[o]):
            if self._accesses[i].index_map == self._accesses[o].index_map:
                return True
        raise UserError(
            f"operand {i} overlaps output {o - self._inputs} but is indexed otherwise: the result would depend on "
            "the order of the points",
            loc=location_of(self._op),
            notes=["give the output memory of its own"],
        )

    def _contract(self, operands: Sequence[Any], domain: _SizedDomain, captured: Sequence[Any]) -> bool:
        contraction, sorts = self._contraction, domain.product
        if contraction is None or sorts is None:
            return False
        left, right = contraction.left.of(operands, captured), contraction.right.of(operands, captured)
        if not is_float(operands[-1].dtype):
            left, right = exact_floats(left, right, prod(domain.extents[dim] for dim in sorts.k))
        sides = (contraction.left.operand, contraction.right.operand, -1)
        accesses = (self._accesses[sides[0]], self._accesses[sides[1]], self._accesses[sides[2]])
        contract((left, right, operands[-1]), accesses, domain.extents, sorts)
        return True

    def _find_terms(self, block: Block, captured: Sequence[SSAValue]) -> tuple[Any, Any] | None:
        """(the ufunc that combines, the body of a term) where a single output is `combine(acc, term)`."""
        found = accumulation(block) if len(block.args) == self._inputs + 1 else None
        if found is None or (ufunc := _SCANS.get(type(found[0]))) is None:
            return None
        total, term = found
        ops = [op for op in block.ops if op is not total and op is not block.last_op]
        return ufunc, compile_expression(block.args, ops, [term], captured)

    def _scan(self, operands: Sequence[Any], domain: _SizedDomain, captured: Sequence[Any]) -> bool:
        """A long sum of few elements, in order, without a step of Python for each term."""
        width = prod(domain.extents[dim] for dim in domain.vector)
        out_access = self._accesses[-1]
        if self._terms is None or domain.steps < 16 or width > SCAN_WIDTH or width * domain.steps > SCAN_SIZE:
            return False
        if out_access.forms is None or out_access.dims(domain.extents) & set(domain.loops):
            return False
        ufunc, body = self._terms
        order = (*domain.loops, *domain.vector)
        arguments = [
            self._whole(operand, access, order, domain)
            for operand, access in zip(operands[:-1], self._accesses[:-1], strict=True)
        ]
        indices = [axis_indices(dim, domain.extents).transpose(order) for dim in body.index_dims]
        out = view_over(operands[-1], out_access, domain.vector, domain.extents)
        shape = [domain.extents[dim] for dim in order]
        terms = np.broadcast_to(np.asarray(body.function(*arguments, out, *indices, *captured)[0]), shape)
        column = np.empty((domain.steps + 1, *out.shape), out.dtype)
        column[0] = out
        column[1:] = terms.reshape(domain.steps, *out.shape)
        out[...] = ufunc.accumulate(column, axis=0, dtype=out.dtype)[-1]
        return True

    def _whole(self, operand: Any, access: OperandAccess, order: Sequence[int], domain: _SizedDomain) -> Any:
        return view_over(operand, access, order, domain.extents) if type(operand) is np.ndarray else operand

    def _loop(self, operands: Sequence[Any], domain: _SizedDomain, captured: Sequence[Any], aliased: bool) -> None:
        extents, loops = domain.extents, domain.loops
        order, depth = (*loops, *domain.vector), len(loops)
        views: list[Any] = [
            _spread(self._whole(operand, access, order, domain), loops, extents) if needed else None
            for operand, access, needed in zip(operands, self._accesses, self._needed, strict=True)
        ]
        outputs = views[self._inputs :]
        function = self._body.function
        # A single output that no loop steps along can stay in hand until the end.
        in_hand = len(outputs) == 1 and not aliased and depth > 0 and not (
            self._accesses[-1].dims(extents) & set(loops)
        )  # fmt: skip
        carried: Any = outputs[0][(0,) * depth] if in_hand else None
        whole_indices = {
            dim: axis_indices(dim, extents).reshape([extents[d] if d == dim else 1 for d in domain.vector])
            for dim in self._body.index_dims
            if dim in domain.vector
        }
        position = {dim: place for place, dim in enumerate(loops)}
        for point in points(loops, extents):
            arguments = [view if type(view) is not np.ndarray else view[point] for view in views]
            if in_hand:
                arguments[-1] = carried
            for dim in self._body.index_dims:
                arguments.append(whole_indices[dim] if dim in whole_indices else np.int64(point[position[dim]]))
            results = function(*arguments, *captured)
            if in_hand:
                carried = results[0]
            else:
                _store(outputs, point, results)
        if in_hand:
            outputs[0][(0,) * depth] = carried


def _is_for_blas(dtype: np.dtype[Any]) -> bool:
    """Whether BLAS rounds sums as often as the element type's own arithmetic: not so for 16-bit floats."""
    return not is_float(dtype) or dtype.char in "fd"


def _store(outputs: Sequence[Array], point: tuple[int, ...], results: Sequence[Any]) -> None:
    # All are computed before the first is stored; a result may be a view of what another output overwrites.
    if len(outputs) > 1:
        results = [np.array(result) for result in results]
    for output, result in zip(outputs, results, strict=True):
        output[point] = result


def _spread(view: Any, loops: Sequence[int], extents: Sequence[int]) -> Any:
    """`view`, whose first dims are the loops, with those that it does not depend on repeated along stride 0."""
    if type(view) is not np.ndarray or not loops:
        return view
    wanted = tuple(extents[dim] for dim in loops)
    depth = len(loops)
    if view.shape[:depth] == wanted:
        return view
    strides = [
        stride if size == extent else 0
        for stride, size, extent in zip(view.strides[:depth], view.shape[:depth], wanted, strict=True)
    ]
    return as_strided(view, (*wanted, *view.shape[depth:]), (*strides, *view.strides[depth:]))


def _same_view(one: Array, other: Array) -> bool:
    return (
        one.shape == other.shape
        and one.strides == other.strides
        and one.__array_interface__["data"][0] == other.__array_interface__["data"][0]
    )


def _share_memory(one: Array, other: Array) -> bool:
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_EFFORT)  # pyright: ignore[reportArgumentType]
    except np.exceptions.TooHardError:
        return True


def extents_of(op: GenericOp, operands: Sequence[Any]) -> tuple[int, ...]:
    """
    The extents of an op's loops, read off the operands' shapes.

    Raises UserError where a loop has no operand dim of its own, or two that differ.
    """
    maps = [attr.data for attr in op.indexing_maps]
    extents: list[int | None] = [None] * len(op.iterator_types)
    for number, (index_map, operand) in enumerate(zip(maps, operands, strict=True)):
        for dim, expr in enumerate(index_map.results):
            if not isinstance(expr, AffineDimExpr):
                continue
            size, known = operand.shape[dim], extents[expr.position]
            if known is not None and known != size:
                raise UserError(
                    f"dim {dim} of operand {number} has size {size}, but loop {expr.position} runs to {known}",
                    loc=location_of(op),
                )
            extents[expr.position] = size
    if None in extents:
        raise UserError(f"no operand says how far loop {extents.index(None)} runs", loc=location_of(op))
    return tuple(extent for extent in extents if extent is not None)


def evaluator_of(op: GenericOp) -> Evaluator:
    """The evaluator of an op, which may be kept as long as the op does not change."""
    maps = [attr.data for attr in op.indexing_maps]
    return Evaluator(op, op.body.block, maps, len(op.outputs), captured_values(op))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def as_operand(value: Any, operand: SSAValue, op: Operation) -> Any:
    """A value as an evaluator takes it: arrays as they are, Python numbers as scalars of their type."""
    return value if _is_array(value) else dtype_of(element_of(operand), op).type(value)
