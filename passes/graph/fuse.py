"""Group the ops of a graph into kernels: elementwise epilogues and chains."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.graph import (
    ConcatOp,
    ConstantOp,
    FusedOp,
    GraphOp,
    HasPatternKind,
    PatternKind,
    YieldOp,
    pattern_kind,
    tensor_of,
)
from penstock.passes.graph.values import graph_blocks, is_view, only_user, remove_dead_constants

NOT_GROUPED = (ConcatOp, ConstantOp, FusedOp)
"""Ops that stay outside, beside views: constants, a concatenation (its producers write into the result), and groups."""


def is_groupable(op: Operation) -> bool:
    """Whether `op` computes something, and is to be in a group."""
    known = isinstance(op, GraphOp) or op.get_trait(HasPatternKind) is not None
    return known and not isinstance(op, NOT_GROUPED) and not is_view(op) and len(op.results) == 1


def takes_epilogue(op: Operation) -> bool:
    """Whether elementwise ops may follow `op` in its group: after contractions, windows and elementwise ops."""
    kind = pattern_kind(op)
    return kind <= PatternKind.BROADCAST or kind == PatternKind.COMPLEX_OUT_FUSABLE


@dataclass
class _Grouping:
    """The groups of one block, each a chain of ops of which every one is the only user of the one before."""

    block: Block
    position: dict[Operation, int] = field(default_factory=dict[Operation, int])
    grouped: set[Operation] = field(default_factory=set[Operation])

    def run(self) -> list[list[Operation]]:
        ops = list(self.block.ops)
        self.position = {op: index for index, op in enumerate(ops)}
        groups: list[list[Operation]] = []
        for op in ops:
            if is_groupable(op) and op not in self.grouped:
                groups.append(self._chain(op))
        return groups

    def _chain(self, op: Operation) -> list[Operation]:
        chain = [op]
        self.grouped.add(op)
        while takes_epilogue(op) and (following := self._epilogue(chain)) is not None:
            chain.append(following)
            self.grouped.add(following)
        return chain

    def _epilogue(self, chain: list[Operation]) -> Operation | None:
        """The op that continues a chain, or None."""
        value = chain[-1].results[0]
        user = only_user(value)
        if user is None or user.parent_block() is not self.block or not is_groupable(user):
            return None
        if user in self.grouped or pattern_kind(user) > PatternKind.BROADCAST:
            return None
        if tensor_of(user.results[0]).get_shape() != tensor_of(value).get_shape():
            return None
        here = self.position[chain[-1]]
        return None if any(self._yields(here, operand, user) for operand in user.operands) else user

    def _yields(self, here: int, operand: SSAValue, user: Operation) -> bool:
        """
        Whether the chain that ends at `here` leaves `user` to the chain that computes another of its operands.

        Of two chains that meet, as at a residual addition, the one that is computed last goes on: the operands
        of the other would have to live until then.
        """
        op = operand.owner
        if not isinstance(op, Operation) or self.position[op] <= here:
            return False
        same_shape = tensor_of(operand).get_shape() == tensor_of(user.results[0]).get_shape()
        return same_shape and is_groupable(op) and takes_epilogue(op) and only_user(operand) is user


def _splat(value: SSAValue) -> ConstantOp | None:
    """The constant behind `value` if it is one number, in the text."""
    owner = value.owner
    if not isinstance(owner, ConstantOp) or owner.weight is not None:
        return None
    dense = owner.dense
    # A constant without elements is no number.
    return owner if len(dense) == 1 or (len(dense) > 1 and dense.is_splat()) else None


def _outline(chain: list[Operation]) -> None:
    """Move a chain into a `graph.fused` at the place of its last op."""
    last = chain[-1]
    body = Block()
    inside: dict[SSAValue, SSAValue] = {}
    inputs: list[SSAValue] = []
    for op in chain:
        for operand in op.operands:
            if operand in inside:
                continue
            if (constant := _splat(operand)) is not None:
                clone = constant.clone()
                body.add_op(clone)
                inside[operand] = clone.result
            else:
                inside[operand] = body.insert_arg(operand.type, len(body.args))
                inside[operand].name_hint = operand.name_hint
                inputs.append(operand)
        body.add_op(op.clone(inside))
    result = inside[last.results[0]]
    body.add_op(YieldOp(result))
    kind = max((pattern_kind(op) for op in chain), key=lambda kind: kind.level)
    group = FusedOp(inputs, body, pattern=kind)
    group.location = last.location
    group.results[0].name_hint = last.results[0].name_hint
    Rewriter.insert_op(group, InsertPoint.before(last))
    last.results[0].replace_all_uses_with(group.results[0])
    for op in reversed(chain):
        op.detach()
        op.erase()


@dataclass(frozen=True)
class GraphFusePass(ModulePass):
    """
    Put every op of @main that computes something into a `graph.fused`, which becomes one kernel.

    A convolution, matrix product, pool or elementwise op takes the elementwise and broadcasting ops that
    follow it, as long as each is the only user of the value before and has its shape; other ops stand alone.
    At a join of two such chains, as a residual addition is one, the chain that is computed last goes on.
    Constants, `graph.reshape`, `graph.concat`, and a `graph.slice` that takes runs of neighbouring elements stay in
    @main: they are names, views and places, not work.

    A group stands where its last op stood and has its location. Weights are operands; a constant that is one
    number in the text is repeated inside. Constants that nothing reads any more are removed.

    See Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 3.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>, %s: tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<4x3x3x3xf32>
      %six = graph.constant dense<6.000000e+00> : tensor<f32>
      %c = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
          : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
      %a = graph.add %c, %s : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
      %m = graph.min %a, %six : (tensor<1x4x6x6xf32>, tensor<f32>) -> tensor<1x4x6x6xf32>
      %y = graph.max_pool %m kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1]
          : tensor<1x4x6x6xf32> -> tensor<1x4x3x3xf32>
      func.return %y : tensor<1x4x3x3xf32>
    }
    ```
    After (`graph-fuse`):
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>, %s: tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<4x3x3x3xf32>
      %m = graph.fused(%x, %w, %s) pattern complex_out_fusable {
      ^bb0(%x_1: tensor<1x3x8x8xf32>, %w_1: tensor<4x3x3x3xf32>, %s_1: tensor<1x4x6x6xf32>):
        %c = graph.conv %x_1, %w_1 strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
            : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
        %a = graph.add %c, %s_1 : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
        %six = graph.constant dense<6.000000e+00> : tensor<f32>
        %m_1 = graph.min %a, %six : (tensor<1x4x6x6xf32>, tensor<f32>) -> tensor<1x4x6x6xf32>
        graph.yield %m_1 : tensor<1x4x6x6xf32>
      } : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
      %y = graph.fused(%m) pattern complex_out_fusable {
      ^bb0(%m_1: tensor<1x4x6x6xf32>):
        %y_1 = graph.max_pool %m_1 kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1]
            : tensor<1x4x6x6xf32> -> tensor<1x4x3x3xf32>
        graph.yield %y_1 : tensor<1x4x3x3xf32>
      } : (tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32>
      func.return %y : tensor<1x4x3x3xf32>
    }
    ```
    """

    name = "graph-fuse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in graph_blocks(op):
            for chain in _Grouping(block).run():
                _outline(chain)
            remove_dead_constants(block)
