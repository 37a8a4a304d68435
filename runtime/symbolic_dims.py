"""The dimensions of a program whose sizes are not known."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from penstock.dialects.diagnostics import UserError
from penstock.passes.graph.bind_dims import symbolic_dims
from penstock.runtime.levels import level_of


def open_dims(module: ModuleOp) -> dict[str, list[str]]:
    """The names of the dimensions that are not bound at graph level, each with where it is."""
    found: dict[str, list[str]] = {}
    if level_of(module) != "graph":
        return found
    for function in module.body.block.ops:
        if isinstance(function, FuncOp):
            for name, places in symbolic_dims(function).items():
                found.setdefault(name, []).extend(places)
    return found


def require_bound(module: ModuleOp, place: str | None = None) -> None:
    """Raise UserError, at `place` and with the way to bind them, if there are symbolic dimensions."""
    if not (symbols := open_dims(module)):
        return
    plural = "s are" if len(symbols) > 1 else " is"
    words = ", ".join(f'"{name}"' for name in symbols)
    raise UserError(
        f"the symbolic dimension{plural} not bound: {words}",
        loc=place,
        notes=[
            *(f'"{name}" is {", ".join(places)}' for name, places in symbols.items()),
            "bind it: " + " ".join(f"--dim {name}=SIZE" for name in symbols),
        ],
    )
