"""The plan for tiling a kernel, and the reasons why a machine has none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import MemRefType, TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, DmaOp, TargetOp
from penstock.dialects.mem import static_strides
from penstock.passes.analysis.access import Access, Node, Operand, linear_form
from penstock.passes.analysis.intrinsics import candidates
from penstock.passes.analysis.memory.storage import in_scope
from penstock.passes.analysis.scope_paths import intermediates, scope_path
from penstock.passes.planning.tile_cost import TileProblem
from penstock.passes.planning.tile_sizes import NoTile
from penstock.passes.planning.tiling import DoesNotFit, TilePlan, plan_tile
from penstock.passes.tensor.tile_problem import (
    anchor,
    blocks_of,
    dims_in_anchor,
    match_of,
    matches_of,
    members,
    problem_of,
    root_of,
    streamed,
)
from penstock.passes.tensor.zero_pads import padding_of


def plan_on_machine(
    members: list[GenericOp], anchor: GenericOp, target: TargetOp, reserve: float = 0.0, depth: int | None = None
) -> TilePlan:
    """
    The best plan for a kernel of the machine; raises DoesNotFit or NoTile where there is none.

    With `depth` every scope has so many slots for what is refilled; else the plan says how many. The share `reserve` of
    each scope that is filled from off chip, and emptied there, stays free, if any tile fits the rest. The tiles of a
    reduction divide it where nothing can fill what is read behind its end.
    """
    problem = problem_of(members, anchor, target)
    plan = _plan(problem, target, reserve, depth)
    if _unfilled(members, anchor, plan, target) is not None and any(dim.runs_past_end for dim in problem.dims):
        dividing = replace(problem, dims=tuple(replace(dim, runs_past_end=False) for dim in problem.dims))
        with suppress(DoesNotFit, NoTile):
            plan = _plan(dividing, target, reserve, depth)
    padded = {dim for dim, size in enumerate(plan.tile) if size > plan.dims[dim].extent}
    on_the_way = streamed(members, target) if padded else ()
    for generic in [op for op in members if op in on_the_way]:
        own = dims_in_anchor(generic, anchor)
        blocks = blocks_of(match_of(generic, target))
        if any(own[dim] in padded and least > 1 for dim, (least, _) in blocks.items()):
            raise NoTile("a transfer computes on the way, where nothing can be padded to the blocks of the machine")
    return plan


def _plan(problem: TileProblem, target: TargetOp, reserve: float, depth: int | None) -> TilePlan:
    """The best plan that leaves the reserve free, or the best one if none does."""
    try:
        return plan_tile(_with_reserve(problem, target, reserve), depth=depth)
    except DoesNotFit:
        if not reserve:
            raise
        return plan_tile(problem, depth=depth)


def _with_reserve(problem: TileProblem, target: TargetOp, reserve: float) -> TileProblem:
    """The problem in the scopes without what is reserved for what stays there between kernels."""
    lasting = {
        name
        for name in problem.capacity
        if reserve and target.dma_between(DRAM, name) is not None and target.dma_between(name, DRAM) is not None
    }
    capacity = {name: int(size * (1 - reserve)) if name in lasting else size for name, size in problem.capacity.items()}
    return replace(problem, capacity=capacity)


def plan_members(
    kernel: func.FuncOp,
    members: list[GenericOp],
    anchor: GenericOp,
    target: TargetOp | None,
    sizes: tuple[int, ...] | None,
    reserve: float = 0.0,
    depth: int | None = None,
) -> TilePlan:
    """
    The plan for a kernel of these `members`; raises UserError where nothing fits, or for wrong `sizes`.

    Tiles that are chosen here leave the share `reserve` of the scopes free: see `plan_on_machine`.
    """
    try:
        if sizes is None and target is not None:
            return plan_on_machine(members, anchor, target, reserve, depth)
        return plan_tile(problem_of(members, anchor, target), given=sizes, depth=depth)
    except DoesNotFit as fault:
        parts = ", ".join(f"%{name} {size:,} bytes" for name, size in fault.parts)
        which, fits, needs = "no tile", "fits", "the smallest one needs"
        remedy = "choose a machine with a larger scope, or run this op on the host"
        if sizes is not None:
            which, fits, needs = f"the tile {'x'.join(map(str, sizes))}", "does not fit", "it needs"
            remedy = "choose smaller sizes"
        raise UserError(
            f'{which} of kernel @{kernel.sym_name.data} {fits} scope "{fault.scope}": {needs} '
            f"{fault.needed:,} bytes of its {fault.capacity:,}",
            loc=location_of(anchor),
            notes=[f"held there at once: {parts}", remedy],
        ) from None
    except (NoTile, ValueError) as fault:
        raise UserError(f"kernel @{kernel.sym_name.data}: {fault}", loc=location_of(anchor)) from None


def estimated_plan(kernel: func.FuncOp, target: TargetOp) -> TilePlan | str:
    """
    The best plan for `kernel` on the machine, with the cycles and the bytes that it is modelled to take; or why no tile
    of it runs there. The generics of the kernel are in the form of their intrinsics.
    """
    root = root_of(kernel)
    if root is None:
        return "what it yields is not the result of an operation, but of a pad around it"
    found = members(root)
    if any(0 in generic.get_static_loop_ranges() for generic in found):
        return "it has no elements"
    if (reason := _converted(root, target) or _stranded(found, target)) is not None:
        return reason
    try:
        plan = plan_on_machine(found, anchor(found), target)
    except DoesNotFit as fault:
        parts = ", ".join(f"%{name} {size:,}" for name, size in fault.parts)
        return (
            f'no tile of it fits scope "{fault.scope}": the smallest needs {fault.needed:,} bytes of its '
            f"{fault.capacity:,} ({parts})"
        )
    except NoTile as fault:
        return str(fault)
    return _unfilled(found, anchor(found), plan, target) or plan


def _unfilled(members: list[GenericOp], anchor: GenericOp, plan: TilePlan, target: TargetOp) -> str | None:
    """Why what the tiles of some operand read outside it cannot be put into their scope; None if all can."""
    found = (_unfilled_by(generic, anchor, plan, target) for generic in members)
    return next((reason for reason in found if reason is not None), None)


def _unfilled_by(generic: GenericOp, anchor: GenericOp, plan: TilePlan, target: TargetOp) -> str | None:
    match = match_of(generic, target)
    if match is None:
        return None
    own = dims_in_anchor(generic, anchor)
    past = {
        dim: -(-plan.dims[a].extent // plan.tile[a]) * plan.tile[a] - plan.dims[a].extent
        for dim, a in own.items()
        if not plan.dims[a].parallel or plan.tile[a] > plan.dims[a].extent
    }
    for number, (value, map_attr) in enumerate(zip(generic.operands, generic.indexing_maps, strict=True)):
        scope = match.scope_of_operand(number)
        engine = None if scope == DRAM else _engine_into(scope, target)
        if engine is None or not isa(value.type, TensorType) or isinstance(value.owner, GenericOp | tensor.EmptyOp):
            continue
        _, rows = linear_form(map_attr.data)
        pad = value.owner if isinstance(value.owner, tensor.PadOp) else None
        low = pad.static_low.get_values() if pad is not None else [0] * len(rows)
        high = pad.static_high.get_values() if pad is not None else [0] * len(rows)
        behind = [edge + sum(row[d] * count for d, count in past.items()) for edge, row in zip(high, rows, strict=True)]
        needed, adjoining = max([0, *low, *behind]), match.adjoining(number)
        tile = [1 + sum(row[d] * (plan.tile[a] - 1) for d, a in own.items()) for row in rows]
        if needed > engine.pad_limit and not _is_filled(value, value.type, tile, target, scope, adjoining):
            return (
                f"a window of %{value.name_hint or number} is out of bounds by up to {needed}, "
                f'@{engine.sym_name.data} pads {engine.pad_limit}, and no intrinsic fills "{scope}" with the padding'
            )
    return None


def _engine_into(scope: str, target: TargetOp) -> DmaOp | None:
    """The engine that brings what comes from off chip into `scope`: the last one on the way, and the one that pads."""
    *_, before = (DRAM, *intermediates(target, DRAM, scope))
    return target.dma_between(before, scope)


def _is_filled(
    value: SSAValue, type: TensorType[Attribute], tile: list[int], target: TargetOp, scope: str, adjoining: int
) -> bool:
    """Whether an intrinsic fills a buffer for a tile of `value` with what stands outside."""
    constant = padding_of(value)
    strides = static_strides(in_scope(MemRefType(type.element_type, tile), target, scope, adjoining))
    dest = Operand(None, scope, type.element_type, strides, AffineMap.identity(len(tile)))
    fill = Node("arith.constant", (("value", constant),), type.element_type, ()) if constant is not None else None
    if fill is None:
        return False
    matches, _ = candidates(Access(tuple(tile), (IteratorType.PARALLEL,) * len(tile), (dest,), fill), target)
    return bool(matches)


def _stranded(members: list[GenericOp], target: TargetOp) -> str | None:
    """
    What does not get to where it is wanted, if anything: what one member leaves for the next, what comes from off chip,
    and the result of the last one, which goes there.
    """
    matches = matches_of(members, target)
    for generic in members:
        for number, value in enumerate(generic.operands):
            producer, match = value.owner, matches[generic]
            made = matches.get(producer) if isinstance(producer, GenericOp) else None
            if match is None or isinstance(producer, tensor.EmptyOp):
                continue
            there, by = match.scope_of_operand(number), f"@{match.intrinsic.sym_name.data}"
            here, what = DRAM, "comes from off chip"
            if isinstance(producer, GenericOp) and made is not None:
                here = made.scope_of_operand(len(producer.inputs))
                what = f'@{made.intrinsic.sym_name.data} leaves in "{here}"'
            is_read = number < len(generic.inputs) or bool(generic.body.block.args[number].uses)
            if is_read and here != there and scope_path(target, here, there) is None:
                return f'{by} wants in "{there}" what {what}, and no engine leads there'
    last = matches[members[-1]]
    here = DRAM if last is None else last.scope_of_operand(len(members[-1].inputs))
    if last is not None and here != DRAM and scope_path(target, here, DRAM) is None:
        return f'@{last.intrinsic.sym_name.data} leaves its result in "{here}", from where no engine leads off chip'
    return None


def _converted(root: GenericOp, target: TargetOp) -> str | None:
    """Why the engine that stores the result of `root` does not store it as it is; None if it does."""
    match = match_of(root, target)
    if match is None:
        return None
    scope = match.intrinsic.operand_specs()[-1].scope
    engine = None if scope == DRAM else target.dma_between(scope, DRAM)
    element = match.intrinsic.operand_specs()[-1].dtype
    if engine is None or engine.converts is None or engine.converts[0] != element:
        return None
    return f"@{engine.sym_name.data} turns {element} into {engine.converts[1]} on the way off chip"
