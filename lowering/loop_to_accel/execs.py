# SPDX-License-Identifier: Apache-2.0
"""Tensorized ops become commands of a unit, or of an engine that does them on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xdsl.builder import Builder
from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import AffineMapAttr, MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.accel import ExecOp
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.access import Access, Node, Operand, linear_form, steps_of
from penstock.passes.analysis.commands.command_loops import long_dims, next_loop
from penstock.passes.analysis.intrinsics import Match
from penstock.passes.index_builder import Index, for_loop, scale
from penstock.passes.loop.tensorize import prove_named


def lower_generic(builder: Builder, generic: GenericOp, target: TargetOp) -> None:
    """Issue the command that does `generic`, without tokens; the match is proved again."""
    match = prove_named(generic, target)
    access = Access(
        tuple(generic.get_static_loop_ranges()),
        tuple(kind.data for kind in generic.iterator_types),
        tuple(
            Operand(value, None, value.type, None, map_attr.data)
            for value, map_attr in zip(generic.operands, generic.indexing_maps, strict=True)
        ),
        Node("", (), generic.operands[0].type, ()),
    )
    buffers = [generic.operands[number] for number in match.buffers]
    lower_access(builder, match, access, buffers, target, generic)


def lower_access(
    builder: Builder,
    match: Match,
    access: Access,
    buffers: Sequence[SSAValue],
    target: TargetOp,
    op: Operation,
) -> None:
    """Issue the command that does `access`, which `op` asks for, or loops around it for what one cannot iterate."""
    maps = tuple(access.operands[number].index_map for number in match.buffers)
    domain = _CommandDomain(match, target, op, maps, long_dims(access.extents), tuple(access.extents), tuple(buffers))
    domain.issue(builder)


@dataclass(frozen=True)
class _CommandDomain:
    """An application of an intrinsic, or a piece of one."""

    match: Match
    target: TargetOp
    op: Operation
    maps: tuple[AffineMap, ...]
    dims: list[int]
    """Those that are iterated."""
    extents: tuple[int, ...]
    buffers: tuple[SSAValue, ...]

    def issue(self, builder: Builder) -> None:
        """One command, or a loop of them."""
        steps = [steps_of(index_map, buffer) for index_map, buffer in zip(self.maps, self.buffers, strict=True)]
        if (loop := next_loop(self.match, self.dims, self.extents, self.target, steps)) is not None:
            dim, size = loop
            in_pieces(
                builder, self.extents[dim], size, lambda at, start, piece: self._piece(at, dim, start, piece).issue(at)
            )
            return
        command = ExecOp(
            self.match.intrinsic.sym_name.data,
            [self.extents[dim] for dim in self.dims] or [1],
            [AffineMapAttr(_restrict(index_map, self.dims)) for index_map in self.maps],
            self.buffers,
            immediates=self.match.immediates,
        )
        command.location = self.op.location
        builder.insert(command)

    def _piece(self, builder: Builder, dim: int, start: Index, size: int) -> _CommandDomain:
        extents = (*self.extents[:dim], size, *self.extents[dim + 1 :])
        rest = [each for each in self.dims if each != dim or size > 1]
        slices = tuple(
            _advance(builder, buffer, index_map, dim, start, rest, extents)
            for buffer, index_map in zip(self.buffers, self.maps, strict=True)
        )
        return replace(self, dims=rest, extents=extents, buffers=slices)


def _restrict(index_map: AffineMap, dims: Sequence[int]) -> AffineMap:
    """The map over the domain that keeps only `dims`; the others stand at 0."""
    constants, rows = linear_form(index_map)
    results: list[AffineExpr] = []
    for constant, row in zip(constants, rows, strict=True):
        expr: AffineExpr | None = None
        for position, dim in enumerate(dims):
            if row[dim]:
                term = AffineExpr.dimension(position)
                term = term if row[dim] == 1 else term * row[dim]
                expr = term if expr is None else expr + term
        if expr is None:
            expr = AffineExpr.constant(constant)
        elif constant:
            expr = expr + constant
        results.append(expr)
    return AffineMap(max(1, len(dims)), 0, tuple(results))


def _advance(
    builder: Builder,
    buffer: SSAValue,
    index_map: AffineMap,
    dim: int,
    start: Index,
    rest: Sequence[int],
    extents: Sequence[int],
) -> SSAValue:
    """The part of an operand that the dims `rest` touch when dim `dim` begins at `start`."""
    constants, rows = linear_form(index_map)
    if all(row[dim] == 0 for row in rows):
        return buffer
    offsets: list[Index] = [scale(builder, start, row[dim]) if row[dim] else 0 for row in rows]
    sizes = [
        1 + constant + sum(row[d] * (extents[d] - 1) for d in rest if row[d])
        for constant, row in zip(constants, rows, strict=True)
    ]
    return slice_of(builder, buffer, offsets, sizes)


# loops of pieces, and slices of buffers


def slice_of(builder: Builder, source: SSAValue, offsets: Sequence[Index], sizes: Sequence[int]) -> SSAValue:
    """The part of a memref of these sizes that begins at `offsets`."""
    type = source.type
    assert isa(type, MemRefType)
    if list(type.get_shape()) == list(sizes) and all(offset == 0 for offset in offsets):
        return source
    ones = [1] * len(sizes)
    result = memref.SubviewOp.infer_result_type(type, offsets, sizes, ones)
    return builder.insert(memref.SubviewOp.get(source, offsets, sizes, ones, result)).result


def in_pieces(builder: Builder, extent: int, size: int, issue: Callable[[Builder, Index, int], None]) -> None:
    """A loop over pieces of `size`, and the rest after it; `issue` gets the start of a piece, and its size."""
    trips, rest = divmod(extent, size)
    loop, inner = for_loop(builder, (0, trips, 1))
    issue(inner, scale(inner, loop.body.block.args[0], size), size)
    inner.insert(scf.YieldOp())
    if rest:
        issue(builder, trips * size, rest)
