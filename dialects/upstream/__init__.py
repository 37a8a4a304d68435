# SPDX-License-Identifier: Apache-2.0
"""
What xDSL 0.74 lacks of MLIR's own dialects and text, a file for each dialect or kind of attribute.

Importing this package amends xDSL's classes, since everything that reads and prints IR uses them: our parser, xDSL's
own driver, its targets, and `str` of any attribute. `AMENDED` has the dialects that are amended when they are loaded.
A file goes when xDSL does what it does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from xdsl.ir import Dialect

from penstock.dialects.upstream import dense, elements, floats, integers, locations, semi_affine, unregistered

__all__ = ["AMENDED", "dense", "elements", "floats", "integers", "locations", "semi_affine", "unregistered"]


def _amended(name: str) -> Dialect:
    return import_module(f"{__name__}.{name}").DIALECT


AMENDED: dict[str, Callable[[], Dialect]] = {
    name: partial(_amended, name)
    for name in (
        "affine",
        "arith",
        "bufferization",
        "func",
        "gpu",
        "linalg",
        "memref",
        "scf",
        "tensor",
        "transform",
        "vector",
    )
}
"""Factories of the dialects of xDSL that have, or read, here what they lack: the `DIALECT` of the file of that name."""
