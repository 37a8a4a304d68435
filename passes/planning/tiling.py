# SPDX-License-Identifier: Apache-2.0
"""
A tile plan: the sizes of a tile, the order of the loops, and how many slots each scope has for what is refilled.

A tile nest computes a box of an iteration domain at a time. Every operand moves through some of the dims; the part of
it that one box touches is held in a scope, and is fetched again whenever a loop that it depends on advances. With B
slots in a scope its transfers run up to B iterations ahead of the ops, and what is refilled takes B times its bytes, so
the depth of the pipeline and the size of the tiles are one question.

Those three are all that a tiler decides. What a plan costs follows from them, by `tile_cost`, for every tiler: bytes,
time and bounds of different tilers can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np

from penstock.passes.planning.pipelining import NestTime
from penstock.passes.planning.tile_cost import Tiles, bytes_moved, fetch_counts, picojoules, time_of_tile
from penstock.passes.planning.tile_problem import (
    Ints,
    TileDim,
    TileProblem,
    held_bytes,
    is_refilled,
    slots_of,
)

TIE = 0.03
"""Times that differ by no more than this share are the same, as far as the model can tell."""


@dataclass(frozen=True)
class TilePlan:
    """A tile for every dim of a problem, the order of the loops, and the slots of each scope."""

    problem: TileProblem
    """What it is a plan for."""
    tile: tuple[int, ...]
    """The size in every dim: its extent where it is not cut, more where it is padded."""
    order: tuple[int, ...] = ()
    """The dims that are cut, which become loops, outermost first: parallel ones, then reductions."""
    depths: Mapping[str, int] = field(default_factory=dict[str, int])
    """The slots for what a loop refills, by scope; one where none are said."""
    runner_up: TilePlan | None = None
    """The best plan with another tile, for people; None where the tiler names none."""

    @property
    def dims(self) -> tuple[TileDim, ...]:
        return self.problem.dims

    @cached_property
    def edges(self) -> tuple[str, ...]:
        """
        What happens in each dim where a tile does not divide it.

        "divides", "whole", "overlap" (the last tile is shifted inwards and computes some elements again), "zeros" (the
        last tile of a reduction reads zeros after the end) or "padded" (the one tile is longer than the dim, and what
        is after the end is computed for nothing).
        """
        return tuple(_edge(dim, size) for dim, size in zip(self.dims, self.tile, strict=True))

    @cached_property
    def footprint(self) -> dict[str, int]:
        """The bytes of every scope, slots included."""
        return footprint(self.problem, self.tile, self.order, self.depths)

    @cached_property
    def bytes_moved(self) -> int:
        """Over the edge of the chip; what is out of the bounds of tensors is not moved."""
        return round(float(bytes_moved(self._alone, fetch_counts(self._alone, self.order))[0]))

    @cached_property
    def time(self) -> NestTime | None:
        """How long it is modelled to take; None where it is not known what computes."""
        return time_of_tile(self._alone, 0, self.order, self.depths) if self.problem.works else None

    @cached_property
    def picojoules(self) -> float | None:
        """The energy that it is modelled to take; None where that is not known."""
        if self.problem.leakage is None or self.time is None:
            return None
        counts = fetch_counts(self._alone, self.order)
        return float(picojoules(self._alone, self.order, counts)[0]) + self.problem.leakage * self.time.cycles

    def timed(self, time: NestTime | None) -> TilePlan:
        """This plan, whose time a search already knows."""
        self.__dict__["time"] = time
        return self

    @cached_property
    def _alone(self) -> Tiles:
        return Tiles(self.problem, [np.array([size]) for size in self.tile], np.ones(1, dtype=np.int64))

    @property
    def is_cut(self) -> bool:
        """Whether there is anything to do: a tile that is not the whole domain."""
        return self.tile != tuple(dim.extent for dim in self.dims)

    def describe(self) -> str:
        """The plan for people: how each dim that is cut is cut, outermost first, the work that is wasted, and why."""
        return "; ".join([*cut_text(self.dims, self.tile, self.order, self.edges), *self.reasons])

    @property
    def reasons(self) -> list[str]:
        """Why this tile, for people: its slots, what it is modelled to take, and the next best one."""
        if self.time is None:
            return []
        slots = [f'{count} slots in "{scope}"' for scope, count in self.depths.items() if count > 1]
        reasons = [", ".join(slots)] if slots else []
        reasons.append(f"modelled {self.time.cycles:,} cycles and {self.bytes_moved:,} bytes, limit {self.time.limit}")
        other = self.runner_up
        if other is not None and other.time is not None:
            tile = "x".join(map(str, other.tile))
            reasons.append(f"next best {tile}: {other.time.cycles:,} cycles and {other.bytes_moved:,} bytes")
        return reasons


def cut_text(dims: Sequence[TileDim], tile: Sequence[int], order: Sequence[int], edges: Sequence[str]) -> list[str]:
    """How each dim that is padded or cut is, for people, and the work that is wasted; outermost loop first."""
    parts: list[str] = []
    for number, dim in enumerate(dims):
        if tile[number] > dim.extent:
            how = "padded" if dim.parallel else "filled with zeros"
            parts.append(
                f"d{number} of {dim.extent} is {how} to {tile[number]}, {tile[number] / dim.extent - 1:.1%} extra work"
            )
    for number in order:
        extent, size = dims[number].extent, tile[number]
        pieces, kind = -(-extent // size), "parallel" if dims[number].parallel else "reduction"
        text = f"d{number} {kind}, {pieces} tiles of {size} in {extent}"
        if edges[number] == "overlap":
            text += f", the last overlaps, {pieces * size / extent - 1:.1%} is done twice"
        if edges[number] == "zeros":
            text += f", the last reads zeros, {pieces * size / extent - 1:.1%} extra work"
        parts.append(text)
    return parts


def _edge(dim: TileDim, size: int) -> str:
    if size == dim.extent:
        return "whole"
    if size > dim.extent:
        return "padded" if dim.parallel else "zeros"
    if dim.extent % size == 0:
        return "divides"
    return "overlap" if dim.parallel else "zeros"


class DoesNotFit(Exception):
    """No tile fits: `scope` overflows even with the smallest one, which needs `needed` bytes."""

    def __init__(self, scope: str, needed: int, capacity: int, parts: Sequence[tuple[str, int]]):
        super().__init__(f'the smallest tile needs {needed} bytes of "{scope}", which has {capacity}')
        self.scope = scope
        self.needed = needed
        self.capacity = capacity
        self.parts = tuple(parts)
        """The operands held in the scope and the bytes that each needs."""


# What tilers are written with


def loops_of(problem: TileProblem, tile: Sequence[int]) -> tuple[int, ...]:
    """The dims that a tile cuts in the order that a nest needs: the parallel ones, then the reductions."""
    cut = [number for number, (dim, size) in enumerate(zip(problem.dims, tile, strict=True)) if size < dim.extent]
    return tuple(sorted(cut, key=lambda number: not problem.dims[number].parallel))


def refilled_scopes(problem: TileProblem, loops: Iterable[int]) -> list[str]:
    """The scopes where one of the loops needs other parts in its iterations: where more than one slot is of use."""
    loops = tuple(loops)
    return list(dict.fromkeys(o.scope for o in problem.operands if o.scope is not None and is_refilled(o, loops)))


def equal_depths(problem: TileProblem, loops: Iterable[int], slots: int = 1) -> dict[str, int]:
    """So many slots in every scope that a loop refills; as many as the problem says where it says how many."""
    return dict.fromkeys(refilled_scopes(problem, loops), problem.depth or slots)


def footprint(
    problem: TileProblem, tile: Sequence[int], loops: Sequence[int], depths: Mapping[str, int]
) -> dict[str, int]:
    """The bytes that a tile takes of every scope, slots included."""
    used = dict.fromkeys(problem.capacity, 0)
    for operand in problem.operands:
        if operand.scope is not None:
            slots = slots_of(operand, depths) if is_refilled(operand, loops) else 1
            used[operand.scope] += int(held_bytes(operand, tile)) * slots
    return used


def tiles_that_fit(problem: TileProblem, choices: Sequence[Sequence[int]]) -> Tiles:
    """
    All tiles with one of the `choices` in each dim that fit every scope, with the slots that the problem asks for, or
    else with one. They are in the order of `itertools.product`.

    Raises DoesNotFit where none does.
    """
    grid = np.array(list(product(*choices)), dtype=np.int64).T
    fits = np.ones(grid.shape[1], dtype=bool)
    for scope, capacity in problem.capacity.items():
        fits &= _bytes_in(problem, scope, list(grid)) <= capacity
    if not fits.any():
        raise overflow(problem, [min(sizes) for sizes in choices])
    grid = grid[:, fits]
    return Tiles(problem, list(grid), np.ones(int(grid.shape[1]), dtype=np.int64))


def overflow(problem: TileProblem, tile: Sequence[int], depths: Mapping[str, int] | None = None) -> DoesNotFit:
    """The fault of a tile that does not fit, by default with the slots that the problem asks for, or else with one."""
    loops = loops_of(problem, tile)
    depths = equal_depths(problem, loops) if depths is None else depths
    for scope, needed in footprint(problem, tile, loops, depths).items():
        if needed > problem.capacity[scope]:
            held = [(o, slots_of(o, depths) if is_refilled(o, loops) else 1) for o in problem.operands]
            parts = [(o.name, int(held_bytes(o, tile)) * slots) for o, slots in held if o.scope == scope]
            return DoesNotFit(scope, needed, problem.capacity[scope], parts)
    raise ValueError(f"the tile {'x'.join(map(str, tile))} fits every scope")


def _bytes_in(problem: TileProblem, scope: str, tile: list[Ints]) -> Ints | int:
    """The bytes that each of many tiles takes of a scope."""
    total: Ints | int = 0
    for operand in problem.operands:
        if operand.scope != scope:
            continue
        held = held_bytes(operand, tile)
        if problem.depth is not None and operand.dims:
            is_cut = np.any([tile[dim] < problem.dims[dim].extent for dim in sorted(operand.dims)], axis=0)
            held = held * np.where(is_cut, slots_of(operand, {scope: problem.depth}), 1)
        total = total + held
    return total
