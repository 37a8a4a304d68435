"""A part of the time of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.runtime.simulator.run import KernelRun, ProgramRun


@dataclass(frozen=True)
class Window:
    """The cycles in [first, last) of a run."""

    first: int
    last: int

    def meets(self, begin: int, end: int) -> bool:
        """Whether it has a cycle of [begin, end), or the moment `begin` where that is empty."""
        return begin < self.last and end > self.first if end > begin else self.first <= begin < self.last


def calls(run: ProgramRun) -> Iterator[tuple[int, KernelRun]]:
    """The calls on the machine, each with the cycle in which it begins: when the one before is done."""
    begin = 0
    for number in run.order:
        yield begin, run.kernels[number]
        begin += run.kernels[number].simulation.cycles
