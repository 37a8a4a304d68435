# SPDX-License-Identifier: Apache-2.0
"""Decide where each kernel runs: on the machine whose intrinsics cover it, or on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import func, scf, tensor
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, i64
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.remarks import remark
from penstock.passes.analysis.kernels import (
    DEVICE,
    ENTRY,
    HOST,
    MACS,
    REMARK,
    TILER,
    device_of,
    has_reduction,
    kernels,
    machine_of,
    multiply_accumulates,
)
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.memory.stated_scopes import (
    has_own_tiles,
    is_explicit,
    require_on_machine,
    require_scopes,
)
from penstock.passes.generics import accumulate_in_place
from penstock.passes.planning.tilers.registry import DEFAULT_TILER
from penstock.passes.planning.tilers.registry import tiler as find_tiler
from penstock.passes.planning.tiling import TIE, TilePlan
from penstock.passes.tensor.lanes import points_in_lanes, sums_in_lanes
from penstock.passes.tensor.outline import outline
from penstock.passes.tensor.partition import (
    Coverage,
    Segment,
    choose,
    count_crossings,
    is_fill,
    least_cycles,
    runs_on_a_unit,
    segments_of,
    settle,
)
from penstock.passes.tensor.split_bodies import split_bodies
from penstock.passes.tensor.tile_plan import estimated_plan
from penstock.passes.tensor.tiled_kernels import cover_tiled


def accumulate(kernel: func.FuncOp, target: TargetOp) -> None:
    """Rewrite the generics of a kernel of the machine to the form that their intrinsics have."""
    for generic in [o for o in kernel.body.block.ops if isinstance(o, GenericOp) and not is_explicit(o)]:
        choice = choose(generic, target)
        if isinstance(choice, Coverage) and choice.in_place is not None:
            accumulate_in_place(generic, choice.in_place)
        elif isinstance(choice, Coverage) and (number := _dying_operand(generic, choice)) is not None:
            # A tile then needs one buffer where it would need two.
            generic.operands[len(generic.inputs)] = generic.inputs[number]


def _dying_operand(generic: GenericOp, choice: Coverage) -> int | None:
    """An input whose bytes the result may take: computed for this op alone, element for element, in the same scope."""
    maps, output = list(generic.indexing_maps), len(generic.inputs)
    scope = choice.match.scope_of_operand(output)
    if generic.body.block.args[-1].uses or not isinstance(generic.outputs[0].owner, tensor.EmptyOp) or scope == DRAM:
        return None
    for number, value in enumerate(generic.inputs):
        computed = isinstance(value.owner, GenericOp) and not is_fill(value.owner) and len(list(value.uses)) == 1
        same = value.type == generic.outputs[0].type and maps[number] == maps[output]
        if computed and same and choice.match.scope_of_operand(number) == scope:
            return number
    return None


def trial(kernel: func.FuncOp, target: TargetOp, tiler: str = DEFAULT_TILER) -> TilePlan | str:
    """The plan of `tiler` for `kernel`, which is left as it is, on the machine; or why no tile of it runs there."""
    copy = kernel.clone()
    accumulate(copy, target)
    return estimated_plan(copy, target, tiler)


def faster_apart(
    kernel: func.FuncOp, plan: TilePlan, target: TargetOp, tiler: str = DEFAULT_TILER
) -> tuple[list[GenericOp], list[GenericOp]] | None:
    """
    The contraction of `kernel` with what it reads, and its epilogue, if the machine runs the two sooner as two kernels.

    `plan` is that of the whole. None where it has no epilogue, where one of the two could not run on the machine alone,
    and where the difference is less than the model can tell.
    """
    computed = [op for op in kernel.body.block.ops if isinstance(op, GenericOp) and not is_fill(op)]
    last = max((number for number, op in enumerate(computed) if has_reduction(op)), default=None)
    if last is None or plan.time is None:
        return None
    needed = _needed(computed[last])
    first = [op for op in computed if op in needed]
    rest = [op for op in computed if op not in needed]
    if not rest or not runs_on_a_unit(rest, target):
        return None
    # A tile does not say which loops of its ops are skewed in the end: neither side counts on it.
    together = plan.time.unskewed_cycles or plan.time.cycles
    choices = {op: choice for op in computed if isinstance(choice := choose(op, target), Coverage)}
    least = sum(least_cycles(Segment(True, part), choices, target) for part in (first, rest))
    if together * (1 - TIE) <= least:
        return None
    apart = 0
    for part in _cut(kernel, (first, rest)):
        points_in_lanes(part, target)
        own = trial(part, target, tiler)
        if isinstance(own, str) or own.time is None:
            return None
        apart += own.time.unskewed_cycles or own.time.cycles
    return (first, rest) if apart < together * (1 - TIE) else None


def _cut(kernel: func.FuncOp, groups: Sequence[Sequence[GenericOp | scf.ForOp]]) -> list[func.FuncOp]:
    """The kernels that a copy of `kernel` is cut into."""
    copy = kernel.clone()
    ModuleOp([copy])
    copies = dict(zip(kernel.body.block.ops, copy.body.block.ops, strict=True))
    return outline(
        copy, [[op for each in group if isinstance(op := copies[each], GenericOp | scf.ForOp)] for group in groups]
    )


def _needed(op: Operation) -> set[Operation]:
    """An op and all that computes its operands."""
    needed: set[Operation] = set()
    pending: list[Operation] = [op]
    while pending:
        found = pending.pop()
        needed.add(found)
        pending += [v.owner for v in found.operands if isinstance(v.owner, Operation) and v.owner not in needed]
    return needed


def _mark(kernel: func.FuncOp, segment: Segment, machine: str) -> None:
    kernel.attributes[DEVICE] = SymbolRefAttr(machine if segment.on_machine else HOST)
    if macs := multiply_accumulates(kernel):
        kernel.attributes[MACS] = IntegerAttr(macs, i64)
    if segment.on_machine:
        remark(kernel, "passed", f"runs on @{machine}")
    elif segment.remark:
        kernel.attributes[REMARK] = StringAttr(segment.remark)
        remark(kernel, "missed", f"runs on @{HOST}: {segment.remark}")


def _control_flow(kernel: func.FuncOp) -> str | None:
    """What in `kernel` decides while it runs which of its ops do, as no tile of the machine can; None for nothing."""
    if len(kernel.body.blocks) != 1:
        return "it has several blocks"
    for op in kernel.walk():
        if isinstance(op, func.CallOp) or (op.name.startswith("scf.") and not isinstance(op, scf.ForOp | scf.YieldOp)):
            return f"{op.name} cannot run on the machine"
    return None


_IN_A_BRANCH = (
    f"it is called in a branch of @{ENTRY}, and which commands the machine gets must not depend on a value that only a"
    " run knows"
)


def _called_in_branches(module: ModuleOp) -> set[str]:
    """The functions that are called where a run decides whether, or how often."""
    return {
        call.callee.string_value()
        for branch in module.walk()
        if isinstance(branch, scf.IfOp | scf.WhileOp) or (isinstance(branch, scf.ForOp) and trip_count(branch) is None)
        for call in branch.walk()
        if isinstance(call, func.CallOp)
    }


def _stages(kernel: func.FuncOp) -> list[list[GenericOp | scf.ForOp]]:
    """What a kernel computes before, in, and after each of its loops."""
    stages: list[list[GenericOp | scf.ForOp]] = []
    for op in kernel.body.block.ops:
        if isinstance(op, scf.ForOp):
            stages.append([op])
        elif isinstance(op, GenericOp) and not is_fill(op):
            if not stages or isinstance(stages[-1][0], scf.ForOp):
                stages.append([])
            stages[-1].append(op)
    return stages


def _begins_new(loop: scf.ForOp) -> bool:
    """Whether what a loop carries begins in it: nothing that is computed elsewhere is overwritten."""
    owners = [value.owner for value in loop.iter_args]
    return all(isinstance(o, tensor.EmptyOp) or (isinstance(o, GenericOp) and is_fill(o)) for o in owners)


def _cut_at_loops(kernel: func.FuncOp, target: TargetOp) -> list[func.FuncOp]:
    """The kernels that take the place of one whose loops the machine runs, but not all that stands beside them."""
    stages = _stages(kernel)
    loops = [stage[0] for stage in stages if isinstance(stage[0], scf.ForOp)]
    if len(stages) < 2 or not all(map(_begins_new, loops)):
        return []
    parts = _cut(kernel, stages)
    tiled = [part for part in parts if any(isinstance(op, scf.ForOp) for op in part.body.block.ops)]
    if not any(isinstance(cover_tiled(part, target), func.FuncOp) for part in tiled):
        return []
    return outline(kernel, stages)


@dataclass(frozen=True)
class AssignDevicesPass(ModulePass):
    """
    Give every kernel a `device`: the machine in the module where its intrinsics cover the kernel, else `@host`.

    Requires the tensor level. A kernel with loops, or that says itself where its tensors live (`mem.scope`) or what is
    copied (`mem.explicit`), stays as it is cut, on one device, or is cut at its loops where the machine runs these
    alone. Of any other, a pointwise op that no intrinsic covers is
    split into ops that are covered. A kernel whose ops differ is cut into kernels that do not; so is one that a single
    tile cannot hold (two reductions, a stored value read again, a padded result). Where an intrinsic updates its
    output, the generic is rewritten to start from one of its inputs. A kernel stays on the host if only DMA intrinsics
    cover it, or if no tile of it fits the machine's scopes and the blocks of its intrinsics; a contraction that only
    fits without what is fused to it goes alone. Guarantees: every kernel has a device; a kernel on the machine has one
    result, at most one reduction, some tile that fits, and every generic in it matches an intrinsic. What is left
    beside the host in a group that is cut goes to the host, too, where crossing does not pay: see `partition.py`. What
    follows a contraction becomes a kernel of its own where the planner of tiles finds that faster: see `faster_apart`.
    Which tiles fit, and what they cost, `tiler` says (`passes/planning/tilers/registry`); if it is not the one that
    tiles by default, kernels on the machine have its name in their attribute `tiler`, and `tile` asks the same.
    A kernel that a branch of `@main` calls, or a loop whose trip count a run decides, runs on the host,
    wherever it is called: the commands that a machine gets are proved free of hazards for all runs.
    Kernels on the machine lose dims of size 1, and pointwise ones have dims collapsed, that would leave lanes unused:
    see `lanes.py`. The reasons for the host are in
    `device_remark`, the multiply-accumulates of each kernel in `macs`, and the bytes that it hands to another device in
    `crossing`.

    Before:
    ```mlir
    #id = affine_map<(d0, d1) -> (d0, d1)>
    func.func private @relu(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %zero = arith.constant 0.000000e+00 : f32
      %e = tensor.empty() : tensor<4x4xf32>
      %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
      ^bb0(%in: f32, %out: f32):
        %m = arith.maximumf %in, %zero : f32
        linalg.yield %m : f32
      } -> tensor<4x4xf32>
      func.return %y : tensor<4x4xf32>
    }
    ```
    After (`assign-devices` on `gemmini-fp32`):
    ```mlir
    #id = affine_map<(d0, d1) -> (d0, d1)>
    func.func private @relu(%x: tensor<4x4xf32>) -> tensor<4x4xf32>
        attributes {device = @host, device_remark = "only a transfer computes it, and nothing is transferred"} {
      %zero = arith.constant 0.000000e+00 : f32
      %e = tensor.empty() : tensor<4x4xf32>
      %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
      ^bb0(%in: f32, %out: f32):
        %m = arith.maximumf %in, %zero : f32
        linalg.yield %m : f32
      } -> tensor<4x4xf32>
      func.return %y : tensor<4x4xf32>
    }
    ```
    """

    name = "assign-devices"
    # Where a kernel has its loops, sums that no intrinsic accumulates are those of a tree.
    reassociates: ClassVar[bool] = True

    weigh_crossing: bool = True
    """Whether what crossing costs decides, too, where a group is cut; else only what intrinsics cover does."""

    weigh_fusion: bool = True
    """Whether an epilogue that is faster as a kernel of its own is cut off; else a group stays whole where it may."""

    tiler: str = DEFAULT_TILER
    """The tiler that says which tiles fit the machine, and is asked again when they are made."""

    PARTS: ClassVar = {"tiler": find_tiler}
    """What finds the part that an option names."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        find_tiler(self.tiler)
        target = machine_of(op)
        machine = HOST if target is None else target.sym_name.data
        chosen = set[str]() if target is None or target.is_host else _called_in_branches(op)
        for kernel in kernels(op):
            if device_of(kernel) is not None:
                continue
            if kernel.sym_name.data in chosen:
                _mark(kernel, Segment(False, remark=_IN_A_BRANCH), machine)
            else:
                self._assign(kernel, target, machine)
        if target is not None:
            for kernel in kernels(op):
                if device_of(kernel) == machine and _control_flow(kernel) is None:
                    accumulate(kernel, target)
            count_crossings(op)

    def _assign(self, kernel: func.FuncOp, target: TargetOp | None, machine: str) -> None:
        """Decide where a kernel runs, and cut it where only parts of it run on the machine."""
        if (remark := _control_flow(kernel)) is not None:
            _mark(kernel, Segment(False, remark=remark), machine)
            return
        is_tiled = has_own_tiles(kernel)
        if target is not None and is_tiled:
            self._assign_tiled(kernel, target, machine)
            return
        if target is not None:
            sums_in_lanes(kernel, target)
        generics = [] if is_tiled else [o for o in kernel.body.block.ops if isinstance(o, GenericOp)]
        if target is not None:
            generics = split_bodies(generics, target)
        choices: dict[GenericOp, Coverage | str] = {
            generic: "there is no machine but the host" if target is None else choose(generic, target)
            for generic in generics
        }
        segments = segments_of(kernel, choices) or [
            Segment(False, remark="it computes nothing, and only moves elements")
        ]
        if self.weigh_crossing:
            segments = settle(segments, choices, target)
        self._place(kernel, segments, target, machine)

    def _assign_tiled(self, kernel: func.FuncOp, target: TargetOp, machine: str) -> None:
        """
        Decide where a kernel runs that is cut into tiles already.

        Raises UserError for scopes that it says its locals are in, and that they cannot be in.
        """
        require_scopes(kernel, target)
        covered = cover_tiled(kernel, target)
        if isinstance(covered, func.FuncOp):
            Rewriter.replace_op(kernel, covered, [])
            _mark(covered, Segment(True), machine)
        elif parts := _cut_at_loops(kernel, target):
            for part in parts:
                self._assign(part, target, machine)
        else:
            require_on_machine(kernel, covered)
            _mark(kernel, Segment(False, remark=covered), machine)

    def _place(
        self,
        kernel: func.FuncOp,
        segments: list[Segment],
        target: TargetOp | None,
        machine: str,
    ) -> None:
        """Cut `kernel` into its segments, mark them, and bring back to the host what no tile of the machine holds."""
        parts = [kernel]
        if len(segments) > 1:
            parts = outline(kernel, [segment.generics for segment in segments])
        for part, segment in zip(parts, segments, strict=True):
            plan = None
            if segment.on_machine and target is not None:
                points_in_lanes(part, target)
                plan = trial(part, target, self.tiler)
            if not isinstance(plan, str):
                apart = None
                if plan is not None and target is not None and self.weigh_fusion:
                    apart = faster_apart(part, plan, target, self.tiler)
                if apart is not None:
                    self._place(part, [Segment(True, generics) for generics in apart], target, machine)
                    continue
                _mark(part, segment, machine)
                if plan is not None and self.tiler != DEFAULT_TILER:
                    part.attributes[TILER] = StringAttr(self.tiler)
                continue
            inside = [op for op in part.body.block.ops if isinstance(op, GenericOp) and not is_fill(op)]
            alone = [op for op in inside if has_reduction(op)]
            if alone and len(inside) > 1:
                # Perhaps the contraction fits without what is fused to it.
                rest = [op for op in inside if op not in alone]
                halves = [Segment(True, alone), Segment(runs_on_a_unit(rest, target), rest, plan)]
                self._place(part, halves, target, machine)
            else:
                _mark(part, Segment(False, inside, plan), machine)
