# SPDX-License-Identifier: Apache-2.0
"""What `penstock simulate` prints: tables of cycles, of units and of bytes, and one of energy where that is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from penstock.runtime.simulator.figures import Figures, host_rows, peak_shares, rows_of
from penstock.runtime.simulator.program import ProgramTime
from penstock.runtime.simulator.run import ProgramRun
from penstock.runtime.simulator.timeline import BUSY, DONE
from penstock.tools.text import aligned

_UNKNOWN = "-"


def report(run: ProgramRun) -> Iterator[str]:
    """The lines of the report: a row for each kernel, of one run of it, and one for the total of all runs."""
    rows = rows_of(run)
    total = rows[-1][-1]
    if total.runs == 1:
        rows.pop()
    peak = run.target.peak_macs_per_cycle()
    yield _headline(run, total)
    yield ""
    yield from aligned([_CYCLES, *(_cycles(*row, peak) for row in rows)], left=(0,))
    yield ""
    yield from aligned([_UNITS, *(line for name, _, figures in rows for line in _units(name, figures))], left=(0, 1, 5))
    yield ""
    yield from aligned([_BYTES, *(line for name, _, figures in rows for line in _bytes(name, figures))], left=(0, 1))
    if run.time is not None and run.time.host:
        yield ""
        yield from aligned([_HOST, *_host_rows(run, run.time)], left=(0,))
    if total.energy is not None:
        yield ""
        yield from aligned(list(_energy_rows(rows, total)), left=(0,))
    if any(
        figures.traffic.square_root is not None and not figures.traffic.square_root_is_bound for _, _, figures in rows
    ):
        yield "~ an estimate, which is no bound"


def _headline(run: ProgramRun, total: Figures) -> str:
    machine = run.target
    microseconds = Fraction(run.cycles, machine.frequency_mhz)
    time = f"{float(microseconds / 1000):,.3f} ms at {machine.frequency_mhz:,} MHz"
    runs = f"{total.runs:,} run{'s' * (total.runs != 1)} of {len(run.kernels):,} kernel{'s' * (len(run.kernels) != 1)}"
    line = f"{machine.machine_name}: {run.cycles:,} cycles, {time}, in {runs}"
    if run.time is not None and run.time.host:
        line += f"\n{_with_host(run, run.time)}"
    elif run.host:
        names = ", ".join(f"@{name}" + (f" x {calls:,}" if calls > 1 else "") for name, calls in run.host)
        line += f"\nnot simulated, on the host: {names}"
    return line


def _with_host(run: ProgramRun, time: ProgramTime) -> str:
    """The whole program: what the host and the machine take of it, and what no machine would change."""
    processor = run.target.processor()
    name = processor.sym_name.data if processor is not None else "the host"
    share = time.host / time.serial
    return (
        f"with {name}, the host: {time.serial:,} cycles, {share:.1%} on the host and {1 - share:.1%} on the machine; "
        f"side by side {time.side_by_side:,}; however fast the machine, at most {time.serial / time.host:.2f} x as fast"
    )


_HOST = ("host", "runs", "cycles", "of all")


def _host_rows(run: ProgramRun, time: ProgramTime) -> Iterator[tuple[str, ...]]:
    for name, runs, cycles in host_rows(run):
        yield f"@{name}", f"{runs:,}", _number(cycles), f"{(cycles or 0) / time.serial:.1%}"


_CYCLES = ("kernel", "runs", "commands", "cycles", "T*", "T / T*", "of peak", "redundant", "padded")


def _cycles(name: str, runs: int, figures: Figures, peak: Fraction) -> tuple[str, ...]:
    return (
        name,
        f"{runs:,}",
        f"{figures.commands:,}",
        f"{figures.cycles:,}",
        f"{float(figures.ideal):,.0f}",
        f"{figures.ratio:.3f}",
        *(_UNKNOWN if share is None else f"{share:.1%}" for share in peak_shares(figures, peak)),
    )


_UNITS = ("kernel", "unit", "busy", "stalled", "done", "by cause")


def _units(name: str, figures: Figures) -> Iterator[tuple[str, ...]]:
    for number, (unit, sums) in enumerate(figures.units.items()):
        causes = sorted(((c, n) for c, n in sums.items() if c not in (BUSY, DONE)), key=lambda each: -each[1])
        stalled = sum(count for _, count in causes)
        parts = (sums.get(BUSY, 0), stalled, sums.get(DONE, 0))
        shares = [f"{count / figures.cycles:.1%}" if figures.cycles else _UNKNOWN for count in parts]
        yield name if not number else "", unit, *shares, ", ".join(f"{cause} {count:,}" for cause, count in causes)
    for bus, busy in figures.buses.items():
        yield "", f"bus {bus}", f"{busy / figures.cycles:.1%}" if figures.cycles else _UNKNOWN, "", "", ""


_BYTES = ("kernel", "from and to", "bytes", "compulsory", "square root", "best tiling", "ratio")


def _bytes(name: str, figures: Figures) -> Iterator[tuple[str, ...]]:
    traffic = figures.traffic
    root = _number(traffic.square_root)
    if traffic.square_root is not None and not traffic.square_root_is_bound:
        root = f"~{root}"
    ratio = _UNKNOWN if traffic.ratio is None else f"{traffic.ratio:.3f}"
    best = _number(traffic.best_tiling)
    yield name, "off chip", f"{traffic.bytes:,}", _number(traffic.compulsory), root, best, ratio
    for (source, dest), size in figures.moved.items():
        yield "", f"{source} to {dest}", f"{size:,}", "", "", "", ""


def _energy_rows(rows: Sequence[tuple[str, int, Figures]], total: Figures) -> Iterator[tuple[str, ...]]:
    """The energy of each kernel by level, and each level's share of the total; in nanojoules."""
    levels = list(total.energy_levels)
    yield "kernel", "energy, nJ", *levels
    for name, _, figures in rows:
        parts = [figures.energy_levels.get(level, Fraction(0)) for level in levels]
        yield name, *(f"{float(each / 1000):,.1f}" for each in (figures.picojoules or Fraction(0), *parts))
    whole = total.picojoules or Fraction(1)
    yield "share", "100.0%", *(f"{float(each / whole):.1%}" for each in total.energy_levels.values())


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"
