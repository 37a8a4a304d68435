"""The context of a compilation: the registered dialects, as xDSL's, and the weights beside the IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.universe import Universe

from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore

WEIGHTS_ATTRIBUTE = "graph.weights"
"""The attribute of a module that names its weights file, relative to the file of the IR."""


@dataclass
class PenstockContext(Context):
    """A `Context` that also holds the weight store of the module it compiles."""

    weights: WeightStore = field(default_factory=WeightStore)


def make_context(*, allow_unregistered: bool = False) -> PenstockContext:
    """A context with the dialects of xDSL, of Penstock and of every installed plug-in, loaded on first use."""
    ctx = PenstockContext(allow_unregistered)
    for name, factory in Universe.get_multiverse().all_dialects.items():
        ctx.register_dialect(name, factory)
    return ctx


def store_of(ctx: Context) -> WeightStore:
    """The weight store of `ctx`; raises UserError for a driver that does not carry one."""
    if not isinstance(ctx, PenstockContext):
        raise UserError(
            "this pass reads weights, which the running driver does not carry",
            notes=["run it through penstock-opt, or with a context from make_context()"],
        )
    return ctx.weights


def bind_weights(ctx: PenstockContext, module: ModuleOp, directory: Path) -> None:
    """Open the weights file that `module` names, relative to `directory`; without one the store is empty."""
    named = module.attributes.get(WEIGHTS_ATTRIBUTE)
    if isinstance(named, StringAttr):
        ctx.weights = WeightStore.open(directory / named.data)
    else:
        ctx.weights = WeightStore()
