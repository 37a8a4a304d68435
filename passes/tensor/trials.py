"""
A kernel tried on the machine, on a copy: why no tile of it runs there, and whether it would be faster in two.

A contraction computes what is fused to it tile by tile. That saves a store and a load of what is between them, but the
epilogue is bound to the tiles of the contraction: where these are short in the dim that a vector unit has lanes for, as
those of a depthwise convolution are, most lanes stand idle; and what it reads takes room in the scopes, so that tiles
are smaller. The planner of tiles knows all of this, so it is asked: the kernel stays whole unless its modelled cycles
exceed those of the two kernels, what is stored between them and loaded again included.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation

from penstock.dialects.machine import DRAM, TargetOp
from penstock.passes.analysis.kernels import has_reduction
from penstock.passes.planning.tiling import TIE
from penstock.passes.tensor.outline import outline
from penstock.passes.tensor.partition import least_cycles
from penstock.passes.tensor.pointwise import accumulate_in_place
from penstock.passes.tensor.segments import Choice, Segment, choose, is_fill, runs_on_a_unit
from penstock.passes.tensor.tile_plan import plan_on_machine, refusal
from penstock.passes.tensor.tile_problem import anchor, members, root_of
from penstock.passes.tensor.unit_dims import drop_unit_dims


def accumulate(kernel: func.FuncOp, target: TargetOp) -> None:
    """Rewrite the generics of a kernel of the machine to the form that their intrinsics have."""
    for generic in [o for o in kernel.body.block.ops if isinstance(o, GenericOp)]:
        choice = choose(generic, target)
        if isinstance(choice, Choice) and choice.in_place is not None:
            accumulate_in_place(generic, choice.in_place)
        elif isinstance(choice, Choice) and (number := _dying_operand(generic, choice)) is not None:
            # A tile then needs one buffer where it would need two.
            generic.operands[len(generic.inputs)] = generic.inputs[number]


def _dying_operand(generic: GenericOp, choice: Choice) -> int | None:
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


def refusal_on_trial(kernel: func.FuncOp, target: TargetOp) -> str | None:
    """Why no tile of `kernel`, which is left as it is, runs on the machine."""
    trial = kernel.clone()
    accumulate(trial, target)
    return refusal(trial, target)


def faster_apart(kernel: func.FuncOp, target: TargetOp) -> tuple[list[GenericOp], list[GenericOp]] | None:
    """
    The contraction of `kernel` with what it reads, and its epilogue, if the machine runs the two sooner as two kernels.

    Requires a kernel that runs on the machine. None where it has no epilogue, where one of the two could not run
    there alone, and where the difference is less than the model can tell.
    """
    computed = [op for op in kernel.body.block.ops if isinstance(op, GenericOp) and not is_fill(op)]
    last = max((number for number, op in enumerate(computed) if has_reduction(op)), default=None)
    if last is None:
        return None
    needed = _needed(computed[last])
    first = [op for op in computed if op in needed]
    rest = [op for op in computed if op not in needed]
    if not rest or not runs_on_a_unit(rest, target):
        return None
    together = _cycles(kernel.clone(), target)
    choices = {op: choice for op in computed if isinstance(choice := choose(op, target), Choice)}
    least = sum(least_cycles(Segment(True, part), choices, target) for part in (first, rest))
    if together is None or together * (1 - TIE) <= least:
        return None
    apart = 0
    for part in _cut(kernel, (first, rest)):
        if refusal_on_trial(part, target) is not None or (cycles := _cycles(part, target)) is None:
            return None
        apart += cycles
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


def _cycles(kernel: func.FuncOp, target: TargetOp) -> int | None:
    """The modelled cycles of a kernel that runs on the machine, which is rewritten; None where the planner has none."""
    accumulate(kernel, target)
    root = root_of(kernel)
    if root is None:
        return None
    found = members(root)
    time = plan_on_machine(found, anchor(found), target).time
    return None if time is None else time.cycles
