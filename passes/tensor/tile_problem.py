"""What the planner of tiles has to know of a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.utils.hints import isa

from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import element_bytes
from penstock.passes.access import access_of, linear_form
from penstock.passes.intrinsics import Match, candidates, runs_on_unit
from penstock.passes.kernels import has_reduction
from penstock.passes.paths import intermediates
from penstock.passes.planning.tile_sizes import Dim
from penstock.passes.planning.tiling import Costs, Operand, TileProblem
from penstock.passes.tensor.tile_nest import result_dims
from penstock.passes.tensor.zero_pads import may_run_past_its_end


def members(root: GenericOp) -> list[GenericOp]:
    """The generics of the kernel that the root is computed from, the root last."""
    found: dict[GenericOp, None] = {}

    def visit(op: GenericOp) -> None:
        for operand in op.operands:
            if isinstance(operand.owner, GenericOp) and operand.owner not in found:
                visit(operand.owner)
        found[op] = None

    visit(root)
    return list(found)


def root_of(kernel: func.FuncOp) -> GenericOp | None:
    """The generic whose result the kernel returns; None if it returns something else, or several results."""
    terminator = kernel.body.block.last_op
    if not isinstance(terminator, func.ReturnOp) or len(terminator.operands) != 1:
        return None
    owner = terminator.operands[0].owner
    return owner if isinstance(owner, GenericOp) and len(owner.outputs) == 1 else None


def _tied_root(value: SSAValue) -> SSAValue:
    """Where the storage of `value` comes from: an op's result lives where its output operand did."""
    while isinstance(value.owner, GenericOp):
        value = value.owner.outputs[0]
    return value


def dims_in_anchor(generic: GenericOp, anchor: GenericOp) -> dict[int, int]:
    """For each dim of `generic`, the dim of the anchor it coincides with, through their common result."""
    if generic is anchor:
        return {dim: dim for dim in range(generic.get_num_loops())}
    return dict(zip(result_dims(generic), result_dims(anchor), strict=True))


def problem_of(members: list[GenericOp], anchor: GenericOp, target: TargetOp | None) -> TileProblem:
    """What the planner needs to know: the anchor's domain, and every operand in terms of it."""
    extents = anchor.get_static_loop_ranges()
    windowed = {
        dim
        for map_attr in anchor.indexing_maps
        for expr in map_attr.data.results
        if not isinstance(expr, AffineDimExpr)
        for dim in expr.used_dims()
    }
    matches = matches_of(members, target)
    steps = {dim: most for dim, (_, most) in blocks_of(matches[anchor]).items()}
    blocks: dict[int, dict[tuple[int, int], None]] = {}
    for generic, match in matches.items():
        own = dims_in_anchor(generic, anchor)
        for dim, block in blocks_of(match).items():
            if block[0] > 1:
                blocks.setdefault(own[dim], {})[block] = None
    dims = [
        Dim(
            extent,
            kind.data == IteratorType.PARALLEL,
            steps.get(number, 1),
            kind.data == IteratorType.REDUCTION and may_run_past_its_end(anchor, number),
            # The window of a convolution stays whole: its tiles would share most of their halo.
            kind.data == IteratorType.REDUCTION and number in windowed,
            tuple(blocks.get(number, ())),
        )
        for number, (extent, kind) in enumerate(zip(extents, anchor.iterator_types, strict=True))
    ]
    returned = _tied_root(members[-1].results[0])
    operands: dict[tuple[SSAValue, tuple[tuple[int, ...], ...]], Operand] = {}
    for generic in members:
        match = matches[generic]
        own = dims_in_anchor(generic, anchor)
        for number, (value, map_attr) in enumerate(zip(generic.operands, generic.indexing_maps, strict=True)):
            if not isa(value.type, TensorType):
                continue
            root = _tied_root(value)
            _, rows = linear_form(map_attr.data)
            indices = tuple(tuple(_remap(row, own, len(extents))) for row in rows)
            # What two ops read in different places is held twice.
            key = (root, indices)
            scope = match.scope_of_operand(number) if match is not None else DRAM
            held = None if scope == DRAM or target is None else scope
            fresh = isinstance(root.owner, tensor.EmptyOp)
            known = operands.get(key)
            if known is not None and (known.scope is not None or held is None):
                continue
            operands[key] = Operand(
                name=root.name_hint or f"operand {len(operands)}",
                scope=held,
                element_bytes=element_bytes(value.type),
                indices=indices,
                granule=1 if held is None or target is None else target.scope(held).granule_bytes,
                adjoining=match.adjoining(number) if match is not None else 1,
                reads=not fresh,
                writes=root is returned,
                bounds=tuple(value.type.get_shape()),
            )
    capacity = {} if target is None else {name: scope.size_bytes for name, scope in target.scopes().items()}
    held = tuple(operands.values())
    costs = machine_costs(target, matches[anchor])
    return TileProblem(tuple(dims), (*held, *_on_the_way(held, target)), capacity, costs)


def _on_the_way(operands: Iterable[Operand], target: TargetOp | None) -> list[Operand]:
    """
    The room that operands need in the scopes between theirs and off chip: there, too, for one tile.

    They move nothing of their own. How often a scope between is filled is decided when the tile is known
    (`promote-levels`), so the traffic is estimated as if every tile came from off chip.
    """
    found: list[Operand] = []
    for operand in operands:
        if operand.scope is None or target is None:
            continue
        inwards = intermediates(target, DRAM, operand.scope) if operand.reads else ()
        outwards = intermediates(target, operand.scope, DRAM) if operand.writes else ()
        for scope in dict.fromkeys((*inwards, *outwards)):
            granule = target.scope(scope).granule_bytes
            found.append(replace(operand, scope=scope, granule=granule, reads=False, writes=False))
    return found


def _remap(row: tuple[int, ...], own: dict[int, int], count: int) -> list[int]:
    remapped = [0] * count
    for dim, coefficient in enumerate(row):
        if coefficient:
            remapped[own[dim]] += coefficient
    return remapped


def match_of(generic: GenericOp, target: TargetOp | None) -> Match | None:
    """The intrinsic that computes `generic`; None without a machine."""
    access = access_of(generic) if target is not None else None
    if access is None or target is None:
        return None
    matches, _ = candidates(access, target)
    return matches[0] if matches else None


def matches_of(members: list[GenericOp], target: TargetOp | None) -> dict[GenericOp, Match | None]:
    """
    The intrinsic of each op, such that what one leaves in a scope the next finds there.

    Units choose, what DMA engines do follows, and what only fills a buffer goes where the others want it.
    """
    options: dict[GenericOp, list[Match]] = {}
    for generic in members:
        access = access_of(generic) if target is not None else None
        options[generic] = [] if access is None or target is None else candidates(access, target)[0]
    scopes: dict[SSAValue, str] = {}
    chosen: dict[GenericOp, Match | None] = dict.fromkeys(members)
    order = {g: (not g.inputs, not any(map(runs_on_unit, options[g][:1]))) for g in members}
    for generic in sorted(members, key=lambda g: order[g]):
        roots = [_tied_root(value) for value in generic.operands]
        agreeing = [
            match
            for match in options[generic]
            if all(scopes.get(r, s) == s for r, s in ((r, match.scope_of_operand(n)) for n, r in enumerate(roots)))
        ]
        match = next(iter([*agreeing, *options[generic]]), None)
        chosen[generic] = match
        for number, root in enumerate(roots):
            if match is not None and isinstance(root.owner, tensor.EmptyOp):
                scopes.setdefault(root, match.scope_of_operand(number))
    return chosen


def blocks_of(match: Match | None) -> dict[int, tuple[int, int]]:
    """The least and the largest extent of one application, in each dim of the generic that the intrinsic bounds."""
    return {} if match is None else match.blocks


def streamed(members: list[GenericOp], target: TargetOp | None) -> frozenset[Operation]:
    """The members that read or write off chip, on the way of a DMA engine, and those that go on with what they made."""
    found: set[Operation] = set()
    for generic in members:
        match = match_of(generic, target)
        off_chip = match is not None and any(spec.scope == DRAM for spec in match.intrinsic.operand_specs())
        if off_chip or any(operand.owner in found for operand in generic.operands):
            found.add(generic)
    return frozenset(found)


def machine_costs(target: TargetOp | None, match: Match | None) -> Costs:
    """The machine's numbers, with every transfer on the slowest of its DMA engines; an issue is of `match`."""
    if target is None:
        return Costs()
    buses = target.buses()
    rates = [buses[dma.bus_name].bytes_per_cycle for dma in target.dmas().values() if dma.bus_name is not None]
    return Costs(
        cycles_per_byte=max((cycles / size for size, cycles in rates), default=1.0),
        cycles_per_transfer=max((dma.latency_cycles for dma in target.dmas().values()), default=0),
        cycles_per_issue=match.intrinsic.initiation_interval if match is not None else 1.0,
    )


def anchor(members: list[GenericOp]) -> GenericOp:
    """The op whose dims are tiled: the one that reduces, or else the last."""
    reducing = [generic for generic in members if has_reduction(generic)]
    return reducing[0] if reducing else members[-1]
