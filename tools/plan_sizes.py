# SPDX-License-Identifier: Apache-2.0
"""What a plan for the bounds of sizes comes to at smaller ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import AffineMapAttr, ModuleOp
from xdsl.dialects.func import FuncOp

from penstock.dialects.functions import SHAPE, bounds_of
from penstock.dialects.mem import element_bytes, memref_of
from penstock.passes.planning.bounds import strong_lower_bound
from penstock.passes.planning.instance import compact
from penstock.passes.planning.online import at_sizes, settled
from penstock.passes.planning.problem import Plan, Problem, height
from penstock.tools.text import aligned

if TYPE_CHECKING:
    from penstock.passes.analysis.memory.memory_problems import MemoryProblem

_PARTS = 4
"""The sizes that are looked at are so many parts of the bounds, and 1."""


def bounds_around(memory: MemoryProblem) -> dict[str, int]:
    """The sizes that only a run knows of the program that a memory is of, each with its bound."""
    module = next(iter(memory.ops.values())).get_toplevel_object()
    functions = [op for op in module.walk() if isinstance(op, FuncOp)] if isinstance(module, ModuleOp) else []
    return next((bounds for function in functions if (bounds := bounds_of(function))), dict[str, int]())


def sizes_table(memory: MemoryProblem, problem: Problem, plan: Plan, bounds: Mapping[str, int]) -> list[str]:
    """
    A row for some sizes: how far the offsets of the plan reach then, how far they do if buffers are laid out anew, each
    on those that are beneath it in the plan, and what any plan of that size takes.
    """
    words = " and ".join(f"{name} from 1 to {most:,}" for name, most in bounds.items())
    head = (*bounds, "these offsets", "laid out anew", "bound")
    rows: list[tuple[str, ...]] = [head]
    for sizes in _sizes(bounds):
        taken = _bytes_at(memory, problem, list(sizes.values()))
        smaller = at_sizes(problem, taken)
        bound = strong_lower_bound(smaller, compact(smaller))
        found = height(smaller, plan), height(smaller, settled(problem, plan, taken)), bound
        rows.append((*(f"{size:,}" for size in sizes.values()), *(f"{each:,}" for each in found)))
    most = f"{memory.place}: at most {height(problem, plan):,} bytes for all {words}"
    return [f"{most}, as no buffer has more than is planned", *aligned(rows)]


def _sizes(bounds: Mapping[str, int]) -> Iterator[dict[str, int]]:
    found = [{name: max(1, most * part // _PARTS) for name, most in bounds.items()} for part in range(_PARTS + 1)]
    for number, sizes in enumerate(found):
        if sizes not in found[:number]:
            yield sizes


def _bytes_at(memory: MemoryProblem, problem: Problem, sizes: list[int]) -> dict[str, int]:
    """The bytes of each buffer, in granules, as its shape says."""
    found: dict[str, int] = {}
    for buffer in problem.buffers:
        op = memory.ops[buffer.id]
        shape = op.attributes.get(SHAPE)
        found[buffer.id] = buffer.size
        if isinstance(shape, AffineMapAttr):
            elements = prod(shape.data.eval([], sizes))
            taken = elements * element_bytes(memref_of(op.results[0]))
            found[buffer.id] = min(buffer.size, -(-taken // memory.granule) * memory.granule)
    return found
