"""
Random kernels under random schedules: what is legal keeps every bit on the interpreter and in C, and what is refused
changes nothing. A move proposes a primitive for a kernel as it is; other levels add theirs to `MOVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from in_c import agree
from programs import checked
from tensor_programs import inputs_of, kernel_of, tensor_program
from xdsl.dialects import scf
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, IntegerType, ModuleOp, i64
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.transform import TileOp as TileUsingForOp
from xdsl.ir import SSAValue
from xdsl.utils.hints import isa
from xdsl.utils.type import get_element_type_or_self

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.upstream.transform import FuseIntoContainingOp, SplitReductionOp
from penstock.dialects.upstream.transform_structured import FuseOp
from penstock.dialects.weights import WeightStore
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import START
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify

Move = Callable[[Schedule, Random], None]
"""Proposes one primitive; raises UserError where it is refused."""


def generics(schedule: Schedule) -> list[tuple[SSAValue, GenericOp]]:
    """Handles of the structured ops of the kernel, and the ops."""
    handles = schedule.match(GenericOp.name)
    ops = [schedule.op(handle) for handle in handles]
    return [(handle, op) for handle, op in zip(handles, ops, strict=True) if isinstance(op, GenericOp)]


def loops(schedule: Schedule) -> list[SSAValue]:
    """Handles of the loops of the kernel."""
    return list(schedule.match(scf.ForOp.name))


def some_size(extent: int, random: Random) -> int:
    """A size of a tile: mostly none or one that divides."""
    divisors = [size for size in range(1, extent + 1) if extent % size == 0]
    return random.choice([0, 0, random.choice(divisors), random.choice(divisors), random.randint(1, extent + 1)])


def some_sizes(op: GenericOp, random: Random) -> list[int]:
    return [some_size(extent, random) for extent in op.get_static_loop_ranges()]


def some_order(count: int, random: Random) -> list[int]:
    return random.sample(range(count), count)


def tile_using_for(schedule: Schedule, random: Random) -> None:
    handle, op = random.choice(generics(schedule))
    sizes = some_sizes(op, random)
    order = some_order(len(sizes), random) if random.random() < 0.5 else None
    schedule.append(TileUsingForOp(handle, (), sizes, order))


def tile_and_fuse(schedule: Schedule, random: Random) -> None:
    """An op, mostly with producers that it alone reads; sizes mostly as the edges want them."""
    found = generics(schedule)
    handle, op = random.choice(found)
    own = [other for other, its in found if {use.operation for use in its.results[0].uses} == {op}]
    near = own if random.random() < 0.8 else [other for other, its in found if its is not op]
    fused = random.sample(near, random.randint(0, len(near)))
    sizes, edges = some_sizes(op, random), list[str]()
    for number, (kind, extent) in enumerate(zip(op.iterator_types, op.get_static_loop_ranges(), strict=True)):
        edge = "overlap" if kind.data == IteratorType.PARALLEL else "zeros"
        edges.append(random.choice(["whole", edge, edge, "padded"]))
        if edges[-1] == "padded" and random.random() < 0.9:
            sizes[number] = extent + random.randint(1, 3)
    schedule.tile(handle, sizes, fusing=fused, edges=edges if random.random() < 0.7 else None)


def tile_using_forall(schedule: Schedule, random: Random) -> None:
    """Parallel dims of an op, mostly; then, perhaps, a producer or what it starts from in the same iterations."""
    found = generics(schedule)
    handle, op = random.choice(found)
    sizes = [
        size if kind.data == IteratorType.PARALLEL or random.random() < 0.1 else 0
        for kind, size in zip(op.iterator_types, some_sizes(op, random), strict=True)
    ]
    producers = [producer for producer, its in found if its.results[0] in op.operands and its.parent is op.parent]
    if random.random() < 0.3:
        counts = [size and extent // size for size, extent in zip(sizes, op.get_static_loop_ranges(), strict=True)]
        forall = schedule.tile_using_forall(handle, num_threads=counts).forall_op
    else:
        forall = schedule.tile_using_forall(handle, sizes).forall_op
    if producers and random.random() < 0.6:
        _or_not(schedule.compute_at, random.choice(producers), forall)


def pad(schedule: Schedule, random: Random) -> None:
    """Dims of an op, mostly parallel ones, or a reduction with what mostly changes nothing."""
    handle, op = random.choice(generics(schedule))
    multiples = {
        dim: random.randint(2, 6)
        for dim, kind in enumerate(op.iterator_types)
        if random.random() < (0.7 if kind.data == IteratorType.PARALLEL else 0.4)
    }
    elements = [get_element_type_or_self(operand.type) for operand in op.operands]
    values = [IntegerAttr(random.choice((0, 0, 0, 1, 7)), type) for type in elements if isa(type, IntegerType)]
    schedule.pad(handle, multiples, values)


def fuse(schedule: Schedule, random: Random) -> None:
    handle, op = random.choice(generics(schedule))
    sizes = some_sizes(op, random)
    tiles = ArrayAttr([IntegerAttr(size, i64) for size in sizes])
    schedule.append(FuseOp(handle, tile_sizes=tiles, handles=sum(size != 0 for size in sizes)))


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
    found = generics(schedule)
    pairs = [
        (producer, handle, op)
        for handle, op in found
        for producer, its in found
        if its.results[0] in op.operands and its.parent is op.parent
    ]
    if not pairs or random.random() < 0.2:
        schedule.compute_at(random.choice(found)[0], random.choice(loops(schedule)))
        return
    producer, handle, op = random.choice(pairs)
    around = _tiled(schedule, handle, op, random)
    if around:
        _or_not(schedule.compute_at, producer, random.choice(around))


def _or_not(primitive: Callable[[SSAValue, SSAValue], SSAValue], op: SSAValue, loop: SSAValue) -> None:
    """Apply the second primitive of a move, whose first one has changed the kernel; it may be refused."""
    before = str(primitive.__self__.state.kernel)  # pyright: ignore
    try:
        primitive(op, loop)
    except UserError:
        assert str(primitive.__self__.state.kernel) == before, "refused, and changed"  # pyright: ignore


def fuse_into_containing_op(schedule: Schedule, random: Random) -> None:
    producer, _ = random.choice(generics(schedule))
    schedule.append(FuseIntoContainingOp(producer, random.choice(loops(schedule))))


def interchange(schedule: Schedule, random: Random) -> None:
    handle, op = random.choice(generics(schedule))
    schedule.interchange(handle, some_order(op.get_num_loops(), random))


def inline(schedule: Schedule, random: Random) -> None:
    found = generics(schedule)
    read = [handle for handle, op in found if all(isinstance(use.operation, GenericOp) for use in op.results[0].uses)]
    schedule.inline(random.choice(read or [handle for handle, _ in found]))


def rfactor(schedule: Schedule, random: Random) -> None:
    handle, op = random.choice(generics(schedule))
    dim = random.choice([op.get_num_loops() - 1, random.randrange(op.get_num_loops())])
    schedule.rfactor(handle, dim, random.choice((1, 2, 2, 3, 4)))


def split_reduction(schedule: Schedule, random: Random) -> None:
    handle, _ = random.choice(generics(schedule))
    factor, place, strided = random.choice((2, 3, 4)), random.randint(0, 2), random.random() < 0.5
    schedule.append(SplitReductionOp(handle, split_factor=factor, insert_split_dimension=place, inner_parallel=strided))


def reverse_compute_at(schedule: Schedule, random: Random) -> None:
    """An op in the innermost loop of one that it reads, which is tiled first."""
    found = generics(schedule)
    pairs = [
        (handle, op, reader)
        for handle, op in found
        for reader, its in found
        if op.results[0] in its.inputs and op.results[0].has_one_use()
    ]
    if not pairs:
        schedule.reverse_compute_at(random.choice(found)[0], random.choice(loops(schedule)))
        return
    handle, op, reader = random.choice(pairs)
    around = _tiled(schedule, handle, op, random)
    if around:
        _or_not(schedule.reverse_compute_at, reader, around[-1] if random.random() < 0.8 else around[0])


MOVES: tuple[Move, ...] = (
    *(tile_using_for, tile_using_for, tile_using_forall, tile_and_fuse, tile_and_fuse, fuse, pad),
    *(compute_at, compute_at, fuse_into_containing_op, interchange),
    *(reverse_compute_at, reverse_compute_at, inline, inline, rfactor, split_reduction),
)


def scheduled(seed: int, moves: Sequence[Move], element: str = "i32") -> tuple[ModuleOp, ModuleOp, int, int]:
    """A random program, and what random primitives make of it; how many were applied, and how many refused."""
    module = checked(tensor_program(seed, element))
    original = module.clone()
    random = Random(seed)
    schedule = Schedule(kernel_of(module))
    applied = refused = 0
    for _ in range(random.randint(2, 6)):
        before = str(module)
        try:
            random.choice(moves)(schedule, random)
        except UserError:
            refused += 1
            assert str(module) == before, f"{seed}: refused, and changed"
        else:
            applied += 1
        if len(list(module.walk())) > 300:
            break
    verify(module)
    replayed = original.clone()
    Schedule(kernel_of(replayed)).replay(schedule.sequence, START)
    assert replayed.is_structurally_equivalent(module), f"{seed}: its text does something else"
    return original, module, applied, refused


def compare(seed: int, moves: Sequence[Move] = MOVES, *, in_c: bool = False) -> tuple[int, int]:
    """Raise AssertionError where a random schedule changes a bit."""
    original, module, applied, refused = scheduled(seed, moves)
    inputs = inputs_of(module, seed)
    expected = run_module(original, inputs, WeightStore(), ordered=True)
    results = [run_module(module, inputs, WeightStore(), ordered=True)]
    run_passes(
        make_context(), module, read_pipeline("tensor-to-loop,forall-to-for,mem-plan" if in_c else "tensor-to-loop")
    )
    results.append(agree(module, inputs) if in_c else run_module(module, inputs, WeightStore(), ordered=True))
    for found in results:
        for left, right in zip(expected, found, strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"seed {seed}")
    return applied, refused


def test_legal_schedules_keep_every_bit_and_what_is_refused_changes_nothing() -> None:
    counts = np.zeros(2, np.int64)
    for seed in range(100):
        counts += compare(seed, in_c=seed % 25 == 0)
    applied, refused = counts
    assert applied > 80, f"{applied} applied, {refused} refused: the schedules are not what they should be"
    assert refused > 40


@pytest.mark.slow
def test_hundreds_of_schedules_keep_every_bit() -> None:
    for seed in range(1000, 1600):
        compare(seed, in_c=seed % 50 == 0)
