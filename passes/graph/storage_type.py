# SPDX-License-Identifier: Apache-2.0
"""Store the values between kernels in f16, for machines that multiply f16 and sum in f32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import Float16Type, Float32Type, ModuleOp, TensorType, f16, f32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.context import store_of
from penstock.dialects.graph import GraphOp, PatternKind, dense_of
from penstock.dialects.locations import location_of_value
from penstock.dialects.machine import TargetOp
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.analysis.kernels import is_contraction, machine_of
from penstock.passes.graph.contractions import ContractionOp
from penstock.passes.graph.values import constant_array, derived, erase_dead, graph_blocks, rebuilt

VIEWS = (graph.ConcatOp, graph.ReshapeOp, graph.SliceOp)
"""What is outside groups and only places elements."""

HALF, SINGLE = f16, f32
Width = Float16Type | Float32Type


def is_single(value: SSAValue) -> bool:
    """Whether the elements of a tensor are f32."""
    return isa(value.type, TensorType) and value.type.element_type == SINGLE


def with_elements(value: SSAValue, element: Attribute) -> TensorType[Attribute]:
    """The type of a tensor with other elements."""
    assert isa(value.type, TensorType)
    return TensorType(element, value.type.shape)


def fixed_values(
    block: Block, is_group: Callable[[Operation], bool], is_between: Callable[[Operation], bool]
) -> set[SSAValue]:
    """
    The values of a block that keep their type: its arguments, what ops other than groups, and ops `is_between` them,
    compute or read (the results of the function among it), constants, and what must have the type of one of these
    because a reshape, a slice, or a concatenation that is fixed, ties them together. So do logits, which a softmax
    reads: it turns a relative error into one as many times larger as they are, and a mask that is added to them is
    often near the largest number of its type.
    """
    fixed: set[SSAValue] = set(block.args)
    between = [op for op in block.ops if is_between(op)]
    for op in block.ops:
        if is_group(op):
            if any(isinstance(each, graph.SoftmaxOp | graph.LogSoftmaxOp) for each in op.walk()):
                fixed.update(op.operands)
        elif not is_between(op):
            fixed.update(op.operands, op.results)
    size = -1
    while size != len(fixed):
        size = len(fixed)
        for op in reversed(between):
            if op.results[0] in fixed:
                fixed.update(op.operands)
            elif not isinstance(op, graph.ConcatOp) and op.operands[0] in fixed:
                fixed.add(op.results[0])
    return fixed


def fits_half(array: Array) -> bool:
    """Whether no finite element becomes infinite in f16."""
    with np.errstate(over="ignore"):
        return bool(np.all(np.isfinite(array.astype(np.float16)) | ~np.isfinite(array)))


class StoredValues:
    """The values of one block as they are stored: those of the old block, each in f32, in f16 or in both."""

    def __init__(self, block: Block, store: WeightStore):
        self.fixed = fixed_values(block, lambda op: isinstance(op, graph.FusedOp), lambda op: isinstance(op, VIEWS))
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
        return constant_array(value, self._store) if isinstance(value.owner, graph.ConstantOp) else None

    def half(self, value: SSAValue, user: Operation) -> SSAValue:
        """
        An f32 value of the old block in f16: stored so, or, before its first `user`, as another constant or
        computed by a group of its own.
        """
        if (found := self._half.get(value)) is not None:
            return found
        made = self._constant(value) if isinstance(value.owner, graph.ConstantOp) else _cast_group(value)
        Rewriter.insert_op(made, InsertPoint.before(user))
        result = self._half[value] = made.results[0]
        result.name_hint = f"{value.name_hint or 'value'}_f16"
        return result

    def _constant(self, value: SSAValue) -> graph.ConstantOp:
        constant = value.owner
        assert isinstance(constant, graph.ConstantOp)
        array = constant_array(value, self._store)
        assert array is not None
        narrow = array.astype(np.float16)
        dense = dense_of(narrow) if constant.weight is None else None
        if dense is not None:
            made = graph.ConstantOp(dense)
        else:
            name = self._store.add(f"{constant.weight or 'constant'}/f16", narrow)
            made = graph.ConstantOp(graph.WeightAttr(name), with_elements(value, HALF))
        made.location = constant.location
        return made


def _cast_group(value: SSAValue) -> graph.FusedOp:
    """A group that casts `value` to f16."""
    body = Block(arg_types=[value.type])
    body.args[0].name_hint = value.name_hint
    cast_op = graph.CastOp(body.args[0], HALF)
    cast_op.location = derived(location_of_value(value), "f16")
    body.add_ops([cast_op, graph.YieldOp(cast_op.result)])
    group = graph.FusedOp([value], body, pattern=PatternKind.ELEMENTWISE)
    group.location = cast_op.location
    return group


MOVES = (graph.ExpandOp, graph.IdentityOp, graph.LayoutTransformOp, graph.ReshapeOp, graph.SliceOp, graph.TransposeOp)
"""Ops that move elements and compute nothing: they do not care which type these have."""


def _with_type(op: Operation, operands: list[SSAValue], element: Attribute, **properties: Attribute) -> Operation:
    """`op` on other operands, with a result of other elements."""
    assert isinstance(op, GraphOp)
    new = rebuilt(op, operands, with_elements(op.result, element), **properties)
    new.attributes.update(op.attributes)
    new.location, new.result.name_hint = op.location, op.result.name_hint
    return new


def _is_half(number: float) -> bool:
    """Whether f16 holds a number."""
    with np.errstate(over="ignore"):
        return float(np.float16(number)) == number


class GroupInHalf:
    """A group under reconstruction, in which an f32 value may be there in f32, in f16 or in both."""

    def __init__(self, old: graph.FusedOp, stored: StoredValues):
        self._old = old
        self._stored = stored
        self._body = Block()
        self._inputs: list[SSAValue] = []
        self._outside: dict[SSAValue, SSAValue] = dict(zip(old.body.block.args, old.inputs, strict=True))
        self._forms: dict[tuple[SSAValue, Attribute | None], SSAValue] = {}
        self._member: Operation = old

    def rebuild(self) -> graph.FusedOp:
        """The group on its operands as they are stored, with its results as they shall be."""
        for op in self._old.body.block.ops:
            self._member = op
            if not isinstance(op, graph.YieldOp):
                self._add(op)
                continue
            results = zip(op.values, self._old.outputs, strict=True)
            yielded = [self._form(value, self._width(value, self._stored.is_half(out))) for value, out in results]
            self._body.add_op(graph.YieldOp(*yielded))
        group = graph.FusedOp(self._inputs, self._body, pattern=self._old.pattern.data)
        group.location = self._old.location
        return group

    def _add(self, op: Operation) -> None:
        if isinstance(op, ContractionOp) and self._is_narrowed(op):
            narrow = [self._form(factor, HALF) for factor in op.operands[:2]]
            addend = [self._form(value, SINGLE) for value in op.operands[2:]]
            self._define(op, _with_type(op, [*narrow, *addend], SINGLE, accumulator=SINGLE))
        elif isinstance(op, graph.AttentionOp) and op.accumulator is None and is_single(op.q):
            narrow = [self._form(factor, HALF) for factor in op.operands[:3]]
            mask = [self._form(value, SINGLE) for value in op.operands[3:]]
            self._define(op, _with_type(op, [*narrow, *mask], HALF, accumulator=SINGLE))
        elif (
            (isinstance(op, MOVES) or (isinstance(op, graph.PadOp) and _is_half(op.value.value.data)))
            and is_single(op.x)
            and self._is_here(op.x, HALF)
        ):
            self._define(op, _with_type(op, [self._form(op.x, HALF)], HALF))
        else:
            new = op.clone({value: self._form(value, self._width(value, False)) for value in op.operands})
            self._define(op, new)

    def _is_narrowed(self, op: ContractionOp) -> bool:
        """Whether a contraction is of f32, and none of its constant factors exceeds f16."""
        if not all(is_single(factor) for factor in op.operands[:2]) or op.accumulator not in (None, SINGLE):
            return False
        arrays = [self._stored.constant(self._outside.get(factor, factor)) for factor in op.operands[:2]]
        return all(array is None or fits_half(array) for array in arrays)

    def _width(self, value: SSAValue, half: bool) -> Width | None:
        """The form to ask for; None for a value that has only one."""
        if not is_single(value):
            return None
        return HALF if half else SINGLE

    def _define(self, old: Operation, new: Operation) -> None:
        self._body.add_op(new)
        for before, after in zip(old.results, new.results, strict=True):
            width = HALF if is_single(before) and not is_single(after) else self._width(before, False)
            self._forms[before, width] = after

    def _is_here(self, value: SSAValue, width: Width) -> bool:
        """Whether a form is to be had without a cast."""
        outside = self._outside.get(value)
        return (value, width) in self._forms or (
            outside is not None and self._stored.is_half(outside) == (width == HALF)
        )

    def _form(self, value: SSAValue, width: Width | None) -> SSAValue:
        if (found := self._forms.get((value, width))) is not None:
            return found
        outside = self._outside.get(value)
        if outside is not None and (width != SINGLE or not self._stored.is_half(outside)):
            source = self._stored.half(outside, self._old) if width == HALF else outside
            made: SSAValue = self._body.insert_arg(source.type, len(self._body.args))
            self._inputs.append(source)
        else:
            assert width is not None
            cast = graph.CastOp(self._form(value, HALF if width == SINGLE else SINGLE), width)
            # What leaves the group is the value of its node, narrowed; what enters it is none of its own.
            is_result = isinstance(self._member, graph.YieldOp) and isinstance(value.owner, Operation)
            location = value.owner.location if isinstance(value.owner, Operation) else self._member.location
            cast.location = location if is_result else derived(location, str(width))
            self._body.add_op(cast)
            made = cast.result
        made.name_hint = value.name_hint
        self._forms[value, width] = made
        return made


def _narrow_block(block: Block, store: WeightStore) -> None:
    """Store the f32 values of a block in f16."""
    stored = StoredValues(block, store)
    replaced: list[Operation] = []
    for op in list(block.ops):
        if isinstance(op, graph.FusedOp):
            new: Operation = GroupInHalf(op, stored).rebuild()
        elif isinstance(op, VIEWS) and stored.is_half(op.result):
            new = _with_type(op, [stored.half(operand, op) for operand in op.operands], HALF)
        else:
            continue
        Rewriter.insert_op(new, InsertPoint.before(op))
        for before, after in zip(op.results, new.results, strict=True):
            stored.replace(before, after)
        replaced.append(op)
    for op in reversed(replaced):
        Rewriter.erase_op(op)
    erase_dead(block)


def multiplies_halves_only(target: TargetOp) -> bool:
    """Whether a unit of the machine sums products of f16 in f32, and none sums products of f32."""
    factors = [
        {spec.dtype for spec in intrinsic.operand_specs()[:-1]}
        for intrinsic in target.intrinsics().values()
        if intrinsic.unit_name is not None
        and is_contraction(intrinsic.generic)
        and intrinsic.operand_specs()[-1].dtype == SINGLE
    ]
    return {HALF} in factors and {SINGLE} not in factors


@dataclass(frozen=True)
class StorageTypePass(ModulePass):
    """
    Store float tensors in f16 between kernels, and compute in f32 inside them.

    With "auto", this is done for a machine that has a unit which sums products of f16 in f32, and none for factors
    of f32; else, and with "f32", nothing is. Requires groups, as `graph-fuse` makes them. Then every f32 value
    that goes from group to group, through views and concatenations, is f16: a group casts what it reads to f32
    and what it yields to f16, and computes in f32 in between. The factors of convolutions and matrix products are
    read as they are stored, with `accumulate f32`. Weights that are such factors become entries of the store
    called `<weight>/f16`. Biases, scales and all other constants stay f32, and so do the inputs and results of
    the function and what a softmax reads; one of these that is a factor is cast by a group of its own, once, before
    its first user: inside a convolution's group it would be cast once for each window and block of outputs that
    reads it.
    Ops that only move elements move f16. A contraction with a constant that f16 cannot hold stays f32.

    Every value that is stored is rounded to f16: the pass narrows. See Micikevicius et al., "Mixed Precision
    Training", ICLR 2018.

    Before:
    ```mlir
    func.func @main(%x: tensor<2x8xf32>) -> tensor<2x4xf32> {
      %w = graph.constant dense<5.000000e-01> : tensor<8x4xf32>
      %h = graph.fused(%x) pattern elementwise {
      ^bb0(%x_1: tensor<2x8xf32>):
        %h_1 = graph.tanh %x_1 : tensor<2x8xf32>
        graph.yield %h_1 : tensor<2x8xf32>
      } : (tensor<2x8xf32>) -> tensor<2x8xf32>
      %y = graph.fused(%h, %w) pattern complex_out_fusable {
      ^bb0(%h_1: tensor<2x8xf32>, %w_1: tensor<8x4xf32>):
        %y_1 = graph.matmul %h_1, %w_1 : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
        graph.yield %y_1 : tensor<2x4xf32>
      } : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }
    ```
    After (`storage-type{type="f16"}`):
    ```mlir
    func.func @main(%x: tensor<2x8xf32>) -> tensor<2x4xf32> {
      %h = graph.fused(%x) pattern elementwise {
      ^bb0(%x_1: tensor<2x8xf32>):
        %h_1 = graph.tanh %x_1 : tensor<2x8xf32>
        %h_2 = graph.cast %h_1 : tensor<2x8xf32> -> tensor<2x8xf16>
        graph.yield %h_2 : tensor<2x8xf16>
      } : (tensor<2x8xf32>) -> tensor<2x8xf16>
      %w_f16 = graph.constant dense<5.000000e-01> : tensor<8x4xf16>
      %y = graph.fused(%h, %w_f16) pattern complex_out_fusable {
      ^bb0(%h_1: tensor<2x8xf16>, %w: tensor<8x4xf16>):
        %y_1 = graph.matmul %h_1, %w accumulate f32 : (tensor<2x8xf16>, tensor<8x4xf16>) -> tensor<2x4xf32>
        graph.yield %y_1 : tensor<2x4xf32>
      } : (tensor<2x8xf16>, tensor<8x4xf16>) -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }
    ```
    """

    name = "storage-type"
    narrows_to: ClassVar[str] = "f16"

    type: Literal["auto", "f16", "f32"] = "auto"
    """The element type of float tensors between kernels; "auto" asks the machine."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = machine_of(op)
        chosen = target is not None and multiplies_halves_only(target) if self.type == "auto" else self.type == "f16"
        if chosen:
            for block in graph_blocks(op):
                _narrow_block(block, store_of(ctx))
