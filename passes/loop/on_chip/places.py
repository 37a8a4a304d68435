# SPDX-License-Identifier: Apache-2.0
"""How a tensor may lie in a scope, which of its accesses find it there then, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import MemRefType, NoneAttr, StridedLayoutAttr, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import Rewriter

from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import element_bytes, memref_of, scope_of, span_in_bytes, static_strides
from penstock.passes.analysis.memory.storage import in_scope, subview_type
from penstock.passes.analysis.strides import collapsed_strides, contiguous_strides, expanded_strides
from penstock.passes.loop.on_chip.program import Site, TensorUse
from penstock.passes.loop.on_chip.specialize import (
    CannotReside,
    Halo,
    Number,
    Resident,
    begins_aligned,
    can_fill,
    overhang,
    specialize,
)

SpecialKey = tuple[str, tuple[tuple[int, Resident], ...]]
"""A kernel, and its arguments that are on chip."""


class Specializer:
    """The kernels made for residents, each made once."""

    def __init__(self, target: TargetOp):
        self.target = target
        self._made: dict[SpecialKey, func.FuncOp | str] = {}

    def make(self, kernel: func.FuncOp, residents: Mapping[int, Resident]) -> func.FuncOp:
        """The kernel for these arguments; raises CannotReside where one cannot be on chip."""
        key = kernel.sym_name.data, tuple(sorted(residents.items()))
        if not residents:
            return kernel
        if key not in self._made:
            try:
                self._made[key] = specialize(kernel, residents, self.target)
            except CannotReside as reason:
                self._made[key] = str(reason)
        found = self._made[key]
        if isinstance(found, str):
            raise CannotReside(found)
        return found


@dataclass(frozen=True)
class Border:
    """A border of padding that some kernels need around a tensor."""

    halo: Halo
    value: Number


@dataclass
class OnChipLayout:
    """A way for a tensor to lie in a scope."""

    tensor: TensorUse
    scope: str
    type: MemRefType[Attribute]
    """Of the buffer, the border included."""
    border: Border | None
    granule: int
    residents: dict[Site, Resident] = field(default_factory=dict[Site, Resident])
    """The accesses that find it there, and how."""
    reasons: dict[Site, str] = field(default_factory=dict[Site, str])
    """Why the others do not."""
    saved: int = 0
    """Bytes over the edge that the steps move all of whose accesses find it there."""

    @property
    def size(self) -> int:
        """Bytes on chip, in whole granules."""
        return -(-span_in_bytes(self.type) // self.granule) * self.granule

    @property
    def inner(self) -> MemRefType[Attribute]:
        """The tensor's own elements in the buffer."""
        if self.border is None:
            return self.type
        strides = static_strides(self.type)
        offset = sum(low * stride for (low, _), stride in zip(self.border.halo, strides, strict=True))
        return strided_type(self.type, self.tensor.type.get_shape(), strides, offset)

    def resident(self, site: Site, scope_halo: Border | None) -> Resident:
        """What the kernel gets at an access; raises CannotReside where no type says it."""
        if scope_halo is not None:
            if self.border is None or scope_halo.value != self.border.value:
                raise CannotReside("its windows reach out of bounds, and there is no border that holds their padding")
            return Resident(self.type, self.border.halo)
        type, is_aligned = self.inner, True
        for view in site.views:
            if isinstance(view, memref.SubviewOp) and view.offsets:
                is_aligned = is_aligned and begins_aligned(view, type, self.granule)
            type = view_type(view, type)
        offset = type.get_offset() or 0
        if not is_aligned or offset * element_bytes(type) % self.granule:
            raise CannotReside(f"the part of it begins within a granule of {self.granule} bytes")
        return Resident(argument_type(type))


def best_layout(tensor: TensorUse, scope: str, made: Specializer) -> OnChipLayout:
    """The way to lie in `scope` that most bytes gain by, and the smallest of those."""
    borders: dict[Site, Border] = {}
    never: dict[Site, str] = {}
    for site in tensor.sites:
        if site.kernel is None:
            never[site] = "it is accessed from off chip by what does not run on the machine"
            continue
        try:
            found = overhang(site.kernel, site.number, scope)
            if found is not None and changes_shape(site.views):
                raise CannotReside("its windows reach out of the bounds of a view of it")
        except CannotReside as reason:
            never[site] = str(reason)
            continue
        if found is not None:
            borders[site] = Border(*found)
    places = [_tried(place, borders, never, made) for place in _places(tensor, scope, borders, made.target)]
    return min(places, key=lambda place: (-place.saved, place.size))


def _places(tensor: TensorUse, scope: str, borders: Mapping[Site, Border], target: TargetOp) -> Iterator[OnChipLayout]:
    granule = target.scope(scope).granule_bytes
    wanted = [None, *_joined(borders)]
    for border in wanted:
        halo = [(0, 0)] * tensor.type.get_num_dims() if border is None else border.halo
        shape = [low + size + high for size, (low, high) in zip(tensor.type.get_shape(), halo, strict=True)]
        packed = MemRefType(tensor.type.element_type, shape, memory_space=StringAttr(scope))
        rows = in_scope(packed, target, scope)
        if border is not None:
            # Rows with a border lie apart, so that what is inside of it is a view.
            kept = [type for type in dict.fromkeys((rows, packed)) if can_fill(type, border.value, target)]
        else:
            kept = list(dict.fromkeys((rows, packed)))
        for type in kept:
            yield OnChipLayout(tensor, scope, type, border, granule)


def _joined(borders: Mapping[Site, Border]) -> list[Border]:
    """One border for each padding, as wide as any window needs it."""
    joined: dict[Number, Halo] = {}
    for border in borders.values():
        old = joined.get(border.value, border.halo)
        pairs = zip(old, border.halo, strict=True)
        joined[border.value] = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in pairs)
    return [Border(halo, value) for value, halo in joined.items()]


def _tried(
    place: OnChipLayout, borders: Mapping[Site, Border], never: Mapping[Site, str], made: Specializer
) -> OnChipLayout:
    """The layout with what each access finds there."""
    place.reasons.update(never)
    for site in place.tensor.sites:
        if site in never:
            continue
        assert site.kernel is not None
        try:
            resident = place.resident(site, borders.get(site))
            made.make(site.kernel, {site.number: resident})
            place.residents[site] = resident
        except CannotReside as reason:
            place.reasons[site] = str(reason)
    for sites in place.tensor.by_step().values():
        reading, writing = {site.op for site in sites if site.reads}, {site.op for site in sites if site.writes}
        for site in sites:
            if site.op in reading & writing and place.residents.pop(site, None) is not None:
                place.reasons[site] = "one op reads and writes it"
        if all(site in place.residents for site in sites):
            # Where copies of the host would move more than that, the step may stream.
            place.saved += max(0, sum(site.into + site.out for site in sites))
    if target_has_no_way(made.target, place.scope):
        place.saved = 0
    return place


def target_has_no_way(target: TargetOp, scope: str) -> bool:
    """Whether no engine leads from off chip to a scope and back: what is there is neither filled nor written back."""
    return target.dma_between(DRAM, scope) is None or target.dma_between(scope, DRAM) is None


def strided_type(
    like: MemRefType[Attribute], shape: Sequence[int], strides: Sequence[int], offset: int | None
) -> MemRefType[Attribute]:
    """A memref type with the element and the scope of `like`; an offset of None is any."""
    if isinstance(like.layout, NoneAttr) and tuple(strides) == tuple(contiguous_strides(shape)) and offset == 0:
        return MemRefType(like.element_type, shape, NoneAttr(), like.memory_space)
    return MemRefType(like.element_type, shape, StridedLayoutAttr(strides, offset), like.memory_space)


def changes_shape(views: Sequence[Operation]) -> bool:
    """Whether any of these views is more than a cast."""
    return any(not isinstance(view, memref.CastOp) for view in views)


def view_type(view: Operation, source: MemRefType[Attribute]) -> MemRefType[Attribute]:
    """
    The type that `view` would have if its source had the type `source`.

    Raises CannotReside where no type says how the elements lie then.
    """
    strides, offset = static_strides(source), _offset_of(source)
    match view:
        case memref.CastOp():
            return source
        case memref.SubviewOp():
            return subview_type(view, source)
        case memref.ExpandShapeOp() | memref.CollapseShapeOp():
            groups = [[dim.value.data for dim in group] for group in view.reassociation]
            shape = memref_of(view.results[0]).get_shape()
            if isinstance(view, memref.ExpandShapeOp):
                found = expanded_strides(strides, shape, groups)
            else:
                found = collapsed_strides(source.get_shape(), strides, groups)
            if found is None:
                raise CannotReside(f"its rows are not seen as {'x'.join(map(str, shape))} where they lie apart on chip")
            return strided_type(source, shape, found, offset)
        case _:
            raise CannotReside(f"it is seen through {view.name}")


def _offset_of(type: MemRefType[Attribute]) -> int | None:
    """Where a memref begins, in elements; None where a loop decides it."""
    offset = type.get_offset()
    return offset if isinstance(offset, int) else None


def argument_type(type: MemRefType[Attribute]) -> MemRefType[Attribute]:
    """The type of the argument that takes a memref of this type: where it begins is left open, unless it is at 0."""
    return type if _offset_of(type) == 0 else strided_type(type, type.get_shape(), static_strides(type), None)


def rebuild(builder: Builder, views: Sequence[Operation], source: SSAValue) -> SSAValue:
    """The same views of another memref, as an argument takes them."""
    for view in views:
        if isinstance(view, memref.CastOp):
            continue
        clone = view.clone({view.operands[0]: source})
        builder.insert(clone)
        source = _with_type(clone, view_type(view, memref_of(source)))
    return as_argument(builder, source)


def _with_type(op: Operation, type: MemRefType[Attribute]) -> SSAValue:
    return Rewriter.replace_value_with_new_type(op.results[0], type)


def as_argument(builder: Builder, value: SSAValue) -> SSAValue:
    """The memref, cast to the type of an argument."""
    type = memref_of(value)
    assert scope_of(type) is not None
    wanted = argument_type(type)
    if wanted == type:
        return value
    return builder.insert(memref.CastOp.get(value, wanted)).dest
