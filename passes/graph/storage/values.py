"""Values in f32 and in f16: which are stored narrow, and the forms of a value that a rewrite asks for."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import Float16Type, Float32Type, TensorType, UnknownLoc, f16, f32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.graph import (
    CastOp,
    ConcatOp,
    ConstantOp,
    FusedOp,
    LogSoftmaxOp,
    PatternKind,
    ReshapeOp,
    SliceOp,
    SoftmaxOp,
    WeightAttr,
    YieldOp,
    dense_of,
)
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.graph.layouts.forms import location_of_value
from penstock.passes.graph.values import derived
from penstock.runtime.interpreter.graph import evaluate_op

VIEWS = (ConcatOp, ReshapeOp, SliceOp)
"""What stands outside groups and only places elements."""

HALF, SINGLE = f16, f32
Width = Float16Type | Float32Type


def is_single(value: SSAValue) -> bool:
    """Whether the elements of a tensor are f32."""
    return isa(value.type, TensorType[Attribute]) and value.type.element_type == SINGLE


def with_elements(value: SSAValue, element: Attribute) -> TensorType[Attribute]:
    """The type of a tensor with other elements."""
    assert isa(value.type, TensorType[Attribute])
    return TensorType(element, value.type.shape)


def fixed_values(block: Block) -> set[SSAValue]:
    """
    The values of a block that keep their type: its arguments, what ops other than groups and views compute or read
    (the results of the function among it), constants, and what must have the type of one of these because a
    reshape, a slice, or a concatenation that is fixed, ties them together. So do logits, which a softmax reads: it
    turns a relative error into one as many times larger as they are, and a mask that is added to them is often near
    the largest number of its type.
    """
    ops = list(block.ops)
    fixed: set[SSAValue] = set(block.args)
    for op in ops:
        if _is_softmax(op):
            fixed.update(op.operands)
        elif not isinstance(op, FusedOp | ConcatOp | ReshapeOp | SliceOp):
            fixed.update(op.operands, op.results)
    size = -1
    while size != len(fixed):
        size = len(fixed)
        for op in reversed(ops):
            if isinstance(op, VIEWS) and op.result in fixed:
                fixed.update(op.operands)
            elif isinstance(op, ReshapeOp | SliceOp) and op.x in fixed:
                fixed.add(op.result)
    return fixed


def _is_softmax(op: Operation) -> bool:
    return isinstance(op, FusedOp) and any(isinstance(each, SoftmaxOp | LogSoftmaxOp) for each in op.body.block.ops)


def fits_half(array: Array) -> bool:
    """Whether no finite element becomes infinite in f16."""
    with np.errstate(over="ignore"):
        return bool(np.all(np.isfinite(array.astype(np.float16)) | ~np.isfinite(array)))


class StoredValues:
    """The values of one block as they are stored: those of the old block, each in f32, in f16 or in both."""

    def __init__(self, block: Block, store: WeightStore):
        self.fixed = fixed_values(block)
        self._store = store
        self._half: dict[SSAValue, SSAValue] = {}

    def is_half(self, value: SSAValue) -> bool:
        """Whether an f32 value of the old block is stored in f16 from now on."""
        return is_single(value) and value not in self.fixed

    def replace(self, old: SSAValue, new: SSAValue) -> None:
        """Let `new` be the old value: its f16 form, or what its users read in its place."""
        new.name_hint = old.name_hint
        if self.is_half(old):
            self._half[old] = new
            return
        if old in self.fixed:
            self.fixed.add(new)
        old.replace_all_uses_with(new)

    def constant(self, value: SSAValue) -> Array | None:
        """The array of a constant; None for another value."""
        owner = value.owner
        return evaluate_op(owner, [], self._store)[0] if isinstance(owner, ConstantOp) else None

    def half(self, value: SSAValue, user: Operation) -> SSAValue:
        """
        An f32 value of the old block in f16: stored so, or, before its first `user`, as another constant or
        computed by a group of its own.
        """
        if (found := self._half.get(value)) is not None:
            return found
        made = self._constant(value) if isinstance(value.owner, ConstantOp) else _cast_group(value, user)
        Rewriter.insert_op(made, InsertPoint.before(user))
        result = self._half[value] = made.results[0]
        result.name_hint = f"{value.name_hint or 'value'}_f16"
        return result

    def _constant(self, value: SSAValue) -> ConstantOp:
        constant = value.owner
        assert isinstance(constant, ConstantOp)
        (array,) = evaluate_op(constant, [], self._store)
        narrow = array.astype(np.float16)
        dense = dense_of(narrow) if constant.weight is None else None
        if dense is not None:
            made = ConstantOp(dense)
        else:
            name = self._store.add(f"{constant.weight or 'constant'}/f16", narrow)
            made = ConstantOp(WeightAttr(name), with_elements(value, HALF))
        made.location = constant.location
        return made


def _cast_group(value: SSAValue, user: Operation) -> FusedOp:
    """A group that casts `value` to f16; where nothing says what that is, it is there for its first `user`."""
    body = Block(arg_types=[value.type])
    body.args[0].name_hint = value.name_hint
    cast_op = CastOp(body.args[0], HALF)
    location = location_of_value(value)
    cast_op.location = derived(user.location if isinstance(location, UnknownLoc) else location, "f16")
    body.add_ops([cast_op, YieldOp(cast_op.result)])
    group = FusedOp([value], body, pattern=PatternKind.ELEMENTWISE)
    group.location = cast_op.location
    return group
