# SPDX-License-Identifier: Apache-2.0
"""
What a report shows, as plain data: the IR of each level, what runs when, what lies where, and the figures of kernels.

Everything that can be pointed at has a *link*: the kernel that it belongs to, if any, and the names of nodes and the
places in files that it comes from. Two things with the same names are the same thing at two levels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation

from penstock.dialects.machine import DRAM, TargetOp
from penstock.passes.analysis.kernels import ENTRY, HOST, kernels, partition
from penstock.passes.analysis.memory.memory_problems import ARENA, written_plan
from penstock.passes.planning.problem import Interval, height, lower_bound
from penstock.runtime.provenance import PlacedLife, Provenance
from penstock.runtime.report import kernel_lines
from penstock.runtime.simulator.figures import Figures, peak_shares, rows_of
from penstock.runtime.simulator.run import ProgramRun
from penstock.runtime.simulator.timeline import DONE, Segments, Simulation
from penstock.runtime.simulator.timeline_svg import COLOURS, MEANINGS
from penstock.tools.report.levels import Levels, Snapshot

SCHEMA, VERSION = "penstock-report", 1

_MOST = 200
"""Rectangles for one buffer in one run of a kernel, about."""

Json = dict[str, Any]


class _Links:
    """Numbers for kernels and names, and for the links made of them."""

    def __init__(self, kernels: Iterable[str]):
        self.kernels = {name: number for number, name in enumerate(kernels)}
        self.names: dict[str, int] = {}
        self.table: dict[tuple[int, tuple[int, ...]], int] = {}

    def of(self, kernel: str, names: Iterable[str]) -> int:
        numbers = tuple(self.names.setdefault(name, len(self.names)) for name in names)
        return self.table.setdefault((self.kernels.get(kernel, -1), numbers), len(self.table))


def program_data(title: str, provenance: Provenance, levels: Levels) -> Json:
    """The data of one program, whose last snapshot is the module that `provenance` has."""
    module, run = provenance.module, provenance.run
    links = _Links(kernel.sym_name.data for kernel in kernels(module))
    groups = {name: inside for each in levels.found for name, inside in each.groups.items()}
    lines = _line_numbers(levels.found[-1])
    names: dict[str, dict[str, None]] = {name: {} for name in links.kernels}
    for call in provenance.calls:
        for node in call.nodes:
            names[call.kernel].update(dict.fromkeys((node, *groups.get(node, ()))))
    runs = {} if run is None else {id(each): number for number, each in enumerate(run.kernels)}
    return {
        "title": title,
        "machine": None if run is None else _machine(run.target),
        "total": None if run is None else _figures(rows_of(run)[-1][2], run),
        "levels": [_level(each, links) for each in levels.found],
        "kernels": _kernels(provenance, links, names),
        "calls": [
            {
                "kernel": links.kernels[call.kernel],
                "run": runs.get(id(call.run), -1),
                "steps": call.steps,
                "cycles": call.cycles,
                "link": links.of(call.kernel, (n for node in call.nodes for n in (node, *groups.get(node, ())))),
            }
            for call in provenance.calls
        ],
        "runs": [] if run is None else [_run(each.simulation, lines) for each in run.kernels],
        "scopes": _scopes(provenance),
        "lives": [_life(life, provenance, links, lines, runs) for life in provenance.lives],
        "steps": _steps(provenance, lines),
        "remarks": [_remark(text, links) for text in kernel_lines(module)],
        # Last: by now all names have their numbers.
        "kernel_names": list(links.kernels),
        "names": list(links.names),
        "links": [[kernel, list(numbers)] for kernel, numbers in links.table],
    }


def page_data(programs: Sequence[Json]) -> Json:
    """The data of a page, of one program or of two that are compared."""
    kinds = [{"kind": kind, "colour": COLOURS[kind], "means": MEANINGS[kind]} for kind in COLOURS]
    return {"schema": SCHEMA, "version": VERSION, "kinds": kinds, "programs": list(programs)}


def _line_numbers(snapshot: Snapshot) -> dict[Operation, int]:
    return {line.op: number for number, line in enumerate(snapshot.lines) if line.op is not None}


def _level(snapshot: Snapshot, links: _Links) -> Json:
    return {
        "title": snapshot.title,
        "text": "\n".join(line.text for line in snapshot.lines),
        "links": [
            links.of(line.function, origins) for line, origins in zip(snapshot.lines, snapshot.origins, strict=True)
        ],
    }


def _machine(target: TargetOp) -> Json:
    # What is off chip is reached by the buses of the engines that move it, each once.
    engines = [each for each in target.dmas().values() if DRAM in (*each.sources, *each.destinations)]
    rates = {each.bus_name: target.buses()[each.bus_name].bytes_per_cycle for each in engines if each.bus_name}
    return {
        "name": target.machine_name,
        "mhz": target.frequency_mhz,
        "peak": float(target.peak_macs_per_cycle()),
        "rate": sum(size / cycles for size, cycles in rates.values()) or None,
        "units": list(target.units()),
    }


def _figures(figures: Figures, run: ProgramRun) -> Json:
    useful, redundant, padded = peak_shares(figures, run.target.peak_macs_per_cycle())
    traffic = figures.traffic
    return {
        "runs": figures.runs,
        "commands": figures.commands,
        "cycles": figures.cycles,
        "ideal": float(figures.ideal),
        "macs": figures.macs.useful,
        "peak": useful,
        "redundant": redundant,
        "padded": padded,
        "bytes": traffic.bytes,
        "least": traffic.least,
        "best_tiling": traffic.best_tiling,
        "moved": [[source, dest, size] for (source, dest), size in figures.moved.items()],
        "units": figures.units,
        "energy": None if figures.picojoules is None else round(float(figures.picojoules)),
        "energy_levels": [[level, round(float(each))] for level, each in figures.energy_levels.items()],
    }


def _kernels(provenance: Provenance, links: _Links, names: Mapping[str, Iterable[str]]) -> list[Json]:
    """A row for each kernel of the machine and each way in which it runs, then those of the host."""
    run = provenance.run
    rows: list[Json] = []
    placements = {each.kernel: each for each in partition(provenance.module)}
    for number, (name, runs, figures) in enumerate(rows_of(run)[:-1] if run is not None else ()):
        assert run is not None
        limit = run.kernels[number].simulation.ideal.resource
        rows.append({**_figures(figures, run), "name": name, "run": number, "runs": runs, "limit": limit})
    known = {row["name"] for row in rows}
    rows += [{"name": name, "run": -1, "runs": each.calls} for name, each in placements.items() if name not in known]
    for row in rows:
        placement = placements[row["name"]]
        # Without a machine in the module no kernel says where it runs: all run on the host.
        row["device"] = placement.device or HOST
        row["remark"], row["tiling"], row["pipelining"] = placement.remark, placement.tiling, placement.pipelining
        row["link"] = links.of(row["name"], names[row["name"]])
    return rows


def _run(simulation: Simulation, lines: Mapping[Operation, int]) -> Json:
    """The times of the commands of a kernel, by columns, and what its units and buses do all the time."""
    names, causes = dict[str, int](), dict[str, int]()
    commands = simulation.commands
    spans = zip(simulation.starts, simulation.ends, strict=True)
    return {
        "cycles": simulation.cycles,
        "rows": [
            *([unit, *_pieces(simulation.unit_segments(unit))] for unit in simulation.program.machine.units),
            *([f"bus {bus}", *_pieces(simulation.bus_segments(bus))] for bus in simulation.index.buses),
        ],
        "unit": simulation.index.unit_of,
        "start": simulation.starts,
        "length": [end - start for start, end in spans],
        "name": [names.setdefault(each.name or each.kind.value, len(names)) for each in commands],
        "cause": [causes.setdefault(str(each), len(causes)) for each in simulation.causes],
        "line": [-1 if each.op is None else lines.get(each.op, -1) for each in commands],
        "bytes": [sum(size for _, _, size in each.moved) for each in commands],
        "names": list(names),
        "causes": list(causes),
    }


def _pieces(segments: Segments) -> tuple[list[str], list[int], list[int]]:
    """What is done at all, the ends of the pieces in which that stays the same, and what each is."""
    changes = np.flatnonzero(np.diff(segments.which))
    ends = [*segments.edges[changes + 1].tolist(), int(segments.edges[-1])] if len(segments.which) else []
    which = [*segments.which[changes].tolist(), int(segments.which[-1])] if len(segments.which) else []
    used = sorted(set(which))
    return [segments.names[each] or DONE for each in used], ends, [used.index(each) for each in which]


def _scopes(provenance: Provenance) -> list[Json]:
    """The scopes that have buffers, in the order of the problems; of each the plan that is highest."""
    found: dict[str, Json] = {}
    for memory in provenance.memories:
        scope, peak = memory.scope or ARENA, height(memory.problem, written_plan(memory))
        known = found.setdefault(scope, {"name": scope, "peak": -1})
        if peak > known["peak"]:
            bound, capacity = lower_bound(memory.unplaced()), memory.problem.capacity
            known |= {"peak": peak, "bound": bound, "capacity": capacity, "function": memory.function}
    return list(found.values())


def _life(
    life: PlacedLife,
    provenance: Provenance,
    links: _Links,
    lines: Mapping[Operation, int],
    runs: Mapping[int, int],
) -> Json:
    data: Json = {
        "scope": life.scope,
        "name": life.name,
        "type": str(life.op.results[0].type),
        "offset": life.offset,
        "size": life.buffer.size,
        "kernel": links.kernels.get(life.function, -1),
        "line": lines.get(life.op, -1),
        "link": links.of(life.function, life.nodes),
    }
    if life.function == ENTRY:
        steps = life.memory.time.lifetime(life.op.results[0])
        return {**data, "steps": steps, "cycles": provenance.cycles_of(life)}
    spans = {
        str(runs[id(call.run)]): [[lower - call.cycles[0], upper - call.cycles[0]] for lower, upper in found]
        for call in provenance.calls
        if call.run is not None and call.kernel == life.function
        for found in [_joined(provenance.cycles_of(life, call), (call.cycles[1] - call.cycles[0]) // _MOST)]
    }
    return {**data, "steps": life.steps, "cycles": spans}


def _joined(intervals: Sequence[Interval], gap: int) -> list[Interval]:
    """Intervals, where there are many those with a small gap between them as one: so many are not told apart."""
    if len(intervals) <= _MOST:
        return list(intervals)
    found = [intervals[0]]
    for lower, upper in intervals[1:]:
        if lower - found[-1][1] <= gap:
            found[-1] = found[-1][0], upper
        else:
            found.append((lower, upper))
    return found


def _steps(provenance: Provenance, lines: Mapping[Operation, int]) -> Json:
    """For each function the lines of its steps: the function itself takes step 0, then each op one."""
    found: Json = {}
    for function in (*kernels(provenance.module),):
        found[function.sym_name.data] = [_line_of(op, lines) for op in function.walk()]
    return found


def _line_of(op: Operation, lines: Mapping[Operation, int]) -> int:
    around: Operation | None = op
    while around is not None and around not in lines:
        around = around.parent_op()
    return -1 if around is None else lines[around]


def _remark(text: str, links: _Links) -> Json:
    kernel = next((name for name in re.findall(r"@([\w.$-]+)", text) if name in links.kernels), "")
    return {"text": text, "kernel": links.kernels.get(kernel, -1)}
