# SPDX-License-Identifier: Apache-2.0
"""The generics of a kernel that are computed for one tile, and what they hold in the scopes of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from xdsl.dialects import tensor
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.utils.hints import isa

from penstock.dialects.cycles import Cycles
from penstock.dialects.machine import DRAM, IMMEDIATE, DmaOp, IntrinsicOp, TargetOp
from penstock.dialects.machine.energy import LEAKAGE, READ, TRANSFER, WRITE, operations_of
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.access import access_of, linear_form
from penstock.passes.analysis.commands.descriptor import transfer_cost
from penstock.passes.analysis.intrinsics import Match, candidates, choose_matches, pattern_of
from penstock.passes.analysis.kernels import has_reduction
from penstock.passes.analysis.scope_paths import intermediates, scope_path
from penstock.passes.planning.tile_problem import Channel, TileDim, TileOp, TileOperand, TileProblem
from penstock.passes.schedule.tile_nest import result_dims, with_producers
from penstock.passes.schedule.zero_pads import may_run_past_its_end


def _tied_root(value: SSAValue) -> SSAValue:
    """Where the storage of `value` comes from: an op's result lives where its output operand did."""
    while isinstance(value.owner, GenericOp):
        value = value.owner.outputs[0]
    return value


class TiledOps:
    """The generics of a kernel that are computed for one tile, the root last, and the intrinsics that compute them."""

    def __init__(self, root: GenericOp, target: TargetOp | None):
        self.root, self.target = root, target
        """The op at the end, and the machine; None for a kernel of the host."""
        self.members = with_producers(root)
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
        """The intrinsic of each op, such that what one leaves in a scope the next finds there."""
        return choose_matches(
            self.options,
            lambda value: (_tied_root(value), None),
            lambda _, value, scope: isinstance(_tied_root(value).owner, tensor.EmptyOp),
        )[0]

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
        steps = {dim: most for dim, (_, most) in blocks_of(self.matches[anchor]).items()}
        blocks: dict[int, dict[tuple[int, int], None]] = {}
        for generic, match in self.matches.items():
            for dim, block in blocks_of(match).items():
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
        energy = None if target is None else target.energy()
        leakage = None if energy is None else float(energy.picojoules(LEAKAGE))
        operands = (*held, *_on_the_way(held, target))
        return TileProblem(tuple(dims), operands, capacity, works, leakage=leakage)

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
            timing = intrinsic.timing
            kept = intrinsic.stationary_operand
            stays = None if kept is None else match.buffers[kept]
            engine = None if intrinsic.dma_name is None else engines[intrinsic.dma_name]
            *inputs, output = self._used[generic]
            assert output is not None
            yield TileOp(
                unit=engine.unit_name if engine is not None else intrinsic.unit_name or "",
                dims=tuple(own[dim] for dim in range(generic.get_num_loops())),
                reads=tuple(dict.fromkeys(number for number in inputs if number not in (None, output))),
                writes=output,
                interval=_in_dims_of(match, timing.interval, generic.get_num_loops()),
                depth=intrinsic.depth,
                blocks=tuple((own[dim], most) for dim, (_, most) in match.blocks.items()),
                channel=None if engine is None else _channel(engine, target, pattern_of(intrinsic).specs[-1].scope),
                anchor=generic is self.anchor,
                picojoules=_energy_of_point(intrinsic, target),
                touches=tuple(_touches(match, self._used[generic], target)),
                stationary=None if stays is None else self._used[generic][stays],
                load=timing.load and _in_dims_of(match, timing.load, generic.get_num_loops()),
                moving=() if stays is None else _dims_through(generic, stays, own),
                parallel=() if stays is None else _dims_through(generic, len(self._used[generic]) - 1, own),
            )


def _in_dims_of(match: Match, cycles: Cycles | int, count: int) -> Cycles | int:
    """Cycles of an application in the dims of the generic: names of those, in their order, then of others."""
    if isinstance(cycles, int):
        return cycles
    names = {dim: name for dim, name in zip(match.dims, match.intrinsic.dims, strict=True) if dim is not None}
    others = [name for name in match.intrinsic.dims if name not in names.values()]
    return Cycles(cycles.text, (*(names.get(dim, "") for dim in range(count)), *others))


def _dims_through(generic: GenericOp, number: int, own: Mapping[int, int]) -> tuple[int, ...]:
    """The dims of the domain that move through an operand."""
    used = generic.indexing_maps.data[number].data.used_dims()
    return tuple(own[dim] for dim in range(generic.get_num_loops()) if dim in used)


def _padding(value: SSAValue) -> tuple[tuple[int, int], ...] | None:
    if not isinstance(value.owner, tensor.PadOp):
        return None
    return tuple(zip(value.owner.static_low.get_values(), value.owner.static_high.get_values(), strict=True))


def _channels(target: TargetOp | None, start: str | None, end: str | None) -> tuple[Channel, ...]:
    """The engines from one scope to another; none where there is no way, or no scope."""
    path = scope_path(target, start, end) if target is not None and start is not None and end is not None else None
    if target is None or path is None:
        return ()
    hops = [(target.dma_between(here, there), here, there) for here, there in pairwise(path)]
    return tuple(
        replace(channel, picojoules=channel.picojoules + _energy_of_ends(target, here, there))
        for engine, here, there in hops
        if engine is not None
        for channel in [_channel(engine, target, there)]
    )


def _energy_of_ends(target: TargetOp, here: str, there: str) -> float:
    """The picojoules of a byte that is read in one scope and written in another; 0 where nothing is known."""
    energy = target.energy()
    return 0.0 if energy is None else float(energy.picojoules(READ, here) + energy.picojoules(WRITE, there))


def _energy_of_point(intrinsic: IntrinsicOp, target: TargetOp) -> float:
    """The picojoules of the operations of one point; 0 where nothing is known."""
    energy = target.energy()
    operations = operations_of(intrinsic.generic.body.block)
    return 0.0 if energy is None else float(sum(count * energy.picojoules(*what) for what, count in operations.items()))


def _touches(match: Match, used: Sequence[int | None], target: TargetOp) -> Iterator[tuple[int, float]]:
    """The operands that an intrinsic touches, and the picojoules of a byte."""
    energy = target.energy()
    for spec, operand in zip(pattern_of(match.intrinsic).specs, match.operands, strict=True):
        number = None if energy is None or operand is None else used[operand]
        if energy is not None and number is not None and spec.role != IMMEDIATE:
            each = energy.picojoules(READ, spec.scope) if spec.role != "out" else 0
            yield number, float(each + (energy.picojoules(WRITE, spec.scope) if spec.role in ("out", "inout") else 0))


def _channel(engine: DmaOp, target: TargetOp, destination: str) -> Channel:
    energy, carrier = target.energy(), engine.bus_name or engine.sym_name.data
    cost = transfer_cost(engine, target)
    return Channel(
        unit=engine.unit_name,
        bus=engine.bus_name,
        rate=cost.rate,
        latency=engine.latency_cycles,
        row_overhead=cost.row_overhead,
        outstanding=engine.outstanding_limit,
        dims=engine.dim_count,
        pad_max=engine.pad_limit,
        scope=None if destination == DRAM else destination,
        picojoules=0.0 if energy is None else float(energy.picojoules(TRANSFER, carrier)),
        burst=cost.burst,
        padding=cost.padding,
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


def blocks_of(match: Match | None) -> dict[int, tuple[int, int]]:
    """The least and the largest extent of one application, in each dim of the generic that the intrinsic bounds."""
    return {} if match is None else match.blocks
