"""
A kernel tried on the machine, on a copy: why no tile of it runs there, and whether it would be faster in two.

An epilogue in the tiles of its contraction saves a store and a load, but it is bound to these tiles: where they are
short in the dim of the lanes, as those of a depthwise convolution are, most lanes are idle; and its operands take room
in the scopes. The kernel stays whole unless its modelled cycles exceed those of the two, transfers between included.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation

from penstock.dialects.machine import DRAM, TargetOp
from penstock.passes.analysis.kernels import has_reduction
from penstock.passes.planning.tiling import TIE, TilePlan
from penstock.passes.tensor.outline import outline
from penstock.passes.tensor.partition import Coverage, Segment, choose, is_fill, least_cycles, runs_on_a_unit
from penstock.passes.tensor.pointwise import accumulate_in_place
from penstock.passes.tensor.tile_plan import estimated_plan
from penstock.passes.tensor.unit_dims import drop_unit_dims


def accumulate(kernel: func.FuncOp, target: TargetOp) -> None:
    """Rewrite the generics of a kernel of the machine to the form that their intrinsics have."""
    for generic in [o for o in kernel.body.block.ops if isinstance(o, GenericOp)]:
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
        alike = value.type == generic.outputs[0].type and maps[number] == maps[output]
        if computed and alike and choice.match.scope_of_operand(number) == scope:
            return number
    return None


def trial(kernel: func.FuncOp, target: TargetOp) -> TilePlan | str:
    """The plan for `kernel`, which is left as it is, on the machine; or why no tile of it runs there."""
    copy = kernel.clone()
    accumulate(copy, target)
    return estimated_plan(copy, target)


def faster_apart(
    kernel: func.FuncOp, plan: TilePlan, target: TargetOp
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
    together = plan.time.cycles
    choices = {op: choice for op in computed if isinstance(choice := choose(op, target), Coverage)}
    least = sum(least_cycles(Segment(True, part), choices, target) for part in (first, rest))
    if together * (1 - TIE) <= least:
        return None
    apart = 0
    for part in _cut(kernel, (first, rest)):
        own = trial(part, target)
        if isinstance(own, str) or own.time is None:
            return None
        apart += own.time.cycles
    return (first, rest) if apart < together * (1 - TIE) else None


def _cut(kernel: func.FuncOp, groups: Sequence[Sequence[GenericOp]]) -> list[func.FuncOp]:
    """The kernels that a copy of `kernel` is cut into."""
    copy = kernel.clone()
    module = ModuleOp([copy])
    copies = dict(zip(kernel.body.block.ops, copy.body.block.ops, strict=True))
    copied = [[op for each in group if isinstance(op := copies[each], GenericOp)] for group in groups]
    parts = outline(copy, copied)
    for part in parts:
        drop_unit_dims(part, module)
    return parts


def _needed(op: Operation) -> set[Operation]:
    """An op and all that computes its operands."""
    needed: set[Operation] = set()
    pending: list[Operation] = [op]
    while pending:
        found = pending.pop()
        needed.add(found)
        pending += [v.owner for v in found.operands if isinstance(v.owner, Operation) and v.owner not in needed]
    return needed
