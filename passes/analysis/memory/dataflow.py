"""
The data-flow equations of liveness, for memrefs as aggregates.

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
same memref.

See Li et al., "TOpLib", NPC 2020, for the equations; that partial writes are no kills, and the forward half, is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.machine import find_target
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.loops import constant_of, is_inside, trip_count
from penstock.passes.analysis.memory.aliases import Aliases, Allocation, RootBox, bits
from penstock.passes.analysis.memory.effects import CallSummary, Effect, MemoryEffects
from penstock.passes.analysis.memory.graph import CONTROL, BasicBlock, Concurrent, FlowGraph

IndexBox = tuple[tuple[int, int], ...]
"""In each dim the first index and the one after the last."""

_MAX_PIECES = 64
"""What is left of a root is followed through that many boxes."""


def certain_kills(graph: FlowGraph, effects: Mapping[Operation, Effect], certain: int) -> dict[Operation, int]:
    """
    For each node the roots of which nothing that was there before it is read after; `certain` may be among them.

    Within a block, a run of writes none of which is followed by a read before all elements are written kills what was
    there before its first write. A write in a loop counts for all its iterations, if they are known to take place, and
    if the boxes of the iterations lie side by side or overlap: offsets are affine in the counter, or such a sum limited
    by a constant, as that of a last tile which is shifted inwards.
    """
    finder = _Finder(effects, certain, {})
    for region in graph.function.regions:
        for block in region.blocks:
            finder.scan(block)
    return finder.kills


@dataclass
class _Run:
    """Writes to one root, none of which has been followed by a read."""

    start: Operation
    missing: list[IndexBox]


@dataclass
class _Scanned:
    """What is done in a block: roots it may read, and boxes it writes whenever it is executed."""

    reads: int
    fills: list[RootBox]


@dataclass
class _Finder:
    effects: Mapping[Operation, Effect]
    certain: int
    kills: dict[Operation, int]

    def scan(self, block: Block) -> _Scanned:
        """Find the kills in a block, and in the blocks inside its ops."""
        reads = 0
        fills: list[RootBox] = []
        runs: dict[int, _Run] = {}
        for op in block.ops:
            found = self._of(op)
            reads |= found.reads
            for number in bits(found.reads):
                runs.pop(number, None)
            for part in found.fills:
                if self.certain >> part.root & 1:
                    fills.append(part)
                    self._extend(runs, op, part)
        return _Scanned(reads, fills)

    def _of(self, op: Operation) -> _Scanned:
        if not isinstance(op, CONTROL):
            effect = self.effects[op]
            return _Scanned(effect.reads, list(effect.fills))
        if isinstance(op, Concurrent):
            return self._concurrently(op)
        inside = [self.scan(block) for region in op.regions for block in region.blocks]
        reads = 0
        for each in inside:
            reads |= each.reads
        if isinstance(op, scf.ExecuteRegionOp) and len(inside) == 1:
            fills = inside[0].fills
        elif isinstance(op, scf.ForOp):
            fills = [lifted for part in inside[0].fills if (lifted := over_iterations(part, op)) is not None]
        else:
            fills = []
        # In which order the reads and the writes inside come to pass is not known here.
        return _Scanned(reads, [part for part in fills if not reads >> part.root & 1])

    def _concurrently(self, op: Concurrent) -> _Scanned:
        """Of iterations that run at once none kills what another may still read."""
        finder = _Finder(self.effects, 0, self.kills)
        reads = 0
        for block in op.regions[0].blocks:
            reads |= finder.scan(block).reads
        return _Scanned(reads, [])

    def _extend(self, runs: dict[int, _Run], op: Operation, part: RootBox) -> None:
        box = constant_box(part)
        if box is None:
            return
        run = runs.get(part.root)
        if run is None:
            run = runs[part.root] = _Run(op, [tuple((0, size) for size in part.shape)])
        run.missing = [piece for missing in run.missing for piece in _without(missing, box)]
        if not run.missing:
            self.kills[run.start] = self.kills.get(run.start, 0) | 1 << part.root
        if not run.missing or len(run.missing) > _MAX_PIECES:
            del runs[part.root]


def constant_box(part: RootBox) -> IndexBox | None:
    if any(at.terms for at in part.offsets):
        return None
    return tuple((at.base, at.base + size) for at, size in zip(part.offsets, part.sizes, strict=True))


def _without(box: IndexBox, other: IndexBox) -> list[IndexBox]:
    """What is left of a box without another, as disjoint boxes."""
    if any(size <= 0 for low, high in box for size in (high - low,)):
        return []
    if any(high <= start or end <= low for (low, high), (start, end) in zip(box, other, strict=True)):
        return [box]
    left: list[IndexBox] = []
    inner = list(box)
    for dim, ((low, high), (start, end)) in enumerate(zip(box, other, strict=True)):
        if low < start:
            left.append((*inner[:dim], (low, start), *inner[dim + 1 :]))
        if end < high:
            left.append((*inner[:dim], (end, high), *inner[dim + 1 :]))
        inner[dim] = (max(low, start), min(high, end))
    return left


def over_iterations(part: RootBox, loop: scf.ForOp) -> RootBox | None:
    """What all iterations of a loop write that writes `part` in each; None if that is not known to be a box."""
    trips, lower, step = trip_count(loop), constant_of(loop.lb), constant_of(loop.step)
    if not trips or lower is None or step is None or step < 1:
        return None
    counter = loop.body.block.args[0]
    offsets, sizes = list(part.offsets), list(part.sizes)
    moving = 0
    for dim, at in enumerate(part.offsets):
        inside = [atom for atom in at.terms if is_inside(atom, loop)]
        if not inside:
            continue
        moving += 1
        if len(inside) > 1 or moving > 1:
            return None
        reach = _reach(inside[0], counter, lower, step, trips)
        if reach is None:
            return None
        factor = at.terms[inside[0]]
        stride = abs(factor) * reach.stride
        if trips > 1 and stride > sizes[dim]:
            return None
        ends = sorted((factor * reach.first, factor * reach.last))
        offsets[dim] = at - at.only(inside) + ends[0]
        sizes[dim] += ends[1] - ends[0]
    return replace(part, offsets=tuple(offsets), sizes=tuple(sizes))


@dataclass(frozen=True)
class _Reach:
    first: int
    last: int
    stride: int
    """The most that it changes from iteration to iteration, always in the same direction."""


def _reach(atom: SSAValue, counter: SSAValue, lower: int, step: int, trips: int) -> _Reach | None:
    """How an index moves with the counter of a loop; None unless it is the counter, or a limited sum of it."""
    if atom is counter:
        return _Reach(lower, lower + (trips - 1) * step, step)
    owner = atom.owner
    if not isinstance(owner, arith.MinSIOp | arith.MaxSIOp):
        return None
    value, limit = AffineIndex.of(owner.lhs), AffineIndex.of(owner.rhs)
    if limit.constant is None:
        value, limit = limit, value
    if limit.constant is None or set(value.terms) != {counter}:
        return None
    factor, end = value.terms[counter], limit.constant
    choose = min if isinstance(owner, arith.MinSIOp) else max
    first, last = (value.base + factor * at for at in (lower, lower + (trips - 1) * step))
    return _Reach(choose(first, end), choose(last, end), abs(factor) * step)


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
    """What is alive before, at and after a node, as sets of roots."""

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


class DataFlow:
    """The roots of a function, what its ops do to them, and where they are alive."""

    def __init__(self, function: func.FuncOp, flows: Flows | None = None):
        flows = flows or Flows(function.parent_op())
        self.graph = FlowGraph(function)
        self.aliases = Aliases(self.graph)
        effects = MemoryEffects(self.aliases, flows.target, flows.summarize)
        self.effects: dict[Operation, Effect] = {op: effects.of(op) for op in self.graph.nodes()}
        """What each node does."""
        self._kills = certain_kills(self.graph, self.effects, self.aliases.certain)

    def lives(self) -> dict[Operation, Lives]:
        """For each node the roots alive around it."""
        backward = self._backward()
        forward = self._forward()
        at_end = self.aliases.arguments | self.aliases.escaped
        read_later = solve(self.graph, backward, at_end)
        written = solve(self.graph, forward, self.aliases.arguments, forward=True)
        lives: dict[Operation, Lives] = {}
        for op, after in read_later.items():
            before = backward.get(op, _NOTHING)(after) & written[op]
            after &= forward.get(op, _NOTHING)(written[op])
            lives[op] = Lives(before, before | after | self.effects[op].touches, after)
        return lives

    @cached_property
    def summary(self) -> CallSummary:
        """What a call of the function does to its arguments."""
        backward = self._backward()
        read = self._at_entry(backward, 0)
        kept = self._at_entry(backward, self.aliases.arguments)
        written = 0
        for effect in self.effects.values():
            written |= effect.writes
        arguments = {
            self.aliases.number[arg]: number
            for number, arg in enumerate(self.graph.function.body.blocks[0].args)
            if arg in self.aliases.number
        }
        escaped = self.aliases.escaped
        return CallSummary(
            frozenset(arguments[root] for root in bits((read | escaped) & self.aliases.arguments)),
            frozenset(arguments[root] for root in bits((written | escaped) & self.aliases.arguments)),
            frozenset(arguments[root] for root in bits(self.aliases.arguments & ~kept & ~escaped)),
        )

    def _at_entry(self, transfers: Mapping[Operation, TransferFunction], at_end: int) -> int:
        after = solve(self.graph, transfers, at_end)
        if not self.graph.entry.nodes:
            return at_end
        first = self.graph.entry.nodes[0]
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
        escaped = self.aliases.escaped
        transfers: dict[Operation, TransferFunction] = {}
        for op, effect in self.effects.items():
            made = self._made(op)
            if made or effect.writes:
                transfers[op] = TransferFunction(made, effect.writes | made & escaped)
        return transfers

    def _made(self, op: Operation) -> int:
        """The root that a node makes, its contents undefined."""
        return 1 << self.aliases.number[op.results[0]] if isinstance(op, Allocation) else 0


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
