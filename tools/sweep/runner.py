# SPDX-License-Identifier: Apache-2.0
"""
Running the steps that the results of a sweep want: a tree for each program and machine, whose branches are where runs
part. A step is given out when the one before it is done; those that would do the same are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from penstock.dialects.diagnostics import UserError
from penstock.tools.sweep.digests import code_digest
from penstock.tools.sweep.figures import CPU
from penstock.tools.sweep.grid import Run
from penstock.tools.sweep.plan import SweepPlan
from penstock.tools.sweep.steps import LOST, OK, REFUSED, Outcome, Segment, Source, Step, cuts
from penstock.tools.sweep.store import Result
from penstock.tools.sweep.workers import WorkerEnded, Workers

ATTEMPTS = 3
"""How often a step is begun whose process ends."""
_KEPT_WHOLE = "graph-to-tensor"
"""The pass from which a program with schedules that are given is not cut: its text does not say what was applied."""


class Listener(Protocol):
    """Who is told how a sweep goes on."""

    def begun(self, step: Step) -> None: ...

    def ended(self, runs: Sequence[Run], result: Result) -> None: ...


@dataclass(eq=False)
class _Node:
    """A step of the tree, and what follows it."""

    source: Source
    segments: tuple[Segment, ...]
    runs: list[Run] = field(default_factory=list[Run])
    """Those that end here."""
    children: dict[object, _Node] = field(default_factory=dict[object, "_Node"])

    def all_runs(self) -> list[Run]:
        """Those that go through here."""
        return [*self.runs, *(run for child in self.children.values() for run in child.all_runs())]


@dataclass(frozen=True)
class _Waiting:
    """A node whose step can be run, and what the steps before it took."""

    node: _Node
    step: Step
    cpu: float


class Sweep:
    """The runs that are wanted, on their way."""

    def __init__(self, plan: SweepPlan, wanted: Sequence[Run], workers: Workers, listener: Listener):
        self._plan = plan
        self._workers = workers
        self._listener = listener
        self._named = frozenset(_named_passes(plan))
        self._ready: list[_Waiting] = []
        self._running: dict[Future[Outcome], _Waiting] = {}
        self._alike: dict[str, list[_Waiting]] = {}
        """By the key of a step that is running: the nodes that wait for it."""
        self._done: dict[str, Outcome] = {}
        self._ended: Counter[str] = Counter()
        """By the key of a step: how many processes ended under it."""
        for run in wanted:
            if run.refused is not None:
                listener.ended([run], run.refused)
        sources: dict[str, _Node] = {}
        for run in wanted:
            if run.refused is None:
                sources.setdefault(run.source.key, _Node(run.source, ())).runs.append(run)
        for node in reversed(sources.values()):
            self._wait_for(node, None, 0.0)

    def run(self) -> None:
        """
        Run all steps, and tell the listener of every run that ends.

        Raises UserError where a worker has other code.
        """
        try:
            while self._ready or self._running:
                while self._ready and len(self._running) < self._workers.slots:
                    self._begin(self._next())
                finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
                self._collect(finished)
        finally:
            for future in self._running:
                future.cancel()

    def _next(self) -> _Waiting:
        """The last that is ready, of a file that no process is at work on if there is one: see `Processes`."""
        running = {waiting.step.source.path for waiting in self._running.values()}
        others = (n for n in reversed(range(len(self._ready))) if self._ready[n].step.source.path not in running)
        return self._ready.pop(next(others, -1))

    def _begin(self, waiting: _Waiting) -> None:
        key = waiting.step.key
        if key in self._done:
            self._finish(waiting, self._done[key])
        elif key in self._alike:
            self._alike[key].append(waiting)
        else:
            self._listener.begun(waiting.step)
            self._alike[key] = [waiting]
            self._running[self._workers.submit(waiting.step)] = waiting

    def _collect(self, finished: Iterable[Future[Outcome]]) -> None:
        for future in sorted(finished, key=lambda each: self._running[each].step.key):
            key = self._running.pop(future).step.key
            error = future.exception()
            if isinstance(error, UserError):
                raise error
            self._ended[key] += isinstance(error, WorkerEnded)
            if isinstance(error, WorkerEnded) and self._ended[key] < ATTEMPTS:
                self._ready += reversed(self._alike.pop(key))
                continue
            outcome = future.result() if error is None else Outcome(status=LOST, reason=_why_lost(error))
            self._done[key] = outcome
            for each in reversed(self._alike.pop(key)):
                self._finish(each, outcome)

    def _finish(self, waiting: _Waiting, outcome: Outcome) -> None:
        node, cpu = waiting.node, waiting.cpu + outcome.cpu
        if outcome.status != OK:
            self._listener.ended(node.all_runs(), Result(outcome.status, outcome.reason, {}))
            return
        if outcome.start is not None:
            self._grow(node, outcome)
        elif node.runs:
            self._listener.ended(node.runs, Result(OK, "", {**outcome.figures, CPU: round(cpu, 3)}))
        for child in reversed(node.children.values()):
            self._wait_for(child, outcome.state, cpu)

    def _wait_for(self, node: _Node, before: str | None, cpu: float) -> None:
        self._ready.append(_Waiting(node, Step(code_digest(), node.source, node.segments, before), cpu))

    def _grow(self, root: _Node, outcome: Outcome) -> None:
        """Grow the tree of a program: a branch for each way that its runs go on."""
        from penstock.runtime.pass_manager import pipeline_text
        from penstock.runtime.pipeline import passes_from

        assert outcome.start is not None
        start = outcome.start

        @cache
        def passes(text: str) -> tuple[str, ...]:
            return tuple(pipeline_text([each]) for each in passes_from(start, "accel", text))

        runs, root.runs = root.runs, []
        pipelines: list[tuple[Run, tuple[str, ...]]] = []
        for run in runs:
            try:
                pipelines.append((run, passes(run.point.pipeline)))
            except UserError as error:
                self._listener.ended([run], Result(REFUSED, error.message, {}))
        places = cuts([each for _, each in pipelines], self._named)
        for (run, specs), at in zip(pipelines, places, strict=True):
            if run.schedule is not None:
                last = next((n for n, each in enumerate(specs) if each.startswith(_KEPT_WHOLE)), 0)
                at = [index for index in at if 0 < index <= last]
            node = root
            for first, end in zip([0, *at], [*at, len(specs)], strict=True):
                is_last = end == len(specs)
                segment = Segment(specs[first:end], run.schedule if is_last else None, is_last)
                child = _Node(root.source, (*node.segments, segment))
                node = node.children.setdefault(segment.key, child)
            node.runs.append(run)


def _why_lost(error: BaseException) -> str:
    if isinstance(error, WorkerEnded):
        return f"its process ended {ATTEMPTS} times before it was done"
    return f"its worker ended before it was done: {type(error).__name__}"


def _named_passes(plan: SweepPlan) -> Iterable[str]:
    """The passes that the plan varies, whether or not it has several values for them."""
    from penstock.runtime.pass_manager import split_pipeline

    for axis in plan.axes:
        for choice in axis.choices:
            for item in split_pipeline(choice.edit) if choice.edit else ():
                yield item.text.removeprefix("-").partition("{")[0]
