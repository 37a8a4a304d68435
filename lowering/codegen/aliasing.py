"""
What the C of a function may say of its arguments: which are `const`, and which share no memory with another.

`@main`'s own arguments are arrays of the caller, which must not overlap; buffers are disjoint where the plan places
them so; everything else is taken to overlap. Constants, which nothing writes, may be shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from xdsl.dialects import func
from xdsl.ir import BlockArgument, SSAValue

from penstock.dialects.mem import ScopedAllocation
from penstock.passes.analysis.memory.aliases import Aliases, bits, is_memory
from penstock.passes.analysis.memory.dataflow import DataFlow, Flows


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
                shared = set(_shared_operands(call, flow.aliases, flows[callee].aliases, restricted[name]))
                changed = changed or bool(shared & restricted[callee])
                restricted[callee] -= shared
    return {name: numbers if name in called else frozenset[int]() for name, numbers in restricted.items()}


def _shared_operands(call: func.CallOp, aliases: Aliases, callee: Aliases, apart: frozenset[int]) -> Iterator[int]:
    """The operands of a call that may overlap another one, or a buffer of the callee."""
    operands = [
        (number, [aliases.roots[root] for root in bits(aliases.of(value))])
        for number, value in enumerate(call.arguments)
        if is_memory(value.type)
    ]
    own = [op.results[0] for op in callee.allocations]
    for number, roots in operands:
        if any(_may_overlap(a, b, apart) for a in roots for b in own):
            yield number
    for (number, roots), (other, other_roots) in combinations(operands, 2):
        if any(_may_overlap(a, b, apart) for a in roots for b in other_roots):
            yield from (number, other)


def _may_overlap(one: SSAValue, other: SSAValue, apart: frozenset[int]) -> bool:
    """Whether two roots may share bytes; `apart` are the arguments that overlap nothing else."""
    if one is other:
        return True
    arguments = [root.index for root in (one, other) if isinstance(root, BlockArgument)]
    if arguments:
        return apart.isdisjoint(arguments)
    a, b = one.owner, other.owner
    return not isinstance(a, ScopedAllocation) or not isinstance(b, ScopedAllocation) or a.overlaps(b) is not False
