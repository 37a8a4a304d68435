# SPDX-License-Identifier: Apache-2.0
"""Asking a strategy what stays in a scope: the program as its problem, and what its answer must be to be executable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from statistics import fmean

from xdsl.dialects import func
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.commands.loop_domain import iteration_domain, sum_over_loops
from penstock.passes.analysis.intrinsics import Match, match_intrinsic
from penstock.passes.analysis.memory.memory_problems import bytes_taken
from penstock.passes.loop.on_chip.decision import Decision
from penstock.passes.loop.on_chip.movers import border_filler
from penstock.passes.loop.on_chip.places import OnChipLayout, Specializer, SpecialKey, best_layout, target_has_no_way
from penstock.passes.loop.on_chip.program import ProgramUse, Site, copier
from penstock.passes.loop.on_chip.specialize import CannotReside, Resident
from penstock.passes.loop.on_chip.times import has_times, kernel_time
from penstock.passes.planning.on_chip.problem import (
    OnChipAllocation,
    OnChipProblem,
    Tensor,
    TensorAccess,
    counted,
)
from penstock.passes.planning.on_chip.registry import Options, decide
from penstock.passes.planning.on_chip.selection import cheapest
from penstock.passes.planning.problem import Limits
from penstock.passes.planning.registry import DEFAULT_PLANNER
from penstock.passes.schedule.rings import kernel_with_rings

KERNEL_LIMITS = Limits(steps=2_000)
"""How far the plan of a kernel is improved to see how much room it leaves."""

MAX_ARGUMENTS = 3
"""Arguments of a call of which every subset is planned, to see what each of them frees."""


BYTES, CYCLES = OBJECTIVES = ("bytes", "cycles")
"""What is to be few: bytes over the edge of the chip, or the modelled cycles of the kernels."""

Groups = dict[str, dict[int, Resident]]
"""What a call may find on chip: by tensor, the arguments that it is."""

Staging = dict[tuple[str, int], int]
"""By tensor and step, the bytes that a streamed access takes besides."""


@dataclass
class Chooser:
    """The choice of what stays where, one scope after the other."""

    program: ProgramUse
    made: Specializer
    strategy: str
    options: Options
    objective: str = BYTES
    fixed: dict[Site, Resident] = field(default_factory=dict[Site, Resident])
    """The accesses that find their tensor in a scope that was decided before."""
    banned: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Accesses, by tensor and step, that turned out to have to stream."""
    why: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """Why they have to."""
    offered: dict[str, OnChipLayout] = field(default_factory=dict[str, OnChipLayout])
    """For each tensor its place in the scope that would save most."""
    _peaks: dict[tuple[str, str, tuple[tuple[int, Resident], ...]], int] = field(
        default_factory=dict[tuple[str, str, tuple[tuple[int, Resident], ...]], int]
    )

    _times: dict[SpecialKey, int] = field(default_factory=dict[SpecialKey, int])

    @property
    def target(self) -> TargetOp:
        """The machine."""
        return self.program.target

    def run(self) -> list[Decision]:
        """Decide for every scope; each tensor is offered to the scope that saves most, then to the others."""
        scopes = [name for name in self.target.scopes() if not target_has_no_way(self.target, name)]
        places = {
            (tensor.name, scope): best_layout(tensor, scope, self.made)
            for tensor in self.program.tensors
            for scope in scopes
        }
        for tensor in self.program.tensors if scopes else ():
            here = [places[tensor.name, scope] for scope in scopes]
            self.offered[tensor.name] = max(here, key=lambda place: place.saved)
        left = {tensor.name: tensor for tensor in self.program.tensors}
        decisions: list[Decision] = []
        for number, scope in enumerate(scopes):
            offered: dict[str, OnChipLayout] = {}
            for name in left:
                here = places[name, scope]
                later = max((places[name, other].saved for other in scopes[number + 1 :]), default=0)
                if here.saved > 0 and here.saved >= later and self._could_gain(name, here):
                    offered[name] = here
            decision = self._decide(scope, offered)
            decisions.append(decision)
            for name in decision.kept():
                del left[name]
            self.fixed.update(decision.residents())
        return decisions

    def _could_gain(self, name: str, place: OnChipLayout) -> bool:
        """Whether a tensor would move fewer bytes in a scope without end."""
        tensor = self._tensor(name, place, {})
        return cheapest(tensor)[0] < sum(tensor.streamed(index) for index in range(len(tensor.accesses)))

    def _decide(self, scope: str, places: dict[str, OnChipLayout]) -> Decision:
        """Ask until the answer is one that kernels can be made for."""
        while True:
            places = {name: place for name, place in places.items() if self._accesses(name, place, {})}
            problem = self._problem(scope, places)
            decision = Decision(scope, places, problem, self._allocation(problem, places))
            refused = self._refused(decision)
            if not refused:
                return decision
            assert not self.banned.issuperset(refused), "an access that has to stream was kept on chip"
            self.why.update(refused)
            self.banned.update(refused)

    def _allocation(self, problem: OnChipProblem, places: Mapping[str, OnChipLayout]) -> OnChipAllocation:
        """What the strategy says; asked for few cycles, it gets a problem whose costs are cycles in place of bytes."""
        if self.objective == BYTES or not has_times(self.target):
            return decide(problem, self.strategy, self.options)
        found = decide(self._in_cycles(problem, places), self.strategy, self.options)
        return counted(problem, replace(found, bound=0))

    def _refused(self, decision: Decision) -> dict[tuple[str, int], str]:
        """Accesses of the answer that cannot be as it says, and why."""
        refused: dict[tuple[str, int], str] = {}
        moved = {(m.tensor, m.kind) for m in decision.movements()}
        for run in decision.allocation.runs:
            tensor = decision.places[run.tensor].tensor
            if tensor.is_made_at_once():
                continue
            writers = tensor.writers()
            accesses = self._accesses(run.tensor, decision.places[run.tensor], {})
            there = {access.step for access in accesses[run.first : run.last + 1]}
            if 0 < len(there.intersection(writers)) < len(writers):
                for step in writers:
                    refused[run.tensor, step] = "it is made in parts, and not all of them would be there at once"
            elif not tensor.is_made_in_parts() and {(run.tensor, "fill"), (run.tensor, "write-back")} & moved:
                for site in tensor.sites:
                    refused[run.tensor, site.step] = "not all of it is written, so it is never copied whole"
        for name, place in decision.places.items():
            if decision.saved(name) < 0:
                for step in decision.resident_steps(name):
                    if sum(site.into + site.out for site in place.tensor.by_step()[step]) < 0:
                        refused[name, step] = "what the host copies there would move over the edge"
        by_call: dict[Operation, list[tuple[Site, Resident]]] = {}
        for site, resident in decision.residents():
            by_call.setdefault(site.op, []).append((site, resident))
        for found in by_call.values():
            residents = {**self._fixed_at(found[0][0].op), **{site.number: resident for site, resident in found}}
            kernel = found[0][0].kernel
            assert kernel is not None
            try:
                self.made.make(kernel, residents)
            except CannotReside as reason:
                last = found[-1][0]
                refused[self._name_of(decision, last), last.step] = f"together with others: {reason}"
        return refused

    def _name_of(self, decision: Decision, site: Site) -> str:
        return next(name for name, place in decision.places.items() if site in place.residents)

    def _fixed_at(self, op: Operation) -> dict[int, Resident]:
        """By operand: the residents of a call in the scopes that were decided before."""
        return {site.number: resident for site, resident in self.fixed.items() if site.op is op}

    # the problem

    def _problem(self, scope: str, places: Mapping[str, OnChipLayout]) -> OnChipProblem:
        granule = self.target.scope(scope).granule_bytes
        staging: Staging = {}
        workspace = [self._workspace(scope, step, places, staging) for step in range(len(self.program.steps))]
        return OnChipProblem(
            tuple(self._tensor(name, place, staging) for name, place in places.items()),
            self.target.scope(scope).size_bytes,
            tuple(workspace),
            granule,
            tuple(self._cycles(step) for step in range(len(self.program.steps))),
            self._bandwidth(),
        )

    def _accesses(self, name: str, place: OnChipLayout, staging: Staging) -> tuple[TensorAccess, ...]:
        """
        The accesses of a tensor that are to be decided.

        Reads that can only stream, and come when all is written, are none: they cost the same whatever is decided, and
        may happen while the tensor stays.
        """
        by_step = place.tensor.by_step()
        written = [step for step, sites in by_step.items() if any(site.writes for site in sites)]
        found: list[TensorAccess] = []
        for step, sites in by_step.items():
            may_reside = self._may_reside(name, place, step)
            if may_reside or (written and step <= written[-1]):
                # What copies of the host would move counts where kernels move more; `_refused` counts all of it.
                moved = max(0, sum(site.into + site.out for site in sites))
                size = staging.get((name, step), 0)
                found.append(TensorAccess(step, moved, may_reside=may_reside, writes=step in written, staging=size))
        return tuple(found)

    def _may_reside(self, name: str, place: OnChipLayout, step: int) -> bool:
        """
        Whether what a step accesses may be on chip: never where the copies of the host would move more over the edge
        than a write-back before them and a fill behind them.
        """
        by_step, size = place.tensor.by_step(), place.tensor.bytes
        sites = by_step.get(step, [])
        ends = step == min(by_step) or not any(site.writes for site in place.tensor.sites if site.step >= step)
        most = size if ends else 2 * size
        return (
            all(site in place.residents for site in sites)
            and (name, step) not in self.banned
            and sum(site.into + site.out for site in sites) >= -most
        )

    def _tensor(self, name: str, place: OnChipLayout, staging: Staging) -> Tensor:
        """A tensor of the problem. One that is read off chip is written back, as an output is."""
        tensor, accesses = place.tensor, self._accesses(name, place, staging)
        shape = "x".join(map(str, tensor.type.get_shape()))
        first = tensor.sites[0]
        is_made = first.writes
        maker = first.op.callee.string_value() if isinstance(first.op, func.CallOp) and is_made else "input"
        is_read_off_chip = is_made and len(accesses) < len(tensor.by_step())
        return Tensor(
            name,
            place.size,
            accesses,
            source=tensor.is_source or not is_made,
            output=tensor.is_output or is_read_off_chip,
            alignment=place.granule,
            off_chip_size=tensor.bytes,
            kind=f"{maker} {shape}",
        )

    def _workspace(self, scope: str, step: int, places: Mapping[str, OnChipLayout], staging: Staging) -> int:
        """
        The bytes that a step takes whatever is resident; what each access that is streamed takes besides goes to
        `staging`. Together they are never less than what the kernel takes.
        """
        own = dict(self.program.own_calls(step))
        others = (kernel for kernel in self.program.calls(step) if kernel not in own.values())
        least = whole = max((self._peak(kernel, {}, scope) for kernel in others), default=0)
        freed: dict[str, int] = {}
        for call, kernel in own.items():
            needed, here = self._workspace_of_call(scope, call, kernel, self._groups(call, step, places))
            least, whole = max(least, needed), max(whole, self._peak(kernel, self._fixed_at(call), scope))
            for name, size in here.items():
                freed[name] = max(freed.get(name, 0), size)
        if least + sum(freed.values()) > self.target.scope(scope).size_bytes:
            return whole
        staging.update({(name, step): size for name, size in freed.items()})
        return least

    def _groups(self, call: func.CallOp, step: int, places: Mapping[str, OnChipLayout]) -> Groups:
        """What a call may find on chip, if all that its step accesses may be there."""
        found: Groups = {}
        for name, place in places.items():
            if self._may_reside(name, place, step):
                sites = place.tensor.by_step().get(step, [])
                here = {site.number: place.residents[site] for site in sites if site.op is call}
                found.update({name: here} if here else {})
        return found

    def _workspace_of_call(
        self, scope: str, call: func.CallOp, kernel: func.FuncOp, groups: Groups
    ) -> tuple[int, dict[str, int]]:
        """The same of one call, and by tensor what streaming it takes besides, where these may be resident."""
        fixed = self._fixed_at(call)
        whole = self._peak(kernel, fixed, scope)
        if not groups or len(groups) > MAX_ARGUMENTS:
            return whole, {}
        peaks: dict[frozenset[str], int] = {}
        names = list(groups)
        for count in range(len(names) + 1):
            for chosen in combinations(names, count):
                residents = dict(fixed)
                for name in chosen:
                    residents.update(groups[name])
                try:
                    peaks[frozenset(chosen)] = self._peak(kernel, residents, scope)
                except CannotReside:
                    peaks[frozenset(chosen)] = whole
        least = peaks[frozenset(names)]
        freed = {
            name: max(max(0, peaks[chosen] - peaks[chosen | {name}]) for chosen in peaks if name not in chosen)
            for name in names
        }
        return least, freed

    def _peak(self, kernel: func.FuncOp, residents: Mapping[int, Resident], scope: str) -> int:
        """The bytes that one call of a kernel takes in a scope, as its plan comes out, with the rings it will have."""
        key = kernel.sym_name.data, scope, tuple(sorted(residents.items()))
        if key not in self._peaks:
            made = kernel_with_rings(self.made.make(kernel, residents), self.target)
            taken = bytes_taken(made, self.target, scope, DEFAULT_PLANNER, KERNEL_LIMITS) or 0
            # That a kernel does not fit by itself is for the planner to explain; nothing else stays then.
            self._peaks[key] = min(taken, self.target.scope(scope).size_bytes)
        return self._peaks[key]

    def _cycles(self, step: int) -> float:
        """The cycles that the units of the machine compute at a step, by the intrinsics' initiation intervals."""
        total = 0.0
        for kernel in self.program.calls(step):
            for op in kernel.walk():
                if isinstance(op, GenericOp) and op.library_call is not None:
                    total += sum_over_loops(iteration_domain(op)) * self._cycles_of(op)
        return total

    def _cycles_of(self, op: GenericOp) -> float:
        access = access_of(op)
        intrinsic = None if op.library_call is None else self.target.intrinsics().get(op.library_call.data)
        if access is None or intrinsic is None or intrinsic.dma_name is not None:
            return 0.0
        match = match_intrinsic(access, intrinsic, self.target)
        return float(match.cycles(access)) if isinstance(match, Match) else 0.0

    def _in_cycles(self, problem: OnChipProblem, places: Mapping[str, OnChipLayout]) -> OnChipProblem:
        """
        The same problem, but that an access costs the cycles that its kernel takes longer where it is streamed, and a
        fill or a write-back those of the kernel that copies it.
        """
        saved = {step: self._saved(step, places) for step in range(problem.steps)}

        def timed(tensor: Tensor) -> Tensor:
            place = places[tensor.id]
            here, there = place.tensor.type, place.inner
            ways = copier("fill", here, there, self.target), copier("spill", there, here, self.target)
            copied, begun = max(kernel_time(way, self.target) for way in ways), 0
            if place.border is not None:
                begun = kernel_time(border_filler("border", place, place.border, self.target), self.target)
            costs = [saved[each.step].get(tensor.id, 0) if each.may_reside else 0 for each in tensor.accesses]
            if tensor.source:
                copied += begun
            else:  # it begins with what makes it
                costs[0] = max(0, costs[0] - begun)
            accesses = (replace(each, off_chip_bytes=cost) for each, cost in zip(tensor.accesses, costs, strict=True))
            return replace(tensor, accesses=tuple(accesses), off_chip_size=copied)

        # Moving is in the cycles of each access as far as it is not hidden.
        return replace(problem, tensors=tuple(map(timed, problem.tensors)), compute=(), bandwidth=1.0)

    def _saved(self, step: int, places: Mapping[str, OnChipLayout]) -> dict[str, int]:
        """The cycles that the calls of a step take fewer for each tensor that they find on chip, in all iterations."""
        found: dict[str, int] = {}
        for call, kernel in self.program.own_calls(step):
            times = sum_over_loops(iteration_domain(call))
            for name, cycles in self._saved_by_call(call, kernel, self._groups(call, step, places)).items():
                found[name] = found.get(name, 0) + times * cycles
        return found

    def _saved_by_call(self, call: func.CallOp, kernel: func.FuncOp, groups: Groups) -> dict[str, int]:
        """The same of one call: the mean of what each saves after the others, in every order (Shapley), and of many
        what it saves by itself."""
        names, fixed = tuple(groups), self._fixed_at(call)
        ways = list(permutations(names)) if len(names) <= MAX_ARGUMENTS else [(name,) for name in names]
        found: dict[str, list[int]] = {name: [] for name in names}
        for way in ways:
            residents = dict(fixed)
            try:
                before = self._time(kernel, residents)
            except CannotReside:
                break
            for name in way:
                residents.update(groups[name])
                try:
                    after = self._time(kernel, residents)
                except CannotReside:
                    break
                found[name].append(before - after)
                before = after
        return {name: max(0, round(fmean(each))) for name, each in found.items() if each}

    def _time(self, kernel: func.FuncOp, residents: Mapping[int, Resident]) -> int:
        """The cycles that a call of a kernel takes by itself; raises CannotReside where they are not known."""
        key = kernel.sym_name.data, tuple(sorted(residents.items()))
        if key not in self._times:
            made = self.made.make(kernel, residents)
            try:
                self._times[key] = kernel_time(made, self.target)
            except UserError as error:
                raise CannotReside(error.message) from None
        return self._times[key]

    def _bandwidth(self) -> float:
        """Bytes a cycle of the slowest bus that an engine off the chip uses; 1 where the machine does not say."""
        buses = self.target.buses()
        rates = [
            buses[dma.bus_name].bytes_per_cycle
            for dma in self.target.dmas().values()
            if dma.bus_name is not None and "dram" in (*dma.sources, *dma.destinations)
        ]
        return min((size / cycles for size, cycles in rates), default=1.0)
