# SPDX-License-Identifier: Apache-2.0
"""Choose the layout of every value of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph.layout import image_layout, parse_layout
from penstock.passes.graph.layouts.choices import LayoutProblem
from penstock.passes.graph.layouts.forms import Forms, plain, rank_of
from penstock.passes.graph.layouts.preferences import Preferences
from penstock.passes.graph.layouts.rules import emit
from penstock.passes.graph.values import graph_blocks

AUTO = "auto"
"""The layouts that the machine prefers."""


def _rebuild_block(old: Block, preferences: Preferences) -> None:
    """Replace the ops of a block by those of the new layouts; its arguments and results stay as they are."""
    problem = LayoutProblem(old, preferences)
    options = problem.solve().options
    ops = list(old.ops)
    for op in ops:
        op.detach()
    forms = Forms(old)
    for argument in old.args:
        forms.define(argument, argument, plain(rank_of(argument)))
    for variable, option in zip(problem.variables, options, strict=True):
        emit(forms, variable.op, variable.choices[option])
    for op in reversed(ops):
        op.erase()


@dataclass(frozen=True)
class LayoutPass(ModulePass):
    """
    Store every value in the layout in which the whole graph costs least.

    Ops on images (convolutions, pools, local response normalisations) and products with matrices have layouts that
    they prefer for the machine in the module, or for the host: those that `layouts/preferences.py` derives from its
    multiply-accumulate intrinsic. Without blocks that is "NHWC" with filters "HWIO"; for VTA, whose operands are
    blocks, "NHWC16c" with "HWOI16o16i", and products with matrices become convolutions of one row. In another layout
    an op pays a penalty, prohibitive for a contraction. All others follow, if they can, the layout of what they read:
    elementwise and broadcasting ops, concatenation, padding, slices, reductions, softmax, reshapes that split or join
    dimensions that lie together, and transposes, which only give dimensions other names. @main's arguments and
    results stay as they are.

    Where an op needs a value in another layout there is a `graph.layout_transform` (or a reshape, where only
    dimensions of size 1 would move; or a transpose, where the order has no name), which costs the bytes that it
    reads and writes; but nothing on constants, since `fold-constants` makes it before the program runs, and nothing
    where no element moves. The sum of all costs is minimised: exactly on trees, and on all graphs that elimination of
    one op after the other keeps narrow (passes/planning/assignment.py says what is done with others). Ops without a
    layout of their own whose result is an image say its layout in the attribute `graph.layout`.

    A contraction sums in the order of its new loops: the pass reassociates.

    Raises UserError for a `layout` that is none of images, and where sizes are not known.

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
    After (`layout`):
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>) -> tensor<1x4xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<4x3x3x3xf32>
      %b = graph.constant #graph.weight<"bias"> : tensor<4x1x1xf32>
      %x_NHWC = graph.layout_transform %x from "NCHW" to "NHWC"
          : tensor<1x3x8x8xf32> -> tensor<1x8x8x3xf32>
      %w_permuted = graph.layout_transform %w from "OIHW" to "HWIO" : tensor<4x3x3x3xf32> -> tensor<3x3x3x4xf32>
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

    layout: str = AUTO
    """The layout of images: "auto" for what the machine prefers, or "NCHW", "NHWC", "NCHW16c", "NHWC16c", ..."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        demanded = None if self.layout == AUTO else self.layout
        if demanded is not None:
            try:
                image_layout(demanded, parse_layout(demanded).rank)
            except VerifyException as error:
                raise UserError(f"{error}", notes=['"auto" takes the layouts that the machine prefers']) from None
        preferences = Preferences(op, demanded)
        for block in graph_blocks(op):
            _rebuild_block(block, preferences)
