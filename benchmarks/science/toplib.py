# SPDX-License-Identifier: Apache-2.0
"""Operators of the library, as the compiler makes commands of them, against commands written by hand."""

from __future__ import annotations

from benchmarks.measure import ROOT, say
from benchmarks.planning_runs import geomean, text_table
from benchmarks.science.commands import RECIPES, fitting, product
from benchmarks.science.compiling import kernel_run, whole
from benchmarks.science.plots import Bars
from benchmarks.science.study import Found, Study


def run(study: Study, *, long: bool) -> Found:
    """The cycles of both, the hand's at its best tile and slots."""
    found, rows = Found(), list[tuple[object, ...]]()
    values = study.values
    machine, count, size = values["machine"], values["elements"], values["size"]
    ratios: dict[str, float] = {}
    for name, (file, sizes) in values["operators"].items():
        library = kernel_run(ROOT / "examples" / "operators" / f"{file}.pk", name, sizes, machine).cycles
        by_hand: dict[str, int] = {}
        for slots in values["slots"]:
            if name in RECIPES:
                for tile in fitting(RECIPES[name], values["tiles"], slots, values["capacity"]):
                    by_hand[f"{tile:,} x {slots}"] = whole(RECIPES[name].text(count, tile, slots), machine).cycles
            else:
                for height in values["rows"]:
                    by_hand[f"{height} rows x {slots}"] = whole(product(size, height, slots), machine).cycles
        best = min(by_hand, key=lambda tile: by_hand[tile])
        worst = max(by_hand.values())
        if library:
            ratios[name] = by_hand[best] / library
        ratio = f"{ratios[name]:.3f}" if library else "-"
        rows.append((name, f"{library:,}" if library else "host", f"{by_hand[best]:,}", best, f"{worst:,}", ratio))
        say(f"science: toplib: {name}: {ratio}")
    found.figures = {"mean": geomean(ratios.values()), "least": min(ratios.values())}
    head = ("operator", "library, cycles", "by hand, the best", "its tile and slots", "by hand, the worst", "ratio")
    found.tables.append(text_table(f"Operators on {machine}", head, rows))
    title = f"The operator library on {machine} against commands by hand at their best"
    found.plots["toplib"] = Bars(title, "times as fast", list(ratios), {"library": list(ratios.values())})
    return found
