"""What the planner of tiles has to know of a kernel, and the plan it makes for it."""

from __future__ import annotations

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import element_bytes
from penstock.passes.access import access_of, linear_form
from penstock.passes.intrinsics import Match, candidates
from penstock.passes.kernels import has_reduction
from penstock.passes.planning.tiling import Costs, Dim, DoesNotFit, Operand, TilePlan, TileProblem, plan_tile
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


def _dims_in_anchor(generic: GenericOp, anchor: GenericOp) -> dict[int, int]:
    """For each dim of `generic`, the dim of the anchor it coincides with, through their common result."""
    if generic is anchor:
        return {dim: dim for dim in range(generic.get_num_loops())}
    return dict(zip(result_dims(generic), result_dims(anchor), strict=True))


def _problem(members: list[GenericOp], anchor: GenericOp, target: TargetOp | None) -> TileProblem:
    """What the planner needs to know: the anchor's domain, and every operand in terms of it."""
    extents = anchor.get_static_loop_ranges()
    windowed = {
        dim
        for map_attr in anchor.indexing_maps
        for expr in map_attr.data.results
        if not isinstance(expr, AffineDimExpr)
        for dim in expr.used_dims()
    }
    matches = {g: _match(g, target) for g in members}
    steps = _steps(matches[anchor])
    dims = [
        Dim(
            extent,
            kind.data == IteratorType.PARALLEL,
            steps.get(number, 1),
            kind.data == IteratorType.REDUCTION and may_run_past_its_end(anchor, number),
            # The window of a convolution stays whole: its tiles would share most of their halo.
            kind.data == IteratorType.REDUCTION and number in windowed,
        )
        for number, (extent, kind) in enumerate(zip(extents, anchor.iterator_types, strict=True))
    ]
    returned = _tied_root(members[-1].results[0])
    operands: dict[SSAValue, Operand] = {}
    for generic in members:
        match = matches[generic]
        own = _dims_in_anchor(generic, anchor)
        for number, (value, map_attr) in enumerate(zip(generic.operands, generic.indexing_maps, strict=True)):
            if not isa(value.type, TensorType):
                continue
            key = _tied_root(value)
            scope = match.scope_of_operand(number) if match is not None else DRAM
            held = None if scope == DRAM or target is None else scope
            fresh = isinstance(key.owner, tensor.EmptyOp)
            known = operands.get(key)
            if known is not None and (known.scope is not None or held is None):
                continue
            _, rows = linear_form(map_attr.data)
            indices = tuple(tuple(_remap(row, own, len(extents))) for row in rows)
            operands[key] = Operand(
                name=key.name_hint or f"operand {len(operands)}",
                scope=held,
                element_bytes=element_bytes(value.type),
                indices=indices,
                granule=1 if held is None or target is None else target.scope(held).granule_bytes,
                reads=not fresh,
                writes=key is returned,
                bounds=tuple(value.type.get_shape()),
            )
    capacity = {} if target is None else {name: scope.size_bytes for name, scope in target.scopes().items()}
    return TileProblem(tuple(dims), tuple(operands.values()), capacity, _costs(target, matches[anchor]))


def _remap(row: tuple[int, ...], own: dict[int, int], count: int) -> list[int]:
    remapped = [0] * count
    for dim, coefficient in enumerate(row):
        if coefficient:
            remapped[own[dim]] += coefficient
    return remapped


def _match(generic: GenericOp, target: TargetOp | None) -> Match | None:
    access = access_of(generic) if target is not None else None
    if access is None or target is None:
        return None
    matches, _ = candidates(access, target)
    return matches[0] if matches else None


def _steps(match: Match | None) -> dict[int, int]:
    """The intrinsic's own extent in each dim of the generic that it covers."""
    if match is None:
        return {}
    pairs = zip(match.dims, match.intrinsic.shape, strict=True)
    return {dim: shape[1] for dim, shape in pairs if dim is not None and shape is not None}


def _costs(target: TargetOp | None, match: Match | None) -> Costs:
    """The machine's numbers, with every transfer on the slowest of its DMA engines."""
    if target is None or match is None:
        return Costs()
    buses = target.buses()
    rates = [buses[dma.bus_name].bytes_per_cycle for dma in target.dmas().values() if dma.bus_name is not None]
    return Costs(
        cycles_per_byte=max((cycles / size for size, cycles in rates), default=1.0),
        cycles_per_transfer=max((dma.latency_cycles for dma in target.dmas().values()), default=0),
        cycles_per_issue=match.intrinsic.initiation_interval,
    )


def plan_members(
    kernel: func.FuncOp,
    members: list[GenericOp],
    anchor: GenericOp,
    target: TargetOp | None,
    sizes: tuple[int, ...] | None,
) -> TilePlan:
    """The plan for a kernel of these `members`; raises UserError where nothing fits, or for wrong `sizes`."""
    problem = _problem(members, anchor, target)
    try:
        return plan_tile(problem, given=sizes)
    except DoesNotFit as fault:
        parts = ", ".join(f"%{name} {size} bytes" for name, size in fault.parts)
        which, fits, needs = "no tile", "fits", "the smallest one needs"
        remedy = "choose a machine with a larger scope, or run this op on the host"
        if sizes is not None:
            which, fits, needs = f"the tile {'x'.join(map(str, sizes))}", "does not fit", "it needs"
            remedy = "choose smaller sizes"
        raise UserError(
            f'{which} of kernel @{kernel.sym_name.data} {fits} scope "{fault.scope}": {needs} '
            f"{fault.needed} bytes of its {fault.capacity}",
            loc=location_of(anchor),
            notes=[f"held there at once: {parts}", remedy],
        ) from None
    except ValueError as fault:
        raise UserError(f"kernel @{kernel.sym_name.data}: {fault}", loc=location_of(anchor)) from None


def anchor(members: list[GenericOp]) -> GenericOp:
    """The op whose dims are tiled: the one that reduces, or else the last."""
    reducing = [generic for generic in members if has_reduction(generic)]
    return reducing[0] if reducing else members[-1]
