# SPDX-License-Identifier: Apache-2.0
"""Promote what the machine computes on into its scopes: buffers, and the copies that fill and empty them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from xdsl.context import Context
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, REGISTERS, TargetOp
from penstock.dialects.mem import CopyOp, memref_of, scope_of, span_in_bytes
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.intrinsics import Match, candidates, choose_matches
from penstock.passes.analysis.kernels import (
    has_reduction,
    is_contraction,
    kernels,
    machine_kernels,
    processor_of,
    reads_windows,
)
from penstock.passes.analysis.memory.stated_scopes import stated_scope, stating
from penstock.passes.analysis.memory.storage import in_scope, overwrites, reads_and_writes, storage_of, uses_through
from penstock.passes.schedule.deciding import require_kernels, run_section
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import LOOPS
from penstock.passes.schedule.staging import place_of, writers_of


@dataclass
class Promotion:
    """The intrinsics that the ops of one kernel are to become, and the scopes where these want their operands."""

    function: func.FuncOp
    target: TargetOp
    matches: dict[GenericOp, Match] = field(default_factory=dict[GenericOp, Match])

    def write(self, schedule: Schedule) -> None:
        """Write it as the schedule of the kernel."""
        generics = [op for op in self.function.walk() if isinstance(op, GenericOp)]
        scopes = self._choose(generics)
        for (allocation, scope), handle in zip(scopes.items(), schedule.handles(scopes), strict=True):
            schedule.set_scope(handle, scope, contiguous=self._adjoining(allocation.memref))
        for generic, handle in zip(generics, schedule.handles(generics), strict=True):
            self._stage(schedule, generic, handle)

    def _stage(self, schedule: Schedule, generic: GenericOp, handle: SSAValue) -> None:
        """Bring the operands of an op into the scopes where its intrinsic wants them."""
        match = self.matches[generic]
        for number in range(len(generic.operands)):
            operand, scope = generic.operands[number], match.scope_of_operand(number)
            if scope == place_of(operand):
                continue
            # What this op only reads is brought over as it is now: what another intrinsic left in its scope, and what
            # is written by another name alone, which must not be written back over what this op writes.
            is_written_here = operand in generic.outputs
            is_left = place_of(operand) != DRAM or not any(reads_and_writes(use)[1] for use in operand.uses)
            is_read = (is_left and not is_written_here) or not writers_of(operand)
            stage = schedule.stage_in if is_read else schedule.stage_out
            stage(handle, number, scope, contiguous=match.adjoining(number))

    def _choose(self, generics: list[GenericOp]) -> dict[memref.AllocOp, str]:
        """An intrinsic for every generic, and a scope for every allocation."""
        # What is written stays in its scope from one op to the next, wherever it goes in the end.
        chosen, scopes = choose_matches(
            {generic: self._options(generic) for generic in generics},
            lambda value: (storage_of(value), scope_of(value.type) or stated_scope(storage_of(value))),
            lambda generic, value, scope: (
                stated_scope(storage_of(value)) is None
                and (
                    isinstance(storage_of(value).owner, memref.AllocOp) or (value in generic.outputs and scope != DRAM)
                )
            ),
        )
        self.matches.update((generic, match) for generic, match in chosen.items() if match is not None)
        scopes |= self._places_of_copies() | dict(stating(self.function))
        placed = [(root.owner, scope) for root, scope in scopes.items() if scope != DRAM]
        return {owner: scope for owner, scope in placed if isinstance(owner, memref.AllocOp)}

    def _places_of_copies(self) -> dict[SSAValue, str]:
        """A scope for what only copies fill and read: the first that holds it and has engines from and to off chip."""
        found: dict[SSAValue, str] = {}
        for op in self.function.walk():
            uses = list(uses_through(op.memref)) if isinstance(op, memref.AllocOp) else []
            if uses and all(isinstance(use.operation, CopyOp) for use in uses):
                (value,) = op.results
                for name, scope in self.target.scopes().items():
                    type = in_scope(memref_of(value), self.target, name)
                    joined = self.target.dma_between(DRAM, name), self.target.dma_between(name, DRAM)
                    holds = type.element_type in scope.dtypes.data and span_in_bytes(type) <= scope.size_bytes
                    if holds and None not in joined:
                        found.setdefault(value, name)
        return found

    def _options(self, generic: GenericOp) -> list[Match]:
        access = access_of(generic, placed=False)
        matches, failures = candidates(access, self.target) if access is not None else ([], [])
        if not matches:
            raise UserError(
                f"no intrinsic of @{self.target.sym_name.data} computes this op of @{self.function.sym_name.data}",
                loc=location_of(generic),
                notes=[f"@{failure.intrinsic}: {failure.reason}" for failure in failures],
            )
        return matches

    def _adjoining(self, allocation: SSAValue) -> int:
        """How many of its last dims some intrinsic needs without gaps."""
        found = (
            match.adjoining(number)
            for generic, match in self.matches.items()
            for number, operand in enumerate(generic.operands)
            if storage_of(operand) is allocation
        )
        return max(found, default=1)


_IN_REGISTERS = (GenericOp, memref.ExpandShapeOp, memref.SubviewOp)
"""What uses a local variable."""


def _keep_sums(kernel: func.FuncOp, target: TargetOp, schedule: Schedule) -> None:
    """Let the sums of the host's tiles live in its registers."""
    registers = target.scope(REGISTERS)
    used: list[tuple[Operation, int]] = []

    def has_room(loop: Operation, type: MemRefType[Attribute]) -> bool:
        """Take room for a value of the iterations of a loop, beside those of the loops around it and in it."""
        size = span_in_bytes(type)
        beside = sum(taken for other, taken in used if other.is_ancestor(loop) or loop.is_ancestor(other))
        if type.element_type not in registers.dtypes.data or beside + size > registers.size_bytes:
            return False
        used.append((loop, size))
        return True

    # The innermost first, which are used most often.
    kept: list[memref.AllocOp] = []
    for op, loop in reversed([(op, op.parent_op()) for op in kernel.walk() if isinstance(op, memref.AllocOp)]):
        if (
            isinstance(loop, scf.ForOp)
            and all(isinstance(use.operation, _IN_REGISTERS) for use in op.memref.uses)
            and any(_is_sum(use.operation, op.memref) for use in op.memref.uses)
            and has_room(loop, memref_of(op.memref))
        ):
            kept.append(op)
    for handle in schedule.handles(reversed(kept)):
        schedule.set_scope(handle, REGISTERS)
    # What nothing in the tile goes on with is summed where it is returned: in the registers first.
    stored = [
        op
        for op in kernel.walk()
        if isinstance(op, GenericOp)
        and (is_contraction(op) or reads_windows(op))
        and isinstance(loop := op.parent_op(), scf.ForOp)
        and place_of(op.outputs[0]) == DRAM
        and _starts_here(op)
        and has_room(loop, in_scope(memref_of(op.outputs[0]), target, REGISTERS))
    ]
    for generic, handle in zip(stored, schedule.handles(stored), strict=True):
        schedule.stage_out(handle, len(generic.inputs), REGISTERS)


def _starts_here(op: GenericOp) -> bool:
    """Whether all that uses the output of an op is this op and, before it in its block, what overwrites all of it."""
    output = op.outputs[0]
    users = {use.operation for use in output.uses} - {op}
    return len(users) == 1 and all(user.parent is op.parent and overwrites(user, output) for user in users)


def _is_sum(op: Operation, value: SSAValue) -> bool:
    return isinstance(op, GenericOp) and has_reduction(op) and value in op.outputs


@dataclass(frozen=True)
class PromotePass(ModulePass):
    """
    Put the operands of the machine's kernels into the scopes that its intrinsics need.

    Requires the loop level. A temporary becomes a `mem.buffer` in its scope, rows rounded up to the granule: in the one
    that its `mem.scope` names, or where its intrinsics want it; one that only copies use goes where engines lead. What
    lives off chip gets a buffer and copies: a source that the kernel only reads is copied where its slice is
    defined, so that hoisting the slice before hoists the copy; what is written is copied in before its first use,
    unless that overwrites it, and out after its last. Guarantees: every operand lives where some intrinsic of the
    machine needs it. A copy may lead where no single DMA does, if several in turn do: `promote-levels` sees to that.
    On a host whose file says what its registers hold, the sums of tiles that fit live in the scope `registers`. Other
    kernels on the host are left as they are, but for what a schedule that is given says of their loops.
    Raises UserError for an op that no intrinsic computes, and where no path of DMAs leads.

    Before:
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k(%a: memref<8x3xf32>, %b: memref<3x4xf32>, %c: memref<8x4xf32>)
        attributes {device = @gemmini_fp32} {
      linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a, %b : memref<8x3xf32>, memref<3x4xf32>) outs(%c : memref<8x4xf32>) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      }
      func.return
    }
    ```
    After (`promote` on `gemmini-fp32`):
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k(%a: memref<8x3xf32>, %b: memref<3x4xf32>, %c: memref<8x4xf32>)
        attributes {device = @gemmini_fp32} {
      %b_1 = mem.buffer : memref<3x4xf32, "spad">
      mem.copy %b to %b_1 : memref<3x4xf32> to memref<3x4xf32, "spad">
      %a_1 = mem.buffer : memref<8x3xf32, strided<[4, 1]>, "spad">
      mem.copy %a to %a_1 : memref<8x3xf32> to memref<8x3xf32, strided<[4, 1]>, "spad">
      %c_1 = mem.buffer : memref<8x4xf32, "acc">
      mem.copy %c to %c_1 : memref<8x4xf32> to memref<8x4xf32, "acc">
      linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a_1, %b_1 : memref<8x3xf32, strided<[4, 1]>, "spad">, memref<3x4xf32, "spad">)
          outs(%c_1 : memref<8x4xf32, "acc">) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      }
      mem.copy %c_1 to %c : memref<8x4xf32, "acc"> to memref<8x4xf32>
      func.return
    }
    ```
    """

    name = "promote"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        require_kernels(ctx, op, LOOPS)
        target, on_machine = machine_kernels(op)
        processor = processor_of(op)
        for kernel in kernels(op):
            if target is not None and kernel in on_machine:
                run_section(ctx, kernel, target, LOOPS, Promotion(kernel, target).write)
            elif processor is not None:
                run_section(ctx, kernel, processor, LOOPS, partial(_keep_sums, kernel, processor), is_optional=True)
            else:
                run_section(ctx, kernel, None, LOOPS, lambda _: None)
