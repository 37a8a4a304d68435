# SPDX-License-Identifier: Apache-2.0
"""
Dependences between the iterations of a loop nest, with their direction vectors.

These are refined loop by loop, as in Goff, Kennedy and Tseng, "Practical Dependence Testing", PLDI 1991; whether two
accesses may meet in iterations so far apart is decided by `loop_accesses`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.traits import IsTerminator

from penstock.dialects.affine_maps import linear_form
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.machine import HOST
from penstock.dialects.mem import CopyOp, RingOp, ScopedAllocation, SlotOp
from penstock.passes.analysis.effects import Effects, is_computed
from penstock.passes.analysis.kernels import calls_by_callee, device_of
from penstock.passes.analysis.loop_accesses import (
    ANY,
    EARLIER,
    LATER,
    SAME,
    Apart,
    IndexDifference,
    LoopAccess,
    Vector,
    distances_within,
)
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.memory.aliases import Aliases, Allocation, RootBox, bits, is_memory
from penstock.passes.analysis.memory.effects import MemoryEffects
from penstock.passes.analysis.memory.graph import CONTROL, FlowGraph
from penstock.passes.analysis.memory.storage import overwrites, storage_of, uses_through
from penstock.passes.analysis.reductions import EXACT_COMBINERS, ROUNDING_COMBINERS, combiners

_SIGNS = {1: LATER, 0: SAME, -1: EARLIER}


@dataclass(frozen=True, eq=False)
class LoopDependence:
    """That `source` comes before `sink` as the nest is executed in order, and one of them writes what both access."""

    nest: tuple[scf.ForOp, ...]
    source: LoopAccess
    sink: LoopAccess
    directions: Vector
    """For each loop of the nest 1 if the sink is in a later iteration, 0 in the same, -1 in an earlier one."""
    memory: NestMemory

    @property
    def combiner(self) -> str | None:
        """The op that both combine the same elements with, so that their order matters only to rounding, if at all."""
        same = self.source.combiner == self.sink.combiner
        return self.source.combiner if same else None

    def is_fixed(self, *, reassociate: bool) -> bool:
        """Whether its order must be kept; sums of floats may change theirs where `reassociate` permits it."""
        return self.combiner not in EXACT_COMBINERS and not (reassociate and self.combiner in ROUNDING_COMBINERS)

    @cached_property
    def distances(self) -> tuple[int | None, ...]:
        """How many iterations later the sink is, in each loop, of one of the nearest pairs; None if not found."""
        apart = {loop: _SIGNS[sign] for loop, sign in zip(self.nest, self.directions, strict=True)}
        found: list[int | None] = []
        for loop, sign in zip(self.nest, self.directions, strict=True):
            tried = range(0, sign * min(trip_count(loop) or 1, MAX_DISTANCE + 1), sign) if sign else range(1)
            for distance in tried:
                nearer = {**apart, loop: (distance, distance)}
                if (distance or not sign) and self.memory.may_meet(self.nest, self.source, self.sink, nearer):
                    found.append(distance)
                    apart = nearer
                    break
            else:
                found.append(None)
        return tuple(found)

    def __str__(self) -> str:
        kinds = {(True, False): ("writes", "reads"), (False, True): ("reads", "writes"), (True, True): ("writes",) * 2}
        source, sink = self.source, self.sink
        first, second = kinds[source.writes, sink.writes]
        if self.combiner is not None:
            first = second = "adds to" if self.combiner in ("arith.addf", "arith.addi") else "combines"
        later: list[str] = []
        for loop, sign, distance in zip(self.nest, self.directions, self.distances, strict=True):
            if sign:
                count = (
                    "some iterations" if distance is None else f"{abs(distance)} iteration{'s'[: abs(distance) > 1]}"
                )
                later.append(f"{count} of {name_of(loop)} {'later' if sign > 0 else 'earlier'}")
        when = " and ".join(later) or "in the same iteration"
        again = "the same op" if source.op is sink.op else f"{sink.op.name} ({location_of(sink.op)})"
        vector = ", ".join("=<>"[sign] for sign in self.directions)
        return (
            f"{source.op.name} ({location_of(source.op)}) {first} {_buffer_name(source.value)}, which {again} {second} "
            f"{when}: direction ({vector})"
        )


MAX_DISTANCE = 64
"""How many iterations a distance that is reported may be."""


def name_of(loop: scf.ForOp) -> str:
    """A loop as messages name it: by its counter, where that has a name."""
    hint = loop.body.block.args[0].name_hint
    return f"%{hint}" if hint else f"the loop at {location_of(loop)}"


def _buffer_name(value: SSAValue) -> str:
    """The buffer that an operand is a view of, as messages name it."""
    storage = storage_of(value)
    hint = storage.name_hint
    return f"%{hint}" if hint else f"a {storage.type}"


class NestMemory:
    """
    The accesses of the ops of one function, and which of them may meet; the function must stay as it is.

    `calls` are those of the function, if they are known already.
    """

    def __init__(self, function: func.FuncOp, calls: Sequence[func.CallOp] | None = None):
        self._aliases = Aliases(FlowGraph(function))
        self._effects = MemoryEffects(self._aliases, None, lambda call: None)
        module = function.get_toplevel_object()
        assert isinstance(module, Operation)
        self._pure = Effects(module if isinstance(module, ModuleOp) else ModuleOp([]))
        self._function = function
        self._sharing = self._roots_with_common_bytes(module, calls)

    @staticmethod
    def around(op: Operation) -> NestMemory:
        """The memory of the function that an op is in."""
        parent: Operation | None = op
        while parent is not None and not isinstance(parent, func.FuncOp):
            parent = parent.parent_op()
        if parent is None:
            raise UserError(f"{op.name} is in no function", loc=location_of(op))
        return NestMemory(parent)

    # accesses

    def roots(self, value: SSAValue) -> int:
        """The allocations and arguments that a value may be a view of, as `Aliases` numbers them."""
        return self._aliases.of(value)

    def accesses_in(self, op: Operation) -> list[LoopAccess]:
        """
        What the ops inside `op` access, in the order of the text. Raises UserError for one of which that is not known.
        """
        return [access for inner in op.walk() if inner is not op for access in self._of(inner)]

    def accesses_of(self, op: Operation) -> list[LoopAccess]:
        """What an op accesses, with the ops inside it; raises UserError as `accesses_in` does."""
        return [*self._of(op), *self.accesses_in(op)]

    def _of(self, op: Operation) -> Iterator[LoopAccess]:
        match op:
            case GenericOp():
                yield from self._generic(op)
            case CopyOp():
                for value, offsets in ((op.source, op.mixed_source_offsets()), (op.dest, op.mixed_dest_offsets())):
                    part = self._aliases.part(value)
                    box = None if part is None else part.window(offsets, op.box)
                    yield self._boxed(op, value, box, writes=value is op.dest)
            case memref.LoadOp() | memref.StoreOp():
                part = self._aliases.part(op.memref)
                element = None if part is None else part.window(list(op.indices), [1] * len(op.indices))
                yield self._boxed(op, op.memref, element, writes=isinstance(op, memref.StoreOp))
            case memref.DeallocOp():
                # What is in it is gone, as if something else were written.
                yield self._boxed(op, op.memref, None, writes=True)
            case _:
                yield from self._other(op)

    def _boxed(self, op: Operation, value: SSAValue, box: RootBox | None, *, writes: bool) -> LoopAccess:
        roots = self._aliases.of(value)
        if box is None:
            return LoopAccess(op, value, roots, not writes, writes)
        rank = len(box.shape)
        steps = tuple((size, _unit(dim, rank)) for dim, size in enumerate(box.sizes))
        return LoopAccess(op, value, roots, not writes, writes, start=box.offsets, steps=steps)

    def _generic(self, op: GenericOp) -> Iterator[LoopAccess]:
        extents = op.get_static_loop_ranges()
        combined = combiners(op)
        for number, (value, map_attr) in enumerate(zip(op.operands, op.indexing_maps, strict=True)):
            if not is_memory(value.type):
                continue
            writes = number >= len(op.inputs)
            is_read = bool(op.body.block.args[number].uses)
            if not writes and not is_read:
                continue
            start, steps = None, list[tuple[int, Vector]]()
            part = self._aliases.part(value)
            forms = [linear_form(expr, len(extents)) for expr in map_attr.data.results]
            if part is not None and part.dims is not None and None not in forms:
                at, moves = list(part.offsets), [[0] * len(part.shape) for _ in extents]
                for dim, form in zip(part.dims, forms, strict=True):
                    assert form is not None
                    at[dim] = at[dim] + form[0]
                    for step, coefficient in zip(moves, form[1], strict=True):
                        step[dim] += coefficient
                start, steps = tuple(at), [(extent, tuple(step)) for extent, step in zip(extents, moves, strict=True)]
            elif (box := self._box_around(value)) is not None:
                start = box.offsets
                steps = [(size, _unit(dim, len(box.shape))) for dim, size in enumerate(box.sizes)]
            roots, combiner = self._aliases.of(value), combined.get(number)
            yield LoopAccess(op, value, roots, is_read, writes, combiner, start, tuple(steps))

    def _box_around(self, value: SSAValue) -> RootBox | None:
        """The box that all elements of a value are in which is one in another shape; None where it is not known."""
        while isinstance(value.owner, memref.ExpandShapeOp | memref.CollapseShapeOp):
            value = value.owner.operands[0]
        part = self._aliases.part(value)
        return None if part is None or part.dims is None else part

    def _other(self, op: Operation) -> Iterator[LoopAccess]:
        if isinstance(op, CONTROL) or isinstance(op, Allocation) or op.has_trait(IsTerminator):
            return
        parent = op.parent_op()
        if isinstance(parent, GenericOp) or self.only_computes(op):
            return
        touched = self._aliases.of_all(op.operands)
        effect = self._effects.of(op)
        if not touched or isinstance(op, func.CallOp):
            raise UserError(
                f"what {op.name} reads and writes is not known here", loc=location_of(op), status=UNSUPPORTED
            )
        for value in op.operands:
            roots = self._aliases.of(value)
            reads, writes = bool(roots & effect.reads), bool(roots & effect.writes)
            if reads or writes:
                yield LoopAccess(op, value, roots, reads, writes)

    def only_computes(self, op: Operation) -> bool:
        """Whether an op reads and writes nothing. What is divided may trap, so it is not pure; an index does not."""
        return self._pure.is_pure(op) or is_computed(op)

    # which roots share bytes

    def _roots_with_common_bytes(
        self, module: Operation, calls: Sequence[func.CallOp] | None
    ) -> dict[tuple[int, int], bool]:
        """Pairs of roots that may have bytes in common: by their offsets, or because a call hands over one as both."""
        roots = self._aliases.roots
        found = {(number, number): True for number in range(len(roots))}
        if calls is None:
            calls = calls_by_callee(module).get(self._function.sym_name.data, ())
        for a, one in enumerate(roots):
            for b, other in enumerate(roots[:a]):
                if _overlap(one, other) or any(is_one_buffer(call, one, other) for call in calls):
                    found[a, b] = found[b, a] = True
        return found

    # which accesses meet

    def may_meet(self, nest: Sequence[scf.ForOp], first: LoopAccess, second: LoopAccess, apart: Apart) -> bool:
        """
        Whether two accesses within the nest may be to one element, `second` in iterations so far after `first`.

        Loops around the nest are in the same iteration, loops inside in any. False is certain; True may be assumed.
        """
        shared = [loop for loop in first.loops if loop in second.loops]
        apart = {**{loop: ANY for loop in shared[shared.index(nest[-1]) + 1 :]}, **apart}
        for a in bits(first.roots):
            for b in bits(second.roots):
                if (a, b) not in self._sharing:
                    continue
                within = self._own_iterations(a, b, apart)
                if within is None:
                    continue
                is_exact = a == b and first.roots == second.roots == 1 << a
                if not is_exact or first.start is None or second.start is None:
                    if all(distances_within(loop, bounds) is not None for loop, bounds in within.items()):
                        return True
                elif IndexDifference(nest, first, second, within).is_possible():
                    return True
        return False

    def _own_iterations(self, a: int, b: int, apart: Apart) -> Apart | None:
        """`apart` without other iterations of loops in which both buffers are made anew; None if that is nothing."""
        within = dict(apart)
        owners = self._aliases.roots[a].owner, self._aliases.roots[b].owner
        for loop in apart:
            if not all(isinstance(owner, Operation) and loop.is_ancestor(owner) for owner in owners):
                continue
            lo, hi = apart[loop]
            if (lo is not None and lo > 0) or (hi is not None and hi < 0):
                return None
            within[loop] = SAME
        return within

    def dependences(self, nest: Sequence[scf.ForOp], *, of_values: bool = False) -> list[LoopDependence]:
        """
        The dependences between the iterations of a nest, outermost loop first, all of whose work is in the innermost.

        Those within one iteration of all loops are not listed. Where each iteration is executed as a whole, only those
        `of_values` count: not those through a buffer that every iteration overwrites before it reads it. Raises
        UserError for an op of unknown effects.
        """
        accesses = self.accesses_in(nest[-1])
        private = self._private(nest) if of_values else 0
        found: list[LoopDependence] = []
        for source in accesses:
            for sink in accesses:
                if (source.roots | sink.roots) & ~private and (source.writes or sink.writes):
                    for directions in self._directions(tuple(nest), source, sink):
                        found.append(LoopDependence(tuple(nest), source, sink, directions, self))
        return found

    def _private(self, nest: Sequence[scf.ForOp]) -> int:
        """The roots that every iteration of a nest overwrites before it reads them, and that nothing else reads."""
        found = 0
        for number, root in enumerate(self._aliases.roots):
            made = root.owner
            if isinstance(made, Operation) and (
                nest[0].is_ancestor(made) or self._is_overwritten_first(root, nest[-1])
            ):
                found |= 1 << number
        return found

    def _is_overwritten_first(self, root: SSAValue, loop: scf.ForOp) -> bool:
        """Whether all that accesses an allocation, or the one slot of a ring that does, is in a loop, a fill first."""
        uses = list(root.uses)
        value = root
        if isinstance(root.owner, RingOp):
            slot = uses[0].operation if len(uses) == 1 else None
            if not isinstance(slot, SlotOp):
                return False
            value = slot.memref
        users = [use.operation for use in uses_through(value)]
        hands_on = any(user.has_trait(IsTerminator) or any(is_memory(r.type) for r in user.results) for user in users)
        if not users or hands_on or not all(loop.is_ancestor(user) for user in users):
            return False
        first = next(op for op in loop.body.block.ops if any(op.is_ancestor(user) for user in users))
        return users.count(first) == 1 and overwrites(first, value)

    def _directions(self, nest: tuple[scf.ForOp, ...], first: LoopAccess, second: LoopAccess) -> Iterator[Vector]:
        """The direction vectors, lexicographically positive, with which `second` may meet `first`."""

        def refine(known: Vector) -> Iterator[Vector]:
            signs = {loop: _SIGNS[sign] for loop, sign in zip(nest, known, strict=False)}
            apart = {**{loop: ANY for loop in nest}, **signs}
            if not self.may_meet(nest, first, second, apart):
                return
            if len(known) == len(nest):
                if any(known):
                    yield known
                return
            for sign in (1, 0, -1) if any(known) else (1, 0):
                yield from refine((*known, sign))

        yield from refine(())


def _unit(dim: int, rank: int) -> Vector:
    return tuple(int(each == dim) for each in range(rank))


def _overlap(one: SSAValue, other: SSAValue) -> bool:
    """Whether two allocations were given common bytes."""
    a, b = one.owner, other.owner
    return isinstance(a, ScopedAllocation) and isinstance(b, ScopedAllocation) and a.overlaps(b) is True


def is_one_buffer(call: func.CallOp, one: SSAValue, other: SSAValue) -> bool:
    """Whether a call hands over views of one buffer, as far as is seen, as both of two arguments."""
    if not isinstance(one, BlockArgument) or not isinstance(other, BlockArgument):
        return False
    given = _storage(call.arguments[one.index]), _storage(call.arguments[other.index])
    return given[0] is given[1] or _overlap(*given)


def _storage(value: SSAValue) -> SSAValue:
    """The allocation or argument that a value is a view of, whatever its shape."""
    value = storage_of(value)
    while isinstance(value.owner, memref.ExpandShapeOp | memref.CollapseShapeOp):
        value = storage_of(value.owner.operands[0])
    return value


def aliased_arguments(function: func.FuncOp) -> frozenset[SSAValue]:
    """The arguments of a kernel that some call hands over together with a view of the same buffer."""
    module, arguments = function.parent_op(), function.body.block.args
    # Kernels of a machine hold no calls, so only the others are looked at.
    callers = [op for op in module.ops if isinstance(op, func.FuncOp)] if isinstance(module, ModuleOp) else []
    found: set[SSAValue] = set()
    for op in (op for caller in callers if device_of(caller) in (None, HOST) for op in caller.walk()):
        if isinstance(op, func.CallOp) and op.callee.string_value() == function.sym_name.data:
            pairs = combinations(arguments, 2)
            found.update(each for pair in pairs if is_one_buffer(op, *pair) for each in pair)
    return frozenset(found)


VECTORIZE = "vectorize"
"""The attribute of a loop whose iterations were found to be independent."""


def obstacle_to_vectors(loop: scf.ForOp) -> str | None:
    """Why iterations of a loop cannot be executed at once, a statement of all of them after the other; None if not."""
    if loop.iter_args:
        return "it carries values from one iteration to the next (iter_args)"
    for op in loop.body.walk():
        if isinstance(op, CONTROL):
            return f"it is not innermost: it contains {op.name} ({location_of(op)})"
        if isinstance(op, Allocation) or isinstance(op, SlotOp):
            return f"all iterations would use the bytes that {op.name} ({location_of(op)}) makes in each"
    try:
        found = NestMemory.around(loop).dependences([loop])
    except UserError as error:
        return error.message
    return str(found[0]) if found else None
