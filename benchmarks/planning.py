# SPDX-License-Identifier: Apache-2.0
"""
Memory planning: our planners beside references, on problems of networks, of compiled programs, published and drawn.

    python -m benchmarks.planning [--quick] [--only SECTION] [--seeds N] [--minimalloc-binary PROGRAM]

Sections: inference (36 problems of nine networks), extracted (of compiled programs), published (minimalloc's A-K),
perturbed (A-K with changes), validator (how long a plan takes to check), scale (many buffers), packings (perfect ones
of 500), heuristics (a tenth of a second each), families (drawn at random, and training steps), ablation (the exact
search, each rule left out in turn), anytime.
Seconds are CPU seconds; limits are wall time, so have nothing else run beside.

"Bound" is the most bytes alive at once, or the optimum where the construction gives it: a peak that equals it is proved
to be the least. Figures called recorded were measured once elsewhere, and are no rivals of seconds measured here;
minimalloc's own program is run beside ours where its path is given.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

# Read by the BLAS that NumPy brings when it is first imported.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.instances import DRAWN, Family, Instance
from benchmarks.instances.published import ONE_PASS, RECORDED, published
from benchmarks.measure import say
from benchmarks.planning_robustness import packings, perturbed_instances, scale, validator
from benchmarks.planning_runs import (
    Attempt,
    Settings,
    attempt,
    attempt_by,
    available,
    best,
    cell_text,
    geomean,
    is_plain,
    minimalloc,
    text_table,
)
from penstock.passes.planning.problem import Limits, Outcome, Problem

ONE_PASS_PLANNERS = tuple(
    f"{fit}-fit-by-{order}" for fit in ("first", "best") for order in ("size", "start", "conflicts", "urgency", "area")
)
COLORS = ("color-by-size", "color-by-start", "color-by-conflicts")
MINUTE = 60.0


def inference(settings: Settings) -> None:
    """Table 1: the peak is the bound on 36 of 36, in less than 0.2 s each."""
    from benchmarks.instances import networks

    rows: list[Sequence[object]] = []
    at_bound, slowest, count = 0, 0.0, 0
    for instance in networks.inference(settings.quick):
        found = attempt(instance, settings.planner, Limits(seconds=settings.seconds))
        beside = attempt(instance, "best-fit-by-start", Limits())
        upstream = None if beside is None else beside.ratio
        count += 1
        if found is None:
            rows.append((instance.name, len(instance.problem.buffers), None, instance.bound, None, None, upstream))
            continue
        at_bound, slowest = at_bound + found.optimal, max(slowest, found.seconds)
        buffers = len(instance.problem.buffers)
        rows.append((instance.name, buffers, found.height, found.bound, found.ratio, found.seconds, upstream))
    head = ("network", "buffers", "peak", "bound", "ratio", "s", "start, best fit")
    print(text_table(f"Networks, whole tensors: {settings.planner}", head, rows))
    print(f"at the bound: {at_bound} of {count} (36 of 36 aimed at); slowest {slowest:.3f} s (0.2 s; better 0.05 s)")


def extracted(settings: Settings) -> None:
    """Table 2: compiled programs."""
    from benchmarks.instances.extracted import kernels, programs

    rows: list[Sequence[object]] = []
    rest: list[str] = []
    for family in (kernels, programs):
        instances = list(family(settings.quick))
        attempts = [attempt(each, settings.planner, Limits(seconds=settings.seconds)) for each in instances]
        found = [each for each in attempts if each is not None]
        upstream = [each for one in instances if (each := attempt(one, "best-fit-by-start", Limits())) is not None]
        buffers = [len(each.problem.buffers) for each in instances]
        rows.append(
            (
                family.__name__, len(instances), f"{min(buffers)}-{max(buffers)}", sum(e.optimal for e in found),
                geomean(e.ratio for e in found), max((e.ratio for e in found), default=None),
                max((e.seconds for e in found), default=None), sum(e.optimal for e in upstream),
                geomean(e.ratio for e in upstream), max((e.ratio for e in upstream), default=None),
            )
        )  # fmt: skip
        rest += [
            f"  {one.name}: {each.height} of {each.bound}, {each.ratio:.4f}"
            for one, each in zip(instances, attempts, strict=True)
            if each is not None and not each.optimal
        ]
    head = (
        "compiled programs", "problems", "buffers", "at bound", "ratio", "worst", "slowest, s", "start, best fit:",
        "ratio", "worst",
    )  # fmt: skip
    print(text_table(f"Tiled, multi-buffered programs: {settings.planner}, {settings.seconds:g} s", head, rows))
    print("\n".join(["not at the bound:", *rest]) if rest else "all at the bound")


def at_capacity(settings: Settings) -> None:
    """Table 3: A-K at 1 MiB, and what is left below it."""
    rows: list[Sequence[object]] = []
    limit = 5.0 if settings.quick else MINUTE
    ours: list[float] = []
    theirs: list[float] = []
    solved = 0
    instances = list(published(settings.folder))
    if not instances:
        return
    for instance in instances:
        capacity = instance.problem.capacity
        assert capacity is not None
        times: list[float] = []
        cells: list[object] = []
        drawn: list[float] = []
        for seed in range(settings.seeds):
            limits = Limits(seconds=limit, seed=seed, good_enough=capacity)
            found = attempt_by(instance, _without_order, limits, "exact, all orders drawn")
            drawn.append(found.seconds if found is not None and found.height <= capacity else math.inf)
            found = attempt(instance, settings.planner, limits)
            fits = found is not None and found.height <= capacity
            solved += fits
            cells.append(found.seconds if found is not None and fits else f"> {limit:g}")
            times.append(found.seconds if found is not None and fits else limit)
        ours += times
        beside: object = None
        if settings.binary is not None:
            seconds, fits = minimalloc(settings.binary, instance.problem, capacity, 2 * limit)
            theirs.append(seconds)
            beside = seconds if fits else f"> {2 * limit:g}"
        random = f"> {limit:g}" if math.inf in drawn else max(drawn)
        rows.append((instance.name, len(instance.problem.buffers), *cells, random, beside, RECORDED.get(instance.name)))
        say(f"planning: {instance.name}: {', '.join(map(cell_text, cells))}")
    last = ("geomean", None, geomean(ours), *[None] * settings.seeds, geomean(theirs) if theirs else None)
    rows.append((*last, geomean(RECORDED.values())))
    head = (
        "at capacity", "buffers", *(f"seed {seed}, s" for seed in range(settings.seeds)), "orders drawn, worst",
        "minimalloc C++, s", "(recorded)",
    )  # fmt: skip
    print(text_table(f"minimalloc's challenging instances at 1 MiB: {settings.planner}, limit {limit:g} s", head, rows))
    print(_orders())
    print(f"found: {solved} of {settings.seeds * len(instances)}; slowest {max(ours):.1f} s (60 s; better 20 s)")
    _below(settings, instances, limit)


def _without_order(problem: Problem, limits: Limits) -> Outcome:
    """The exact search alone, and every order that it follows is drawn at random."""
    from penstock.passes.planning.exact import Minimiser, Switches

    return Minimiser(problem, limits, Switches(orders=False)).run()


def _orders() -> str:
    """The orders that the exact search goes through before it draws any."""
    from penstock.passes.planning.search_orders import MEASURES, RULES

    measures = ", ".join(each.__name__ for each in MEASURES)
    rules = ", ".join(each.name.lower().replace("_", " ") for each in RULES)
    return f"orders of the exact search: by {measures}, each with sections by {rules}; then drawn at random"


def _below(settings: Settings, instances: Sequence[Instance], limit: float) -> None:
    """The least heights of those that have slack."""
    rows: list[Sequence[object]] = []
    for instance in instances:
        if instance.problem.capacity == instance.bound:
            continue
        near = instance.bound * 103 // 100
        first = attempt(instance, settings.planner, Limits(seconds=limit, good_enough=near))
        found = attempt(instance, settings.planner, Limits(seconds=limit))
        if found is not None and first is not None:
            soon = first.seconds if first.height <= near else f"> {limit:g}"
            rows.append((instance.name, instance.bound, found.bound, found.height, found.ratio, found.seconds, soon))
    head = ("least height", "most alive", "proved bound", "height", "ratio", "s", "to 1.03, s")
    print(text_table(f"C, D and J, as low as they go in {limit:g} s (C: 1.000; D, J: below 1.03)", head, rows))


def heuristics(settings: Settings) -> None:
    """Table 4: a tenth of a second each, and no search that backtracks."""
    instances = list(published(settings.folder))
    if not instances:
        return
    # What is done before the clock is looked at counts, too.
    tenth = Limits(seconds=0.08)
    columns: dict[str, Callable[[Instance], Attempt | None]] = {
        "start, best fit": lambda each: attempt(each, "best-fit-by-start", Limits()),
        "best of ten": lambda each: best(attempt(each, name, Limits()) for name in available(ONE_PASS_PLANNERS)),
        "best of colours": lambda each: best(attempt(each, name, Limits()) for name in available(COLORS)),
    }
    columns["hill climb, 0.1 s"] = lambda each: attempt(each, "hill-climb", tenth)
    columns["ejection, 0.1 s"] = lambda each: attempt(each, "ejection", tenth)
    found = [(each, {column: run(each) for column, run in columns.items()}) for each in instances]
    rows: list[Sequence[object]] = []
    for instance, attempts in found:
        ratios = [None if each is None else each.ratio for each in attempts.values()]
        rows.append((instance.name, *ratios, ONE_PASS.get(instance.name)))

    def mean(column: str) -> float:
        return geomean(each.ratio for _, attempts in found if (each := attempts[column]) is not None)

    def slowest(column: str) -> float:
        return max((each.seconds for _, attempts in found if (each := attempts[column]) is not None), default=0.0)

    rows.append(("geomean", *map(mean, columns), geomean(ONE_PASS.values())))
    rows.append(("slowest, s", *map(slowest, columns), None))
    head = ("peak / bound", *columns, "best of eight (recorded)")
    print(text_table("Heuristics alone, less than 0.1 s each (geomean 1.27; better 1.22)", head, rows))


def all_families() -> dict[str, Family]:
    """Those of the last table."""
    from benchmarks.instances import networks

    return {**DRAWN, networks.gradients.__name__: networks.gradients}


def families(settings: Settings) -> None:
    """Table 5: what was not looked at when anything was chosen."""
    names = available(("first-fit-by-size", "hill-climb", "exact", "portfolio"))
    if importlib.util.find_spec("ortools") is not None:
        names += available(("cp-sat",))
    limits = Limits(seconds=settings.seconds)
    rows: list[Sequence[object]] = []
    for name, family in all_families().items():
        if settings.families and name not in settings.families:
            continue
        instances = list(family(settings.quick))
        cells: list[object] = []
        for planner in names:
            found = [each for one in instances if (each := attempt(one, planner, limits)) is not None]
            say(f"planning: {name}: {planner}")
            cells.append(_cell(found, len(instances)))
        if settings.binary is not None:
            cells.append(_by_minimalloc(settings, instances))
        rows.append((name, len(instances), *cells))
    head = ("family", "problems", *names, *(["minimalloc C++"] if settings.binary is not None else []))
    title = f"Other families, {settings.seconds:g} s each: at the bound, geomean of peak / bound, mean seconds"
    print(text_table(title, head, rows))


def _cell(found: Sequence[Attempt], count: int) -> str | None:
    if not found:
        return None
    without = f" ({count - len(found)} without a plan)" if len(found) < count else ""
    seconds = sum(each.seconds for each in found) / len(found)
    return f"{sum(each.optimal for each in found)}  {geomean(e.ratio for e in found):.3f}  {seconds:.2f} s{without}"


def _by_minimalloc(settings: Settings, instances: Sequence[Instance]) -> str | None:
    """It decides a capacity, so it is given the bound, and there is no ratio."""
    assert settings.binary is not None
    plain = [each for each in instances if is_plain(each.problem)]
    if not plain:
        return None
    runs = [minimalloc(settings.binary, each.problem, each.bound, settings.seconds) for each in plain]
    return f"{sum(fits for _, fits in runs)}  {sum(seconds for seconds, _ in runs) / len(runs):.2f} s"


def ablation(settings: Settings) -> None:
    """What each rule of the exact search is worth."""
    from penstock.passes.planning.exact import Minimiser, Switches

    limit = 1.0 if settings.quick else 10.0
    instances = [
        *published(settings.folder),
        *(each for name in ("guillotine", "pinwheel") for each in DRAWN[name](True)),
    ]
    rows: list[Sequence[object]] = []
    for left_out in (None, *(field.name for field in fields(Switches))):
        switches = Switches() if left_out is None else Switches(**{left_out: False})
        times: list[float] = []
        solved = 0
        for instance in instances:
            goal = instance.problem.capacity or instance.bound
            found = attempt_by(
                instance,
                lambda problem, limits, given=switches: Minimiser(problem, limits, given).run(),
                Limits(seconds=limit, good_enough=goal),
                "exact",
            )
            fits = found is not None and found.height <= goal
            solved += fits
            times.append(found.seconds if found is not None and fits else limit)
        say(f"planning: without {left_out}: {solved} of {len(instances)}")
        rows.append((left_out or "(all rules)", f"{solved} of {len(instances)}", geomean(times)))
    head = ("without", "fit", "geomean, s")
    print(
        text_table(
            f"The exact search with one rule less, limit {limit:g} s, which is what the others count for", head, rows
        )
    )


def anytime(settings: Settings) -> None:
    """The peak over time, each point a run of its own from the start."""
    moments = (0.05, 0.2, 1.0) if settings.quick else (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    rows: list[Sequence[object]] = []
    for instance in published(settings.folder):
        cells: list[object] = []
        for seconds in moments:
            found = attempt(instance, settings.planner, Limits(seconds=seconds))
            cells.append(None if found is None else found.ratio)
            if found is not None and found.optimal:
                break
        rows.append((instance.name, *cells, *[""] * (len(moments) - len(cells))))
    if rows:
        head = ("peak / bound after", *(f"{seconds:g} s" for seconds in moments))
        print(text_table(f"Anytime: {settings.planner}", head, rows))


SECTIONS: dict[str, Callable[[Settings], None]] = {
    "inference": inference,
    "extracted": extracted,
    "published": at_capacity,
    "perturbed": perturbed_instances,
    "validator": validator,
    "scale": scale,
    "packings": packings,
    "heuristics": heuristics,
    "families": families,
    "ablation": ablation,
    "anytime": anytime,
}


def main() -> int:
    """Run the sections that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and small instances, and short limits")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each published instance")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="limit where there are many instances")
    parser.add_argument("--only", action="append", metavar="NAME", help=f"of {', '.join(SECTIONS)}, or a drawn family")
    parser.add_argument("--planner", default="portfolio", help="the one that is judged (default: %(default)s)")
    parser.add_argument("--minimalloc", type=Path, metavar="FOLDER", help="where A-K are")
    parser.add_argument("--minimalloc-binary", type=Path, metavar="PROGRAM", help="minimalloc's own, to run beside")
    args = parser.parse_args()
    chosen: list[str] = args.only or list(SECTIONS)
    drawn = tuple(name for name in chosen if name in all_families())
    if unknown := [name for name in chosen if name not in SECTIONS and name not in drawn]:
        parser.error(f"there is no section and no family {unknown[0]}")
    if not available([args.planner]):
        parser.error(f"there is no planner {args.planner}")
    settings = Settings(
        args.quick, args.seeds, args.seconds, args.planner, args.minimalloc, args.minimalloc_binary, drawn
    )
    for name, section in SECTIONS.items():
        if name in chosen or (name == "families" and drawn):
            section(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
