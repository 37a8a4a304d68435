# SPDX-License-Identifier: Apache-2.0
"""Quantised graphs in integer arithmetic: products of the integers that are stored, instead of what they stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32, f64, i32
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects import graph
from penstock.dialects.context import store_of
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.graph.base import SelectsElements, integer_bounds
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.analysis.kernels import processor_of
from penstock.passes.analysis.vector_products import VectorProduct, vector_products
from penstock.passes.graph.contractions import (
    ContractionOp,
    Layer,
    bounds_of,
    channels_of,
    contraction_at,
    weight_axis,
)
from penstock.passes.graph.quantization.integer_products import (
    IntegerProducts,
    Stored,
    centred_factor,
    combined_scale,
    is_byte,
    linear_parameters,
    stored_factor,
)
from penstock.passes.graph.values import (
    NodeBuilder,
    constant_array,
    erase_dead,
    graph_blocks,
    only_user,
    rebuilt,
)

MAX_SHIFT = 31


def shift_exactly(block: Block, store: WeightStore) -> None:
    """
    Shift i32 to the right where a block widens it to f64, multiplies it by 2^-s (or divides it by 2^s), rounds it down
    and casts it back: f64 holds every such number, so both are the same for every operand. ONNX shifts no signed
    integers, and this is how a model says it.
    """
    for op in list(block.ops):
        if not isinstance(op, graph.CastOp) or tensor_of(op.result).element_type != i32:
            continue
        found = _shifted(op.x, store)
        if found is None:
            continue
        source, places = found
        value = _shift(op, source, places, store) if places else source
        op.result.replace_all_uses_with(value)
        Rewriter.erase_op(op)


def _shifted(rounded: SSAValue, store: WeightStore) -> tuple[SSAValue, int] | None:
    """The i32 that a value in f64 is made of, and by how many places it is shifted; None if it is something else."""
    floor = rounded.owner
    if not isinstance(floor, graph.FloorOp) or not isinstance(scaled := floor.x.owner, graph.MulOp | graph.DivOp):
        return None
    divides = not isinstance(scaled, graph.MulOp)
    for real, by in ((scaled.a, scaled.b), (scaled.b, scaled.a))[: 1 if divides else 2]:
        wide, number = real.owner, constant_array(by, store)
        if not isinstance(wide, graph.CastOp) or number is None or number.size != 1:
            continue
        if number.ndim > tensor_of(real).get_num_dims():
            continue
        if tensor_of(wide.x).element_type != i32 or tensor_of(real).element_type != f64:
            continue
        fraction, exponent = math.frexp(float(number.reshape(())))
        places = (exponent - 1) * (1 if divides else -1)
        if fraction == 0.5 and 0 <= places <= MAX_SHIFT:
            return wide.x, places
    return None


def _shift(op: graph.CastOp, source: SSAValue, places: int, store: WeightStore) -> SSAValue:
    nodes = NodeBuilder(op.location, store)
    amount = nodes.constant(np.asarray(places, np.int32), "shift")
    shift = nodes.add(graph.ShiftRightOp(source, amount))
    shift.name_hint = op.result.name_hint
    Rewriter.insert_op(nodes.ops, InsertPoint.before(op))
    return shift


PART_NAMES = (None, "quantized", "moved", "bounded", "product", "biased", "sums")
"""Names in the text that give way to that of what is replaced."""


@dataclass
class IntegerLayers:
    """Rewrites the layers of one block, from the first op on; what has lost its uses is left for others to remove."""

    block: Block
    store: WeightStore
    host_products: Sequence[VectorProduct] = ()
    """What intrinsics of the host compute."""

    products: IntegerProducts = field(init=False)

    def __post_init__(self) -> None:
        ops = list(self.block.ops)
        self.products = IntegerProducts(self.store, ops[0], self.host_products)
        for op in ops:
            self.products.before, self.products.location = op, op.location
            if isinstance(op, graph.QuantizeLinearOp):
                self._move(op)
            elif not isinstance(op, ContractionOp):
                continue
            elif op.accumulator == i32:
                self._centred_product(op)
            elif op.accumulator is None and not self._quantized_layer(op):
                self._real_product(op)

    def _parameters(self, op: graph.LinearOp) -> tuple[Array, Array] | None:
        """The scale and zero point of a (de)quantisation of a whole tensor, None if they differ along it, or vary."""
        found = linear_parameters(op, self.store)
        return found if found is not None and not found[0].ndim else None

    def _factors(self, op: ContractionOp) -> tuple[Stored, Stored] | None:
        x, w = (stored_factor(operand, self.store) for operand in op.operands[:2])
        if x is None or w is None or x.scale.ndim:
            return None
        found = contraction_at(op, self.store, alone=True)
        if isinstance(found, str) or (w.scale.ndim and w.axis != weight_axis(op)):
            return None
        return x, w

    def _bias(self, found: Layer, scale: Array) -> Array | None:
        """The bias as integers of `scale`: those that are stored, where they have it."""
        addend = found.op.operands[2] if len(found.op.operands) > 2 else None
        if addend is not None and not any(isinstance(op, graph.AddOp) for op in found.absorbed):
            op = addend.owner
            if isinstance(op, graph.DequantizeLinearOp) and op.zero_point is None:
                stored, own = constant_array(op.x, self.store), constant_array(op.scale, self.store)
                if stored is not None and own is not None and np.allclose(own, scale, rtol=1e-4, atol=0):
                    return stored.reshape(-1)
        if found.bias is None:
            return None
        bounds = np.iinfo(np.int32)
        return np.clip(np.rint(found.bias.astype(np.float64) / scale), bounds.min, bounds.max).astype(np.int64)

    def _quantized_layer(self, op: ContractionOp) -> bool:
        """A contraction, bias and bounds whose result is quantised: its sums are scaled once, to the result's scale."""
        factors, found = self._factors(op), contraction_at(op, self.store)
        if factors is None or isinstance(found, str):
            return False
        last = only_user(found.result)
        if not isinstance(last, graph.QuantizeLinearOp) or last.x is not found.result or not is_byte(last.result):
            return False
        if (parameters := self._parameters(last)) is None:
            return False
        x, w = factors
        scale = combined_scale([x.scale, w.scale])
        total = self.products.product(op, x, w, self._bias(found, scale))
        if total is None:
            return False
        if found.absorbed:
            self.products.location = last.location
        factor = np.asarray(scale / parameters[0], np.float32)
        if factor.ndim:
            factor = factor.reshape(-1, *[1] * (tensor_of(total).get_num_dims() - 1 - channels_of(op)))
        real = self.products.add(graph.CastOp(total, f32), "sums_real")
        scaled = self.products.add(graph.MulOp(real, self.products.constant(factor, "factor")), "scaled")
        one = self.products.constant(np.asarray(1, np.float32), "one")
        element = tensor_of(last.result).element_type
        new = graph.QuantizeLinearOp(scaled, one, self._zero(last), element_type=element)
        quantized = self.products.add(new, "quantized")
        value = self._bounded(quantized, (found.low, found.high), last, parameters)
        self._replace(last, value)
        return True

    def _zero(self, op: graph.QuantizeLinearOp) -> SSAValue | None:
        """The zero point of `op`, where it can be read earlier."""
        array = constant_array(op.zero_point, self.store)
        return None if array is None else self.products.constant(array, "zero")

    def _bounded(
        self,
        value: SSAValue,
        bounds: tuple[float, float],
        op: graph.QuantizeLinearOp,
        parameters: tuple[Array, Array],
    ) -> SSAValue:
        """What quantising the bounds gives bounds the quantised: rounding keeps the order."""
        holds = integer_bounds(tensor_of(op.result).element_type)
        assert holds is not None
        scale, zero = parameters

        def quantized(bound: float, free: int) -> int:
            if not math.isfinite(bound):
                return free
            whole = int(np.rint(np.float32(bound) / scale)) + int(zero)
            return max(holds.start, min(holds.stop - 1, whole))

        low, high = quantized(bounds[0], holds.start), quantized(bounds[1], holds.stop - 1)
        if (low, high) == (holds.start, holds.stop - 1):
            return value
        return self.products.add(graph.ClipOp(value, min=float(low), max=float(high)), "bounded")

    def _real_product(self, op: ContractionOp) -> bool:
        """A contraction whose result is needed in float: its sums, dequantised."""
        factors, found = self._factors(op), contraction_at(op, self.store, alone=True)
        if factors is None or isinstance(found, str):
            return False
        scale = combined_scale([factors[0].scale, factors[1].scale])
        total = self.products.product(op, *factors, self._bias(found, scale))
        if total is None:
            return False
        new = graph.DequantizeLinearOp(total, self.products.constant(scale, "scale"), axis=channels_of(op))
        value = self.products.add(new, "product")
        value.owner.location = op.location  # pyright: ignore[reportAttributeAccessIssue]
        self._replace(op, value)
        return True

    def _centred_product(self, op: ContractionOp) -> None:
        """A contraction of differences to zero points, in 32 bits."""
        x, w = (centred_factor(operand, self.store) for operand in op.operands[:2])
        if x is None or w is None or isinstance(op, graph.GemmOp):
            return
        if op.operands[0] is x.value and op.operands[1] is w.value and self.products.takes(op, x, w):
            return
        bias = constant_array(op.operands[2], self.store) if len(op.operands) > 2 else None
        if len(op.operands) > 2 and bias is None:
            return
        total = self.products.product(op, x, w, bias)
        if total is not None:
            self._replace(op, total)

    def _move(self, op: graph.QuantizeLinearOp) -> None:
        """An op that moves or bounds elements between two quantisations that agree: on the integers."""
        if (wanted := self._parameters(op)) is None or not is_byte(op.result):
            return
        moving = op.x.owner
        source = op.x if isinstance(moving, graph.DequantizeLinearOp) else None
        if (
            source is None
            and isinstance(moving, Operation)
            and (moving.has_trait(SelectsElements) or isinstance(moving, graph.ReluOp | graph.ClipOp))
        ):
            source = moving.operands[0] if only_user(op.x) is op else None
        if source is None or not isinstance(dequantize := source.owner, graph.DequantizeLinearOp):
            return
        if tensor_of(dequantize.x).element_type != tensor_of(op.result).element_type:
            return
        given = self._parameters(dequantize)
        if given is None or given[0] != wanted[0] or given[1] != wanted[1]:
            return
        if moving is dequantize:
            self._replace(op, dequantize.x)
            return
        assert isinstance(moving, GraphOp)
        if isinstance(moving, graph.ReluOp | graph.ClipOp):
            self._replace(op, self._bounded(dequantize.x, bounds_of(moving), op, wanted))
            return
        new = rebuilt(moving, [dequantize.x, *moving.operands[1:]], op.result.type)
        new.location = moving.location
        self._replace(op, self.products.add(new, "moved"))

    @staticmethod
    def _replace(op: Operation, value: SSAValue) -> None:
        if value.name_hint in PART_NAMES:
            value.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(value)


@dataclass(frozen=True)
class IntegerArithmeticPass(ModulePass):
    """
    Multiply the 8-bit integers that a quantised graph stores, instead of the floats that they stand for.

    - A convolution, gemm or matmul of two `graph.dequantize_linear`, with the bias, relu and clip after it, whose
      result is quantised, becomes a contraction in 32 bits, an addition of the bias as integers, one product in f32
      with (x scale * w scale / y scale), one number for each channel if the weights have several scales, and
      `graph.quantize_linear` with the scale 1; bounds become bounds of the integers. Where the result is needed in
      float the sums are dequantised.
    - Zero points leave the products, exactly: that of constant weights goes into the weights where they still fit into
      8 bits, that of `x` into the bias (padding is made explicit then, with the zero point), and what is unsigned is
      stored 128 less, so that intrinsics on signed 8-bit integers apply; on a host with an intrinsic whose first
      factor is unsigned, that one is stored without a sign. The differences that integer operators of ONNX import as
      are rewritten in the same way.
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
        store, host = store_of(ctx), processor_of(op)
        products = () if host is None else vector_products(host)
        for block in graph_blocks(op):
            IntegerLayers(block, store, products)
            shift_exactly(block, store)
            erase_dead(block, GraphOp)
