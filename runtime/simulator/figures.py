# SPDX-License-Identifier: Apache-2.0
"""
The figures of a run, for one kernel and for all: what the report, the CSV and the JSON say.

The JSON has the schema "penstock-simulation"; a change that a reader would notice raises `VERSION`.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, TypeVar

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.machine import DRAM
from penstock.dialects.machine.energy import LEAKAGE, OPERATIONS, TRANSFER
from penstock.dialects.remembered import Remembered
from penstock.passes.analysis.commands.hazards import relocated
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.passes.isomorphic_kernels import structure_of
from penstock.runtime.simulator.program import ProgramTime
from penstock.runtime.simulator.run import (
    KernelRun,
    OffChipTraffic,
    ProgramRun,
    check_program,
    run_call,
    simulated_machine,
)
from penstock.runtime.simulator.timeline import BUSY, DONE, Simulation
from penstock.runtime.simulator.work import MacCounts
from penstock.runtime.simulator.workloads import Workloads

SCHEMA, VERSION = "penstock-simulation", 4

LOADING = "operand that stays"
"""What a unit does that loads a block of its stationary operand."""
CONFLICTS = "bank conflicts"
"""What a unit does whose operands share a bank of their scope."""
_SHARES = ("peak_share", "redundant_share", "padded_share")


OPERATION_ENERGY = "operations"
"""What all operations take together, beside scopes, buses and leakage."""

K = TypeVar("K")
_Parts = TypeVar("_Parts", OffChipTraffic, MacCounts)


@dataclass(frozen=True)
class Figures:
    """Sums over some runs of kernels."""

    runs: int
    commands: int
    cycles: int
    ideal: Fraction
    macs: MacCounts
    units: dict[str, dict[str, int]]
    """For each unit, in the order of the machine, its cycles by what it did; `busy` first, `done` last."""
    buses: dict[str, int]
    """The cycles in which each was busy."""
    moved: dict[tuple[str, str], int]
    """The bytes from one scope to another; "dram" is off chip."""
    traffic: OffChipTraffic
    activity: dict[tuple[str, str], int]
    """What takes energy, by table and entry of `machine.energy`: bytes, and operations."""
    energy: dict[tuple[str, str], Fraction] | None
    """The picojoules of each, and of leakage; None for a machine that does not say."""

    @property
    def picojoules(self) -> Fraction | None:
        """The energy of everything."""
        return None if self.energy is None else sum(self.energy.values(), Fraction(0))

    @property
    def delayed_energy(self) -> Fraction | None:
        """Picojoules x cycles."""
        return None if self.picojoules is None else self.picojoules * self.cycles

    @property
    def energy_levels(self) -> dict[str, Fraction]:
        """The picojoules of each scope, of each bus, of operations and of leakage."""
        found: dict[str, Fraction] = {}
        for (table, entry), energy in (self.energy or {}).items():
            level = OPERATION_ENERGY if table in OPERATIONS else f"bus {entry}" if table == TRANSFER else entry or table
            found[level] = found.get(level, Fraction(0)) + energy
        last = (OPERATION_ENERGY, LEAKAGE)
        buses = [level for level in found if level.startswith("bus ")]
        order = [*(level for level in found if level not in (*buses, *last)), *buses, *last]
        return {level: found[level] for level in order if level in found}

    @property
    def ratio(self) -> float:
        """T / T*."""
        return float(self.cycles / self.ideal) if self.ideal else 1.0


def figures_of(kernel: KernelRun) -> Figures:
    """Those of one run of a kernel."""
    simulation = kernel.simulation
    return Figures(
        1,
        len(simulation.commands),
        simulation.cycles,
        simulation.ideal.cycles,
        kernel.macs,
        _units(simulation),
        simulation.buses,
        simulation.moved,
        kernel.traffic,
        dict(simulation.program.activity),
        None if kernel.energy is None else dict(kernel.energy),
    )


def _units(simulation: Simulation) -> dict[str, dict[str, int]]:
    """For each unit its cycles by what it did; to load what stays in it, and to wait for banks, is no work."""
    loading, conflicts = Counter[str](), Counter[str]()
    for command in simulation.commands:
        loading[command.unit] += command.loading
        conflicts[command.unit] += command.conflicting
    return {
        use.unit: {BUSY: use.busy - loading[use.unit] - conflicts[use.unit]}
        | ({LOADING: loading[use.unit]} if loading[use.unit] else {})
        | ({CONFLICTS: conflicts[use.unit]} if conflicts[use.unit] else {})
        | dict(use.stalls)
        for use in simulation.units
    }


def sum_of(parts: Sequence[tuple[Figures, int]]) -> Figures:
    """The sums, each part so many times."""
    runs = commands = cycles = 0
    ideal = Fraction(0)
    units: dict[str, Counter[str]] = {}
    buses, moved = Counter[str](), Counter[tuple[str, str]]()
    activity = Counter[tuple[str, str]]()
    energy: dict[tuple[str, str], Fraction] = {}
    for part, times in parts:
        runs += times * part.runs
        commands += times * part.commands
        cycles += times * part.cycles
        ideal += times * part.ideal
        for unit, counts in part.units.items():
            _add(units.setdefault(unit, Counter({BUSY: 0})), counts, times)
        _add(buses, part.buses, times)
        _add(moved, part.moved, times)
        _add(activity, part.activity, times)
        for what, picojoules in (part.energy or {}).items():
            energy[what] = energy.get(what, Fraction(0)) + times * picojoules
    is_known = all(part.energy is not None for part, _ in parts)
    ordered = {unit: dict(sorted(sums.items(), key=_rank)) for unit, sums in units.items()}
    traffic = _sum([(part.traffic, times) for part, times in parts], OffChipTraffic)
    macs = _sum([(part.macs, times) for part, times in parts], MacCounts)
    known_energy = energy if is_known else None
    return Figures(runs, commands, cycles, ideal, macs, ordered, buses, moved, traffic, activity, known_energy)


def _add(sums: Counter[K], counts: Mapping[K, int], times: int) -> None:
    for key, count in counts.items():
        sums[key] += times * count


def total_of(run: ProgramRun) -> Figures:
    """The sums over all that runs on the machine."""
    return sum_of([(figures_of(kernel), kernel.runs) for kernel in run.kernels])


def simulated_total(module: ModuleOp, workloads: Workloads, remembered: Remembered) -> Figures:
    """
    What `total_of` the run of a program is, host aside. A kernel that was simulated before, in this program or in one
    that shares what is `remembered`, is not simulated again where its arguments lie in scopes, and overlap off chip, as
    they did.

    Raises UserError as `run_program` does.
    """
    target = simulated_machine(module)
    machine = structure_of(target, located=False)[0]
    structures: dict[func.FuncOp, Hashable] = {}
    found: dict[Hashable, Figures] = {}
    counts = Counter[Hashable]()
    for call in trace_calls(module):
        if call.trace is None:
            continue
        kernel = call.function
        if kernel not in structures:
            structures[kernel] = structure_of(kernel, names=False, located=False)[0]
        spaces = [view.space for view in call.arguments if view is not None]
        contraction = repr(workloads.of(kernel.sym_name.data, spaces))
        key = "simulated", machine, structures[kernel], relocated(call.arguments), contraction
        if key not in found:
            if (figures := remembered.get(key)) is None:
                program = call.trace()
                check_program(program, target, kernel)
                figures = figures_of(run_call(call, program, target, workloads))
                remembered.keep(key, figures)
            found[key] = figures
        counts[key] += 1
    return sum_of([(found[key], count) for key, count in counts.items()])


def rows_of(run: ProgramRun) -> list[tuple[str, int, Figures]]:
    """Each kernel, how often it runs, and the figures of one run; last the total of all runs."""
    total = total_of(run)
    rows = [(kernel.kernel, kernel.runs, sum_of([(figures_of(kernel), 1)])) for kernel in run.kernels]
    return [*rows, ("total", total.runs, total)]


def _rank(item: tuple[str, int]) -> tuple[bool, bool]:
    """Busy first, done last."""
    return item[0] != BUSY, item[0] == DONE


def _sum(parts: Sequence[tuple[_Parts, int]], kind: type[_Parts]) -> _Parts:
    """The sum of each field, each part so many times; None where one is not known; of a flag, whether all have it."""
    sums: list[Any] = []
    for each in fields(kind):
        values = [(getattr(part, each.name), times) for part, times in parts]
        if each.type == "bool":
            sums.append(all(value for value, _ in values))
        else:
            sums.append(None if any(n is None for n, _ in values) else sum(n * times for n, times in values))
    return kind(*sums)


def peak_shares(figures: Figures, peak: Fraction) -> tuple[float | None, float | None, float | None]:
    """
    The useful, the redundant and the padded multiply-accumulates, of what the machine could do in the time; None for
    what is not known, and for a machine that does none.
    """
    macs, most = figures.macs, peak * figures.cycles
    parts = [
        None if each is None or not most else float(each / most) for each in (macs.useful, macs.redundant, macs.padded)
    ]
    return parts[0], parts[1], parts[2]


# files


def json_text(run: ProgramRun) -> str:
    """All figures of a run as JSON; docs/simulation.md says what each is."""
    peak = run.target.peak_macs_per_cycle()
    *rows, (_, _, total) = rows_of(run)
    kernels = [
        {
            "kernel": name,
            "ideal_resource": kernel.simulation.ideal.resource,
            "bytes_in": sum(size for (source, _), size in figures.moved.items() if source == DRAM),
            "bytes_out": sum(size for (_, dest), size in figures.moved.items() if dest == DRAM),
            **_as_json(figures, peak),
            "runs": runs,
        }
        for kernel, (name, runs, figures) in zip(run.kernels, rows, strict=True)
    ]
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": run.target.machine_name,
        "freq_mhz": run.target.frequency_mhz,
        "peak_macs_per_cycle": float(peak),
        "total": _as_json(total, peak),
        "kernels": kernels,
        "order": list(run.order),
        "host": [{"function": name, "runs": runs, "cycles": cycles} for name, runs, cycles in host_rows(run)],
        "program": None if run.time is None else _as_program(run.time),
    }
    return json.dumps(document, indent=1) + "\n"


def host_rows(run: ProgramRun) -> list[tuple[str, int, int | None]]:
    """What the host runs: each function, and what @main does itself, with its runs and the cycles of all of them."""
    if run.time is None:
        return [(name, runs, None) for name, runs in run.host]
    runs, cycles = Counter[str](), Counter[str]()
    for step in run.time.steps:
        if step.on_host:
            runs[step.name] += 1
            cycles[step.name] += step.cycles
    return [(name, count, cycles[name]) for name, count in runs.items()]


def _as_program(time: ProgramTime) -> dict[str, Any]:
    return {
        "cycles": time.serial,
        "host_cycles": time.host,
        "side_by_side": time.side_by_side,
        "most_speedup": time.serial / time.host if time.host else None,
    }


def _as_json(figures: Figures, peak: Fraction) -> dict[str, Any]:
    return {
        "runs": figures.runs,
        "commands": figures.commands,
        "cycles": figures.cycles,
        "ideal_cycles": float(figures.ideal),
        "ratio": figures.ratio,
        "macs": asdict(figures.macs),
        **dict(zip(_SHARES, peak_shares(figures, peak), strict=True)),
        "units": figures.units,
        "buses": figures.buses,
        "moved": [{"from": pair[0], "to": pair[1], "bytes": size} for pair, size in figures.moved.items()],
        "traffic": {**asdict(figures.traffic), "ratio": figures.traffic.ratio},
        "energy": _rounded(figures.picojoules),
        "edp": _rounded(figures.delayed_energy),
        "energy_levels": {level: _rounded(each) for level, each in figures.energy_levels.items()},
        "activity": [
            {"what": what, "of": of, "count": count, "pj": None if figures.energy is None else _rounded(energy)}
            for (what, of), count, energy in _activity(figures)
        ],
    }


def _activity(figures: Figures) -> list[tuple[tuple[str, str], int, Fraction]]:
    """What takes energy, how much of it there is, and what it takes, in the order of the machine."""
    counts = {**figures.activity, (LEAKAGE, ""): figures.cycles}
    energy = figures.energy or dict.fromkeys(sorted(counts), Fraction(0))
    return [(what, counts[what], each) for what, each in energy.items()]


def _rounded(value: Fraction | None) -> float | None:
    """To thousandths, which is all that anybody asks for, and the same everywhere."""
    return None if value is None else float(round(value, 3))


def csv_text(run: ProgramRun) -> str:
    """A row for each kernel, of one run of it, and one for the total; unknown figures are empty."""
    peak, total = run.target.peak_macs_per_cycle(), total_of(run)
    rows = [_csv_row(*row, peak, total) for row in rows_of(run)]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _csv_row(name: str, runs: int, figures: Figures, peak: Fraction, total: Figures) -> dict[str, Any]:
    macs, traffic = figures.macs, figures.traffic
    return {
        "kernel": name,
        "runs": runs,
        "commands": figures.commands,
        "cycles": figures.cycles,
        "ideal_cycles": f"{float(figures.ideal):g}",
        "ratio": f"{figures.ratio:.6f}",
        "useful_macs": macs.useful,
        "redundant_macs": macs.redundant,
        "padded_macs": macs.padded,
        **{
            key: None if share is None else f"{share:.6f}"
            for key, share in zip(_SHARES, peak_shares(figures, peak), strict=True)
        },
        "bytes": traffic.bytes,
        "compulsory": traffic.compulsory,
        "square_root": traffic.square_root,
        "square_root_is_bound": None if traffic.square_root is None else int(traffic.square_root_is_bound),
        "best_tiling": traffic.best_tiling,
        "bytes_ratio": None if traffic.ratio is None else f"{traffic.ratio:.6f}",
        **{f"{source} to {dest}": figures.moved.get((source, dest), 0) for source, dest in total.moved},
        "energy": _rounded(figures.picojoules),
        **{f"energy {level}": _rounded(figures.energy_levels.get(level)) for level in total.energy_levels},
        **{f"bus {bus} busy": figures.buses.get(bus, 0) for bus in total.buses},
        **{
            f"{unit} {cause}": figures.units.get(unit, {}).get(cause, 0)
            for unit, sums in total.units.items()
            for cause in sums
        },
    }
