# SPDX-License-Identifier: Apache-2.0
"""A planning problem by itself: planners side by side, and the map of the best plan."""

import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import marimo as mo

    from penstock.passes.planning.map_svg import svg_map
    from penstock.passes.planning.problem import Buffer, Limits, Problem, height, lower_bound
    from penstock.passes.planning.registry import solve

    return Buffer, Limits, Problem, height, lower_bound, mo, solve, svg_map


@app.cell
def _(Buffer, Problem):
    # Layers of a network: each output lives until the next layer has read it, every fourth until four layers later.
    sizes = [96, 64, 160, 48, 128, 80, 32, 112, 64, 144, 56, 96]
    problem = Problem(
        tuple(Buffer(f"%t{n}", ((n, n + (5 if n % 4 == 0 else 2)),), 64 * size) for n, size in enumerate(sizes))
    )
    return (problem,)


@app.cell
def _(Limits, height, lower_bound, mo, problem, solve):
    names = ("first-fit-by-start", "first-fit-by-size", "color-by-size", "hill-climb", "portfolio")
    plans = {name: solve(problem, name, Limits(steps=2000)).plan for name in names}
    peaks = {name: height(problem, plan) for name, plan in plans.items()}
    rows = [f"| {name} | {peak:,} | {peak / lower_bound(problem):.3f} |" for name, peak in peaks.items()]
    mo.md("\n".join(["| planner | bytes | of the lower bound |", "|---|---|---|", *rows]))
    return peaks, plans


@app.cell
def _(mo, peaks, plans, problem, svg_map):
    best = min(peaks, key=peaks.get)
    mo.Html(svg_map(problem, plans[best], f"{peaks[best]:,} bytes by {best}"))
    return (best,)


if __name__ == "__main__":
    app.run()
