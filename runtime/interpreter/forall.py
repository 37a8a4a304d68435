# SPDX-License-Identifier: Apache-2.0
"""
`scf.forall`: iterations that run at once, as functions that are called in some order; see `schedule` for which.

An iteration that comes to a barrier stops until all have come to it: the functions of a loop with barriers are
generators. Barriers must be the same for all iterations. What one iteration inserts into a tensor that they share is
not seen by the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from xdsl.dialects import gpu
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.scf import Bound, ForallOp, InParallelOp, forall_around
from penstock.dialects.upstream.tensor import ParallelInsertSliceOp
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.commands import Touch
from penstock.runtime.interpreter.execution import Execution
from penstock.runtime.interpreter.races import Iteration
from penstock.runtime.interpreter.registry import emits
from penstock.runtime.interpreter.slices import SliceSpec
from penstock.runtime.interpreter.source import SourceWriter

Point = tuple[int, ...]
"""The indices of an iteration."""


@emits(ForallOp)
def _emit_forall(writer: SourceWriter, op: ForallOp) -> None:
    execution: Execution = writer.execution
    this, body = writer.bind(op, "op"), f"{writer.bind(op, 'op')}_iteration"
    for index, lower, upper in zip(op.indices, op.lower_bounds, op.upper_bounds, strict=True):
        if (lower >= 0) if isinstance(lower, int) else lower in writer.non_negative:
            writer.non_negative.add(index)
        ends = [each.bit_length() if isinstance(each, int) else writer.bits.get(each) for each in (lower, upper)]
        if None not in ends:
            writer.bits[index] = max(each for each in ends if each is not None)
    writer.line(f"def {body}({writer.names(op.region.block.args)}results):")
    outside = writer.notes_accesses
    writer.notes_accesses = execution.interleaving.finds_races
    with writer.indented():
        writer.defined(op.shared)
        writer.ops(op.region.block.ops)
    writer.notes_accesses = outside
    function = _run_in_phases if _has_barrier(op) else _run_at_once
    bounds = ", ".join(_tuple(writer, each) for each in (op.lower_bounds, op.upper_bounds, op.steps))
    run, running = writer.bind(function, "run"), writer.bind(execution, "execution")
    target = f"{writer.names(op.results)} = " if op.results else ""
    prepare = writer.bind(_iterations, "iterations")
    writer.line(f"{target}{run}({running}, {this}, {body}, {prepare}({bounds}), ({writer.names(op.outputs)}))")
    writer.defined(op.results)


def _tuple(writer: SourceWriter, bounds: Sequence[Bound]) -> str:
    return f"({''.join(f'{each if isinstance(each, int) else writer.name(each)}, ' for each in bounds)})"


def _has_barrier(op: ForallOp) -> bool:
    return any(isinstance(inner, gpu.BarrierOp) and forall_around(inner) is op for inner in op.walk())


@emits(gpu.BarrierOp)
def _emit_barrier(writer: SourceWriter, op: gpu.BarrierOp) -> None:
    if forall_around(op) is None:
        raise UserError("gpu.barrier is in no scf.forall: there is nothing that it waits for", loc=location_of(op))
    writer.line(f"yield {writer.bind(op, 'op')}")


@emits(InParallelOp)
def _emit_in_parallel(writer: SourceWriter, op: InParallelOp) -> None:
    forall = op.parent_op()
    assert isinstance(forall, ForallOp)
    shared: list[SSAValue] = list(forall.shared)
    for insertion in op.insertions:
        insert, execution = writer.bind(_insert, "insert"), writer.bind(writer.execution, "execution")
        arguments = f"{writer.name(insertion.source)}, results[{shared.index(insertion.dest)}]"
        dynamic = writer.names([*insertion.offsets, *insertion.sizes, *insertion.strides])
        writer.line(f"{insert}({execution}, {writer.bind(insertion, 'op')}, {arguments}, ({dynamic}))")


def _insert(
    execution: Execution, op: ParallelInsertSliceOp, source: Array, result: Array, dynamic: Sequence[int]
) -> None:
    box = execution.kept(op, lambda: SliceSpec.of(op)).box(result.shape, dynamic)
    if execution.interleaving.finds_races:
        execution.interleaving.races.accessed(op, (), (Touch(result, box, op.dest),))
    part = result[box]
    part[...] = source.reshape(part.shape)


def _iterations(lower: Point, upper: Point, step: Point) -> list[Point]:
    """The points of a loop in program order; raises ValueError for a step that is not positive."""
    for each in step:
        if each <= 0:
            raise ValueError(f"the step of a loop is {each}, it must be positive")
    return list(product(*map(range, lower, upper, step)))


def _title(point: Point) -> str:
    return f"iteration ({', '.join(map(str, point))})"


class _Team:
    """The iterations of one run of a loop."""

    def __init__(self, execution: Execution, points: Sequence[Point]):
        self._schedule = execution.interleaving
        self._outer = self._schedule.races.iteration
        self.points = points
        self._iterations: dict[Point, Iteration] = {}
        if self._schedule.finds_races:
            self._iterations = dict(
                zip(points, self._schedule.races.fork([*map(_title, points)], execution.memory.instances), strict=True)
            )

    def in_order(self) -> Iterator[Point]:
        """The iterations as they are taken, each while it is the one that runs."""
        for point in self._schedule.in_order(self.points):
            self._schedule.races.iteration = self._iterations.get(point)
            yield point

    def meet(self) -> None:
        """All have come to a barrier."""
        self._schedule.races.meet(list(self._iterations.values()))

    def end(self) -> None:
        """All have ended."""
        if self._schedule.finds_races:
            self._schedule.races.join(list(self._iterations.values()), self._outer)


def _run_at_once(
    execution: Execution, op: ForallOp, body: Callable[..., None], points: Sequence[Point], outputs: Sequence[Array]
) -> tuple[Array, ...]:
    results = tuple(np.array(output) for output in outputs)
    team = _Team(execution, points)
    for point in team.in_order():
        body(*point, *outputs, results)
    team.end()
    return results


def _run_in_phases(
    execution: Execution,
    op: ForallOp,
    body: Callable[..., Iterator[Operation]],
    points: Sequence[Point],
    outputs: Sequence[Array],
) -> tuple[Array, ...]:
    results = tuple(np.array(output) for output in outputs)
    team = _Team(execution, points)
    running = {point: body(*point, *outputs, results) for point in points}
    reached: set[Operation | None] = set()
    while None not in reached and running:
        at = {point: next(running[point], None) for point in team.in_order()}
        reached = set(at.values())
        if len(reached) > 1:
            raise _divergent(points, at)
        if None not in reached:
            team.meet()
    team.end()
    return results


def _divergent(points: Sequence[Point], at: dict[Point, Operation | None]) -> UserError:
    """Iterations that have come to different barriers, or of which some have ended."""
    waiting = next(point for point in points if at[point] is not None)
    other = next(point for point in points if at[point] is not at[waiting])
    barrier, elsewhere = at[waiting], at[other]
    assert barrier is not None
    does = "ends without it" if elsewhere is None else f"waits at the one at {location_of(elsewhere)}"
    return UserError(
        f"{_title(waiting)} waits at this gpu.barrier for ever: {_title(other)} {does}",
        loc=location_of(barrier),
        notes=["all iterations of scf.forall must come to the same barriers: let no condition on an index decide it"],
    )
