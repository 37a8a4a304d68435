# SPDX-License-Identifier: Apache-2.0
"""Post-training quantisation to 8-bit integers, from the ranges of a calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from penstock.dialects.context import store_of
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.quantization.integer_scheme import IntegerQuantizer
from penstock.passes.graph.quantization.qdq_scheme import QdqQuantizer, SymmetricQdqQuantizer
from penstock.passes.graph.quantization.quantizer import QuantizedLayer, Quantizer
from penstock.passes.graph.quantization.ranges import RANGES_ATTRIBUTE, Range, ranges_of, read_ranges
from penstock.passes.graph.values import graph_blocks

Scheme = Literal["qdq", "symmetric", "power-of-two"]
QUANTIZERS: Mapping[str, type[Quantizer]] = {
    "qdq": QdqQuantizer,
    "symmetric": SymmetricQdqQuantizer,
    "power-of-two": IntegerQuantizer,
}
"""How each scheme rebuilds a graph."""


@dataclass
class Quantization:
    """What `quantize_module` did."""

    layers: list[QuantizedLayer] = field(default_factory=list[QuantizedLayer])
    """The values that are integers now, in the order of the graph."""
    remarks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Name and reason of what stays in float although integers reach it."""


def quantize_module(
    module: ModuleOp,
    ranges: Mapping[str, Range],
    store: WeightStore,
    scheme: Scheme = "qdq",
    per_channel: bool = True,
) -> Quantization:
    """
    Quantise every graph of a module in place; see `QuantizePass`.

    Raises UserError if no value has one of the names in `ranges`.
    """
    done = Quantization()
    known = False
    for block in graph_blocks(module):
        func = block.parent_op()
        if not isinstance(func, FuncOp):
            # Ranges are those of values that every run computes: a branch stays as it is.
            continue
        quantizer = QUANTIZERS[scheme](func, ranges, store, per_channel)
        known |= any(name in ranges for name in quantizer.names.values())
        quantizer.run()
        done.layers += quantizer.layers
        done.remarks += quantizer.remarks
    if not known:
        raise UserError(
            "no value of the program has a name in the table of ranges",
            loc=module.location,
            notes=["ranges are those of the same program: calibrate and quantise it at the same stage"],
        )
    return done


@dataclass(frozen=True)
class QuantizePass(ModulePass):
    """
    Compute with 8-bit integers in place of floats, given the ranges that values take (`penstock quantize` calibrates).

    Contractions with what follows them (a bias, relu, clip) become a layer; what only moves or compares elements stays
    on the integers of its operand. Activations have one scale for a tensor, and weights one for each channel of the
    result, if `per_channel`. Ops that have no form on integers, and those with a value whose range is not known, stay
    in float between `graph.dequantize_linear` and `graph.quantize_linear`; the attribute `quantize_remark` says why.

    - `qdq` writes the quantisation around ops in float, affine and as onnxruntime's static quantiser does;
      `integer-arithmetic` makes products of integers of it. `symmetric` is the same with zero points of 0.
    - `power-of-two` is in integers throughout, for machines that shift: all scales are powers of two and symmetric, and
      a layer is a contraction in 32 bits, a bias that holds half a step, one shift to the right, bounds, and a cast to
      8 bits. It rounds halves up. Weights have one scale for the tensor.

    Requires f32, constants folded and batch normalisations folded or split. The names of `ranges` are those of
    `quantization.ranges.value_names`; the table is a JSON file, or the module attribute `graph.ranges`, which the pass
    removes. Raises UserError without a table, or with one of another program.

    Before:
    ```mlir
    builtin.module attributes {graph.ranges = {"x" = [-1.0 : f64, 1.0 : f64], "r" = [0.0 : f64, 7.5 : f64]}} {
      func.func @main(%x: tensor<1x8xf32>) -> tensor<1x4xf32> {
        %w = graph.constant dense<5.000000e-01> : tensor<8x4xf32>
        %b = graph.constant dense<2.000000e+00> : tensor<4xf32>
        %y = graph.gemm %x, %w, %b : (tensor<1x8xf32>, tensor<8x4xf32>, tensor<4xf32>) -> tensor<1x4xf32>
        %r = graph.relu %y : tensor<1x4xf32>
        func.return %r : tensor<1x4xf32>
      }
    }
    ```
    After (`quantize{scheme="power-of-two"}`):
    ```mlir
    func.func @main(%x: tensor<1x8xf32>) -> tensor<1x4xf32> {
      %scale = graph.constant dense<1.562500e-02> : tensor<f32>
      %q = graph.quantize_linear %x, %scale : (tensor<1x8xf32>, tensor<f32>) -> tensor<1x8xi8>
      %weights = graph.constant #graph.weight<"weights"> : tensor<8x4xi8>
      %sums = graph.gemm %q, %weights accumulate i32 : (tensor<1x8xi8>, tensor<8x4xi8>) -> tensor<1x4xi32>
      %bias = graph.constant dense<16640> : tensor<4xi32>
      %biased = graph.add %sums, %bias : (tensor<1x4xi32>, tensor<4xi32>) -> tensor<1x4xi32>
      %shift = graph.constant dense<9> : tensor<i32>
      %shifted = graph.shift_right %biased, %shift : (tensor<1x4xi32>, tensor<i32>) -> tensor<1x4xi32>
      %clipped = graph.clip %shifted min 0.0 max 127.0 : tensor<1x4xi32>
      %r = graph.cast %clipped : tensor<1x4xi32> -> tensor<1x4xi8>
      %scale_1 = graph.constant dense<6.250000e-02> : tensor<f32>
      %real = graph.dequantize_linear %r, %scale_1 : (tensor<1x4xi8>, tensor<f32>) -> tensor<1x4xf32>
      func.return %real : tensor<1x4xf32>
    }
    ```

    See Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
    CVPR 2018; Nagel et al., "A White Paper on Neural Network Quantization", 2021; and, for shifts, Jain et al.,
    "Trained Quantization Thresholds for Accurate and Efficient Fixed-Point Inference of Deep Neural Networks", MLSys
    2020.
    """

    name = "quantize"
    approximates: ClassVar[bool] = True

    scheme: Scheme = "qdq"
    """How the graph is written, see above."""
    ranges: str | None = None
    """The file with the table; by default the table is in the module."""
    per_channel: bool = True
    """Whether weights have a scale for each channel of the result; a tensor has one otherwise."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        ranges = read_ranges(self.ranges) if self.ranges is not None else ranges_of(op)
        if ranges is None:
            raise UserError(
                "there are no ranges to quantise by",
                loc=op.location,
                notes=[f"name a file, quantize{{ranges=FILE}}, or give the module the attribute {RANGES_ATTRIBUTE}"],
            )
        op.attributes.pop(RANGES_ATTRIBUTE, None)
        quantize_module(op, ranges, store_of(ctx), self.scheme, self.per_channel)
