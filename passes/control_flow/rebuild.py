# SPDX-License-Identifier: Apache-2.0
"""A tree of choices and loops as ops of scf: variables become their results and the arguments of their regions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from xdsl.builder import Builder
from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseArrayBase,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    TensorType,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.locations import location_of_value
from penstock.passes.control_flow.tree import Assign, Choice, Loop, Ops, Steps, Variable

Values = dict[Variable, SSAValue | int]
"""What each variable is at one place; what is not there has no value on any way to it."""


class Rebuilder:
    """Writes a tree, and moves its ops. `variables` are those of the region, in their order; others are outside."""

    def __init__(self, variables: Iterable[Variable]):
        self._numbers = {variable: number for number, variable in enumerate(variables)}

    def write(self, builder: Builder, steps: Steps, values: Values, live: AbstractSet[Variable]) -> None:
        """Write steps after which `live` are read; `values` are those before them, and then those after them."""
        alive = [live]
        for node in reversed(steps.nodes[1:]):
            alive.append(node.live_before(alive[-1]))
        for node, after in zip(steps.nodes, reversed(alive), strict=False):
            match node:
                case Ops():
                    self._ops(builder, node, values)
                case Assign():
                    self._assign(node, values, after)
                case Choice():
                    self._choice(builder, node, values, after)
                case Loop():
                    self._loop(builder, node, values, after)
                case _:
                    raise AssertionError(node)

    def _ops(self, builder: Builder, node: Ops, values: Values) -> None:
        for op in node.ops:
            op.detach()
            self.replace_operands(op, values)
            builder.insert(op)
            values.update((result, result) for result in op.results)

    def replace_operands(self, op: Operation, values: Values) -> None:
        """Let an op read what its operands are here."""
        for inner in op.walk():
            for number, operand in enumerate(inner.operands):
                if operand in self._numbers and (value := values[operand]) is not operand:
                    assert isinstance(value, SSAValue)
                    inner.operands[number] = value

    def _assign(self, node: Assign, values: Values, live: AbstractSet[Variable]) -> None:
        assigned = {
            variable: value if isinstance(value, int) else self._at(value, values)
            for variable, value in node.values.items()
            if variable in live
        }
        for variable, value in assigned.items():
            if value is None:
                values.pop(variable, None)
            else:
                values[variable] = value

    def _choice(self, builder: Builder, node: Choice, values: Values, live: AbstractSet[Variable]) -> None:
        flag = self._at(node.flag, values)
        if isinstance(flag, int):
            chosen = next((n for n, case in enumerate(node.cases) if flag in case), len(node.cases))
            self.write(builder, node.arms[chosen], values, live)
            return
        assert flag is not None
        blocks = [Block() for _ in node.arms]
        ends = [dict(values) for _ in node.arms]
        for block, arm, end in zip(blocks, node.arms, ends, strict=True):
            self.write(Builder(InsertPoint.at_end(block)), arm, end, live)
        before = {value for value in values.values() if isinstance(value, SSAValue)}
        results: list[Variable] = []
        for variable in self._in_order(node.may & live):
            found = [value for end in ends if (value := self._at(variable, end)) is not None]
            if any(value is not found[0] and value != found[0] for value in found) or (
                found and isinstance(found[0], SSAValue) and found[0] not in before
            ):
                results.append(variable)
            elif found:
                values[variable] = found[0]
            else:
                values.pop(variable, None)
        for block, end in zip(blocks, ends, strict=True):
            inside = Builder(InsertPoint.at_end(block))
            inside.insert(scf.YieldOp(*(self._given(inside, variable, end) for variable in results)))
        if results or any(block.first_op is not block.last_op for block in blocks):
            op = _choose(builder, flag, node, blocks, [variable.type for variable in results])
            self._name(op.results, results, values)

    def _loop(self, builder: Builder, node: Loop, values: Values, live: AbstractSet[Variable]) -> None:
        read = {node.flag, *live}
        entering = node.before.live_before(read | node.after.uses)
        entering = node.before.live_before(read | node.after.live_before(entering))
        carried = [variable for variable in node.carried if variable in entering]
        inside = node.after.live_before(set(carried))
        passed = self._in_order({*carried, *node.before.may} & (live | inside))
        first = [self._given(builder, variable, values) for variable in carried]

        before, held = Block(arg_types=[variable.type for variable in carried]), dict(values)
        self._name(before.args, carried, held)
        within = Builder(InsertPoint.at_end(before))
        self.write(within, node.before, held, read | inside)
        flag = self._given(within, node.flag, held)
        if not node.goes_on:
            true = within.insert(arith.ConstantOp(IntegerAttr(1, i1)))
            flag = within.insert(arith.XOrIOp(flag, true.result)).result
        within.insert(scf.ConditionOp(flag, *(self._given(within, variable, held) for variable in passed)))

        after, held = Block(arg_types=[variable.type for variable in passed]), dict(values)
        self._name(after.args, passed, held)
        within = Builder(InsertPoint.at_end(after))
        self.write(within, node.after, held, set(carried))
        within.insert(scf.YieldOp(*(self._given(within, variable, held) for variable in carried)))

        types = [variable.type for variable in passed]
        loop = builder.insert(scf.WhileOp(first, types, Region(before), Region(after)))
        loop.location = node.location
        self._name(loop.results, passed, values)

    def _at(self, variable: Variable, values: Values) -> SSAValue | int | None:
        if isinstance(variable, SSAValue) and variable not in self._numbers:
            return variable
        return values.get(variable)

    def _given(self, builder: Builder, variable: Variable, values: Values) -> SSAValue:
        """The value of a variable, any one where it has none: it is not read then."""
        value = self._at(variable, values)
        if isinstance(value, SSAValue):
            return value
        match type := variable.type:
            case IntegerType() | IndexType():
                return builder.insert(arith.ConstantOp(IntegerAttr(value or 0, type))).result
            case _ if isa(type, AnyFloat):
                return builder.insert(arith.ConstantOp(FloatAttr(0.0, type))).result
            case _ if isa(type, TensorType[Attribute]) and type.has_static_shape():
                return builder.insert(tensor.EmptyOp([], type)).tensor
            case _:
                pass
        for other in values.values():
            if isinstance(other, SSAValue) and other.type == type:
                return other
        assert isinstance(variable, SSAValue)
        raise UserError(
            f"a value of type {type} is made on one way only of several that meet where it is read",
            loc=location_of_value(variable),
            notes=["make it before the branch"],
            status=UNSUPPORTED,
        )

    def _in_order(self, variables: Iterable[Variable]) -> list[Variable]:
        return sorted(variables, key=self._numbers.__getitem__)

    @staticmethod
    def _name(made: Sequence[SSAValue], variables: Sequence[Variable], values: Values) -> None:
        """Let values be those of variables, and have their names."""
        for value, variable in zip(made, variables, strict=True):
            value.name_hint = variable.name_hint
            values[variable] = value


def _choose(
    builder: Builder, flag: SSAValue, node: Choice, blocks: Sequence[Block], types: Sequence[Attribute]
) -> scf.IfOp | scf.IndexSwitchOp:
    """The op that chooses one of the blocks."""
    if len(blocks) == 2:
        then, otherwise = blocks
        condition = flag if flag.type == i1 and node.cases == [[1]] else _is_one_of(builder, flag, node.cases[0])
        is_needed = types or otherwise.first_op is not otherwise.last_op
        op = scf.IfOp(condition, types, Region(then), Region(otherwise) if is_needed else None)
    else:
        if flag.type != IndexType():
            flag = builder.insert(arith.IndexCastOp(flag, IndexType())).result
        cases = DenseArrayBase.from_list(i64, [number for numbers in node.cases for number in numbers])
        op = scf.IndexSwitchOp(flag, cases, Region(blocks[-1]), [Region(block) for block in blocks[:-1]], types)
    op.location = node.location
    return builder.insert(op)


def _is_one_of(builder: Builder, flag: SSAValue, numbers: Sequence[int]) -> SSAValue:
    type = flag.type
    assert isa(type, IntegerType | IndexType)
    found: SSAValue | None = None
    for number in numbers:
        constant = builder.insert(arith.ConstantOp(IntegerAttr(number, type)))
        equal = builder.insert(arith.CmpiOp(flag, constant.result, "eq")).result
        found = equal if found is None else builder.insert(arith.OrIOp(found, equal)).result
    assert found is not None
    return found
