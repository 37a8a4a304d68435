"""Promote through the scopes between: copies that no DMA makes go through buffers that inner loops read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.transforms.dead_code_elimination import region_dce
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, element_bytes, scope_of, span_in_bytes
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.loops import is_inside, nest_around, trip_count
from penstock.passes.analysis.memory.memory_problems import bytes_taken
from penstock.passes.analysis.memory.storage import in_scope, is_written, storage_of
from penstock.passes.analysis.scope_paths import no_path, scope_path
from penstock.passes.index_builder import Index, materialize
from penstock.passes.planning.problem import Limits


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


FIT_PLANNER = "first-fit-by-size"
"""The planner that decides whether a choice fits: one pass over the buffers, and close to the best."""


@dataclass(frozen=True)
class Level:
    """One place for the buffer of a copy: before `loop`, or where the copy is."""

    depth: int
    """How many loops are around it."""
    size: int
    """Bytes of the buffer."""
    traffic: int
    """Bytes that are moved into it altogether."""


@dataclass(frozen=True)
class Detour:
    """A copy between scopes that no engine joins, and the scope that comes next on its path."""

    copy: CopyOp
    through: str


def detours(function: func.FuncOp, target: TargetOp) -> list[Detour]:
    """The copies of a kernel that no engine makes, in order. Raises UserError where not even a path leads."""
    found: list[Detour] = []
    for copy in [op for op in function.walk() if isinstance(op, CopyOp)]:
        start, end = scope_of(copy.source_type) or DRAM, scope_of(copy.dest_type) or DRAM
        if target.dma_between(start, end) is not None:
            continue
        path = scope_path(target, start, end)
        if path is None:
            raise no_path(target, start, end, copy)
        found.append(Detour(copy, path[1]))
    return found


def _loops(copy: CopyOp) -> tuple[scf.ForOp, ...]:
    """The loops around a copy, outermost first; none if there are other ops in between."""
    loops = nest_around(copy)
    return loops if isinstance((loops[0] if loops else copy).parent_op(), func.FuncOp) else ()


def levels_of(detour: Detour, target: TargetOp, *, hoist: bool = True) -> list[Level]:
    """The levels worth trying, by falling size: each moves less than all that are smaller. The last if not `hoist`."""
    copy = detour.copy
    source, loops = source_of(copy), _loops(copy)
    levels: list[Level] = []
    times = 1
    for depth, loop in enumerate([*loops, None]):
        held = footprint(source, loop)
        if held is not None and (loop is None or _may_be_read_before(loop, copy)):
            moved = times * prod(held.extents) * element_bytes(copy.source_type)
            levels.append(Level(depth, span_in_bytes(_buffer_type(held, copy, target, detour.through)), moved))
        trips = trip_count(loop) if loop is not None else 1
        if trips is None:
            # How often this loop runs is not known: only what is inside it can be compared.
            levels.clear()
        times *= trips or 1
    if not hoist:
        return levels[-1:]
    kept: list[Level] = []
    for level in sorted(levels, key=lambda level: (level.traffic, level.size)):
        if not kept or level.size < kept[-1].size:
            kept.append(level)
    return kept


def _may_be_read_before(loop: scf.ForOp, copy: CopyOp) -> bool:
    """Whether what `copy` reads in the loop is there before it, and may come in another box than its own."""
    storage = storage_of(copy.source)
    written = any(is_written(op, storage) for op in loop.walk() if isinstance(op, CopyOp | GenericOp))
    return not written and copy.window_side != "dest"


def _buffer_type(held: Footprint, copy: CopyOp, target: TargetOp, scope: str) -> MemRefType[Attribute]:
    return in_scope(MemRefType(copy.source_type.element_type, held.extents), target, scope)


def route(function: func.FuncOp, target: TargetOp, *, hoist: bool = True, reserve: float = 0.0) -> func.FuncOp | None:
    """
    A kernel that computes what `function` does, and in which an engine makes every copy; None if `function` is one.

    Without `hoist` every copy goes through the scopes between where it is, a tile at a time. The share `reserve` of
    these scopes is left free as far as fetching later can do that.
    Raises UserError for a copy between scopes that no path of engines joins.
    """
    routed = None
    while found := detours(function, target):
        levels = [levels_of(detour, target, hoist=hoist) for detour in found]
        chosen = [0] * len(found)
        while True:
            routed = function.clone()
            for detour, options, number in zip(detours(routed, target), levels, chosen, strict=True):
                _split(detour, target, options[number].depth)
            full = {scope for scope in {each.through for each in found} if _is_full(routed, target, scope, reserve)}
            inwards = _least_profitable(found, levels, chosen, full)
            if inwards is None:
                break
            chosen[inwards] += 1
        function = routed
    return routed


def _least_profitable(
    found: Sequence[Detour], levels: Sequence[Sequence[Level]], chosen: Sequence[int], full: set[str]
) -> int | None:
    """The buffer in a full scope that is to be moved inwards; None if there is no need, or no choice is left."""
    prices: dict[int, Fraction] = {}
    for number, (detour, options, level) in enumerate(zip(found, levels, chosen, strict=True)):
        if detour.through in full and level + 1 < len(options):
            here, inner = options[level], options[level + 1]
            prices[number] = Fraction(inner.traffic - here.traffic, here.size - inner.size)
    return min(prices, key=lambda number: (prices[number], number), default=None)


def _is_full(function: func.FuncOp, target: TargetOp, scope: str, reserve: float) -> bool:
    """Whether a plan that is made at once does not fit a scope beside what is reserved."""
    taken = bytes_taken(function, target, scope, FIT_PLANNER, Limits())
    return taken is None or taken > int(target.scope(scope).size_bytes * (1 - reserve))


def _split(detour: Detour, target: TargetOp, depth: int) -> None:
    """Make the copy through a buffer that is filled inside of `depth` loops."""
    copy, loops = detour.copy, _loops(detour.copy)
    loop = loops[depth] if depth < len(loops) else None
    held = footprint(source_of(copy), loop)
    assert held is not None
    outside = Builder(InsertPoint.before(copy if loop is None else loop))
    buffer = outside.insert(BufferOp(_buffer_type(held, copy, target, detour.through)))
    buffer.memref.name_hint = copy.source.name_hint or copy.dest.name_hint
    origins = held.build_origins(outside)
    is_all = held.extents == held.source.shape
    fill = outside.insert(CopyOp(held.source.memref, buffer, source_offsets=() if is_all else origins))
    inside = Builder(InsertPoint.before(copy))
    offsets = held.build_offsets(inside, origins)
    is_window = held.extents != copy.box or any(offset != 0 for offset in offsets)
    rest = inside.insert(
        CopyOp(
            buffer,
            copy.dest,
            source_offsets=offsets if is_window else (),
            dest_offsets=copy.mixed_dest_offsets() if copy.window_side == "dest" else (),
            padding=copy.padding if is_window else None,
        )
    )
    for op in (buffer, fill, rest):
        op.location = copy.location
    Rewriter.erase_op(copy)


@dataclass(frozen=True)
class PromoteLevelsPass(ModulePass):
    """
    Route every `mem.copy` of the machine's kernels along a path of DMA engines, through buffers that are filled early.

    Requires the loop level, promoted, its scopes not planned yet. Where no engine joins the two scopes of a copy, it
    becomes one copy for each step of a shortest path. What a step only reads is fetched before the outermost loop
    before which all that the loops read of it, a static box, still fits: then those loops read the scope
    between, and not the chip's edge. What is written in the loops takes the same path a tile at a time. Guarantees:
    an engine makes every copy, and the planner `first-fit-by-size` finds a plan for the scopes between, if it does
    when all goes a tile at a time. Raises UserError for a copy that no path of engines makes.

    Before:
    ```mlir
    machine.target @two_levels frequency 100 {
      machine.scope @sram size 1024 granule 16 dtypes [f32] parent @dram
      machine.scope @core size 64 granule 16 dtypes [f32] parent @sram
      machine.unit @load
      machine.dma @fetch unit @load from [@dram] to [@sram] dims 2 latency 10 row_overhead 1 outstanding 1
      machine.dma @feed unit @load from [@sram] to [@core] dims 2 latency 1 row_overhead 0 outstanding 1
    }
    func.func private @k(%x: memref<64xf32>) attributes {device = @two_levels} {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %many = arith.constant 100 : index
      %end = arith.constant 64 : index
      %tile = arith.constant 16 : index
      scf.for %again = %zero to %many step %one {
        scf.for %i = %zero to %end step %tile {
          %a = mem.buffer : memref<16xf32, "core">
          mem.copy %x[%i] to %a : memref<64xf32> to memref<16xf32, "core">
        }
      }
      func.return
    }
    ```
    After (`promote-levels`):
    ```mlir
    machine.target @two_levels frequency 100 {
      machine.scope @sram size 1024 granule 16 dtypes [f32] parent @dram
      machine.scope @core size 64 granule 16 dtypes [f32] parent @sram
      machine.unit @load
      machine.dma @fetch unit @load from [@dram] to [@sram] dims 2 latency 10 row_overhead 1 outstanding 1
      machine.dma @feed unit @load from [@sram] to [@core] dims 2 latency 1 row_overhead 0 outstanding 1
    }
    func.func private @k(%x: memref<64xf32>) attributes {device = @two_levels} {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %many = arith.constant 100 : index
      %end = arith.constant 64 : index
      %tile = arith.constant 16 : index
      %x_1 = mem.buffer : memref<64xf32, "sram">
      mem.copy %x to %x_1 : memref<64xf32> to memref<64xf32, "sram">
      scf.for %again = %zero to %many step %one {
        scf.for %i = %zero to %end step %tile {
          %a = mem.buffer : memref<16xf32, "core">
          mem.copy %x_1[%i] to %a : memref<64xf32, "sram"> to memref<16xf32, "core">
        }
      }
      func.return
    }
    ```
    """

    name = "promote-levels"

    hoist: bool = True
    """Fetch what inner loops read again before them; otherwise a tile at a time, to see what that costs."""
    reserve: float = 0.0
    """The share of a scope between that early fetches leave free, for what stays there between kernels."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not 0 <= self.reserve < 1:
            raise UserError(f"promote-levels: a reserve of {self.reserve} is no share from 0 to below 1")
        target, functions = machine_kernels(op)
        for function in functions:
            assert target is not None
            routed = route(function, target, hoist=self.hoist, reserve=self.reserve)
            if routed is not None:
                Rewriter.replace_op(function, routed, [])
                # Views that only the copies read, and what computed their places.
                region_dce(routed.body)
