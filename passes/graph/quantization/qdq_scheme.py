# SPDX-License-Identifier: Apache-2.0
"""The schemes that write quantisation around ops in float, as onnxruntime's static quantiser does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import GraphOp
from penstock.dialects.graph.base import HasQuantizedForm
from penstock.passes.graph.contractions import ContractionOp, Layer, weight_axis
from penstock.passes.graph.quantization.quantizer import Quantized, Quantizer
from penstock.passes.graph.quantization.ranges import Range
from penstock.passes.graph.quantization.scales import (
    LARGEST_BIAS,
    Scale,
    affine_scale,
    quantized_bias,
    quantized_weights,
    symmetric_scale,
    weight_scales,
)
from penstock.passes.graph.values import rebuilt


class QdqQuantizer(Quantizer):
    """Affine: each op works on dequantised integers, and its result is quantised."""

    def scale_for(self, found: Range) -> Scale:
        return affine_scale(found)

    def form_of(self, op: GraphOp) -> Callable[[Any, Any], None] | None:
        return _around if op.has_trait(HasQuantizedForm) else None

    def dequantized(self, value: SSAValue, scale: Scale) -> SSAValue:
        """Emit the float of new integers."""
        return self.add(graph.DequantizeLinearOp(value, *self.parameters(scale)), "dq")

    def operand(self, old: SSAValue) -> SSAValue:
        """What an op reads in place of an old value: its integers, dequantised for this op."""
        given = self.integers(old)
        return self.dequantized(given.value, given.scale)

    def move(self, op: GraphOp, given: Quantized) -> SSAValue:
        real = self.add_at(self.moved(op, self.dequantized(given.value, given.scale)), "moved", op.location)
        return self.quantized(real, given.scale, op.results[0])

    def contraction(self, op: ContractionOp) -> None:
        found = self.contraction_at(op)
        if found.w is None:
            self.require(op.operands[1])
        scale = self.scale_of(found.result)
        x = self.integers(op.operands[0])
        factors = [self.dequantized(x.value, x.scale)]
        if found.w is None:
            factors.append(self.operand(op.operands[1]))
            addend = None if found.bias is None else self.constant(found.bias, "bias")
        else:
            w, addend = self._constants(found, x.scale)
            factors.append(w)
        real = self._product(found, factors, addend)
        for bound in found.absorbed:
            if not isinstance(bound, graph.AddOp):
                real = self.add_at(_on(bound, real), "bounded", bound.location)
        self.skip(found.absorbed)
        self.define(found.result, Quantized(self.quantized(real, scale, found.result), scale), op)

    def _constants(self, found: Layer, of_x: Scale) -> tuple[SSAValue, SSAValue | None]:
        """Weights and bias, dequantised."""
        assert found.w is not None
        axis = weight_axis(found.op) if self.per_channel else None
        scales = weight_scales(found.w, axis)
        if found.bias is not None:  # the bias must fit beside the sums
            least = np.abs(found.bias) / (of_x.factor * LARGEST_BIAS)
            scales = np.maximum(scales, (least if axis is not None else least.max(initial=0.0)).astype(np.float32))
        along = scales if axis is None else scales.reshape([-1 if dim == axis else 1 for dim in range(found.w.ndim)])
        factor = self.constant(scales, "weight_scale")
        stored = self.constant(quantized_weights(found.w, along), "weights")
        w = self.add(graph.DequantizeLinearOp(stored, factor, axis=axis or 0), "dq")
        if found.bias is None:
            return w, None
        products = np.asarray(np.float32(of_x.factor) * scales, np.float32)
        bias = self.constant(quantized_bias(found.bias, products), "bias")
        return w, self.add(graph.DequantizeLinearOp(bias, self.constant(products, "bias_scale"), axis=0), "dq")

    def _product(self, found: Layer, factors: list[SSAValue], addend: SSAValue | None) -> SSAValue:
        x, w = factors
        match op := found.op:
            case graph.ConvOp():
                new = rebuilt(op, [x, w] if addend is None else [x, w, addend])
                return self.add_at(new, "product", op.location)
            case graph.GemmOp():
                new = graph.GemmOp(x, w, addend, trans_a=bool(op.trans_a), trans_b=bool(op.trans_b))
                return self.add_at(new, "product", op.location)
            case _:
                product = self.add_at(graph.MatmulOp(x, w), "product", op.location)
                return product if addend is None else self.add(graph.AddOp(product, addend), "biased")


def _on(op: Operation, x: SSAValue) -> GraphOp:
    """A copy of an op of one operand on another."""
    copy = op.clone({op.operands[0]: x})
    assert isinstance(copy, GraphOp)
    return copy


class SymmetricQdqQuantizer(QdqQuantizer):
    """The same with zero points of 0."""

    def scale_for(self, found: Range) -> Scale:
        return symmetric_scale(found)


def _around(quantizer: QdqQuantizer, op: GraphOp) -> None:
    """The op itself, between its operands dequantised and its result quantised."""
    quantizer.require(*op.operands, op.result)
    scale = quantizer.scale_of(op.result)
    copy = op.clone({operand: quantizer.operand(operand) for operand in op.operands})
    real = quantizer.add_at(copy, "real", op.location)
    quantizer.define(op.result, Quantized(quantizer.quantized(real, scale, op.result), scale), op)
