# SPDX-License-Identifier: Apache-2.0
"""
What matching sees of a `linalg.generic`: its domain, its body as an expression, and how it moves in its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import cast

from xdsl.dialects.builtin import MemRefType, NoneAttr, TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.machine import DRAM
from penstock.dialects.mem import memref_of, scope_of, static_strides

COMMUTATIVE = frozenset(
    f"arith.{name}"
    for name in "addf mulf maximumf minimumf maxnumf minnumf addi muli maxsi maxui minsi minui andi ori xori".split()
)


# bodies


@dataclass(frozen=True)
class Leaf:
    """The element of an operand: a number of the generic's operands, inputs first."""

    operand: int


@dataclass(frozen=True)
class Hole:
    """The immediate of an intrinsic: a number of its operands, and the type of the constant that it takes."""

    operand: int
    type: Attribute


@dataclass(frozen=True)
class Node:
    """An op of a body; constants are nodes without operands."""

    name: str
    detail: tuple[tuple[str, Attribute], ...]
    result: Attribute
    operands: tuple[Expression, ...]

    @property
    def constant(self) -> Attribute | None:
        """The number that it is; None if it is computed."""
        return dict(self.detail).get("value") if self.name == "arith.constant" else None


Expression = Leaf | Hole | Node
Binding = dict[int, int | Attribute]
"""For operands of a pattern what plays them: an operand of the target, or a constant in it for an immediate."""


def expression_of(value: SSAValue, block: Block) -> Expression:
    """The expression that computes `value` from the arguments of a body."""
    if isinstance(value, BlockArgument) and value.block is block:
        return Leaf(value.index)
    op = value.owner
    if not isinstance(op, Operation):
        # A scalar from outside: it is no operand of an intrinsic, and equals nothing.
        return Node("captured", (), value.type, ())
    detail = tuple(sorted((k, v) for k, v in op.properties.items() if k != "fastmath"))
    operands = tuple(expression_of(operand, block) for operand in op.operands)
    return Node(op.name, detail, value.type, operands)


def leaves(expression: Expression) -> Iterator[int]:
    """The operands that an expression reads, from the left, repeated as they occur."""
    if isinstance(expression, Leaf):
        yield expression.operand
    if isinstance(expression, Node):
        for operand in expression.operands:
            yield from leaves(operand)


def map_leaves(expression: Expression, change: Callable[[int], Expression]) -> Expression:
    """The expression with what `change` says in the place of each operand."""
    if isinstance(expression, Leaf):
        return change(expression.operand)
    if isinstance(expression, Hole):
        return expression
    return replace(expression, operands=tuple(map_leaves(operand, change) for operand in expression.operands))


def untyped(expression: Expression) -> Expression:
    """The expression with all types taken away, and the values of constants with them."""
    if isinstance(expression, Leaf):
        return expression
    if isinstance(expression, Hole):
        return Hole(expression.operand, NoneAttr())
    operands = tuple(untyped(operand) for operand in expression.operands)
    return Node(expression.name, (), NoneAttr(), operands)


def unify(pattern: Expression, target: Expression, binding: Binding) -> Iterator[Binding]:
    """Every way to bind the pattern's operands, one to one, and its immediates, so that it becomes the target."""
    if isinstance(pattern, Hole):
        if not isinstance(target, Node) or target.name != "arith.constant" or target.result != pattern.type:
            return
        # Without its value, as everything is untyped, it may still be one.
        constant = NoneAttr() if target.constant is None else target.constant
        if binding.get(pattern.operand, constant) == constant:
            yield {**binding, pattern.operand: constant}
        return
    if isinstance(pattern, Leaf) or isinstance(target, Leaf):
        if not (isinstance(pattern, Leaf) and isinstance(target, Leaf)):
            return
        bound = binding.get(pattern.operand)
        if bound is None and target.operand not in binding.values():
            yield {**binding, pattern.operand: target.operand}
        elif bound == target.operand:
            yield binding
        return
    if isinstance(target, Hole) or (pattern.name, pattern.detail, pattern.result, len(pattern.operands)) != (
        target.name,
        target.detail,
        target.result,
        len(target.operands),
    ):
        return
    orders = [target.operands]
    if pattern.name in COMMUTATIVE:
        orders.append(target.operands[::-1])
    for order in orders:
        bindings = [binding]
        for left, right in zip(pattern.operands, order, strict=True):
            bindings = [found for partial in bindings for found in unify(left, right, partial)]
        yield from bindings


# a generic, as matching sees it


@dataclass(frozen=True)
class Operand:
    """One operand of a generic: where it lives, its element, and how far one step of each dim moves in it."""

    value: SSAValue | None = field(compare=False)
    """What it is in the program; operands are equal where matching sees no difference."""
    scope: str | None
    """The scope's name, or DRAM; None where it is not decided yet."""
    element: Attribute
    steps: tuple[int, ...] | None
    """Elements that one step of each dim moves; None where the layout is not decided yet."""
    index_map: AffineMap
    shape: tuple[int, ...] | None = None

    def moves(self, dim: int) -> bool:
        return dim in self.index_map.used_dims()


@dataclass(frozen=True)
class Access:
    """A `linalg.generic` with one output, freed of its op."""

    extents: tuple[int, ...]
    kinds: tuple[IteratorType, ...]
    operands: tuple[Operand, ...]
    """The inputs, then the output."""
    yielded: Expression

    @property
    def output(self) -> int:
        return len(self.operands) - 1

    @property
    def touched(self) -> list[int]:
        """The operands whose elements are read, and the output; of others, as of a window, only the shape counts."""
        return sorted({*leaves(self.yielded), self.output})

    @property
    def is_placed(self) -> bool:
        """Whether its operands are laid out, and its extents thus those of a command."""
        return all(operand.steps is not None for operand in self.operands)


@lru_cache(maxsize=4096)
def linear_form(index_map: AffineMap) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """
    The constants and the coefficients of a linear map, by evaluation at zero and at the unit vectors:
    result r of dims d is `constants[r] + sum(coefficients[r][i] * d[i])`.
    """
    zero = [0] * index_map.num_dims
    constants = tuple(index_map.eval(zero, []))
    columns: list[tuple[int, ...]] = []
    for dim in range(index_map.num_dims):
        unit = list(zero)
        unit[dim] = 1
        columns.append(tuple(v - c for v, c in zip(index_map.eval(unit, []), constants, strict=True)))
    return constants, tuple(tuple(column[r] for column in columns) for r in range(len(constants)))


def places_each(index_map: AffineMap, shape: Sequence[int]) -> bool:
    """Whether loops that run over all of a tensor index each of its elements: a dim by a loop, one of size 1 by 0."""
    loops = [expr for expr, size in zip(index_map.results, shape, strict=True) if size != 1 or expr != _FIRST]
    return len({*loops}) == len(loops) and all(isinstance(expr, AffineDimExpr) for expr in loops)


_FIRST = AffineExpr.constant(0)


def steps_of(index_map: AffineMap, memref: SSAValue) -> tuple[int, ...]:
    """Elements that one step of each dim moves in a memref that is indexed by `index_map`."""
    assert isa(memref.type, MemRefType)
    return _steps(index_map, memref.type)


def _steps(index_map: AffineMap, type: MemRefType[Attribute]) -> tuple[int, ...]:
    """Elements that one step of each dim moves in a memref of this type."""
    strides = static_strides(type)
    _, rows = linear_form(index_map)
    return tuple(
        sum(row[dim] * stride for row, stride in zip(rows, strides, strict=True)) for dim in range(index_map.num_dims)
    )


def access_of(generic: GenericOp, *, placed: bool = True) -> Access | None:
    """
    What matching sees of a generic; None if it has several outputs, index ops, or a loop whose extent is dynamic or
    that of no dim of an operand. Scopes and strides count only if the operands are `placed`: on memrefs, once promotion
    has decided where they live; None if one of these strides is dynamic.
    """
    body = generic.body.block
    if len(generic.outputs) != 1 or any(op.name == "linalg.index" for op in body.ops):
        return None
    terminator = body.last_op
    assert terminator is not None
    operands: list[Operand] = []
    extents: dict[int, int] = {}
    for value, map_attr in zip(generic.operands, generic.indexing_maps, strict=True):
        scope, steps, shape = None, None, None
        element = type = value.type
        if isinstance(type, MemRefType | TensorType):
            type = cast(MemRefType[Attribute] | TensorType[Attribute], type)
            element, shape = type.element_type, type.get_shape()
            for expr, size in zip(map_attr.data.results, shape, strict=True):
                if isinstance(expr, AffineDimExpr):
                    extents.setdefault(expr.position, size)
        is_read = value in generic.outputs or bool(body.args[len(operands)].uses)
        if placed and isinstance(type, MemRefType) and not is_read:
            scope, steps = DRAM, (0,) * map_attr.data.num_dims
        elif placed and isinstance(type, MemRefType):
            memref = memref_of(value)
            if None in (memref.get_strides() or (None,) * memref.get_num_dims()):
                return None
            scope, steps = scope_of(memref) or DRAM, _steps(map_attr.data, memref)
        operands.append(Operand(value, scope, element, steps, map_attr.data, shape))
    if len(extents) < len(generic.iterator_types) or any(extent < 0 for extent in extents.values()):
        return None
    return Access(
        tuple(extents[dim] for dim in range(len(generic.iterator_types))),
        tuple(kind.data for kind in generic.iterator_types),
        tuple(operands),
        expression_of(terminator.operands[0], body),
    )


def fill_access(type: MemRefType[Attribute], value: Attribute) -> Access:
    """The generic that gives every element of a buffer of this type the constant `value`."""
    shape = tuple(type.get_shape())
    identity = AffineMap.identity(len(shape))
    dest = Operand(None, scope_of(type) or DRAM, type.element_type, static_strides(type), identity, shape)
    constant = Node("arith.constant", (("value", value),), type.element_type, ())
    return Access(shape, (IteratorType.PARALLEL,) * len(shape), (dest,), constant)


def in_place_variants(access: Access) -> Iterator[tuple[int, Access]]:
    """
    The access with one input as the initial value of the output, for every input for which that means the
    same: it has the output's type and map, and the body does not read the output.
    """
    output = access.operands[access.output]
    if access.output in leaves(access.yielded) or output.value is None:
        return
    for number, operand in enumerate(access.operands[:-1]):
        if operand.value is None or operand.value.type != output.value.type or operand.index_map != output.index_map:
            continue
        # The input's place is taken by the output; the inputs after it move up by one.
        last = access.output - 1
        yielded = map_leaves(
            access.yielded, lambda leaf, n=number: Leaf(last if leaf == n else leaf - 1 if leaf > n else leaf)
        )
        operands = (*access.operands[:number], *access.operands[number + 1 : -1], operand)
        yield number, replace(access, operands=operands, yielded=yielded)
