"""Whether a program is free of hazards."""

from __future__ import annotations

from penstock.passes.analysis.commands.hazards.hazard import Hazard
from penstock.passes.analysis.commands.hazards.network import run
from penstock.passes.analysis.commands.hazards.races import Races
from penstock.passes.analysis.commands.program import Program

MOST = 100
"""How many hazards are named at most, where nobody says otherwise."""


def check(program: Program, *, most: int = MOST) -> list[Hazard]:
    """
    The hazards of a program: none means that every timing of it computes the same.

    Exact: units are in order and meet in tokens, a Kahn network. Deadlocks and the final counts of queues do not depend
    on timing and are found by one run; a queue of the kind "error" must have room for a push in every timing; and of
    two accesses to a common byte, one of them a write, one must be complete before the other starts, in every timing.
    A transfer touches its bytes from its start to its end. Off-chip storages count as scopes do.

    Raises nothing. Named are at most `most` hazards, and each pair of ops once; after a deadlock nothing else is.
    """
    flow = run(program)
    if len(flow.order) < len(program.commands):
        return flow.hazards[:most]
    return (flow.hazards + Races(program, flow, most).run())[:most]
