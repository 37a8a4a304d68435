# SPDX-License-Identifier: Apache-2.0
"""The context of a compilation: the registered dialects, as xDSL's, and the weights beside the IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr

from penstock.dialects.diagnostics import UserError
from penstock.dialects.plugins import factories
from penstock.dialects.upstream import AMENDED

if TYPE_CHECKING:
    from penstock.dialects.remembered import Remembered
    from penstock.dialects.schedule import Schedules
    from penstock.dialects.verifier import Verifier
    from penstock.dialects.weights import WeightStore

WEIGHTS_ATTRIBUTE = "graph.weights"
"""The attribute of a module that names its weights file, relative to the file of the IR."""


@dataclass
class PenstockContext(Context):
    """A `Context` that also holds the weight store of the module it compiles."""

    verifier: Verifier | None = field(default=None, init=False)
    """Of the module as it was imported; what verifies the module next takes it over, and looks at what has changed."""
    remembered: Remembered | None = field(default=None, init=False)
    """What passes have made of kernels of programs that are like this one, if anybody keeps it."""
    _weights: WeightStore | None = field(default=None, init=False)
    _schedules: Schedules | None = field(default=None, init=False)

    @property
    def weights(self) -> WeightStore:
        """The weights of the module; an empty store until one is bound."""
        if self._weights is None:
            # Most runs of penstock-opt see no weights, and importing NumPy is a quarter of their start-up.
            from penstock.dialects.weights import WeightStore

            self._weights = WeightStore()
        return self._weights

    @weights.setter
    def weights(self, store: WeightStore) -> None:
        self._weights = store

    @property
    def schedules(self) -> Schedules:
        """The schedules of the module's kernels: those that are given, and those that have been applied."""
        if self._schedules is None:
            from penstock.dialects.schedule import Schedules

            self._schedules = Schedules()
        return self._schedules

    @property
    def has_weights(self) -> bool:
        """Whether anybody has asked for the weights, or bound them."""
        return self._weights is not None


def make_context(*, allow_unregistered: bool = False) -> PenstockContext:
    """A context with the dialects of xDSL, of Penstock and of every installed plug-in, loaded on first use."""
    ctx = PenstockContext(allow_unregistered)
    for name, factory in factories("all_dialects").items():
        ctx.register_dialect(name, AMENDED.get(name, factory))
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
    from penstock.dialects.weights import WeightStore

    named = module.attributes.get(WEIGHTS_ATTRIBUTE)
    ctx.weights = WeightStore.open(directory / named.data) if isinstance(named, StringAttr) else WeightStore()
