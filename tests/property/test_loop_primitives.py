"""Random loop nests under random sequences of primitives: what is legal keeps every bit, the rest changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from in_c import Array, agree
from loop_programs import SIZE, loop_program
from programs import checked
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import BufferOp
from penstock.dialects.weights import WeightStore
from penstock.passes.schedule.primitives.convert_to_loops import convert_to_loops
from penstock.passes.schedule.primitives.distribute import distribute
from penstock.passes.schedule.primitives.fuse import fuse
from penstock.passes.schedule.primitives.interchange import interchange
from penstock.passes.schedule.primitives.layout import layout
from penstock.passes.schedule.primitives.peel import peel
from penstock.passes.schedule.primitives.reorder import reorder
from penstock.passes.schedule.primitives.split import split
from penstock.passes.schedule.primitives.storage_align import storage_align
from penstock.passes.schedule.primitives.unroll import unroll
from penstock.passes.schedule.primitives.vectorize import vectorize
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import verify

Loops = Sequence[scf.ForOp]


def _reorder(loops: Loops, random: Random) -> None:
    reorder(random.sample(loops, random.randint(2, min(3, len(loops)))))


def _swap_neighbours(loops: Loops, random: Random) -> None:
    inner = random.choice(loops)
    outer = inner.parent_op()
    if isinstance(outer, scf.ForOp):
        reorder([inner, outer])


def _split(loops: Loops, random: Random) -> None:
    split(random.choice(loops), random.randint(1, 3))


def _fuse(loops: Loops, random: Random) -> None:
    inner = random.choice(loops)
    outer = inner.parent_op()
    if isinstance(outer, scf.ForOp):
        fuse(outer, inner)


def _unroll(loops: Loops, random: Random) -> None:
    unroll(random.choice(loops), random.choice((None, 2, 3)))


def _peel(loops: Loops, random: Random) -> None:
    peel(random.choice(loops), front=random.random() < 0.5)


def _distribute(loops: Loops, random: Random) -> None:
    loop = random.choice(loops)
    distribute(loop, random.choice(list(loop.body.block.ops)))


def _interchange(loops: Loops, random: Random) -> None:
    generics = [op for op in loops[0].walk() if isinstance(op, GenericOp)]
    if generics:
        generic = random.choice(generics)
        interchange(generic, random.sample(range(len(generic.iterator_types)), len(generic.iterator_types)))


def _convert_to_loops(loops: Loops, random: Random) -> None:
    generics = [op for op in loops[0].walk() if isinstance(op, GenericOp)]
    if generics:
        convert_to_loops(random.choice(generics))


def _align(loops: Loops, random: Random) -> None:
    function = loops[0].get_toplevel_object()
    assert isinstance(function, ModuleOp)
    buffers = [op for op in function.walk() if isinstance(op, BufferOp) and op.type.get_num_dims() == 2]
    buffer = random.choice(buffers)
    # The offsets that programs give leave room for this.
    place = buffer.properties.pop("offset")
    try:
        storage_align(buffer, 0, random.choice((2, 4)), random.randint(0, 1))
    finally:
        buffer.properties["offset"] = place


def _layout(loops: Loops, random: Random) -> None:
    function = loops[0].get_toplevel_object()
    assert isinstance(function, ModuleOp)
    buffer = random.choice([op for op in function.walk() if isinstance(op, BufferOp)])
    rank = buffer.type.get_num_dims()
    place = buffer.properties.pop("offset")
    try:
        layout(buffer, random.sample(range(rank), rank))
    finally:
        buffer.properties["offset"] = place


def _vectorize(loops: Loops, random: Random) -> None:
    vectorize(random.choice(loops))


PRIMITIVES: tuple[Callable[[Loops, Random], None], ...] = (
    _reorder,
    _swap_neighbours,
    _swap_neighbours,
    _split,
    _fuse,
    _unroll,
    _peel,
    _distribute,
    _distribute,
    _vectorize,
    _interchange,
    _convert_to_loops,
    _align,
    _layout,
)


def inputs(element: str) -> list[Array]:
    generators = map(np.random.default_rng, range(3))
    if element == "i32":
        return [generator.integers(-4, 5, (SIZE, SIZE)).astype(np.int32) for generator in generators]
    return [generator.standard_normal((SIZE, SIZE)).astype(np.float32) for generator in generators]


def apply_some(module: ModuleOp, random: Random) -> tuple[int, int]:
    """Apply random primitives to a program; returns how many changed it, and how many were refused."""
    known = module.clone()
    applied = refused = 0
    for _ in range(random.randint(2, 6)):
        loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
        if len(loops) < 2 or len(list(module.walk())) > 400:
            break
        refusal = None
        try:
            random.choice(PRIMITIVES)(loops, random)
        except UserError as error:
            refusal = error
            refused += 1
        if not module.is_structurally_equivalent(known):
            assert refusal is None, f"refused, and changed: {refusal}"
            applied, known = applied + 1, module.clone()
    verify(module)
    return applied, refused


def compare(seed: int, *, in_c: bool, element: str = "i32", schedules: int = 2) -> tuple[int, int]:
    """Raise AssertionError where a random schedule of a random program changes a bit."""
    original = checked(loop_program(seed, element))
    given = inputs(element)
    expected = run_module(original, given, WeightStore(), ordered=True)
    total = np.zeros(2, np.int64)
    for number in range(schedules):
        module = original.clone()
        total += apply_some(module, Random(1000 * seed + number))
        found = agree(module, given) if in_c else run_module(module, given, WeightStore(), ordered=True)
        for left, right in zip(expected, found, strict=True):
            np.testing.assert_array_equal(left.view(np.int32), right.view(np.int32), err_msg=f"seed {seed}, {number}")
    applied, refused = total.tolist()
    return applied, refused


def test_legal_sequences_keep_every_bit_and_illegal_ones_change_nothing() -> None:
    counts = np.zeros(2, np.int64)
    for seed in range(50):
        counts += compare(seed, in_c=seed % 25 == 0, element="f32" if seed % 4 == 0 else "i32")
    applied, refused = counts
    assert applied > 100, f"{applied} applied, {refused} refused: the programs are not what they should be"
    assert refused > 40


@pytest.mark.slow
def test_hundreds_of_sequences_keep_every_bit() -> None:
    for seed in range(1000, 1300):
        compare(seed, in_c=seed % 50 == 0, element="f32" if seed % 4 == 0 else "i32")
