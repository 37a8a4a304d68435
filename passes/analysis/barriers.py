# SPDX-License-Identifier: Apache-2.0
"""
Where iterations of `scf.forall` must wait for each other: read after write, write after read, write after write.

Forward data flow over the body, as Tillet, Kung and Cox place barriers in shared memory ("Triton: An Intermediate
Language and Compiler for Tiled Neural Network Computations", MAPL 2019): what has been accessed since the last barrier
is pending; an op that accesses bytes which a pending access of another iteration may access, one of them writing, needs
a barrier before it, after which only what the op itself does is pending. Around loops to the fixed point; a loop waits
for what came before it before it, once. Which bytes two accesses have in common is decided by `loop_dependences`,
exactly; for that the loop is looked at, in a copy, as a nest of loops. Of the barriers that are found so, those are
left out that the others make superfluous.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.dialects import func, gpu, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.effects import is_computed
from penstock.passes.analysis.loop_dependences import ANY, EARLIER, LATER, SAME, LoopAccess, NestMemory
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.memory.storage import storage_of
from penstock.passes.index_builder import for_loop


def needed_barriers(forall: ForallOp) -> list[Operation]:
    """
    The ops of the body before which a barrier is needed, in program order; barriers that are there do not count.

    Raises UserError where iterations race whatever barriers there are, and at an op of which it is not known what it
    accesses.
    """
    module = forall.get_toplevel_object()
    if not isinstance(module, ModuleOp):
        raise UserError("scf.forall is in no module", loc=location_of(forall))
    copy = module.clone()
    original = dict(zip(copy.walk(), module.walk(), strict=True))
    nest: tuple[scf.ForOp, ...] = ()
    function: Operation | None = None
    for op in list(copy.walk(region_first=True)):
        if isinstance(op, gpu.BarrierOp):
            Rewriter.erase_op(op)
        elif isinstance(op, ForallOp):
            found = _as_loops(op)
            if original[op] is forall:
                nest, function = found, found[0] if found else None
            else:
                original.update(dict.fromkeys(found, original[op]))
    while function is not None and not isinstance(function, func.FuncOp):
        function = function.parent_op()
    if function is None:  # One iteration is alone.
        return []
    flow = _Flow(NestMemory(function), nest, original)
    return [original[op] for op in flow.barriers()]


def _as_loops(forall: ForallOp) -> tuple[scf.ForOp, ...]:
    """Put a nest of loops in the place of a `scf.forall`, around what it holds."""
    builder = Builder(InsertPoint.before(forall))
    loops: list[scf.ForOp] = []
    bounds = zip(forall.lower_bounds, forall.upper_bounds, forall.steps, strict=True)
    for index, bound in zip(forall.indices, bounds, strict=True):
        loop, builder = for_loop(builder, bound, like=forall)
        index.replace_all_uses_with(loop.body.block.args[0])
        loops.append(loop)
    for op in [op for op in forall.region.block.ops if op is not forall.terminator]:
        op.detach()
        builder.insert(op)
    for loop in reversed(loops):
        Builder(InsertPoint.at_end(loop.body.block)).insert(scf.YieldOp())
    for arg, output in zip(forall.shared, forall.outputs, strict=True):
        arg.replace_all_uses_with(output)
    Rewriter.replace_op(forall, [], forall.outputs)
    return tuple(loops)


@dataclass(frozen=True)
class _Pending:
    """An access since the last barrier."""

    access: LoopAccess
    carried: frozenset[scf.ForOp] = frozenset()
    """The loops of which it was in an earlier iteration."""


_State = frozenset[_Pending]


@dataclass
class _Flow:
    memory: NestMemory
    nest: tuple[scf.ForOp, ...]
    """The iterations that run at once."""
    original: dict[Operation, Operation]
    """For what is in the copy what it is a copy of."""
    _accesses: dict[Operation, Sequence[LoopAccess]] = field(default_factory=dict[Operation, Sequence[LoopAccess]])
    _meetings: dict[tuple[LoopAccess, LoopAccess, frozenset[scf.ForOp]], bool] = field(
        default_factory=dict[tuple[LoopAccess, LoopAccess, "frozenset[scf.ForOp]"], bool]
    )
    _placed: dict[Operation, bool] = field(default_factory=dict[Operation, bool])
    """Whether a barrier is before an op, as it was last visited."""
    _given: Collection[Operation] | None = None
    """The ops that have a barrier before them, where it is only to be seen whether these are enough."""
    _enough: bool = True

    def barriers(self) -> list[Operation]:
        """The ops of the copy before which a barrier is needed."""
        body = self.nest[-1].body.block
        self._block(body, frozenset())
        found = [op for op in body.walk() if self._placed.get(op)]
        for op in list(found):
            fewer = [other for other in found if other is not op]
            self._given, self._enough = fewer, True
            self._block(body, frozenset())
            found = fewer if self._enough else found
        return found

    def _block(self, block: Block, state: _State) -> _State:
        for op in block.ops:
            if self._is_shared_loop(op):
                state = self._loop(op, state)
            else:
                state = self._op(op, state)
        return state

    def _is_shared_loop(self, op: Operation) -> bool:
        """Whether it is a loop that all iterations run alike, so that a barrier may be in it."""
        if not isinstance(op, scf.ForOp) or isinstance(self.original.get(op), ForallOp):
            return False
        return all(self._is_uniform(bound) for bound in (op.lb, op.ub, op.step))

    def _is_uniform(self, value: SSAValue) -> bool:
        """Whether a value is the same in all iterations."""
        block = value.owner if isinstance(value.owner, Block) else value.owner.parent
        inside: Block | None = block
        while inside is not None and inside is not self.nest[0].body.block:
            inside = inside.parent_block()
        if inside is None:
            return True
        op = value.owner
        if isinstance(op, Block):
            loop = op.parent_op()
            return loop not in self.nest and loop is not None and value is op.args[0] and self._is_shared_loop(loop)
        return is_computed(op) and all(map(self._is_uniform, op.operands))

    def _loop(self, loop: Operation, state: _State) -> _State:
        assert isinstance(loop, scf.ForOp)
        # What is pending from before the loop is waited for there, once.
        if self._needs_barrier(loop, self._accesses_in(loop.body.block), state):
            state = frozenset()
        trips, before = trip_count(loop), state
        while True:
            after = self._block(loop.body.block, state)
            again = {_Pending(each.access, each.carried | {loop}) for each in after} if trips != 1 else set[_Pending]()
            if state.issuperset(again):
                break
            state |= again
        return after if trips else after | before

    def _op(self, op: Operation, state: _State) -> _State:
        accesses = self._accesses_of(op)
        if self._needs_barrier(op, accesses, state):
            state = frozenset()
        return state | frozenset(map(_Pending, accesses))

    def _needs_barrier(self, op: Operation, accesses: Sequence[LoopAccess], state: _State) -> bool:
        """Whether there is to be a barrier before an op, given what is pending."""
        if self._given is not None and op in self._given:
            return True
        conflict = any(self._meet(each.access, access, each.carried) for access in accesses for each in state)
        if self._given is None:
            self._placed[op] = conflict
            return conflict
        # Of a loop it is seen at what is in it whether it may still be the barriers there that are enough.
        self._enough &= not conflict or self._is_shared_loop(op)
        return False

    def _accesses_of(self, op: Operation) -> Sequence[LoopAccess]:
        if op not in self._accesses:
            found = self._accesses[op] = self.memory.accesses_of(op)
            self._check_alone(op, found)
        return self._accesses[op]

    def _accesses_in(self, block: Block) -> list[LoopAccess]:
        found: list[LoopAccess] = []
        for op in block.ops:
            if isinstance(op, scf.ForOp) and self._is_shared_loop(op):
                found += self._accesses_in(op.body.block)
            else:
                found += self._accesses_of(op)
        return found

    def _check_alone(self, op: Operation, accesses: Sequence[LoopAccess]) -> None:
        """Raise UserError where iterations that all execute an op race in it."""
        for number, first in enumerate(accesses):
            for second in accesses[number:]:
                if self._meet(first, second, frozenset()):
                    writer, other = (first, second) if first.writes else (second, first)
                    hint = storage_of(writer.value).name_hint
                    raise UserError(
                        f"iterations of scf.forall race: {writer.op.name} writes {f'%{hint}' if hint else 'a buffer'}, "
                        f"which {other.op.name} of another iteration {'writes' if other.writes else 'reads'}, "
                        "and no barrier can be between the two",
                        loc=location_of(self.original.get(writer.op, writer.op)),
                        notes=[f"the {other.op.name} is at {location_of(self.original.get(other.op, other.op))}"],
                    )

    def _meet(self, first: LoopAccess, second: LoopAccess, carried: frozenset[scf.ForOp]) -> bool:
        """Whether two iterations may access the same bytes, one writing; `first` was in an earlier one of `carried`."""
        if not (first.writes or second.writes):
            return False
        key = first, second, carried
        if key not in self._meetings:
            self._meetings[key] = self._find_meeting(first, second, carried)
        return self._meetings[key]

    def _find_meeting(self, first: LoopAccess, second: LoopAccess, carried: frozenset[scf.ForOp]) -> bool:
        inner: dict[scf.ForOp, tuple[int | None, int | None]] = {}
        is_free = False
        for loop in first.loops[first.loops.index(self.nest[-1]) + 1 :]:
            if loop not in second.loops or not self._is_shared_loop(loop):
                break
            inner[loop] = ANY if is_free else LATER if loop in carried else SAME
            is_free |= loop in carried
        for place in range(len(self.nest)):
            for sign in (LATER, EARLIER):
                outer = {loop: SAME if n < place else sign if n == place else ANY for n, loop in enumerate(self.nest)}
                if self.memory.may_meet(self.nest, first, second, {**outer, **inner}):
                    return True
        return False
