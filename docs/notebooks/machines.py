# SPDX-License-Identifier: Apache-2.0
"""What if the machine were another: a number of it changed, and what that does to cycles and bytes."""

import marimo

app = marimo.App(width="full")


@app.cell
def _():
    from pathlib import Path

    import marimo as mo

    import penstock

    model = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    return mo, model, penstock


@app.cell
def _(model, penstock):
    # The rate of the bus, in bytes a cycle.
    runs = {}
    for rate in (4, 8, 16, 32):
        engine = penstock.compile(
            model,
            machine="gemmini-fp32",
            machine_options={"bus.sys.rate": [rate, 1]},
            backend="interpreter",
        )
        runs[rate] = engine.provenance.run
    return (runs,)


@app.cell
def _(mo, runs):
    rows = [
        f"| {rate} | {run.cycles:,} | {sum(kernel.traffic.bytes for kernel in run.kernels):,} |"
        for rate, run in runs.items()
    ]
    mo.md("\n".join(["| bytes a cycle | cycles | bytes off chip |", "|---|---|---|", *rows]))
    return


@app.cell
def _(runs):
    # A run shows what each unit did and why it waited.
    runs[4]
    return


if __name__ == "__main__":
    app.run()
