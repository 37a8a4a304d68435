# SPDX-License-Identifier: Apache-2.0
"""A small network on a machine with scratchpads: compile it, look at it, run it."""

import marimo

app = marimo.App(width="full")


@app.cell
def _():
    from pathlib import Path

    import marimo as mo
    import numpy as np

    import penstock

    digits = Path(__file__).parents[2] / "examples" / "digits"
    mo.md("# First steps")
    return digits, mo, np, penstock


@app.cell
def _(digits, penstock):
    # An engine shows its figures, what its units do, and what lies where.
    engine = penstock.compile(digits / "digits.onnx", machine="gemmini-fp32", backend="interpreter")
    engine
    return (engine,)


@app.cell
def _(digits, engine, np):
    with np.load(digits / "test_images.npz") as file:
        images, labels = file["images"][:4], file["labels"][:4]
    found = [int(engine(image[None])[0].argmax()) for image in images]
    right = sum(one == other for one, other in zip(found, labels.tolist(), strict=True))
    return found, right


@app.cell
def _(found, mo, right):
    mo.md(f"The first four digits are {found}: {right} of 4 are right.")
    return


if __name__ == "__main__":
    app.run()
