# SPDX-License-Identifier: Apache-2.0
"""
The way from the graph level to the tensor level.

`GraphToTensorPass` is the pass. A plug-in that brings a graph op registers its lowering with `lowers`, unless it
is elementwise and has a formula:

    @lowers(SquareOp)
    def square(kernel: KernelBuilder, op: SquareOp) -> SSAValue:
        return kernel.pointwise([op.x], op.result, lambda body, xs: body.mul(xs[0], xs[0]))
"""

from __future__ import annotations

from penstock.lowering.accumulation import Reduction, accumulate

# Imported for their registrations.
from penstock.lowering.graph_to_tensor import (
    attention,
    contraction,
    indexing,
    nn,
    pooling,
    reduction,
)
from penstock.lowering.graph_to_tensor.driver import GraphToTensorPass
from penstock.lowering.graph_to_tensor.elementwise import pointwise
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import Split, loops

__all__ = [
    "Body",
    "GraphToTensorPass",
    "KernelBuilder",
    "Reduction",
    "Split",
    "accumulate",
    "attention",
    "contraction",
    "indexing",
    "loops",
    "lowers",
    "nn",
    "pointwise",
    "pooling",
    "reduction",
]
