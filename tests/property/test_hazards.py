# SPDX-License-Identifier: Apache-2.0
"""The static check of hazards against a graph of all events, on random programs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from reachability import events, has_cycle, overflows, pushes_and_pops, races
from sampling import examples

from penstock.passes.analysis.commands.hazards import HazardKind, check
from penstock.passes.analysis.commands.program import Command, Engine, Kind, MachineModel, Program, Queue
from penstock.passes.analysis.commands.region import Region

UNITS = ("load", "execute", "store")


@st.composite
def regions(draw: st.DrawFn) -> Region:
    dims = tuple(draw(st.lists(st.tuples(st.integers(2, 3), st.integers(4, 12)), max_size=2)))
    space, storage = draw(st.sampled_from((("spad", 0), ("dram", 1))))
    return Region(space, storage, draw(st.integers(0, 40)), draw(st.integers(1, 6)), dims)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    names = [(one, two) for one in UNITS for two in UNITS if one != two]
    queues = [
        Queue(*name, draw(st.integers(1, 3)), draw(st.booleans()), draw(st.integers(0, 1)))
        for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    ]
    # Either one transfer at a time or all of them: what lies between is no graph of events.
    engines = {unit: Engine(unit, unit, None, 0, 0, draw(st.sampled_from((1, 99)))) for unit in UNITS}
    model = MachineModel("toy", UNITS, {}, engines, tuple(queues))
    commands: list[Command] = []
    for number in range(draw(st.integers(1, 14))):
        unit = draw(st.sampled_from(UNITS))
        kind = draw(st.sampled_from((Kind.TRANSFER, Kind.TRANSFER, Kind.EXEC)))
        after = draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if number else []
        mine = [queue.name for queue in queues]
        pops = draw(st.lists(st.sampled_from(into), max_size=2)) if (into := [n for n in mine if n[1] == unit]) else []
        pushes = draw(st.lists(st.sampled_from(out), max_size=2)) if (out := [n for n in mine if n[0] == unit]) else []
        commands.append(
            Command(
                unit,
                kind,
                engine=unit if kind is Kind.TRANSFER else None,
                after=tuple(sorted(after)),
                pops=tuple(pops),
                pushes=tuple(pushes),
                reads=tuple(draw(st.lists(regions(), max_size=1))),
                writes=tuple(draw(st.lists(regions(), max_size=1))),
            )
        )
    barriers = draw(st.lists(st.integers(1, len(commands)), max_size=1))
    return Program(model, commands, tuple(barriers))


@examples(400)
@given(programs())
def test_hazards_are_those_of_the_graph_of_events(program: Program) -> None:
    found = check(program)
    kinds = {hazard.fault for hazard in found}
    running = events(program, room=True)
    stuck = running is None or has_cycle(running)
    assert (HazardKind.DEADLOCK in kinds) == stuck
    if stuck:
        return
    pushes, pops = pushes_and_pops(program)
    assert (HazardKind.LEAK in kinds) == any(len(pushes[name]) != len(pops[name]) for name in pushes)
    graph = events(program)
    assert graph is not None
    assert (HazardKind.OVERFLOW in kinds) == bool(overflows(program, graph))
    wrong = races(program, graph)
    named = {(min(hazard.commands), max(hazard.commands)) for hazard in found if hazard.fault is HazardKind.RACE}
    assert named <= wrong
    assert bool(named) == bool(wrong)
