# SPDX-License-Identifier: Apache-2.0
"""The dimensions of a program whose sizes are not known."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from penstock.dialects.diagnostics import UserError
from penstock.dialects.functions import bounds_of
from penstock.passes.graph.bind_dims import symbolic_dims
from penstock.runtime.levels import level_of


def open_dims(module: ModuleOp) -> dict[str, list[str]]:
    """The names of the dimensions that have neither a size nor a bound at graph level, each with where it is."""
    found: dict[str, list[str]] = {}
    if level_of(module) != "graph":
        return found
    for function in module.body.block.ops:
        if isinstance(function, FuncOp):
            bounds = bounds_of(function)
            for name, places in symbolic_dims(function).items():
                if name in bounds:
                    continue
                found.setdefault(name, []).extend(places)
    return found


def bounded_dims(module: ModuleOp) -> dict[str, int]:
    """The dimensions of a module at graph level that only a run knows the size of, each with its bound."""
    if level_of(module) != "graph":
        return {}
    functions = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    return {name: most for function in functions for name, most in bounds_of(function).items()}


def require_bound(module: ModuleOp, place: str | None = None, *, takes_bounds: bool = False) -> None:
    """
    Raise UserError, at `place` and with the way to bind them, if there are symbolic dimensions, but for those that have
    a bound where the caller `takes_bounds`.
    """
    symbols = open_dims(module)
    if not symbols and not takes_bounds and (bounds := bounded_dims(module)):
        words = ", ".join(f'"{name}"' for name in bounds)
        notes = ["bind it: " + " ".join(f"--dim {name}=SIZE" for name in bounds)]
        raise UserError(f"a number is needed for what only a run knows the size of: {words}", loc=place, notes=notes)
    if not symbols:
        return
    plural = "s are" if len(symbols) > 1 else " is"
    words = ", ".join(f'"{name}"' for name in symbols)
    raise UserError(
        f"the symbolic dimension{plural} not bound: {words}",
        loc=place,
        notes=[
            *(f'"{name}" is {", ".join(places)}' for name, places in symbols.items()),
            "bind it: " + " ".join(f"--dim {name}=SIZE" for name in symbols),
            "or say how large it is at most: " + " ".join(f"--dim '{name}<=SIZE'" for name in symbols),
        ],
    )
