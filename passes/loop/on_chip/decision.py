# SPDX-License-Identifier: Apache-2.0
"""What a strategy has decided for one scope: which accesses find their tensors there, and the bytes that this saves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.passes.loop.on_chip.places import OnChipLayout
from penstock.passes.loop.on_chip.program import Site
from penstock.passes.loop.on_chip.specialize import Resident
from penstock.passes.planning.on_chip.problem import Movement, OnChipAllocation, OnChipProblem, Tensor, movements


@dataclass
class Decision:
    """What stays in one scope."""

    scope: str
    places: dict[str, OnChipLayout]
    """Where each tensor of the problem lies, by name."""
    problem: OnChipProblem
    allocation: OnChipAllocation

    def kept(self) -> set[str]:
        """The tensors that are ever there."""
        return {run.tensor for run in self.allocation.runs}

    def residents(self) -> Iterator[tuple[Site, Resident]]:
        """The accesses that find their tensor there."""
        for name, place in self.places.items():
            steps = self.resident_steps(name)
            yield from ((site, place.residents[site]) for site in place.tensor.sites if site.step in steps)

    def resident_steps(self, name: str) -> set[int]:
        """The steps that find a tensor there."""
        return {self.tensor(name).accesses[index].step for index in self.allocation.resident(name)}

    def tensor(self, name: str) -> Tensor:
        """A tensor of the problem."""
        return next(tensor for tensor in self.problem.tensors if tensor.id == name)

    def movements(self) -> list[Movement]:
        """Everything over the edge."""
        return list(movements(self.problem, self.allocation))

    def saved(self, name: str) -> int:
        """Bytes over the edge that a tensor saves; what copies of the host move then is taken off."""
        steps, sites = self.resident_steps(name), self.places[name].tensor.sites
        copied = sum(each.bytes for each in self.movements() if each.tensor == name and each.kind != "stream")
        return sum(site.into + site.out for site in sites if site.step in steps) - copied
