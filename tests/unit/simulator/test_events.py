# SPDX-License-Identifier: Apache-2.0
"""The rules of cycles, one by one, on programs small enough to be reckoned by hand."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.commands.program import Command, Engine, Kind, MachineModel, Program, Queue, QueueName
from penstock.runtime.simulator import Simulation, longest_path, simulate
from penstock.runtime.simulator.timeline import Deadlock, Overflow

UNITS = ("load", "compute", "store")
ENGINES = (
    Engine("slow", "load", "bus", 8, 1, 1),
    Engine("two", "load", "bus", 8, 1, 2),
    Engine("far", "load", "bus", 100, 1, 4),
    Engine("near", "load", "bus", 0, 1, 4),
    Engine("own", "load", None, 3, 1, 4),
    Engine("acc", "compute", "bus", 8, 1, 1),
    Engine("at once", "compute", "bus", 0, 1, 1),
    Engine("out", "store", "bus", 8, 1, 1),
    Engine("back", "store", "back", 8, 1, 1),
)
TO_COMPUTE, TO_LOAD, TO_STORE = ("load", "compute"), ("compute", "load"), ("load", "store")


def machine(*queues: Queue) -> MachineModel:
    engines = {engine.name: engine for engine in ENGINES}
    return MachineModel("hand", UNITS, {"bus": (8, 1), "back": (8, 1)}, engines, queues)


def dma(
    engine: str,
    cycles: int,
    *,
    after: tuple[int, ...] = (),
    pops: Sequence[QueueName] = (),
    pushes: Sequence[QueueName] = (),
) -> Command:
    unit = next(each.unit for each in ENGINES if each.name == engine)
    return Command(unit, Kind.TRANSFER, engine, engine, cycles, after=after, pops=tuple(pops), pushes=tuple(pushes))


def run_exec(
    cycles: int,
    unit: str = "compute",
    *,
    after: tuple[int, ...] = (),
    pops: Sequence[QueueName] = (),
    pushes: Sequence[QueueName] = (),
) -> Command:
    return Command(unit, Kind.EXEC, "exec", None, cycles, after=after, pops=tuple(pops), pushes=tuple(pushes))


def carrier(unit: str, *, pops: Sequence[QueueName] = (), pushes: Sequence[QueueName] = ()) -> Command:
    return Command(unit, Kind.CARRIER, pops=tuple(pops), pushes=tuple(pushes))


def play(*commands: Command, queues: Sequence[Queue] = (), barriers: tuple[int, ...] = ()) -> Simulation:
    """The simulation, which must agree with the equations where these are exact."""
    program = Program(machine(*queues), list(commands), barriers)
    simulation = simulate(program)
    times = longest_path(program)
    if times is not None and times.in_order and not isinstance(simulation.fault, Overflow):
        assert simulation.ends == [-1 if end is None else end for end in times.ends]
    return simulation


# units


def test_a_unit_takes_its_next_command_when_an_exec_has_ended() -> None:
    simulation = play(run_exec(10), run_exec(5), run_exec(7, "load"))
    assert simulation.starts == [0, 10, 0]
    assert simulation.ends == [10, 15, 7]
    assert simulation.cycles == 15


def test_a_transfer_asks_for_the_bus_after_its_latency_and_occupies_it() -> None:
    simulation = play(dma("slow", 10), dma("slow", 4))
    assert (simulation.starts, simulation.requests) == ([0, 18], [8, 26])
    assert (simulation.grants, simulation.ends) == ([8, 26], [18, 30])


def test_two_outstanding_transfers_hide_the_latency_of_the_second() -> None:
    simulation = play(dma("two", 10), dma("two", 10), dma("two", 10))
    assert simulation.starts == [0, 0, 18]
    assert simulation.grants == [8, 18, 28]
    assert simulation.cycles == 38


def test_in_a_mixture_each_transfer_obeys_the_limit_of_its_own_engine() -> None:
    # The engine with one in flight waits for both others; a later one of "two" goes beside it.
    simulation = play(dma("two", 10), dma("two", 10), dma("slow", 5), dma("two", 6))
    assert simulation.starts == [0, 0, 28, 28]
    assert simulation.grants == [8, 18, 36, 41]
    assert simulation.ends == [18, 28, 41, 47]


def test_an_exec_waits_for_all_transfers_of_its_unit_and_they_for_it() -> None:
    simulation = play(dma("two", 10), dma("two", 10), run_exec(5, "load"), dma("two", 10))
    assert simulation.starts == [0, 0, 28, 33]


def test_a_carrier_takes_no_time_and_is_alone() -> None:
    queue = Queue("load", "compute", 4, True)
    simulation = play(
        dma("two", 10),
        carrier("load", pushes=[TO_COMPUTE]),
        dma("two", 2),
        run_exec(3, pops=[TO_COMPUTE]),
        queues=[queue],
    )
    assert simulation.starts == [0, 18, 18, 18]
    assert simulation.ends == [18, 18, 28, 21]
    assert play(Command("load", Kind.CARRIER, cycles=5)).cycles == 0


# buses


def test_who_asked_first_is_served_first() -> None:
    simulation = play(dma("at once", 3), run_exec(1), dma("acc", 10), dma("out", 5, after=(0,)))
    # Both ask for a free bus: the store at 11, the load of the accumulator at 12.
    assert simulation.requests == [0, 3, 12, 11]
    assert simulation.grants == [0, 3, 16, 11]


def test_of_two_that_ask_at_once_the_unit_declared_first_is_served() -> None:
    simulation = play(dma("out", 5), dma("acc", 5), dma("slow", 5))
    assert simulation.grants == [18, 13, 8]


def test_a_request_without_latency_is_among_those_of_the_same_cycle() -> None:
    # At cycle 8 the load asks; compute starts and asks at 8, too, after it.
    simulation = play(dma("slow", 5), run_exec(8), dma("at once", 5))
    assert simulation.requests == [8, 0, 8]
    assert simulation.grants == [8, 0, 13]


def test_transfers_of_one_unit_on_one_bus_go_in_program_order() -> None:
    simulation = play(dma("far", 5), dma("near", 5), dma("out", 7))
    # The near one asks at once, but waits for the far one; another unit does not.
    assert simulation.requests == [100, 0, 8]
    assert simulation.grants == [100, 105, 8]


def test_without_a_bus_an_engine_has_one_to_itself() -> None:
    simulation = play(dma("own", 5), dma("own", 5), dma("near", 4))
    assert simulation.grants == [3, 8, 0]
    assert simulation.buses == {"bus": 4, "back": 0, "own (own)": 10}


def test_a_transfer_without_rows_to_pay_for_takes_its_latency_only() -> None:
    assert play(dma("own", 0), run_exec(2, after=(0,))).cycles == 5


def test_what_takes_no_time_comes_before_buses_are_given() -> None:
    # At 8 compute asks for the bus; so does load, let go by a carrier of the store, and load is declared first.
    queue = Queue("store", "load", 4, True)
    simulation = play(
        run_exec(8, "store"),
        carrier("store", pushes=[queue.name]),
        run_exec(8),
        dma("at once", 5),
        dma("near", 5, pops=[queue.name]),
        queues=[queue],
    )
    assert simulation.requests[3:] == [8, 8]
    assert simulation.grants[3:] == [13, 8]


# tokens


def test_a_command_waits_for_all_that_it_comes_after() -> None:
    simulation = play(run_exec(30, "load"), run_exec(20, "store"), run_exec(5, after=(0, 1)))
    assert simulation.starts[2] == 30
    assert str(simulation.causes[2]) == "token load"


def test_initial_tokens_come_first() -> None:
    queue = Queue("load", "compute", 4, True, initial=1)
    simulation = play(
        run_exec(10, "load", pushes=[TO_COMPUTE]),
        run_exec(2, pops=[TO_COMPUTE]),
        run_exec(2, pops=[TO_COMPUTE]),
        queues=[queue],
    )
    assert simulation.starts == [0, 0, 10]


def test_several_pops_are_waited_for_at_once() -> None:
    queues = [Queue("load", "compute", 4, True), Queue("store", "compute", 4, True)]
    simulation = play(
        run_exec(10, "load", pushes=[TO_COMPUTE]),
        run_exec(15, "store", pushes=[("store", "compute")]),
        run_exec(1, pops=[TO_COMPUTE, ("store", "compute")]),
        queues=queues,
    )
    assert simulation.starts[2] == 15
    assert str(simulation.causes[2]) == "queue store -> compute"


def test_a_blocked_push_keeps_its_command_until_a_pop_makes_room() -> None:
    queue = Queue("load", "compute", 1, True)
    simulation = play(
        run_exec(10, "load", pushes=[TO_COMPUTE]),
        run_exec(10, "load", pushes=[TO_COMPUTE]),
        run_exec(10, "load"),
        run_exec(50),
        run_exec(5, pops=[TO_COMPUTE]),
        run_exec(5, pops=[TO_COMPUTE]),
        queues=[queue],
    )
    # The second is done at 20, and complete when the pop at 50 makes room.
    assert simulation.finishes[:3] == [10, 20, 60]
    assert simulation.ends[:3] == [10, 50, 60]
    assert simulation.starts == [0, 10, 50, 0, 50, 55]
    use = simulation.units[0]
    assert (use.busy, use.stalls) == (30, (("push", 30),))


def test_pushes_are_made_in_the_order_written() -> None:
    queues = [Queue("load", "compute", 1, True), Queue("load", "store", 1, True)]
    TO_STORE = ("load", "store")
    simulation = play(
        run_exec(1, "load", pushes=[TO_COMPUTE]),
        run_exec(1, "load", pushes=[TO_STORE, TO_COMPUTE]),
        run_exec(20),
        run_exec(1, pops=[TO_COMPUTE]),
        run_exec(1, pops=[TO_COMPUTE]),
        run_exec(1, "store", pops=[TO_STORE]),
        queues=queues,
    )
    # The store goes on at 2, though the command that let it is complete at 20 only.
    assert simulation.ends[1] == 20
    assert simulation.starts[5] == 2


def test_nobody_goes_between_two_pushes_of_a_command_that_wait_for_one_queue() -> None:
    simulation = play(
        dma("two", 1, pushes=[TO_COMPUTE] * 3),
        dma("two", 1, pushes=[TO_COMPUTE]),
        run_exec(20),
        *(run_exec(10, pops=[TO_COMPUTE]) for _ in range(4)),
        queues=[Queue("load", "compute", 1, True)],
    )
    # Pops at 20, 30 and 40 let the second and third push of the first through, and then the other's.
    assert simulation.ends[:2] == [30, 40]


def test_who_ends_pushes_before_one_that_a_pop_lets_through_in_the_same_cycle() -> None:
    # At cycle 10 the second transfer ends, and the pop lets the first one through to where there is room for one.
    simulation = play(
        carrier("load", pushes=[TO_COMPUTE]),
        dma("own", 1, pushes=[TO_COMPUTE, TO_STORE]),
        dma("own", 6, pushes=[TO_STORE]),
        run_exec(10),
        carrier("compute", pops=[TO_COMPUTE]),
        run_exec(20, "store"),
        carrier("store", pops=[TO_STORE]),
        queues=[Queue(*TO_COMPUTE, 1, True), Queue(*TO_STORE, 1, True)],
    )
    assert simulation.ends == [0, 20, 10, 10, 10, 20, 20]


def test_a_push_comes_before_a_pop_of_the_same_cycle() -> None:
    commands = [
        run_exec(10, "load", pushes=[TO_COMPUTE]),
        run_exec(10, "load", pushes=[TO_COMPUTE]),
        run_exec(20),
        run_exec(1, pops=[TO_COMPUTE]),
        run_exec(1, pops=[TO_COMPUTE]),
    ]
    full = play(*commands, queues=[Queue("load", "compute", 1, False)])
    assert full.fault == Overflow(20, 1, TO_COMPUTE)
    with pytest.raises(UserError, match='queue from "load" to "compute" is full at cycle 20'):
        _ = full.cycles
    assert play(*commands, queues=[Queue("load", "compute", 1, True)]).cycles == 22


def test_a_barrier_is_passed_at_the_end_of_all_before_it() -> None:
    simulation = play(run_exec(30, "load"), run_exec(5), run_exec(5), run_exec(5, "store"), barriers=(2,))
    assert simulation.starts == [0, 0, 30, 30]
    assert str(simulation.causes[3]) == "barrier"


def test_barriers_without_commands_between_are_one() -> None:
    assert play(run_exec(3), run_exec(4, "load"), barriers=(0, 1, 1, 2)).cycles == 7


# the end


def test_a_deadlock_names_what_each_unit_waits_for() -> None:
    queues = [Queue("load", "compute", 4, False), Queue("compute", "load", 4, False)]
    simulation = play(
        run_exec(7, "store"),
        run_exec(1, "load", pops=[TO_LOAD], pushes=[TO_COMPUTE]),
        run_exec(1, pops=[TO_COMPUTE], pushes=[TO_LOAD]),
        run_exec(1, "store", after=(2,)),
        queues=queues,
    )
    assert isinstance(simulation.fault, Deadlock)
    assert simulation.fault.time == 7
    assert [str(stuck) for stuck in simulation.fault.stuck] == [
        '"load" at command 1, which waits for a token in the queue from "compute"',
        '"compute" at command 2, which waits for a token in the queue from "load"',
        '"store" at command 3, which waits for command 2 of "compute"',
    ]
    with pytest.raises(UserError, match='deadlock at cycle 7: "load" at command 1'):
        _ = simulation.units


def test_a_push_that_is_never_let_through_is_a_deadlock() -> None:
    simulation = play(
        run_exec(1, "load", pushes=[TO_COMPUTE]),
        run_exec(1, "load", pushes=[TO_COMPUTE]),
        run_exec(1, after=(1,)),
        queues=[Queue("load", "compute", 1, True)],
    )
    assert isinstance(simulation.fault, Deadlock)
    assert [str(stuck) for stuck in simulation.fault.stuck] == [
        '"load" at command 1, which waits for room in the queue from "load" to "compute"',
        '"compute" at command 2, which waits for command 1 of "load"',
    ]


def test_no_commands_take_no_time() -> None:
    simulation = play()
    assert (simulation.cycles, simulation.ratio, simulation.ideal.resource) == (0, 1.0, "")


def test_the_ideal_time_is_that_of_the_busiest_unit_or_bus() -> None:
    by_bus = play(dma("two", 10), dma("two", 10), dma("out", 30))
    assert (by_bus.ideal.cycles, by_bus.ideal.resource) == (50, "bus bus")
    by_unit = play(dma("two", 1), run_exec(20, "load"), run_exec(3))
    assert (by_unit.ideal.cycles, by_unit.ideal.resource) == (20 + Fraction(9, 2), "unit load")


def test_stalls_are_told_by_cause() -> None:
    simulation = play(
        dma("slow", 10), run_exec(5, after=(0,)), dma("acc", 10), dma("back", 4, after=(1,)), dma("slow", 30)
    )
    load, compute, store = simulation.units
    # The second load asks at 26, and compute, which ends its exec at 23, at 31.
    assert (load.busy, load.stalls) == (40, (("latency", 16), ("done", 10)))
    assert (compute.busy, compute.stalls) == (15, (("bus", 25), ("latency", 8), ("token load", 18)))
    assert (store.busy, store.stalls) == (4, (("latency", 8), ("token compute", 23), ("done", 31)))


# what is refused


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (Command("vector", Kind.EXEC), 'the machine "hand" has no unit "vector"'),
        (Command("load", Kind.TRANSFER, engine="mvin"), 'has no DMA engine "mvin"'),
        (Command("load", Kind.TRANSFER, engine="out"), 'the engine "out" is driven by "store", not by "load"'),
        (carrier("load", pops=[TO_COMPUTE]), 'the unit "load" pops the queue from "load" to "compute"'),
        (carrier("compute", pushes=[TO_COMPUTE]), '"compute" pushes into the queue from "load" to "compute"'),
        (carrier("store", pushes=[("store", "load")]), 'has no queue from "store" to "load"'),
        (run_exec(1, after=(7,)), "command 0 comes after one that is not there"),
        (run_exec(-1), "command 0 takes -1 cycles"),
    ],
)
def test_commands_that_the_machine_does_not_have_are_refused(command: Command, message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(Program(machine(Queue("load", "compute", 1, True)), [command]))
