# SPDX-License-Identifier: Apache-2.0
"""The domain of a command of the program, cut into blocks that one command of the machine covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from xdsl.ir import SSAValue

from penstock.dialects.machine import DRAM, CommandForm, CommandOperand, SpelledPart, TargetOp
from penstock.lowering.accel_to_issues.places import Move, Place
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.index_builder import Index


@dataclass(frozen=True)
class Dim:
    """A dim of the domain: the part from `low` to below `high` is done."""

    extent: int
    low: Index
    high: Index
    is_reduction: bool
    moves: tuple[Move, ...]
    """Of each operand."""

    @property
    def is_static(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def is_never_empty(self) -> bool:
        least = (AffineIndex.of(self.high) - AffineIndex.of(self.low)).range[0]
        return least is not None and least > 0

    @property
    def is_whole(self) -> bool:
        return self.low == 0 and self.high == self.extent


@dataclass(frozen=True)
class Operand:
    """An operand of a command of the program."""

    form: CommandOperand
    memref: SSAValue
    element: int
    """Bytes of an element."""
    place: Place | None
    """Where it begins in its scope; None off chip."""
    start: Index = 0
    """Off chip: the elements from the first of the memref to where it begins."""

    @property
    def scope(self) -> str:
        return DRAM if self.place is None else self.place.scope.sym_name.data

    def is_unit(self, move: Move) -> bool:
        """Whether a step is one element."""
        return move == (Move(self.element) if self.place is None else Move(0, 1))


@dataclass(frozen=True)
class Assignment:
    """Which dim of the domain plays a dim of the command, and the most that a command covers of it."""

    dim: int
    most: int


def merged(dims: Sequence[Dim], *, sums: bool = True) -> list[Dim]:
    """
    The dims without those of one index, and with neighbours merged that all operands walk as one; without `sums` only
    those that nothing is summed over: merged dims of a sum may be longer than the rows that overlap there are apart.
    """
    found: list[Dim] = []
    for dim in dims:
        if dim.extent == 1 and dim.is_whole:
            continue
        last = found[-1] if found else None
        if (
            last is not None
            and last.is_whole
            and dim.is_whole
            and last.is_reduction == dim.is_reduction
            and (sums or not dim.is_reduction)
            and all(outer == inner.times(dim.extent) for outer, inner in zip(last.moves, dim.moves, strict=True))
        ):
            extent = last.extent * dim.extent
            found[-1] = Dim(extent, 0, extent, dim.is_reduction, dim.moves)
        else:
            found.append(dim)
    return found


def assign(
    part: SpelledPart, form: CommandForm, operands: Sequence[Operand], dims: Sequence[Dim], target: TargetOp
) -> dict[str, Assignment]:
    """For each dim of the command the longest of the domain that can play it; those that none plays are left out."""
    found: dict[str, Assignment] = {}
    scopes = {operand.form.name: operand.scope for operand in operands}
    for name, shape in form.dims.items():
        fitting = [
            number
            for number, dim in enumerate(dims)
            if number not in {each.dim for each in found.values()} and _fits(name, dim, form, operands)
        ]
        fitting = [
            number
            for number in fitting
            if _is_as_required(part, name, dims[number], operands)
            and _has_room(part, name, dims[number], {each: dims[one.dim] for each, one in found.items()}, operands)
        ]
        if not fitting:
            continue
        number = max(fitting, key=lambda each: (dims[each].extent, each))
        limits = [dims[number].extent] if shape is None or form.is_call else [dims[number].extent, shape[1]]
        limit = part.block_limits.get(name)
        if limit is not None:
            limits += form.limit_in_elements(limit, name, target.scopes(), scopes)
        found[name] = Assignment(number, _whole_granules(min(limits), name, dims[number], operands))
    return found


def _whole_granules(most: int, name: str, dim: Dim, operands: Sequence[Operand]) -> int:
    """Where a dim takes several blocks, they begin at granules."""
    if most >= dim.extent:
        return most
    units = [each.place.per_granule for each in operands if each.place is not None and each.form.dims.get(name)]
    granules = lcm(*units)
    return max(1, most // granules) * granules if most >= granules else most


def _fits(name: str, dim: Dim, form: CommandForm, operands: Sequence[Operand]) -> bool:
    if dim.is_reduction != (name in form.reductions):
        return False
    for operand, move in zip(operands, dim.moves, strict=True):
        is_unit = operand.form.dims.get(name)
        if is_unit is None and move != Move():
            return False
        if is_unit and not operand.is_unit(move):
            return False
        if is_unit is False and move.elements:
            return False
    return True


def _is_as_required(part: SpelledPart, name: str, dim: Dim, operands: Sequence[Operand]) -> bool:
    """Whether the steps of a dim are what the part requires of them."""
    for field, wanted in part.required.items():
        operand_name, *rest = field.split(".")
        if rest[-1] != name or len(rest) != 2 or isinstance(wanted, str):
            continue
        for operand, move in zip(operands, dim.moves, strict=True):
            if operand.form.name == operand_name and step_of(operand, move, rest[0]) != wanted:
                return False
    return True


def _has_room(part: SpelledPart, name: str, dim: Dim, others: Mapping[str, Dim], operands: Sequence[Operand]) -> bool:
    """Whether steps that are to be no less than an extent are so, with those dims that have been assigned before."""
    known = {**others, name: dim}
    for field, least in part.required.items():
        operand_name, measure, along = field.split(".")
        if not isinstance(least, str) or name not in (along, least) or along not in known or least not in known:
            continue
        for operand, move in zip(operands, known[along].moves, strict=True):
            step = step_of(operand, move, measure) if operand.form.name == operand_name else known[least].extent
            if step is None or step < known[least].extent:
                return False
    return True


def step_of(operand: Operand, move: Move, measure: str) -> int | None:
    """A step in bytes, rows or elements; None for what is no whole number of them."""
    granule = operand.place.granule if operand.place is not None else 1
    distance = move.distance * granule + move.elements * operand.element
    unit = {"bytes": 1, "elements": operand.element, "rows": granule}[measure]
    return None if distance % unit else distance // unit
