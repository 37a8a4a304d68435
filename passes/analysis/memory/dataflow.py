# SPDX-License-Identifier: Apache-2.0
"""
The data-flow equations of liveness, for memrefs as aggregates, or for the strips that they are cut into.

Backward over the basic blocks of a function,

    IN(B) = (OUT(B) - KILL(B)) | USE(B),    OUT(B) = the union of IN(S) over the successors S of B,

where USE(B) are the roots of which some byte may be read in B before B has written the root completely, and KILL(B)
those that B certainly writes completely, or makes anew, before any read. A write that is partial, or that may not
take place, is no kill: the root stays alive before it. But bytes that are not written yet need no keeping either,
so forward

    WRITTEN_OUT(B) = (WRITTEN_IN(B) - MADE(B)) | WRITES(B),

and a root is alive between two ops where it is both in the backward and in the forward set: it may have been
written, and what was written may be read. Within a block both are repeated op by op. At an op everything is alive that
is alive before or after it, and all that it touches: its results interfere with its operands, unless they are the
same memref. The same equations hold for strips as for roots: each is as if it were a buffer, and an op reads, and
certainly writes, those that the boxes which it accesses are in.

See Li et al., "TOpLib", NPC 2020, for the equations; that partial writes are no kills, and the forward half, is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.accel import DmaOp
from penstock.dialects.machine import find_target
from penstock.dialects.mem import CopyOp
from penstock.passes.analysis.memory.aliases import Aliases, Allocation, RootBox, bits
from penstock.passes.analysis.memory.effects import CallSummary, Effect, MemoryEffects
from penstock.passes.analysis.memory.graph import CONTROL, BasicBlock, FlowGraph
from penstock.passes.analysis.memory.kills import certain_kills
from penstock.passes.analysis.memory.strips import Strips, cut


class TransferFunction(NamedTuple):
    """What a node, or several in a row, do to a set: first take away, then add."""

    kill: int
    gen: int

    def __call__(self, found: int) -> int:
        return found & ~self.kill | self.gen

    def then(self, later: TransferFunction) -> TransferFunction:
        """This, then that."""
        return TransferFunction(self.kill | later.kill, self.gen & ~later.kill | later.gen)


_NOTHING = TransferFunction(0, 0)


def solve(
    graph: FlowGraph,
    transfers: Mapping[Operation, TransferFunction],
    at_end: int = 0,
    *,
    forward: bool = False,
    at_start: Sequence[int] | None = None,
) -> dict[Operation, int]:
    """
    The least sets that hold after each node; or before each, if they flow forward.

    `at_end` holds where the function ends, or begins. `at_start` is, by the number of a basic block, what its start
    takes away from a set that flows backward.
    """
    blocks = graph.blocks

    def in_order(block: BasicBlock) -> Iterable[Operation]:
        return block.nodes if forward else reversed(block.nodes)

    def come_from(block: BasicBlock) -> list[BasicBlock]:
        return [edge.source for edge in block.entering] if forward else [edge.target for edge in block.edges]

    def go_to(block: BasicBlock) -> list[BasicBlock]:
        return [edge.target for edge in block.edges] if forward else [edge.source for edge in block.entering]

    whole = [_NOTHING] * len(blocks)
    for block in blocks:
        for op in in_order(block):
            whole[block.number] = whole[block.number].then(transfers.get(op, _NOTHING))
        if at_start is not None:
            whole[block.number] = whole[block.number].then(TransferFunction(at_start[block.number], 0))
    into = [at_end if (block is graph.entry if forward else not block.edges) else 0 for block in blocks]
    out: list[int | None] = [None] * len(blocks)
    waiting = [graph.entry] if forward else list(blocks)
    while waiting:
        block = waiting.pop()
        for other in come_from(block):
            into[block.number] |= out[other.number] or 0
        found = whole[block.number](into[block.number])
        if found != out[block.number]:
            out[block.number] = found
            waiting += [other for other in go_to(block) if other not in waiting]
    sets: dict[Operation, int] = {}
    for block in blocks:
        found = into[block.number]
        for op in in_order(block):
            sets[op] = found
            found = transfers.get(op, _NOTHING)(found)
    return sets


@dataclass(frozen=True)
class Lives:
    """What is alive before, at and after a node, as sets of strips."""

    before: int
    at: int
    after: int


class Flows:
    """The data flow of the functions of a module, none of which may change meanwhile."""

    def __init__(self, module: Operation | None):
        """Of nothing but what is asked of it where there is no module."""
        self.target = find_target(module) if isinstance(module, ModuleOp) else None
        functions = module.ops if isinstance(module, ModuleOp) else ()
        self._functions = {
            op.sym_name.data: op for op in functions if isinstance(op, func.FuncOp) and not op.is_declaration
        }
        self._known: dict[str, DataFlow | None] = {}
        """None while it is being found out."""

    def of(self, function: func.FuncOp) -> DataFlow:
        """The data flow of a function with a body."""
        name = function.sym_name.data
        if (known := self._known.get(name)) is None:
            # Of a function that calls itself nothing is known meanwhile.
            self._known[name] = None
            known = self._known[name] = DataFlow(function, self)
        return known

    def summarize(self, call: func.CallOp) -> CallSummary | None:
        """What a callee does; None for one that has no body here, or calls itself."""
        name = call.callee.string_value()
        if name in self._known:
            flow = self._known[name]
            return None if flow is None else flow.summary
        return self.of(self._functions[name]).summary if name in self._functions else None


class Equations:
    """The equations of one function, for its roots or for its strips."""

    def __init__(self, graph: FlowGraph, strips: Strips, effects: Mapping[Operation, Effect]):
        self._graph, self._strips, self.effects = graph, strips, effects
        self._escaped = strips.of_roots(strips.roots.escaped)
        self._arguments = strips.of_roots(strips.roots.arguments)
        self._kills = certain_kills(graph, effects, strips)

    def lives(self) -> dict[Operation, Lives]:
        """For each node what is alive around it."""
        backward, forward = self._backward(), self._forward()
        read_later = solve(self._graph, backward, self._arguments | self._escaped)
        written = solve(self._graph, forward, self._arguments, forward=True)
        lives: dict[Operation, Lives] = {}
        for op, after in read_later.items():
            before = backward.get(op, _NOTHING)(after) & written[op]
            after &= forward.get(op, _NOTHING)(written[op])
            lives[op] = Lives(before, before | after | self.effects[op].touches, after)
        return lives

    def at_entry(self, at_end: int) -> int:
        """What is read before it is wholly written, or comes to the end so, where `at_end` is needed there."""
        transfers = self._backward()
        after = solve(self._graph, transfers, at_end)
        if not self._graph.entry.nodes:
            return at_end
        first = self._graph.entry.nodes[0]
        return transfers.get(first, _NOTHING)(after[first])

    def _backward(self) -> dict[Operation, TransferFunction]:
        """USE and KILL of each node that has one."""
        transfers: dict[Operation, TransferFunction] = {}
        for op, effect in self.effects.items():
            kill = self._kills.get(op, 0) | self._made(op)
            if kill or effect.reads:
                transfers[op] = TransferFunction(kill, effect.reads)
        return transfers

    def _forward(self) -> dict[Operation, TransferFunction]:
        """What each node writes and makes."""
        transfers: dict[Operation, TransferFunction] = {}
        for op, effect in self.effects.items():
            made = self._made(op)
            if made or effect.writes:
                transfers[op] = TransferFunction(made, effect.writes | made & self._escaped)
        return transfers

    def _made(self, op: Operation) -> int:
        """What a node makes, its contents undefined."""
        if not isinstance(op, Allocation):
            return 0
        return self._strips.of_roots(1 << self._strips.roots.number[op.results[0]])


class DataFlow:
    """The roots of a function, what its ops do to them, and where they are alive."""

    def __init__(self, function: func.FuncOp, flows: Flows | None = None):
        self._flows = flows or Flows(function.parent_op())
        self.graph = FlowGraph(function)
        self.aliases = Aliases(self.graph)
        self._in_roots = MemoryEffects(self.aliases, self._flows.target, self._flows.summarize)
        self.effects = self._by(self._in_roots)
        """What each node does to the roots."""

    def _by(self, effects: MemoryEffects) -> dict[Operation, Effect]:
        return {op: effects.of(op) for op in self.graph.nodes()}

    @cached_property
    def strips(self) -> Strips:
        """What the buffers off chip are cut into."""
        aliases = self.aliases
        whole = self._beyond | aliases.arguments | ~aliases.certain
        for number in aliases.returned:
            whole |= 1 << number
        return cut(aliases, self._boxes(), whole)

    def _boxes(self) -> Iterator[RootBox]:
        """The boxes that views and windows are."""
        for op in self.graph.function.walk():
            if isinstance(op, memref.SubviewOp):
                part = self.aliases.part(op.result)
            elif isinstance(op, CopyOp | DmaOp):
                part = self._in_roots.window(op)
            else:
                continue
            if part is not None:
                yield part

    @cached_property
    def _beyond(self) -> int:
        """The roots of which bytes outside of the memrefs that ops are given may be accessed."""
        found = self.aliases.irregular | self.aliases.escaped
        for op in self.graph.function.walk():
            found |= self._in_roots.beyond(op)
        return found

    @cached_property
    def by_strips(self) -> dict[Operation, Effect]:
        """What each node does to the strips."""
        if not self.strips.is_cut:
            return self.effects
        return self._by(MemoryEffects(self.strips, self._flows.target, self._flows.summarize))

    def lives(self) -> dict[Operation, Lives]:
        """For each node the strips that are alive around it."""
        return Equations(self.graph, self.strips, self.by_strips).lives()

    @cached_property
    def summary(self) -> CallSummary:
        """What a call of the function does to its arguments."""
        aliases = self.aliases
        equations = Equations(self.graph, Strips(aliases), self.effects)
        read, kept = equations.at_entry(0), equations.at_entry(aliases.arguments)
        written = 0
        for effect in self.effects.values():
            written |= effect.writes
        numbers = {
            aliases.number[arg]: number
            for number, arg in enumerate(self.graph.function.body.blocks[0].args)
            if arg in aliases.number
        }

        def arguments(roots: int) -> frozenset[int]:
            return frozenset(numbers[root] for root in bits(roots & aliases.arguments))

        return CallSummary(
            arguments(read | aliases.escaped),
            arguments(written | aliases.escaped),
            arguments(~kept & ~aliases.escaped),
            arguments(self._beyond),
        )


def _used_by(op: Operation) -> Iterator[SSAValue]:
    """What a node uses, with what is inside it."""
    yield from op.operands
    if not isinstance(op, CONTROL):
        for region in op.regions:
            for inner in region.walk():
                yield from inner.operands


def outlived(graph: FlowGraph, aliases: Aliases) -> int:
    """
    The roots of which an earlier instance may be used where the next has been made.

    A buffer that an iteration of a loop makes may be handed to the next one under another name. If that name is alive
    after the next iteration has made its own, two instances of one op are alive at once, and no plan gives one op two
    offsets.
    """
    made = {op: 1 << aliases.number[op.results[0]] for op in graph.nodes() if isinstance(op, Allocation)}
    names = [name for name in aliases.handed if aliases.of(name) & sum(made.values())]
    if not names:
        return 0
    number = {name: index for index, name in enumerate(names)}

    def mask(values: Iterator[SSAValue]) -> int:
        found = 0
        for value in values:
            found |= 1 << number[value] if value in number else 0
        return found

    transfers = {op: TransferFunction(mask(iter(op.results)), mask(_used_by(op))) for op in graph.nodes()}
    named_at_start = [0] * len(graph.blocks)
    for edge in graph.edges():
        named_at_start[edge.target.number] |= mask(name for _, name in edge.handed)
    after = solve(graph, transfers, at_start=named_at_start)
    found = 0
    for op, root in made.items():
        if root & aliases.of_all(names[index] for index in bits(after[op])):
            found |= root
    return found
