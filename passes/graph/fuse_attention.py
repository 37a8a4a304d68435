"""Form attentions: a product, a softmax and a product become one op whose scores are never stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects import graph
from penstock.dialects.context import store_of
from penstock.dialects.graph import GraphOp
from penstock.passes.analysis.kernels import machine_of
from penstock.passes.graph.attention.on_machine import arranged, blocks_on, has_query_in_mask, why_not
from penstock.passes.graph.attention.pattern import Attention, match_attention
from penstock.passes.graph.values import NodeBuilder, graph_blocks, only_user


def _form(found: Attention, blocks: tuple[int, int] | None, build: NodeBuilder | None) -> None:
    """Replace what was found by one op, with `build` on operands that it arranges for a machine."""
    last, result_perm = found.product, tuple(range(len(found.q.perm)))
    user = only_user(last.results[0])
    if isinstance(user, graph.TransposeOp):
        last, result_perm = user, tuple(user.perm.get_values())
    identity = tuple(range(len(result_perm)))
    swapped = (*identity[:-2], identity[-1], identity[-2])
    parts = found if build is None else arranged(found, build)
    stored = result_perm if build is None else swapped
    perms = [None if perm == identity else perm for perm in (parts.q.perm, parts.k.perm, parts.v.perm, stored)]
    new = graph.AttentionOp(
        parts.q.value,
        parts.k.value,
        parts.v.value,
        parts.mask,
        scale=parts.scale,
        q_perm=perms[0],
        k_perm=perms[1],
        v_perm=perms[2],
        result_perm=perms[3],
        zero_masked=parts.zero_masked,
        blocks=blocks,
    )
    new.location = last.location
    ops: list[Operation] = [new]
    if build is not None:
        build.location = last.location
        build.add(new, "attention")
        build.add(graph.TransposeOp(new, perm=[swapped[dim] for dim in result_perm]))
        ops = build.ops
    Rewriter.insert_op(ops, InsertPoint.before(last))
    ops[-1].results[0].name_hint = last.results[0].name_hint
    last.results[0].replace_all_uses_with(ops[-1].results[0])
    _erase_unused(last)


def _erase_unused(op: Operation) -> None:
    """Erase an op of the graph that nothing uses, and then those that were only there for it."""
    pending: list[SSAValue] = list(op.results)
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, GraphOp) and owner.parent is not None and not owner.result.uses:
            pending += owner.operands
            Rewriter.erase_op(owner)


@dataclass(frozen=True)
class FuseAttentionPass(ModulePass):
    """
    Form a `graph.attention` out of a matrix product, a softmax along its rows, and the product with that.

    Between the two products there may be, in this order, multiplications with and divisions by a number, one
    addition of a mask, and ONNX's replacement of wholly masked rows by zeros; nothing of it may be used elsewhere.
    Transposes and multiplications with a number in front of the factors, and a transpose of the result, become part of
    the op, which reads and writes in the order that is stored. Batches do not broadcast.

    Requires and guarantees the graph level. The scores then exist a tile at a time, in the kernel that
    `graph-to-tensor` makes. Maxima and sums are updated from block to block, so that results differ by rounding.
    See Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS 2022.

    Before:
    ```mlir
    func.func @main(%q: tensor<2x128x4x64xf32>, %k: tensor<2x128x4x64xf32>, %v: tensor<2x4x128x64xf32>,
        %mask: tensor<2x1x1x128xf32>) -> tensor<2x128x4x64xf32> {
      %eight = graph.constant dense<8.000000e+00> : tensor<f32>
      %a = graph.transpose %q perm [0, 2, 1, 3] : tensor<2x128x4x64xf32> -> tensor<2x4x128x64xf32>
      %b = graph.transpose %k perm [0, 2, 3, 1] : tensor<2x128x4x64xf32> -> tensor<2x4x64x128xf32>
      %s = graph.matmul %a, %b : (tensor<2x4x128x64xf32>, tensor<2x4x64x128xf32>) -> tensor<2x4x128x128xf32>
      %t = graph.div %s, %eight : (tensor<2x4x128x128xf32>, tensor<f32>) -> tensor<2x4x128x128xf32>
      %u = graph.add %t, %mask : (tensor<2x4x128x128xf32>, tensor<2x1x1x128xf32>) -> tensor<2x4x128x128xf32>
      %p = graph.softmax %u axis 3 : tensor<2x4x128x128xf32> -> tensor<2x4x128x128xf32>
      %c = graph.matmul %p, %v : (tensor<2x4x128x128xf32>, tensor<2x4x128x64xf32>) -> tensor<2x4x128x64xf32>
      %y = graph.transpose %c perm [0, 2, 1, 3] : tensor<2x4x128x64xf32> -> tensor<2x128x4x64xf32>
      func.return %y : tensor<2x128x4x64xf32>
    }
    ```
    After (`fuse-attention`):
    ```mlir
    func.func @main(%q: tensor<2x128x4x64xf32>, %k: tensor<2x128x4x64xf32>, %v: tensor<2x4x128x64xf32>,
        %mask: tensor<2x1x1x128xf32>) -> tensor<2x128x4x64xf32> {
      %y = graph.attention %q, %k, %v, %mask scale 0.125 q_perm [0, 2, 1, 3] k_perm [0, 2, 1, 3]
          result_perm [0, 2, 1, 3]
          : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>, tensor<2x4x128x64xf32>, tensor<2x1x1x128xf32>)
          -> tensor<2x128x4x64xf32>
      func.return %y : tensor<2x128x4x64xf32>
    }
    ```
    """

    name = "fuse-attention"
    reassociates: ClassVar[bool] = True
    """Sums are rescaled from block to block, and divided at the end."""

    blocks: tuple[int, int] | None = None
    """How many queries and how many keys are on chip at once; chosen for the machine, or when it is lowered."""
    device: Literal["auto", "host"] = "auto"
    """
    Where attentions shall run. With "auto" and a machine in the module, they are formed for it, and those that it
    cannot compute as a whole are left as they are; "host" forms all of them for the host.
    """

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = machine_of(op) if self.device == "auto" else None
        if target is not None and why_not(target) is not None:
            return
        store = store_of(ctx)
        for block in graph_blocks(op):
            for candidate in list(block.ops):
                found = match_attention(candidate, store) if candidate.parent is block else None
                if found is None:
                    continue
                if target is None:
                    _form(found, self.blocks, None)
                    continue
                blocks = self.blocks or blocks_on(target, found)
                if not has_query_in_mask(found) and not isinstance(blocks, str):
                    _form(found, blocks, NodeBuilder(candidate.location, store))
