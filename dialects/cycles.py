# SPDX-License-Identifier: Apache-2.0
"""
Cycles of a command as plain data: what an application of an intrinsic takes, as an expression of its extents, and what
the operand takes that stays in a unit while it is reused.

Machines say it, and clocks and planners count with it: extents may be numbers, or arrays with one for each of many
tiles.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from penstock.dialects.diagnostics import ExpressionFault

Number = Any
"""An int, or an array of them."""


@dataclass(frozen=True)
class Cycles:
    """
    An expression of the extents of one application: `max(m, 256)`, `16 * ceildiv(k, 8)`, `m + n + k - 2`.

    It has whole numbers, dims, `+`, `-`, `*`, and `max`, `min` and `ceildiv` of two.
    """

    text: str
    dims: tuple[str, ...]
    """The names that it may use, in the order of the extents."""

    @property
    def used(self) -> frozenset[int]:
        """The dims that it depends on. Raises ExpressionFault for a text that is no expression of the dims."""
        return _parse(self.text, self.dims)[1]

    def at(self, extents: Sequence[Number]) -> Number:
        """Its value at these extents, one for each dim. Raises ExpressionFault for a text that is no expression."""
        return _parse(self.text, self.dims)[0](extents)


@dataclass(frozen=True)
class Loop:
    """A dim of the domain of a command."""

    extent: Number
    block: int = 1
    """How much of it one application takes, at most."""
    dim: int | None = None
    """The dim of the intrinsic that takes it; None for a loop around applications."""
    moves: bool = True
    """Whether it moves through the stationary operand."""
    reuses: bool = False
    """Whether it is inside of those that do, and the operand stays meanwhile."""

    @property
    def trips(self) -> Number:
        """How many blocks it is cut into."""
        return -(-self.extent // self.block)


@dataclass(frozen=True)
class Timing:
    """
    The cycles of the applications of an intrinsic.

    A unit with a stationary operand has one block of it at a time, and `load` is what it takes to bring the next one
    in, while nothing else happens. The loops that move through the result and not through that operand are inside of
    the others, so sums stay in their order; a block is loaded when one of the loops outside of these has moved on.
    """

    interval: Cycles | int
    """From one application to the next."""
    load: Cycles | int | None = None
    """To load a block of the stationary operand; None where there is none."""

    def cycles(self, loops: Sequence[Loop]) -> Number:
        """Of all applications that a domain takes, its loops outermost first, and of all loads."""
        return _sum(self.interval, loops) + self.loading(loops)

    def loading(self, loops: Sequence[Loop]) -> Number:
        """Of all loads."""
        return 0 if self.load is None else _sum(self.load, _moving(loops)) * repeats_of(loops)

    def loads(self, loops: Sequence[Loop]) -> Number:
        """How often a block of the stationary operand is loaded."""
        return 0 if self.load is None else _sum(1, _moving(loops)) * repeats_of(loops)

    def first_load(self, loops: Sequence[Loop]) -> int:
        """The cycles of the first load of a command."""
        blocks = [Loop(min(each.extent, each.block), each.block, each.dim) for each in _moving(loops)]
        return 0 if self.load is None else _sum(self.load, blocks)


def _moving(loops: Sequence[Loop]) -> list[Loop]:
    return [each for each in loops if each.moves]


def repeats_of(loops: Sequence[Loop]) -> Number:
    """How often all blocks of the stationary operand are visited: in each iteration of the loops outside of them."""
    repeats: Number = 1
    inside: Number = False
    for loop in reversed(loops):
        if loop.moves:
            inside = inside | (loop.trips > 1)
        elif not loop.reuses:
            repeats = repeats * (1 + (loop.trips - 1) * inside)
    return repeats


def loops_of(
    extents: Sequence[Number],
    covered: Sequence[tuple[int | None, int]],
    through_stationary: Sequence[bool],
    through_result: Sequence[bool],
) -> tuple[Loop, ...]:
    """
    The loops of a domain: of each dim the extent, the dim of the intrinsic that covers it with the most that it takes,
    and whether it moves through the stationary operand and through the result.
    """
    return tuple(
        Loop(extent, block, dim, moves, result and not moves)
        for extent, (dim, block), moves, result in zip(
            extents, covered, through_stationary, through_result, strict=True
        )
    )


def _sum(cost: Cycles | int, loops: Sequence[Loop]) -> Number:
    """The cost over all blocks of the loops; the last block of each is what is left."""
    used = cost.used if isinstance(cost, Cycles) else frozenset[int]()
    terms: list[tuple[Number, dict[int, Number]]] = [(1, {})]
    for loop in loops:
        if loop.dim is None or loop.dim not in used:
            terms = [(count * loop.trips, extents) for count, extents in terms]
            continue
        whole, rest = loop.extent // loop.block, loop.extent % loop.block
        terms = [
            (count * times, {**extents, loop.dim: extent})
            for count, extents in terms
            for times, extent in ((whole, loop.block), ((rest > 0) * 1, rest))
        ]
    if not isinstance(cost, Cycles):
        return sum(count for count, _ in terms) * cost
    return sum(count * cost.at([extents.get(dim, 1) for dim in range(len(cost.dims))]) for count, extents in terms)


# the text

_Evaluate = Callable[[Sequence[Number]], Number]


def _larger(one: Number, other: Number) -> Number:
    return one + (other - one) * (other > one)


_CALLS: dict[str, Callable[[Number, Number], Number]] = {
    "max": _larger,
    "min": lambda one, other: -_larger(-one, -other),
    "ceildiv": lambda one, other: -(-one // other),
}
_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
}


@lru_cache(maxsize=1024)
def _parse(text: str, dims: tuple[str, ...]) -> tuple[_Evaluate, frozenset[int]]:
    """The function that a text is, and the dims that it uses."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise ExpressionFault("is no expression", 0) from None
    used: set[int] = set()

    def evaluator(node: ast.expr) -> _Evaluate:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return lambda extents: number
            case ast.Name(id=name):
                if name not in dims:
                    raise ExpressionFault(f'has no dim "{name}"', node.col_offset, (f"its dims are {', '.join(dims)}",))
                dim = dims.index(name)
                used.add(dim)
                return lambda extents: extents[dim]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _both(_OPERATORS[type(op)], evaluator(left), evaluator(right))
            case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _CALLS:
                if name == "ceildiv" and not (isinstance(right, ast.Constant) and right.value):
                    raise ExpressionFault("divides by something else than a number above zero", right.col_offset)
                return _both(_CALLS[name], evaluator(left), evaluator(right))
            case _:
                notes = (f"it has whole numbers, dims, +, -, *, and {', '.join(_CALLS)} of two",)
                raise ExpressionFault("has what no count of cycles is made of", node.col_offset, notes)

    return evaluator(tree), frozenset(used)


def _both(what: Callable[[Number, Number], Number], left: _Evaluate, right: _Evaluate) -> _Evaluate:
    return lambda extents: what(left(extents), right(extents))
