# SPDX-License-Identifier: Apache-2.0
"""`mem-promote`: which tensors of `@main` stay on chip between its kernels, and which are spilled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.loop.on_chip.choice import BYTES, OBJECTIVES, Chooser
from penstock.passes.loop.on_chip.pinned_kernels import ensure_plan
from penstock.passes.loop.on_chip.places import Specializer
from penstock.passes.loop.on_chip.prediction import Prediction, remarks, write_down
from penstock.passes.loop.on_chip.program import edge_traffic, program_use
from penstock.passes.loop.on_chip.rewrite import Rewrite
from penstock.passes.planning.on_chip.registry import DEFAULT_STRATEGY, Options
from penstock.passes.planning.on_chip.registry import strategy as find_strategy
from penstock.passes.planning.registry import DEFAULT_PLANNER
from penstock.passes.planning.registry import planner as find_planner


@dataclass(frozen=True)
class MemPromotePass(ModulePass):
    r"""
    Keep tensors on chip between the kernels of `@main`, as a strategy decides, and spill where it says so.

    A tensor may stay in a scope from one access to the next where the kernels can use it there: by an engine that
    leads between that scope and those of their tiles, or because their tiles are in that scope and become parts of
    the tensor. Such a kernel gets a copy of its own, made for arguments that are on chip; every op of it is proved to
    be an intrinsic again. Where windows reach out of bounds, the tensor lies in a border of padding, filled before.
    All other accesses stream, as before. What is filled from off chip, and what is written back because it is needed
    there later, is a kernel of its own, `@fill` or `@spill`, with one copy. A loop is one step: what its iterations
    read, make, or leave to each other (`rotate-carried`) is on chip in all of them or in none.

    Required: the loop level, tensorized, scopes not planned yet; arguments of `@main` that do not overlap. Guaranteed:
    the same results, bit for bit; `mem-plan` finds a plan; the bytes that DMA engines move over the chip's edge in one
    run are those in `predicted_traffic` of `@main`, to the byte. Its `on_chip_allocation` says what stays, where, and
    why other tensors do not. A module without a machine, or without kernels for it, is left alone, and so is one in
    which some buffer has an offset in a scope: others might not fit beside it. Raises UserError for an unknown strategy
    or planner, and for a kernel whose bytes depend on more than loops and constants.

    Strategies: `none`; `toplib` (Li et al., NPC 2020), `onsram-static` and `onsram-eager` (Pal et al., ACM TECS 2022);
    `milp` and `sweep`, the optimum where it is proved, with HiGHS and without; `greedy` and `one-step` to compare with;
    and those of other packages. With `objective=cycles`, on a machine whose file says how fast its buses are, they save
    cycles: those of each kernel where it streams a tensor and where it finds it on chip, and of the kernels that fill
    and write back, as the model of latency hiding times their loops (`on_chip.times`).

    Before:
    ```mlir
    func.func @main(%x: memref<16xf32>, %y: memref<16xf32> {graph.output = "y"}) {
      %t = memref.alloc() : memref<16xf32>
      func.call @k(%x, %t) : (memref<16xf32>, memref<16xf32>) -> ()
      func.call @k(%t, %y) : (memref<16xf32>, memref<16xf32>) -> ()
      func.return
    }
    func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @gemmini_fp32} {
      %tile = mem.buffer : memref<16xf32, "spad">
      mem.copy %x to %tile : memref<16xf32> to memref<16xf32, "spad">
      mem.copy %tile to %y : memref<16xf32, "spad"> to memref<16xf32>
      func.return
    }
    ```
    After (`mem-promote{strategy=toplib}` on `gemmini-fp32`):
    ```mlir
    func.func @main(%x: memref<16xf32>, %y: memref<16xf32> {graph.output = "y"}) attributes {
        predicted_traffic = {strategy = "toplib", bytes_in = 64 : i64, bytes_out = 64 : i64, if_streamed = 256 : i64},
        on_chip_allocation = ["%t stays in \22spad\22 at 0 from @k to @k: 128 of 128 bytes saved"]} {
      %t = mem.buffer at 0 : memref<16xf32, "spad">
      func.call @k_on_chip(%x, %t) : (memref<16xf32>, memref<16xf32, "spad">) -> ()
      func.call @k_on_chip_1(%t, %y) : (memref<16xf32, "spad">, memref<16xf32>) -> ()
      func.return
    }
    func.func private @k_on_chip(%x: memref<16xf32>, %y: memref<16xf32, "spad">) attributes {device = @gemmini_fp32} {
      mem.copy %x to %y : memref<16xf32> to memref<16xf32, "spad">
      func.return
    }
    func.func private @k_on_chip_1(%x: memref<16xf32, "spad">, %y: memref<16xf32>) attributes {device = @gemmini_fp32} {
      mem.copy %x to %y : memref<16xf32, "spad"> to memref<16xf32>
      func.return
    }
    ```
    """

    name = "mem-promote"

    strategy: str = DEFAULT_STRATEGY
    """The strategy that decides what stays."""
    objective: str = BYTES
    """What the strategy is to save: `bytes` over the edge of the chip, or the modelled `cycles` of the kernels."""
    planner: str = DEFAULT_PLANNER
    """The planner that finds a place for what stays."""
    time_limit: int | float | None = None
    """Seconds after which a strategy that searches returns the best that it has."""
    iterations: int = 2
    """Which run of the program this is, for a strategy that learns from those before."""

    PARTS: ClassVar = {"strategy": find_strategy, "planner": find_planner}
    """What finds the part that an option names."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.objective not in OBJECTIVES:
            notes = [nearest_or_all(self.objective, OBJECTIVES, "objectives")]
            raise UserError(f'there is no objective "{self.objective}"', notes=notes)
        program = program_use(op)
        if program is None or _is_planned(op):
            return
        before = edge_traffic(op)
        made = Specializer(program.target)
        options = Options(self.time_limit, self.planner, self.iterations)
        chooser = Chooser(program, made, self.strategy, options, self.objective)
        decisions = chooser.run()
        lines = list(remarks(program, decisions, chooser.offered))
        Rewrite(op, program, made).run(decisions)
        for decision in decisions:
            if decision.kept():
                ensure_plan(op, decision, program.steps)
        # Counted anew: a buffer that becomes part of a tensor may change the commands that read something else.
        into, out = edge_traffic(op)
        write_down(op, Prediction(into, out, sum(before), self.strategy), lines)


def _is_planned(module: ModuleOp) -> bool:
    return any(
        isinstance(op, ScopedAllocation) and op.scope is not None and op.byte_offset is not None for op in module.walk()
    )
