# SPDX-License-Identifier: Apache-2.0
"""
What the C of a function may say of its arguments: which are `const`, and which share no memory with another.

`@main`'s own arguments are arrays of the caller, which must not overlap; buffers are disjoint where the plan places
them so; everything else is taken to overlap. Constants, which nothing writes, may be shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import BlockArgument, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.mem import ScopedAllocation
from penstock.passes.analysis.memory.aliases import Aliases, bits, is_memory
from penstock.passes.analysis.memory.dataflow import DataFlow, Flows
from penstock.passes.analysis.memory.strips import bytes_of


def data_flows(functions: Mapping[str, func.FuncOp]) -> dict[str, DataFlow]:
    """The roots of each function, and what it does to them."""
    flows = Flows(next(iter(functions.values())).parent_op())
    return {name: flows.of(function) for name, function in functions.items()}


def restricted_arguments(flows: Mapping[str, DataFlow], entry: str) -> dict[str, frozenset[int]]:
    """For each function, the arguments of which every call proves that no other memory it accesses overlaps them."""
    restricted = {
        name: frozenset(arg.index for arg in flow.graph.function.body.block.args if is_memory(arg.type))
        for name, flow in flows.items()
    }
    called = {entry}
    changed = True
    while changed:
        changed = False
        for name, flow in flows.items():
            for call in flow.graph.nodes():
                if not isinstance(call, func.CallOp):
                    continue
                callee = call.callee.string_value()
                called.add(callee)
                shared = set(_shared_operands(call, flow.aliases, flows[callee], restricted[name]))
                changed = changed or bool(shared & restricted[callee])
                restricted[callee] -= shared
    return {name: numbers if name in called else frozenset[int]() for name, numbers in restricted.items()}


_Place = tuple[SSAValue, tuple[int, int] | None]
"""A root, and the bytes of it, from and to; None for all."""


def _places(value: SSAValue, aliases: Aliases, *, whole: bool) -> Iterator[_Place]:
    """What a memref may be: part of a root where it certainly is that, or all of several."""
    part = None if whole else aliases.part(value)
    for number in bits(aliases.of(value)):
        type = aliases.roots[number].type
        if part is None or part.root != number or not isa(type, MemRefType):
            yield aliases.roots[number], None
        else:
            yield aliases.roots[number], bytes_of(part, type)


def _shared_operands(call: func.CallOp, aliases: Aliases, flow: DataFlow, apart: frozenset[int]) -> Iterator[int]:
    """The operands of a call that may overlap another one, or a buffer of the callee."""
    beyond = flow.summary.beyond
    operands = [
        (number, list(_places(value, aliases, whole=number in beyond)))
        for number, value in enumerate(call.arguments)
        if is_memory(value.type)
    ]
    own: list[_Place] = [(op.results[0], None) for op in flow.aliases.allocations]
    for number, roots in operands:
        if any(_may_overlap(a, b, apart) for a in roots for b in own):
            yield number
    for (number, roots), (other, other_roots) in combinations(operands, 2):
        if any(_may_overlap(a, b, apart) for a in roots for b in other_roots):
            yield from (number, other)


def _may_overlap(one: _Place, other: _Place, apart: frozenset[int]) -> bool:
    """Whether parts of two roots may share bytes; `apart` are the arguments that overlap nothing else."""
    (a, mine), (b, theirs) = one, other
    if a is b:
        return True
    arguments = [root.index for root in (a, b) if isinstance(root, BlockArgument)]
    if arguments:
        return apart.isdisjoint(arguments)
    if not isinstance(a.owner, ScopedAllocation) or not isinstance(b.owner, ScopedAllocation):
        return True
    if a.owner.overlaps(b.owner) is not True:
        return a.owner.overlaps(b.owner) is None
    begin, end = _bytes(a.owner, mine)
    start, stop = _bytes(b.owner, theirs)
    return begin < stop and start < end


def _bytes(op: ScopedAllocation, part: tuple[int, int] | None) -> tuple[int, int]:
    """Where a part of a buffer with a place lies."""
    low, high = part or (0, op.size_in_bytes)
    return op.planned_offset() + low, op.planned_offset() + high
