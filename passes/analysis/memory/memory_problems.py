# SPDX-License-Identifier: Apache-2.0
"""
The buffers of a module as planning problems, derived from the IR at hand: for the planner and for what checks it.

A scope of the machine is planned function by function, since between two calls nothing stays there; unless a
function that calls others has buffers in it. Then what is in the callees must keep off them, and all that the module
holds in that scope is one problem over the time of the program. So are the buffers off chip, always: the arena.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.alignment import ALIGNMENT
from penstock.dialects.diagnostics import UserError, did_you_mean, location_of
from penstock.dialects.functions import unique_name
from penstock.dialects.machine import DmaOp as EngineOp
from penstock.dialects.machine import ScopeOp, TargetOp, find_target
from penstock.dialects.mem import CopyOp, RingOp, ScopedAllocation, element_bytes, memref_of, scope_of, span_in_bytes
from penstock.passes.analysis.memory.aliases import bits
from penstock.passes.analysis.memory.bank_pairs import bank_pairs
from penstock.passes.analysis.memory.liveness import (
    Allocation,
    Liveness,
    LivePart,
    ProgramTime,
    function_around,
)
from penstock.passes.analysis.units import performer, scope_or_dram
from penstock.passes.planning.bounds import strong_lower_bound
from penstock.passes.planning.instance import compact
from penstock.passes.planning.problem import (
    Buffer,
    Conflict,
    Interval,
    Limits,
    Plan,
    Problem,
    Window,
    conflicts,
    height,
    lower_bound,
    span_text,
)
from penstock.passes.planning.registry import solve

ARENA = "arena"
"""What the place of the off-chip buffers of a whole program is called."""


def offset_of(op: Allocation) -> int | None:
    """The place of a buffer in its scope or in the arena, in bytes; None before it is planned."""
    return op.byte_offset if isinstance(op, ScopedAllocation) else None


def element_memref(op: Allocation) -> MemRefType[Attribute]:
    """The type of the buffer; of one slot for a ring. Raises UserError for one that is not static."""
    type = op.slot_type if isinstance(op, RingOp) else op.results[0].type
    assert isa(type, MemRefType)
    if not type.has_static_shape():
        raise UserError(f"the shape of {type} is not static", loc=location_of(op))
    return type


def scope_of_allocation(op: Allocation) -> str | None:
    """The scope that the bytes are in; None off chip. Raises UserError for a memory space that is no scope."""
    try:
        return scope_of(op.slot_type if isinstance(op, RingOp) else op.results[0].type)
    except ValueError as error:
        raise UserError(str(error), loc=location_of(op)) from None


def size_in_bytes(op: Allocation) -> int:
    """The bytes from the first element to the end of the last, row pitch included, all slots of a ring."""
    type = element_memref(op)
    return op.size_in_bytes if isinstance(op, RingOp) else span_in_bytes(type)


@dataclass(frozen=True)
class MemoryProblem:
    """A planning problem, and its ops."""

    function: str
    """The function whose buffers these are; empty for those of the whole program."""
    scope: str | None
    """None for the arena."""
    granule: int
    """Bytes that sizes are rounded up to."""
    problem: Problem
    ops: Mapping[str, Allocation]
    """By the id of the buffer, which is its name in the text, with that of its function if there are several."""
    time: Liveness | ProgramTime
    """What its steps are."""
    alignments: Mapping[str, int] = field(default_factory=dict[str, int])
    """For the arena: what a planner aligns each buffer to, in bytes, which binds no place that is written by hand."""

    @property
    def place(self) -> str:
        """Which memory of which function, for a message."""
        if self.scope is None:
            return f"the {ARENA}"
        of = f"@{self.function}, " if self.function else ""
        return f'{of}scope "{self.scope}"'

    def unplaced(self) -> Problem:
        """The problem without any offset written in the IR, each buffer aligned as a planner aligns it."""
        buffers = (
            replace(each, offset=None, alignment=self.alignments.get(each.id, each.alignment))
            for each in self.problem.buffers
        )
        return replace(self.problem, buffers=tuple(buffers))

    def height_by(self, planner: str, limits: Limits) -> int | None:
        """The bytes that the plan of a planner takes, whatever the banks; None where it has none."""
        plan = solve(self.problem, planner, limits).plan
        return None if plan is None else height(self.problem, plan)

    def describe(self, buffer: Buffer) -> str:
        """A buffer as a person knows it: name, type, bytes, and where it is made."""
        op = self.ops[buffer.id]
        return f"{buffer.id} : {op.results[0].type}, {buffer.size} bytes, {location_of(op)}"


def memory_problems(
    module: ModuleOp, *, placed_only: bool = False, off_chip_only: bool = False, race_free: Collection[func.FuncOp] = ()
) -> list[MemoryProblem]:
    """
    All planning problems of a module: each function's, its scopes in the order of the machine; then those of the
    whole program, likewise; then that of the arena. What has no buffers is left out; with `placed_only` so are buffers
    without an offset, and with `off_chip_only` all scopes. Of functions that are `race_free` commands in flight keep no
    buffer alive.

    Offsets written in the IR are fixed. Raises UserError, located, for a scope that the machine lacks, a dynamic
    shape, a buffer that a function returns, and a function that calls itself.
    """
    time = ProgramTime(module, race_free)
    found = [(function, op) for function in time.functions() for op in _allocations(function)]
    target = find_target(module)
    scopes = _scopes(target, [op for _, op in found])
    if off_chip_only:
        scopes = dict[str, ScopeOp]()
    if placed_only:
        found = [(function, op) for function, op in found if offset_of(op) is not None]
    joined = {scope_of_allocation(op) for function, op in found if time.calls_others(function)}
    own = {name: scope for name, scope in scopes.items() if name not in joined}
    problems: list[MemoryProblem] = []
    for function in time.functions():
        problems += _of_function(function, [op for owner, op in found if owner is function], time.of(function), own)
    shared: list[str | None] = [name for name in scopes if name in joined]
    for name in (*shared, None):
        ops: dict[str, Allocation] = {}
        for function in time.functions():
            inside = [op for owner, op in found if owner is function and scope_of_allocation(op) == name]
            ops.update(zip((f"{short} of @{function.sym_name.data}" for short in _names(inside)), inside, strict=True))
        if ops and name is not None:
            problems.append(_in_scope("", name, scopes[name], ops, time))
        elif ops:
            problems.append(_off_chip(ops, time, OffChipAlignment(target, time)))
    return problems


def function_problems(function: func.FuncOp, target: TargetOp, *, race_free: bool = False) -> list[MemoryProblem]:
    """The problems of one kernel by itself, its scopes in the order of the machine; see `Liveness` for `race_free`."""
    ops = list(_allocations(function))
    return list(_of_function(function, ops, Liveness(function, race_free=race_free), _scopes(target, ops)))


def bytes_taken(function: func.FuncOp, target: TargetOp, scope: str, planner: str, limits: Limits) -> int | None:
    """The bytes of a scope that the plan of one kernel by itself takes, 0 without buffers; None without a plan."""
    ops = list(_allocations(function))
    problems = list(_of_function(function, ops, Liveness(function), {scope: target.scope(scope)}))
    return problems[0].height_by(planner, limits) if problems else 0


def _allocations(function: func.FuncOp) -> Iterator[Allocation]:
    for op in function.walk():
        if isinstance(op, Allocation):
            yield op


def _scopes(target: TargetOp | None, ops: Sequence[Allocation]) -> Mapping[str, ScopeOp]:
    """The scopes of the machine. Raises UserError for an op in another one."""
    scopes = {} if target is None else target.scopes()
    for op in ops:
        scope = scope_of_allocation(op)
        if scope is not None and scope not in scopes:
            near = did_you_mean(scope, scopes)
            notes = ["the module has no machine.target"] if target is None else [near] if near else []
            raise UserError(f'there is no scope "{scope}"', loc=location_of(op), notes=notes)
    return scopes


def _of_function(
    function: func.FuncOp, ops: Sequence[Allocation], time: Liveness, scopes: Mapping[str, ScopeOp]
) -> Iterator[MemoryProblem]:
    for name, scope in scopes.items():
        inside = [op for op in ops if scope_of_allocation(op) == name]
        if inside:
            yield _in_scope(function.sym_name.data, name, scope, dict(zip(_names(inside), inside, strict=True)), time)


def _in_scope(
    function: str, name: str, scope: ScopeOp, ops: Mapping[str, Allocation], time: Liveness | ProgramTime
) -> MemoryProblem:
    granule = scope.granule_bytes
    buffers: list[Buffer] = []
    for id, op in ops.items():
        size = -(-size_in_bytes(op) // granule) * granule
        alignment = lcm(granule, _own_alignment(op))
        buffers.append(Buffer(id, time.lifetime(op.results[0]), size, alignment, offset_of(op)))
    # Interleaved, every buffer of some size is in all banks.
    pairs = bank_pairs(scope, ops, time) if scope.conflict_cycles and scope.interleave is None else ()
    problem = Problem(tuple(buffers), scope.size_bytes, scope.bank_width if pairs else None, pairs)
    return MemoryProblem(function, name, granule, problem, ops, time)


def _off_chip(ops: Mapping[str, Allocation], time: ProgramTime, off_chip: OffChipAlignment) -> MemoryProblem:
    alignments: dict[str, int] = {}
    buffers: list[Buffer] = []
    for id, op in ops.items():
        offset, size = offset_of(op), size_in_bytes(op)
        alignments[id] = lcm(ALIGNMENT, _own_alignment(op), off_chip.of(function_around(op), op.results[0]))
        # An offset that is written by hand may be any; what an engine cannot reach `accel-check-hazards` says.
        alignment = 1 if offset is not None else alignments[id]
        intervals, windows = _alive(time.live_parts(op.results[0]), size)
        buffers.append(Buffer(id, intervals, size, alignment, offset, windows))
    return MemoryProblem("", None, 1, Problem(tuple(buffers)), ops, time, alignments)


def _alive(parts: Sequence[LivePart], size: int) -> tuple[tuple[Interval, ...], tuple[Window, ...]]:
    """When a buffer is alive, and its windows, of which there are none where all of it is at all times."""
    windows = tuple((0, size) if window is None else window for _, window in parts)
    return tuple(interval for interval, _ in parts), windows if any(each != (0, size) for each in windows) else ()


def _names(ops: Sequence[Allocation]) -> list[str]:
    """A name for each buffer, as it is printed but for values that are none; of equal ones the later get a number."""
    taken: set[str] = set()
    return [unique_name(f"%{op.results[0].name_hint or 'buffer'}", taken) for op in ops]


def _own_alignment(op: Allocation) -> int:
    if isinstance(op, ScopedAllocation):
        return element_bytes(op.slot_type if isinstance(op, RingOp) else memref_of(op.results[0]))
    if op.alignment is None:
        return 1
    return max(op.alignment.value.data, 1)


class OffChipAlignment:
    """
    For the buffers off chip of a module: the least common multiple, in bytes, of the `align` of all engines that may
    move their bytes, in the function that makes them and in those that it calls.
    """

    def __init__(self, target: TargetOp | None, time: ProgramTime):
        self._target = target
        self._engines = [] if target is None else list(target.dmas().values())
        self._time = time
        self._wanted: dict[str, dict[SSAValue, int]] = {}
        self._is_needed = any(engine.alignment > 1 for engine in self._engines)

    def of(self, function: func.FuncOp, buffer: SSAValue) -> int:
        """What the offset of a buffer that `function` makes must be a multiple of."""
        return self._of(function).get(buffer, 1) if self._is_needed else 1

    def _of(self, function: func.FuncOp) -> dict[SSAValue, int]:
        """By the allocations and the arguments of a function."""
        name = function.sym_name.data
        if name not in self._wanted:
            found: dict[SSAValue, int] = {}
            aliases = self._time.of(function).aliases
            for op in function.walk():
                for value, alignment in self._by_op(op):
                    for number in bits(aliases.of(value)):
                        root = aliases.roots[number]
                        found[root] = lcm(found.get(root, 1), alignment)
            self._wanted[name] = found
        return self._wanted[name]

    def _by_op(self, op: Operation) -> Iterator[tuple[SSAValue, int]]:
        """The operands off chip of an op, each with what its engines need."""
        if isinstance(op, func.CallOp):
            callee = self._time.callee(op)
            wanted = {} if callee is None else self._of(callee)
            entry = () if callee is None else callee.body.blocks[0].args
            yield from ((value, wanted.get(to, 1)) for value, to in zip(op.arguments, entry, strict=False))
            return
        engines = list(self._engines_of(op))
        for value in op.operands if engines else ():
            if isinstance(value.type, MemRefType) and scope_of(memref_of(value)) is None:
                yield value, lcm(*(engine.alignment for engine in engines))

    def _engines_of(self, op: Operation) -> Iterator[EngineOp]:
        """The engines that may run an op: of a copy, all that go the way."""
        if isinstance(op, CopyOp):
            source, dest = scope_or_dram(op.source), scope_or_dram(op.dest)
            yield from (each for each in self._engines if source in each.sources and dest in each.destinations)
        elif self._target is not None and (engine := performer(op, self._target)[1]) is not None:
            yield engine


def written_plan(memory: MemoryProblem) -> Plan:
    """The offsets written in the IR; buffers without one are left out."""
    places = {id: offset_of(op) for id, op in memory.ops.items()}
    return Plan({id: offset for id, offset in places.items() if offset is not None})


def checked_problems(module: ModuleOp, *, placed_only: bool = False, partial: bool = False) -> list[MemoryProblem]:
    """
    The planning problems of a module, whose offsets are a plan, or, with `partial`, those that are written are.

    Raises UserError where a buffer has no place, or where the places of all break a rule. Of commands in flight the
    data flow knows too little where a proof takes the number of iterations; of kernels that are free of data races as
    they are, the buffers may share the bytes that they share.
    """
    problems = memory_problems(module, placed_only=placed_only)
    fault = _first_fault(problems, partial)
    if fault is None:
        return problems
    # Few programs need it, and it takes long to load.
    from penstock.passes.analysis.commands.hazards import race_free_kernels

    if race_free := race_free_kernels(module):
        problems = memory_problems(module, placed_only=placed_only, race_free=race_free)
        fault = _first_fault(problems, partial)
    if fault is not None:
        raise fault
    return problems


def check_given(memory: MemoryProblem) -> None:
    """Raise UserError where the places that are written already break a rule among themselves."""
    if (fault := _first_fault([memory], partial=True)) is not None:
        raise fault


def _first_fault(problems: Sequence[MemoryProblem], partial: bool) -> UserError | None:
    for memory in problems:
        plan, problem = written_plan(memory), memory.problem
        if partial:
            fixed = tuple(buffer for buffer in problem.buffers if buffer.id in plan.offsets)
            problem = Problem(fixed, problem.capacity)
        for conflict in conflicts(problem, plan):
            fault = fault_of(memory, plan, conflict)
            notes = ["what has an offset keeps it: change one, or leave it to the planner"] if partial else []
            return UserError(fault.message, loc=fault.loc, notes=[*fault.notes, *notes])
    return None


def fault_of(memory: MemoryProblem, plan: Plan, conflict: Conflict) -> UserError:
    """The fault of a program whose buffers lie as in `plan`, at the op that creates the last buffer concerned."""
    ids, place = conflict.buffers, memory.place
    by_id = {buffer.id: buffer for buffer in memory.problem.buffers}
    ends = {id: (plan.offsets[id], plan.offsets[id] + by_id[id].size) for id in ids if id in plan.offsets}
    loc = location_of(memory.ops[ids[-1]])
    if conflict.rule == "missing":
        return UserError(f"{ids[0]} has no offset in {place} yet", loc=loc, notes=["run mem-plan"])
    if conflict.rule != "overlap" or conflict.time is None or conflict.bytes is None:
        return UserError(f"{place}: {conflict.message}", loc=loc)
    first, second = ids
    at = op_in(memory, conflict.time, ids)
    return UserError(
        f"{place}: {first} {span_text(ends[first])} and {second} {span_text(ends[second])} share bytes "
        f"{span_text(conflict.bytes)} while both are alive, in steps {span_text(conflict.time)}",
        loc=loc,
        notes=[
            f"{memory.describe(by_id[first])}: alive in steps {_steps(by_id[first].intervals)}",
            f"{memory.describe(by_id[second])}: alive in steps {_steps(by_id[second].intervals)}",
            f"in these steps runs {at.name}, {location_of(at)}",
        ],
    )


def op_in(memory: MemoryProblem, span: Interval, ids: Sequence[str]) -> Operation:
    """Of the ops that run in a span of time the first that touches one of these buffers; else the first."""
    touching = [
        (begin, user)
        for id in ids
        for user in memory.time.accesses(memory.ops[id].results[0])
        for begin, _ in memory.time.spans(user)
        if span[0] <= begin < span[1]
    ]
    return min(touching, key=lambda each: each[0])[1] if touching else memory.time.op_at(span[0])


def _steps(intervals: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(span_text(interval) for interval in intervals)


@dataclass(frozen=True)
class PlacedBuffer:
    """One buffer of a plan."""

    name: str
    type: str
    offset: int
    """Bytes from the start of the scope."""
    size: int
    """Bytes, in whole granules."""
    intervals: tuple[Interval, ...]
    """When it is alive: half-open, in steps of the function, or of the whole program."""
    windows: tuple[Window, ...] = ()
    """The bytes of it that are alive in each; empty where all are in all."""

    @property
    def as_buffer(self) -> Buffer:
        """It as planners know it, without its place."""
        return Buffer(self.name, self.intervals, self.size, windows=self.windows)


@dataclass(frozen=True)
class ScopePlan:
    """The plan of one function for one scope; one that the whole program shares has the function ""."""

    function: str
    scope: str
    """ARENA for what is off chip."""
    capacity: int | None
    """Bytes of the scope; None for the arena, which takes what it needs."""
    peak: int
    """Bytes that the plan takes: the highest end of any buffer."""
    lower_bound: int
    """Bytes that no plan can do without. A plan whose peak is that is proved optimal."""
    buffers: tuple[PlacedBuffer, ...]

    @property
    def is_optimal(self) -> bool:
        return self.peak == self.lower_bound

    @property
    def gap(self) -> float:
        """By how much of the lower bound the peak exceeds it; 0 for a plan that is optimal."""
        return self.peak / self.lower_bound - 1 if self.lower_bound else 0.0

    def _repr_svg_(self) -> str:
        # Loaded where it is shown: most plans are not.
        from penstock.passes.planning.map_svg import svg_map

        buffers = tuple(each.as_buffer for each in self.buffers)
        plan = Plan({each.name: each.offset for each in self.buffers})
        where = f"@{self.function}, {self.scope}" if self.function else self.scope
        room = "" if self.capacity is None else f" of {self.capacity:,}"
        # A capacity far above the peak would leave the picture empty.
        shown = self.capacity if self.capacity is not None and self.capacity <= 2 * self.peak else None
        title = f"{where}: {self.peak:,}{room} bytes"
        return svg_map(Problem(buffers, shown), plan, title, self.lower_bound)


def plan_report(module: ModuleOp) -> list[ScopePlan]:
    """
    The plans in a module, in the order of `memory_problems`: those of functions, then those of the whole program.

    Raises UserError, located, for a buffer without an offset and for a plan that is not valid.
    """
    return [_plan(memory) for memory in checked_problems(module)]


def _plan(memory: MemoryProblem) -> ScopePlan:
    problem, plan = memory.problem, written_plan(memory)
    placed = tuple(
        PlacedBuffer(
            buffer.id,
            str(memory.ops[buffer.id].results[0].type),
            plan.offsets[buffer.id],
            buffer.size,
            buffer.intervals,
            buffer.windows,
        )
        for buffer in problem.buffers
    )
    peak = height(problem, plan)
    return ScopePlan(
        memory.function,
        memory.scope or ARENA,
        problem.capacity,
        peak,
        _bound(memory, peak),
        placed,
    )


def _bound(memory: MemoryProblem, peak: int) -> int:
    """The bytes that no plan can do without, as a planner would see it: what is fixed by now is no excuse."""
    buffers = tuple(replace(buffer, offset=None) for buffer in memory.problem.buffers)
    bound = lower_bound(Problem(buffers, memory.problem.capacity))
    if peak <= bound:
        return bound
    # Only here can what alignment takes be the difference. Places written by hand need not be aligned off chip.
    problem = memory.unplaced()
    return min(peak, strong_lower_bound(problem, compact(problem)))
