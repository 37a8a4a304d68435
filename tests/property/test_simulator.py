# SPDX-License-Identifier: Apache-2.0
"""Cycles, counted twice: the machine played event by event, and the same rules solved as equations."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from hypothesis import assume, event, given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.analysis.commands.program import Command, Engine, Kind, MachineModel, Program, Queue, QueueName
from penstock.runtime.simulator import Simulation, longest_path, simulate
from penstock.runtime.simulator.max_plus import Times
from penstock.runtime.simulator.timeline import Deadlock, Overflow

UNITS = ("load", "compute", "store")
CAUSES = {"bus", "latency", "push", "queue", "token", "barrier", "done"}
PAIRS = [(source, destination) for source in UNITS for destination in UNITS if source != destination]


@st.composite
def machines(draw: st.DrawFn, *, shared: bool) -> MachineModel:
    """Three units with an engine or two each; with `shared` on the same two buses."""
    engines: dict[str, Engine] = {}
    buses: dict[str, tuple[int, int]] = {"left": (8, 1), "right": (8, 1)} if shared else {}
    for unit in UNITS:
        own = [None, "left", "right"] if shared else [None, f"{unit} a", f"{unit} b"]
        for number in range(draw(st.integers(1, 2))):
            bus = draw(st.sampled_from(own))
            if bus is not None:
                buses[bus] = (8, 1)
            name = f"{unit} {number}"
            latency, outstanding = draw(st.integers(0, 9)), draw(st.integers(1, 4))
            engines[name] = Engine(name, unit, bus, latency, 1, outstanding)
    queues: list[Queue] = []
    for source, destination in draw(st.lists(st.sampled_from(PAIRS), unique=True)):
        capacity = draw(st.integers(1, 4))
        blocks, initial = draw(st.booleans()), draw(st.sampled_from([0, 0, 0, 1]))
        queues.append(Queue(source, destination, capacity, blocks, initial))
    return MachineModel("random", UNITS, buses, engines, tuple(queues))


@st.composite
def programs(draw: st.DrawFn, *, shared: bool = False) -> Program:
    """Commands with tokens of earlier ones, tokens through queues, now and then one too many, and barriers."""
    machine = draw(machines(shared=shared))
    commands: list[Command] = []
    for number in range(draw(st.integers(1, 25))):
        unit = draw(st.sampled_from(UNITS))
        kind = draw(st.sampled_from([Kind.TRANSFER, Kind.TRANSFER, Kind.EXEC, Kind.EXEC, Kind.CARRIER]))
        after: tuple[int, ...] = ()
        if number and draw(st.integers(0, 2)) == 0:
            after = tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=2))))
        engine = None
        if kind is Kind.TRANSFER:
            engine = draw(st.sampled_from([name for name, each in machine.engines.items() if each.unit == unit]))
        cycles = 0 if kind is Kind.CARRIER else draw(st.integers(1, 20))
        commands.append(Command(unit, kind, engine or kind.value, engine, cycles, after=after))
    pops: dict[int, list[QueueName]] = defaultdict(list)
    pushes: dict[int, list[QueueName]] = defaultdict(list)
    for queue in machine.queues:
        sources = [number for number, command in enumerate(commands) if command.unit == queue.source]
        destinations = [number for number, command in enumerate(commands) if command.unit == queue.destination]
        for source in sources:
            later = [number for number in destinations if number > source]
            if later and draw(st.booleans()):
                pushes[source].append(queue.name)
                pops[draw(st.sampled_from(later))].append(queue.name)
        if sources and draw(st.integers(0, 9)) == 0:
            pushes[draw(st.sampled_from(sources))].append(queue.name)
        if destinations and draw(st.integers(0, 19)) == 0:
            pops[draw(st.sampled_from(destinations))].append(queue.name)
    for number, command in enumerate(commands):
        command.pops = tuple(pops[number])
        command.pushes = tuple(draw(st.permutations(pushes[number])))
    barriers = draw(st.sets(st.integers(0, len(commands)), max_size=2)) if draw(st.integers(0, 3)) == 0 else ()
    return Program(machine, commands, tuple(sorted(barriers)))


@examples(400)
@given(programs())
def test_both_ways_give_the_same_moments_where_no_bus_is_shared(program: Program) -> None:
    times = longest_path(program)
    assert times is not None
    # Whose end is first depends on time, and so equations say nothing.
    assume(times.in_order)
    overflows = _overflows(program, times)
    assume(overflows is not None)
    simulation = simulate(program)
    if overflows:
        event("overflow")
        assert isinstance(simulation.fault, Overflow)
        return
    event("deadlock" if times.cycles is None else "done")
    assert isinstance(simulation.fault, Deadlock) == (times.cycles is None)
    assert simulation.starts == [-1 if start is None else start for start in times.starts]
    assert simulation.ends == [-1 if end is None else end for end in times.ends]
    if times.cycles is not None:
        assert simulation.cycles == times.cycles


def _overflows(program: Program, times: Times) -> bool | None:
    """
    Whether a push of the solution finds its queue full; None where it depends on the order within one cycle, and
    where a push that does not happen leaves it open.
    """
    for queue in program.machine.queues:
        if queue.blocks:
            continue
        pops = [moment for moment in times.pops[queue.name] if moment is not None]
        for position, moment in enumerate(times.pushes[queue.name]):
            if moment is None:
                continue
            held = position + queue.initial
            if held - sum(pop <= moment for pop in pops) >= queue.capacity:
                return True
            if held - sum(pop < moment for pop in pops) >= queue.capacity:
                return None
    return False


@examples(200)
@given(programs(shared=True))
def test_a_shared_bus_serves_one_at_a_time_and_who_asked_first(program: Program) -> None:
    simulation = simulate(program)
    assume(simulation.fault is None)
    index = simulation.index
    for bus in range(len(index.buses)):
        users = [number for number, each in enumerate(index.bus_of) if each == bus]
        users.sort(key=lambda number: simulation.grants[number])
        for first, second in pairwise(users):
            assert simulation.finishes[first] <= simulation.grants[second]
        for place, number in enumerate(users):
            granted = simulation.grants[number]
            rank = simulation.requests[number], index.unit_of[number]
            for other in users[place + 1 :]:
                waits = simulation.starts[other] <= granted and simulation.requests[other] <= granted
                behind = any(
                    earlier < other and index.unit_of[earlier] == index.unit_of[other]
                    for earlier in users[place:]
                    if earlier != other
                )
                if waits and not behind:
                    assert rank < (simulation.requests[other], index.unit_of[other])
            # The bus is not idle while somebody waits.
            idle_from = max([0, *(simulation.finishes[each] for each in users[:place])])
            assert granted == max(simulation.requests[number], idle_from) or any(
                simulation.requests[each] > simulation.requests[number] for each in users[:place]
            )


@examples(200)
@given(st.booleans().flatmap(lambda shared: programs(shared=shared)))
def test_the_cycles_of_a_unit_and_their_causes_add_up(program: Program) -> None:
    simulation = simulate(program)
    assume(simulation.fault is None)
    for use in simulation.units:
        assert use.busy + sum(cycles for _, cycles in use.stalls) == simulation.cycles
        assert all(cycles > 0 for _, cycles in use.stalls)
        assert {cause.split(" ")[0] for cause, _ in use.stalls} <= CAUSES
    execs = Counter[str]()
    for command in program.commands:
        execs[command.unit] += command.cycles if command.kind is Kind.EXEC else 0
    for use in simulation.units:
        assert use.busy >= execs[use.unit]
    assert sum(simulation.buses.values()) == sum(
        command.cycles for command in program.commands if command.kind is Kind.TRANSFER
    )
    if _one_limit_a_unit(program):
        assert simulation.cycles >= simulation.ideal.cycles


def _one_limit_a_unit(program: Program) -> bool:
    """Whether all engines of a unit have as many transfers in flight: with a mixture T* is no bound."""
    limits: dict[str, set[int]] = defaultdict(set)
    for command in program.commands:
        if command.engine is not None:
            limits[command.unit].add(program.machine.engines[command.engine].outstanding)
    return all(len(each) == 1 for each in limits.values())


@examples(200)
@given(st.booleans().flatmap(lambda shared: programs(shared=shared)))
def test_every_command_keeps_the_rules(program: Program) -> None:
    simulation = simulate(program)
    _check_units(program, simulation)
    _check_tokens(program, simulation)


def _check_units(program: Program, simulation: Simulation) -> None:
    for unit in UNITS:
        stream = [number for number, command in enumerate(program.commands) if command.unit == unit]
        started = [number for number in stream if simulation.starts[number] >= 0]
        assert started == stream[: len(started)]
        for place, number in enumerate(started):
            start, command = simulation.starts[number], program.commands[number]
            if place:
                assert start >= simulation.starts[started[place - 1]]
            open_ones = [other for other in started[:place] if not 0 <= simulation.ends[other] <= start]
            if command.engine is None:
                assert not open_ones
                if simulation.finishes[number] >= 0:
                    assert simulation.finishes[number] - start == command.cycles
                continue
            assert all(program.commands[other].engine is not None for other in open_ones)
            engine = program.machine.engines[command.engine]
            assert len(open_ones) < engine.outstanding
            if simulation.grants[number] >= 0:
                assert start + engine.latency == simulation.requests[number] <= simulation.grants[number]
            if simulation.finishes[number] >= 0:
                assert simulation.finishes[number] - simulation.grants[number] == command.cycles


def _check_tokens(program: Program, simulation: Simulation) -> None:
    for number, command in enumerate(program.commands):
        if simulation.starts[number] < 0:
            continue
        behind = [earlier for earlier in program.barriers if earlier <= number]
        before = [*command.after, *range(max(behind, default=0))]
        for other in before:
            assert 0 <= simulation.ends[other] <= simulation.starts[number]
