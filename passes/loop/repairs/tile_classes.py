"""
Which dims of which buffers are one and the same dim of a tile, from the index maps of the ops that use them.

A dim of a domain and a dim of a buffer are the same if the op indexes the one by the other alone, over all of it; dims
of two buffers are, if a copy takes all of the one to all of the other. The classes of this relation are what one
tile size decides. A dim that several of them index, as a window does in a convolution, shrinks with each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.utils.disjoint_set import DisjointSet

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, SlotOp, memref_of
from penstock.passes.analysis.memory.liveness import Allocation
from penstock.passes.analysis.memory.memory_problems import element_memref
from penstock.passes.analysis.memory.storage import in_scope

Dim = tuple[GenericOp | Allocation, int]
"""A dim of a domain, or of a buffer."""


@dataclass(frozen=True)
class Cut:
    """What it does to buffers that a tile is made smaller."""

    shapes: dict[Allocation, tuple[int, ...]]
    """The new shapes of those that become smaller."""
    cells: dict[Allocation, int]
    """Of these, the elements that all parts have together: more than before where they overlap."""
    parts: int
    over: tuple[GenericOp, ...]
    """The ops over the dims that are cut."""
    whole_inputs: tuple[Allocation, ...]
    """What these read and what does not become smaller: each part needs all of it."""
    whole_outputs: tuple[Allocation, ...]
    """The same of what they write: each part adds to all of it."""


@dataclass(frozen=True)
class _Use:
    """An operand of an op of a function: all of a buffer, by an index map."""

    generic: GenericOp
    buffer: Allocation
    map: AffineMap
    is_input: bool


@dataclass(frozen=True)
class TileClass:
    """Dims of one size that one tile size decides."""

    extent: int
    members: frozenset[Dim]
    _uses: tuple[_Use, ...]

    def cut(self, size: int) -> Cut:
        """What tiles of `size` in these dims do."""
        shapes: dict[Allocation, list[int]] = {}
        for use in self._uses:
            domain = [
                size if (use.generic, number) in self.members else extent
                for number, extent in enumerate(_extents(use.generic))
            ]
            here = _reach(use.map, domain)
            before = shapes.setdefault(use.buffer, [0] * len(here))
            shapes[use.buffer] = [max(a, b) for a, b in zip(before, here, strict=True)]
        for owner, at in self.members:
            if not isinstance(owner, GenericOp):
                shapes.setdefault(owner, [*element_memref(owner).get_shape()])[at] = size
        parts = -(-self.extent // size)
        smaller = {op: tuple(shape) for op, shape in shapes.items() if shape != [*element_memref(op).get_shape()]}
        cells = {op: prod(self._over_all_parts(op, shape, parts)) for op, shape in smaller.items()}
        over = tuple(dict.fromkeys(use.generic for use in self._uses if self._is_over(use)))
        whole = [use for use in self._uses if self._is_over(use) and use.buffer not in smaller]
        return Cut(
            smaller,
            cells,
            parts,
            over,
            tuple(dict.fromkeys(use.buffer for use in whole if use.is_input)),
            tuple(dict.fromkeys(use.buffer for use in whole if not use.is_input)),
        )

    def _is_over(self, use: _Use) -> bool:
        return any(owner is use.generic for owner, _ in self.members)

    def _over_all_parts(self, op: Allocation, shape: tuple[int, ...], parts: int) -> Iterator[int]:
        """The sizes of a buffer's dims, summed over the parts where a dim is cut."""
        for at, (size, before) in enumerate(zip(shape, element_memref(op).get_shape(), strict=True)):
            yield before if size == before or (op, at) in self.members else size * parts


def tile_classes(function: func.FuncOp) -> list[TileClass]:
    """The classes of at least two elements that domains of `function` have, in the order in which they occur."""
    uses = tuple(_uses(function))
    same: DisjointSet[Dim] = DisjointSet()
    dims: dict[Dim, None] = {}

    def join(one: Dim, other: Dim) -> None:
        for dim in (one, other):
            if dim not in dims:
                dims[dim] = None
                same.add(dim)
        same.union(one, other)

    for use in uses:
        for number in range(len(_extents(use.generic))):
            join((use.generic, number), (use.generic, number))
        for at, expr in enumerate(use.map.results):
            if isinstance(expr, AffineDimExpr):
                join((use.generic, expr.position), (use.buffer, at))
    for one, other in _copied_whole(function):
        join(one, other)
    members: dict[Dim, list[Dim]] = {}
    for dim in dims:
        members.setdefault(same.find(dim), []).append(dim)
    classes: list[TileClass] = []
    for each in members.values():
        sizes = {_size(dim) for dim in each}
        if len(sizes) == 1 and max(sizes) > 1 and any(isinstance(owner, GenericOp) for owner, _ in each):
            classes.append(TileClass(max(sizes), frozenset(each), uses))
    return classes


def resized(type: MemRefType[Attribute], shape: tuple[int, ...], target: TargetOp, scope: str) -> MemRefType[Attribute]:
    """The type of a smaller buffer, with gaps between its rows where promotion would leave them as it did here."""
    plain = MemRefType(type.element_type, type.get_shape())
    adjoining = next(
        (
            count
            for count in range(1, len(shape) + 1)
            if in_scope(plain, target, scope, count).get_strides() == type.get_strides()
        ),
        1,
    )
    return in_scope(MemRefType(type.element_type, shape), target, scope, adjoining)


def _size(dim: Dim) -> int:
    owner, at = dim
    return _extents(owner)[at] if isinstance(owner, GenericOp) else element_memref(owner).get_shape()[at]


def _extents(generic: GenericOp) -> tuple[int, ...]:
    return tuple(generic.get_static_loop_ranges())


def _reach(map: AffineMap, domain: Sequence[int]) -> list[int]:
    """The shape of what a map reaches over a domain; its coefficients are not negative."""
    return [last + 1 for last in map.eval([size - 1 for size in domain], [])]


def _uses(function: func.FuncOp) -> Iterator[_Use]:
    """The operands that are all of a buffer, no more and no less; the ops have static domains."""
    for generic in function.walk():
        if not isinstance(generic, GenericOp):
            continue
        if any(not isinstance(o.type, MemRefType) or not memref_of(o).has_static_shape() for o in generic.operands):
            continue
        domain = _extents(generic)
        for number, (operand, map) in enumerate(zip(generic.operands, generic.indexing_maps, strict=True)):
            buffer = _buffer_of(operand)
            if buffer is not None and _reach(map.data, domain) == list(element_memref(buffer).get_shape()):
                yield _Use(generic, buffer, map.data, number < len(generic.inputs))


def _buffer_of(value: SSAValue) -> Allocation | None:
    """The buffer that a value is all of."""
    match value.owner:
        case BufferOp() | memref.AllocOp() | memref.AllocaOp():
            return value.owner
        case SlotOp(ring=ring) if isinstance(ring.owner, RingOp):
            return ring.owner
        case _:
            return None


def _copied_whole(function: func.FuncOp) -> Iterator[tuple[Dim, Dim]]:
    for copy in function.walk():
        if not isinstance(copy, CopyOp):
            continue
        source, dest = _buffer_of(copy.source), _buffer_of(copy.dest)
        if source is None or dest is None:
            continue
        for at, (size, one, other) in enumerate(
            zip(copy.box, element_memref(source).get_shape(), element_memref(dest).get_shape(), strict=True)
        ):
            if one == size == other:
                yield (source, at), (dest, at)
