"""The hazards of kernels, in the way that is quickest for each."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.commands.hazards.check import MOST, check
from penstock.passes.analysis.commands.hazards.cuts import commands_of
from penstock.passes.analysis.commands.hazards.far import UndecidedError
from penstock.passes.analysis.commands.hazards.hazard import Hazard
from penstock.passes.analysis.commands.hazards.induction import decide
from penstock.passes.analysis.commands.program import Program, View
from penstock.passes.analysis.commands.trace import trace

LIMIT = 1_000_000
"""How many commands are gone through one by one at most."""
FEW = 10_000
"""Up to so many commands going through all of them is the quickest."""


def check_kernel(
    function: func.FuncOp,
    target: TargetOp,
    *,
    most: int = MOST,
    limit: int = LIMIT,
    arguments: Sequence[View | None] | None = None,
) -> tuple[list[Hazard], Program]:
    """
    The hazards of a kernel at the accelerator level, and its commands, or those that stand for all others.

    Exact: a kernel of few commands is gone through, of long loops as many rounds as are needed by induction, and where
    that does not settle all commands. Raises UserError, located, if these are more than `limit`, and as `trace` does.
    """
    commands = commands_of(function)
    if commands > FEW:
        try:
            return decide(function, target, most=most, arguments=arguments)
        except UndecidedError:
            if commands > limit:
                raise UserError(
                    f"whether @{function.sym_name.data} is free of hazards cannot be decided: it has {commands:,} "
                    f"commands, of which {limit:,} can be looked at, and its loops are not alike from round to round",
                    loc=location_of(function),
                    notes=["indices that are sums of multiples of the loops' counters, and slots of rings, are alike"],
                    status=UNSUPPORTED,
                ) from None
    program = trace(function, target, limit=limit, arguments=arguments)
    return check(program, most=most), program
