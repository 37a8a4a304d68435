"""An estimate of what many tiles take under one order of the loops, to rank them before the best are timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.passes.planning.tile_model import Channel, Ints
from penstock.passes.planning.tile_nests import Tiles, fetch_counts, level_of, slots_of


@dataclass
class Estimates:
    """What all tiles of a grid are estimated to take under one order of the loops."""

    tiles: Tiles
    loops: tuple[int, ...]
    counts: list[Ints] = field(init=False)
    moved: Ints = field(init=False)
    """Bytes over the edge of the chip."""

    def __post_init__(self) -> None:
        problem = self.tiles.problem
        self.counts = fetch_counts(self.tiles, self.loops)
        self.moved = self.tiles.ones * 0.0
        for operand, box, count in zip(problem.operands, self.tiles.boxes, self.counts, strict=True):
            passes = int(operand.reads) + int(operand.writes)
            self.moved = self.moved + count * box.elements * (operand.element_bytes * passes)
        self._transfers: list[tuple[int, Channel, Ints, Ints]] = []
        """The operand, the engine, how often, and how long the unit has to wait for one."""
        self._busy: dict[str, Ints] = {}
        self._computing: dict[str, Ints] = {}
        self._ends: Ints = self.tiles.ones * 0.0
        self._add_transfers()
        self._add_works()

    def _add_transfers(self) -> None:
        operands = self.tiles.problem.operands
        for number, operand in enumerate(operands):
            ways = [*zip(operand.fetch, self.tiles.fetches[number], strict=True)]
            ways += [*zip(operand.put, self.tiles.puts[number], strict=True)]
            for channel, cost in ways:
                self._move(number, channel, cost.cycles, cost.commands)

    def _move(self, number: int, channel: Channel, cycles: Ints, commands: Ints) -> None:
        count = self.counts[number]
        once = np.maximum(cycles, (cycles + commands * channel.latency) / channel.outstanding)
        self._add(f"unit {channel.unit}", count * once)
        if channel.bus is not None:
            self._add(f"bus {channel.bus}", count * cycles)
        self._transfers.append((number, channel, count, once + (channel.latency if channel.outstanding > 1 else 0)))
        self._ends = self._ends + once

    def _add(self, resource: str, cycles: Ints) -> None:
        self._busy[resource] = self._busy.get(resource, 0) + cycles

    def _add_works(self) -> None:
        tiles, problem = self.tiles, self.tiles.problem
        parallel, every = tiles.ones, tiles.ones
        for dim in self.loops:
            every = every * tiles.trips[dim]
            if problem.dims[dim].parallel:
                parallel = parallel * tiles.trips[dim]
        for work, (cycles, commands) in zip(problem.works, tiles.work_cycles, strict=True):
            times = every if work.anchor else parallel
            if work.channel is not None:
                held = [number for number in work.reads if problem.operands[number].scope is not None]
                number = work.writes if problem.operands[work.writes].scope is not None else (held or [work.writes])[0]
                self._move(number, work.channel, cycles, commands)
                continue
            self._add(f"unit {work.unit}", times * cycles)
            self._computing[work.unit] = self._computing.get(work.unit, 0) + times * cycles

    def fits(self, depths: Mapping[str, int]) -> Ints:
        """Which tiles fit with so many slots for what is refilled."""
        tiles, found = self.tiles, self.tiles.ones > 0
        for scope, capacity in tiles.problem.capacity.items():
            used = tiles.ones * 0
            for operand, held, count in zip(tiles.problem.operands, tiles.held, self.counts, strict=True):
                if operand.scope == scope:
                    used = used + held * np.where(count > 1, slots_of(operand, depths), 1)
            found = found & (used <= capacity)
        return found

    def cycles(self, depths: Mapping[str, int]) -> Ints:
        """What the busiest resource needs, or ops and transfers where there is one slot, and the two ends."""
        operands = self.tiles.problem.operands
        computing = self.tiles.ones * 0.0
        for cycles in self._computing.values():
            computing = np.maximum(computing, cycles)
        exposed = self.tiles.ones * 0.0
        for number, channel, count, once in self._transfers:
            if depths.get(operands[number].scope or "", 1) < 2:
                exposed = exposed + np.where(count > 1, (count - 1) * once, 0)
                continue
            for other, beside, often, _ in self._transfers:
                # A transfer of an outer loop holds up those of the inner ones, which are only so far ahead.
                together = beside.unit == channel.unit or (channel.bus is not None and beside.bus == channel.bus)
                if together and level_of(operands[other], self.loops) > level_of(operands[number], self.loops):
                    slack = depths.get(operands[other].scope or "", 1) * computing / np.maximum(often, 1)
                    exposed = exposed + np.where((count > 1) & (often > count), (count - 1) * (once - slack), 0).clip(0)
        total = computing + exposed
        for cycles in self._busy.values():
            total = np.maximum(total, cycles)
        return total + self._ends
