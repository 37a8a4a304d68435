"""The plan for tiling a kernel, and the reasons why a machine has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import MemRefType, ModuleOp, StringAttr, TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, did_you_mean, location_of, warn_of
from penstock.dialects.machine import DRAM, DmaOp, TargetOp
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.access import access_of, fill_access, linear_form
from penstock.passes.analysis.intrinsics import Match, candidates, pattern_of, runs_on_unit
from penstock.passes.analysis.kernels import REMARK, TILER, device_of, has_reduction, kernels, machine_of
from penstock.passes.analysis.memory.storage import in_scope
from penstock.passes.analysis.scope_paths import intermediates, scope_path
from penstock.passes.planning.tile_problem import Channel, NoTile, TileDim, TileOp, TileOperand, TileProblem
from penstock.passes.planning.tile_validation import TilePlanError
from penstock.passes.planning.tilers.largest import largest_within
from penstock.passes.planning.tilers.pipelined import with_sizes
from penstock.passes.planning.tilers.registry import DEFAULT_TILER, plan_tile
from penstock.passes.planning.tilers.registry import tiler as find_tiler
from penstock.passes.planning.tiling import DoesNotFit, TilePlan
from penstock.passes.schedule.tile_nest import result_dims
from penstock.passes.schedule.zero_pads import may_run_past_its_end, padding_of


def root_of(kernel: func.FuncOp) -> GenericOp | None:
    """The generic whose result the kernel returns; None if it returns something else, or several results."""
    terminator = kernel.body.block.last_op if len(kernel.body.blocks) == 1 else None
    if not isinstance(terminator, func.ReturnOp) or len(terminator.operands) != 1:
        return None
    owner = terminator.operands[0].owner
    return owner if isinstance(owner, GenericOp) and len(owner.outputs) == 1 else None


def _tied_root(value: SSAValue) -> SSAValue:
    """Where the storage of `value` comes from: an op's result lives where its output operand did."""
    while isinstance(value.owner, GenericOp):
        value = value.owner.outputs[0]
    return value


def _members(root: GenericOp) -> list[GenericOp]:
    """The generics of the kernel that the root is computed from, the root last."""
    found: dict[GenericOp, None] = {}

    def visit(op: GenericOp) -> None:
        for operand in op.operands:
            if isinstance(operand.owner, GenericOp) and operand.owner not in found:
                visit(operand.owner)
        found[op] = None

    visit(root)
    return list(found)


class TiledOps:
    """The generics of a kernel that are computed for one tile, the root last, and the intrinsics that compute them."""

    def __init__(self, root: GenericOp, target: TargetOp | None):
        self.target = target
        """None for a kernel of the host."""
        self.members = _members(root)
        reducing = [generic for generic in self.members if has_reduction(generic)]
        self.anchor = reducing[0] if reducing else root
        """The op whose dims are tiled: the one that reduces, or else the last."""
        self._numbers: dict[tuple[SSAValue, tuple[tuple[int, ...], ...]], int] = {}
        """Each operand once, by where it is stored and how the dims of the anchor index it."""
        self._used: dict[GenericOp, list[int | None]] = {}
        """The operands of the problem that play those of each op; None for a scalar."""

    @cached_property
    def dims(self) -> dict[GenericOp, dict[int, int]]:
        """For each dim of each op, the dim of the anchor that it coincides with, through their common result."""
        dims = result_dims(self.anchor)
        found = {generic: dict(zip(result_dims(generic), dims, strict=True)) for generic in self.members}
        found[self.anchor] = {dim: dim for dim in range(self.anchor.get_num_loops())}
        return found

    @cached_property
    def options(self) -> dict[GenericOp, list[Match]]:
        """The intrinsics that compute each op, the best first; none without a machine."""
        found: dict[GenericOp, list[Match]] = {}
        for generic in self.members:
            access = access_of(generic) if self.target is not None else None
            found[generic] = [] if access is None or self.target is None else candidates(access, self.target)[0]
        return found

    def best(self, generic: GenericOp) -> Match | None:
        """The intrinsic that computes an op by itself."""
        return next(iter(self.options[generic]), None)

    @cached_property
    def matches(self) -> dict[GenericOp, Match | None]:
        """
        The intrinsic of each op, such that what one leaves in a scope the next finds there.

        Units choose, what DMA engines do follows, and what only fills a buffer goes where the others need it.
        """
        scopes: dict[SSAValue, str] = {}
        chosen: dict[GenericOp, Match | None] = dict.fromkeys(self.members)
        order = {g: (not g.inputs, not any(map(runs_on_unit, self.options[g][:1]))) for g in self.members}
        for generic in sorted(self.members, key=lambda g: order[g]):
            roots = [_tied_root(value) for value in generic.operands]
            agreeing = [
                match
                for match in self.options[generic]
                if all(scopes.get(r, s) == s for r, s in ((r, match.scope_of_operand(n)) for n, r in enumerate(roots)))
            ]
            match = next(iter([*agreeing, *self.options[generic]]), None)
            chosen[generic] = match
            for number, root in enumerate(roots):
                if match is not None and isinstance(root.owner, tensor.EmptyOp):
                    scopes.setdefault(root, match.scope_of_operand(number))
        return chosen

    @cached_property
    def streamed(self) -> frozenset[Operation]:
        """The ops that read or write off chip, on the way of a DMA engine, and those that go on with what they made."""
        found: set[Operation] = set()
        for generic in self.members:
            match = self.best(generic)
            off_chip = match is not None and any(spec.scope == DRAM for spec in pattern_of(match.intrinsic).specs)
            if off_chip or any(operand.owner in found for operand in generic.operands):
                found.add(generic)
        return frozenset(found)

    @cached_property
    def problem(self) -> TileProblem:
        """What the planner needs to know: the anchor's domain, and every operand in terms of it."""
        anchor, target = self.anchor, self.target
        windowed = {
            dim
            for map_attr in anchor.indexing_maps
            for expr in map_attr.data.results
            if not isinstance(expr, AffineDimExpr)
            for dim in expr.used_dims()
        }
        steps = {dim: most for dim, (_, most) in _blocks_of(self.matches[anchor]).items()}
        blocks: dict[int, dict[tuple[int, int], None]] = {}
        for generic, match in self.matches.items():
            for dim, block in _blocks_of(match).items():
                if block[0] > 1:
                    blocks.setdefault(self.dims[generic][dim], {})[block] = None
        dims = [
            TileDim(
                extent,
                kind.data == IteratorType.PARALLEL,
                steps.get(number, 1),
                kind.data == IteratorType.REDUCTION and may_run_past_its_end(anchor, number),
                # The window of a convolution stays whole: its tiles would share most of their halo.
                kind.data == IteratorType.REDUCTION and number in windowed,
                tuple(blocks.get(number, ())),
            )
            for number, (extent, kind) in enumerate(
                zip(anchor.get_static_loop_ranges(), anchor.iterator_types, strict=True)
            )
        ]
        held = self._operands()
        capacity = {} if target is None else {name: scope.size_bytes for name, scope in target.scopes().items()}
        works = () if target is None else tuple(self._works(target))
        return TileProblem(tuple(dims), (*held, *_on_the_way(held, target)), capacity, works)

    def _operands(self) -> tuple[TileOperand, ...]:
        """Every operand; what two ops read in different places is held twice."""
        found: list[TileOperand] = []
        returned = _tied_root(self.members[-1].results[0])
        count = self.anchor.get_num_loops()
        for generic in self.members:
            own = self.dims[generic]
            self._used[generic] = []
            for number, (value, map_attr) in enumerate(zip(generic.operands, generic.indexing_maps, strict=True)):
                if not isa(value.type, TensorType):
                    self._used[generic].append(None)
                    continue
                root = _tied_root(value)
                _, rows = linear_form(map_attr.data)
                indices = tuple(tuple(_remap(row, own, count)) for row in rows)
                operand = self._operand(generic, number, value, root, indices, is_returned=root is returned)
                known = self._numbers.setdefault((root, indices), len(found))
                self._used[generic].append(known)
                if known == len(found):
                    found.append(operand)
                elif found[known].scope is None and operand.scope is not None:
                    found[known] = operand
        return tuple(found)

    def _operand(
        self,
        generic: GenericOp,
        number: int,
        value: SSAValue,
        root: SSAValue,
        indices: tuple[tuple[int, ...], ...],
        *,
        is_returned: bool,
    ) -> TileOperand:
        assert isa(value.type, TensorType)
        match, target = self.matches[generic], self.target
        scope = match.scope_of_operand(number) if match is not None else DRAM
        held = None if scope == DRAM or target is None else scope
        reads = not isinstance(root.owner, tensor.EmptyOp)
        return TileOperand(
            name=root.name_hint or f"operand {len(self._numbers)}",
            scope=held,
            element_bytes=element_bytes(value.type),
            indices=indices,
            granule=1 if held is None or target is None else target.scope(held).granule_bytes,
            adjoining=match.adjoining(number) if match is not None else 1,
            reads=reads,
            writes=is_returned,
            bounds=tuple(value.type.get_shape()),
            padding=_padding(value),
            fetch=_channels(target, DRAM, held) if reads else (),
            put=_channels(target, held, DRAM) if is_returned else (),
        )

    def _works(self, target: TargetOp) -> Iterator[TileOp]:
        """What computes, in program order; `_operands` comes first."""
        engines = target.dmas()
        for generic in self.members:
            match = self.matches[generic]
            if match is None:
                continue
            own = self.dims[generic]
            intrinsic = match.intrinsic
            engine = None if intrinsic.dma_name is None else engines[intrinsic.dma_name]
            *inputs, output = self._used[generic]
            assert output is not None
            yield TileOp(
                unit=engine.unit_name if engine is not None else intrinsic.unit_name or "",
                dims=tuple(own[dim] for dim in range(generic.get_num_loops())),
                reads=tuple(dict.fromkeys(number for number in inputs if number not in (None, output))),
                writes=output,
                interval=intrinsic.initiation_interval,
                depth=intrinsic.depth,
                blocks=tuple((own[dim], most) for dim, (_, most) in match.blocks.items()),
                channel=None if engine is None else _channel(engine, target, pattern_of(intrinsic).specs[-1].scope),
                anchor=generic is self.anchor,
            )


def _padding(value: SSAValue) -> tuple[tuple[int, int], ...] | None:
    if not isinstance(value.owner, tensor.PadOp):
        return None
    return tuple(zip(value.owner.static_low.get_values(), value.owner.static_high.get_values(), strict=True))


def _channels(target: TargetOp | None, start: str | None, end: str | None) -> tuple[Channel, ...]:
    """The engines from one scope to another; none where there is no way, or no scope."""
    path = scope_path(target, start, end) if target is not None and start is not None and end is not None else None
    if target is None or path is None:
        return ()
    hops = [(target.dma_between(here, there), there) for here, there in pairwise(path)]
    return tuple(_channel(engine, target, there) for engine, there in hops if engine is not None)


def _channel(engine: DmaOp, target: TargetOp, destination: str) -> Channel:
    return Channel(
        unit=engine.unit_name,
        bus=engine.bus_name,
        rate=target.buses()[engine.bus_name].bytes_per_cycle if engine.bus_name is not None else (1, 0),
        latency=engine.latency_cycles,
        row_overhead=engine.row_overhead_cycles,
        outstanding=engine.outstanding_limit,
        dims=engine.dim_count,
        pad_max=engine.pad_limit,
        scope=None if destination == DRAM else destination,
    )


def _on_the_way(operands: Iterable[TileOperand], target: TargetOp | None) -> list[TileOperand]:
    """
    The room that operands need in the scopes between theirs and off chip: there, too, for one tile.

    They move nothing of their own. How often a scope between is filled is decided when the tile is known
    (`promote-levels`), so the traffic is estimated as if every tile came from off chip.
    """
    found: list[TileOperand] = []
    for operand in operands:
        if operand.scope is None or target is None:
            continue
        inwards = intermediates(target, DRAM, operand.scope) if operand.reads else ()
        outwards = intermediates(target, operand.scope, DRAM) if operand.writes else ()
        for scope in dict.fromkeys((*inwards, *outwards)):
            granule = target.scope(scope).granule_bytes
            found.append(replace(operand, scope=scope, granule=granule, reads=False, writes=False, fetch=(), put=()))
    return found


def _remap(row: tuple[int, ...], own: dict[int, int], count: int) -> list[int]:
    remapped = [0] * count
    for dim, coefficient in enumerate(row):
        if coefficient:
            remapped[own[dim]] += coefficient
    return remapped


def _blocks_of(match: Match | None) -> dict[int, tuple[int, int]]:
    """The least and the largest extent of one application, in each dim of the generic that the intrinsic bounds."""
    return {} if match is None else match.blocks


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
        blocks = _blocks_of(ops.best(generic))
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
    if device is not None and (target is None or device != target.sym_name.data):
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
        engine = None if scope == DRAM else _engine_into(scope, target)
        if engine is None or not isa(value.type, TensorType) or isinstance(value.owner, GenericOp | tensor.EmptyOp):
            continue
        _, rows = linear_form(map_attr.data)
        pad = value.owner if isinstance(value.owner, tensor.PadOp) else None
        low = pad.static_low.get_values() if pad is not None else [0] * len(rows)
        high = pad.static_high.get_values() if pad is not None else [0] * len(rows)
        beyond = [edge + sum(row[d] * count for d, count in past.items()) for edge, row in zip(high, rows, strict=True)]
        needed, adjoining = max([0, *low, *beyond]), match.adjoining(number)
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
