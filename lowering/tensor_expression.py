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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    MemRefType,
    NoneAttr,
    StringAttr,
)
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp, YieldOp
from xdsl.ir import Attribute, Block, Region
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineExpr, AffineMap

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.machine import DRAM, IMMEDIATE, layout_of
from penstock.lowering.scalar_expression import ExpressionFault, Node, ScalarBuilder, column_of

GRAMMAR = r"""
    start: reference ASSIGN expression
    ?expression: term | expression "+" term -> add | expression "-" term -> sub
    ?term: factor | term "*" factor -> mul
    ?factor: NUMBER -> number
           | "-" factor -> negate
           | reference
           | NAME -> name
           | "cast" "(" NAME "," expression ")" -> cast
           | NAME "(" expression ("," expression)* ")" -> call
           | "(" expression ")"
    reference: NAME "[" expression ("," expression)* "]"
    ASSIGN: "+=" | "="
    NAME: /[A-Za-z_][A-Za-z0-9_]*/
    NUMBER: /[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/
    %ignore /[ \t\r\n]+/
"""

EXAMPLE = "an expression reads like: acc[m,n] += a[m,k] * b[k,n]"


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


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", propagate_positions=True)


def _parse(text: str) -> Node:
    try:
        return _parser().parse(text)  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as error:
        column = error.column - 1 if error.column > 0 else len(text)
        match error:
            case UnexpectedCharacters():
                what = f'unexpected character "{text[column]}"'
            case UnexpectedToken(token=Token(type="$END")):
                what, column = "the expression ends too early", len(text)
            case UnexpectedToken(token=Token() as token):
                what = f'unexpected "{token}"'
            case _:
                what = "this is no tensor expression"
        raise ExpressionFault(what, column, (EXAMPLE,)) from None


def build_behaviour(text: str, operands: Sequence[OperandDecl]) -> Behaviour:
    """
    The region for `text` over `operands`, the last of which must be the one on the left.

    The memrefs have one dynamic dim per index, the scope and the strides of their declaration. Raises
    ExpressionFault, with the column, for what does not parse or does not fit the operands.
    """
    return _BehaviourBuilder(text, operands).build()


class _BehaviourBuilder:
    def __init__(self, text: str, operands: Sequence[OperandDecl]):
        self.text = text
        self.operands = operands
        self.target, assign, self.value = _parse(text).children
        self.accumulates = str(assign) == "+="
        self.dims: list[str] = []
        self.indices: dict[str, tuple[AffineExpr, ...]] = {}
        self.uses_immediate = False

    def build(self) -> Behaviour:
        assert isinstance(self.target, Tree)
        self._read_target(self.target)
        parallel = len(self.dims)
        assert isinstance(self.value, Tree)
        self._read_references(self.value)
        self._check_dims(parallel)
        *inputs, output = self.operands
        names = [decl.name for decl in inputs]
        types = [self._memref(decl) for decl in self.operands]
        maps = [AffineMap(len(self.dims), 0, self.indices[decl.name]) for decl in self.operands]
        arguments: list[Attribute] = [*types]
        scalars = [decl.dtype for decl in self.operands]
        if self.uses_immediate:
            names.append(IMMEDIATE)
            arguments.insert(-1, output.dtype)
            scalars.insert(-1, output.dtype)
            maps.insert(-1, AffineMap(len(self.dims), 0, ()))
        names.append(output.name)

        block = Block(arg_types=arguments)
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
        shape = [DYNAMIC_INDEX] * rank
        return MemRefType(decl.dtype, shape, layout_of(decl.strides, rank), space)

    def _body(self, names: Sequence[str], scalars: Sequence[Attribute]) -> Region:
        body = Block(arg_types=scalars)
        for arg in body.args[:-1]:
            arg.name_hint = "in"
        body.args[-1].name_hint = "out"
        builder = ScalarBuilder(body, dict(zip(names, body.args, strict=True)))
        assert isinstance(self.value, Tree)
        result = builder.assign(self.value, body.args[-1], accumulates=self.accumulates)
        body.add_op(YieldOp(result))
        return Region(body)

    def _read_target(self, target: Node) -> None:
        """The left side: the last operand, indexed by distinct dims."""
        name, indices = target.children[0], target.children[1:]
        output = self.operands[-1].name
        if name != output:
            raise ExpressionFault(
                f'the left side is "{name}", but the last operand is "{output}"',
                column_of(target),
                ("the operand that is written is declared last",),
            )
        for index in indices:
            assert isinstance(index, Tree)
            if index.data != "name":
                raise ExpressionFault("an index on the left must be a dim", column_of(index))
            dim = str(index.children[0])
            if dim in self.dims:
                raise ExpressionFault(f'"{dim}" is on the left twice', column_of(index))
            self._dim(dim)
        self.indices[output] = tuple(AffineDimExpr(place) for place in range(len(self.dims)))

    def _read_references(self, node: Node) -> None:
        """Find the dims, the maps of the operands, and the immediate, from left to right."""
        if node.data == "reference":
            self._read_reference(node)
            return
        if node.data == "name":
            if node.children[0] != IMMEDIATE:
                raise ExpressionFault(f'"{node.children[0]}" is neither indexed nor "{IMMEDIATE}"', column_of(node))
            self.uses_immediate = True
        for child in node.children:
            if isinstance(child, Tree):
                self._read_references(child)

    def _read_reference(self, node: Node) -> None:
        name = str(node.children[0])
        declared = [decl.name for decl in self.operands]
        if name not in declared:
            near = did_you_mean(name, declared)
            raise ExpressionFault(
                f'unknown operand "{name}"',
                column_of(node),
                (near or f"the operands are {', '.join(declared)}",),
            )
        indices = tuple(self._affine(index) for index in node.children[1:])
        if self.indices.setdefault(name, indices) != indices:
            raise ExpressionFault(f'"{name}" is indexed in two ways', column_of(node))

    def _affine(self, index: Node | Token) -> AffineExpr:
        assert isinstance(index, Tree)
        match index.data, index.children:
            case "name", [Token() as dim]:
                return self._dim(str(dim))
            case "number", [Token() as number] if number.isdecimal():
                return AffineConstantExpr(int(number))
            case "negate", [inner]:
                return self._affine(inner) * -1
            case "add", [left, right]:
                return self._affine(left) + self._affine(right)
            case "sub", [left, right]:
                return self._affine(left) - self._affine(right)
            case "mul", [left, right]:
                factors = self._affine(left), self._affine(right)
                if any(isinstance(factor, AffineConstantExpr) for factor in factors):
                    return factors[0] * factors[1]
            case _:
                pass
        raise ExpressionFault("an index must be affine in the dims", column_of(index))

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
                raise ExpressionFault(
                    f'"{dim}" is summed over, as it is not on the left',
                    self.text.index("="),
                    ("a sum is written +=",),
                )
            if AffineDimExpr(place) not in alone:
                raise ExpressionFault(f'"{dim}" indexes no operand alone, so its extent is unknown', 0)
