# SPDX-License-Identifier: Apache-2.0
"""
Which orders of the ops of a block do the same, and what of the arena is alive in them: a problem for `op_order`.

Two ops keep their order where one may write bytes that the other accesses, or computes what the other uses. Writes to
disjoint boxes of a buffer, such as those of the parts of a concatenation, may change places. Views, constants and
allocations have no place of their own: they stand before the first op that needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.effects import Effects
from penstock.passes.analysis.memory.aliases import Aliases, Allocation, IndexBox, bits, is_memory
from penstock.passes.analysis.memory.dataflow import Flows
from penstock.passes.analysis.memory.effects import Effect
from penstock.passes.analysis.memory.graph import CONTROL
from penstock.passes.analysis.memory.kills import constant_box
from penstock.passes.analysis.memory.liveness import Liveness
from penstock.passes.analysis.memory.memory_problems import scope_of_allocation, size_in_bytes
from penstock.passes.analysis.memory.strips import Strips
from penstock.passes.planning.order_problem import OrderProblem


@dataclass(frozen=True)
class BlockOrder:
    """The ops of a block that have a place, in the order in which they stand, and what decides about another."""

    block: Block
    ops: tuple[Operation, ...]
    """What the numbers of the problem mean."""
    problem: OrderProblem
    """Its buffers are the strips of the buffers of the arena, most of which are whole."""
    allocations: tuple[Allocation, ...]
    """Of what each of its buffers is a strip."""

    @property
    def given(self) -> tuple[int, ...]:
        """The order in which they stand."""
        return tuple(range(len(self.ops)))


class BlockOrders:
    """The orders of the functions of a module, none of which may change meanwhile."""

    def __init__(self, module: ModuleOp):
        self._flows = Flows(module)
        self._effects = Effects(module)
        self._functions = {
            op.sym_name.data: op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration
        }
        self._constants = {
            op.sym_name.data for op in module.ops if isinstance(op, memref.GlobalOp) and op.constant is not None
        }
        self._times: dict[func.FuncOp, Liveness] = {}

    def of(self, function: func.FuncOp) -> BlockOrder | None:
        """
        The order of a function of one block that makes several buffers in the arena; None for others, and where an op
        does what is not known here: where an address leaves the memrefs, a command is asynchronous, effects are on
        something that is no memory or on globals but constants, or a buffer has no one place as the program stands.
        """
        block = function.body.blocks[0]
        arena = [op for op in block.ops if isinstance(op, Allocation) and scope_of_allocation(op) is None]
        if len(function.body.blocks) != 1 or len(arena) < 2:
            return None
        flow = self._flows.of(function)
        ops = [op for op in block.ops if not self._follows(op) and not op.has_trait(IsTerminator)]
        effects = [_effect_of(op, flow.effects, flow.aliases) for op in ops]
        if flow.aliases.escaped or not all(effect.touches for effect in effects):
            return None
        memory = (value for op in ops for inner in op.walk() for value in inner.operands if is_memory(value.type))
        if not all(flow.aliases.of(value) or self._is_constant(value) for value in memory):
            return None
        if any(inner.dialect_name() == "accel" for inner in block.walk()):
            return None
        strips = flow.strips
        owned = [(strip, op) for op in arena for strip in strips.numbers(flow.aliases.number[op.results[0]])]
        number = {strip: place for place, (strip, _) in enumerate(owned)}
        touched = [_effect_of(op, flow.by_strips, strips).touches for op in ops]
        try:
            inside = tuple(self._inside(op, function) for op in ops)
        except UserError:
            # Such as one that iterations make which run at once: a later pass may still run them one by one.
            return None
        return BlockOrder(
            block,
            tuple(ops),
            OrderProblem(
                tuple(strips.strips[strip].size or size_in_bytes(op) for strip, op in owned),
                tuple(frozenset(number[strip] for strip in bits(each) if strip in number) for each in touched),
                tuple(_before(ops, effects, flow.aliases)),
                inside,
                tuple((strips.strips[each].root, strips.strips[each].bytes[0]) for each, _ in owned if strips.is_cut),
            ),
            tuple(op for _, op in owned),
        )

    def _is_constant(self, value: SSAValue) -> bool:
        """Whether a value is a view of a constant of the module, which nothing writes."""
        while isinstance(value.owner, Operation) and not isinstance(value.owner, memref.GetGlobalOp):
            memory = [operand for operand in value.owner.operands if is_memory(operand.type)]
            if len(memory) != 1 or not self._effects.is_pure(value.owner):
                return False
            (value,) = memory
        return isinstance(value.owner, memref.GetGlobalOp) and value.owner.name_.string_value() in self._constants

    def _follows(self, op: Operation) -> bool:
        """Whether an op may stand wherever what it computes is needed."""
        return isinstance(op, Allocation) or self._effects.is_pure(op)

    def _time(self, function: func.FuncOp) -> Liveness:
        if function not in self._times:
            self._times[function] = Liveness(function, flows=self._flows)
        return self._times[function]

    def _inside(self, op: Operation, function: func.FuncOp) -> int:
        """The most bytes of the arena that are alive inside an op, in buffers that it makes itself."""
        span = self._time(function).span(op)
        return self._most(function, [inner for inner in op.walk() if isinstance(inner, Allocation)], span, op)

    def _most(self, function: func.FuncOp, made: Sequence[Allocation], span: tuple[int, int], within: Operation) -> int:
        time = self._time(function)
        changes = [
            (step, change * (size_in_bytes(op) if window is None else window[1] - window[0]))
            for op in made
            if scope_of_allocation(op) is None
            for (lower, upper), window in time.live_parts(op.results[0])
            for step, change in ((max(lower, span[0]), 1), (min(upper, span[1]), -1))
        ]
        for call in within.walk():
            if isinstance(call, func.CallOp) and (bytes := self._needed(call.callee.string_value())):
                begin, end = time.span(call)
                changes += [(begin, bytes), (end, -bytes)]
        most = alive = 0
        for _, change in sorted(changes):
            alive += change
            most = max(most, alive)
        return most

    def _needed(self, name: str) -> int:
        """The most bytes of the arena that are alive in a function, those that it calls included."""
        if (function := self._functions.get(name)) is None:
            return 0
        made = [op for op in function.walk() if isinstance(op, Allocation)]
        return self._most(function, made, (0, self._time(function).length), function)


def _effect_of(op: Operation, effects: Mapping[Operation, Effect], names: Aliases | Strips) -> Effect:
    """What an op does to memory, with all that is inside it."""
    if isinstance(op, memref.DeallocOp):
        gone = names.of(op.memref)
        return Effect(gone, gone)
    found = [effects[inner] for inner in op.walk() if inner in effects] if isinstance(op, CONTROL) else []
    reads, writes = effects[op].reads, effects[op].writes
    for each in found:
        reads, writes = reads | each.reads, writes | each.writes
    return Effect(reads, writes)


def _before(ops: Sequence[Operation], effects: Sequence[Effect], aliases: Aliases) -> Iterator[frozenset[int]]:
    """For each op those that must stay before it."""
    number = {op: place for place, op in enumerate(ops)}
    boxes = [_boxes(op, aliases) for op in ops]
    needed = _NeededOps(number)
    writers: dict[int, list[int]] = {}
    users: dict[int, list[int]] = {}
    for place, (op, effect) in enumerate(zip(ops, effects, strict=True)):
        found = set(needed.by(op))
        for root in bits(effect.touches):
            earlier = users.get(root, ()) if effect.writes >> root & 1 else writers.get(root, ())
            found |= {other for other in earlier if not _are_disjoint(boxes[place].get(root), boxes[other].get(root))}
            users.setdefault(root, []).append(place)
            if effect.writes >> root & 1:
                writers.setdefault(root, []).append(place)
        yield frozenset(found)


class _NeededOps:
    """The numbered ops whose results an op uses, itself or through others that have no number."""

    def __init__(self, number: Mapping[Operation, int]):
        self._number = number
        self._known: dict[Operation, frozenset[int]] = {}

    def by(self, op: Operation) -> frozenset[int]:
        """Their numbers."""
        if op not in self._known:
            found: set[int] = set()
            for value in (value for inner in op.walk() for value in inner.operands):
                owner = value.owner
                if isinstance(owner, Operation) and owner.parent is op.parent and owner is not op:
                    found |= {self._number[owner]} if owner in self._number else self.by(owner)
            self._known[op] = frozenset(found)
        return self._known[op]


def _boxes(op: Operation, aliases: Aliases) -> dict[int, list[IndexBox] | None]:
    """For each root that an op accesses the boxes of it; None where they are not known."""
    found: dict[int, list[IndexBox] | None] = {}
    values = dict.fromkeys(value for inner in op.walk() for value in inner.operands if is_memory(value.type))
    for value in values:
        part = aliases.part(value)
        box = None if part is None else constant_box(part)
        for root in bits(aliases.of(value)):
            known = found.setdefault(root, [])
            found[root] = None if known is None or box is None else [*known, box]
    return found


def _are_disjoint(first: list[IndexBox] | None, second: list[IndexBox] | None) -> bool:
    if first is None or second is None:
        return False
    return all(
        any(low >= their_high or their_low >= high for (low, high), (their_low, their_high) in zip(a, b, strict=True))
        for a in first
        for b in second
    )
