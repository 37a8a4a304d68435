# SPDX-License-Identifier: Apache-2.0
"""From a byte of a scratchpad back to the node of the model that it belongs to."""

import marimo

app = marimo.App(width="full")


@app.cell
def _():
    from pathlib import Path

    import marimo as mo

    import penstock
    from penstock.passes.analysis.memory.memory_problems import plan_report

    model = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    engine = penstock.compile(model, machine="gemmini-fp32", backend="interpreter")
    return engine, mo, plan_report


@app.cell
def _(engine, plan_report):
    # The scratchpad of the kernel that fills it most.
    fullest = max((plan for plan in plan_report(engine.module) if plan.scope == "spad"), key=lambda plan: plan.peak)
    fullest
    return (fullest,)


@app.cell
def _(engine, mo):
    cycles = list(range(0, engine.provenance.run.cycles, 1000))
    rows = []
    for cycle in cycles:
        use = engine.provenance.at_byte("spad", 0x400, cycle)
        names = ", ".join(life.name for life in use.lives) or "-"
        nodes = ", ".join(dict.fromkeys(node for life in use.lives for node in life.nodes)) or "-"
        rows.append(f"| {cycle:,} | @{use.call.kernel} | {names} | {nodes} |")
    head = ["Byte 0x400 of the scratchpad:", "", "| cycle | kernel | buffer | node |", "|---|---|---|---|"]
    mo.md("\n".join([*head, *rows]))
    return (rows,)


@app.cell
def _(engine):
    # What the units did in the kernel that took longest.
    max(engine.provenance.run.kernels, key=lambda kernel: kernel.simulation.cycles)
    return


if __name__ == "__main__":
    app.run()
