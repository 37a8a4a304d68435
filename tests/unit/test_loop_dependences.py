# SPDX-License-Identifier: Apache-2.0
"""Dependences of loop nests against all pairs of iterations, taken one by one, and what they are said to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
import pytest
from programs import checked
from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Operation, SSAValue

from penstock.dialects.mem import BufferOp, CopyOp
from penstock.passes.analysis.commands.loop_domain import evaluate
from penstock.passes.analysis.loop_accesses import reaches_zero
from penstock.passes.analysis.loop_dependences import NestMemory
from penstock.passes.analysis.loops import constant_of, trip_count
from penstock.passes.schedule.primitives.fuse import fuse
from penstock.passes.schedule.primitives.split import split
from penstock.tools.fuzz.loop_programs import loop_program

Element = tuple[SSAValue, int, int]
Counters = Mapping[SSAValue, np.ndarray]


def number(index: int | SSAValue, counters: Counters) -> int:
    return int(evaluate(index, counters))


def elements(value: SSAValue, at: tuple[int, ...], counters: Counters) -> Element:
    """An element of a view as one of its buffer."""
    if isinstance(value.owner, memref.SubviewOp):
        view = value.owner
        begin = get_dynamic_index_list(view.static_offsets.get_values(), view.offsets, DYNAMIC_INDEX)
        at = tuple(number(offset, counters) + index for offset, index in zip(begin, at, strict=True))
        return elements(view.source, at, counters)
    return (value, *at)  # pyright: ignore[reportReturnType]


def accessed(op: Operation, counters: Counters) -> Iterator[tuple[Element, bool]]:
    """Every element that an op accesses, and whether it writes it."""
    match op:
        case GenericOp():
            for point in product(*map(range, op.get_static_loop_ranges())):
                for place, (value, index_map) in enumerate(zip(op.operands, op.indexing_maps, strict=True)):
                    element = elements(value, tuple(index_map.data.eval(list(point), [])), counters)
                    if op.body.block.args[place].uses:
                        yield element, False
                    if place >= len(op.inputs):
                        yield element, True
        case CopyOp():
            for point in product(*map(range, op.box)):
                for value, offsets in ((op.source, op.mixed_source_offsets()), (op.dest, op.mixed_dest_offsets())):
                    at = tuple(number(offset, counters) + index for offset, index in zip(offsets, point, strict=True))
                    yield elements(value, at, counters), value is op.dest
        case memref.LoadOp() | memref.StoreOp():
            at = tuple(number(index, counters) for index in op.indices)
            yield elements(op.memref, at, counters), isinstance(op, memref.StoreOp)
        case _:
            pass


Found = set[tuple[Operation, Operation, tuple[int, ...]]]


def by_enumeration(nest: list[scf.ForOp]) -> Found:
    """The pairs of ops and the directions between the iterations in which they access one element."""
    history: dict[Element, list[tuple[tuple[int, ...], Operation, bool]]] = {}
    ops = list(nest[-1].body.block.ops)
    found: Found = set()
    for iteration in product(*(range(trip_count(loop) or 0) for loop in nest)):
        counters: Counters = {
            loop.body.block.args[0]: np.asarray((constant_of(loop.lb) or 0) + (constant_of(loop.step) or 0) * each)
            for loop, each in zip(nest, iteration, strict=True)
        }
        for op in ops:
            for element, writes in set(accessed(op, counters)):
                if isinstance(element[0].owner, BufferOp) and nest[0].is_ancestor(element[0].owner):
                    continue
                seen = history.setdefault(element, [])
                for earlier, source, wrote in seen:
                    if (writes or wrote) and earlier != iteration:
                        signs = tuple(int(np.sign(b - a)) for a, b in zip(earlier, iteration, strict=True))
                        found.add((source, op, signs))
                seen.append((iteration, op, writes))
    return found


def perfect_nest(module: ModuleOp) -> list[scf.ForOp]:
    loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    work = (GenericOp, CopyOp, memref.StoreOp)
    assert not any(isinstance(op, work) for loop in loops[:-1] for op in loop.body.block.ops), "not perfect"
    return loops


def is_exact(text: str) -> bool:
    """Whether no window is out of bounds (what is not there counts as accessed), and no two buffers share bytes."""
    return " else %zero" not in text and "at 8256" not in text and text.count("at 8320") < 2


def compare(seed: int) -> int:
    text = loop_program(seed)
    module = checked(text)
    try:
        nest = perfect_nest(module)
    except AssertionError:
        return 0
    count = compare_nest(nest, f"seed {seed}", is_exact(text))
    # Indices that are quotients and remainders, of one loop or, after a split, of several.
    fused = [fuse(*nest[:2]), *nest[2:]]
    count += compare_nest(fused, f"seed {seed}, fused", is_exact(text))
    if trip_count(fused[0]) != 1:
        outer, inner, tail = split(fused[0], (trip_count(fused[0]) or 0) // 2)
        if tail is None:
            count += compare_nest([outer, inner, *fused[1:]], f"seed {seed}, split", is_exact(text))
    return count


def compare_nest(nest: list[scf.ForOp], title: str, exact: bool) -> int:
    expected = by_enumeration(nest)
    dependences = NestMemory.around(nest[0]).dependences(nest)
    found = {(each.source.op, each.sink.op, each.directions) for each in dependences}
    assert expected <= found, f"{title}: a dependence is missed"
    if exact:
        assert found == expected, f"{title}: a dependence is found that is not there"
    return len(expected)


def test_dependences_are_those_between_all_pairs_of_iterations() -> None:
    assert sum(compare(seed) for seed in range(20)) > 50


def test_quotients_of_one_iteration_of_a_fused_loop_are_one() -> None:
    nest = perfect_nest(
        checked("""func.func @main(%x: memref<8xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %one = arith.constant 1.0 : f32
  scf.for %i = %c0 to %c3 step %c1 {
    scf.for %j = %c0 to %c3 step %c1 {
      scf.for %k = %c0 to %c2 step %c1 {
        scf.for %l = %c0 to %c3 step %c1 {
          %twice = arith.muli %i, %c2 : index
          %at = arith.addi %twice, %l : index
          memref.store %one, %x[%at] : memref<8xf32>
        }
      }
    }
  }
  func.return
}""")
    )
    assert compare_nest([fuse(*nest[:2]), *nest[2:]], "the quotient alone", exact=True) == 7


@pytest.mark.slow
def test_dependences_of_many_nests_are_those_between_all_pairs_of_iterations() -> None:
    for seed in range(1000, 1600):
        compare(seed)


@pytest.mark.parametrize("seed", range(20))
def test_whether_zero_is_a_sum_is_decided_as_by_enumeration(seed: int) -> None:
    random = np.random.default_rng(seed)
    progressions = [
        (int(random.integers(-9, 10)), int(lo), int(lo + random.integers(0, 4))) for lo in random.integers(-3, 3, 3)
    ]
    sets = [np.unique(random.integers(-20, 20, 3)) for _ in range(random.integers(0, 2))]
    constant = int(random.integers(-30, 30))
    multiples = [[stride * k for k in range(lo, hi + 1)] for stride, lo, hi in progressions]
    expected = any(constant + sum(each) == 0 for each in product(*multiples, *(each.tolist() for each in sets)))
    assert reaches_zero(constant, progressions, sets) is expected
