# SPDX-License-Identifier: Apache-2.0
"""
Quantises the digits network to 8-bit integers and shows what that costs, and where it runs.

Both schemes are calibrated on images that the network was trained on, and recognise the images held out:

- `power-of-two`: integers throughout, scales that are powers of two, so that a layer ends in a shift;
- `qdq`: quantisation around operators in float, of which `integer-arithmetic` makes products of integers.

Each runs on the interpreter at graph level, as C of the host, and as C of a machine with units for 8-bit integers
(gemmini by default) down to accel level; all must agree, bit for bit. Run it as `python examples/digits/int8.py`; the
status is 1 if a level disagrees or an accuracy falls by a point or more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.passes.graph.quantize import Scheme

Array = NDArray[Any]

HERE = Path(__file__).parent
WANTED_LOSS = 0.01
"""The accuracy may fall by less than this."""


def quantized(scheme: Scheme) -> penstock.QuantizedModel:
    """The digits network in 8-bit integers."""
    with np.load(HERE / "calibration_images.npz") as file:
        images = file["image"]
    return penstock.quantize(HERE / "digits.onnx", images, scheme=scheme)


def held_out() -> tuple[Array, Array]:
    """The images f32 [360, 1, 8, 8] that training never saw, and their labels."""
    with np.load(HERE / "test_images.npz") as file:
        return file["images"], file["labels"]


def scores(run: Callable[[Array], list[Array]], images: Array) -> Array:
    """The scores of each image."""
    return np.concatenate([run(image[None])[0] for image in images])


def demonstrate(machine: str, schemes: tuple[Scheme, ...]) -> bool:
    """Print the accuracies and what was quantised; whether all is well."""
    images, labels = held_out()

    def accuracy(found: Array) -> float:
        return float((found.argmax(1) == labels).mean())

    exact = accuracy(scores(penstock.compile(HERE / "digits.onnx"), images))
    print(f"float: {exact:.2%} of {len(labels)} images")
    well = True
    for scheme in schemes:
        model = quantized(scheme)
        print(f"\n{scheme}")
        print("\n".join(f"  {line}" for line in model.lines()))
        expected = scores(model.integer(), images)
        print(f"  graph level, interpreted: {accuracy(expected):.2%}")
        well &= exact - accuracy(expected) < WANTED_LOSS
        for name, target in (("the host", None), (machine, machine)):
            found = scores(model.compile(target), images)
            equal = int((found == expected).all(axis=1).sum())
            print(f"  C for {name}: {accuracy(found):.2%}, {equal} of {len(images)} as interpreted")
            well &= equal == len(images)
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description="run the digits network in 8-bit integers")
    parser.add_argument("--machine", default="gemmini", help="the name of a machine, or the path of its file")
    parser.add_argument("--scheme", choices=get_args(Scheme), help="one scheme; all but symmetric by default")
    args = parser.parse_args()
    try:
        well = demonstrate(args.machine, (args.scheme,) if args.scheme else ("power-of-two", "qdq"))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.status
    print("\nall agree" if well else "\na level disagrees, or the accuracy falls too far")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
