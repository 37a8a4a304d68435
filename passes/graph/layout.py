"""Choose the layout of images: channels innermost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass

from penstock.passes.graph.layout_forms import Forms
from penstock.passes.graph.layout_rules import rule_for
from penstock.passes.graph.values import graph_blocks


def _rebuild_block(old: Block) -> None:
    """Replace the ops of a block by those of the new layout; its arguments and results stay as they are."""
    ops = list(old.ops)
    for op in ops:
        op.detach()
    forms = Forms(old)
    for argument in old.args:
        forms.define(argument, argument)
    for op in ops:
        found = rule_for(op)
        if found is not None and found(forms, op):
            continue
        mapping = {operand: forms.plain(operand) for operand in op.operands}
        new = op.clone(mapping)
        old.add_op(new)
        for before, after in zip(op.results, new.results, strict=True):
            forms.define(before, after)
    for op in reversed(ops):
        op.erase()


@dataclass(frozen=True)
class LayoutPass(ModulePass):
    """
    Store images with their channels innermost, in one, two or three spatial dimensions.

    Convolutions, pools and local response normalisations take the layout "NHWC", filters become HWIO. The new
    order spreads through what can follow it: elementwise and broadcasting ops, batch normalisation,
    concatenation, padding, slices, reductions, softmax, reshapes that split or join channels, and transposes,
    which only give dimensions other names. Where a value is needed as it was (at @main's results, which keep
    their types, and by matrix products, ...) it is transposed, or reshaped if only dimensions of size 1 would
    move. Transposes of constants are left for `fold-constants`. Ops without a layout of their own whose
    result is such an image say so in the attribute `graph.layout`.

    A contraction sums in the order of its new loops: the pass reassociates.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>) -> tensor<1x4xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<4x3x3x3xf32>
      %b = graph.constant #graph.weight<"bias"> : tensor<4x1x1xf32>
      %c = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
          : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
      %a = graph.add %c, %b : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
      %r = graph.relu %a : tensor<1x4x6x6xf32>
      %g = graph.global_average_pool %r : tensor<1x4x6x6xf32> -> tensor<1x4x1x1xf32>
      %y = graph.reshape %g : tensor<1x4x1x1xf32> -> tensor<1x4xf32>
      func.return %y : tensor<1x4xf32>
    }
    ```
    After (`layout{layout="NHWC"}`):
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>) -> tensor<1x4xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<4x3x3x3xf32>
      %b = graph.constant #graph.weight<"bias"> : tensor<4x1x1xf32>
      %x_NHWC = graph.transpose %x perm [0, 2, 3, 1] {graph.layout = "NHWC"}
          : tensor<1x3x8x8xf32> -> tensor<1x8x8x3xf32>
      %w_permuted = graph.transpose %w perm [2, 3, 1, 0] : tensor<4x3x3x3xf32> -> tensor<3x3x3x4xf32>
      %c = graph.conv %x_NHWC, %w_permuted strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC"
          : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32>
      %b_broadcast = graph.reshape %b : tensor<4x1x1xf32> -> tensor<4xf32>
      %a = graph.add %c, %b_broadcast {graph.layout = "NHWC"}
          : (tensor<1x6x6x4xf32>, tensor<4xf32>) -> tensor<1x6x6x4xf32>
      %r = graph.relu %a {graph.layout = "NHWC"} : tensor<1x6x6x4xf32>
      %g = graph.global_average_pool %r layout "NHWC" : tensor<1x6x6x4xf32> -> tensor<1x1x1x4xf32>
      %y = graph.reshape %g : tensor<1x1x1x4xf32> -> tensor<1x4xf32>
      func.return %y : tensor<1x4xf32>
    }
    ```
    """

    name = "layout"
    reassociates: ClassVar[bool] = True

    layout: Literal["NHWC"] = "NHWC"
    """The layout of images inside the function; weights are HWIO then."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in graph_blocks(op):
            _rebuild_block(block)
