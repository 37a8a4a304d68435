# SPDX-License-Identifier: Apache-2.0
"""
The paths of a function as one flat graph, structured control included.

A node is an op that is executed as a whole: one without regions, one whose regions are no control flow that is known
here (such as the body of a `linalg.generic`), or the header of one whose regions are. Nodes are in basic blocks,
and edges say which values are handed on as which.

Known control is `func.func`, `cf` (by the successors of terminators), `scf.for`, `scf.while`, `scf.if`,
`scf.index_switch`, `scf.execute_region`, `scf.parallel`, `scf.forall` and `memref.alloca_scope`. Where the bounds of a
loop are constants, only the paths of that many iterations are there: a loop that runs is not passed by, one that runs
once does not go back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects import func, memref, scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import IsTerminator

from penstock.dialects.upstream.cf import handed_to_successors
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.loops import count_between, iteration_count, trip_count

CONTROL = (
    scf.ForOp,
    scf.WhileOp,
    scf.IfOp,
    scf.IndexSwitchOp,
    scf.ExecuteRegionOp,
    scf.ParallelOp,
    ForallOp,
    memref.AllocaScopeOp,
)
"""Ops with regions whose paths are known."""

Concurrent = scf.ParallelOp | ForallOp
"""Loops whose iterations may run at once. Barriers among them are left out: what is alive on one side is on both."""

Handed = tuple[tuple[SSAValue, SSAValue], ...]
"""Values and what they are called on the other side of an edge."""


@dataclass(eq=False)
class BasicBlock:
    """Nodes that are executed one after the other."""

    number: int
    nodes: list[Operation] = field(default_factory=list[Operation])
    edges: list[FlowEdge] = field(default_factory=list["FlowEdge"])
    """Where it goes on."""
    entering: list[FlowEdge] = field(default_factory=list["FlowEdge"])


@dataclass(eq=False)
class FlowEdge:
    """One way from a basic block to another."""

    source: BasicBlock
    target: BasicBlock
    handed: Handed


Exit = tuple[BasicBlock, Operation | None]
"""A block at whose end a region is left, and the terminator that leaves it."""


class FlowGraph:
    """The graph of one function with a body."""

    def __init__(self, function: func.FuncOp):
        self.function = function
        self.blocks: list[BasicBlock] = []
        self.concurrent: dict[Operation, Concurrent] = {}
        """For each node whose iterations may run at once, the outermost such loop around it."""
        self._parallel: Concurrent | None = None
        self.entry, _ = self._region(function.body)

    def nodes(self) -> Iterator[Operation]:
        """All nodes, block by block."""
        for block in self.blocks:
            yield from block.nodes

    def edges(self) -> Iterator[FlowEdge]:
        """All edges."""
        for block in self.blocks:
            yield from block.edges

    def _new(self) -> BasicBlock:
        block = BasicBlock(len(self.blocks))
        self.blocks.append(block)
        return block

    def _link(
        self, source: BasicBlock, target: BasicBlock, values: Sequence[SSAValue] = (), names: Sequence[SSAValue] = ()
    ) -> None:
        edge = FlowEdge(source, target, tuple(zip(values, names, strict=False)))
        source.edges.append(edge)
        target.entering.append(edge)

    def _join(
        self, exits: Sequence[Exit], target: BasicBlock, names: Sequence[SSAValue] = (), skipped: int = 0
    ) -> None:
        """Go from the ends of a region to `target`, where what they hand on, but the first values, has `names`."""
        for block, terminator in exits:
            self._link(block, target, () if terminator is None else terminator.operands[skipped:], names)

    def _region(self, region: Region) -> tuple[BasicBlock, list[Exit]]:
        starts = {block: self._new() for block in region.blocks}
        exits: list[Exit] = []
        for block, start in starts.items():
            end = self._ops(block, start)
            last = block.last_op
            terminator = last if last is not None and last.has_trait(IsTerminator) else None
            if terminator is None or not terminator.successors:
                exits.append((end, terminator))
                continue
            for successor, values in handed_to_successors(terminator):
                self._link(end, starts[successor], values, successor.args)
        assert region.first_block is not None
        return starts[region.first_block], exits

    def _ops(self, block: Block, current: BasicBlock) -> BasicBlock:
        """Add the ops of a block; returns where it ends."""
        for op in block.ops:
            current.nodes.append(op)
            if self._parallel is not None:
                self.concurrent[op] = self._parallel
            if isinstance(op, CONTROL):
                current = self._control(op, current)
        return current

    def _control(self, op: Operation, here: BasicBlock) -> BasicBlock:
        match op:
            case scf.ForOp():
                return self._for(op, here)
            case scf.WhileOp():
                return self._while(op, here)
            case scf.ParallelOp() | ForallOp():
                return self._parallel_loop(op, here)
            case _:
                return self._alternatives(op, here)

    def _for(self, op: scf.ForOp, here: BasicBlock) -> BasicBlock:
        trips, carried = trip_count(op), op.body.block.args[1:]
        body, exits = self._region(op.body)
        after = self._new()
        if trips != 0:
            self._link(here, body, op.iter_args, carried)
            self._join(exits, after, op.results)
        if trips is None or trips > 1:
            self._join(exits, body, carried)
        if not trips:
            self._link(here, after, op.iter_args, op.results)
        return after

    def _while(self, op: scf.WhileOp, here: BasicBlock) -> BasicBlock:
        before, decided = self._region(op.before_region)
        body, exits = self._region(op.after_region)
        after = self._new()
        self._link(here, before, op.arguments, op.before_region.block.args)
        self._join(decided, body, op.after_region.block.args, skipped=1)
        self._join(decided, after, op.results, skipped=1)
        self._join(exits, before, op.before_region.block.args)
        return after

    def _parallel_loop(self, op: Concurrent, here: BasicBlock) -> BasicBlock:
        if isinstance(op, ForallOp):
            region, trips = op.region, iteration_count(op)
        else:
            counts = [count_between(*bounds) for bounds in zip(op.lowerBound, op.upperBound, op.step, strict=True)]
            region, trips = op.body, None if None in counts else prod(count for count in counts if count is not None)
        outermost = self._parallel
        self._parallel = outermost or op
        body, exits = self._region(region)
        self._parallel = outermost
        after = self._new()
        if trips != 0:
            self._link(here, body)
            self._join(exits, body)
            self._join(exits, after)
        if not trips:
            self._link(here, after)
        return after

    def _alternatives(self, op: Operation, here: BasicBlock) -> BasicBlock:
        """One of the regions is executed, once; or none, where one is empty."""
        ends: list[list[Exit]] = []
        passes_by = False
        for region in op.regions:
            if not region.blocks:
                passes_by = True
                continue
            start, exits = self._region(region)
            self._link(here, start)
            ends.append(exits)
        after = self._new()
        for exits in ends:
            self._join(exits, after, op.results)
        if passes_by or not ends:
            self._link(here, after)
        return after
