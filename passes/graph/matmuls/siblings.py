"""Sibling products: contractions of one value with constants, and the elementwise ops that follow all of them alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Attribute, Block, Operation, SSAValue

from penstock.dialects.graph import (
    NCHW,
    BinaryOp,
    ConstantOp,
    ConvOp,
    GemmOp,
    GraphOp,
    MatmulOp,
    PatternKind,
    UnaryOp,
    pattern_kind,
    tensor_of,
)
from penstock.passes.graph.values import is_constant, only_user

REACH = 12
"""How many ops that compute may stand between two siblings: what is computed early lives long."""

Product = MatmulOp | GemmOp | ConvOp


@dataclass(frozen=True)
class Family:
    """Products that differ in their constants only."""

    members: tuple[Product, ...]
    widths: tuple[int, ...]
    """The size of each result along `axis`."""
    axis: int
    """The dim of the results along which the constants are concatenated."""

    @property
    def factors(self) -> list[SSAValue]:
        """The constant factors."""
        return [member.operands[1] for member in self.members]

    @property
    def biases(self) -> list[SSAValue]:
        """The constants that the products add; none, or one each."""
        return [member.operands[2] for member in self.members if len(member.operands) > 2]

    @property
    def is_stack(self) -> bool:
        """Whether the factors are matrices of one shape, that become a batch of them."""
        return not isinstance(self.members[0], ConvOp) and len(set(self.widths)) == 1


def families(block: Block) -> Iterator[Family]:
    """The families of a block, in its order; the members of each are those that are near enough to each other."""
    position: dict[Operation, int] = {}
    for op in block.ops:
        position[op] = position[next(reversed(position))] + (not isinstance(op, ConstantOp)) if position else 0
    found: dict[tuple[SSAValue, tuple[Attribute | str | int | None, ...]], list[list[Product]]] = {}
    for op in block.ops:
        if isinstance(op, Product) and (kind := _kind(op)) is not None:
            groups = found.setdefault((op.operands[0], kind), [])
            if groups and position[op] - position[groups[-1][-1]] <= REACH + 1:
                groups[-1].append(op)
            else:
                groups.append([op])
    for groups in found.values():
        for group in groups:
            if len(group) > 1:
                axis = 1 if isinstance(group[0], ConvOp) else tensor_of(group[0].result).get_num_dims() - 1
                widths = tuple(tensor_of(member.result).get_shape()[axis] for member in group)
                yield Family(tuple(group), widths, axis)


def _kind(op: Product) -> tuple[Attribute | str | int | None, ...] | None:
    """What siblings have in common besides the first operand; None for an op that has no siblings."""
    if any(not is_constant(operand) for operand in op.operands[1:]) or is_constant(op.operands[0]):
        return None
    factor = tensor_of(op.operands[1])
    common = (op.name, len(op.operands), factor.element_type, op.accumulator)
    if isinstance(op, ConvOp):
        if op.group.value.data != 1 or op.layout.data != NCHW:
            return None
        return (*common, op.strides, op.pads, op.dilations, *factor.get_shape()[1:])
    if factor.get_num_dims() != 2 or tensor_of(op.operands[0]).get_num_dims() < 2:
        return None
    if isinstance(op, MatmulOp):
        return common
    plain = not op.trans_a and not op.trans_b and op.alpha.value.data == op.beta.value.data == 1
    width = tensor_of(op.result).get_shape()[-1]
    if not plain or (op.c is not None and not is_along(op.c, width, 1, 2)):
        return None
    return common


def is_along(value: SSAValue, width: int, axis: int, rank: int) -> bool:
    """Whether a constant has one number for each index of dim `axis`, of size `width`, of a result of `rank` dims."""
    shape = tensor_of(value).get_shape()
    behind = rank - 1 - axis
    return len(shape) <= rank and len(shape) > behind and shape[-1 - behind] == width and prod(shape) == width


@dataclass(frozen=True)
class Alike:
    """An elementwise op that follows every sibling."""

    ops: tuple[GraphOp, ...]
    side: int
    """The operand that comes from the sibling."""
    constants: tuple[SSAValue, ...]
    """The other operands: one each along the axis of the family, one for all, or none."""


def following(values: Sequence[SSAValue], widths: Sequence[int], axis: int) -> Alike | None:
    """The elementwise op that is the only user of each of `values`, the same with other constants."""
    ops: list[GraphOp] = []
    for value in values:
        op = only_user(value)
        if not isinstance(op, UnaryOp | BinaryOp) or pattern_kind(op) > PatternKind.BROADCAST:
            return None
        if tensor_of(op.result).get_shape() != tensor_of(value).get_shape() or len(list(value.uses)) != 1:
            return None
        ops.append(op)
    first = ops[0]
    side = list(first.operands).index(values[0])
    for op, value in zip(ops, values, strict=True):
        if type(op) is not type(first) or op.properties != first.properties or op.operands[side] is not value:
            return None
    others = [op.operands[1 - side] for op in ops if len(op.operands) > 1]
    if not others:
        return Alike(tuple(ops), side, ())
    if not all(is_constant(other) for other in others):
        return None
    if all(_same_number(other, others[0]) for other in others):
        return Alike(tuple(ops), side, (others[0],))
    rank = tensor_of(values[0]).get_num_dims()
    if all(is_along(other, width, axis, rank) for other, width in zip(others, widths, strict=True)):
        return Alike(tuple(ops), side, tuple(others))
    return None


def _same_number(one: SSAValue, other: SSAValue) -> bool:
    """Whether two constants are the same single number."""
    if tensor_of(one).get_num_dims() != 0 or one.type != other.type:
        return False
    a, b = one.owner, other.owner
    return isinstance(a, ConstantOp) and isinstance(b, ConstantOp) and a.value == b.value
