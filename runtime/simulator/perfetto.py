# SPDX-License-Identifier: Apache-2.0
"""
A run as a trace in the Chrome JSON format, which https://ui.perfetto.dev shows: a track for each unit and each bus.

A microsecond of the trace is one cycle. Commands of a unit that overlap in time lie on tracks beside each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from penstock.passes.analysis.commands.program import Kind
from penstock.runtime.simulator.run import ProgramRun, calls
from penstock.runtime.simulator.timeline import CycleWindow, Simulation

_KERNELS, _UNITS, _BUSES, _QUEUES = 1, 2, 3, 4
"""The groups of tracks."""


def trace_text(run: ProgramRun, window: CycleWindow) -> str:
    """The trace of what overlaps the window, as JSON with one event a line."""
    events = [*_Tracks(run).events(window)]
    head = {
        "displayTimeUnit": "ns",
        "otherData": {"machine": run.target.machine_name, "unit": "1 us in this trace is 1 cycle"},
    }
    body = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return json.dumps(head)[:-1] + ', "traceEvents": [\n' + body + "\n]}\n"


class _Tracks:
    """Numbers of tracks, and the events on them."""

    def __init__(self, run: ProgramRun):
        self.run = run
        self.names: dict[tuple[int, str, int], int] = {}

    def track(self, group: int, name: str, lane: int = 0) -> int:
        return self.names.setdefault((group, name, lane), len(self.names) + 1)

    def events(self, window: CycleWindow) -> Iterator[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for begin, kernel in calls(self.run):
            if window.meets(begin, begin + kernel.simulation.cycles):
                length = kernel.simulation.cycles
                events.append(self.slice(_KERNELS, "kernels", 0, f"@{kernel.kernel}", begin, length, {}))
                events += self.commands(kernel.simulation, begin, window)
                events += self.queues(kernel.simulation, begin, window)
        for group, name in ((_KERNELS, "program"), (_UNITS, "units"), (_BUSES, "buses"), (_QUEUES, "queues")):
            yield {"ph": "M", "pid": group, "tid": 0, "name": "process_name", "args": {"name": name}}
            yield {"ph": "M", "pid": group, "tid": 0, "name": "process_sort_index", "args": {"sort_index": group}}
        for (group, name, lane), number in sorted(self.names.items(), key=self.rank):
            label = f"{name} ({lane + 1})" if lane else name
            yield {"ph": "M", "pid": group, "tid": number, "name": "thread_name", "args": {"name": label}}
        yield from events

    def rank(self, item: tuple[tuple[int, str, int], int]) -> tuple[int, int, int]:
        (group, name, lane), _ = item
        units = list(self.run.target.units())
        return group, units.index(name) if name in units else len(units), lane

    def slice(
        self, group: int, name: str, lane: int, title: str, begin: int, length: int, args: dict[str, Any]
    ) -> dict[str, Any]:
        tid = self.track(group, name, lane)
        return {"ph": "X", "pid": group, "tid": tid, "name": title, "ts": begin, "dur": length, "args": args}

    def commands(self, simulation: Simulation, begin: int, window: CycleWindow) -> Iterator[dict[str, Any]]:
        lanes: dict[str, list[int]] = {unit: [] for unit in simulation.program.machine.units}
        for number, command in enumerate(simulation.commands):
            start, end = simulation.starts[number], simulation.ends[number]
            free = lanes[command.unit]
            lane = next((lane for lane, until in enumerate(free) if until <= start), len(free))
            free[lane : lane + 1] = [end]
            if not window.meets(begin + start, begin + end):
                continue
            args: dict[str, Any] = {"command": number, "waited for": str(simulation.causes[number]) or "nothing"}
            if location := simulation.location_of(number):
                args["from"] = location
            if command.counters:
                args["iteration"] = list(command.counters)
            grant, finish = simulation.grants[number], simulation.finishes[number]
            if command.kind is Kind.TRANSFER:
                args |= {"request": begin + simulation.requests[number], "grant": begin + grant, "done": begin + finish}
                bus = simulation.index.buses[simulation.index.bus_of[number]]
                about = {"command": number, "unit": command.unit}
                yield self.slice(_BUSES, bus, 0, command.name, begin + grant, finish - grant, about)
            if command.kind is Kind.EXEC:
                args["applications"] = command.iterations
                if command.loads:
                    args["loads"] = command.loads
            yield self.slice(
                _UNITS, command.unit, lane, command.name or command.kind.value, begin + start, end - start, args
            )

    def queues(self, simulation: Simulation, begin: int, window: CycleWindow) -> Iterator[dict[str, Any]]:
        """How many tokens each queue holds."""
        changes: dict[tuple[int, int], int] = {}
        for number in range(len(simulation.commands)):
            for queue in simulation.index.pops[number]:
                at = simulation.starts[number], queue
                changes[at] = changes.get(at, 0) - 1
            for queue in simulation.index.pushes[number]:
                at = simulation.ends[number], queue
                changes[at] = changes.get(at, 0) + 1
        queues = simulation.program.machine.queues
        held = [queue.initial for queue in queues]
        for (time, queue), change in sorted(changes.items()):
            held[queue] += change
            if window.meets(begin + time, begin + time + 1):
                name = " to ".join(queues[queue].name)
                tokens = {"tokens": held[queue]}
                yield {"ph": "C", "pid": _QUEUES, "tid": 0, "name": name, "ts": begin + time, "args": tokens}
