"""
Tensor expressions, the behaviour of an intrinsic as a machine file spells it, read into one `linalg.generic`.

    acc[m,n] += a[m,k] * b[k,n]
    dst[i,j] = max(src[i,j], 0)
    acc[m,n] += cast(i32, inp[m,k]) * cast(i32, wgt[n,k])
    y[n] = x[n] + imm

`+ - *`, `max min exp reciprocal shr`, `cast(type, x)`, numbers, and `imm`, the scalar that travels in the
instruction. Indices are affine in the dims. The dims on the left are the parallel loops, in that order; the
others, in order of appearance, are reductions, which only `+=` permits. The body is the canonical one of the
tensor level: for `+=` it adds the right side to the operand's element, for `=` it yields the right side.

A number takes the type of what it stands beside; everything else must agree in type, and `cast` converts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    AnyFloat,
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    MemRefType,
    NoneAttr,
    StringAttr,
    UnknownLoc,
)
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineExpr, AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.machine import DRAM, IMMEDIATE, layout_of
from penstock.lowering.scalar_body import Body

GRAMMAR = r"""
    start: reference ASSIGN sum
    ?sum: product | sum "+" product -> add | sum "-" product -> sub
    ?product: factor | product "*" factor -> mul
    ?factor: NUMBER -> number
           | "-" factor -> neg
           | reference
           | NAME -> name
           | NAME "(" sum ("," sum)* ")" -> call
           | "(" sum ")"
    reference: NAME "[" sum ("," sum)* "]"
    ASSIGN: "+=" | "="
    NAME: /[A-Za-z_][A-Za-z0-9_]*/
    NUMBER: /[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/
    %ignore /[ \t\r\n]+/
"""

EXAMPLE = "an expression reads like: acc[m,n] += a[m,k] * b[k,n]"

_FLOATS: dict[str, AnyFloat] = {
    str(each): each
    for each in (BFloat16Type(), Float8E4M3FNType(), Float8E5M2Type(), Float16Type(), Float32Type(), Float64Type())
}
_ARITY = {"cast": 2, "max": 2, "min": 2, "shr": 2, "exp": 1, "reciprocal": 1}
_ONLY_ON_INTEGERS, _ONLY_ON_FLOATS = ("shr",), ("exp", "reciprocal")


class ExpressionFault(Exception):
    """What is wrong with an expression, and at which column of its text, counted from 0."""

    def __init__(self, message: str, column: int, notes: tuple[str, ...] = ()):
        super().__init__(message)
        self.message = message
        self.column = column
        self.notes = notes


@dataclass(frozen=True)
class OperandDecl:
    """An operand as a machine file declares it: its name, scope ("dram" = off chip), element type and strides."""

    name: str
    scope: str
    dtype: Attribute
    strides: str


@dataclass(frozen=True)
class Behaviour:
    """What an expression became: the region of a `machine.intrinsic` and the names in it."""

    region: Region
    operands: tuple[str, ...]
    """The names of the region's arguments; the written one is last, and `imm`, if used, before it."""
    dims: tuple[str, ...]
    """The names of the generic's loops, in their order."""


def scalar_type(name: str) -> IntegerType | AnyFloat | None:
    """The element type called `name` in a machine file (`i8`, `f32`, ...), or None if there is none."""
    if re.fullmatch(r"i[1-9][0-9]?", name):
        return IntegerType(int(name[1:]))
    return _FLOATS.get(name)


def build_behaviour(text: str, operands: Sequence[OperandDecl]) -> Behaviour:
    """
    The region for `text` over `operands`, the last of which must be the one on the left.

    The memrefs have one dynamic dim per index, the scope and the strides of their declaration. Raises
    ExpressionFault, with the column, for what does not parse or does not fit the operands.
    """
    return _BehaviourBuilder(text, operands).build()


class _Node(NamedTuple):
    """A part of an expression: a rule of the grammar, or the name that it gives to one of its alternatives."""

    kind: str
    column: int
    """Where it begins, counted from 0."""
    text: str
    """Its number, name or assignment sign, if it has one."""
    parts: tuple[_Node, ...]


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", propagate_positions=True)


def _parse(text: str) -> _Node:
    try:
        return _node(_parser().parse(text))  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as error:
        match error:
            case UnexpectedCharacters():
                what, column = f'unexpected character "{text[error.column - 1]}"', error.column - 1
            case UnexpectedToken(token=Token(type=kind) as token) if kind != "$END":
                what, column = f'unexpected "{token}"', error.column - 1
            case _:
                what, column = "the expression ends too early", len(text)
        raise ExpressionFault(what, column, (EXAMPLE,)) from None


def _node(tree: Tree[Token]) -> _Node:
    text = "".join(child for child in tree.children if isinstance(child, Token))
    parts = tuple(_node(child) for child in tree.children if isinstance(child, Tree))
    return _Node(tree.data, tree.meta.column - 1, text, parts)


class _BehaviourBuilder:
    def __init__(self, text: str, operands: Sequence[OperandDecl]):
        self.text = text
        self.operands = operands
        assignment = _parse(text)
        self.target, self.value = assignment.parts
        self.accumulates = assignment.text == "+="
        self.dims: list[str] = []
        self.indices: dict[str, tuple[AffineExpr, ...]] = {}
        self.uses_immediate = False

    def build(self) -> Behaviour:
        self._read_target()
        parallel = len(self.dims)
        self._read_references(self.value)
        self._check_dims(parallel)
        *inputs, output = self.operands
        names = [decl.name for decl in inputs]
        types: list[Attribute] = [self._memref(decl) for decl in self.operands]
        maps = [AffineMap(len(self.dims), 0, self.indices[decl.name]) for decl in self.operands]
        scalars = [decl.dtype for decl in self.operands]
        if self.uses_immediate:
            names.append(IMMEDIATE)
            types.insert(-1, output.dtype)
            scalars.insert(-1, output.dtype)
            maps.insert(-1, AffineMap(len(self.dims), 0, ()))
        names.append(output.name)

        block = Block(arg_types=types)
        for name, arg in zip(names, block.args, strict=True):
            arg.name_hint = name
        iterators = [IteratorType.PARALLEL] * parallel
        iterators += [IteratorType.REDUCTION] * (len(self.dims) - parallel)
        block.add_op(
            GenericOp(
                block.args[:-1],
                block.args[-1:],
                self._body(names, scalars),
                [AffineMapAttr(each) for each in maps],
                [IteratorTypeAttr(each) for each in iterators],
                doc=StringAttr(self.text),
            )
        )
        return Behaviour(Region(block), tuple(names), tuple(self.dims))

    def _memref(self, decl: OperandDecl) -> MemRefType:
        rank = len(self.indices[decl.name])
        space = NoneAttr() if decl.scope == DRAM else StringAttr(decl.scope)
        return MemRefType(decl.dtype, [DYNAMIC_INDEX] * rank, layout_of(decl.strides, rank), space)

    def _body(self, names: Sequence[str], scalars: Sequence[Attribute]) -> Region:
        block = Block(arg_types=scalars)
        for arg in block.args[:-1]:
            arg.name_hint = "in"
        out = block.args[-1]
        out.name_hint = "out"
        body = Body(block, UnknownLoc())
        scalar_builder = _ScalarBuilder(body, dict(zip(names, block.args, strict=True)))
        found = scalar_builder.type_of(self.value)
        if found is not None and found != out.type:
            message = f"the right side is {found}, but the left {out.type}"
            raise ExpressionFault(message, self.value.column, (f"cast({out.type}, ...) converts it",))
        value = scalar_builder.emit(self.value, out.type)
        body.end(body.add(out, value) if self.accumulates else value)
        return Region(block)

    def _read_target(self) -> None:
        """The left side: the last operand, indexed by distinct dims."""
        output = self.operands[-1].name
        if self.target.text != output:
            raise ExpressionFault(
                f'the left side is "{self.target.text}", but the last operand is "{output}"',
                self.target.column,
                ("the operand that is written is declared last",),
            )
        for index in self.target.parts:
            if index.kind != "name":
                raise ExpressionFault("an index on the left must be a dim", index.column)
            if index.text in self.dims:
                raise ExpressionFault(f'"{index.text}" is on the left twice', index.column)
            self._dim(index.text)
        self.indices[output] = tuple(AffineDimExpr(place) for place in range(len(self.dims)))

    def _read_references(self, node: _Node) -> None:
        """Find the dims, the maps of the operands, and the immediate, from left to right."""
        if node.kind == "reference":
            self._read_reference(node)
            return
        if node.kind == "name":
            if node.text != IMMEDIATE:
                raise ExpressionFault(f'"{node.text}" is neither indexed nor "{IMMEDIATE}"', node.column)
            self.uses_immediate = True
        for part in node.parts[1:] if node.text == "cast" else node.parts:
            self._read_references(part)

    def _read_reference(self, node: _Node) -> None:
        declared = [decl.name for decl in self.operands]
        if node.text not in declared:
            note = did_you_mean(node.text, declared) or f"the operands are {', '.join(declared)}"
            raise ExpressionFault(f'unknown operand "{node.text}"', node.column, (note,))
        indices = tuple(self._affine(index) for index in node.parts)
        if self.indices.setdefault(node.text, indices) != indices:
            raise ExpressionFault(f'"{node.text}" is indexed in two ways', node.column)

    def _affine(self, index: _Node) -> AffineExpr:
        if index.kind == "name":
            return self._dim(index.text)
        if index.kind == "number" and index.text.isdecimal():
            return AffineConstantExpr(int(index.text))
        if index.kind in ("neg", "add", "sub", "mul"):
            left, *others = [self._affine(part) for part in index.parts]
            if not others:
                return left * -1
            if index.kind != "mul":
                return left + others[0] if index.kind == "add" else left - others[0]
            if any(isinstance(factor, AffineConstantExpr) for factor in (left, *others)):
                return left * others[0]
        raise ExpressionFault("an index must be affine in the dims", index.column)

    def _dim(self, name: str) -> AffineDimExpr:
        if name not in self.dims:
            self.dims.append(name)
        return AffineDimExpr(self.dims.index(name))

    def _check_dims(self, parallel: int) -> None:
        for decl in self.operands:
            if decl.name not in self.indices:
                raise ExpressionFault(f'operand "{decl.name}" is not used', 0)
        alone = {expr for exprs in self.indices.values() for expr in exprs}
        for place, dim in enumerate(self.dims):
            if place >= parallel and not self.accumulates:
                message = f'"{dim}" is summed over, as it is not on the left'
                raise ExpressionFault(message, self.text.index("="), ("a sum is written +=",))
            if AffineDimExpr(place) not in alone:
                raise ExpressionFault(f'"{dim}" indexes no operand alone, so its extent is unknown', 0)


# scalars


class _ScalarBuilder:
    """Appends the operations of an expression to `body`, whose arguments `values` names."""

    def __init__(self, body: Body, values: Mapping[str, SSAValue]):
        self.body = body
        self.values = values

    def type_of(self, node: _Node) -> Attribute | None:
        """The type of a part, or None for one made of numbers only, which fits any type."""
        if node.kind in ("reference", "name"):
            return self.values[node.text].type
        if node.kind == "call":
            self._check_call(node)
            if node.text == "cast":
                return _named_type(node.parts[0])
        known: Attribute | None = None
        for part in node.parts:
            found = self.type_of(part)
            if known is not None and found is not None and known != found:
                raise ExpressionFault(f"{known} meets {found}", node.column, ("cast(type, x) converts",))
            known = known or found
        return known

    def _check_call(self, node: _Node) -> None:
        if node.text not in _ARITY:
            note = did_you_mean(node.text, _ARITY) or f"the functions are {', '.join(_ARITY)}"
            raise ExpressionFault(f'unknown function "{node.text}"', node.column, (note,))
        if len(node.parts) != _ARITY[node.text]:
            message = f"{node.text} takes {_ARITY[node.text]} arguments, not {len(node.parts)}"
            raise ExpressionFault(message, node.column)

    def emit(self, node: _Node, expected: Attribute) -> SSAValue:
        """The value of a part, whose type is `expected` as far as it does not know its own."""
        match node:
            case _Node("number"):
                return self._constant(node, node.text, expected)
            case _Node("neg", parts=(_Node("number") as number,)):
                return self._constant(number, f"-{number.text}", expected)
            case _Node("reference" | "name"):
                return self.values[node.text]
            case _Node("call", text="cast", parts=(named, inner)):
                target = _named_type(named)
                return self.body.cast(self.emit(inner, self.type_of(inner) or target), target, False)
            case _:
                return self._operation(node, self.type_of(node) or expected)

    def _operation(self, node: _Node, dtype: Attribute) -> SSAValue:
        name = node.text or node.kind
        if name in (_ONLY_ON_FLOATS if isa(dtype, IntegerType) else _ONLY_ON_INTEGERS):
            raise ExpressionFault(f"{name} is not defined on {dtype}", node.column)
        values = [self.emit(part, dtype) for part in node.parts]
        if name == "reciprocal":
            return self.body.div(self.body.constant(1, dtype), values[0])
        return self.body.apply("shift_right" if name == "shr" else name, *values)

    def _constant(self, node: _Node, text: str, dtype: Attribute) -> SSAValue:
        if not isa(dtype, IntegerType):
            return self.body.constant(float(text), dtype)
        if not node.text.isdecimal():
            raise ExpressionFault(f"{text} is no integer, but meets {dtype}", node.column)
        half = 1 << (dtype.width.data - 1)
        if not -half <= int(text) < half:
            raise ExpressionFault(f"{text} does not fit into {dtype}", node.column)
        return self.body.constant(int(text), dtype)


def _named_type(node: _Node) -> IntegerType | AnyFloat:
    found = scalar_type(node.text)
    if found is None:
        raise ExpressionFault(f'unknown type "{node.text}"', node.column)
    return found
