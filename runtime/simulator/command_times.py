"""When each command did what, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.passes.analysis.commands.program import Command, Program
from penstock.runtime.simulator.layout import Layout


@dataclass(frozen=True)
class Cause:
    """What a command waited for last before it started."""

    kind: str
    """`queue` (empty), `token` (of a unit), `barrier`, or empty: it waited for nothing but its own unit."""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


FREE = Cause("")
"""Of a command that waited for nothing but its own unit."""


@dataclass(eq=False)
class CommandTimes:
    """The times of every command; -1 for what did not come to pass, which is so only where there is a fault."""

    layout: Layout
    starts: list[int]
    requests: list[int]
    """When a transfer asked for its bus; of other commands the start."""
    grants: list[int]
    """When it got the bus; of other commands the start."""
    finishes: list[int]
    """When its work was done; its pushes begin."""
    ends: list[int]
    """When its last push was, too: it is complete."""
    causes: list[Cause]
    """What each command waited for last."""

    @property
    def program(self) -> Program:
        return self.layout.program

    @property
    def commands(self) -> Sequence[Command]:
        return self.layout.program.commands

    @property
    def last(self) -> int:
        """The largest end."""
        return max(self.ends, default=0)
