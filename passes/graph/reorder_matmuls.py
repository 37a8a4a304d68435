"""Multiply chains of matrices in the order with the fewest multiplications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from penstock.dialects.graph import GemmOp, GraphOp, MatmulOp
from penstock.passes.graph.matmuls.chains import Chain, Product, best_splits, inner_product, is_link
from penstock.passes.graph.values import graph_blocks, only_user

LONGEST = 100
"""Longer chains stay as they are: the time to find the best order grows with the third power of their length."""


def _roots(block: Block) -> list[Product]:
    """The products that are no factor of a longer chain."""
    found: list[Product] = []
    for op in block.ops:
        if isinstance(op, MatmulOp | GemmOp) and is_link(op, last=True) and not _is_factor(op):
            found.append(op)
    return found


def _is_factor(op: GraphOp) -> bool:
    user: Operation | None = only_user(op.result)
    if not isinstance(user, MatmulOp | GemmOp) or not is_link(user, last=True):
        return False
    return op.result in user.operands[:2] and inner_product(op.result, op.result == user.a) is not None


def _reorder(block: Block) -> None:
    for root in _roots(block):
        chain = Chain.ending_in(root)
        if not 3 <= len(chain.factors) <= LONGEST or chain.sizes is None:
            continue
        least, splits = best_splits(chain.sizes, chain.known)
        if least < chain.cost():
            chain.rebuild(splits)


@dataclass(frozen=True)
class ReorderMatmulsPass(ModulePass):
    """
    Multiply every chain of three to a hundred matrices in the order that takes the fewest multiply-accumulates.

    A chain is made of `graph.matmul`s, and of `graph.gemm`s that neither transpose, scale nor add (but for the last
    one, which may scale and add), whose results have no other use. Its matrices are of one batch, each with the same
    leading dimensions: where some broadcast, the chain stays. The first and the last factor may be vectors. Products
    of constants count as none, since `fold-constants` evaluates them. A chain that is as good as any other stays.

    Sums are rounded differently: the pass reassociates. See Wei et al., "DLVM: A modern compiler infrastructure for
    deep learning systems", 2017.

    Before:
    ```mlir
    func.func @main(%a: tensor<64x8xf32>, %b: tensor<8x64xf32>, %v: tensor<64xf32>) -> tensor<64xf32> {
      %ab = graph.matmul %a, %b : (tensor<64x8xf32>, tensor<8x64xf32>) -> tensor<64x64xf32>
      %y = graph.matmul %ab, %v : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    ```
    After (`reorder-matmuls`):
    ```mlir
    func.func @main(%a: tensor<64x8xf32>, %b: tensor<8x64xf32>, %v: tensor<64xf32>) -> tensor<64xf32> {
      %0 = graph.matmul %b, %v : (tensor<8x64xf32>, tensor<64xf32>) -> tensor<8xf32>
      %y = graph.matmul %a, %0 : (tensor<64x8xf32>, tensor<8xf32>) -> tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    ```
    """

    name = "reorder-matmuls"
    reassociates: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in graph_blocks(op):
            _reorder(block)
