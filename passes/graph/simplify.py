# SPDX-License-Identifier: Apache-2.0
"""Rewrite a graph by rules that are exact: less of it is left, and nothing is computed differently."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.context import store_of
from penstock.passes.graph.simplification import arithmetic, contractions, movement
from penstock.passes.graph.simplification.control import resolve_control
from penstock.passes.graph.simplification.rules import apply_rules, joined
from penstock.passes.graph.simplification.sink_transposes import sink_transposes
from penstock.passes.graph.values import graph_blocks

RULES = joined(arithmetic.RULES, movement.RULES, contractions.RULES)
"""The rules of this pass, by the op that they replace."""


@dataclass(frozen=True)
class SimplifyPass(ModulePass):
    """
    Remove what computes nothing, and write what is left in the fewest operators.

    Identities go, two operators of a kind become one, constants meet (`fold-constants` evaluates them), transposes go
    down the graph where they then meet others, constants added to the channels of a convolution or to a matrix product
    become its bias, dead operators disappear; so do branches that are not taken and loops of one iteration
    (`simplification/control.py`). `simplification/arithmetic.py`, `movement.py` and `contractions.py` list the rules
    with the reason why each is exact, also for NaN, infinities and the sign of zero. Floats are never reassociated:
    x + 0.0 stays where x may be -0.0, and (x + 1.0) + 2.0 stays.

    The rules are tried by the greedy driver, each only on the class of op that it is for, until none applies; each
    takes an operator away, or brings a constant or a transpose to where it costs less, so that they come to an end.
    Requires and guarantees the graph level, with known sizes.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x2x2x3xf32>) -> tensor<1x2x2x3xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<3x3x1x1xf32>
      %b = graph.constant #graph.weight<"bias"> : tensor<3x1x1xf32>
      %one = graph.constant dense<1.000000e+00> : tensor<f32>
      %0 = graph.transpose %x perm [0, 3, 1, 2] : tensor<1x2x2x3xf32> -> tensor<1x3x2x2xf32>
      %1 = graph.identity %0 : tensor<1x3x2x2xf32>
      %2 = graph.conv %1, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
          : (tensor<1x3x2x2xf32>, tensor<3x3x1x1xf32>) -> tensor<1x3x2x2xf32>
      %3 = graph.add %2, %b : (tensor<1x3x2x2xf32>, tensor<3x1x1xf32>) -> tensor<1x3x2x2xf32>
      %4 = graph.transpose %3 perm [0, 2, 3, 1] : tensor<1x3x2x2xf32> -> tensor<1x2x2x3xf32>
      %5 = graph.relu %4 : tensor<1x2x2x3xf32>
      %6 = graph.transpose %5 perm [0, 3, 1, 2] : tensor<1x2x2x3xf32> -> tensor<1x3x2x2xf32>
      %7 = graph.clip %6 max 6.0 : tensor<1x3x2x2xf32>
      %8 = graph.mul %7, %one : (tensor<1x3x2x2xf32>, tensor<f32>) -> tensor<1x3x2x2xf32>
      %y = graph.transpose %8 perm [0, 2, 3, 1] : tensor<1x3x2x2xf32> -> tensor<1x2x2x3xf32>
      func.return %y : tensor<1x2x2x3xf32>
    }
    ```
    After (`simplify`):
    ```mlir
    func.func @main(%x: tensor<1x2x2x3xf32>) -> tensor<1x2x2x3xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<3x3x1x1xf32>
      %b = graph.constant #graph.weight<"bias"> : tensor<3x1x1xf32>
      %0 = graph.transpose %x perm [0, 3, 1, 2] : tensor<1x2x2x3xf32> -> tensor<1x3x2x2xf32>
      %bias = graph.reshape %b : tensor<3x1x1xf32> -> tensor<3xf32>
      %1 = graph.conv %0, %w, %bias strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
          : (tensor<1x3x2x2xf32>, tensor<3x3x1x1xf32>, tensor<3xf32>) -> tensor<1x3x2x2xf32>
      %2 = graph.clip %1 min 0.0 max 6.0 : tensor<1x3x2x2xf32>
      %y = graph.transpose %2 perm [0, 2, 3, 1] : tensor<1x3x2x2xf32> -> tensor<1x2x2x3xf32>
      func.return %y : tensor<1x2x2x3xf32>
    }
    ```
    """

    name = "simplify"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in graph_blocks(op):
            resolve_control(block, store_of(ctx))
            apply_rules(RULES, store_of(ctx), block)
            # Each time that something moves, transposes become fewer, or smaller by a reduction.
            while sink_transposes(block):
                apply_rules(RULES, store_of(ctx), block)
