# SPDX-License-Identifier: Apache-2.0
"""
Out of the IR: what a kernel at tensor level computes, as a kernel of the language `from_kernel` reads.

A `linalg.generic` becomes an assignment in index notation, a fill a number, a padded tensor an access with what is read
out of bounds. What is shown and lowered again is a kernel of the same ops, up to fills that are said twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, TensorType, i1
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp, YieldOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
)
from xdsl.utils.hints import isa

from penstock.lowering.from_kernel.lower import BUILT_IN
from penstock.lowering.from_kernel.parser import KEYWORDS
from penstock.lowering.from_kernel.syntax import (
    Access,
    Assignment,
    Binary,
    Binding,
    Block,
    Call,
    Declarator,
    Expression,
    Kernel,
    Name,
    Number,
)
from penstock.lowering.to_kernel.scalars import constant_of, element_name, expression_of, integer, no_form
from penstock.passes.scalar_body import highest, lowest

_REDUCERS: dict[type[Operation], str] = {
    arith.AddfOp: "sum",
    arith.AddiOp: "sum",
    arith.MulfOp: "prod",
    arith.MuliOp: "prod",
    arith.MaximumfOp: "max",
    arith.MaxSIOp: "max",
    arith.MinimumfOp: "min",
    arith.MinSIOp: "min",
    arith.OrIOp: "any",
    arith.AndIOp: "all",
}
_INDICES = "ijklmnpqrstuvw"
_NOT_IN_NAMES = re.compile(r"\W")


def kernel_of(function: func.FuncOp) -> Kernel:
    """
    A function at tensor level as a kernel of the language.

    It is one block of `tensor.empty`, `tensor.pad`, constants and generics with one result, before tiles.
    Raises UserError, with status 3, at an op that the language has no form of.
    """
    return _Shown(function).kernel()


@dataclass(frozen=True)
class _Padded:
    """A tensor with a number around it."""

    source: SSAValue
    low: tuple[int, ...]
    number: Expression


@dataclass
class _Shown:
    """One function on its way to the text."""

    function: func.FuncOp
    _names: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str])
    _numbers: dict[SSAValue, Expression] = field(default_factory=dict[SSAValue, Expression])
    """Tensors of one number."""
    padded: dict[SSAValue, _Padded] = field(default_factory=dict[SSAValue, _Padded])
    _taken: set[str] = field(default_factory=lambda: {*KEYWORDS, *BUILT_IN, *_INDICES})
    _statements: list[Assignment] = field(default_factory=list[Assignment])

    def kernel(self) -> Kernel:
        block = self.function.body.block
        returned = block.last_op
        assert isinstance(returned, func.ReturnOp)
        parameters = tuple(self._declared(argument, "x") for argument in block.args)
        computed = [value for value in returned.operands if isinstance(value.owner, GenericOp)]
        results: list[Declarator] = []
        copies: list[tuple[str, SSAValue]] = []
        for value in returned.operands:
            if value in self._names or value not in computed or _number_of(value) is not None:
                name = self._fresh("result")
                copies.append((name, value))
                results.append(_declarator(value, name))
            else:
                results.append(self._declared(value, "y"))
        for op in block.ops:
            self._show(op)
        for name, value in copies:
            self._copy(name, value)
        body = Block(tuple(self._statements))
        return Kernel(self.function.sym_name.data, (), parameters, tuple(results), body)

    def _declared(self, value: SSAValue, otherwise: str) -> Declarator:
        return _declarator(value, self.name_of(value, otherwise))

    def name_of(self, value: SSAValue, otherwise: str = "t") -> str:
        if value not in self._names:
            self._names[value] = self._fresh(value.name_hint or otherwise)
        return self._names[value]

    def _fresh(self, hint: str) -> str:
        base = _NOT_IN_NAMES.sub("_", hint)
        base = f"_{base}" if base[:1].isdigit() else base
        name, number = base, 1
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name

    def _show(self, op: Operation) -> None:
        match op:
            case tensor.EmptyOp() | arith.ConstantOp() | func.ReturnOp():
                return
            case tensor.PadOp():
                low = op.static_low.get_values()
                constant = op.region.block.last_op
                assert isinstance(constant, tensor.YieldOp)
                number = constant_of(constant.operands[0])
                if number is None:
                    raise no_form(op, "padding with what is computed")
                self.padded[op.result] = _Padded(op.source, tuple(low), number)
            case GenericOp() if len(op.outputs) == 1:
                number = _number_of(op.results[0])
                if number is not None:
                    self._numbers[op.results[0]] = number
                else:
                    self._statements.append(_ShownGeneric(self, op).assignment())
            case _:
                raise no_form(op, op.name)

    def _copy(self, name: str, value: SSAValue) -> None:
        indices = tuple(Name(letter) for letter in _INDICES[: len(_shape(value))])
        target = Access(name, indices) if indices else Name(name)
        self._statements.append(Assignment(target, "=", self.element(value, indices, value.owner)))

    def element(self, value: SSAValue, indices: Sequence[Expression], at: object) -> Expression:
        """An element of a tensor, at indices in it."""
        if value in self._numbers:
            return self._numbers[value]
        if (padded := self.padded.get(value)) is not None:
            shifted = tuple(_plus(index, -low) for index, low in zip(indices, padded.low, strict=True))
            inner = self.element(padded.source, shifted, at)
            if not isinstance(inner, Access) or inner.otherwise is not None:
                assert isinstance(at, Operation)
                raise no_form(at, "padding of what is padded")
            return Access(inner.tensor, inner.indices, padded.number)
        if (number := constant_of(value)) is not None:
            return number
        if value not in self._names:
            assert isinstance(at, Operation)
            raise no_form(at, "what it reads")
        return Access(self._names[value], tuple(indices)) if indices else Name(self._names[value])

    def gives_its_name(self, old: SSAValue, new: SSAValue) -> bool:
        """Let `new` have the name of `old`, if that is a local tensor that nothing else reads; whether it could."""
        is_local = isinstance(old.owner, GenericOp) and old in self._names
        if not is_local or new in self._names or old.uses.get_length() > 1:
            return False
        self._names[new] = self._names[old]
        return True

    def is_result(self, value: SSAValue) -> bool:
        last = self.function.body.block.last_op
        return last is not None and value in last.operands


class _ShownGeneric:
    """One generic as an assignment."""

    def __init__(self, shown: _Shown, generic: GenericOp):
        self._shown = shown
        self._generic = generic
        self._result = generic.results[0]
        self._extents = generic.get_static_loop_ranges()
        kinds = [kind.data for kind in generic.iterator_types]
        self._reductions = [number for number, kind in enumerate(kinds) if kind == IteratorType.REDUCTION]
        self._letters = [Name(_INDICES[number]) for number in range(len(kinds))]
        if len(kinds) > len(_INDICES) - 2:
            raise no_form(generic, f"an op of {len(kinds)} loops")

    def assignment(self) -> Assignment:
        generic, block = self._generic, self._generic.body.block
        maps = [attribute.data.results for attribute in generic.indexing_maps]
        initial = generic.outputs[0]
        spare = iter(_INDICES[len(self._letters) :])
        left = [self._letters[e.position] if isinstance(e, AffineDimExpr) else Name(next(spare)) for e in maps[-1]]
        self._values: dict[SSAValue, Expression] = {}
        for argument, operand, exprs in zip(block.args, generic.operands, maps, strict=True):
            if argument.uses.get_length() == 0:
                continue
            if argument is block.args[-1] and self._reductions:
                continue
            at = left if argument is block.args[-1] else [self._index(each) for each in exprs]
            self._values[argument] = self._shown.element(operand, at, generic)
        last = block.last_op
        assert isinstance(last, YieldOp)
        operator, value = "=", last.operands[0]
        if not self._reductions:
            expression = self._expression(value)
        else:
            operator, expression = self._reduction(value, initial, left)
        name = self._shown.name_of(self._result)
        if not left:
            return Assignment(Name(name), operator, expression)
        return Assignment(Access(name, tuple(self._bound(each, expression) for each in left)), operator, expression)

    def _reduction(self, value: SSAValue, initial: SSAValue, left: Sequence[Name]) -> tuple[str, Expression]:
        """The operator of the assignment, and what is assigned."""
        generic, accumulator = self._generic, self._generic.body.block.args[-1]
        combine = value.owner
        kind = _REDUCERS.get(type(combine)) if isinstance(combine, Operation) else None
        if kind is None or not isinstance(combine, Operation) or accumulator.uses.get_length() != 1:
            raise no_form(generic, "this reduction")
        if (kind in ("any", "all")) != (value.type == i1):
            raise no_form(generic, f"{combine.name} of {value.type} as a reduction")
        terms = [operand for operand in combine.operands if operand is not accumulator]
        if len(terms) != 1:
            raise no_form(generic, "this reduction")
        term = self._expression(terms[0])
        indices = tuple(self._bound(self._letters[number], term) for number in self._reductions)
        reduced = Call(kind, (*indices, term))
        if _is_identity(kind, initial):
            return "=", reduced
        before = self._shown.element(initial, left, generic)
        if kind == "sum" and self._shown.gives_its_name(initial, self._result):
            return "+=", reduced
        if kind in ("max", "min"):
            return "=", Call(kind, (before, reduced))
        raise no_form(generic, "a reduction that starts from what is read elsewhere")

    def _bound(self, index: Name, expression: Expression) -> Name | Binding:
        """An index, with its range unless the text says it elsewhere."""
        number = _INDICES.index(index.name)
        extent = self._extents[number] if number < len(self._extents) else 1
        is_stated = self._shown.is_result(self._result) and number not in self._reductions
        if is_stated or self._ranges(expression, index, extent):
            return index
        return Binding(index.name, Number("0"), Number(str(extent)))

    def _ranges(self, expression: Expression, index: Name, extent: int) -> bool:
        """Whether an access indexes a dim of this extent by the index alone."""
        for operand, attribute in zip(self._generic.inputs, self._generic.indexing_maps.data, strict=False):
            is_read = any(isinstance(each, Access) for each in [self._values.get(self._argument(operand))])
            exprs = attribute.data.results
            source = self._shown.padded.get(operand)
            shape = _shape(operand if source is None else source.source)
            for dim, expr in enumerate(exprs):
                alone = expr == AffineDimExpr(_INDICES.index(index.name)) and not (source and source.low[dim])
                if is_read and alone and shape[dim] == extent:
                    return True
        return False

    def _argument(self, operand: SSAValue) -> SSAValue:
        return self._generic.body.block.args[list(self._generic.operands).index(operand)]

    def _expression(self, value: SSAValue) -> Expression:
        return expression_of(value, self._values, self._letters, self._generic)

    def _index(self, expr: AffineExpr) -> Expression:
        match expr:
            case AffineDimExpr():
                return self._letters[expr.position]
            case AffineConstantExpr():
                return integer(expr.value)
            case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Add, lhs=lhs, rhs=AffineConstantExpr(value=value)):
                return _plus(self._index(lhs), value)
            case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Add, lhs=lhs, rhs=rhs):
                return Binary("+", self._index(lhs), self._index(rhs))
            case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Mul, lhs=lhs, rhs=rhs):
                return Binary("*", self._index(lhs), self._index(rhs))
            case AffineBinaryOpExpr(kind=AffineBinaryOpKind.FloorDiv, lhs=lhs, rhs=rhs):
                return Binary("//", self._index(lhs), self._index(rhs))
            case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Mod, lhs=lhs, rhs=rhs):
                return Binary("%", self._index(lhs), self._index(rhs))
            case _:
                raise no_form(self._generic, f"the index {expr}")


def _shape(value: SSAValue) -> tuple[int, ...]:
    return value.type.get_shape() if isa(value.type, TensorType) else ()


def _declarator(value: SSAValue, name: str) -> Declarator:
    element = value.type.element_type if isa(value.type, TensorType) else value.type
    dims = tuple(Number(str(extent)) for extent in _shape(value))
    return Declarator(element_name(element), name, dims)


def _plus(index: Expression, offset: int) -> Expression:
    """An index and a constant, added."""
    if offset == 0:
        return index
    if isinstance(index, Number):
        return integer(int(index.text) + offset)
    return Binary("+" if offset > 0 else "-", index, Number(str(abs(offset))))


def _number_of(value: SSAValue) -> Expression | None:
    """The number that a fill is of; None for what is no fill."""
    op = value.owner
    if not isinstance(op, GenericOp) or op.inputs:
        return None
    last = op.body.block.last_op
    return None if last is None else constant_of(last.operands[0])


def _is_identity(reducer: str, initial: SSAValue) -> bool:
    """Whether a reduction starts from its identity."""
    op = initial.owner
    if not isinstance(op, GenericOp) or _number_of(initial) is None:
        return False
    last = op.body.block.last_op
    assert last is not None
    constant = last.operands[0].owner
    assert isinstance(constant, arith.ConstantOp)
    value = cast("FloatAttr | IntegerAttr", constant.value).value.data
    element = constant.result.type
    match reducer:
        case "sum" | "any":
            return value == 0
        case "prod" | "all":
            return value in (1, -1) if element == i1 else value == 1
        case "max":
            return value == lowest(element, unsigned=False)
        case _:
            return value == highest(element, unsigned=False)
