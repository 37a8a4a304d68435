# SPDX-License-Identifier: Apache-2.0
"""The plan for tiling a kernel, and the reasons why a machine has none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import MemRefType, ModuleOp, StringAttr, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, did_you_mean, location_of, warn_of
from penstock.dialects.machine import DRAM, DmaOp, TargetOp
from penstock.passes.analysis.access import fill_access, linear_form
from penstock.passes.analysis.intrinsics import candidates, pattern_of
from penstock.passes.analysis.kernels import REMARK, TILER, device_of, kernels, machine_of, processor_of
from penstock.passes.analysis.memory.storage import in_scope
from penstock.passes.analysis.scope_paths import intermediates, scope_path
from penstock.passes.planning.tile_problem import NoEnergy, NoTile, TileProblem
from penstock.passes.planning.tile_validation import TilePlanError
from penstock.passes.planning.tilers.largest import largest_within
from penstock.passes.planning.tilers.pipelined import with_sizes
from penstock.passes.planning.tilers.registry import DEFAULT_TILER, plan_tile
from penstock.passes.planning.tilers.registry import tiler as find_tiler
from penstock.passes.planning.tiling import DoesNotFit, TilePlan
from penstock.passes.schedule.tiled_ops import TiledOps, blocks_of
from penstock.passes.schedule.zero_pads import padding_of


def root_of(kernel: func.FuncOp) -> GenericOp | None:
    """The generic whose result the kernel returns; None if it returns something else, or several results."""
    terminator = kernel.body.block.last_op if len(kernel.body.blocks) == 1 else None
    if not isinstance(terminator, func.ReturnOp) or len(terminator.operands) != 1:
        return None
    owner = terminator.operands[0].owner
    return owner if isinstance(owner, GenericOp) and len(owner.outputs) == 1 else None


def _plan_on_machine(
    ops: TiledOps, target: TargetOp, tiler: str, reserve: float = 0.0, depth: int | None = None
) -> TilePlan:
    """
    The plan of `tiler` for a kernel of the machine; raises DoesNotFit or NoTile where there is none.

    With `depth` every scope has that many slots for what is refilled; else the plan says how many. The share `reserve`
    of each scope that is filled from off chip, and emptied there, stays free, if any tile fits the rest. The tiles of a
    reduction divide it where nothing can fill what is read beyond its end.
    """
    problem = replace(ops.problem, depth=depth)
    plan = _plan(problem, target, tiler, reserve)
    if any(dim.runs_past_end for dim in problem.dims) and _unfilled(ops, plan, target) is not None:
        dividing = replace(problem, dims=tuple(replace(dim, runs_past_end=False) for dim in problem.dims))
        with suppress(DoesNotFit, NoTile):
            plan = _plan(dividing, target, tiler, reserve)
    padded = {dim for dim, size in enumerate(plan.tile) if size > plan.dims[dim].extent}
    for generic in [op for op in ops.members if padded and op in ops.streamed]:
        blocks = blocks_of(ops.best(generic))
        if any(ops.dims[generic][dim] in padded and least > 1 for dim, (least, _) in blocks.items()):
            raise NoTile("a transfer computes on the way, where nothing can be padded to the blocks of the machine")
    return plan


def _plan(problem: TileProblem, target: TargetOp, tiler: str, reserve: float) -> TilePlan:
    """The plan that leaves the reserve free, or one that does not if there is none."""
    try:
        return plan_tile(_with_reserve(problem, target, reserve), tiler)
    except DoesNotFit:
        if not reserve:
            raise
        return plan_tile(problem, tiler)
    except NoEnergy:
        raise UserError(
            f'the tiler "{tiler}" asks what energy @{target.sym_name.data} takes, and its file does not say',
            loc=location_of(target),
            notes=["a machine file says it in the table [energy]"],
        ) from None


def _with_reserve(problem: TileProblem, target: TargetOp, reserve: float) -> TileProblem:
    """The problem in the scopes without what is reserved for what stays there between kernels."""
    lasting = {
        name
        for name in problem.capacity
        if reserve and target.dma_between(DRAM, name) is not None and target.dma_between(name, DRAM) is not None
    }
    capacity = {name: int(size * (1 - reserve)) if name in lasting else size for name, size in problem.capacity.items()}
    return replace(problem, capacity=capacity)


def plan_kernel(
    kernel: func.FuncOp,
    ops: TiledOps,
    sizes: tuple[int, ...] | None,
    reserve: float = 0.0,
    depth: int | None = None,
    tiler: str | None = None,
) -> TilePlan:
    """
    The plan for a kernel: that with `sizes`, or of `tiler`, by default of the one that was asked whether it fits.

    Raises UserError where there is none.

    A tiler's tiles leave the share `reserve` of the scopes free, if any fits the rest.
    """
    tiler = tiler or tiler_of(kernel)
    try:
        if sizes is None and ops.target is not None:
            return _plan_on_machine(ops, ops.target, tiler, reserve, depth)
        return with_sizes(replace(ops.problem, depth=depth), sizes or ())
    except DoesNotFit as fault:
        parts = ", ".join(f"%{name} {size:,} bytes" for name, size in fault.parts)
        which, fits, needs = "no tile", "fits", "the smallest one needs"
        remedy = "choose a machine with a larger scope, or run this op on the host"
        if sizes is not None:
            which, fits, needs = f"the tile {'x'.join(map(str, sizes))}", "does not fit", "it needs"
            remedy = _largest_within(replace(ops.problem, depth=depth), sizes)
        raise UserError(
            f'{which} of kernel @{kernel.sym_name.data} {fits} scope "{fault.scope}": {needs} '
            f"{fault.needed:,} bytes of its {fault.capacity:,}",
            loc=location_of(ops.anchor),
            notes=[f"held there at once: {parts}", *_by(tiler if sizes is None else DEFAULT_TILER), remedy],
        ) from None
    except (NoTile, ValueError) as fault:
        raise _fault_of(kernel, ops, fault) from None


def tiler_of(kernel: func.FuncOp) -> str:
    """The tiler that was asked whether a kernel fits the machine."""
    asked = kernel.attributes.get(TILER)
    return asked.data if isinstance(asked, StringAttr) else DEFAULT_TILER


def require_kernel(module: ModuleOp, name: str | None, sizes: Sequence[int] | None) -> None:
    """
    Raise UserError where `name` does not name a kernel that `sizes` can be for: one of the module, of which one op
    computes the result, and which does not run on the host.
    """
    if name is None:
        return
    if sizes is None:
        raise UserError("tile: a kernel is named, and no sizes are given for it", notes=[f"write {_EXAMPLE}"])
    found = {kernel.sym_name.data: kernel for kernel in kernels(module)}
    if name not in found:
        near = did_you_mean(name, found)
        notes = [*([near] if near else []), f"the kernels are {', '.join(found) or 'none'}"]
        raise UserError(f'tile: no kernel is called "{name}"', notes=notes)
    kernel, target = found[name], machine_of(module)
    device = device_of(kernel)
    is_on_machine = target is not None and device == target.sym_name.data
    if device is not None and not is_on_machine and processor_of(module) is None:
        remark = kernel.attributes.get(REMARK)
        notes = [f"because {remark.data}"] if isinstance(remark, StringAttr) else []
        raise UserError(
            f"tile: kernel @{name} runs on @{device}, where nothing is tiled", loc=location_of(kernel), notes=notes
        )
    if root_of(kernel) is None:
        raise UserError(f"tile: kernel @{name} returns no result of a generic", loc=location_of(kernel))


_EXAMPLE = 'tile{kernel="fused_3" sizes=16,16,32}'


def warn_of_others(tiler: str | None, tiled: Sequence[func.FuncOp]) -> None:
    """
    Issue an InputWarning where kernels got their device, and were cut, for what another tiler than this one makes.

    Raises UserError for a tiler that there is not.
    """
    if tiler is None:
        return
    find_tiler(tiler)
    others = dict.fromkeys(asked for kernel in tiled if (asked := tiler_of(kernel)) != tiler)
    if others:
        warn_of(
            [
                f'the tiler "{tiler}" is to tile kernels that were cut for "{", ".join(others)}"',
                f'assign-devices{{tiler="{tiler}"}} cuts them for it, and tile then asks it, too',
            ]
        )


def _largest_within(problem: TileProblem, sizes: Sequence[int]) -> str:
    """What to do where a tile of these sizes does not fit."""
    try:
        return (
            f"choose smaller sizes: the largest that fit are {','.join(map(str, largest_within(problem, sizes).tile))}"
        )
    except (DoesNotFit, NoTile):
        return "no smaller tile fits either: choose a machine with a larger scope, or run this op on the host"


def _by(tiler: str) -> list[str]:
    """A note that says who finds no tile, where it is not the one that tiles by default."""
    return [] if tiler == DEFAULT_TILER else [f'so says the tiler "{tiler}"']


def _fault_of(kernel: func.FuncOp, ops: TiledOps, fault: Exception) -> UserError:
    return UserError(f"kernel @{kernel.sym_name.data}: {fault}", loc=location_of(ops.anchor))


def estimated_plan(kernel: func.FuncOp, target: TargetOp, tiler: str = DEFAULT_TILER) -> TilePlan | str:
    """
    The plan of `tiler` for `kernel` on the machine, with the cycles and the bytes that it is modelled to take; or why
    it finds none that runs there. The generics of the kernel are in the form of their intrinsics.

    Raises UserError for a tiler whose plan is not valid.
    """
    root = root_of(kernel)
    if root is None:
        return "what it yields is not the result of an operation, but of a pad around it"
    ops = TiledOps(root, target)
    if any(0 in generic.get_static_loop_ranges() for generic in ops.members):
        return "it has no elements"
    if (reason := _converted(ops, target) or _stranded(ops, target)) is not None:
        return reason
    who = "" if tiler == DEFAULT_TILER else f', by the tiler "{tiler}"'
    try:
        plan = _plan_on_machine(ops, target, tiler)
    except DoesNotFit as fault:
        parts = ", ".join(f"%{name} {size:,}" for name, size in fault.parts)
        return (
            f'no tile of it fits scope "{fault.scope}": the smallest needs {fault.needed:,} bytes of its '
            f"{fault.capacity:,} ({parts}){who}"
        )
    except NoTile as fault:
        return f"{fault}{who}"
    except TilePlanError as fault:
        raise _fault_of(kernel, ops, fault) from None
    return _unfilled(ops, plan, target) or plan


def _unfilled(ops: TiledOps, plan: TilePlan, target: TargetOp) -> str | None:
    """Why what the tiles of some operand read outside it cannot be put into their scope; None if all can."""
    found = (_unfilled_by(ops, generic, plan, target) for generic in ops.members)
    return next((reason for reason in found if reason is not None), None)


def _unfilled_by(ops: TiledOps, generic: GenericOp, plan: TilePlan, target: TargetOp) -> str | None:
    match, own = ops.best(generic), ops.dims[generic]
    if match is None:
        return None
    past = {
        dim: -(-plan.dims[a].extent // plan.tile[a]) * plan.tile[a] - plan.dims[a].extent
        for dim, a in own.items()
        if not plan.dims[a].parallel or plan.tile[a] > plan.dims[a].extent
    }
    for number, (value, map_attr) in enumerate(zip(generic.operands, generic.indexing_maps, strict=True)):
        scope = match.scope_of_operand(number)
        engine = None if scope == DRAM else engine_into(scope, target)
        if engine is None or not isa(value.type, TensorType) or isinstance(value.owner, GenericOp | tensor.EmptyOp):
            continue
        _, rows = linear_form(map_attr.data)
        padded = sliced_of(value)
        pad = padded.owner if isinstance(padded.owner, tensor.PadOp) else None
        low = pad.static_low.get_values() if pad is not None else [0] * len(rows)
        high = pad.static_high.get_values() if pad is not None else [0] * len(rows)
        beyond = [edge + sum(row[d] * count for d, count in past.items()) for edge, row in zip(high, rows, strict=True)]
        needed, adjoining = max([0, *low, *beyond]), match.adjoining(number)
        tile = [1 + sum(row[d] * (plan.tile[a] - 1) for d, a in own.items()) for row in rows]
        if needed > engine.pad_limit and not is_filled(padded, value.type, tile, target, scope, adjoining):
            return (
                f"a window of %{value.name_hint or number} is out of bounds by up to {needed}, "
                f'@{engine.sym_name.data} pads {engine.pad_limit}, and no intrinsic fills "{scope}" with the padding'
            )
    return None


def sliced_of(value: SSAValue) -> SSAValue:
    """What a slice, or a slice of one, is taken of; the value itself if it is none."""
    while isinstance(owner := value.owner, tensor.ExtractSliceOp):
        value = owner.source
    return value


def engine_into(scope: str, target: TargetOp) -> DmaOp | None:
    """The engine that brings what comes from off chip into `scope`: the last one on the way, and the one that pads."""
    *_, before = (DRAM, *intermediates(target, DRAM, scope))
    return target.dma_between(before, scope)


def is_filled(
    value: SSAValue, type: TensorType[Attribute], tile: list[int], target: TargetOp, scope: str, adjoining: int
) -> bool:
    """Whether an intrinsic fills a buffer for a tile of `value` with what is read outside it."""
    constant = padding_of(value)
    buffer = in_scope(MemRefType(type.element_type, tile), target, scope, adjoining)
    return constant is not None and bool(candidates(fill_access(buffer, constant), target)[0])


def _stranded(ops: TiledOps, target: TargetOp) -> str | None:
    """
    What does not get to where it is read, if anything: what one op leaves for the next, what comes from off chip, and
    the result of the last one, which goes there.
    """
    matches = ops.matches
    for generic in ops.members:
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
                return f'{by} needs in "{there}" what {what}, and no engine leads there'
    last = matches[ops.members[-1]]
    here = DRAM if last is None else last.scope_of_operand(len(ops.members[-1].inputs))
    if last is not None and here != DRAM and scope_path(target, here, DRAM) is None:
        return f'@{last.intrinsic.sym_name.data} leaves its result in "{here}", from where no engine leads off chip'
    return None


def _converted(ops: TiledOps, target: TargetOp) -> str | None:
    """Why the engine that stores the result of the last op does not store it as it is; None if it does."""
    match = ops.best(ops.members[-1])
    if match is None:
        return None
    result = pattern_of(match.intrinsic).specs[-1]
    engine = None if result.scope == DRAM else target.dma_between(result.scope, DRAM)
    if engine is None or engine.converts is None or engine.converts[0] != result.dtype:
        return None
    return f"@{engine.sym_name.data} converts {result.dtype} to {engine.converts[1]} on the way off chip"
