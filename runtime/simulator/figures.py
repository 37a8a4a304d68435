"""
The figures of a run, for one kernel and for all: what the report, the CSV and the JSON say.

The JSON has the schema "penstock-simulation"; a change that a reader would notice raises `VERSION`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from penstock.runtime.simulator.run import KernelRun, ProgramRun
from penstock.runtime.simulator.stalls import BUSY, DONE

SCHEMA, VERSION = "penstock-simulation", 1


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


@dataclass(frozen=True)
class Figures:
    """Sums over some runs of kernels."""

    runs: int
    commands: int
    cycles: int
    ideal: Fraction
    macs: int
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
    runs = commands = cycles = macs = 0
    ideal = Fraction(0)
    units: dict[str, dict[str, int]] = {}
    buses: dict[str, int] = {}
    moved: dict[tuple[str, str], int] = {}
    traffic: list[tuple[Traffic, int]] = []
    for kernel, times in kernels:
        simulation = kernel.simulation
        runs += times
        commands += times * len(simulation.commands)
        cycles += times * simulation.cycles
        macs += times * simulation.macs
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
    ordered = {unit: dict(sorted(sums.items(), key=_rank)) for unit, sums in units.items()}
    return Figures(runs, commands, cycles, ideal, macs, ordered, buses, moved, _sum(traffic))


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


def _sum(traffic: list[tuple[Traffic, int]]) -> Traffic:
    def total(name: str) -> int | None:
        values = [(getattr(each, name), times) for each, times in traffic]
        return None if any(value is None for value, _ in values) else sum(value * times for value, times in values)

    return Traffic(
        sum(each.bytes * times for each, times in traffic),
        total("compulsory"),
        total("square_root"),
        all(each.square_root_is_bound for each, _ in traffic),
        total("best_tiling"),
        total("least"),
    )


def peak_share(figures: Figures, peak: Fraction) -> float | None:
    """The multiply-accumulates, of what the machine could do in the time; None for a machine that does none."""
    return float(figures.macs / (peak * figures.cycles)) if peak and figures.cycles else None


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
    return {
        "runs": figures.runs,
        "commands": figures.commands,
        "cycles": figures.cycles,
        "ideal_cycles": float(figures.ideal),
        "ratio": figures.ratio,
        "macs": figures.macs,
        "peak_share": peak_share(figures, peak),
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
            *("kernel", "runs", "commands", "cycles", "ideal_cycles", "ratio", "macs", "peak_share"),
            *("bytes", "compulsory", "square_root", "square_root_is_bound", "best_tiling", "bytes_ratio"),
            *(f"{source} to {dest}" for source, dest in total.moved),
            *(f"bus {bus} busy" for bus in total.buses),
            *(f"{unit} {cause}" for unit, cause in causes),
        ]
    )
    for name, runs, figures in rows:
        share, traffic = peak_share(figures, peak), figures.traffic
        head = (name, runs, figures.commands, figures.cycles, f"{float(figures.ideal):g}", f"{figures.ratio:.6f}")
        writer.writerow(
            [
                *(*head, figures.macs, "" if share is None else f"{share:.6f}", traffic.bytes),
                *("" if n is None else n for n in (traffic.compulsory, traffic.square_root)),
                int(traffic.square_root_is_bound) if traffic.square_root is not None else "",
                "" if traffic.best_tiling is None else traffic.best_tiling,
                "" if traffic.ratio is None else f"{traffic.ratio:.6f}",
                *(figures.moved.get(pair, 0) for pair in total.moved),
                *(figures.buses.get(bus, 0) for bus in total.buses),
                *(figures.units.get(unit, {}).get(cause, 0) for unit, cause in causes),
            ]
        )
    return out.getvalue()
