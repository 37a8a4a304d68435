# SPDX-License-Identifier: Apache-2.0
"""Multiply chains of matrices in the order with the fewest multiplications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar, TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.graph import GemmOp, GraphOp, MatmulOp, tensor_of
from penstock.passes.graph.values import derived, graph_blocks, is_constant, only_user, rebuilt

Product: TypeAlias = MatmulOp | GemmOp


def best_splits(sizes: Sequence[int], known: Sequence[bool]) -> tuple[int, dict[tuple[int, int], int]]:
    """
    The least number of multiplications for the product of n matrices, and where to cut each part of the chain.

    Matrix i is `sizes[i]` x `sizes[i + 1]`; products of matrices that all are `known` cost nothing. The part from i to
    j, both included, is the product of that from i to s and that from s + 1 to j, for s the entry of (i, j). Of
    equally cheap orders it is the one that begins on the left. Dynamic programming, see Cormen et al., "Introduction
    to Algorithms", section 15.2.
    """
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    constant = {(i, i): known[i] for i in range(count)}
    splits: dict[tuple[int, int], int] = {}
    for length in range(2, count + 1):
        for i in range(count - length + 1):
            j = i + length - 1
            constant[i, j] = constant[i, j - 1] and known[j]
            own = 0 if constant[i, j] else sizes[i] * sizes[j + 1]
            candidates = [(cost[i, s] + cost[s + 1, j] + own * sizes[s + 1], -s) for s in range(i, j)]
            cost[i, j], cut = min(candidates)
            splits[i, j] = -cut
    return cost[0, count - 1], splits


def is_link(op: object, *, last: bool) -> bool:
    """Whether an op is nothing but a product of its two operands; the last one may add something to it."""
    if isinstance(op, MatmulOp):
        return op.accumulator is None
    if not isinstance(op, GemmOp) or op.accumulator is not None or op.trans_a or op.trans_b:
        return False
    return last or (op.c is None and op.alpha.value.data == 1)


def _rank(value: SSAValue) -> int:
    return tensor_of(value).get_num_dims()


def inner_product(value: SSAValue, on_left: bool) -> Product | None:
    """
    The product that a factor of another one is, if it is needed for that alone.

    A vector is a row or a column by its position: as a factor, a matrix times a column is on the right only.
    """
    op = value.owner
    if not isinstance(op, MatmulOp | GemmOp) or not is_link(op, last=False) or not value.has_one_use():
        return None
    if (_rank(op.b) == 1 and on_left) or (_rank(op.a) == 1 and not on_left):
        return None
    return op


@dataclass
class Chain:
    """The factors of a product, from left to right, and the products that it is made of."""

    root: Product
    factors: list[SSAValue]
    products: list[Product]

    @classmethod
    def ending_in(cls, root: Product) -> Chain:
        """The longest chain whose last product is `root`."""
        chain = cls(root, [], [root])
        pending: list[tuple[SSAValue, bool]] = [(root.b, False), (root.a, True)]
        while pending:
            value, on_left = pending.pop()
            if (inner := inner_product(value, on_left)) is None:
                chain.factors.append(value)
            else:
                chain.products.append(inner)
                pending += [(inner.b, False), (inner.a, True)]
        return chain

    @cached_property
    def sizes(self) -> list[int] | None:
        """The sizes between the factors, with 1 beside a vector; None if the matrices are of different batches."""
        shapes = [tensor_of(value).get_shape() for value in self.factors]
        batches = {tuple(shape[:-2]) for shape in shapes}
        if len(batches) != 1:
            return None
        if any(len(shape) == 1 for shape in shapes[1:-1]):
            return None
        first, last = shapes[0], shapes[-1]
        rows = 1 if len(first) == 1 else first[-2]
        columns = 1 if len(last) == 1 else last[-1]
        return [rows, *(shape[-1] for shape in shapes[:-1]), columns]

    @cached_property
    def known(self) -> list[bool]:
        """For each factor whether it is a constant."""
        return [is_constant(value) for value in self.factors]

    def cost(self) -> int:
        """The multiplications of the chain as it is, in one matrix of the batch."""
        total = 0
        for op in self.products:
            if not is_constant(op.result):
                shape = tensor_of(op.a).get_shape()
                outer = [*shape[-2:-1], shape[-1], *tensor_of(op.b).get_shape()[-1:][: _rank(op.b) - 1]]
                total += prod(outer)
        return total

    def rebuild(self, splits: dict[tuple[int, int], int]) -> None:
        """Put the products that `splits` says in the place of the last one."""
        root = self.root

        def product(i: int, j: int) -> SSAValue:
            if i == j:
                return self.factors[i]
            s = splits[i, j]
            op = MatmulOp(product(i, s), product(s + 1, j))
            op.location = derived(root.location, "product")
            Rewriter.insert_op(op, InsertPoint.before(root))
            return op.result

        end = len(self.factors) - 1
        cut = splits[0, end]
        a, b = product(0, cut), product(cut + 1, end)
        new = rebuilt(root, [a, b, *root.operands[2:]])
        new.attributes.update(root.attributes)
        new.location = root.location
        Rewriter.replace_op(root, new)
        for op in self.products[1:]:
            op.detach()
        for op in self.products[1:]:
            op.erase()


MAX_FACTORS = 100
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
        if not 3 <= len(chain.factors) <= MAX_FACTORS or chain.sizes is None:
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
