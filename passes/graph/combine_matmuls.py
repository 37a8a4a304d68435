# SPDX-License-Identifier: Apache-2.0
"""Compute products of one value with several constants as one product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects import graph
from penstock.dialects.context import store_of
from penstock.dialects.graph import NCHW, GraphOp, PatternKind, Tensor, pattern_kind, tensor_of
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import processor_of
from penstock.passes.graph.contractions import ContractionOp
from penstock.passes.graph.values import NodeBuilder, erase_dead, graph_blocks, is_constant, only_user, rebuilt

MAX_GAP = 12
"""How many ops that compute may be between two siblings: what is computed early lives long."""


@dataclass(frozen=True)
class Family:
    """Products that differ in their constants only."""

    members: tuple[ContractionOp, ...]
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
        return not isinstance(self.members[0], graph.ConvOp) and len(set(self.widths)) == 1


def families(block: Block) -> Iterator[Family]:
    """The families of a block, in its order; the members of each are those that are near enough to each other."""
    position: dict[Operation, int] = {}
    for op in block.ops:
        position[op] = position[next(reversed(position))] + (not isinstance(op, graph.ConstantOp)) if position else 0
    found: dict[tuple[SSAValue, tuple[Attribute | str | int | None, ...]], list[list[ContractionOp]]] = {}
    for op in block.ops:
        if isinstance(op, ContractionOp) and (kind := _kind(op)) is not None:
            groups = found.setdefault((op.operands[0], kind), [])
            if groups and position[op] - position[groups[-1][-1]] <= MAX_GAP + 1:
                groups[-1].append(op)
            else:
                groups.append([op])
    for (operand, _), groups in found.items():
        for group in groups:
            # What siblings of a constant compute is folded, and not combined.
            if len(group) > 1 and not is_constant(operand):
                axis = 1 if isinstance(group[0], graph.ConvOp) else tensor_of(group[0].result).get_num_dims() - 1
                widths = tuple(tensor_of(member.result).get_shape()[axis] for member in group)
                yield Family(tuple(group), widths, axis)


def _kind(op: ContractionOp) -> tuple[Attribute | str | int | None, ...] | None:
    """What siblings have in common besides the first operand; None for an op that has no siblings."""
    if any(not is_constant(operand) for operand in op.operands[1:]):
        return None
    factor = tensor_of(op.operands[1])
    common = (op.name, len(op.operands), factor.element_type, op.accumulator)
    if isinstance(op, graph.ConvOp):
        if op.group.value.data != 1 or op.layout.data != NCHW:
            return None
        return (*common, op.strides, op.pads, op.dilations, *factor.get_shape()[1:])
    if factor.get_num_dims() != 2 or tensor_of(op.operands[0]).get_num_dims() < 2:
        return None
    if isinstance(op, graph.MatmulOp):
        return common
    plain = not op.trans_a and not op.trans_b and op.alpha.value.data == op.beta.value.data == 1
    width = tensor_of(op.result).get_shape()[-1]
    if not plain or (op.c is not None and not is_along(op.c, width, 1, 2)):
        return None
    return common


def is_along(value: SSAValue, width: int, axis: int, rank: int) -> bool:
    """Whether a constant has one number for each index of dim `axis`, of size `width`, of a result of `rank` dims."""
    shape = tensor_of(value).get_shape()
    later = rank - 1 - axis
    return len(shape) <= rank and len(shape) > later and shape[-1 - later] == width and prod(shape) == width


@dataclass(frozen=True)
class EqualFollowers:
    """An elementwise op that follows every sibling."""

    ops: tuple[GraphOp, ...]
    side: int
    """The operand that comes from the sibling."""
    constants: tuple[SSAValue, ...]
    """The other operands: one each along the axis of the family, one for all, or none."""


def following(values: Sequence[SSAValue], widths: Sequence[int], axis: int) -> EqualFollowers | None:
    """The elementwise op that is the only user of each of `values`, the same with other constants."""
    ops: list[GraphOp] = []
    for value in values:
        op = only_user(value)
        if not isinstance(op, graph.UnaryOp | graph.BinaryOp) or pattern_kind(op) > PatternKind.BROADCAST:
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
        return EqualFollowers(tuple(ops), side, ())
    if not all(is_constant(other) for other in others):
        return None
    if all(_same_number(other, others[0]) for other in others):
        return EqualFollowers(tuple(ops), side, (others[0],))
    rank = tensor_of(values[0]).get_num_dims()
    if all(is_along(other, width, axis, rank) for other, width in zip(others, widths, strict=True)):
        return EqualFollowers(tuple(ops), side, tuple(others))
    return None


def _same_number(one: SSAValue, other: SSAValue) -> bool:
    """Whether two constants are the same single number."""
    if tensor_of(one).get_num_dims() != 0 or one.type != other.type:
        return False
    a, b = one.owner, other.owner
    return isinstance(a, graph.ConstantOp) and isinstance(b, graph.ConstantOp) and a.value == b.value


class _Combination:
    """Replaces the members of a family, before the first, and the equal elementwise ops that follow all of them."""

    def __init__(self, family: Family, store: WeightStore):
        self._family = family
        self._build = NodeBuilder(family.members[0].location, store)
        self._values: list[SSAValue] = [member.result for member in family.members]
        self._replaced: list[Operation] = list(family.members)
        self._result: SSAValue = self._values[0]

    def run(self) -> None:
        family, before = self._family, InsertPoint.before(self._family.members[0])
        self._result = self._product()
        rank = tensor_of(self._values[0]).get_num_dims()
        if family.biases and not isinstance(family.members[0], graph.ConvOp):
            self._append(graph.AddOp(self._result, self._combined(family.biases, 1, 2)), "siblings_biased")
        while (followers := following(self._values, family.widths, family.axis)) is not None:
            self._build.location = followers.ops[0].location
            self._append(self._elementwise(followers, rank), "siblings")
            self._values = [op.result for op in followers.ops]
            self._replaced += followers.ops
        parts = self._parts()
        for constant in self._constants():
            constant.detach()
            Rewriter.insert_op(constant, before)
        Rewriter.insert_op(self._build.ops, before)
        for value, part in zip(self._values, parts, strict=True):
            part.name_hint = value.name_hint
            value.replace_all_uses_with(part)
        for op in reversed(self._replaced):
            Rewriter.erase_op(op)

    def _append(self, op: GraphOp, part: str) -> None:
        self._result = self._build.add(op, part)

    def _constants(self) -> list[Operation]:
        """What computes the constants that are read, in order, and is not before the first member yet."""
        found: dict[Operation, None] = {}
        later = self._extent()

        def visit(value: SSAValue) -> None:
            # Others read constants too, so that none moves down: one before the first member stays where it is.
            if isinstance(value.owner, GraphOp) and value.owner in later and is_constant(value):
                for operand in value.owner.operands:
                    visit(operand)
                found[value.owner] = None

        for op in self._build.ops:
            for operand in op.operands:
                visit(operand)
        return list(found)

    def _extent(self) -> set[Operation]:
        """The ops from the first member to the last op that is replaced."""
        pending = set(self._replaced)
        op: Operation | None = self._family.members[0]
        found: set[Operation] = set()
        while pending and op is not None:
            found.add(op)
            pending.discard(op)
            op = op.next_op
        return found

    def _product(self) -> SSAValue:
        family, build = self._family, self._build
        first = family.members[0]
        x = first.operands[0]
        if isinstance(first, graph.ConvOp):
            operands = [x, self._concatenated(family.factors, 0)]
            operands += [self._concatenated(family.biases, 0)] if family.biases else []
            shape = [*tensor_of(first.result).get_shape()]
            shape[1] = sum(family.widths)
            type = Tensor(tensor_of(first.result).element_type, shape)
            return build.add(rebuilt(first, operands, type), "siblings")
        if family.is_stack:
            *rows, k = tensor_of(x).get_shape()
            if len(rows) > 1:
                x = build.add(graph.ReshapeOp(x, [prod(rows), k]), "rows")
            matrices = [build.add(graph.ReshapeOp(w, [1, *tensor_of(w).get_shape()]), "weight") for w in family.factors]
            factor = self._concatenated(matrices, 0)
        else:
            factor = self._concatenated(family.factors, 1)
        return build.add(graph.MatmulOp(x, factor, accumulator=first.accumulator), "siblings")

    def _concatenated(self, values: Sequence[SSAValue], axis: int) -> SSAValue:
        return self._build.add(graph.ConcatOp(values, axis=axis), "weights")

    def _combined(self, constants: Sequence[SSAValue], axis: int, rank: int) -> SSAValue:
        """Constants along `axis` of results of `rank` dims, for the combined result."""
        if self._family.is_stack:
            rows = [self._build.add(graph.ReshapeOp(c, [1, 1, -1]), "vector") for c in constants]
            return self._concatenated(rows, 0)
        ones = [1] * (rank - 1 - axis)
        return self._concatenated([self._build.add(graph.ReshapeOp(c, [-1, *ones]), "vector") for c in constants], 0)

    def _elementwise(self, followers: EqualFollowers, rank: int) -> GraphOp:
        operands = [self._result]
        if len(followers.constants) > 1:
            operands.insert(1 - followers.side, self._combined(followers.constants, self._family.axis, rank))
        elif followers.constants:
            operands.insert(1 - followers.side, followers.constants[0])
        first = followers.ops[0]
        type = Tensor(tensor_of(first.result).element_type, tensor_of(self._result).get_shape())
        return rebuilt(first, operands, type)

    def _parts(self) -> list[SSAValue]:
        """The value of each sibling: a slice, and where the shape is another one, a view of that."""
        family, shape = self._family, list(tensor_of(self._result).get_shape())
        axis = 0 if family.is_stack else family.axis
        sizes = [1] * len(family.widths) if family.is_stack else list(family.widths)
        found: list[SSAValue] = []
        for value, size, start in zip(self._values, sizes, accumulate([0, *sizes]), strict=False):
            starts, extents = [0] * len(shape), [*shape]
            starts[axis], extents[axis] = start, size
            part = graph.SliceOp(self._result, starts=starts, sizes=extents)
            full = tensor_of(value).get_shape()
            last = part if full == part.result_type.get_shape() else graph.ReshapeOp(part, full)
            if last is not part:
                self._build.add(part, "part")
            self._build.add(last)
            assert isinstance(value.owner, Operation)
            last.location = value.owner.location
            found.append(last.result)
        return found


@dataclass(frozen=True)
class CombineMatmulsPass(ModulePass):
    """
    Compute the products of one value with several constants as one, of which each takes its part.

    Siblings are two or more `graph.matmul`s, `graph.gemm`s or `graph.conv`s of the same left operand with constants,
    whose other attributes and element types are the same, without more than a dozen other ops between one and the
    next. Matrices of one shape become a batch, a product with one more dim, of which each sibling takes a run of rows;
    matrices of several widths, and filters, are concatenated along the output, of which each sibling takes its
    columns or channels (with `unequal="leave"` those stay as they are). Equal elementwise ops that follow all siblings,
    each the only user of the one before, with constants along the output or none, are combined too. Constants are
    concatenated by ops that `fold-constants` evaluates, and the parts are views.

    On a host whose registers are known siblings stay apart: each is packed by itself, its tiles read the left operand
    from a cache, and of a result that is several ones its readers would have to copy their parts.

    The left operand is then read once. Each element is the same sum in the same order as before. Requires and
    guarantees the graph level; convolutions are combined before `layout`, gemms after `transpose-operands`.
    See TVM's CombineParallelDense, CombineParallelBatchMatmul and CombineParallelConv2D.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x8x16xf32>) -> (tensor<1x8x4xf32>, tensor<1x8x4xf32>) {
      %v = graph.constant #graph.weight<"v"> : tensor<16x4xf32>
      %w = graph.constant #graph.weight<"w"> : tensor<16x4xf32>
      %b = graph.constant #graph.weight<"b"> : tensor<4xf32>
      %c = graph.constant #graph.weight<"c"> : tensor<4xf32>
      %p = graph.matmul %x, %v : (tensor<1x8x16xf32>, tensor<16x4xf32>) -> tensor<1x8x4xf32>
      %q = graph.add %b, %p : (tensor<4xf32>, tensor<1x8x4xf32>) -> tensor<1x8x4xf32>
      %r = graph.matmul %x, %w : (tensor<1x8x16xf32>, tensor<16x4xf32>) -> tensor<1x8x4xf32>
      %s = graph.add %c, %r : (tensor<4xf32>, tensor<1x8x4xf32>) -> tensor<1x8x4xf32>
      func.return %q, %s : tensor<1x8x4xf32>, tensor<1x8x4xf32>
    }
    ```
    After (`combine-matmuls`):
    ```mlir
    func.func @main(%x: tensor<1x8x16xf32>) -> (tensor<1x8x4xf32>, tensor<1x8x4xf32>) {
      %v = graph.constant #graph.weight<"v"> : tensor<16x4xf32>
      %w = graph.constant #graph.weight<"w"> : tensor<16x4xf32>
      %b = graph.constant #graph.weight<"b"> : tensor<4xf32>
      %c = graph.constant #graph.weight<"c"> : tensor<4xf32>
      %rows = graph.reshape %x : tensor<1x8x16xf32> -> tensor<8x16xf32>
      %weight = graph.reshape %v : tensor<16x4xf32> -> tensor<1x16x4xf32>
      %weight_1 = graph.reshape %w : tensor<16x4xf32> -> tensor<1x16x4xf32>
      %weights = graph.concat %weight, %weight_1 axis 0
          : (tensor<1x16x4xf32>, tensor<1x16x4xf32>) -> tensor<2x16x4xf32>
      %siblings = graph.matmul %rows, %weights : (tensor<8x16xf32>, tensor<2x16x4xf32>) -> tensor<2x8x4xf32>
      %vector = graph.reshape %b : tensor<4xf32> -> tensor<1x1x4xf32>
      %vector_1 = graph.reshape %c : tensor<4xf32> -> tensor<1x1x4xf32>
      %weights_1 = graph.concat %vector, %vector_1 axis 0
          : (tensor<1x1x4xf32>, tensor<1x1x4xf32>) -> tensor<2x1x4xf32>
      %siblings_1 = graph.add %weights_1, %siblings : (tensor<2x1x4xf32>, tensor<2x8x4xf32>) -> tensor<2x8x4xf32>
      %q = graph.slice %siblings_1 starts [0, 0, 0] sizes [1, 8, 4] steps [1, 1, 1]
          : tensor<2x8x4xf32> -> tensor<1x8x4xf32>
      %s = graph.slice %siblings_1 starts [1, 0, 0] sizes [1, 8, 4] steps [1, 1, 1]
          : tensor<2x8x4xf32> -> tensor<1x8x4xf32>
      func.return %q, %s : tensor<1x8x4xf32>, tensor<1x8x4xf32>
    }
    ```
    """

    name = "combine-matmuls"

    unequal: Literal["concatenate", "leave"] = "concatenate"
    """What becomes of siblings whose outputs differ in width, and of convolutions."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if processor_of(op) is not None:
            return
        store = store_of(ctx)
        for block in graph_blocks(op):
            for family in list(families(block)):
                if family.is_stack or self.unequal == "concatenate":
                    _Combination(family, store).run()
            erase_dead(block)
