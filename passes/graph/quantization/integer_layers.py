"""Layers of a quantised graph, and ops that only move elements, on the integers that are stored."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.graph.base import integer_bounds, is_unsigned
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.graph.quantization.contraction_parts import (
    Contraction,
    ContractionOp,
    bounds_of,
    channels_of,
    constant_array,
    contraction_at,
)
from penstock.passes.graph.quantization.integer_products import (
    IntegerProducts,
    Stored,
    centred_factor,
    combined_scale,
    is_byte,
    stored_factor,
)
from penstock.passes.graph.quantization.quantizer import MOVES
from penstock.passes.graph.values import only_user

PARTS = (None, "quantized", "moved", "bounded", "product", "biased", "sums")
"""Names in the text that give way to that of what is replaced."""


@dataclass
class IntegerLayers:
    """Rewrites the layers of one block, from the first op on; what has lost its uses is left for others to remove."""

    block: Block
    store: WeightStore

    products: IntegerProducts = field(init=False)

    def __post_init__(self) -> None:
        ops = list(self.block.ops)
        self.products = IntegerProducts(self.store, ops[0])
        for op in ops:
            self.products.before, self.products.location = op, op.location
            if isinstance(op, graph.QuantizeLinearOp):
                self._move(op)
            elif not isinstance(op, graph.ConvOp | graph.GemmOp | graph.MatmulOp):
                continue
            elif op.accumulator == i32:
                self._centred_product(op)
            elif op.accumulator is None and not self._quantized_layer(op):
                self._real_product(op)

    def _parameters(self, op: graph.LinearOp) -> tuple[Array, Array] | None:
        """The scale and zero point of a (de)quantisation of a whole tensor, None if they differ along it, or vary."""
        scale, zero = constant_array(op.scale, self.store), constant_array(op.zero_point, self.store)
        if scale is None or scale.ndim or scale.dtype != np.float32 or (zero is None and op.zero_point is not None):
            return None
        return scale, np.asarray(0) if zero is None else zero.astype(np.int64)

    def _factors(self, op: ContractionOp) -> tuple[Stored, Stored] | None:
        x, w = (stored_factor(operand, self.store) for operand in op.operands[:2])
        if x is None or w is None or x.scale.ndim:
            return None
        found = contraction_at(op, self.store, alone=True)
        if isinstance(found, str) or (w.scale.ndim and w.axis != found.weight_axis):
            return None
        return x, w

    def _bias(self, found: Contraction, scale: Array) -> Array | None:
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
        real = self.products.emit(graph.CastOp(total, f32), "sums_real")
        scaled = self.products.emit(graph.MulOp(real, self.products.constant(factor, "factor")), "scaled")
        one = self.products.constant(np.asarray(1, np.float32), "one")
        element = tensor_of(last.result).element_type
        new = graph.QuantizeLinearOp(scaled, one, self._zero(last), element_type=element)
        value = self._bounded(self.products.emit(new, "quantized"), found, last, parameters)
        self._replace(last, value)
        return True

    def _zero(self, op: graph.QuantizeLinearOp) -> SSAValue | None:
        """The zero point of `op`, where it can be read earlier."""
        array = constant_array(op.zero_point, self.store)
        return None if array is None else self.products.constant(array, "zero")

    def _bounded(
        self, value: SSAValue, found: Contraction, op: graph.QuantizeLinearOp, parameters: tuple[Array, Array]
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

        low, high = quantized(found.low, holds.start), quantized(found.high, holds.stop - 1)
        if (low, high) == (holds.start, holds.stop - 1):
            return value
        return self.products.emit(graph.ClipOp(value, min=float(low), max=float(high)), "bounded")

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
        value = self.products.emit(new, "product")
        value.owner.location = op.location  # pyright: ignore[reportAttributeAccessIssue]
        self._replace(op, value)
        return True

    def _centred_product(self, op: ContractionOp) -> None:
        """A contraction of differences to zero points, in 32 bits."""
        x, w = (centred_factor(operand, self.store) for operand in op.operands[:2])
        if x is None or w is None or isinstance(op, graph.GemmOp):
            return
        if op.operands[0] is x.value and op.operands[1] is w.value and not self._unsigned(x, w):
            return
        bias = constant_array(op.operands[2], self.store) if len(op.operands) > 2 else None
        if len(op.operands) > 2 and bias is None:
            return
        total = self.products.product(op, x, w, bias)
        if total is not None:
            self._replace(op, total)

    @staticmethod
    def _unsigned(*factors: Stored) -> bool:
        return any(is_unsigned(tensor_of(each.value).element_type) for each in factors)

    def _move(self, op: graph.QuantizeLinearOp) -> None:
        """An op that moves or bounds elements between two quantisations that agree: on the integers."""
        if (wanted := self._parameters(op)) is None or not is_byte(op.result):
            return
        moving = op.x.owner
        source = op.x if isinstance(moving, graph.DequantizeLinearOp) else None
        if source is None and isinstance(moving, (*MOVES, graph.ReluOp, graph.ClipOp)):
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
            low, high = bounds_of(moving)
            found = Contraction(moving, moving.result, None, None, low, high)  # pyright: ignore[reportArgumentType]
            self._replace(op, self._bounded(dequantize.x, found, op, wanted))
            return
        new = type(moving).create(
            operands=[dequantize.x, *moving.operands[1:]],
            result_types=[op.result.type],
            properties=moving.properties.copy(),
        )
        new.location = moving.location
        self._replace(op, self.products.emit(new, "moved"))

    @staticmethod
    def _replace(op: Operation, value: SSAValue) -> None:
        if value.name_hint in PARTS:
            value.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(value)
