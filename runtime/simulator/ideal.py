"""T*: the time below which no order of the same commands can come."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from penstock.passes.analysis.commands.program import Kind
from penstock.runtime.simulator.layout import Layout


@dataclass(frozen=True)
class Ideal:
    """The time of the busiest resource, if it never waited."""

    cycles: Fraction
    resource: str
    """`bus NAME` or `unit NAME`; the first of several, and empty where there are no commands."""


def ideal_of(layout: Layout) -> Ideal:
    """
    The largest of: over the buses, how long their transfers occupy them; over the units, the cycles of their
    execs and (latency + occupation) / outstanding of their transfers.
    """
    program = layout.program
    loads = {f"bus {name}": Fraction(0) for name in layout.buses}
    loads |= {f"unit {name}": Fraction(0) for name in program.machine.units}
    for number, command in enumerate(program.commands):
        engine = layout.engines[number]
        if command.kind is Kind.EXEC:
            loads[f"unit {command.unit}"] += command.cycles
        elif engine is not None:
            loads[f"bus {layout.buses[layout.bus_of[number]]}"] += command.cycles
            loads[f"unit {command.unit}"] += Fraction(engine.latency + command.cycles, engine.outstanding)
    resource = max(loads, key=lambda name: loads[name], default="")
    cycles = loads.get(resource, Fraction(0))
    return Ideal(cycles, resource if cycles else "")
