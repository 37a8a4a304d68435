"""
The figures of a run, for one kernel and for all: what the report, the CSV and the JSON say.

The JSON has the schema "penstock-simulation"; a change that a reader would notice raises `VERSION`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, TypeVar

from penstock.runtime.simulator.run import KernelRun, ProgramRun
from penstock.runtime.simulator.stalls import BUSY, DONE
from penstock.runtime.simulator.work import Work

SCHEMA, VERSION = "penstock-simulation", 2


@dataclass(frozen=True)
class Traffic:
    """Bytes off chip, and what they are measured by; None for what is not known of some kernel."""

    bytes: int
    compulsory: int | None
    square_root: int | None
    square_root_is_bound: bool
    best_tiling: int | None
    least: int | None
    """What no schedule of the kernels goes below."""

    @property
    def ratio(self) -> float | None:
        return self.bytes / self.least if self.least else None


_Parts = TypeVar("_Parts", Traffic, Work)


@dataclass(frozen=True)
class Figures:
    """Sums over some runs of kernels."""

    runs: int
    commands: int
    cycles: int
    ideal: Fraction
    work: Work
    units: dict[str, dict[str, int]]
    """For each unit, in the order of the machine, its cycles by what it did; `busy` first, `done` last."""
    buses: dict[str, int]
    """The cycles in which each was busy."""
    moved: dict[tuple[str, str], int]
    """The bytes from one scope to another; "dram" is off chip."""
    traffic: Traffic

    @property
    def ratio(self) -> float:
        """T / T*."""
        return float(self.cycles / self.ideal) if self.ideal else 1.0


def figures_of(kernels: Iterable[tuple[KernelRun, int]]) -> Figures:
    """The sums over kernels, each with how often it runs."""
    runs = commands = cycles = 0
    ideal = Fraction(0)
    units: dict[str, dict[str, int]] = {}
    buses: dict[str, int] = {}
    moved: dict[tuple[str, str], int] = {}
    traffic: list[tuple[Traffic, int]] = []
    work: list[tuple[Work, int]] = []
    for kernel, times in kernels:
        simulation = kernel.simulation
        runs += times
        commands += times * len(simulation.commands)
        cycles += times * simulation.cycles
        ideal += times * simulation.ideal.cycles
        for use in simulation.units:
            sums = units.setdefault(use.unit, {BUSY: 0})
            for cause, count in ((BUSY, use.busy), *use.stalls):
                sums[cause] = sums.get(cause, 0) + times * count
        for bus in simulation.buses:
            buses[bus.bus] = buses.get(bus.bus, 0) + times * bus.busy
        for pair, size in simulation.moved.items():
            moved[pair] = moved.get(pair, 0) + times * size
        traffic.append((_traffic(kernel), times))
        work.append((kernel.work, times))
    ordered = {unit: dict(sorted(sums.items(), key=_rank)) for unit, sums in units.items()}
    return Figures(runs, commands, cycles, ideal, _sum(work, Work), ordered, buses, moved, _sum(traffic, Traffic))


def _rank(item: tuple[str, int]) -> tuple[bool, bool]:
    """Busy first, done last."""
    return item[0] != BUSY, item[0] == DONE


def _traffic(kernel: KernelRun) -> Traffic:
    bounds = kernel.bounds
    root = bounds.square_root
    return Traffic(
        kernel.bytes_in + kernel.bytes_out,
        bounds.compulsory,
        None if root is None else root.bytes,
        root is not None and root.is_bound,
        None if bounds.best is None else bounds.best.bytes,
        bounds.least,
    )


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
    work, most = figures.work, peak * figures.cycles
    parts = [
        None if each is None or not most else float(each / most) for each in (work.useful, work.redundant, work.padded)
    ]
    return parts[0], parts[1], parts[2]


# files


def json_text(run: ProgramRun) -> str:
    """All figures of a run as JSON; docs/simulation.md says what each is."""
    peak = run.target.peak_macs_per_cycle()
    kernels = [
        {
            "kernel": kernel.kernel,
            "ideal_resource": kernel.simulation.ideal.resource,
            "bytes_in": kernel.bytes_in,
            "bytes_out": kernel.bytes_out,
            **_as_json(figures_of([(kernel, 1)]), peak),
            "runs": kernel.runs,
        }
        for kernel in run.kernels
    ]
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "machine": run.target.machine_name,
        "freq_mhz": run.target.frequency_mhz,
        "peak_macs_per_cycle": float(peak),
        "total": _as_json(total_of(run), peak),
        "kernels": kernels,
        "order": list(run.order),
        "host": [{"function": name, "runs": runs} for name, runs in run.host],
    }
    return json.dumps(document, indent=1) + "\n"


def total_of(run: ProgramRun) -> Figures:
    """The sums over all that runs on the machine."""
    return figures_of((kernel, kernel.runs) for kernel in run.kernels)


def _as_json(figures: Figures, peak: Fraction) -> dict[str, Any]:
    shares = peak_shares(figures, peak)
    return {
        "runs": figures.runs,
        "commands": figures.commands,
        "cycles": figures.cycles,
        "ideal_cycles": float(figures.ideal),
        "ratio": figures.ratio,
        "macs": asdict(figures.work),
        "peak_share": shares[0],
        "redundant_share": shares[1],
        "padded_share": shares[2],
        "units": figures.units,
        "buses": figures.buses,
        "moved": [{"from": pair[0], "to": pair[1], "bytes": size} for pair, size in figures.moved.items()],
        "traffic": {**asdict(figures.traffic), "ratio": figures.traffic.ratio},
    }


def csv_text(run: ProgramRun) -> str:
    """A row for each kernel, of one run of it, and one for the total; unknown figures are empty."""
    peak = run.target.peak_macs_per_cycle()
    rows = [(kernel.kernel, kernel.runs, figures_of([(kernel, 1)])) for kernel in run.kernels]
    total = total_of(run)
    rows.append(("total", total.runs, total))
    causes = [(unit, cause) for unit, sums in total.units.items() for cause in sums]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            *("kernel", "runs", "commands", "cycles", "ideal_cycles", "ratio"),
            *("useful_macs", "redundant_macs", "padded_macs", "peak_share", "redundant_share", "padded_share"),
            *("bytes", "compulsory", "square_root", "square_root_is_bound", "best_tiling", "bytes_ratio"),
            *(f"{source} to {dest}" for source, dest in total.moved),
            *(f"bus {bus} busy" for bus in total.buses),
            *(f"{unit} {cause}" for unit, cause in causes),
        ]
    )
    for name, runs, figures in rows:
        work, traffic = figures.work, figures.traffic
        head = (name, runs, figures.commands, figures.cycles, f"{float(figures.ideal):g}", f"{figures.ratio:.6f}")
        writer.writerow(
            [
                *head,
                *(work.useful, work.redundant, work.padded),
                *(None if share is None else f"{share:.6f}" for share in peak_shares(figures, peak)),
                traffic.bytes,
                *(traffic.compulsory, traffic.square_root),
                None if traffic.square_root is None else int(traffic.square_root_is_bound),
                traffic.best_tiling,
                None if traffic.ratio is None else f"{traffic.ratio:.6f}",
                *(figures.moved.get(pair, 0) for pair in total.moved),
                *(figures.buses.get(bus, 0) for bus in total.buses),
                *(figures.units.get(unit, {}).get(cause, 0) for unit, cause in causes),
            ]
        )
    return out.getvalue()
