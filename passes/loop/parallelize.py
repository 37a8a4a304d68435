# SPDX-License-Identifier: Apache-2.0
"""Iterations of the host's loops in several threads: `scf.for` as `scf.forall` with a number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.transforms.dead_code_elimination import is_trivially_dead

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import FORK, ProcessorOp, find_target
from penstock.dialects.upstream.scf import THREADS, ForallOp
from penstock.passes.analysis.effects import is_computed
from penstock.passes.analysis.kernels import calls_by_callee, host_functions, machine_of
from penstock.passes.analysis.loop_dependences import NestMemory
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.work import host_cycles
from penstock.passes.loop.sliced_ops import SlicedOp, dims_of_slices, loop_over_slices
from penstock.passes.planning.thread_shares import ENOUGH, largest_share, strips
from penstock.passes.schedule.loop_nests import body_of
from penstock.passes.schedule.primitives.parallel import parallel
from penstock.passes.schedule.primitives.split import split
from penstock.passes.schedule.rings import give_slots, is_own


@dataclass(frozen=True)
class _Kernel:
    """What is decided for the loops of one kernel."""

    threads: int
    fork_cycles: int
    processor: ProcessorOp | None
    function: func.FuncOp
    calls: Sequence[func.CallOp]
    """Of the function."""

    def run(self, block: Block) -> None:
        """Let the loops, structured ops and copies of a block run in several threads, as far as that pays."""
        for run in list(_runs(block)):
            self._slice(run)
        for op in list(block.ops):
            if isinstance(op, scf.ForOp):
                self._loop(op)
        for op in reversed(list(block.ops)):
            if is_trivially_dead(op):
                Rewriter.erase_op(op)

    def _pays(self, cycles: float, share: float) -> bool:
        return cycles * (1 - share) > self.fork_cycles

    # structured ops

    def _slice(self, run: Sequence[Operation]) -> None:
        """Make loops of ops that follow each other, one of several where their slices fit."""
        chosen = [self._dim_of(op) for op in run]
        while chosen:
            sliced, count = chosen[0], 1
            while sliced is not None and count < len(chosen):
                other = chosen[count]
                if other is None or other.extent != sliced.extent:
                    break
                count += 1
            group = [each for each in chosen[:count] if each is not None]
            while group and not self._loop_of(group):
                group.pop()
            del chosen[: max(len(group), 1)]

    def _dim_of(self, op: Operation) -> SlicedOp | None:
        """The outermost dim of an op that divides well, if threads pay."""
        dims = [each for each in dims_of_slices(op) if each.extent > 1]
        shares = {each: strips(each.extent, self.threads).longest(self.threads) / each.extent for each in dims}
        good = [each for each, share in shares.items() if share <= 1.1 * min(shares.values())]
        if not good or not self._pays(host_cycles(op, self.processor), shares[good[0]]):
            return None
        return good[0]

    def _loop_of(self, group: Sequence[SlicedOp]) -> bool:
        return loop_over_slices(group, strips(group[0].extent, self.threads).size, self.calls) is not None

    # loops

    def _loop(self, loop: scf.ForOp) -> None:
        """Let iterations of a loop run in several threads, or those of loops inside."""
        if (trips := trip_count(loop)) and not loop.iter_args:
            inner = self._only_loop(loop)
            nest = [loop] if inner is None else [loop, inner]
            alone = largest_share(trips, self.threads) / trips
            in_strips = (alone, lambda: self._in_strips(loop, trips))
            ways: list[tuple[float, Callable[[], ForallOp | None]]] = [(alone, lambda: self._parallel([loop]))]
            if inner is not None:
                together = trips * (trip_count(inner) or 1)
                ways.append((largest_share(together, self.threads) / together * ENOUGH, lambda: self._parallel(nest)))
            ways = [*sorted(ways, key=lambda way: way[0]), in_strips]
            if trips > 2 * self.threads and any(is_own(op) for op in loop.walk()):
                # Each strip has a copy of the buffers.
                ways.insert(0, in_strips)
            cycles = host_cycles(loop, self.processor)
            for share, way in ways:
                if self._pays(cycles, share) and (forall := way()) is not None:
                    self._finish(forall)
                    return
                if loop.parent is None:
                    # It became strips that cannot run at once.
                    return
        for op in body_of(loop) if loop.parent is not None else ():
            if isinstance(op, scf.ForOp):
                self._loop(op)

    def _only_loop(self, loop: scf.ForOp) -> scf.ForOp | None:
        """The loop in a loop, which make a perfect nest of constant bounds."""
        inner = [op for op in body_of(loop) if not is_computed(op)]
        if len(inner) != 1 or not isinstance(found := inner[0], scf.ForOp) or found.iter_args:
            return None
        return found if trip_count(found) else None

    def _in_strips(self, loop: scf.ForOp, trips: int) -> ForallOp | None:
        """Strips of a loop whose iterations depend on neighbours at most, as the last tiles that overlap do."""
        if loop.parent is None:
            return None
        try:
            found = NestMemory(self.function, self.calls).dependences([loop])
        except UserError:
            return None
        division = strips(trips, self.threads, least=2 if found else 1)
        if division.count < 2 or any(each.distances != (1,) for each in found):
            return None
        return self._parallel([split(loop, division.size).outer])

    def _parallel(self, nest: Sequence[scf.ForOp]) -> ForallOp | None:
        try:
            return parallel(nest, memory=NestMemory(self.function, self.calls))
        except UserError:
            return None

    def _finish(self, forall: ForallOp) -> None:
        """Say how many threads there are, and give each iteration its own buffers."""
        forall.attributes[THREADS] = IntegerAttr(self.threads, i64)
        give_slots(forall)


def _runs(block: Block) -> Iterator[list[Operation]]:
    """Structured ops and copies that follow each other, with nothing between them that does more than compute."""
    run: list[Operation] = []
    for op in block.ops:
        if dims_of_slices(op):
            run.append(op)
        elif not is_computed(op) and run:
            yield run
            run = []
    if run:
        yield run


@dataclass(frozen=True)
class ParallelizePass(ModulePass):
    """
    Let iterations of the host's loops run in `threads` threads.

    Works at the loop level, before `mem-plan`, on kernels of the host: outermost loops become `scf.forall` with the
    attribute `threads`, each thread taking adjacent iterations. It is done where it is proved that no iteration writes
    what another reads or writes, so the result is the same, to the bit, for any number of threads; sums are never
    divided. Structured ops and copies that are in no loop become loops over slices. Where an outer loop has too few
    iterations, it is run together with the next one; where the last two tiles of a loop overlap, strips of its
    iterations run at once. A buffer off chip that an iteration makes becomes a ring with a slot for each iteration;
    one in registers is its own already. What is too small to pay for starting threads stays sequential.

    Raises UserError for a number of threads below 1, and for a program of an accelerator.

    Before:
    ```mlir
    func.func private @k(%x: memref<4096x4096xf32>, %y: memref<4096x4096xf32>) {
      linalg.generic {
        indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]
      } ins(%x : memref<4096x4096xf32>) outs(%y : memref<4096x4096xf32>) {
      ^bb0(%a: f32, %b: f32):
        %n = arith.negf %a : f32
        linalg.yield %n : f32
      }
      func.return
    }
    ```
    After (`parallelize{threads=2}`):
    ```mlir
    func.func private @k(%x: memref<4096x4096xf32>, %y: memref<4096x4096xf32>) {
      scf.forall (%0) = (0) to (4096) step (2048) {
        %1 = memref.subview %x[%0, 0] [2048, 4096] [1, 1]
            : memref<4096x4096xf32> to memref<2048x4096xf32, strided<[4096, 1], offset: ?>>
        %2 = memref.subview %y[%0, 0] [2048, 4096] [1, 1]
            : memref<4096x4096xf32> to memref<2048x4096xf32, strided<[4096, 1], offset: ?>>
        linalg.generic {
          indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
          iterator_types = ["parallel", "parallel"]
        } ins(%1 : memref<2048x4096xf32, strided<[4096, 1], offset: ?>>)
          outs(%2 : memref<2048x4096xf32, strided<[4096, 1], offset: ?>>) {
        ^bb0(%a: f32, %b: f32):
          %n = arith.negf %a : f32
          linalg.yield %n : f32
        }
      } {threads = 2 : i64}
      func.return
    }
    ```
    """

    name = "parallelize"

    threads: int
    """How many threads run a loop, the caller's included."""
    fork_cycles: int | None = None
    """Cycles that it takes to start threads that wait, and to wait for the last of them; by default the machine's."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.threads < 1:
            raise UserError(f"a program has at least one thread, not {self.threads}")
        if (machine := machine_of(op)) is not None:
            raise UserError(
                f'threads are for programs of the host, and this one is for "{machine.machine_name}"',
                notes=["a machine that is a CPU, such as host-avx2, is the host"],
            )
        if self.threads == 1:
            return
        target = find_target(op)
        processor = None if target is None else target.processor()
        cost = self.fork_cycles
        if cost is None:
            cost = FORK if processor is None else processor.fork_cycles
        calls = calls_by_callee(op)
        for function in host_functions(op):
            if len(function.body.blocks) == 1:
                own = calls.get(function.sym_name.data, ())
                _Kernel(self.threads, cost, processor, function, own).run(function.body.block)
