# SPDX-License-Identifier: Apache-2.0
"""One run of a program on its machine, kernel by kernel, each proved free of hazards before its cycles count."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.diagnostics import USAGE, UserError, location_of, nearest_or_all
from penstock.dialects.machine import DRAM, TargetOp
from penstock.passes.analysis.commands.hazards import check, relocated
from penstock.passes.analysis.commands.limits import limit_faults
from penstock.passes.analysis.commands.program import Program
from penstock.passes.analysis.commands.trace import Call, trace_calls
from penstock.passes.analysis.kernels import ENTRY, device_of, machine_of, stated_macs
from penstock.passes.isomorphic_kernels import structure_of
from penstock.passes.planning.traffic_bounds import ContractionKernel, best_tiling, square_root
from penstock.runtime.simulator.events import simulate
from penstock.runtime.simulator.program import ProgramTime, ProgramTimes
from penstock.runtime.simulator.timeline import CycleWindow, Simulation
from penstock.runtime.simulator.timeline_svg import TimedCall, timeline_svg
from penstock.runtime.simulator.work import MacCounts, compulsory, mac_counts
from penstock.runtime.simulator.workloads import Workloads

_MAX_NOTES = 10
"""Hazards that are told beside the first."""


@dataclass(frozen=True)
class OffChipTraffic:
    """Bytes off chip, and what they are measured by; None for what is not known of a kernel."""

    bytes: int
    """What is moved from and to off chip."""
    compulsory: int | None
    """What is read and what is written, once."""
    square_root: int | None
    """The bytes of a contraction by the size of the scopes, by the square root that stands in it."""
    square_root_is_bound: bool
    """Whether no schedule moves less; of a convolution it is an estimate."""
    best_tiling: int | None
    """The least bytes of all tilings of the contraction that fit."""
    least: int | None
    """What no schedule of the kernels goes below."""

    @property
    def ratio(self) -> float | None:
        return self.bytes / self.least if self.least else None


@dataclass(eq=False)
class KernelRun:
    """Calls of a kernel that differ at most in where their arguments lie."""

    kernel: str
    """Its name."""
    simulation: Simulation
    """The times of its commands in one call."""
    runs: int
    """How many calls there are."""
    traffic: OffChipTraffic
    """Bytes off chip of one call."""
    macs: MacCounts
    """Multiply-accumulates of one call."""
    energy: Mapping[tuple[str, str], Fraction] | None = None
    """The picojoules of one run by table and entry of `machine.energy`; None for a machine that has none."""

    def _repr_svg_(self) -> str:
        simulation = self.simulation
        window = CycleWindow(0, max(simulation.cycles, 1))
        title = f"@{self.kernel}: {simulation.cycles:,} cycles"
        return timeline_svg(simulation.program.machine.units, [TimedCall(0, self.kernel, simulation)], window, title)


@dataclass(eq=False)
class ProgramRun:
    """One run of `@main`, as far as it is on the machine."""

    target: TargetOp
    """The machine."""
    kernels: tuple[KernelRun, ...]
    """In the order of their first call."""
    order: tuple[int, ...]
    """The kernels as they are called, by their number."""
    host: tuple[tuple[str, int], ...]
    """The functions that the host runs, each with its calls."""
    time: ProgramTime | None = None
    """The time of the whole, the host's part included; None where the machine says nothing of its processor, and where
    it is not known how often something runs."""

    @cached_property
    def cycles(self) -> int:
        """The sum over all calls on the machine: a kernel begins when the one before is done."""
        return sum(kernel.runs * kernel.simulation.cycles for kernel in self.kernels)

    def svg(self, window: CycleWindow | None = None, title: str | None = None) -> str:
        """A picture of the cycles of a window, or of all: a row for each unit and bus."""
        timed = [TimedCall(begin, kernel.kernel, kernel.simulation) for begin, kernel in calls(self)]
        title = title or f"{self.target.machine_name}: {self.cycles:,} cycles"
        return timeline_svg(list(self.target.units()), timed, window or CycleWindow(0, max(self.cycles, 1)), title)

    def _repr_svg_(self) -> str:
        return self.svg()


def run_program(
    module: ModuleOp, workloads: Workloads | None = None, only: str | None = None, *, verify: bool = True
) -> ProgramRun:
    """
    Simulate one run of a module at the accelerator level: all its kernels, or the calls of one. What `workloads` knows
    of them gives the bounds on their traffic.

    Raises UserError, located, for a kernel that breaks a limit of the machine or is not free of hazards, but without
    `verify`, where that is known; for a name that no kernel on the machine has; and for a module without a machine, or
    without `@main`.
    """
    target = simulated_machine(module)
    found: dict[Hashable, int] = {}
    runs: list[KernelRun] = []
    order: list[int] = []
    host: dict[str, int] = {}
    proved: set[Hashable] = set()
    structures = cache(_structure)
    names: dict[str, None] = {}
    processor = target.processor()
    times = None if processor is None or only is not None else ProgramTimes(module, processor)
    for call in trace_calls(module):
        name = call.function.sym_name.data
        if call.trace is None:
            host[name] = host.get(name, 0) + 1
            if times is not None:
                times.add(call, None)
            continue
        names[name] = None
        if only is not None and name != only:
            continue
        # At other addresses its arguments may share bytes, and so it is proved for each; it takes the same time.
        if verify and (proof := (structures(call.function), relocated(call.arguments))) not in proved:
            check_program(call.trace(), target, call.function)
            proved.add(proof)
        key = name, _shared_bytes(call)
        if (number := found.setdefault(key, len(runs))) == len(runs):
            runs.append(run_call(call, call.trace(), target, workloads))
        runs[number].runs += 1
        order.append(number)
        if times is not None:
            times.add(call, runs[number].simulation.cycles)
    if only is not None and only not in names:
        notes = [nearest_or_all(only, names, "kernels on the machine")]
        raise UserError(f'no kernel "{only}" runs on the machine', notes=notes, status=USAGE)
    time = None if times is None else times.time()
    return ProgramRun(target, tuple(runs), tuple(order), () if only is not None else tuple(host.items()), time)


def _structure(kernel: func.FuncOp) -> Hashable:
    return structure_of(kernel, names=False)[0]


def run_call(call: Call, program: Program, target: TargetOp, workloads: Workloads | None) -> KernelRun:
    """What a call of a kernel on the machine takes, whose commands are `program`; that it is run is not counted yet."""
    simulation = simulate(program)
    simulation.check()
    name, spaces = call.function.sym_name.data, [view.space for view in call.arguments if view is not None]
    contraction = None if workloads is None else workloads.of(name, spaces)
    traffic = traffic_of(simulation, contraction, target)
    macs = mac_counts(program, target, stated_macs(call.function))
    per_activity = target.energy()
    energy = None if per_activity is None else per_activity.of(program.activity, simulation.cycles)
    return KernelRun(name, simulation, 0, traffic, macs, energy)


def simulated_machine(module: ModuleOp) -> TargetOp:
    """
    The machine of a module, one run of which is to be simulated. Raises UserError for a module without one, and, at the
    first kernel on the machine, for one without the function that is run.
    """
    target = machine_of(module)
    if target is None:
        raise UserError("the program is for the host: there is no machine to simulate", status=USAGE)
    functions = {op.sym_name.data: op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration}
    if ENTRY in functions:
        return target
    kernels = [op for op in functions.values() if device_of(op) == target.sym_name.data]
    loc = location_of(kernels[0]) if kernels else None
    names = ", ".join(f"@{op.sym_name.data}" for op in kernels) or "no kernels"
    notes = [f"it has {names}: write a function @{ENTRY} that calls what is to be simulated"]
    raise UserError(f"the program has no function @{ENTRY}, one run of which is simulated", loc=loc, notes=notes)


def _shared_bytes(call: Call) -> Hashable:
    """Which arguments of a call share bytes, and how they lie then: all that its figures may depend on."""
    views = [view for view in call.arguments if view is not None]
    shared: list[Hashable] = [view.space for view in views]
    for (one, first), (other, second) in combinations(enumerate(views), 2):
        if (first.space, first.storage) == (second.space, second.storage):
            apart = first.end <= second.start or second.end <= first.start
            shared += [] if apart else [(one, other, second.start - first.start)]
    return tuple(shared)


def check_program(program: Program, target: TargetOp, kernel: func.FuncOp) -> None:
    """Raise UserError, located, for a program that breaks a limit of the machine or is not free of hazards."""
    faults = [fault.error() for fault in limit_faults(program, target)]
    faults += [] if faults else [hazard.error() for hazard in check(program)]
    if faults:
        first, *others = faults
        notes = [*first.notes, *(f"{other.loc}: {other.message}" for other in others[:_MAX_NOTES])]
        notes += [f"and {len(others) - _MAX_NOTES} more"] if len(others) > _MAX_NOTES else []
        notes.append(f"@{kernel.sym_name.data} is not simulated: the cycles of a faulty program mean nothing")
        raise UserError(first.message, loc=first.loc or location_of(kernel), notes=notes, status=first.status)


def traffic_of(simulation: Simulation, contraction: ContractionKernel | None, target: TargetOp) -> OffChipTraffic:
    """What a kernel moves off chip in one run, and what that is measured by."""
    moved = sum(size for ends, size in simulation.moved.items() for end in ends if end == DRAM)
    if contraction is None:
        touched = compulsory(simulation.program)
        least = None if touched is None else sum(touched)
        return OffChipTraffic(moved, least, None, False, None, least)
    capacity = {name: scope.size_bytes for name, scope in target.scopes().items()}
    width = min(min(operand.held_bytes, operand.moved_bytes or operand.held_bytes) for operand in contraction.operands)
    # For a bound that holds for every schedule, all scopes are full of the smallest elements.
    root = square_root(contraction, sum(capacity.values()) // width, width)
    best = best_tiling(contraction, capacity)
    proved = root is not None and root.is_bound
    return OffChipTraffic(
        moved,
        contraction.compulsory,
        None if root is None else root.bytes,
        proved,
        None if best is None else best.bytes,
        max(contraction.compulsory, root.bytes if root is not None and proved else 0),
    )


def calls(run: ProgramRun) -> Iterator[tuple[int, KernelRun]]:
    """The calls on the machine, each with the cycle in which it begins: when the one before is done."""
    begin = 0
    for number in run.order:
        yield begin, run.kernels[number]
        begin += run.kernels[number].simulation.cycles
