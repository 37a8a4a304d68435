# SPDX-License-Identifier: Apache-2.0
"""Barriers among iterations that run at once, in a whole program."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.schedule.primitives.insert_barriers import insert_barriers


class InsertBarriersPass(ModulePass):
    """
    Put the barriers into every `scf.forall` that its iterations need, and take out those that they do not.

    Works at the loop level, as `schedule.insert_barriers` does on one loop; see there for an example. Raises UserError,
    located, where iterations race whatever barriers there are, and where blocks would have to wait for each other.
    """

    name = "insert-barriers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for each in list(op.walk(region_first=True)):
            if isinstance(each, ForallOp):
                insert_barriers(each)
