"""
Dependences between the iterations of a loop nest, with their direction vectors.

An access is a box, or what index maps make of a box, at an offset in the dims of its buffer. Two accesses meet where
the difference of their indices can be zero: a sum of multiples of strides (of loops, of the dims of the boxes) and of
sets of numbers (of indices that are not affine, which are evaluated over their loops). Whether zero is such a sum is
decided exactly, the widest strides first and without the sums that the remaining ones cannot bring back to zero; past
`MAX_SUMS` it is assumed to be. Direction vectors are refined loop by loop, as in Goff, Kennedy and Tseng, "Practical
Dependence Testing", PLDI 1991.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.traits import IsTerminator

from penstock.dialects.affine_maps import linear_form
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, SlotOp
from penstock.passes.analysis.commands.loop_domain import counters_of, evaluate
from penstock.passes.analysis.effects import Effects, is_computed
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.loops import constant_of, is_inside, loops_around, trip_count
from penstock.passes.analysis.memory.aliases import Aliases, Allocation, RootBox, bits, is_memory
from penstock.passes.analysis.memory.effects import MemoryEffects
from penstock.passes.analysis.memory.graph import CONTROL, FlowGraph
from penstock.passes.analysis.memory.storage import storage_of

MAX_SUMS = 1 << 18
"""Partial sums, or pairs of iterations, that are looked at; beyond it two accesses are assumed to meet."""

EXACT_COMBINERS = frozenset(
    f"arith.{name}" for name in "addi muli maxsi maxui minsi minui andi ori xori maximumf minimumf".split()
)
"""Of the ops that reductions combine with, those whose result is the same bits in any order."""
ROUNDING_COMBINERS = frozenset(("arith.addf", "arith.mulf"))
"""Those that round: another order is another result."""

Apart = Mapping[scf.ForOp, tuple[int | None, int | None]]
"""For a loop around two accesses how many iterations after the first the second is, from ... to; None: no bound."""

SAME = (0, 0)
LATER = (1, None)
EARLIER = (None, -1)
ANY = (None, None)
_SIGNS = {1: LATER, 0: SAME, -1: EARLIER}

Vector = tuple[int, ...]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LoopAccess:
    """What an op within a nest reads or writes of one buffer."""

    op: Operation
    value: SSAValue
    """The operand."""
    roots: int
    """The allocations and arguments that the operand may be a view of, as `Aliases` numbers them."""
    reads: bool
    writes: bool
    combiner: str | None = None
    """Of an output that every point of a `linalg.generic` combines with something else: the name of the op."""
    start: tuple[AffineIndex, ...] | None = None
    """The index of its first element in each dim of its root; None where that is not known, and it may be any."""
    steps: tuple[tuple[int, Vector], ...] = ()
    """The other elements: (count, what one step moves in each dim of the root)."""

    @cached_property
    def loops(self) -> tuple[scf.ForOp, ...]:
        """All loops around the op, outermost first."""
        return loops_around(self.op)


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
    """The accesses of the ops of one function, and which of them may meet; the function must stay as it is."""

    def __init__(self, function: func.FuncOp):
        self._aliases = Aliases(FlowGraph(function))
        self._effects = MemoryEffects(self._aliases, None, lambda call: None)
        module = function.get_toplevel_object()
        assert isinstance(module, Operation)
        self._pure = Effects(module if isinstance(module, ModuleOp) else ModuleOp([]))
        self._function = function
        self._sharing = self._roots_with_common_bytes(module)

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
            roots, combiner = self._aliases.of(value), combined.get(number)
            yield LoopAccess(op, value, roots, is_read, writes, combiner, start, tuple(steps))

    def _other(self, op: Operation) -> Iterator[LoopAccess]:
        if isinstance(op, CONTROL) or isinstance(op, Allocation) or op.has_trait(IsTerminator):
            return
        parent = op.parent_op()
        if isinstance(parent, GenericOp) or self._pure.is_pure(op) or is_computed(op):
            return
        touched = self._aliases.of_all(op.operands)
        effect = self._effects.of(op)
        if not touched or isinstance(op, func.CallOp | memref.DeallocOp):
            raise UserError(
                f"what {op.name} reads and writes is not known here", loc=location_of(op), status=UNSUPPORTED
            )
        for value in op.operands:
            roots = self._aliases.of(value)
            reads, writes = bool(roots & effect.reads), bool(roots & effect.writes)
            if reads or writes:
                yield LoopAccess(op, value, roots, reads, writes)

    # which roots share bytes

    def _roots_with_common_bytes(self, module: Operation) -> dict[tuple[int, int], bool]:
        """Pairs of roots that may have bytes in common: by their offsets, or because a call hands over one as both."""
        roots = self._aliases.roots
        found = {(number, number): True for number in range(len(roots))}
        calls = [
            op
            for op in (module.walk() if isinstance(module, ModuleOp) else ())
            if isinstance(op, func.CallOp) and op.callee.string_value() == self._function.sym_name.data
        ]
        for a, one in enumerate(roots):
            for b, other in enumerate(roots[:a]):
                if _overlap(one, other) or any(_is_one_buffer(call, one, other) for call in calls):
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
                    if all(_range(loop, bounds) is not None for loop, bounds in within.items()):
                        return True
                elif _Meeting(nest, first, second, within).is_possible():
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

    def dependences(self, nest: Sequence[scf.ForOp]) -> list[LoopDependence]:
        """
        The dependences between the iterations of a nest, outermost loop first, all of whose work is in the innermost.

        Those within one iteration of all loops are not listed. Raises UserError for an op of unknown effects.
        """
        accesses = self.accesses_in(nest[-1])
        found: list[LoopDependence] = []
        for source in accesses:
            for sink in accesses:
                if source.writes or sink.writes:
                    for directions in self._directions(tuple(nest), source, sink):
                        found.append(LoopDependence(tuple(nest), source, sink, directions, self))
        return found

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


def combiners(op: GenericOp) -> dict[int, str]:
    """For each output of a generic that every point combines with what does not depend on it: the op that combines."""
    block = op.body.block
    terminator = block.last_op
    assert terminator is not None
    found: dict[int, str] = {}
    for number, value in enumerate(terminator.operands, len(op.inputs)):
        argument, combining = block.args[number], value.owner
        if not isinstance(combining, Operation) or combining.name not in EXACT_COMBINERS | ROUNDING_COMBINERS:
            continue
        # A sum that is read on the way to its end is one of another order.
        if argument.has_one_use() and value.has_one_use() and argument in combining.operands:
            found[number] = combining.name
    return found


def _overlap(one: SSAValue, other: SSAValue) -> bool:
    """Whether two allocations were given common bytes."""
    a, b = one.owner, other.owner
    if not isinstance(a, BufferOp | RingOp) or not isinstance(b, BufferOp | RingOp):
        return False
    if a.byte_offset is None or b.byte_offset is None:
        return False
    ends = a.byte_offset + a.size_in_bytes, b.byte_offset + b.size_in_bytes
    return a.scope == b.scope and a.byte_offset < ends[1] and b.byte_offset < ends[0]


def _is_one_buffer(call: func.CallOp, one: SSAValue, other: SSAValue) -> bool:
    """Whether a call hands over views of one buffer, as far as is seen, as both of two arguments."""
    if not isinstance(one, BlockArgument) or not isinstance(other, BlockArgument):
        return False
    given = storage_of(call.arguments[one.index]), storage_of(call.arguments[other.index])
    return given[0] is given[1] or _overlap(*given)


def _range(loop: scf.ForOp, bounds: tuple[int | None, int | None]) -> tuple[int, int] | None:
    """The distances between two iterations of a loop that are within bounds; None if there are none."""
    trips = trip_count(loop)
    most = MAX_SUMS if trips is None else trips - 1
    lo = -most if bounds[0] is None else max(bounds[0], -most)
    hi = most if bounds[1] is None else min(bounds[1], most)
    return (lo, hi) if lo <= hi else None


class _Meeting:
    """The difference of the indices of two accesses to one root, as a sum of what loops and boxes contribute."""

    def __init__(self, nest: Sequence[scf.ForOp], first: LoopAccess, second: LoopAccess, apart: Apart):
        self._nest = nest
        self._first, self._second = first, second
        self._apart = apart
        assert first.start is not None
        assert second.start is not None
        self._starts = first.start, second.start
        self._constant = tuple(b.base - a.base for a, b in zip(*self._starts, strict=True))
        self._progressions: list[tuple[Vector, int, int]] = []
        """(vector, lo, hi): the multiples of the vector from lo to hi."""
        self._sets: list[Numbers] = []
        """One of the rows of each."""

    def is_possible(self) -> bool:
        """Whether it may be zero in all dims."""
        ranges = {loop: _range(loop, bounds) for loop, bounds in self._apart.items()}
        if None in ranges.values():
            return False
        for count, step in self._first.steps:
            self._progressions.append((step, 1 - count, 0))
        for count, step in self._second.steps:
            self._progressions.append((step, 0, count - 1))
        groups = self._groups()
        if groups is None:
            return True
        for symbols, loops in groups:
            contributed = self._contribution(symbols, loops)
            if contributed is None:
                return True
            if not contributed:
                return False
        return self._is_zero_possible()

    def _groups(self) -> list[tuple[list[SSAValue], list[scf.ForOp]]] | None:
        """Symbols of the indices with the loops that they depend on, those together that share one; None: unknown."""
        symbols = dict.fromkeys(symbol for start in self._starts for index in start for symbol in index.terms)
        loops = list(dict.fromkeys((*self._first.loops, *self._second.loops)))
        groups: list[tuple[list[SSAValue], list[scf.ForOp]]] = []
        for symbol in symbols:
            if not is_inside(symbol, self._nest[0]) and self._coefficients(symbol)[0] == self._coefficients(symbol)[1]:
                continue
            used = counters_of(symbol, loops)
            if any(trip_count(loop) is None or constant_of(loop.lb) is None for loop in used) or not used:
                return None
            together, tied = [symbol], [loop for loop in loops if loop in used]
            for group in [group for group in groups if set(group[1]) & used]:
                groups.remove(group)
                together, tied = group[0] + together, [loop for loop in loops if loop in (*group[1], *tied)]
            groups.append((together, tied))
        return groups

    def _coefficients(self, symbol: SSAValue) -> tuple[Vector, Vector]:
        """What a symbol is multiplied by in each dim of the first and of the second access."""
        first, second = (tuple(index.terms.get(symbol, 0) for index in start) for start in self._starts)
        return first, second

    def _contribution(self, symbols: Sequence[SSAValue], loops: Sequence[scf.ForOp]) -> bool | None:
        """Add what symbols of these loops contribute; False if no iterations are so far apart, None if unknown."""
        loop = loops[0]
        first, second = self._coefficients(symbols[0])
        is_counter = len(symbols) == len(loops) == 1 and symbols[0] is loop.body.block.args[0]
        step = constant_of(loop.step) or 1
        shared = loop in self._first.loops and loop in self._second.loops
        if is_counter and shared and first == second:
            bounds = _range(loop, self._apart.get(loop, SAME))
            assert bounds is not None
            self._progressions.append((tuple(step * each for each in first), *bounds))
            return True
        if is_counter and not shared:
            # Where the access is not inside the loop, the coefficient is zero.
            lower, trips = constant_of(loop.lb), trip_count(loop)
            assert lower is not None
            assert trips is not None
            vector = tuple(b - a for a, b in zip(first, second, strict=True))
            self._constant = tuple(c + lower * each for c, each in zip(self._constant, vector, strict=True))
            self._progressions.append((tuple(step * each for each in vector), 0, trips - 1))
            return trips > 0
        return self._pairs(symbols, loops)

    def _pairs(self, symbols: Sequence[SSAValue], loops: Sequence[scf.ForOp]) -> bool | None:
        """The contributions of all pairs of iterations of some loops, evaluated one by one."""
        sides = [[loop for loop in loops if loop in access.loops] for access in (self._first, self._second)]
        trips = [[trip_count(loop) or 0 for loop in side] for side in sides]
        if prod(trips[0]) * prod(trips[1]) > MAX_SUMS:
            return None
        points = [np.indices(counts).reshape(len(counts), -1) for counts in trips]
        values: list[Numbers] = []
        for number, (side, at) in enumerate(zip(sides, points, strict=True)):
            counters: dict[SSAValue, Numbers] = {
                loop.body.block.args[0]: (constant_of(loop.lb) or 0) + (constant_of(loop.step) or 1) * iteration
                for loop, iteration in zip(side, at, strict=True)
            }
            total = np.zeros((at.shape[1], len(self._constant)), np.int64)
            for symbol in symbols:
                coefficients = self._coefficients(symbol)[number]
                if any(coefficients):
                    try:
                        found = evaluate(symbol, counters)
                    except UserError:
                        return None
                    total += np.broadcast_to(found, at.shape[1])[:, None] * np.asarray(coefficients)
            values.append(total)
        permitted = np.ones((len(values[0]), len(values[1])), np.bool_)
        for loop in loops:
            if loop in sides[0] and loop in sides[1]:
                bounds = _range(loop, self._apart.get(loop, SAME))
                assert bounds is not None
                later = points[1][sides[1].index(loop)][None, :] - points[0][sides[0].index(loop)][:, None]
                permitted &= (later >= bounds[0]) & (later <= bounds[1])
        first, second = np.nonzero(permitted)
        differences = np.unique(values[1][second] - values[0][first], axis=0)
        self._sets.append(differences)
        return len(differences) > 0

    def _is_zero_possible(self) -> bool:
        """Whether the constant and one of each contribution may add up to zero in all dims."""
        rank = len(self._constant)
        if rank == 0:
            return True
        # The largest sum in each dim makes the dims digits of one number.
        most = [abs(each) for each in self._constant]
        for vector, lo, hi in self._progressions:
            most = [m + abs(each) * max(abs(lo), abs(hi)) for m, each in zip(most, vector, strict=True)]
        for rows in self._sets:
            most = [m + int(each) for m, each in zip(most, np.abs(rows).max(axis=0), strict=True)]
        weights = [1] * rank
        for dim in reversed(range(rank - 1)):
            weights[dim] = weights[dim + 1] * (2 * most[dim + 1] + 1)
        if weights[0] * (2 * most[0] + 1) >= 1 << 62:
            return True

        def number(vector: Sequence[int]) -> int:
            return sum(each * weight for each, weight in zip(vector, weights, strict=True))

        progressions = [(number(vector), lo, hi) for vector, lo, hi in self._progressions]
        sets = [np.unique(rows @ np.asarray(weights, np.int64)) for rows in self._sets]
        return reaches_zero(number(self._constant), progressions, sets)


def reaches_zero(constant: int, progressions: Sequence[tuple[int, int, int]], sets: Sequence[Numbers]) -> bool:
    """
    Whether zero is `constant` + for each (stride, lo, hi) the stride times a number from lo to hi + one number of each
    set; True too if more than `MAX_SUMS` sums had to be looked at.
    """
    if any(lo > hi for _, lo, hi in progressions):
        return False
    strides: dict[int, tuple[int, int]] = {}
    for stride, lo, hi in progressions:
        if stride < 0:
            stride, lo, hi = -stride, -hi, -lo
        if stride:
            known = strides.get(stride, (0, 0))
            strides[stride] = known[0] + lo, known[1] + hi
    divisor = gcd(*strides, *(int(each) for numbers in sets for each in numbers))
    if divisor == 0 or constant % divisor:
        return constant == 0 if divisor == 0 else False
    # The sums from which multiples of the narrow strides lead to zero are an interval.
    low = high = 0
    wide: list[tuple[int, int, int]] = []
    for stride, (lo, hi) in sorted(strides.items()):
        stride //= divisor
        if lo == hi or stride <= high - low + 1:
            low, high = low - stride * hi, high - stride * lo
        else:
            wide.append((stride, lo, hi))
    spans = [(stride * lo, stride * hi) for stride, lo, hi in wide]
    spans += [(int(numbers.min()) // divisor, int(numbers.max()) // divisor) for numbers in sets]
    choices: list[tuple[int, int, int] | Numbers] = [*wide, *(numbers // divisor for numbers in sets)]
    order = sorted(range(len(choices)), key=lambda each: spans[each][0] - spans[each][1])
    sums = np.asarray([constant // divisor], np.int64)
    for place, index in enumerate(order):
        least = sum(spans[each][0] for each in order[place + 1 :])
        largest = sum(spans[each][1] for each in order[place + 1 :])
        lowest, highest = low - largest, high - least
        choice = choices[index]
        if isinstance(choice, tuple):
            stride, lo, hi = choice
            lo = max(lo, -((int(sums.max()) - lowest) // stride))
            hi = min(hi, (highest - int(sums.min())) // stride)
            if hi - lo >= MAX_SUMS:
                return True
            choice = stride * np.arange(lo, hi + 1, dtype=np.int64)
        if len(sums) * len(choice) > MAX_SUMS:
            return True
        sums = np.unique(np.add.outer(sums, choice))
        sums = sums[(sums >= lowest) & (sums <= highest)]
        if not len(sums):
            return False
    return bool(np.any((sums >= low) & (sums <= high)))


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
