"""Store the values between kernels in f16, for machines that multiply f16 and sum in f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.context import store_of
from penstock.dialects.graph import (
    FusedOp,
)
from penstock.dialects.machine import TargetOp
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import is_contraction, machine_of
from penstock.passes.graph.storage.groups import GroupInHalf, rebuilt
from penstock.passes.graph.storage.values import (
    HALF,
    SINGLE,
    VIEWS,
    StoredValues,
)
from penstock.passes.graph.values import graph_blocks, remove_dead_constants


def _narrow_block(block: Block, store: WeightStore) -> None:
    """Store the f32 values of a block in f16."""
    stored = StoredValues(block, store)
    replaced: list[Operation] = []
    for op in list(block.ops):
        if isinstance(op, FusedOp):
            new: Operation = GroupInHalf(op, stored).rebuild()
        elif isinstance(op, VIEWS) and stored.is_half(op.result):
            new = rebuilt(op, [stored.half(operand, op) for operand in op.operands], HALF)
        else:
            continue
        Rewriter.insert_op(new, InsertPoint.before(op))
        for before, after in zip(op.results, new.results, strict=True):
            stored.replace(before, after)
        replaced.append(op)
    for op in reversed(replaced):
        op.detach()
        op.erase()
    remove_dead_constants(block)


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
