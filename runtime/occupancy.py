# SPDX-License-Identifier: Apache-2.0
"""
What lies where in a scope over the cycles of a run, as a plan: pictures of plans draw it.

A planner keeps a buffer alive over steps of the text, and a ring with all its slots. Here a slot is alive from the
command that begins to write a value to the one that reads it last: two slots that take turns are seen to do so. What
is written after a read, in part or whole, counts as another value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from penstock.dialects.diagnostics import USAGE, UserError, nearest_or_all
from penstock.dialects.mem import RingOp, span_in_bytes
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.kernels import ENTRY
from penstock.passes.analysis.memory.memory_problems import ARENA, MemoryProblem
from penstock.passes.planning.map_svg import svg_map
from penstock.passes.planning.problem import Buffer, Interval, Plan, Problem, height, lower_bound
from penstock.runtime.provenance import PlacedLife, Provenance
from penstock.runtime.simulator.run import KernelRun


def occupancy(provenance: Provenance, scope: str) -> tuple[Problem, Plan]:
    """
    The slots and buffers of a scope with their places, each alive in cycles of the run.

    Raises UserError where the run puts nothing into the scope, and for a program of the host.
    """
    return _plan(_placed(provenance, scope))


def _plan(placed: Sequence[tuple[PlacedLife, Buffer, int]]) -> tuple[Problem, Plan]:
    return Problem(tuple(buffer for _, buffer, _ in placed)), Plan({buffer.id: at for _, buffer, at in placed})


def _placed(provenance: Provenance, scope: str) -> list[tuple[PlacedLife, Buffer, int]]:
    """Return what `occupancy` has, each slot with its buffer in the text and its offset."""
    lives = [life for life in provenance.lives if life.scope == scope]
    if provenance.run is None or not lives:
        known = list(dict.fromkeys(life.scope for life in provenance.lives))
        raise UserError(f'no buffer is in "{scope}"', notes=[nearest_or_all(scope, known, "scopes")], status=USAGE)
    several = len({life.function for life in lives}) > 1
    found: list[tuple[PlacedLife, Buffer, int]] = []
    for life in lives:
        for name, offset, size in _slots(life):
            if spans := _cycles(provenance, life, Region(scope, 0, offset, size)):
                id = f"{name} of @{life.function}" if several else name
                found.append((life, Buffer(id, tuple(spans), size), offset))
    if not found:
        raise UserError(f'nothing of this run lies in "{scope}"', status=USAGE)
    return found


def occupancy_svg(provenance: Provenance, scope: str, title: str) -> str:
    """The picture of a scope over the cycles of a run; raises UserError as `occupancy` does."""
    placed = _placed(provenance, scope)
    problem, plan = _plan(placed)
    assert provenance.run is not None
    peak, cycles = height(problem, plan), provenance.run.cycles
    memories = [memory for memory in provenance.memories if (memory.scope or ARENA) == scope]
    used = {id(life.op) for life, _, _ in placed}
    bound = max(_bound(memory, used) for memory in memories)
    room = next((f" of {memory.problem.capacity:,}" for memory in memories if memory.problem.capacity), "")
    title = f"{title}: {peak:,}{room} bytes of {scope}, in {cycles:,} cycles"
    return svg_map(problem, plan, title, bound, axis="cycle")


def _bound(memory: MemoryProblem, used: Collection[int]) -> int:
    """The lower bound of what a run uses of a memory, by the ids of the ops."""
    whole = memory.unplaced()
    return lower_bound(replace(whole, buffers=tuple(each for each in whole.buffers if id(memory.ops[each.id]) in used)))


def _slots(life: PlacedLife) -> Iterator[tuple[str, int, int]]:
    """Name, offset and bytes of each slot of a ring, or of a buffer."""
    if not isinstance(op := life.op, RingOp):
        yield life.name, life.offset, life.buffer.size
        return
    for slot in range(op.slot_count):
        yield f"{life.name}[{slot}]", life.offset + slot * op.pitch_in_bytes, span_in_bytes(op.slot_type)


def _cycles(provenance: Provenance, life: PlacedLife, place: Region) -> Sequence[Interval]:
    """When what is in a place of a buffer is alive, in cycles of the run."""
    if life.function == ENTRY:
        return provenance.cycles_of(life)
    runs = {id(call.run): call.run for call in provenance.calls if call.run and call.kernel == life.function}
    known = {key: [*_values(run, life, place)] for key, run in runs.items()}
    return [
        (call.cycles[0] + first, call.cycles[0] + last)
        for call in provenance.calls
        for first, last in known.get(id(call.run), ())
    ]


def _values(run: KernelRun, life: PlacedLife, place: Region) -> Iterator[Interval]:
    """From the first write of each value in a place to its last read, ascending."""
    simulation = run.simulation
    touched = [number for number, command in enumerate(simulation.commands) if command.op in life.users]
    first, last, was_read = None, 0, False
    for number in sorted(touched, key=lambda number: simulation.starts[number]):
        command = simulation.commands[number]
        reads = any(place.overlaps(region) for region in command.reads)
        writes = any(place.overlaps(region) for region in command.writes)
        if not (reads or writes):
            continue
        if writes and not reads and was_read and first is not None and first < last:
            yield first, last
            first = None
        if first is None:
            first = max(last, simulation.starts[number])
        last, was_read = max(last, simulation.ends[number]), reads and not writes
    if first is not None and first < last:
        yield first, last
