# SPDX-License-Identifier: Apache-2.0
"""
What is said when buffers do not fit their scope: what is alive at the peak, and the cheapest changes that help.

Every repair has been tried: the problem with the change made is planned again, and only what then fits is listed.
Its price is the bytes that would cross the chip's edge more than now; where that is not known exactly, at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.utils.disjoint_set import DisjointSet

from penstock.dialects.accel import ExecOp
from penstock.dialects.diagnostics import TIME_LIMIT, USER_FAULT, UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, SlotOp, element_bytes, memref_of, span_in_bytes
from penstock.passes.analysis.kernels import machine_around
from penstock.passes.analysis.loops import iterations, loops_around
from penstock.passes.analysis.memory.liveness import Allocation, function_around
from penstock.passes.analysis.memory.memory_problems import MemoryProblem, element_memref, op_in
from penstock.passes.analysis.memory.storage import accesses_of, in_scope, storage_of
from penstock.passes.analysis.units import scope_or_dram
from penstock.passes.planning.problem import (
    Buffer,
    Limits,
    Outcome,
    Problem,
    alive_at,
    height,
    live_sums,
    lower_bound,
    peak,
)
from penstock.passes.planning.registry import DEFAULT_PLANNER, solve

MAX_REPAIRS = 5
"""Repairs that are listed."""

MAX_BUFFERS_LISTED = 12
"""Buffers that are named of those alive at the peak."""

MAX_VARIANTS = 16
"""Variants that are planned to see whether they fit."""

MAX_SEARCHES = 3
"""How many of them are searched for up to the limits, where the plan that a planner starts from does not fit."""


def overflow(memory: MemoryProblem, outcome: Outcome, planner: str, limits: Limits) -> UserError:
    """
    The error for a scope that is too small: it is located at the op where most bytes are alive.

    Its status is 4 where a longer search might still find a plan.
    """
    problem, capacity = memory.problem, memory.problem.capacity
    assert capacity is not None
    bound = max(outcome.bound, lower_bound(problem))
    proved = outcome.infeasible or bound > capacity
    needed = None if outcome.plan is None else height(problem, outcome.plan)
    step, at_once = peak(problem)
    who = f"@{memory.function}" if memory.function else "the program"
    if at_once > capacity:
        reason = f"{at_once} bytes are alive at once here, and it has {capacity}"
    elif proved:
        reason = f"{at_once} bytes are alive at once here, but no plan takes the {capacity} that it has, or less"
    else:
        reason = f'within its limits "{planner}" found no plan of the {capacity} bytes that it has'
    alive = alive_at(problem, step)
    end = next((time for time, _ in live_sums(problem) if time > step), step + 1)
    found = "" if needed is None else f"peak of the best plan {needed}, "
    notes = [
        f"alive here: {len(alive)} of {len(problem.buffers)} buffers",
        *(f"  {memory.describe(buffer)}" for buffer in _largest(alive)),
        *([f"  and {len(alive) - MAX_BUFFERS_LISTED} smaller ones"] if len(alive) > MAX_BUFFERS_LISTED else []),
        f"{found}lower bound {bound}, capacity {capacity} bytes",
        *_repairs(memory, needed, bound, planner, limits),
    ]
    if not proved:
        notes.append("it is not proved that there is none: with more steps or time-limit, mem-plan searches longer")
    return UserError(
        f'{who} does not fit scope "{memory.scope}": {reason}',
        loc=location_of(op_in(memory, (step, end), [buffer.id for buffer in alive])),
        notes=notes,
        status=USER_FAULT if proved else TIME_LIMIT,
    )


def _repairs(memory: MemoryProblem, needed: int | None, bound: int, planner: str, limits: Limits) -> list[str]:
    """What would fit, a line each, the cheapest first."""
    problem = memory.problem
    lines: list[str] = []
    least = needed
    if planner != DEFAULT_PLANNER:
        default = _height(problem, DEFAULT_PLANNER, limits)
        if _fits(problem, default):
            lines.append(f'planner="{DEFAULT_PLANNER}": {default} bytes')
        if default is not None and (least is None or default < least):
            least = default
    searches = 0
    for variant in variants(memory)[:MAX_VARIANTS]:
        if len(lines) == MAX_REPAIRS - 1:
            break
        changed = replace(problem, buffers=variant.buffers)
        taken = _height(changed, planner, replace(limits, steps=0))
        if not _fits(problem, taken) and searches < MAX_SEARCHES:
            searches += 1
            taken = _height(changed, planner, limits)
        if _fits(problem, taken):
            lines.append(f"{variant.text}: {taken} bytes; {_price(variant)}")
    if least is not None and not _fits(problem, least):
        known = "; no smaller one will do" if least == bound else ""
        lines.append(f'a scope "{memory.scope}" of {least} bytes{known}')
    return ["each of these alone would fit, the cheapest first:", *(f"  {line}" for line in lines)] if lines else []


def _largest(alive: Sequence[Buffer]) -> list[Buffer]:
    """Those that are listed, in the order of the program."""
    listed = sorted(alive, key=lambda buffer: -buffer.size)[:MAX_BUFFERS_LISTED]
    return [buffer for buffer in alive if buffer in listed]


def _price(variant: Variant) -> str:
    if variant.moved is None:
        return "how many off-chip bytes more is not known"
    if variant.moved == 0:
        return f"no off-chip bytes more{variant.also}"
    return f"{'at most ' if variant.is_bound else ''}{variant.moved} off-chip bytes more in a run of {variant.where}"


def _fits(problem: Problem, bytes: int | None) -> bool:
    return bytes is not None and problem.capacity is not None and bytes <= problem.capacity


def _height(problem: Problem, planner: str, limits: Limits) -> int | None:
    """What the plan of a variant takes; None where the planner has none, or does not take such a problem."""
    try:
        plan = solve(problem, planner, replace(limits, good_enough=problem.capacity)).plan
    except UserError:
        return None
    return None if plan is None else height(problem, plan)


@dataclass(frozen=True)
class Variant:
    """The buffers of a problem after one change of the program."""

    text: str
    """The change."""
    buffers: tuple[Buffer, ...]
    moved: int | None
    """Bytes that then cross the chip's edge more in a run of the function; None where that is not known."""
    where: str
    """That function."""
    is_bound: bool = False
    """Whether it may be fewer."""
    also: str = ""
    """What else it costs."""


def variants(memory: MemoryProblem) -> list[Variant]:
    """
    The single changes after which no more bytes are alive at once than there are, those that move least first.

    Of a ring and of a tile the smallest change that does.
    """
    found = [*_shorter_rings(memory), *_smaller_tiles(memory), *_off_chip(memory)]
    return sorted(found, key=lambda variant: (variant.moved is None, variant.moved or 0))


def _rounded(memory: MemoryProblem, bytes: int) -> int:
    return -(-bytes // memory.granule) * memory.granule


def _with_sizes(memory: MemoryProblem, sizes: dict[str, int]) -> tuple[Buffer, ...]:
    return tuple(replace(buffer, size=sizes.get(buffer.id, buffer.size)) for buffer in memory.problem.buffers)


# rings


def _shorter_rings(memory: MemoryProblem) -> Iterator[Variant]:
    for id, op in memory.ops.items():
        if not isinstance(op, RingOp):
            continue
        for depth in range(op.slot_count - 1, 0, -1):
            size = _rounded(memory, op.size_in_bytes - (op.slot_count - depth) * op.pitch_in_bytes)
            buffers = _with_sizes(memory, {id: size})
            if _may_fit(memory, buffers):
                text = f"the ring {id} with {depth} instead of {op.slot_count} slots"
                yield Variant(text, buffers, 0, _where(op), also=", but fewer copies run ahead")
                break


# tiles


def _smaller_tiles(memory: MemoryProblem) -> Iterator[Variant]:
    target = machine_around(next(iter(memory.ops.values())))
    if target is None:
        return
    ids = {op: id for id, op in memory.ops.items()}
    for function in dict.fromkeys(function_around(op) for op in memory.ops.values()):
        for tile in tile_classes(function):
            size = tile.extent
            while size > 1:
                size = -(-size // 2)
                cut = tile.cut(size)
                here = {op: shape for op, shape in cut.shapes.items() if op in ids}
                buffers = _with_sizes(memory, {ids[op]: _resized(memory, op, here[op], target) for op in here})
                if _may_fit(memory, buffers):
                    shapes = [f"{ids[op]} {_shape(op)} to {'x'.join(map(str, shape))}" for op, shape in here.items()]
                    text = f"tiles of {size} instead of {tile.extent}: {', '.join(shapes)}"
                    yield Variant(text, buffers, price_of_cut(cut), _where(function), is_bound=True)
                    break


def _resized(memory: MemoryProblem, op: Allocation, shape: tuple[int, ...], target: TargetOp) -> int:
    """The bytes of a buffer, or of all slots of a ring, of a smaller shape."""
    assert memory.scope is not None
    bytes = span_in_bytes(resized(element_memref(op), shape, target, memory.scope))
    slots = op.slot_count if isinstance(op, RingOp) else 1
    return slots * _rounded(memory, bytes)


def _shape(op: Allocation) -> str:
    return "x".join(str(size) for size in element_memref(op).get_shape())


# tensors left off chip


def _off_chip(memory: MemoryProblem) -> Iterator[Variant]:
    for id, op in memory.ops.items():
        users = memory.time.accesses(op.results[0])
        rest = tuple(buffer for buffer in memory.problem.buffers if buffer.id != id)
        if any(isinstance(user, func.CallOp) for user in users):
            # Each use then brings it on chip for as long as it runs.
            own = next(buffer for buffer in memory.problem.buffers if buffer.id == id)
            visits = sorted({span for user in users for span in memory.time.spans(user)})
            parts = [replace(own, id=f"{id}, use {number}", intervals=(span,)) for number, span in enumerate(visits)]
            if _may_fit(memory, (*rest, *parts)):
                text = f"{id} off chip between its uses"
                yield Variant(text, (*rest, *parts), own.size * len(parts), _where(op), is_bound=True)
        elif _may_be_off_chip(op, users) and _may_fit(memory, rest):
            yield Variant(f"{id} left off chip", rest, price_off_chip(op), _where(op))


def _may_be_off_chip(op: Allocation, users: list[Operation]) -> bool:
    """Whether no unit needs the buffer where it is, and engines join what it is filled from and read by."""
    target = machine_around(op)
    if any(isinstance(user, ExecOp | GenericOp) for user in users):
        return False
    if target is None:
        return True
    fills = {scope_or_dram(copy.source) for copy in copies_of(op) if is_part_of(copy.dest, op)}
    reads = {scope_or_dram(copy.dest) for copy in copies_of(op) if is_part_of(copy.source, op)}
    if DRAM in fills and DRAM in reads:
        # It would go from off chip to off chip.
        return False
    return all(scope == DRAM or target.dma_between(scope, DRAM) for scope in fills) and all(
        scope == DRAM or target.dma_between(DRAM, scope) for scope in reads
    )


# measures


def _where(op: Operation) -> str:
    return f"@{function_around(op).sym_name.data}"


def _may_fit(memory: MemoryProblem, buffers: tuple[Buffer, ...]) -> bool:
    capacity = memory.problem.capacity
    return capacity is not None and lower_bound(Problem(buffers, capacity)) <= capacity


def is_part_of(value: SSAValue, op: Allocation) -> bool:
    """Whether a memref is the buffer or a view of it."""
    return storage_of(value) is op.results[0]


def copies_of(op: Allocation) -> list[CopyOp]:
    """The copies from and to a buffer."""
    return [each for each in accesses_of(function_around(op), op.results[0]) if isinstance(each, CopyOp)]


def price_off_chip(op: Allocation) -> int | None:
    """What crosses the edge more if a buffer lies off chip: all between it and scopes, less what did so before."""
    total = 0
    for copy in copies_of(op):
        moved = _bytes(copy)
        if moved is None:
            return None
        total += -moved if _is_over_the_edge(copy) else moved
    return max(total, 0)


def price_of_cut(cut: TileCut) -> int | None:
    """
    What smaller tiles cost at most: the loop over the parts is where in the nest it costs least.

    What the parts read whole stays if it is fetched outside of that loop, and is fetched for each part otherwise; sums
    are stored and fetched again. What becomes smaller is fetched inside of it, hence again in each iteration of the
    loops that it was fetched before.
    """
    nest = max((loops_around(op) for op in cut.over), key=len)
    prices = [price for depth in range(len(nest) + 1) if (price := _price_at(cut, nest, depth)) is not None]
    return min(prices, default=None)


def _price_at(cut: TileCut, nest: Sequence[scf.ForOp], depth: int) -> int | None:
    """The price with the loop over the parts inside `depth` loops of the nest; None where that cannot be."""
    total = 0
    for op in cut.shapes:
        for copy in filter(_is_over_the_edge, copies_of(op)):
            outside = [loop for loop in loops_around(copy) if loop in nest]
            moved, again = _bytes(copy), iterations(nest[len(outside) : depth])
            is_fill = is_part_of(copy.dest, op)
            if moved is None or again is None or (again > 1 and not is_fill):
                return None
            before = prod(element_memref(op).get_shape())
            total += moved * again * cut.cells[op] // before - moved
    inputs = [copy for op in cut.whole_inputs for copy in copies_of(op) if _is_over_the_edge(copy)]
    # Sums may leave through other scopes; those of a part have to go somewhere until the next one.
    outputs = [copy for op in cut.whole_outputs for copy in copies_of(op)]
    for copies, times in ((inputs, 1), (outputs, 2)):
        for copy in copies:
            moved = _bytes(copy)
            if moved is None:
                return None
            if len([loop for loop in loops_around(copy) if loop in nest]) > depth:
                total += times * (cut.parts - 1) * moved
    return max(total, 0)


def _is_over_the_edge(copy: CopyOp) -> bool:
    return DRAM in (scope_or_dram(copy.source), scope_or_dram(copy.dest))


def _bytes(copy: CopyOp) -> int | None:
    times = iterations(loops_around(copy))
    return None if times is None else times * prod(copy.box) * element_bytes(copy.source_type)


OwnedDim = tuple[GenericOp | Allocation, int]
"""A dim of a domain, or of a buffer."""


@dataclass(frozen=True)
class TileCut:
    """What it does to buffers that a tile is made smaller."""

    shapes: dict[Allocation, tuple[int, ...]]
    """The new shapes of those that become smaller."""
    cells: dict[Allocation, int]
    """Of these, the elements that all parts have together: more than before where they overlap."""
    parts: int
    over: tuple[GenericOp, ...]
    """The ops over the dims that are cut."""
    whole_inputs: tuple[Allocation, ...]
    """What these read and what does not become smaller: each part needs all of it."""
    whole_outputs: tuple[Allocation, ...]
    """The same of what they write: each part adds to all of it."""


@dataclass(frozen=True)
class _Use:
    """An operand of an op of a function: all of a buffer, by an index map."""

    generic: GenericOp
    buffer: Allocation
    map: AffineMap
    is_input: bool


@dataclass(frozen=True)
class TileClass:
    """Dims of one size that one tile size decides."""

    extent: int
    members: frozenset[OwnedDim]
    _uses: tuple[_Use, ...]

    def cut(self, size: int) -> TileCut:
        """What tiles of `size` in these dims do."""
        shapes: dict[Allocation, list[int]] = {}
        for use in self._uses:
            domain = [
                size if (use.generic, number) in self.members else extent
                for number, extent in enumerate(_extents(use.generic))
            ]
            here = _reach(use.map, domain)
            before = shapes.setdefault(use.buffer, [0] * len(here))
            shapes[use.buffer] = [max(a, b) for a, b in zip(before, here, strict=True)]
        for owner, at in self.members:
            if not isinstance(owner, GenericOp):
                shapes.setdefault(owner, [*element_memref(owner).get_shape()])[at] = size
        parts = -(-self.extent // size)
        smaller = {op: tuple(shape) for op, shape in shapes.items() if shape != [*element_memref(op).get_shape()]}
        cells = {op: prod(self._over_all_parts(op, shape, parts)) for op, shape in smaller.items()}
        over = tuple(dict.fromkeys(use.generic for use in self._uses if self._is_over(use)))
        whole = [use for use in self._uses if self._is_over(use) and use.buffer not in smaller]
        return TileCut(
            smaller,
            cells,
            parts,
            over,
            tuple(dict.fromkeys(use.buffer for use in whole if use.is_input)),
            tuple(dict.fromkeys(use.buffer for use in whole if not use.is_input)),
        )

    def _is_over(self, use: _Use) -> bool:
        return any(owner is use.generic for owner, _ in self.members)

    def _over_all_parts(self, op: Allocation, shape: tuple[int, ...], parts: int) -> Iterator[int]:
        """The sizes of a buffer's dims, summed over the parts where a dim is cut."""
        for at, (size, before) in enumerate(zip(shape, element_memref(op).get_shape(), strict=True)):
            yield before if size == before or (op, at) in self.members else size * parts


def tile_classes(function: func.FuncOp) -> list[TileClass]:
    """The classes of at least two elements that domains of `function` have, in the order in which they occur."""
    uses = tuple(_uses(function))
    same: DisjointSet[OwnedDim] = DisjointSet()
    dims: dict[OwnedDim, None] = {}

    def join(one: OwnedDim, other: OwnedDim) -> None:
        for dim in (one, other):
            if dim not in dims:
                dims[dim] = None
                same.add(dim)
        same.union(one, other)

    for use in uses:
        for number in range(len(_extents(use.generic))):
            join((use.generic, number), (use.generic, number))
        for at, expr in enumerate(use.map.results):
            if isinstance(expr, AffineDimExpr):
                join((use.generic, expr.position), (use.buffer, at))
    for one, other in _copied_whole(function):
        join(one, other)
    members: dict[OwnedDim, list[OwnedDim]] = {}
    for dim in dims:
        members.setdefault(same.find(dim), []).append(dim)
    classes: list[TileClass] = []
    for each in members.values():
        sizes = {_size(dim) for dim in each}
        if len(sizes) == 1 and max(sizes) > 1 and any(isinstance(owner, GenericOp) for owner, _ in each):
            classes.append(TileClass(max(sizes), frozenset(each), uses))
    return classes


def resized(type: MemRefType[Attribute], shape: tuple[int, ...], target: TargetOp, scope: str) -> MemRefType[Attribute]:
    """The type of a smaller buffer, with gaps between its rows where promotion would leave them as it did here."""
    plain = MemRefType(type.element_type, type.get_shape())
    adjoining = next(
        (
            count
            for count in range(1, len(shape) + 1)
            if in_scope(plain, target, scope, count).get_strides() == type.get_strides()
        ),
        1,
    )
    return in_scope(MemRefType(type.element_type, shape), target, scope, adjoining)


def _size(dim: OwnedDim) -> int:
    owner, at = dim
    return _extents(owner)[at] if isinstance(owner, GenericOp) else element_memref(owner).get_shape()[at]


def _extents(generic: GenericOp) -> tuple[int, ...]:
    return tuple(generic.get_static_loop_ranges())


def _reach(map: AffineMap, domain: Sequence[int]) -> list[int]:
    """The shape of what a map reaches over a domain; its coefficients are not negative."""
    return [last + 1 for last in map.eval([size - 1 for size in domain], [])]


def _uses(function: func.FuncOp) -> Iterator[_Use]:
    """The operands that are all of a buffer, no more and no less; the ops have static domains."""
    for generic in function.walk():
        if not isinstance(generic, GenericOp):
            continue
        if any(not isinstance(o.type, MemRefType) or not memref_of(o).has_static_shape() for o in generic.operands):
            continue
        domain = _extents(generic)
        for number, (operand, map) in enumerate(zip(generic.operands, generic.indexing_maps, strict=True)):
            buffer = _buffer_of(operand)
            if buffer is not None and _reach(map.data, domain) == list(element_memref(buffer).get_shape()):
                yield _Use(generic, buffer, map.data, number < len(generic.inputs))


def _buffer_of(value: SSAValue) -> Allocation | None:
    """The buffer that a value is all of."""
    match value.owner:
        case BufferOp() | memref.AllocOp() | memref.AllocaOp():
            return value.owner
        case SlotOp(ring=ring) if isinstance(ring.owner, RingOp):
            return ring.owner
        case _:
            return None


def _copied_whole(function: func.FuncOp) -> Iterator[tuple[OwnedDim, OwnedDim]]:
    for copy in function.walk():
        if not isinstance(copy, CopyOp):
            continue
        source, dest = _buffer_of(copy.source), _buffer_of(copy.dest)
        if source is None or dest is None:
            continue
        for at, (size, one, other) in enumerate(
            zip(copy.box, element_memref(source).get_shape(), element_memref(dest).get_shape(), strict=True)
        ):
            if one == size == other:
                yield (source, at), (dest, at)
