"""
The footprint of a copy over the loops around it: the smallest static box that holds all that they read of its source.

Offsets of a window are affine in the loops' counters and in what is computed of them (`min(iv, N - T)` for a last
tile that is shifted inwards), which count as atoms. Over the loops that run, each atom spans its range, and the
extremes of a sum are those of its terms; the atoms from outside stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.mem import CopyOp
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.index_builder import Index, materialize


@dataclass(frozen=True)
class CopySource:
    """What a copy reads: the box at `offsets` of `memref`."""

    memref: SSAValue
    shape: tuple[int, ...]
    """The shape of `memref`."""
    offsets: tuple[AffineIndex, ...]
    values: tuple[Index, ...] | None
    """The offsets as the copy has them; None where they add up those of several views."""
    box: tuple[int, ...]

    def offset(self, builder: Builder, dim: int) -> Index:
        """Where the box begins, at the place of the copy."""
        return self.values[dim] if self.values is not None else self.offsets[dim].build(builder)


def source_of(copy: CopyOp) -> CopySource:
    """What `copy` reads, in terms of the memref that its source is a view of, as far as their layouts agree."""
    source, values = copy.source, tuple(copy.mixed_source_offsets())
    offsets = [AffineIndex.of(offset) for offset in values]
    # What a window reads beside its source is padding, not what lies beside a view: there it ends.
    while copy.padding is None and isinstance(source.owner, memref.SubviewOp):
        view = source.owner
        if len(shape_of(source)) != len(shape_of(view.source)) or set(view.static_strides.get_values()) - {1}:
            break
        begin = get_dynamic_index_list(view.static_offsets.get_values(), view.offsets, DYNAMIC_INDEX)
        offsets = [offset + AffineIndex.of(start) for offset, start in zip(offsets, begin, strict=True)]
        source = view.source
    return CopySource(source, shape_of(source), tuple(offsets), values if source is copy.source else None, copy.box)


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a memref."""
    assert isa(value.type, MemRefType)
    return tuple(value.type.get_shape())


def is_inside(value: SSAValue, op: Operation) -> bool:
    """Whether `value` is defined within `op`."""
    return op.is_ancestor(value.owner) and value.owner is not op


@dataclass(frozen=True)
class Footprint:
    """The box that loops read of a source: static extents, at an origin that is known before the loops."""

    source: CopySource
    extents: tuple[int, ...]
    origins: tuple[AffineIndex, ...]
    """Where the box begins, unless that lies outside the source: then it is moved inwards."""
    in_place: bool
    """Whether it is that of the copy itself."""

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
        """Where the copy's own box begins in the footprint, whose `origins` have been built."""
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


def footprint(source: CopySource, loop: Operation | None) -> Footprint | None:
    """
    What the runs of `loop` (of the copy itself, if None) read of `source`; None where no static box holds it.

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
