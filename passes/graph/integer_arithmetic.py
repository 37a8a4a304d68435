"""Quantised graphs in integer arithmetic: products of the integers that are stored, instead of what they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass

from penstock.dialects.context import store_of
from penstock.dialects.graph import GraphOp
from penstock.passes.graph.quantization.exact_shifts import shift_exactly
from penstock.passes.graph.quantization.integer_layers import IntegerLayers
from penstock.passes.graph.values import graph_blocks


def _remove_dead(block: Block) -> None:
    for op in reversed(list(block.ops)):
        if isinstance(op, GraphOp) and not any(result.uses for result in op.results):
            op.detach()
            op.erase()


@dataclass(frozen=True)
class IntegerArithmeticPass(ModulePass):
    """
    Multiply the 8-bit integers that a quantised graph stores, instead of the floats that they stand for.

    - A convolution, gemm or matmul of two `graph.dequantize_linear`, with the bias, relu and clip behind it, whose
      result is quantised, becomes a contraction in 32 bits, an addition of the bias as integers, one product in f32
      with (x scale * w scale / y scale), one number for each channel if the weights have several scales, and
      `graph.quantize_linear` with the scale 1; bounds become bounds of the integers. Where the result is needed in
      float the sums are dequantised.
    - Zero points leave the products, exactly: that of constant weights goes into the weights where they still fit into
      8 bits, that of `x` into the bias (padding is made explicit then, with the zero point), and what is unsigned is
      stored 128 less. The differences that integer operators of ONNX import as are rewritten in the same way, so
      that intrinsics on signed 8-bit integers apply.
    - Ops that move elements, relu and clip between two quantisations that agree work on the integers.
    - A 32-bit integer times 2^-s in f64, rounded down and cast back, is shifted to the right by s.

    Everything else stays in float. Scales and zero points must be constants, the scale of `x` and y one number each.
    Ops without a use are removed. Requires the graph level, before constants are folded, as that dequantises weights;
    NCHW and NHWC alike. The results are those of onnxruntime, which fuses the same way, bit for bit; against the float
    arithmetic of the graph before it a result may be one step off, since a sum is rounded once.

    See Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
    CVPR 2018, section 2.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x8xi8>) -> tensor<1x4xi8> {
      %w = graph.constant dense<3> : tensor<8x4xi8>
      %xs = graph.constant dense<5.000000e-01> : tensor<f32>
      %ws = graph.constant dense<2.500000e-01> : tensor<f32>
      %ys = graph.constant dense<1.000000e+00> : tensor<f32>
      %yz = graph.constant dense<-128> : tensor<i8>
      %a = graph.dequantize_linear %x, %xs : (tensor<1x8xi8>, tensor<f32>) -> tensor<1x8xf32>
      %b = graph.dequantize_linear %w, %ws : (tensor<8x4xi8>, tensor<f32>) -> tensor<8x4xf32>
      %c = graph.matmul %a, %b : (tensor<1x8xf32>, tensor<8x4xf32>) -> tensor<1x4xf32>
      %r = graph.relu %c : tensor<1x4xf32>
      %y = graph.quantize_linear %r, %ys, %yz : (tensor<1x4xf32>, tensor<f32>, tensor<i8>) -> tensor<1x4xi8>
      func.return %y : tensor<1x4xi8>
    }
    ```
    After (`integer-arithmetic`):
    ```mlir
    func.func @main(%x: tensor<1x8xi8>) -> tensor<1x4xi8> {
      %w = graph.constant dense<3> : tensor<8x4xi8>
      %sums = graph.matmul %x, %w accumulate i32 : (tensor<1x8xi8>, tensor<8x4xi8>) -> tensor<1x4xi32>
      %sums_real = graph.cast %sums : tensor<1x4xi32> -> tensor<1x4xf32>
      %factor = graph.constant dense<1.250000e-01> : tensor<f32>
      %scaled = graph.mul %sums_real, %factor : (tensor<1x4xf32>, tensor<f32>) -> tensor<1x4xf32>
      %one = graph.constant dense<1.000000e+00> : tensor<f32>
      %zero = graph.constant dense<-128> : tensor<i8>
      %y = graph.quantize_linear %scaled, %one, %zero : (tensor<1x4xf32>, tensor<f32>, tensor<i8>) -> tensor<1x4xi8>
      func.return %y : tensor<1x4xi8>
    }
    ```
    """

    name = "integer-arithmetic"
    reassociates: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store = store_of(ctx)
        for block in graph_blocks(op):
            IntegerLayers(block, store)
            shift_exactly(block, store)
            _remove_dead(block)
