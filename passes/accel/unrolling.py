# SPDX-License-Identifier: Apache-2.0
"""Unrolling the loops of a kernel of the accelerator level, index arithmetic computed on the way."""

from __future__ import annotations

from operator import eq, ge, gt, le, lt, ne

from xdsl.builder import Builder
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.passes.analysis.index import apply, is_index_arithmetic

_PREDICATES = (*(eq, ne, lt, le, gt, ge), *(lt, le, gt, ge))
"""Of `arith.cmpi`: those of signed integers first."""
_UNSIGNED = 6
"""The first predicate of unsigned integers."""


def unroll(function: func.FuncOp) -> None:
    """
    Replace every loop of a kernel by its iterations, one after the other.

    Index arithmetic on what is then constant is computed. Raises UserError for a loop or a branch that depends on
    what is not known.
    """
    block = function.body.block
    ops = list(block.ops)
    _Unroller(block).ops(ops, {})
    for op in reversed(ops):
        Rewriter.erase_op(op)


class _Unroller:
    def __init__(self, block: Block):
        self._builder = Builder(InsertPoint.at_end(block))
        self._block = block
        self._numbers: dict[SSAValue, int] = {}
        """The new values that are known integers."""
        self._constants: dict[tuple[int, Attribute], SSAValue] = {}

    def ops(self, ops: list[Operation], values: dict[SSAValue, SSAValue]) -> None:
        """Emit the iterations of `ops`; `values` says what their operands are, and learns their results."""
        for op in ops:
            if isinstance(op, scf.ForOp):
                self._loop(op, values)
            elif isinstance(op, scf.IfOp):
                self._branch(op, values)
            elif op.regions:
                raise UserError(f"{op.name} cannot be unrolled", loc=location_of(op), status=UNSUPPORTED)
            elif (number := self._computed(op, values)) is not None:
                values[op.results[0]] = self._constant(number, op.results[0].type)
            else:
                self._builder.insert(op.clone(values))

    def _loop(self, op: scf.ForOp, values: dict[SSAValue, SSAValue]) -> None:
        lower, upper, step = (self._known(value, values) for value in (op.lb, op.ub, op.step))
        if lower is None or upper is None or not step:
            raise UserError("the bounds of this loop are not constant", loc=location_of(op), status=UNSUPPORTED)
        counter, *carried = op.body.block.args
        current = [values.get(value, value) for value in op.iter_args]
        body = list(op.body.block.ops)
        terminator = body.pop()
        for index in range(lower, upper, step):
            # What one iteration computes is not what the next one does.
            inner = dict(values)
            inner[counter] = self._constant(index, counter.type)
            inner.update(zip(carried, current, strict=True))
            self.ops(body, inner)
            current = [inner.get(value, value) for value in terminator.operands]
        values.update(zip(op.results, current, strict=True))

    def _branch(self, op: scf.IfOp, values: dict[SSAValue, SSAValue]) -> None:
        condition = self._known(op.cond, values)
        if condition is None:
            raise UserError("which way this branch goes is not known", loc=location_of(op), status=UNSUPPORTED)
        region = op.true_region if condition else op.false_region
        if not region.blocks:
            return
        body = list(region.block.ops)
        terminator = body.pop()
        self.ops(body, values)
        results = [values.get(value, value) for value in terminator.operands]
        values.update(zip(op.results, results, strict=True))

    def _known(self, value: SSAValue, values: dict[SSAValue, SSAValue]) -> int | None:
        return self._numbers.get(values.get(value, value))

    def _computed(self, op: Operation, values: dict[SSAValue, SSAValue]) -> int | None:
        """The integer that an op yields, if it is known."""
        match op:
            case arith.ConstantOp(value=IntegerAttr(value=number)):
                return number.data
            case arith.CmpiOp():
                left, right = (self._known(operand, values) for operand in op.operands)
                predicate = op.predicate.value.data
                if left is None or right is None:
                    return None
                if predicate >= _UNSIGNED:
                    left, right = left % (1 << 64), right % (1 << 64)
                return int(_PREDICATES[predicate](left, right))
            case arith.SelectOp():
                chosen = self._known(op.cond, values)
                return None if chosen is None else self._known(op.lhs if chosen else op.rhs, values)
            case _:
                pass
        if not is_index_arithmetic(op) or not isinstance(op.results[0].type, IndexType):
            return None
        operands = [self._known(operand, values) for operand in op.operands]
        try:
            return None if None in operands else int(apply(op, operands))
        except ZeroDivisionError:
            return None

    def _constant(self, number: int, type: Attribute) -> SSAValue:
        """The constant, one for each number and type, at the start of the function."""
        found = self._constants.get((number, type))
        if found is None:
            value = IntegerAttr(number, type if isa(type, IntegerType) else IndexType())
            op = arith.ConstantOp(value)
            first = self._block.first_op
            Rewriter.insert_op(op, InsertPoint.at_start(self._block) if first is None else InsertPoint.before(first))
            found = self._constants[number, type] = op.result
            self._numbers[found] = number
        return found
