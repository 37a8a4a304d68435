"""Copies become transfers of a DMA engine, and tensorized ops commands of a unit, within the machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.builder import Builder
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import AffineMapAttr, IndexType, MemRefType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from penstock.dialects.accel import DmaOp, ExecOp, ReadyOp, TokenType
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.machine import DmaOp as EngineOp
from penstock.dialects.mem import CopyOp, scope_of, static_strides
from penstock.passes.access import Access, Node, Operand, linear_form
from penstock.passes.command_loops import long_dims, next_loop
from penstock.passes.indices import Index, add, materialize, scale
from penstock.passes.intrinsics import Match, candidates
from penstock.passes.loop.ranges import index_range
from penstock.passes.loop.tensorize import prove


def join(builder: Builder, tokens: Sequence[SSAValue]) -> SSAValue:
    """One token that is complete when all of `tokens` are."""
    if len(tokens) == 1:
        return tokens[0]
    return builder.insert(ReadyOp(tokens)).token


def _subview(builder: Builder, source: SSAValue, offsets: Sequence[Index], sizes: Sequence[int]) -> SSAValue:
    type = source.type
    assert isa(type, MemRefType)
    if list(type.get_shape()) == list(sizes) and all(offset == 0 for offset in offsets):
        return source
    ones = [1] * len(sizes)
    result = memref.SubviewOp.infer_result_type(type, offsets, sizes, ones)
    return builder.insert(memref.SubviewOp.get(source, offsets, sizes, ones, result)).result


def _loop(
    builder: Builder, trips: int, start: SSAValue, body: Callable[[Builder, SSAValue, SSAValue], SSAValue]
) -> SSAValue:
    """A loop that carries one token; `body` gets the counter and the token so far, and returns the next."""
    lower, upper, step = (materialize(builder, value) for value in (0, trips, 1))
    block = Block(arg_types=[IndexType(), TokenType()])
    loop = scf.ForOp(lower, upper, step, [start], Region(block))
    inner = Builder(InsertPoint.at_end(block))
    token = body(inner, block.args[0], block.args[1])
    inner.insert(scf.YieldOp(token))
    builder.insert(loop)
    return loop.results[0]


# transfers


def lower_copy(builder: Builder, copy: CopyOp, target: TargetOp, after: Sequence[SSAValue]) -> SSAValue:
    """Issue the transfers that do `copy` after the tokens `after`; returns the token of them all."""
    start, end = scope_of(copy.source_type) or DRAM, scope_of(copy.dest_type) or DRAM
    engine = target.dma_between(start, end)
    if engine is None:
        raise UserError(f'no DMA of @{target.sym_name.data} goes from "{start}" to "{end}"', loc=location_of(copy))
    sides = [copy.source, copy.dest]
    offsets = [copy.mixed_source_offsets(), copy.mixed_dest_offsets()]
    padding, clipped = copy.padding, False
    if padding is not None:
        needed = _padding_needed(copy)
        if needed == 0:
            padding = None
        elif needed is None or needed > engine.pad_limit:
            after = [_fill(builder, copy, target, after)]
            padding, clipped = None, True
    hangs = padding is not None or clipped or copy.window_side == "dest"
    return _transfer(builder, engine, sides, offsets, copy, list(copy.box), padding, clipped, hangs, after)


def _padding_needed(copy: CopyOp) -> int | None:
    """The most elements by which the window of the source hangs over an edge; None if that is not known."""
    needed = 0
    for offset, size, bound in zip(copy.mixed_source_offsets(), copy.box, copy.source_type.get_shape(), strict=True):
        reach = index_range(offset)
        if reach is None:
            return None
        needed = max(needed, -reach[0], reach[1] + size - bound)
    return needed


def _fill(builder: Builder, copy: CopyOp, target: TargetOp, after: Sequence[SSAValue]) -> SSAValue:
    """Fill the destination with the padding, for an engine that cannot; the transfer then leaves it there."""
    assert copy.padding is not None
    constant = copy.padding.owner
    type = copy.dest_type
    identity = AffineMap.identity(type.get_num_dims())
    dest = Operand(copy.dest, scope_of(type) or DRAM, type.element_type, static_strides(type), identity)
    shape = type.get_shape()
    if isinstance(constant, arith.ConstantOp):
        value = Node("arith.constant", (("value", constant.value),), type.element_type, ())
        access = Access(tuple(shape), (IteratorType.PARALLEL,) * len(shape), (dest,), value)
        matches, _ = candidates(access, target)
        if matches:
            return _exec(builder, matches[0], access, [copy.dest], target, after, copy)
    raise UserError(
        f"the window hangs over the edge, no DMA of @{target.sym_name.data} pads that far, and no intrinsic fills "
        f'"{scope_of(type)}" with the padding',
        loc=location_of(copy),
        notes=["declare an intrinsic `dst[i,j] = 0` for the scope, or an engine with a larger pad_max"],
    )


def _descriptor_dims(
    engine: EngineOp, box: Sequence[int], strides: Sequence[Sequence[int]], hangs: bool
) -> list[list[int]]:
    """
    The dims of `box` that each dim of a descriptor spells, innermost first; none of size 1 needs one.

    Neighbours that are contiguous on both sides share one, as far as it counts.
    """
    spelled: list[list[int]] = []
    limits = engine.max_counts[::-1]
    for dim in reversed([dim for dim, size in enumerate(box) if size > 1]):
        if spelled and not hangs:
            shared = spelled[-1]
            follows = all(s[dim] == box[shared[-1]] * s[shared[-1]] for s in strides)
            count = prod(box[each] for each in shared) * box[dim]
            if follows and all(count <= limit for limit in limits[len(spelled) - 1 : len(spelled)]):
                shared.append(dim)
                continue
        spelled.append([dim])
    return spelled


def _transfer(
    builder: Builder,
    engine: EngineOp,
    sides: Sequence[SSAValue],
    offsets: Sequence[Sequence[Index]],
    copy: CopyOp,
    box: list[int],
    padding: SSAValue | None,
    clipped: bool,
    hangs: bool,
    after: Sequence[SSAValue],
) -> SSAValue:
    """One transfer, or a loop of them where the box has more dims, or a longer one, than a descriptor of the engine."""
    types = [side.type for side in sides]
    strides = [_strides(type) for type in types]
    cut = _cut(engine, box, _descriptor_dims(engine, box, strides, hangs))
    if cut is not None:
        dim, size = cut
        start = join(builder, after)

        def piece(inner: Builder, at: Index, size: int) -> SSAValue:
            smaller = [size if number == dim else extent for number, extent in enumerate(box)]
            moved, new_sides = _step(inner, copy, sides, offsets, smaller, dim, at)
            return _transfer(inner, engine, new_sides, moved, copy, smaller, padding, clipped, hangs, [start])

        def whole(inner: Builder, counter: SSAValue, done: SSAValue) -> SSAValue:
            return join(inner, [done, piece(inner, scale(inner, counter, size), size)])

        pieces, rest = divmod(box[dim], size)
        done = _loop(builder, pieces, start, whole)
        return join(builder, [done, piece(builder, pieces * size, rest)]) if rest else done
    op = DmaOp(
        sides[0],
        sides[1],
        engine.sym_name.data,
        source_offsets=offsets[0] if copy.window_side == "source" else (),
        dest_offsets=offsets[1] if copy.window_side == "dest" else (),
        padding=padding,
        clipped=clipped,
        dependencies=after,
    )
    op.location = copy.location
    return builder.insert(op).token


def _step(
    builder: Builder,
    copy: CopyOp,
    sides: Sequence[SSAValue],
    offsets: Sequence[Sequence[Index]],
    box: Sequence[int],
    dim: int,
    start: Index,
) -> tuple[list[Sequence[Index]], list[SSAValue]]:
    """Both sides of the piece that begins at `start` of dim `dim`: a window moves, a whole side is sliced."""
    moved: list[Sequence[Index]] = []
    pieces: list[SSAValue] = []
    for name, side, at in zip(("source", "dest"), sides, offsets, strict=True):
        if copy.window_side == name:
            pieces.append(side)
            moved.append([add(builder, o, start) if number == dim else o for number, o in enumerate(at)])
        else:
            begin: list[Index] = [start if number == dim else 0 for number in range(len(box))]
            pieces.append(_subview(builder, side, begin, box))
            moved.append(at)
    return moved, pieces


def _strides(type: Attribute) -> tuple[int, ...]:
    assert isa(type, MemRefType)
    return static_strides(type)


def _cut(engine: EngineOp, box: Sequence[int], spelled: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """The dim in which `box` is cut for a descriptor to hold it, and the size of a piece; None if one holds it all."""
    if len(spelled) > engine.dim_count:
        # A descriptor's dims end in the innermost: the outermost that it would have to spell is iterated.
        return spelled[-1][-1], 1
    for (dim, *_), limit in zip(spelled, engine.max_counts[::-1], strict=False):
        if box[dim] > limit:
            pieces = -(-box[dim] // limit)
            return dim, -(-box[dim] // pieces)
    return None


# commands


def lower_generic(builder: Builder, generic: GenericOp, target: TargetOp, after: Sequence[SSAValue]) -> SSAValue:
    """Issue the command that does `generic` after the tokens `after`; the match is proved again."""
    match = prove(generic, target)
    named = None if generic.library_call is None else generic.library_call.data
    if named != match.intrinsic.sym_name.data:
        raise UserError(
            f"this op says it is {named or 'no intrinsic'}, but it matches @{match.intrinsic.sym_name.data}",
            loc=location_of(generic),
            notes=["run `tensorize` first"],
        )
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
    return _exec(builder, match, access, buffers, target, after, generic)


def _exec(
    builder: Builder,
    match: Match,
    access: Access,
    buffers: Sequence[SSAValue],
    target: TargetOp,
    after: Sequence[SSAValue],
    op: Operation,
) -> SSAValue:
    """One command, or loops around it for the dims that a command cannot iterate."""
    maps = [access.operands[number].index_map for number in match.buffers]
    dims = long_dims(access.extents)
    return _exec_over(builder, match, dims, access.extents, maps, list(buffers), target, after, op)


def _exec_over(
    builder: Builder,
    match: Match,
    dims: list[int],
    extents: Sequence[int],
    maps: Sequence[AffineMap],
    buffers: list[SSAValue],
    target: TargetOp,
    after: Sequence[SSAValue],
    op: Operation,
) -> SSAValue:
    if (loop := next_loop(match, dims, extents, target)) is not None:
        dim, size = loop
        start = join(builder, after)

        def piece(inner: Builder, at: Index, size: int, done: SSAValue) -> SSAValue:
            smaller = [size if number == dim else extent for number, extent in enumerate(extents)]
            rest = [d for d in dims if d != dim or size > 1]
            slices = [
                _advance(inner, buffer, index_map, dim, at, rest, smaller)
                for buffer, index_map in zip(buffers, maps, strict=True)
            ]
            return _exec_over(inner, match, rest, smaller, maps, slices, target, [done], op)

        def whole(inner: Builder, counter: SSAValue, done: SSAValue) -> SSAValue:
            return piece(inner, scale(inner, counter, size), size, done)

        pieces, left = divmod(extents[dim], size)
        done = _loop(builder, pieces, start, whole)
        return piece(builder, pieces * size, left, done) if left else done
    command = ExecOp(
        match.intrinsic.sym_name.data,
        [extents[dim] for dim in dims] or [1],
        [AffineMapAttr(_restrict(index_map, dims)) for index_map in maps],
        buffers,
        immediates=match.immediates,
        dependencies=after,
    )
    command.location = op.location
    return builder.insert(command).token


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
    return _subview(builder, buffer, offsets, sizes)
