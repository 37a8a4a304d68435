# SPDX-License-Identifier: Apache-2.0
"""Transposes moved towards the results, where that makes them fewer or smaller: a part of `simplify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects import graph
from penstock.dialects.graph import GraphOp, Tensor, TransposeOp, tensor_of
from penstock.dialects.graph.nn import SoftmaxBase
from penstock.passes.graph.layouts.forms import Order
from penstock.passes.graph.layouts.rules import RULES
from penstock.passes.graph.values import derived, rebuilt

Perm: TypeAlias = tuple[int, ...]


@dataclass
class _Sinking:
    """The transposes of one block: how far each could go, and how far it is worth it."""

    block: Block
    perms: dict[SSAValue, Perm] = field(default_factory=dict[SSAValue, Perm])
    """The transpose that would follow a value, if it and all before it were moved to it."""
    wanted: set[Operation] = field(default_factory=set[Operation])
    """Ops through which, by what follows them, a transpose should go."""

    def run(self) -> bool:
        """Move what is worth it; whether something was. One sweep down, one up, one down."""
        ops = list(self.block.ops)
        for op in ops:
            if (perm := self._perm_after_moving(op)) is not None:
                self.perms[op.results[0]] = perm
        for op in reversed(ops):
            if isinstance(op, GraphOp) and op.result in self.perms and self._is_wanted(op):
                self.wanted.add(op)
        moved: set[Operation] = set()
        for op in ops:
            if isinstance(op, TransposeOp):
                if op.x.owner in moved:
                    _merge(op)
            elif op in self.wanted and (perm := self._perm_now(op)) is not None:
                assert isinstance(op, GraphOp)
                moved.add(_sink(op, perm))
        return bool(moved)

    def _perm_after_moving(self, op: Operation) -> Perm | None:
        if isinstance(op, TransposeOp):
            return tuple(op.perm.get_values())
        if not isinstance(op, GraphOp) or op.attributes or not isinstance(op, MOVABLE):
            return None
        perms = {self.perms.get(operand) for operand in op.operands if not _follows(operand, op)}
        (perm,) = perms if len(perms) == 1 else (None,)
        return perm if perm is not None and _can_follow(op, perm) else None

    def _is_wanted(self, op: GraphOp) -> bool:
        """Whether every user of the result would rather have it before the transpose."""
        return bool(op.result.uses) and all(self._takes(use.operation) for use in op.result.uses)

    def _takes(self, op: Operation) -> bool:
        if isinstance(op, TransposeOp):
            return True
        if not isinstance(op, GraphOp) or op.result not in self.perms:
            return False
        several = len({operand for operand in op.operands if operand in self.perms}) > 1
        if several or isinstance(op, graph.ReductionOp):
            self.wanted.add(op)
        return op in self.wanted

    def _perm_now(self, op: Operation) -> Perm | None:
        """The transpose right before an op whose operands have it, and are used by nothing else."""
        assert isinstance(op, GraphOp)
        perms: set[Perm] = set()
        for operand in op.operands:
            if not _follows(operand, op):
                owner = operand.owner
                if not isinstance(owner, TransposeOp) or (operand in self.perms and owner not in self.wanted):
                    return None
                perms.add(tuple(owner.perm.get_values()))
        (perm,) = perms if len(perms) == 1 else (None,)
        return perm if perm is not None and _can_follow(op, perm) else None


MOVABLE = graph.PointwiseOp | SoftmaxBase | graph.ConcatOp | graph.PadOp | graph.SliceOp | graph.ReductionOp
"""Ops that a transpose may move after."""


def _follows(operand: SSAValue, op: GraphOp) -> bool:
    """Whether an operand is a constant that can be permuted as its neighbours are."""
    return isinstance(operand.owner, graph.ConstantOp) and not isinstance(op, graph.ConcatOp)


def _can_follow(op: GraphOp, perm: Perm) -> bool:
    ranks = {tensor_of(operand).get_num_dims() for operand in op.operands if not _follows(operand, op)}
    if ranks != {len(perm)}:
        return False
    if isinstance(op, graph.ReductionOp):
        # Terms are combined in the order of the axes, which must stay.
        axes = [perm[axis] for axis in op.axes.get_values()]
        return axes == sorted(axes)
    return tensor_of(op.result).get_num_dims() == len(perm)


def _before(operand: SSAValue, perm: Perm, op: GraphOp) -> SSAValue:
    """An operand of `op` as it is before the transpose."""
    owner = operand.owner
    if isinstance(owner, TransposeOp):
        return owner.x
    shape = tensor_of(operand).get_shape()
    if all(size == 1 for size in shape):
        return operand
    full = [*[1] * (len(perm) - len(shape)), *shape]
    value = operand
    if len(full) > len(shape):
        value = _insert(graph.ReshapeOp(value, full), op, "constant")
    return _insert(TransposeOp(value, perm=_inverse(perm)), op, "constant")


def _insert(new: GraphOp, op: GraphOp, part: str) -> SSAValue:
    new.location = derived(op.location, part)
    new.result.name_hint = op.result.name_hint
    Rewriter.insert_op(new, InsertPoint.before(op))
    return new.result


def _inverse(perm: Sequence[int]) -> list[int]:
    return sorted(range(len(perm)), key=lambda dim: perm[dim])


def _sink(op: GraphOp, perm: Perm) -> Operation:
    """Compute `op` on what its transposed operands were, and transpose the result; gives the transpose."""
    rule = RULES.find(type(op))
    assert rule is not None
    form = rule(op, Order(tuple(_inverse(perm))))
    assert form is not None
    operands = [_before(operand, perm, op) for operand in op.operands]
    result = Tensor(tensor_of(op.result).element_type, form.result.shape(tensor_of(op.result).get_shape()))
    value = _insert(rebuilt(op, operands, result, **form.properties), op, "before")
    transpose = TransposeOp(value, perm=_inverse(form.result.perm))
    transpose.location = op.location
    transpose.result.name_hint = op.result.name_hint
    Rewriter.replace_op(op, transpose)
    return transpose


def _merge(op: TransposeOp) -> None:
    """Two transposes as one, or none."""
    before = op.x.owner
    assert isinstance(before, TransposeOp)
    perm = [before.perm.get_values()[dim] for dim in op.perm.get_values()]
    if perm == sorted(perm):
        Rewriter.replace_op(op, [], [before.x])
        return
    both = TransposeOp(before.x, perm=perm)
    both.location = op.location
    Rewriter.replace_op(op, both)


def sink_transposes(block: Block) -> bool:
    """
    Move transposes after the ops that follow them, where every use leads to another transpose (the two become one,
    or none), to an op whose operands are all transposed (one is left), or to a reduction (a smaller one is left).

    The way leads through elementwise ops, with constants, which are permuted instead, through softmax, pads, slices,
    concatenations, and reductions, whose order of terms stays. What a transpose leaves unused is for the caller to
    remove. Takes time linear in the block. Returns whether anything was moved.
    """
    return _Sinking(block).run()
