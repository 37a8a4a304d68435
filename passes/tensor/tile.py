# SPDX-License-Identifier: Apache-2.0
"""Tile the kernels of the machine so that what one tile touches fits its scopes, and fuse producers into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.kernels import AUTO, device_of, kernels, machine_of, processor_of
from penstock.passes.analysis.memory.stated_scopes import has_own_tiles
from penstock.passes.planning.tilers.registry import tiler as find_tiler
from penstock.passes.planning.tiling import TilePlan
from penstock.passes.schedule.deciding import require_kernels, run_section
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import START
from penstock.passes.schedule.tiled_ops import TiledOps
from penstock.passes.tensor.host_tiles import tile_on_host
from penstock.passes.tensor.tile_plan import plan_kernel, require_kernel, root_of, warn_of_others


@dataclass(frozen=True)
class TilePass(ModulePass):
    """
    Tile each kernel of the machine and compute its producers and epilogues inside the tile.

    Requires the tensor level with devices assigned: a kernel of the machine is a tree of generics with at most one
    reduction, or is cut into tiles as it is and stays so. Sizes, order of the loops, and slots are those that a tiler
    (`passes/planning/tilers/registry`) chooses among those that fit the machine's scopes: `tiler`, by default the one
    that `assign-devices` asked. On a host whose file says what its registers hold, the tiles of a contraction are
    those that they hold (`passes/planning/register_blocks`). `sizes` gives the sizes instead, one for each dim of
    the op that reduces (else of the last op), for the `kernel` of that name, or for every kernel on a machine, on
    such a host, or without a device; order and slots are then those of the tiler `pipelined`. Guarantees: static
    sizes; parallel loops outside, reduction loops inside; a parallel tile that does not divide its dim is shifted
    inwards at the end. A tile of a reduction that does not divide reads zeros beyond the end, where products of
    what comes from outside are summed, and is refused elsewhere. For an intrinsic of fixed shape a tile is a
    multiple of its block, and a parallel dim that is shorter is computed on padded operands, of whose result the
    valid part is kept. `depths` of the kernel says how many slots each scope has for what a loop refills, and
    `multi-buffer` makes them; with `depth` it is that many everywhere. The cut is written down for people in
    `tiling`, with the cycles that it is modelled to take. Tiles may take all of a scope; `reserve` leaves a share
    of those free that are filled from off chip and emptied there, so that `mem-promote` finds room. Raises
    UserError for a share that is not from 0 to below 1, for a depth that is neither "auto" nor from 1, for a rank below
    -1, for a tiler or a kernel that there is not, and for a plan that is not valid. See `schedule.tile` for an example.
    """

    name = "tile"
    reassociates: ClassVar[bool] = True
    """A reduction dim that becomes a loop around others is summed in another order."""

    sizes: tuple[int, ...] | None = None
    """Tile sizes, one for each dim; a size past the end of its dim takes it whole."""
    kernel: str | None = None
    """Whose `sizes` they are; the others are tiled as if none were given."""
    reserve: float = 0.0
    """The share of a scope that tiles leave free, if any fits the rest, for what stays there between kernels."""

    depth: int | str = AUTO
    """Slots for what a loop refills, in every scope; "auto" chooses them with the sizes."""

    tiler: str | None = None
    """The tiler (`passes/planning/tilers/registry`); by default the one that `assign-devices` has asked."""

    rank: int = 0
    """
    On such a host: how many tiles of a contraction are passed over that are modelled to take less time, a call of a
    library of the host among them; -1 leaves it whole, to such a call, or else to the loops that the lowering to C
    chooses.
    """

    PARTS: ClassVar = {"tiler": find_tiler}
    """What finds the part that an option names."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.depth != AUTO and (isinstance(self.depth, str) or self.depth < 1):
            raise UserError(f'tile: a depth is "auto" or a number of slots from 1, not {self.depth}')
        depth = None if isinstance(self.depth, str) else self.depth
        if not 0 <= self.reserve < 1:
            raise UserError(f"tile: a reserve of {self.reserve} is no share from 0 to below 1")
        if self.rank < -1:
            raise UserError(f"tile: a rank of {self.rank} is no number from -1")
        require_kernels(ctx, op, START)
        require_kernel(op, self.kernel, self.sizes)
        target, processor = machine_of(op), processor_of(op)
        machine = None if target is None else target.sym_name.data
        warn_of_others(self.tiler, [kernel for kernel in kernels(op) if device_of(kernel) == machine])
        for kernel in kernels(op):
            device = device_of(kernel)
            on_machine = machine is not None and device == machine
            sizes = self.sizes if self.kernel in (None, kernel.sym_name.data) else None
            is_planned = on_machine or (sizes is not None and (device is None or processor is not None))
            plan = partial(plan_kernel, sizes=sizes, reserve=self.reserve, depth=depth, tiler=self.tiler)
            own = target if on_machine else None
            if processor is not None and sizes is None:
                decide = partial(tile_on_host, kernel, processor, self.rank)
                run_section(ctx, kernel, own, START, decide, is_optional=True)
            else:
                run_section(ctx, kernel, own, START, partial(_decide, kernel, own, plan if is_planned else None))


def _decide(
    kernel: func.FuncOp,
    target: TargetOp | None,
    plan_of: Callable[[func.FuncOp, TiledOps], TilePlan] | None,
    schedule: Schedule,
) -> None:
    """Write the plan of a kernel as its schedule, if there is to be one."""
    if plan_of is None or has_own_tiles(kernel) or (root := root_of(kernel)) is None:
        return
    ops = schedule.state.tiled = TiledOps(root, target)
    plan = plan_of(kernel, ops)
    if not plan.is_cut:
        return
    fused = [member for member in ops.members if member is not ops.anchor]
    anchor, *handles = schedule.handles([ops.anchor, *fused])
    count = len(plan.dims)
    padded = [number for number, dim in enumerate(plan.dims) if plan.tile[number] > dim.extent]
    cut = {*plan.order, *padded}
    edges = ["padded" if number in padded else edge for number, edge in enumerate(plan.edges)]
    schedule.tile(
        anchor,
        [size if number in cut else 0 for number, size in enumerate(plan.tile)],
        fusing=handles,
        interchange=[*plan.order, *(number for number in range(count) if number not in plan.order)],
        edges=edges if {*edges} - {"whole", "divides"} else None,
        unpadded=[number for number, member in enumerate(fused) if padded and member in ops.streamed],
        slots={scope: slots for scope, slots in plan.depths.items() if slots > 1},
        remark="; ".join(plan.reasons),
    )
