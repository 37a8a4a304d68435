# SPDX-License-Identifier: Apache-2.0
"""`topological-sort`: one order for a graph, however it was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from penstock.passes.graph.values import graph_blocks


def _needed_by(op: Operation) -> list[Operation]:
    """The ops of the same block whose results an op uses, itself or inside it, in the order of its operands."""
    values = (value for inner in op.walk() for value in inner.operands)
    owners = (value.owner for value in values)
    return list(dict.fromkeys(each for each in owners if isinstance(each, Operation) and each.parent is op.parent))


def _depth_first(block: Block) -> Iterator[Operation]:
    """The ops that the last one needs, each after what it uses; then, in the order in which they stand, the others."""
    placed: set[Operation] = set()
    last = block.last_op
    for root in [] if last is None else [last, *block.ops]:
        stack = [(root, iter(_needed_by(root)))] if root not in placed else []
        placed.add(root)
        while stack:
            op, needed = stack[-1]
            following = next((each for each in needed if each not in placed), None)
            if following is None:
                stack.pop()
                if op is not last:
                    yield op
            else:
                placed.add(following)
                stack.append((following, iter(_needed_by(following))))


@dataclass(frozen=True)
class TopologicalSortPass(ModulePass):
    """
    Put the ops of each graph into the order of a depth-first walk from what it returns, operand by operand.

    That order depends on what the ops compute and not on how the graph was written: exporters write the branches of a
    network one after the other, or layer by layer, and passes that fuse or plan would decide otherwise for each. A
    branch is walked to its end before the next one. What the results do not need comes last.

    Required and guaranteed: the graph level. In linear time. Raises UserError for sizes that are not known.

    Before:
    ```mlir
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = graph.abs %x : tensor<8xf32>
      %1 = graph.neg %x : tensor<8xf32>
      %2 = graph.exp %0 : tensor<8xf32>
      %3 = graph.sqrt %1 : tensor<8xf32>
      %4 = graph.add %2, %3 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      func.return %4 : tensor<8xf32>
    }
    ```
    After (`topological-sort`):
    ```mlir
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = graph.abs %x : tensor<8xf32>
      %1 = graph.exp %0 : tensor<8xf32>
      %2 = graph.neg %x : tensor<8xf32>
      %3 = graph.sqrt %2 : tensor<8xf32>
      %4 = graph.add %1, %3 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      func.return %4 : tensor<8xf32>
    }
    ```
    """

    name = "topological-sort"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in graph_blocks(op):
            ops = list(_depth_first(block))
            if ops == list(block.ops)[:-1]:
                continue
            for each in ops:
                each.detach()
            last = block.last_op
            assert last is not None
            block.insert_ops_before(ops, last)
