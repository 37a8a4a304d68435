# SPDX-License-Identifier: Apache-2.0
"""
Random primitives for a kernel as it is, those of each section of a schedule.

A move proposes one primitive, sometimes after one that makes it likely. What is refused raises UserError, and where a
kernel has nothing for a move, that raises NoCandidateError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, IntegerType, i64
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.transform import TileOp as TileUsingForOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.hints import isa
from xdsl.utils.type import get_element_type_or_self

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp
from penstock.dialects.upstream.gpu import ThreadMappingAttr
from penstock.dialects.upstream.scf import ForallOp
from penstock.dialects.upstream.transform import FuseIntoContainingOp, SplitReductionOp
from penstock.dialects.upstream.transform_loops import LoopCoalesceOp
from penstock.dialects.upstream.transform_structured import FuseOp
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.intrinsics import candidates
from penstock.passes.analysis.loops import trip_count
from penstock.passes.schedule.schedule import Schedule

Move = Callable[[Schedule, Random], None]
T = TypeVar("T")
Found = TypeVar("Found", bound=Operation)


class NoCandidateError(Exception):
    """A kernel has nothing that a move could be about."""


def one(items: Sequence[T], random: Random) -> T:
    """One of some; raises NoCandidateError where there is none."""
    if not items:
        raise NoCandidateError
    return random.choice(items)


def found(schedule: Schedule, kind: type[Found]) -> list[tuple[SSAValue, Found]]:
    """Handles of the ops of a kind in the kernel, and the ops."""
    if not any(isinstance(op, kind) for op in schedule.state.kernel.walk()):
        return []
    pairs = [(handle, schedule.op(handle)) for handle in schedule.match(kind.name)]
    return [(handle, op) for handle, op in pairs if isinstance(op, kind)]


def generics(schedule: Schedule) -> list[tuple[SSAValue, GenericOp]]:
    """Handles of the structured ops of the kernel, and the ops."""
    return found(schedule, GenericOp)


def loops(schedule: Schedule) -> list[tuple[SSAValue, scf.ForOp]]:
    """Handles of the loops of the kernel, and the loops."""
    return found(schedule, scf.ForOp)


# structured ops on tensors


def some_size(extent: int, random: Random) -> int:
    """A size of a tile: mostly none or one that divides."""
    divisors = [size for size in range(1, extent + 1) if extent % size == 0]
    return random.choice([0, 0, random.choice(divisors), random.choice(divisors), random.randint(1, extent + 1)])


def some_sizes(op: GenericOp, random: Random) -> list[int]:
    return [some_size(extent, random) for extent in op.get_static_loop_ranges()]


def some_order(count: int, random: Random) -> list[int]:
    return random.sample(range(count), count)


def tile_using_for(schedule: Schedule, random: Random) -> None:
    handle, op = one(generics(schedule), random)
    sizes = some_sizes(op, random)
    order = some_order(len(sizes), random) if random.random() < 0.5 else None
    schedule.append(TileUsingForOp(handle, (), sizes, order))


def tile_and_fuse(schedule: Schedule, random: Random) -> None:
    """An op, mostly with producers that it alone reads; sizes mostly as the edges want them."""
    known = generics(schedule)
    handle, op = one(known, random)
    own = [other for other, its in known if {use.operation for use in its.results[0].uses} == {op}]
    near = own if random.random() < 0.8 else [other for other, its in known if its is not op]
    fused = random.sample(near, random.randint(0, len(near)))
    sizes, edges = some_sizes(op, random), list[str]()
    for number, (kind, extent) in enumerate(zip(op.iterator_types, op.get_static_loop_ranges(), strict=True)):
        edge = "overlap" if kind.data == IteratorType.PARALLEL else "zeros"
        edges.append(random.choice(["whole", edge, edge, "padded"]))
        if edges[-1] == "padded" and random.random() < 0.9:
            sizes[number] = extent + random.randint(1, 3)
    schedule.tile(handle, sizes, fusing=fused, edges=edges if random.random() < 0.7 else None)


def tile_with_producers(schedule: Schedule, random: Random) -> None:
    """`transform.structured.fuse`."""
    handle, op = one(generics(schedule), random)
    sizes = some_sizes(op, random)
    tiles = ArrayAttr([IntegerAttr(size, i64) for size in sizes])
    schedule.append(FuseOp(handle, tile_sizes=tiles, handles=sum(size != 0 for size in sizes)))


def tile_using_forall(schedule: Schedule, random: Random) -> None:
    """Parallel dims of an op, mostly; then, perhaps, a producer or what it starts from in the same iterations."""
    known = generics(schedule)
    handle, op = one(known, random)
    sizes = [
        size if kind.data == IteratorType.PARALLEL or random.random() < 0.1 else 0
        for kind, size in zip(op.iterator_types, some_sizes(op, random), strict=True)
    ]
    producers = [producer for producer, its in known if its.results[0] in op.operands and its.parent is op.parent]
    if random.random() < 0.3:
        counts = [size and extent // size for size, extent in zip(sizes, op.get_static_loop_ranges(), strict=True)]
        forall = schedule.tile_using_forall(handle, num_threads=counts).forall_op
    else:
        forall = schedule.tile_using_forall(handle, sizes).forall_op
    if producers and random.random() < 0.6:
        schedule.compute_at(random.choice(producers), forall)


def pad(schedule: Schedule, random: Random) -> None:
    """Dims of an op, mostly parallel ones, or a reduction with what mostly changes nothing."""
    handle, op = one(generics(schedule), random)
    multiples = {
        dim: random.randint(2, 6)
        for dim, kind in enumerate(op.iterator_types)
        if random.random() < (0.7 if kind.data == IteratorType.PARALLEL else 0.4)
    }
    elements = [get_element_type_or_self(operand.type) for operand in op.operands]
    values = [IntegerAttr(random.choice((0, 0, 0, 1, 7)), type) for type in elements if isa(type, IntegerType)]
    schedule.pad(handle, multiples, values)


def _tiled(schedule: Schedule, handle: SSAValue, op: GenericOp, random: Random) -> list[SSAValue]:
    """Tile parallel dims of an op, or some more, and return the loops."""
    sizes = [
        random.choice([size for size in range(1, extent + 1) if extent % size == 0])
        if kind.data == IteratorType.PARALLEL or random.random() < 0.2
        else 0
        for kind, extent in zip(op.iterator_types, op.get_static_loop_ranges(), strict=True)
    ]
    return list(schedule.append(TileUsingForOp(handle, (), sizes)).loops)


def compute_at(schedule: Schedule, random: Random) -> None:
    """A producer in a loop of an op that reads it, which is tiled first, or in any loop."""
    known = generics(schedule)
    pairs = [
        (producer, handle, op)
        for handle, op in known
        for producer, its in known
        if its.results[0] in op.operands and its.parent is op.parent
    ]
    if not pairs or random.random() < 0.2:
        schedule.compute_at(one(known, random)[0], one(loops(schedule), random)[0])
        return
    producer, handle, op = random.choice(pairs)
    around = _tiled(schedule, handle, op, random)
    if around:
        schedule.compute_at(producer, random.choice(around))


def fuse_into_containing_op(schedule: Schedule, random: Random) -> None:
    """A producer in a loop, mostly one that reads it."""
    known, around = generics(schedule), loops(schedule)
    pairs = [
        (producer, handle)
        for producer, op in known
        for handle, loop in around
        if not loop.is_ancestor(op) and any(loop.is_ancestor(use.operation) for use in op.results[0].uses)
    ]
    if random.random() < 0.2:
        pairs = [(producer, handle) for producer, _ in known for handle, _ in around]
    schedule.append(FuseIntoContainingOp(*one(pairs, random)))


def interchange(schedule: Schedule, random: Random) -> None:
    handle, op = one(generics(schedule), random)
    schedule.interchange(handle, some_order(op.get_num_loops(), random))


def inline(schedule: Schedule, random: Random) -> None:
    """An op, mostly a pointwise one that other ops read."""
    known = generics(schedule)
    read = [
        handle
        for handle, op in known
        if op.results
        and op.inputs
        and not reductions(op)
        and op.results[0].uses
        and all(_reads(use.operation, op.results[0]) for use in op.results[0].uses)
    ]
    schedule.inline(one(read if random.random() < 0.9 else [handle for handle, _ in known], random))


def _reads(op: Operation, value: SSAValue) -> bool:
    """Whether an op is a structured one that reads a value, and does not start from it."""
    return isinstance(op, GenericOp) and value in op.inputs and value not in op.outputs


def reductions(op: GenericOp) -> list[int]:
    """The dims that an op reduces."""
    return [dim for dim, kind in enumerate(op.iterator_types) if kind.data == IteratorType.REDUCTION]


def _reducing(schedule: Schedule, random: Random) -> tuple[SSAValue, GenericOp]:
    """An op, mostly one that reduces."""
    known = generics(schedule)
    reducing = [pair for pair in known if reductions(pair[1])]
    return one(reducing if random.random() < 0.9 else known, random)


def rfactor(schedule: Schedule, random: Random) -> None:
    handle, op = _reducing(schedule, random)
    dim = random.choice(reductions(op) or [*range(op.get_num_loops())])
    extent, strided = op.get_static_loop_ranges()[dim], random.random() < 0.5
    factor = random.randint(1, extent + 1) if strided else _factor(extent, random)
    schedule.rfactor(handle, dim, factor, strided=strided)


def _factor(extent: int, random: Random) -> int:
    """A factor, mostly of an extent."""
    return random.choice([size for size in range(1, extent + 1) if extent % size == 0 or random.random() < 0.2])


def split_reduction(schedule: Schedule, random: Random) -> None:
    handle, op = _reducing(schedule, random)
    extents = [op.get_static_loop_ranges()[dim] for dim in reductions(op)] or [4]
    factor, place = _factor(extents[0], random), random.randint(0, 2)
    strided = random.random() < 0.5
    schedule.append(SplitReductionOp(handle, split_factor=factor, insert_split_dimension=place, inner_parallel=strided))


def reverse_compute_at(schedule: Schedule, random: Random) -> None:
    """An op in the innermost loop of one that it reads, which is tiled first."""
    known = generics(schedule)
    pairs = [
        (handle, op, reader)
        for handle, op in known
        for reader, its in known
        if op.results[0] in its.inputs and op.results[0].has_one_use()
    ]
    if not pairs:
        schedule.reverse_compute_at(one(known, random)[0], one(loops(schedule), random)[0])
        return
    handle, op, reader = random.choice(pairs)
    around = _tiled(schedule, handle, op, random)
    if around:
        schedule.reverse_compute_at(reader, around[-1] if random.random() < 0.8 else around[0])


# loops and memrefs


def reorder(schedule: Schedule, random: Random) -> None:
    """Some loops of one nest in another order, or mostly two neighbours."""
    known = loops(schedule)
    handle, inner = one(known, random)
    outer = inner.parent_op()
    around = next((each for each, op in known if op is outer), None)
    if random.random() < 0.6:
        schedule.reorder(handle, one([around] if around is not None else [], random), reassociate=random.random() < 0.3)
        return
    count = random.randint(2, min(3, max(2, len(known))))
    chosen = random.sample(known, min(count, len(known)))
    schedule.reorder(*(each for each, _ in chosen), reassociate=random.random() < 0.3)


def split(schedule: Schedule, random: Random) -> None:
    handle, loop = one(loops(schedule), random)
    schedule.split(handle, random.randint(1, max(2, trip_count(loop) or 3)))


def fuse(schedule: Schedule, random: Random) -> None:
    known = loops(schedule)
    pairs = [(around, handle) for handle, op in known for around, its in known if op.parent_op() is its]
    schedule.fuse(*one(pairs, random))


def coalesce(schedule: Schedule, random: Random) -> None:
    schedule.append(LoopCoalesceOp(one(loops(schedule), random)[0]))


def unroll(schedule: Schedule, random: Random) -> None:
    schedule.unroll(one(loops(schedule), random)[0], random.choice((8, 2, 3)))


def peel(schedule: Schedule, random: Random) -> None:
    schedule.peel(one(loops(schedule), random)[0], front=random.random() < 0.5)


def distribute(schedule: Schedule, random: Random) -> None:
    """A loop, cut before one of the ops that its body is made of."""
    handle, loop = one(loops(schedule), random)
    kinds = (GenericOp, CopyOp, scf.ForOp, memref.StoreOp, memref.SubviewOp)
    inside = [op for op in loop.body.block.ops if isinstance(op, kinds)]
    first = one(inside[1:] if random.random() < 0.8 else inside, random)
    cut = next(each for each in schedule.match(first.name, within=handle) if schedule.op(each) is first)
    schedule.distribute(handle, cut)


def vectorize(schedule: Schedule, random: Random) -> None:
    """A loop, mostly of scalars."""
    known = loops(schedule)
    scalar = [handle for handle, loop in known if _is_scalar(loop)]
    schedule.vectorize(one(scalar if random.random() < 0.8 else [handle for handle, _ in known], random))


def _is_scalar(loop: scf.ForOp) -> bool:
    return not any(isinstance(op, GenericOp | CopyOp | scf.ForOp) for op in loop.body.block.ops)


def convert_to_loops(schedule: Schedule, random: Random) -> None:
    schedule.convert_to_loops(one(generics(schedule), random)[0])


def storage_align(schedule: Schedule, random: Random) -> None:
    buffer, op = one([pair for pair in found(schedule, BufferOp) if pair[1].byte_offset is None], random)
    dims = op.type.get_num_dims()
    schedule.storage_align(buffer, random.randrange(max(1, dims - 1)), random.choice((2, 4)), random.randint(0, 1))


def parallel(schedule: Schedule, random: Random) -> None:
    schedule.parallel(*_nest(schedule, random))


def bind(schedule: Schedule, random: Random) -> None:
    nest = _nest(schedule, random)
    schedule.bind(*nest, to=[ThreadMappingAttr(name) for name in "yx"[-len(nest) :]])


def _nest(schedule: Schedule, random: Random) -> list[SSAValue]:
    """A loop, or rarely it and the one around it."""
    known = loops(schedule)
    handle, loop = one(known, random)
    around = [each for each, op in known if op is loop.parent_op()]
    return [*around, handle] if random.random() < 0.3 else [handle]


def cooperate(schedule: Schedule, random: Random) -> None:
    copies = [handle for handle, op in found(schedule, CopyOp) if _is_in_forall(op)]
    schedule.cooperate(one(copies, random))


def _is_in_forall(op: Operation) -> bool:
    parent = op.parent_op()
    return parent is not None and (isinstance(parent, ForallOp) or _is_in_forall(parent))


def insert_barriers(schedule: Schedule, random: Random) -> None:
    schedule.insert_barriers(one(found(schedule, ForallOp), random)[0])


# scopes and intrinsics


def _target(schedule: Schedule) -> TargetOp:
    if schedule.state.target is None:
        raise NoCandidateError
    return schedule.state.target


def _scope(schedule: Schedule, random: Random) -> str:
    return random.choice(sorted(_target(schedule).scopes()))


def stage_in(schedule: Schedule, random: Random) -> None:
    """What an op or a copy reads, sometimes before a loop around it."""
    scope = _scope(schedule, random)
    reading = [pair for pair in generics(schedule) if pair[1].inputs]
    reader, op = one([*reading, *reading, *found(schedule, CopyOp)], random)
    number = random.randrange(len(op.inputs)) if isinstance(op, GenericOp) else 0
    around = [handle for handle, loop in loops(schedule) if loop.is_ancestor(op)]
    at = random.choice(around) if around and random.random() < 0.4 else None
    schedule.stage_in(reader, number, scope, at=at)


def stage_out(schedule: Schedule, random: Random) -> None:
    scope = _scope(schedule, random)
    writer, op = one(generics(schedule), random)
    schedule.stage_out(writer, len(op.inputs), scope)


def set_scope(schedule: Schedule, random: Random) -> None:
    scope = _scope(schedule, random)
    schedule.set_scope(one(found(schedule, memref.AllocOp), random)[0], scope)


def tensorize(schedule: Schedule, random: Random) -> None:
    """An op, mostly with an intrinsic that computes such."""
    target = _target(schedule)
    handle, op = one(generics(schedule), random)
    access = access_of(op, placed=False)
    matches = candidates(access, target)[0] if access is not None else []
    names = [match.intrinsic.sym_name.data for match in matches]
    if not names or random.random() < 0.1:
        names = sorted(target.intrinsics())
    schedule.tensorize(handle, one(names, random))


# buffers in scopes, and commands


def multi_buffer(schedule: Schedule, random: Random) -> None:
    """A buffer, mostly one in a loop."""
    known = found(schedule, BufferOp)
    inside = [pair for pair in known if _is_repeated(pair[1])]
    buffer, _ = one(inside if random.random() < 0.9 else known, random)
    schedule.multi_buffer(buffer, random.choice((2, 2, 2, 3)))


def _is_repeated(op: Operation) -> bool:
    """Whether an op is in a loop of several iterations."""
    parent = op.parent_op()
    return isinstance(parent, scf.ForOp) and ((trip_count(parent) or 0) > 1 or _is_repeated(parent))


def pipeline(schedule: Schedule, random: Random) -> None:
    buffers = [handle for handle, op in found(schedule, BufferOp) if _is_repeated(op)]
    around = [handle for handle, loop in loops(schedule) if (trip_count(loop) or 0) > 1]
    chosen = [each for each in buffers if random.random() < 0.6]
    skewed = [each for each in around if random.random() < 0.6]
    slots = [(each, random.choice((1, 2, 2, 3))) for each in chosen]
    schedule.pipeline(slots, skewed, where_possible=random.random() < 0.5)


def virtual_thread(schedule: Schedule, random: Random) -> None:
    known = [handle for handle, loop in loops(schedule) if (trip_count(loop) or 0) > 1]
    schedule.virtual_thread(one(known, random), random.choice((2, 2, 3)))


TENSOR: tuple[Move, ...] = (
    *(tile_using_for, tile_using_for, tile_and_fuse, tile_and_fuse, tile_with_producers, tile_using_forall, pad),
    *(compute_at, compute_at, fuse_into_containing_op, interchange),
    *(reverse_compute_at, reverse_compute_at, inline, inline, rfactor, split_reduction),
)
"""Of the first section."""
LOOPS: tuple[Move, ...] = (
    *(reorder, reorder, reorder, split, split, fuse, coalesce, unroll, peel, distribute, distribute),
    *(vectorize, interchange, convert_to_loops, storage_align, parallel, bind, cooperate, insert_barriers),
)
"""Of the section after "tensor-to-loop"."""
SCOPES: tuple[Move, ...] = (stage_in, stage_in, stage_in, stage_out, stage_out, set_scope, set_scope, tensorize)
"""Of the same section, on a machine."""
ON_CHIP: tuple[Move, ...] = (multi_buffer,)
COMMANDS: tuple[Move, ...] = (pipeline, pipeline, virtual_thread, multi_buffer)

MAX_OPS = 300
"""Of a kernel to which more primitives are applied."""


def apply_moves(schedule: Schedule, moves: Sequence[Move], count: int, random: Random) -> None:
    """Propose so many primitives; those that are refused are left out."""
    for _ in range(count):
        try:
            # Each move draws from numbers of its own: without one move the others stay much the same.
            move, own = random.choice(moves), Random(random.getrandbits(64))
            move(schedule, own)
        except (UserError, NoCandidateError):
            pass
        if sum(1 for _ in schedule.state.kernel.walk()) > MAX_OPS:
            break
