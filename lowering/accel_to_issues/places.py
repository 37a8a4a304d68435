# SPDX-License-Identifier: Apache-2.0
"""Where memrefs lie in the scopes of a machine, in the addresses that its commands spell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

from xdsl.builder import Builder
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Attribute, Operation

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import ScopeOp
from penstock.dialects.mem import RingOp, SlotOp, element_bytes, static_strides
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.strides import kept_dims
from penstock.passes.index_builder import Index, add, materialize, scale


@dataclass(frozen=True)
class Move:
    """How far apart things are."""

    distance: int = 0
    """On chip in granules, off chip in bytes."""
    elements: int = 0
    """Along a row, on chip."""

    def times(self, count: int) -> Move:
        return Move(self.distance * count, self.elements * count)


@dataclass(frozen=True)
class Place:
    """
    Where a memref begins in its scope, and how far its elements lie apart, in the addresses that are spelled.

    In a scope that lies by columns, the granules of a row of R rows are R granules apart: a buffer takes the same bytes
    in either layout.
    """

    scope: ScopeOp
    start: Index
    """In granules."""
    steps: tuple[Move, ...]
    """Of each dim."""
    column: int
    """From one granule of a row to the next, in granules."""
    element: int
    """Bytes of an element."""
    within: Index = 0
    """Elements from the start, along a row, in a scope whose addresses are those of bytes."""

    @property
    def granule(self) -> int:
        return self.scope.granule_bytes

    @property
    def per_granule(self) -> int:
        """The elements of a granule."""
        return max(1, self.granule // self.element)

    @staticmethod
    def of(type: MemRefType[Attribute], scope: ScopeOp, start: Index, op: Operation) -> Place:
        """The place of a whole buffer. Raises UserError, located, for strides that rows of granules cannot have."""
        shape, strides, element = type.get_shape(), static_strides(type), element_bytes(type)
        granule = scope.granule_bytes
        dims = list(zip(shape, strides, strict=True))
        # What lies closer than granules do is along a row; so are elements that are granules.
        along = [
            size > 1 and (stride * element % granule != 0 or (stride == 1 and granule <= element))
            for size, stride in dims
        ]
        row = element * (
            1 + sum((size - 1) * stride for (size, stride), is_in in zip(dims, along, strict=True) if is_in)
        )
        outer = [
            (size, stride * element // granule) for (size, stride), is_in in zip(dims, along, strict=True) if not is_in
        ]
        pitch = gcd(*(stride for size, stride in outer if size > 1))
        if pitch and pitch * granule < row:
            raise _refuse(op, type, "its rows overlap")
        by_columns = scope.lies_by_columns and pitch > 0 and not _is_split(op)
        rows = 1 + sum((size - 1) * (stride // pitch) for size, stride in outer if size > 1) if by_columns else 1
        steps = tuple(
            Move(0, stride) if is_in or size == 1 else Move(stride * element // granule // (pitch if by_columns else 1))
            for (size, stride), is_in in zip(dims, along, strict=True)
        )
        return Place(scope, start, steps, rows, element)

    def is_same(self, one: Move, other: Move) -> bool:
        """Whether two moves lead to the same element; where it lies by rows, granules are elements along one."""
        per = self.per_granule if self.column == 1 else 0
        return one == other or (per > 0 and (one.distance - other.distance) * per == other.elements - one.elements)

    def along_row(self, builder: Builder, elements: Index, op: Operation) -> Index:
        """The granules to the one that begins so many elements into a row. Raises UserError where none does."""
        per = self.per_granule
        if self.granule < self.element:
            return product(builder, elements, self.element // self.granule)
        if isinstance(elements, int):
            if elements % per == 0:
                return elements // per * self.column
        elif AffineIndex.of(elements).is_multiple_of(per):
            count = elements if per == 1 else builder.insert(arith.DivSIOp(elements, materialize(builder, per))).result
            return scale(builder, count, self.column)
        raise UserError(
            f'a command begins inside a granule of "{self.scope.sym_name.data}"',
            loc=location_of(op),
            notes=[f"addresses in this scope are multiples of {self.granule} bytes"],
        )

    def moved(self, builder: Builder, moves: Sequence[tuple[Index, Move]], op: Operation) -> Place:
        """The place of what begins so many steps on."""
        start, along = self.start, self.within
        for count, move in moves:
            start = add(builder, start, product(builder, count, move.distance))
            along = add(builder, along, product(builder, count, move.elements))
        if self.scope.has_bytes_for_addresses:
            return replace(self, start=start, within=along)
        return replace(self, start=add(builder, start, self.along_row(builder, along, op)))

    def row(self, builder: Builder, op: Operation) -> Index:
        """The granule that it begins at. Raises UserError, located, where it begins inside one."""
        return add(builder, self.start, self.along_row(builder, self.within, op))

    def offset(self, builder: Builder) -> Index:
        """The byte that it begins at."""
        return add(builder, scale(builder, self.start, self.granule), product(builder, self.within, self.element))


def _is_split(op: Operation) -> bool:
    """Whether rows of a buffer are cut, or made one, by what looks at it in another shape: then it lies by rows."""
    pending = [*op.results]
    while pending:
        for use in pending.pop().uses:
            match use.operation:
                case memref.ExpandShapeOp() | memref.CollapseShapeOp() as view:
                    many = view.operands[0].type if isinstance(view, memref.CollapseShapeOp) else view.results[0].type
                    assert isinstance(many, MemRefType)
                    last = [each.value.data for each in list(view.reassociation)[-1]]
                    if sum(many.get_shape()[dim] > 1 for dim in last) > 1:
                        return True
                    pending += view.results
                case memref.SubviewOp() | memref.CastOp() as view:
                    pending += view.results
                case _:
                    pass
    return False


def product(builder: Builder, count: Index, factor: int) -> Index:
    """An index times an integer, which may be 0."""
    return scale(builder, count, factor) if factor else 0


def start_in_granules(offset: int, scope: ScopeOp, op: Operation) -> int:
    """Where a buffer begins that is planned at an offset in bytes."""
    if offset % scope.granule_bytes:
        raise UserError(
            f'a buffer in "{scope.sym_name.data}" begins at {offset}, inside a granule of {scope.granule_bytes} bytes',
            loc=location_of(op),
        )
    return offset // scope.granule_bytes


def place_of_slot(builder: Builder, op: SlotOp, ring: RingOp, scope: ScopeOp) -> Place:
    """The place of the slot whose turn it is."""
    turn: Index = builder.insert(arith.RemSIOp(op.index, materialize(builder, ring.slot_count))).result
    pitch, first = (start_in_granules(each, scope, ring) for each in (ring.pitch_in_bytes, ring.planned_offset()))
    start = add(builder, scale(builder, turn, pitch), first)
    return Place.of(ring.slot_type, scope, start, op)


def place_of_subview(builder: Builder, op: memref.SubviewOp, source: Place) -> Place:
    """The place of a part of a memref."""
    if any(stride != 1 for stride in op.static_strides.get_values()):
        raise _refuse(op, op.result.type, "it takes elements that are apart")
    offsets = get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX)
    found = source.moved(builder, list(zip(offsets, source.steps, strict=True)), op)
    type = op.result.type
    assert isinstance(type, MemRefType)
    sizes = list(op.static_sizes.get_values())
    kept = kept_dims(sizes, type.get_shape())
    return replace(found, steps=tuple(found.steps[dim] for dim in kept))


def place_of_reshaped(op: memref.ExpandShapeOp | memref.CollapseShapeOp, source: Place) -> Place:
    """The place of the same elements in another shape. Raises UserError where dims that are one now do not adjoin."""
    is_collapse = isinstance(op, memref.CollapseShapeOp)
    many = op.operands[0].type if is_collapse else op.results[0].type
    assert isinstance(many, MemRefType)
    shape = many.get_shape()
    steps: list[Move] = []
    for number, group in enumerate(op.reassociation):
        dims = [each.value.data for each in group]
        if not is_collapse:
            inner, own = source.steps[number], list[Move]()
            for dim in reversed(dims):
                own.insert(0, inner)
                inner = inner.times(shape[dim])
            steps += own
            continue
        long = [dim for dim in dims if shape[dim] > 1] or dims[-1:]
        for outer, dim in pairwise(long):
            if not source.is_same(source.steps[outer], source.steps[dim].times(shape[dim])):
                raise _refuse(op, op.results[0].type, "dims that become one do not adjoin")
        steps.append(source.steps[long[-1]])
    return replace(source, steps=tuple(steps))


def _refuse(op: Operation, type: Attribute, why: str) -> UserError:
    return UserError(f"commands cannot spell {type}: {why}", loc=location_of(op))
