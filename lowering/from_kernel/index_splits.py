# SPDX-License-Identifier: Apache-2.0
"""
Quotients and remainders of indices: where `i // 2` or `i % 2` stands, a statement is one over two indices for `i`.

What it computes has two dims where the left has one, of the quotients and of the remainders, and is reshaped: the index
maps stay affine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from penstock.lowering.from_kernel.accesses import IndexRange, Space
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import Numbers, number_of
from penstock.lowering.from_kernel.syntax import Binary, Expression, Name, Node, Number, rewritten, walk


def split_indices(value: Expression, space: Space, numbers: Numbers) -> tuple[dict[str, IndexRange], Expression] | None:
    """
    The space and the right side of a statement without quotients and remainders of its indices; None if there are none.

    Raises Fault for a divisor that does not divide the range of the index, and for two divisors of one index.
    """
    divisors: dict[str, int] = {}
    for node in walk(value):
        if not isinstance(node, Binary) or node.operator not in ("//", "%") or not isinstance(node.left, Name):
            continue
        name, divisor = node.left.name, number_of(node.right, numbers)
        if (range := space.get(name)) is None or divisor is None:
            continue
        if isinstance(divisor, bool) or not isinstance(divisor, int) or divisor < 1:
            raise Fault(f"an index is divided by a positive integer, not by {divisor}", node.right)
        if range.start or range.size % divisor:
            where = f"{range.start} to {range.stop - 1}"
            raise Fault(f'"{name}" runs over {where}, which {divisor} does not divide', node, ["pad the target first"])
        if divisors.setdefault(name, divisor) != divisor:
            raise Fault(f'"{name}" is divided by {divisors[name]} and by {divisor}', node)
    if not divisors:
        return None
    split: dict[str, IndexRange] = {}
    for name, range in space.items():
        if name in divisors:
            split[_high(name)] = IndexRange(0, range.size // divisors[name])
            split[_low(name)] = IndexRange(0, divisors[name])
        else:
            split[name] = range
    return split, cast(Expression, rewritten(value, lambda node: _written(node, divisors)))


def _high(name: str) -> str:
    return f"{name} // "


def _low(name: str) -> str:
    return f"{name} % "


def _written(node: Node, divisors: Mapping[str, int]) -> Node | None:
    """What the two indices that stand for one make of a node that is an index, or a quotient or a remainder of one."""
    match node:
        case Binary(operator="//" | "%" as sign, left=Name() as index) if index.name in divisors:
            return Name(_high(index.name) if sign == "//" else _low(index.name), at=index.at)
        case Name() if node.name in divisors:
            high = Binary("*", Name(_high(node.name), at=node.at), Number(str(divisors[node.name])), at=node.at)
            return Binary("+", high, Name(_low(node.name), at=node.at), at=node.at)
        case _:
            return None
