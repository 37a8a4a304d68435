# SPDX-License-Identifier: Apache-2.0
"""A reduction that no intrinsic accumulates, as a balanced tree: halves of what is left combined with each other."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import tensor
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr
from xdsl.rewriter import Rewriter
from xdsl.utils.hints import isa

from penstock.passes.analysis.access import COMMUTATIVE
from penstock.passes.generics import structured
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import Dims, loops


def by_halves(generic: GenericOp) -> list[GenericOp] | None:
    """
    The generics that take the place of a reduction along one dim of its one input, in order; None for another op.

    Sums of 2^n numbers are those of a balanced tree, which rounds less than one after the other.
    """
    found = _Reduction.of(generic)
    return None if found is None else found.replace()


class _Reduction:
    """A generic `out[p] = combine(out[p], x[.., r, ..])`."""

    def __init__(self, generic: GenericOp, at: int):
        self._generic, self._at = generic, at
        self._ops: list[Operation] = []

    @staticmethod
    def of(generic: GenericOp) -> _Reduction | None:
        body, kinds = generic.body.block, [kind.data for kind in generic.iterator_types]
        if len(generic.inputs) != 1 or len(generic.outputs) != 1 or kinds.count(IteratorType.REDUCTION) != 1:
            return None
        combine, last = body.first_op, body.last_op
        if combine is None or last is None or combine.next_op is not last or combine.name not in COMMUTATIVE:
            return None
        if last.operands[0] is not combine.results[0] or set(combine.operands) != set(body.args):
            return None
        read, written = (attr.data for attr in generic.indexing_maps)
        reduced = AffineDimExpr(kinds.index(IteratorType.REDUCTION))
        rest = tuple(expr for expr in read.results if expr != reduced)
        is_plain = read.is_projected_permutation() and len(rest) == len(read.results) - 1 and rest == written.results
        return _Reduction(generic, read.results.index(reduced)) if is_plain else None

    def replace(self) -> list[GenericOp]:
        generic, source = self._generic, self._generic.inputs[0]
        rows = self._type(source).get_shape()[self._at]
        while rows > 1:
            half = rows // 2
            value = self._combined(self._rows(source, 0, half), self._rows(source, half, half), None)
            if rows % 2:
                first = self._rows(value, 0, 1)
                first = self._combined(first, self._rows(source, rows - 1, 1), first)
                value = first if half == 1 else self._put_back(first, value)
            source, rows = value, half
        output = generic.outputs[0]
        place = loops(len(self._type(output).get_shape()))
        read = [*place[: self._at], AffineExpr.constant(0), *place[self._at :]]
        self._ops.append(self._generic_of((output, place), (source, read), (output, place)))
        Rewriter.replace_op(generic, self._ops, [self._ops[-1].results[0]])
        return [op for op in self._ops if isinstance(op, GenericOp)]

    def _combined(self, one: SSAValue, other: SSAValue, dest: SSAValue | None) -> SSAValue:
        """Two slices of one shape, combined into `dest` or a new tensor."""
        if dest is None:
            empty = tensor.EmptyOp([], one.type)
            empty.tensor.name_hint = self._generic.results[0].name_hint
            self._ops.append(empty)
            dest = empty.tensor
        place = loops(len(self._type(one).get_shape()))
        self._ops.append(self._generic_of((one, place), (other, place), (dest, place)))
        return self._ops[-1].results[0]

    def _generic_of(
        self, one: tuple[SSAValue, Dims], other: tuple[SSAValue, Dims], output: tuple[SSAValue, Dims]
    ) -> GenericOp:
        generic = self._generic
        combine = generic.body.block.first_op
        assert combine is not None
        order = [generic.body.block.args[-1], generic.body.block.args[0]]

        def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
            return body.emit(combine.clone(dict(zip(order, elements, strict=False))))

        return structured([one, other], output, compute, generic.location)

    def _rows(self, source: SSAValue, start: int, count: int) -> SSAValue:
        type = self._type(source)
        offsets, sizes = self._box(type.get_shape(), start, count)
        if sizes == list(type.get_shape()):
            return source
        sliced = tensor.ExtractSliceOp(source, offsets, sizes, [1] * len(sizes), TensorType(type.element_type, sizes))
        sliced.result.name_hint = source.name_hint
        self._ops.append(sliced)
        return sliced.result

    def _put_back(self, row: SSAValue, value: SSAValue) -> SSAValue:
        offsets, sizes = self._box(self._type(value).get_shape(), 0, 1)
        inserted = tensor.InsertSliceOp.get(row, value, sizes, offsets, [1] * len(sizes))
        self._ops.append(inserted)
        return inserted.result

    def _box(self, shape: Sequence[int], start: int, count: int) -> tuple[list[int], list[int]]:
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[self._at], sizes[self._at] = start, count
        return offsets, sizes

    @staticmethod
    def _type(value: SSAValue) -> TensorType[Attribute]:
        assert isa(value.type, TensorType)
        return value.type
