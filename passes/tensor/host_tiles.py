# SPDX-License-Identifier: Apache-2.0
"""The tiles of a kernel of the host whose sums stay in the vector registers of its processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.utils.hints import isa

from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.access import access_of, linear_form
from penstock.passes.analysis.intrinsics import Match, candidates
from penstock.passes.analysis.kernels import has_reduction, is_contraction, reads_windows
from penstock.passes.analysis.library_calls import call_cycles, library_call_of
from penstock.passes.analysis.memory.stated_scopes import has_own_tiles, states_scopes
from penstock.passes.analysis.vector_products import VectorProduct, vector_products
from penstock.passes.analysis.work import domain_of, vector_unit
from penstock.passes.planning.register_blocks import (
    Domain,
    RegisterTile,
    Window,
    register_tile,
    transposed_tile,
    window_tile,
)
from penstock.passes.schedule.primitives.tile import tiled_with
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.tiled_ops import TiledOps
from penstock.passes.tensor.matvec_tiles import matvec_of, tile_matvec
from penstock.passes.tensor.row_tiles import edges_of, tile_rows
from penstock.passes.tensor.tile_plan import root_of

REASSOCIATES = "reassociates: the library sums in an order of its own"
"""What a schedule says of a call."""


def tile_on_host(kernel: func.FuncOp, target: TargetOp, rank: int, schedule: Schedule) -> None:
    """
    Cut the contraction or pool of a kernel into tiles that the registers hold, with what is computed before and after
    it; in a kernel that has loops already each of its contractions, with the fill of its sums. What only moves elements
    from one order of the dims to another goes by tiles of a few lines of the caches.

    The tiles of a contraction are those that are modelled to take the least time but for `rank` others, among which is
    a call of a library of the host; below 0 it is left whole, to such a call if there is one, or else to the loops that
    the lowering to C chooses.
    """
    if has_own_tiles(kernel):
        if states_scopes(kernel):
            return
        for op in list(kernel.walk()):
            if isinstance(op, GenericOp) and is_contraction(op):
                made = [
                    value.owner for value in op.outputs if isinstance(value.owner, GenericOp) and value.has_one_use()
                ]
                _tile(op, [generic for generic in made if not generic.inputs], target, rank, schedule)
        return
    generics = [op for op in kernel.walk() if isinstance(op, GenericOp)]
    if len(generics) == 1 and not has_reduction(generics[0]):
        # What is returned may be another view of the result.
        domain, unit = domain_of(generics[0]), vector_unit(target, *generics[0].operand_types)
        if domain is not None and unit is not None and (plan := transposed_tile(domain, unit)) is not None:
            _cut(schedule, generics, domain, plan)
    elif (root := root_of(kernel)) is not None:
        ops = TiledOps(root, None)
        fused = [member for member in ops.members if member is not ops.anchor]
        is_alone = not any(has_reduction(member) for member in fused)
        if is_contraction(ops.anchor) and is_alone:
            _tile(ops.anchor, fused, target, rank, schedule)
        elif reads_windows(ops.anchor) and is_alone and _tile(ops.anchor, fused, target, rank, schedule):
            return
        elif not has_reduction(ops.anchor) or not _tile_sum(ops.anchor, fused, target, schedule):
            tile_rows(root, target, schedule)


def _tile_sum(anchor: GenericOp, fused: Sequence[GenericOp], target: TargetOp, schedule: Schedule) -> bool:
    """Cut what only combines the rows of a matrix, with the ops around it; False for another op."""
    if any(has_reduction(member) for member in fused) or len(tiled_with(anchor, fused)) < len(fused):
        return False
    if (domain := domain_of(anchor)) is None:
        return False
    unit = vector_unit(target, *anchor.operand_types)
    return unit is not None and domain.inputs == 1 and tile_matvec(anchor, fused, domain, unit, schedule)


def _tile(anchor: GenericOp, fused: Sequence[GenericOp], target: TargetOp, rank: int, schedule: Schedule) -> bool:
    """Cut a reduction, with those of some ops that are computed inside its tiles; False for one without such tiles."""
    fused = tiled_with(anchor, fused)
    if (domain := domain_of(anchor)) is None:
        return False
    unit = vector_unit(target, *anchor.operand_types)
    call = library_call_of(anchor, target)
    if call is not None and (rank < 0 or unit is None):
        return _call(anchor, call, schedule)
    if rank < 0:
        schedule.tile(schedule.handles([anchor])[0], [0] * len(domain.extents))
        return True
    if (found := vector_product_of(anchor, target)) is not None:
        return _tile_vector_product([anchor, *fused], domain, *found, target, schedule, rank)
    if unit is None:
        return False
    if call is not None and matvec_of(domain) is None:
        best = register_tile(domain, unit)
        cycles = prod(domain.extents) / unit.fmas if best is None else best.cycles
        if call_cycles(call, anchor, fused, unit, target) < cycles:
            if rank == 0:
                return _call(anchor, call, schedule)
            rank -= 1
    if tile_matvec(anchor, fused, domain, unit, schedule, rank):
        return True
    if (plan := register_tile(domain, unit, rank)) is None:
        return False
    members = [anchor, *fused]
    pads = {number: value.owner for number, value in enumerate(anchor.inputs) if isinstance(value.owner, tensor.PadOp)}
    read_again = [number for number in pads if not all(domain.strides[number][dim] for dim in plan.order)]
    # Padding all of an image once costs less than the window of every tile anew, unless no other tile reads it.
    for pad in schedule.handles(pads[number] for number in read_again):
        schedule.materialize(pad)
    windows = [_window_of(anchor, number) for number in pads if number not in read_again]
    if windows and (window := window_tile(domain, plan, windows, unit)) is not None:
        members = _cut(schedule, members, domain, window)
        if (domain := domain_of(members[0])) is None or (plan := register_tile(domain, unit, rank)) is None:
            return True
    _cut(schedule, members, domain, plan)
    return True


def _call(anchor: GenericOp, call: Match, schedule: Schedule) -> bool:
    """Leave a contraction whole, and to a library; what is computed before and after it is computed beside it."""
    schedule.tensorize(schedule.handles([anchor])[0], call.intrinsic.sym_name.data, remark=REASSOCIATES)
    return True


def _tile_vector_product(
    members: list[GenericOp],
    domain: Domain,
    found: VectorProduct,
    grouped: int,
    target: TargetOp,
    schedule: Schedule,
    rank: int,
) -> bool:
    """
    Cut a contraction whose sums an intrinsic adds to: the products that it adds at once are one step of the sum. False
    where there is no such tile.
    """
    unit = vector_unit(target, members[0].outputs[0].type)
    if unit is None:
        return False
    unit = replace(unit, lanes=found.lanes)
    plan = register_tile(_in_groups(domain, grouped, found.group), unit, rank)
    if plan is None:
        return False
    padded = [value.owner for value in members[0].inputs if isinstance(value.owner, tensor.PadOp)]
    for pad in schedule.handles(padded):
        schedule.materialize(pad)
    _cut(schedule, members, domain, plan)
    return True


def _in_groups(domain: Domain, grouped: int, size: int) -> Domain:
    """A domain in which what `size` steps of the dim `grouped` read is one element."""
    extents = tuple(1 if dim == grouped else extent for dim, extent in enumerate(domain.extents))
    strides = [
        tuple(0 if dim == grouped else stride // size for dim, stride in enumerate(each))
        for each in domain.strides[: domain.inputs]
    ]
    return Domain(extents, (*strides, *domain.strides[domain.inputs :]), domain.outputs, domain.indexed)


def vector_product_of(generic: GenericOp, target: TargetOp) -> tuple[VectorProduct, int] | None:
    """The intrinsic of the host that a contraction is, and the dim of the products that it adds at once."""
    products = {each.intrinsic: each for each in vector_products(target)}
    access = access_of(generic, placed=False) if products else None
    found = candidates(access, target)[0] if access is not None else []
    matches = [match for match in found if match.intrinsic in products]
    for match in sorted(matches, key=lambda match: -products[match.intrinsic].lanes):
        lanes, grouped = match.dims
        found, extents = products[match.intrinsic], generic.get_static_loop_ranges()
        if lanes is None or grouped is None or extents[grouped] != found.group or extents[lanes] % found.lanes:
            continue
        return found, grouped
    return None


def _cut(schedule: Schedule, members: list[GenericOp], domain: Domain, plan: RegisterTile) -> list[GenericOp]:
    """Tile the first of some ops, and compute the others in its tile; returns what they became."""
    handle, *fused = schedule.handles(members)
    count = len(domain.extents)
    sizes = [size if number in plan.order else 0 for number, size in enumerate(plan.sizes)]
    op = schedule.tile(
        handle,
        sizes,
        fusing=fused,
        interchange=[*plan.order, *(number for number in range(count) if number not in plan.order)],
        edges=edges_of(domain.extents, sizes),
    )
    return [schedule.state.one(tiled, GenericOp) for tiled, _ in zip(op.handles, members, strict=False)]


def _window_of(generic: GenericOp, number: int) -> Window:
    """What a tile of an op reads of a tensor, which it indexes without constants."""
    _, rows = linear_form(list(generic.indexing_maps)[number].data)
    type = generic.operands[number].type
    assert isa(type, TensorType)
    return Window(tuple(map(tuple, rows)), tuple(type.get_shape()))
