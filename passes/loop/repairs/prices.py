"""What changes of a program cost: the bytes that then cross the chip's edge more, in one run of a function."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import scf
from xdsl.ir import SSAValue

from penstock.dialects.machine import DRAM
from penstock.dialects.mem import CopyOp, element_bytes, scope_of
from penstock.passes.analysis.loops import iterations, loops_around
from penstock.passes.analysis.memory.liveness import Allocation
from penstock.passes.analysis.memory.memory_problems import element_memref, storage
from penstock.passes.analysis.memory.program_time import function_around
from penstock.passes.analysis.memory.storage import storage_of
from penstock.passes.loop.repairs.tile_classes import Cut


def scope_name(value: SSAValue) -> str:
    """The scope of a memref, or that off chip."""
    return scope_of(value.type) or DRAM


def is_part_of(value: SSAValue, op: Allocation) -> bool:
    """Whether a memref is the buffer or a view of it."""
    return storage_of(value) is storage(op)


def copies_of(op: Allocation) -> list[CopyOp]:
    """The copies from and to a buffer."""
    return [
        copy
        for copy in function_around(op).walk()
        if isinstance(copy, CopyOp) and (is_part_of(copy.source, op) or is_part_of(copy.dest, op))
    ]


def price_off_chip(op: Allocation) -> int | None:
    """What crosses the edge more if a buffer lies off chip: all between it and scopes, less what did so before."""
    total = 0
    for copy in copies_of(op):
        other = copy.dest if is_part_of(copy.source, op) else copy.source
        times = iterations(loops_around(copy))
        if times is None:
            return None
        bytes = times * prod(copy.box) * element_bytes(copy.source_type)
        total += -bytes if scope_name(other) == DRAM else bytes
    return max(total, 0)


def price_of_cut(cut: Cut) -> int | None:
    """
    What smaller tiles cost at most: the loop over the parts stands where in the nest it costs least.

    What the parts read whole stays if it is fetched outside of that loop, and is fetched for each part otherwise; sums
    are stored and fetched again. What becomes smaller is fetched inside of it, hence again in each round of the loops
    that it was fetched before.
    """
    nest = max((loops_around(op) for op in cut.over), key=len)
    prices = [price for depth in range(len(nest) + 1) if (price := _price_at(cut, nest, depth)) is not None]
    return min(prices, default=None)


def _price_at(cut: Cut, nest: Sequence[scf.ForOp], depth: int) -> int | None:
    """The price with the loop over the parts inside `depth` loops of the nest; None where that cannot be."""
    total = 0
    for op in cut.shapes:
        for copy in _over_the_edge(op):
            outside = [loop for loop in loops_around(copy) if loop in nest]
            moved, again = _bytes(copy), iterations(nest[len(outside) : depth])
            is_fill = is_part_of(copy.dest, op)
            if moved is None or again is None or (again > 1 and not is_fill):
                return None
            before = prod(element_memref(op).get_shape())
            total += moved * again * cut.cells[op] // before - moved
    inputs = [copy for op in cut.whole_inputs for copy in _over_the_edge(op)]
    # Sums may leave through other scopes; those of a part have to go somewhere until the next one.
    outputs = [copy for op in cut.whole_outputs for copy in copies_of(op)]
    for copies, times in ((inputs, 1), (outputs, 2)):
        for copy in copies:
            moved = _bytes(copy)
            if moved is None:
                return None
            if len([loop for loop in loops_around(copy) if loop in nest]) > depth:
                total += times * (cut.parts - 1) * moved
    return max(total, 0)


def _over_the_edge(op: Allocation) -> list[CopyOp]:
    return [copy for copy in copies_of(op) if DRAM in (scope_name(copy.source), scope_name(copy.dest))]


def _bytes(copy: CopyOp) -> int | None:
    times = iterations(loops_around(copy))
    return None if times is None else times * prod(copy.box) * element_bytes(copy.source_type)
