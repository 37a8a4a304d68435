# SPDX-License-Identifier: Apache-2.0
"""The box of a memref that loops read through one operand of one op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Operation, SSAValue

from penstock.dialects.mem import CopyOp, memref_of
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.loops import is_inside
from penstock.passes.index_builder import Index, materialize


@dataclass(frozen=True)
class SourceBox:
    """What an op reads through an operand: the box at `offsets` of `memref`."""

    memref: SSAValue
    offsets: tuple[AffineIndex, ...]
    values: tuple[Index, ...] | None
    """The offsets as the op has them; None where they add up those of several views."""
    box: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `memref`."""
        return memref_of(self.memref).get_shape()

    def offset(self, builder: Builder, dim: int) -> Index:
        """Where the box begins, at the place of the op."""
        return self.values[dim] if self.values is not None else self.offsets[dim].build(builder)


def source_of(reader: CopyOp | GenericOp, number: int = 0) -> SourceBox:
    """What is read through an operand, in terms of the memref that it is a view of, as far as their layouts agree."""
    source = operand = reader.operands[number]
    is_copy = isinstance(reader, CopyOp)
    values = tuple(reader.mixed_source_offsets()) if is_copy else (0,) * memref_of(operand).get_num_dims()
    box = reader.box if is_copy else memref_of(operand).get_shape()
    offsets = [AffineIndex.of(offset) for offset in values]
    # What a window reads beside its source is padding, not what lies beside a view: there it ends.
    is_padded = is_copy and reader.padding is not None
    while not is_padded and isinstance(source.owner, memref.SubviewOp):
        view = source.owner
        if memref_of(source).get_num_dims() != memref_of(view.source).get_num_dims():
            break
        if set(view.static_strides.get_values()) - {1}:
            break
        begin = get_dynamic_index_list(view.static_offsets.get_values(), view.offsets, DYNAMIC_INDEX)
        offsets = [offset + AffineIndex.of(start) for offset, start in zip(offsets, begin, strict=True)]
        source = view.source
    return SourceBox(source, tuple(offsets), values if source is operand else None, box)


@dataclass(frozen=True)
class Footprint:
    """The box that loops read of a source: static extents, at an origin that is known before the loops."""

    source: SourceBox
    extents: tuple[int, ...]
    origins: tuple[AffineIndex, ...]
    """Where the box begins, unless that lies outside the source: then it is moved inwards."""
    in_place: bool
    """Whether it is that of the op itself."""

    def may_leave(self, dim: int) -> bool:
        """Whether the box could leave the source in this dim, so that its origin has to be limited."""
        reach = self.origins[dim].bounds
        return reach is None or reach[0] < 0 or reach[1] + self.extents[dim] > self.source.shape[dim]

    def build_origins(self, builder: Builder) -> list[Index]:
        """The origins, limited to where the box lies inside the source."""
        return [self._origin(builder, dim) for dim in range(len(self.extents))]

    def _origin(self, builder: Builder, dim: int) -> Index:
        most = self.source.shape[dim] - self.extents[dim]
        if most == 0:
            return 0
        origin = self.source.offset(builder, dim) if self.in_place else self.origins[dim].build(builder)
        if not self.may_leave(dim):
            return origin
        if isinstance(origin, int):
            return min(max(origin, 0), most)
        raised = builder.insert(arith.MaxSIOp(origin, materialize(builder, 0))).result
        return builder.insert(arith.MinSIOp(raised, materialize(builder, most))).result

    def build_offsets(self, builder: Builder, origins: Sequence[Index]) -> list[Index]:
        """Where the op's own box begins in the footprint, whose `origins` have been built."""
        return [self._offset(builder, dim, origin) for dim, origin in enumerate(origins)]

    def _offset(self, builder: Builder, dim: int, origin: Index) -> Index:
        at = self.source.offsets[dim]
        if origin == 0:
            return self.source.offset(builder, dim)
        if isinstance(origin, int):
            return (at - origin).build(builder)
        if not self.may_leave(dim):
            return (at - self.origins[dim]).build(builder)
        own = materialize(builder, self.source.offset(builder, dim))
        return builder.insert(arith.SubiOp(own, origin)).result


def footprint(source: SourceBox, loop: Operation | None) -> Footprint | None:
    """
    What the runs of `loop` (of the op itself, if None) read of `source`; None where no static box holds it.

    An element that a window reads inside the source lies inside the footprint, and one that it reads outside the
    source outside the footprint: what is padding stays padding.
    """
    extents: list[int] = []
    origins: list[AffineIndex] = []
    if loop is not None and is_inside(source.memref, loop):
        return None
    for at, size, bound in zip(source.offsets, source.box, source.shape, strict=True):
        inner = at.only(atom for atom in at.terms if loop is not None and is_inside(atom, loop))
        reach = inner.bounds
        if reach is None:
            return None
        extents.append(min(bound, reach[1] - reach[0] + size))
        origins.append(at - inner + reach[0])
    return Footprint(source, tuple(extents), tuple(origins), loop is None)


def whole(value: SSAValue) -> Footprint:
    """All of a memref."""
    shape = memref_of(value).get_shape()
    zeros = (AffineIndex(),) * len(shape)
    return Footprint(SourceBox(value, zeros, (0,) * len(shape), shape), shape, zeros, in_place=True)
