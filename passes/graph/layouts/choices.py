# SPDX-License-Identifier: Apache-2.0
"""The ways to compute each op of a graph, what each of them and each change of layout costs, and the best of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import boolean
from penstock.dialects.graph.layout import default_filters, image_layout, layout_of_rank, parse_layout
from penstock.passes.graph.layouts.forms import (
    Order,
    bytes_of,
    is_free,
    letters_of,
    moves_units_only,
    order_of,
    plain,
    rank_of,
)
from penstock.passes.graph.layouts.preferences import CONTRACTION, Preference, Preferences, moved_bytes
from penstock.passes.graph.layouts.rules import Need, OpForm, op_form, unchanged
from penstock.passes.graph.values import LAYOUT_ATTRIBUTE
from penstock.passes.planning.assignment import TABLE_LIMIT, Assignment, CostTable, solve
from penstock.passes.shapes import shape_of

ImageOp = graph.ConvOp | graph.PoolOp | graph.GlobalPoolOp | graph.LrnOp


@dataclass
class Variable:
    """An op, the ways to compute it, and the penalty of each in bytes."""

    op: Operation
    choices: list[OpForm] = field(default_factory=list[OpForm])
    penalties: list[int] = field(default_factory=list[int])

    def offer(self, choice: OpForm, penalty: int = 0) -> None:
        """Add a way, unless it is there."""
        if choice not in self.choices:
            self.choices.append(choice)
            self.penalties.append(penalty)


def image_form(op: ImageOp, preference: Preference) -> OpForm:
    """An op on images in the layout `preference`."""
    if preference.images == graph.NCHW:
        return unchanged(op)._replace(keeps_layout=True)
    rank = rank_of(op.x)
    letters = letters_of(rank, ())
    layout = image_layout(preference.images, rank + ("c" in preference.images))
    order = order_of(layout, letters)
    properties = {"layout": StringAttr(preference.images)}
    needs = [Need(order)]
    if isinstance(op, graph.ConvOp):
        names = letters.replace("NC", "OI")
        words = preference.filters or default_filters(preference.images)
        assert words is not None
        if preference.filters is not None:
            properties["filters"] = StringAttr(preference.filters)
        blocks = sum(part.block is not None for part in parse_layout(words).parts)
        filters = layout_of_rank(words, rank + blocks)
        needs.append(Need(order_of(filters, names), letters=names))
        vector = Order((0,), tuple((0, size) for _, size in order.blocks))
        needs += [] if op.b is None else [Need(vector, letters="O")]
    return OpForm(tuple(needs), order, properties)


def product_form(op: graph.GemmOp | graph.MatmulOp, preference: Preference) -> OpForm | None:
    """A product with a matrix as a convolution of one row of images with filters of one element; None if it is none."""
    a, b = op.operands[:2]
    rank = rank_of(a)
    if not 2 <= rank <= 4 or rank_of(b) != 2 or 0 in shape_of(a):
        return None
    names = "IO"
    if isinstance(op, graph.GemmOp):
        if (
            op.trans_a
            or op.alpha.value.data != 1
            or (op.c is not None and (rank_of(op.c) != 1 or op.beta.value.data != 1))
        ):
            return None
        if op.c is not None and shape_of(op.c) != shape_of(op.result)[1:]:
            return None
        names = "OI" if op.trans_b else "IO"
    assert preference.filters is not None
    blocks = parse_layout(preference.images).blocks("C")
    order = Order(plain(rank).perm, tuple((rank - 1, block) for block in blocks), units=4 - rank)
    filters = order_of(parse_layout(preference.filters.replace("HW", "")), names)
    needs = [Need(order), Need(filters, letters=names)]
    if len(op.operands) > 2:
        needs.append(Need(Order((0,), tuple((0, block) for block in blocks)), letters="O"))
    properties = {"layout": StringAttr(preference.images), "filters": StringAttr(preference.filters)}
    return OpForm(tuple(needs), order, properties, is_product=True)


def oriented_form(op: graph.GemmOp | graph.MatmulOp, trans_a: bool, trans_b: bool) -> OpForm:
    """A product with a matrix as a gemm whose factors are stored transposed, or not."""
    gemm = op if isinstance(op, graph.GemmOp) else None
    present = (False, False) if gemm is None else (bool(gemm.trans_a), bool(gemm.trans_b))
    needs = [
        # The rows of several matrices are those of one, which is transposed after it is made.
        Need(Order((1, 0)) if wanted != held and rank_of(value) == 2 else plain(rank_of(value)))
        for value, wanted, held in zip(op.operands[:2], (trans_a, trans_b), present, strict=True)
    ]
    needs += [Need(plain(rank_of(value))) for value in op.operands[2:]]
    properties = {"trans_a": boolean(trans_a), "trans_b": boolean(trans_b)}
    return OpForm(tuple(needs), plain(rank_of(op.result)), properties)


class LayoutProblem:
    """
    The choice of a layout for every value of a block.

    A variable is an op that can be computed in several ways. A way costs its penalty, and a transpose that stays one
    the bytes that it moves; a value costs the bytes read and written by each form of it that is asked for and has to be
    made, once for all readers. Forms of constants cost nothing, since they are made at compile time, nor do those in
    which no element moves.
    """

    def __init__(self, block: Block, preferences: Preferences):
        self._preferences = preferences
        self._constants: set[SSAValue] = set()
        self._orders: dict[SSAValue, dict[Order, None]] = {value: {plain(rank_of(value)): None} for value in block.args}
        self._images = self._image_orders(block)
        self.variables = [self._variable(op) for op in block.ops]
        self._number = {each.op: number for number, each in enumerate(self.variables)}
        self._users: dict[SSAValue, list[int]] = {}
        for number, variable in enumerate(self.variables):
            for operand in dict.fromkeys(variable.op.operands):
                self._users.setdefault(operand, []).append(number)
        self._costs: dict[tuple[Attribute, Order, Need], int] = {}
        """By the type of a value: of many values of a network it is the same."""

    # the ways

    def _image_orders(self, block: Block) -> dict[int, list[Order]]:
        """For each rank the orders in which ops on images can have those."""
        found: dict[int, dict[Order, None]] = {}
        for op in block.ops:
            if isinstance(op, ImageOp) and has_layout(op):
                for preference, _ in self._preferences.of(op):
                    found.setdefault(rank_of(op.x), {})[image_form(op, preference).result] = None
        return {rank: list(orders) for rank, orders in found.items()}

    def _variable(self, op: Operation) -> Variable:
        variable = Variable(op)
        if isinstance(op, graph.GraphOp) and all(operand in self._constants for operand in op.operands):
            self._constants.add(op.result)
        elif isinstance(op, ImageOp) and has_layout(op):
            for preference, penalty in self._preferences.of(op):
                variable.offer(image_form(op, preference), penalty)
        else:
            penalty = _own_cost(op)
            if isinstance(op, graph.GemmOp | graph.MatmulOp):
                penalty = self._offer_products(op, variable) or penalty
            for order in self._offered(op):
                if (choice := op_form(op, order)) is not None:
                    variable.offer(choice)
            variable.offer(unchanged(op), penalty)
        if not variable.choices:
            variable.offer(unchanged(op))
        for result in op.results[:1]:
            self._orders[result] = dict.fromkeys(choice.result for choice in variable.choices)
        for result in op.results[1:]:
            self._orders[result] = {plain(rank_of(result)): None}
        return variable

    def _offer_products(self, op: graph.GemmOp | graph.MatmulOp, variable: Variable) -> int:
        """Offer what the machine's matrix intrinsic computes; returns what it costs not to, 0 if there is nothing."""
        if (found := self._preferences.of_product(op)) is not None:
            choice = product_form(op, found[0])
            if choice is not None:
                variable.offer(choice)
                return found[1]
        orientations = self._preferences.orientations_of(op)
        for trans_a, trans_b in orientations:
            variable.offer(oriented_form(op, trans_a, trans_b))
        # Here the second factor is counted, too: it may be what has to be transposed.
        return CONTRACTION * (moved_bytes(op) + bytes_of(op.b)) if orientations else 0

    def _offered(self, op: Operation) -> Iterable[Order]:
        """The orders in which operands of an op, or the images around it, may be stored."""
        found: dict[Order, None] = {}
        for operand in op.operands:
            if operand not in self._constants:
                found |= self._orders.get(operand, {})
        if isinstance(op, graph.PointwiseOp):
            found |= dict.fromkeys(self._images.get(rank_of(op.result), ()))
        return found

    # the costs

    def cost_of_form(self, value: SSAValue, held: Order, need: Need) -> int:
        """The bytes read and written to make the form that is needed of a value that is stored as `held`."""
        if value in self._constants or (need.order == held and need.sizes is None):
            return 0
        key = value.type, held, need
        if (known := self._costs.get(key)) is None:
            known = self._costs[key] = self._cost_of_form(value, held, need)
        return known

    def _cost_of_form(self, value: SSAValue, held: Order, need: Need) -> int:
        sizes, order = shape_of(value), need.order
        if need.sizes is not None:
            rank = len(need.sizes)
            extended = [1] * (rank - len(sizes)) + list(sizes)
            order = order.without_repeated(extended)
            if len(sizes) < rank:
                before = self._change(value, sizes, held, plain(len(sizes)))
                return before + self._change(value, extended, plain(rank), order)
        return self._change(value, sizes, held, order)

    def _change(self, value: SSAValue, sizes: Sequence[int], held: Order, wanted: Order) -> int:
        if is_free(sizes, held, wanted):
            # Where blocks are whole channels, or images a pixel, any order will do; a change only parts two ops.
            return int(bool(held.blocks or wanted.blocks) and held != wanted)
        return bytes_of(value, held.shape(sizes)) + bytes_of(value, wanted.shape(sizes))

    def tables(self) -> list[CostTable]:
        """The costs: one table for the penalties of each op that has a choice, and one for the forms of each value."""
        tables = [
            CostTable((number,), np.array(variable.penalties, np.int64))
            for number, variable in enumerate(self.variables)
            if any(variable.penalties)
        ]
        for value, users in self._users.items():
            producer = self._number.get(value.owner) if isinstance(value.owner, Operation) else None
            if value not in self._constants:
                tables += self._tables_of(value, producer, users)
        return tables

    def _tables_of(self, value: SSAValue, producer: int | None, users: Sequence[int]) -> list[CostTable]:
        """The costs of the forms of one value; if it has very many users, as if each had forms of its own."""
        numbers = sorted({*users} if producer is None else {*users, producer})
        numbers = [number for number in numbers if len(self.variables[number].choices) > 1]
        shape = [len(self.variables[number].choices) for number in numbers]
        if prod(shape) > TABLE_LIMIT and len(users) > 1:
            return [table for user in users for table in self._tables_of(value, producer, [user])]
        costs = np.zeros(shape, np.int64)
        for options in np.ndindex(*shape):
            chosen = dict(zip(numbers, options, strict=True))
            costs[options] = self._cost_of_value(value, producer, users, chosen)
        return [CostTable(tuple(numbers), costs)] if costs.any() else []

    def _cost_of_value(
        self, value: SSAValue, producer: int | None, users: Sequence[int], chosen: Mapping[int, int]
    ) -> int:
        held = plain(rank_of(value))
        if producer is not None and value is self.variables[producer].op.results[0]:
            held = self.variables[producer].choices[chosen.get(producer, 0)].result
        needs: dict[Need, None] = {}
        for user in users:
            variable = self.variables[user]
            choice = variable.choices[chosen.get(user, 0)]
            for operand, need in zip(variable.op.operands, choice.needs, strict=True):
                if operand is value:
                    needs[need] = None
        return sum(self.cost_of_form(value, held, need) for need in needs)

    def solve(self) -> Assignment:
        """
        The choice of the least cost: exact on trees and on all graphs of which no table gets too large, by
        elimination; on others the best that is found from every op in its preferred layout and from none changed.
        """
        sizes = [len(variable.choices) for variable in self.variables]
        preferred = [int(np.argmin(variable.penalties)) for variable in self.variables]
        unchanged = [len(variable.choices) - 1 for variable in self.variables]
        return solve(sizes, self.tables(), [preferred, unchanged])


def _own_cost(op: Operation) -> int:
    """The bytes that a transpose of the graph moves if it stays one; 0 for other ops."""
    if not isinstance(op, graph.TransposeOp) or moves_units_only(shape_of(op.x), op.perm.get_values()):
        return 0
    return bytes_of(op.x) + bytes_of(op.result)


def has_layout(op: ImageOp) -> bool:
    """Whether the layout of an op is still to be chosen: it is ONNX's, and nothing says that it shall be."""
    return op.layout.data == graph.NCHW and LAYOUT_ATTRIBUTE not in op.attributes and 3 <= rank_of(op.x) <= 5
