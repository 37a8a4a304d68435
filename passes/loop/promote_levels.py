# SPDX-License-Identifier: Apache-2.0
"""Promote through the scopes between: copies that no DMA makes go through buffers that inner loops read again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, element_bytes, span_in_bytes
from penstock.dialects.remarks import remark
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.loops import nest_around, trip_count
from penstock.passes.analysis.memory.memory_problems import bytes_taken
from penstock.passes.analysis.memory.storage import in_scope
from penstock.passes.analysis.scope_paths import no_path, stop_between
from penstock.passes.planning.problem import Limits
from penstock.passes.schedule.deciding import run_section
from penstock.passes.schedule.footprint import Footprint
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import LOOPS
from penstock.passes.schedule.staging import place_of, read_by, split_copy
from penstock.passes.schedule.state import TransformState

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
    """A copy between scopes that no engine joins, and the scope by way of which it is made."""

    copy: CopyOp
    through: str


def detours(function: func.FuncOp, target: TargetOp) -> list[Detour]:
    """The copies of a kernel that no engine makes, in order. Raises UserError where one cannot be made at all."""
    found: list[Detour] = []
    for copy in [op for op in function.walk() if isinstance(op, CopyOp)]:
        start, end = place_of(copy.source), place_of(copy.dest)
        if target.dma_between(start, end) is not None:
            continue
        through = stop_between(target, start, end)
        if through is None:
            raise no_path(target, start, end, copy)
        found.append(Detour(copy, through))
    return found


def _loops(copy: CopyOp) -> tuple[scf.ForOp, ...]:
    """The loops around a copy, outermost first; none if there are other ops in between."""
    loops = nest_around(copy)
    return loops if isinstance((loops[0] if loops else copy).parent_op(), func.FuncOp) else ()


def levels_of(detour: Detour, target: TargetOp, aliased: Collection[SSAValue], *, hoist: bool = True) -> list[Level]:
    """The levels worth trying, by falling size: each moves less than all that are smaller. The last if not `hoist`."""
    copy, loops = detour.copy, _loops(detour.copy)
    levels: list[Level] = []
    times = 1
    for depth, loop in enumerate([*loops, None]):
        held = read_by(copy, 0, loop, aliased)
        if isinstance(held, Footprint):
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


def _buffer_type(held: Footprint, copy: CopyOp, target: TargetOp, scope: str) -> MemRefType[Attribute]:
    return in_scope(MemRefType(copy.source_type.element_type, held.extents), target, scope)


@dataclass(frozen=True)
class Routing:
    """The search for the places of the buffers in the scopes between."""

    hoist: bool
    reserve: float

    def write(self, schedule: Schedule) -> None:
        """
        Write the places as the schedule of a kernel.

        Raises UserError for a copy between scopes that engines join in no way.
        """
        kernel, target = schedule.state.kernel, schedule.state.target
        assert target is not None
        while found := detours(kernel, target):
            depths = self._choose(schedule.state, found, target)
            handles = schedule.handles(detour.copy for detour in found)
            for detour, depth, handle in zip(found, depths, handles, strict=True):
                if detour.through == DRAM:
                    ends = f'from "{place_of(detour.copy.source)}" to "{place_of(detour.copy.dest)}"'
                    remark(detour.copy, "missed", f"copied by way of off chip: no engine leads {ends}")
                out = len(_loops(detour.copy)) - depth
                loop = schedule.parent(handle, scf.ForOp.name, out) if out > 0 else None
                schedule.stage_in(handle, 0, detour.through, at=loop)

    def _choose(self, state: TransformState, found: Sequence[Detour], target: TargetOp) -> list[int]:
        """How many loops are to be around the buffer of each copy."""
        levels = [levels_of(detour, target, state.aliased, hoist=self.hoist) for detour in found]
        chosen = [0] * len(found)
        while True:
            now = [options[number] for options, number in zip(levels, chosen, strict=True)]
            full = self._full(state.kernel, found, now, target)
            inwards = _least_profitable(found, levels, chosen, full)
            if inwards is None:
                return [level.depth for level in now]
            chosen[inwards] += 1

    def _full(
        self, function: func.FuncOp, found: Sequence[Detour], chosen: Sequence[Level], target: TargetOp
    ) -> set[str]:
        """The scopes that a plan which is made at once does not fit beside what is reserved."""
        scopes = dict.fromkeys(detour.through for detour in found if detour.through != DRAM)
        room = {scope: int(target.scope(scope).size_bytes * (1 - self.reserve)) for scope in scopes}
        sizes = [(op.scope, op.size_in_bytes) for op in function.walk() if isinstance(op, BufferOp)]
        sizes += [(detour.through, level.size) for detour, level in zip(found, chosen, strict=True)]
        crowded = [scope for scope in scopes if _side_by_side(sizes, scope, target) > room[scope]]
        if not crowded:
            return set()
        trial = function.clone()
        for detour, level in zip(detours(trial, target), chosen, strict=True):
            loops = _loops(detour.copy)
            loop = loops[level.depth] if level.depth < len(loops) else None
            held = read_by(detour.copy, 0, loop, ())
            assert isinstance(held, Footprint)
            split_copy(detour.copy, _buffer_type(held, detour.copy, target, detour.through), held, loop)
        taken = {scope: bytes_taken(trial, target, scope, FIT_PLANNER, Limits()) for scope in crowded}
        return {scope for scope, size in taken.items() if size is None or size > room[scope]}


def _side_by_side(sizes: Sequence[tuple[str | None, int]], scope: str, target: TargetOp) -> int:
    """The bytes that buffers take in a scope if none shares bytes with another: no plan of the planner takes more."""
    granule = target.scope(scope).granule_bytes
    return sum(-(-size // granule) * granule for place, size in sizes if place == scope)


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


@dataclass(frozen=True)
class PromoteLevelsPass(ModulePass):
    """
    Route every `mem.copy` of the machine's kernels along a path of DMA engines, through buffers that are filled early.

    Requires the loop level, promoted, its scopes not planned yet. Where no engine joins the two scopes of a copy, it
    becomes one copy for each step of a shortest path; where none leads there, of the way out to the nearest scope from
    where one does; a remark says where that is off chip. What a step only reads is fetched before the outermost loop
    before which all that the loops read of it, a static box, still fits: then those loops read the scope between, and
    not the chip's edge. What is written in the loops takes the same path a tile at a time. Guarantees: an engine makes
    every copy, and the planner `first-fit-by-size` finds a plan for the scopes between, if it does when all goes a tile
    at a time. Raises UserError for a copy that engines make in no way.

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
            run_section(ctx, function, target, LOOPS, Routing(self.hoist, self.reserve).write, leads=False)
