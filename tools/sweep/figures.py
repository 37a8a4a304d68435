# SPDX-License-Identifier: Apache-2.0
"""What a run came to, in figures: those of the compiler's report and of the simulator, by the names that they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

    from xdsl.dialects.builtin import ModuleOp

    from penstock.dialects.remembered import Remembered
    from penstock.runtime.simulator.workloads import Workloads

Figure = int | float | None
"""None for what is not known, or does not exist."""

PEAK, BOUND = "peak.", "bound."
"""Before the name of a scope, or of the arena: what the kernel that fills it most takes, and its bound."""
ENERGY = "energy."
"""Before the name of a scope, of a bus, and before `operations` and `leakage`: the picojoules that it takes."""
ON_MACHINE = "machine_macs"
"""How many of the multiply-accumulates the machine computes: runs that differ in it do not compute the same there."""
CPU = "cpu_s"
"""CPU seconds of the passes of a run. It is measured, and so the one figure that is not the same twice."""
METRICS = ("cycles", "bytes", "compulsory", "peak_share", ON_MACHINE, PEAK, BOUND)
"""The figures of a table that names none; of those that end in a dot, all that begin so."""


def figures_of(module: ModuleOp, workloads: Workloads, remembered: Remembered) -> dict[str, Figure]:
    """
    The figures of a lowered program; those of the machine where something runs there. Kernels that are `remembered`
    are not simulated again.

    Raises UserError for a memory plan that is not valid, and for kernels that are not proved free of hazards.
    """
    # A table of what is known is made without the simulator.
    from penstock.passes.analysis.kernels import machine_kernels
    from penstock.runtime.levels import level_of
    from penstock.runtime.report import report_on
    from penstock.runtime.simulator.figures import peak_shares, simulated_total

    report = report_on(module)
    found: dict[str, Figure] = {}
    for use in [*(report.scopes or ()), *([report.arena] if report.arena else [])]:
        found[f"{PEAK}{use.scope}"] = use.peak
        found[f"{BOUND}{use.scope}"] = use.lower_bound
    found |= {
        "kernels": report.kernels,
        "machine_kernels": report.machine_kernels,
        "macs": report.macs,
        ON_MACHINE: report.machine_macs,
        "crossing_bytes": report.crossing_bytes,
    }
    target, kernels = machine_kernels(module)
    if level_of(module) != "accel" or target is None or not kernels:
        return found
    total = simulated_total(module, workloads, remembered)
    shares = peak_shares(total, target.peak_macs_per_cycle())
    return {
        **found,
        "commands": total.commands,
        "cycles": total.cycles,
        "ideal_cycles": float(total.ideal),
        "ratio": total.ratio,
        "useful_macs": total.macs.useful,
        "redundant_macs": total.macs.redundant,
        "padded_macs": total.macs.padded,
        **dict(zip(("peak_share", "redundant_share", "padded_share"), shares, strict=True)),
        "bytes": total.traffic.bytes,
        "compulsory": total.traffic.compulsory,
        "square_root": total.traffic.square_root,
        "best_tiling": total.traffic.best_tiling,
        "bytes_ratio": total.traffic.ratio,
        "energy": _whole(total.picojoules),
        "edp": _whole(total.delayed_energy),
        **{f"{ENERGY}{level}": _whole(energy) for level, energy in total.energy_levels.items()},
    }


def _whole(picojoules: Fraction | None) -> int | None:
    return None if picojoules is None else round(picojoules)
