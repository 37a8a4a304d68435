"""Asking a strategy what stays in a scope: the program as its problem, and what its answer must be to be executable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, i64
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.commands.loop_domain import iteration_domain, sum_over_loops
from penstock.passes.analysis.intrinsics import Match, match_intrinsic
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.memory.memory_problems import bytes_taken, function_problems, memory_problems
from penstock.passes.loop.mem_plan import find_plan
from penstock.passes.loop.on_chip.places import OnChipLayout, Specializer, best_layout, target_has_no_way
from penstock.passes.loop.on_chip.program import ProgramUse, Site
from penstock.passes.loop.on_chip.specialize import CannotReside, Resident
from penstock.passes.planning.on_chip.problem import (
    Movement,
    OnChipAllocation,
    OnChipProblem,
    Tensor,
    TensorAccess,
    movements,
)
from penstock.passes.planning.on_chip.registry import Options, decide
from penstock.passes.planning.on_chip.selection import cheapest
from penstock.passes.planning.problem import Limits, height
from penstock.passes.planning.registry import DEFAULT_PLANNER, solve
from penstock.passes.schedule.rings import kernel_with_rings

KERNEL_LIMITS = Limits(steps=2_000)
"""How far the plan of a kernel is improved to see how much room it leaves."""

MAX_ARGUMENTS = 3
"""Arguments of a call of which every subset is planned, to see what each of them frees."""


Staging = dict[tuple[str, int], int]
"""By tensor and step, the bytes that a streamed access takes besides."""


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
            steps = {self.tensor(name).accesses[index].step for index in self.allocation.resident(name)}
            for site in place.tensor.sites:
                if site.step in steps:
                    yield site, place.residents[site]

    def tensor(self, name: str) -> Tensor:
        """A tensor of the problem."""
        return next(tensor for tensor in self.problem.tensors if tensor.id == name)

    def sites(self, name: str) -> list[Site]:
        """The accesses of a tensor that the strategy decides about: the others stream."""
        steps = {access.step for access in self.tensor(name).accesses}
        return [site for site in self.places[name].tensor.sites if site.step in steps]

    def movements(self) -> list[Movement]:
        """Everything over the edge."""
        return list(movements(self.problem, self.allocation))


@dataclass
class Chooser:
    """The choice of what stays where, one scope after the other."""

    program: ProgramUse
    made: Specializer
    strategy: str
    options: Options
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
                if here.saved and here.saved >= later and self._could_gain(name, here):
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
            decision = Decision(scope, places, problem, decide(problem, self.strategy, self.options))
            refused = self._refused(decision)
            if not refused:
                return decision
            assert not self.banned.issuperset(refused), "an access that has to stream was kept on chip"
            self.why.update(refused)
            self.banned.update(refused)

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
        by_call: dict[func.CallOp, list[tuple[Site, Resident]]] = {}
        for site, resident in decision.residents():
            assert isinstance(site.op, func.CallOp)
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
            may_reside = all(site in place.residents for site in sites) and (name, step) not in self.banned
            if may_reside or (written and step <= written[-1]):
                moved = sum(site.into + site.out for site in sites)
                size = staging.get((name, step), 0)
                found.append(TensorAccess(step, moved, may_reside=may_reside, writes=step in written, staging=size))
        return tuple(found)

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
        op = self.program.steps[step]
        kernel = next(self.program.calls(step), None)
        if not isinstance(op, func.CallOp) or kernel is None:
            return max((self._peak(each, {}, scope) for each in self.program.calls(step)), default=0)
        fixed = self._fixed_at(op)
        whole = self._peak(kernel, fixed, scope)
        groups: dict[str, dict[int, Resident]] = {}
        for name, place in places.items():
            sites = place.tensor.by_step().get(step, [])
            if sites and all(site in place.residents for site in sites) and (name, step) not in self.banned:
                groups[name] = {site.number: place.residents[site] for site in sites}
        if not groups or len(groups) > MAX_ARGUMENTS:
            return whole
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
        if least + sum(freed.values()) > self.target.scope(scope).size_bytes:
            return whole
        staging.update({(name, step): size for name, size in freed.items()})
        return least

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
        return float(intrinsic.initiation_interval * match.issues(access.extents)) if isinstance(match, Match) else 0.0

    def _bandwidth(self) -> float:
        """Bytes a cycle of the slowest bus that an engine off the chip uses; 1 where the machine does not say."""
        buses = self.target.buses()
        rates = [
            buses[dma.bus_name].bytes_per_cycle
            for dma in self.target.dmas().values()
            if dma.bus_name is not None and "dram" in (*dma.sources, *dma.destinations)
        ]
        return min((size / cycles for size, cycles in rates), default=1.0)


def ensure_plan(module: ModuleOp, decision: Decision, steps: Sequence[Operation]) -> bool:
    """
    Leave the buffers of kernels to the planner if it finds room for them around what stays in the scope.

    Otherwise each kernel gets its places in the block that the strategy has found for it at each of its calls; one
    for which these differ is copied: a kernel that is called around different residents may have no place that is
    free at all of its calls. Returns whether that was needed.
    """
    for memory in memory_problems(module):
        if memory.scope == decision.scope:
            outcome = find_plan(memory, DEFAULT_PLANNER, Limits())
            capacity = memory.problem.capacity
            if outcome.plan is not None and (capacity is None or height(memory.problem, outcome.plan) <= capacity):
                continue
            if _all_fit_alone(module, decision.scope):
                _pin(module, decision, steps)
                return True
    return False


def _all_fit_alone(module: ModuleOp, scope: str) -> bool:
    """Whether each kernel has a plan by itself; where one has none, the planner will say so."""
    target, kernels = machine_kernels(module)
    assert target is not None
    taken = (bytes_taken(kernel, target, scope, DEFAULT_PLANNER, KERNEL_LIMITS) or 0 for kernel in kernels)
    return all(count <= target.scope(scope).size_bytes for count in taken)


def _pin(module: ModuleOp, decision: Decision, steps: Sequence[Operation]) -> None:
    target, found = machine_kernels(module)
    assert target is not None
    kernels = {kernel.sym_name.data: kernel for kernel in found}
    bases: dict[str, dict[int, func.FuncOp]] = {}
    for step, op in enumerate(steps):
        base = decision.allocation.workspace.get(step, 0)
        for call in [inner for inner in op.walk() if isinstance(inner, func.CallOp)]:
            name = call.callee.string_value()
            if (kernel := kernels.get(name)) is None:
                continue
            at = bases.setdefault(name, {})
            if base not in at:
                at[base] = kernel if not at else _copy_of(kernel, f"{name}_at_{base}")
            call.callee = SymbolRefAttr(at[base].sym_name.data)
    for at in bases.values():
        for base, kernel in at.items():
            _place(kernel, target, decision.scope, base)


def _copy_of(kernel: func.FuncOp, name: str) -> func.FuncOp:
    copy = kernel.clone()
    copy.sym_name = StringAttr(name)
    Rewriter.insert_op(copy, InsertPoint.after(kernel))
    return copy


def _place(kernel: func.FuncOp, target: TargetOp, scope: str, base: int) -> None:
    """Give the buffers of a kernel the places of its own plan, from `base` on."""
    for memory in function_problems(kernel, target):
        plan = solve(memory.problem, limits=KERNEL_LIMITS).plan if memory.scope == scope else None
        if plan is None:
            continue
        for id, op in memory.ops.items():
            assert isinstance(op, ScopedAllocation)
            op.offset = IntegerAttr(base + plan.offsets[id], i64)
