# SPDX-License-Identifier: Apache-2.0
"""
The power-of-two scheme: integers throughout, as an accelerator with shifts and no multipliers computes.

A layer is a contraction of 8-bit integers summed in 32 bits, plus a bias that holds half a step of the result, shifted
right, cut off and narrowed: y = narrow(clip((x * w + bias + 2^(s-1)) >> s)).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.dialects.builtin import i8, i32
from xdsl.ir import Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.weights import Array
from penstock.passes.graph.contractions import ContractionOp, Layer, bounds_of, channels_of, on_integers
from penstock.passes.graph.quantization.quantizer import Quantized, Quantizer, Refused
from penstock.passes.graph.quantization.ranges import Range
from penstock.passes.graph.quantization.scales import (
    HIGHEST,
    LARGEST_BIAS,
    LOWEST,
    Scale,
    power_of_two,
    power_of_two_scale,
    quantized_bias,
    quantized_weights,
    weight_exponent,
)

MAX_SHIFT = 31
"""What a 32-bit number can be shifted by."""


class IntegerQuantizer(Quantizer):
    """Symmetric, scales are powers of two, and one shift for each layer."""

    def scale_for(self, found: Range) -> Scale:
        return power_of_two_scale(found)

    def move(self, op: graph.GraphOp, given: Quantized) -> SSAValue:
        return self.finish(self.moved(op, given.value), op.results[0])

    def contraction(self, op: ContractionOp) -> None:
        found = self.contraction_at(op)
        wanted = self.scale_of(found.result).exponent
        x = self.integers(op.operands[0])
        if found.w is None:
            self.require(op.operands[1])
            second = self.integers(op.operands[1])
            w, of_weights = second.value, second.scale.exponent
        else:
            of_weights = self._weight_exponent(found, x.scale.exponent)
            w = self.constant(quantized_weights(found.w, math.ldexp(1.0, of_weights)), "weights")
        of_sums = x.scale.exponent + of_weights
        total = self.add(on_integers(op, x.value, w), "sums")
        self._narrow(found, total, of_sums, wanted)

    @staticmethod
    def _weight_exponent(found: Layer, of_x: int) -> int:
        """The best for the weights, or the finest with which the bias fits beside the sums."""
        assert found.w is not None
        exponent = weight_exponent(found.w)
        if found.bias is not None and (largest := float(np.max(np.abs(found.bias), initial=0.0))) > 0:
            exponent = max(exponent, math.ceil(math.log2(largest / LARGEST_BIAS)) - of_x)
        return exponent

    def _narrow(self, found: Layer, total: SSAValue, of_sums: int, wanted: int) -> None:
        exponent = max(of_sums, min(wanted, of_sums + MAX_SHIFT))
        bias = None
        if found.bias is not None:
            bias = quantized_bias(found.bias, math.ldexp(1.0, of_sums))
            rank = tensor_of(found.result).get_num_dims()
            bias = bias.reshape(-1, *[1] * (rank - 1 - channels_of(found.op)))
        scale = power_of_two(exponent)
        low = LOWEST if found.low == -math.inf else scale.nearest(found.low)
        high = HIGHEST if found.high == math.inf else scale.nearest(found.high)
        self.skip(found.absorbed)
        self.narrow(total, of_sums, scale, found.result, found.op, bias=bias, low=low, high=high)

    def narrow(
        self,
        total: SSAValue,
        of_total: int,
        scale: Scale,
        old: SSAValue,
        op: Operation,
        *,
        bias: Array | None = None,
        low: int = LOWEST,
        high: int = HIGHEST,
    ) -> None:
        """
        32-bit numbers of scale 2^of_total as the 8-bit integers of `old` at a coarser `scale`, rounded to the nearest,
        halves up.
        """
        shift = scale.exponent - of_total
        assert 0 <= shift <= MAX_SHIFT
        half = 1 << (shift - 1) if shift else 0
        if bias is not None or half:
            addend = np.asarray((0 if bias is None else bias.astype(np.int64)) + half, np.int32)
            total = self.add(graph.AddOp(total, self.constant(addend, "bias")), "biased")
        if shift:
            amount = self.constant(np.asarray(shift, np.int32), "shift")
            total = self.add(graph.ShiftRightOp(total, amount), "shifted")
        clipped = self.add(graph.ClipOp(total, min=float(low), max=float(high)), "clipped")
        value = self.finish(graph.CastOp(clipped, i8), old)
        self.define(old, Quantized(value, scale), op, shift)

    def widened(self, given: Quantized, exponent: int) -> SSAValue:
        """Integers in 32 bits at a scale that is not coarser than theirs."""
        wide = self.add(graph.CastOp(given.value, i32), "wide")
        places = given.scale.exponent - exponent
        if not places:
            return wide
        return self.add(graph.ShiftLeftOp(wide, self.constant(np.asarray(places, np.int32), "places")), "aligned")

    def aligned(self, given: Quantized, exponent: int) -> SSAValue:
        """8-bit integers at another scale, which is not finer than theirs."""
        shift = min(exponent - given.scale.exponent, MAX_SHIFT)
        if not shift:
            return given.value
        wide = self.add(graph.CastOp(given.value, i32), "wide")
        half = self.constant(np.asarray(1 << (shift - 1), np.int32), "half")
        rounded = self.add(graph.AddOp(wide, half), "rounded")
        amount = self.constant(np.asarray(shift, np.int32), "shift")
        return self.add(graph.CastOp(self.add(graph.ShiftRightOp(rounded, amount), "shifted"), i8), "aligned")

    def form_of(self, op: graph.GraphOp) -> Callable[[Any, Any], None] | None:
        return _FORMS.get(type(op))


def _sum(quantizer: IntegerQuantizer, op: graph.AddOp | graph.SubOp) -> None:
    """Both at the finer of their scales."""
    quantizer.require(op.a, op.b, op.result)
    a, b = quantizer.integers(op.a), quantizer.integers(op.b)
    wanted = quantizer.scale_of(op.result).exponent
    fine = min(a.scale.exponent, b.scale.exponent)
    # What lies more than 16 places above the other drowns it.
    fine = max(fine, max(a.scale.exponent, b.scale.exponent) - 16)
    parts = [_at(quantizer, each, fine) for each in (a, b)]
    total = quantizer.add(type(op)(*parts), "total")
    exponent = max(fine, min(wanted, fine + MAX_SHIFT))
    quantizer.narrow(total, fine, power_of_two(exponent), op.result, op)


def _at(quantizer: IntegerQuantizer, given: Quantized, exponent: int) -> SSAValue:
    if given.scale.exponent >= exponent:
        return quantizer.widened(given, exponent)
    value = quantizer.aligned(given, exponent)
    return quantizer.add(graph.CastOp(value, i32), "wide")


def _product(quantizer: IntegerQuantizer, op: graph.MulOp) -> None:
    """The product in 32 bits, whose scale is the product of the scales."""
    quantizer.require(op.a, op.b, op.result)
    a, b = quantizer.integers(op.a), quantizer.integers(op.b)
    wide = [quantizer.widened(each, each.scale.exponent) for each in (a, b)]
    total = quantizer.add(graph.MulOp(*wide), "product")
    fine = a.scale.exponent + b.scale.exponent
    exponent = max(fine, min(quantizer.scale_of(op.result).exponent, fine + MAX_SHIFT))
    quantizer.narrow(total, fine, power_of_two(exponent), op.result, op)


def _bounded(quantizer: IntegerQuantizer, op: graph.ReluOp | graph.ClipOp) -> None:
    """The bounds as integers at the same scale."""
    given = quantizer.integers(op.x)
    low, high = bounds_of(op)
    lowest = LOWEST if low == -math.inf else given.scale.nearest(low)
    highest = HIGHEST if high == math.inf else given.scale.nearest(high)
    clip = graph.ClipOp(given.value, min=float(lowest), max=float(highest))
    quantizer.define(op.result, Quantized(quantizer.finish(clip, op.result), given.scale), op)


def _padded(quantizer: IntegerQuantizer, op: graph.PadOp) -> None:
    """With the integer of the value."""
    given = quantizer.integers(op.x)
    value = op.value.value.data
    number = given.scale.nearest(value)
    if number * given.scale.factor != value:
        raise Refused(f"it pads with {value}, which no integer stands for")
    pad = graph.PadOp(given.value, pads=op.pads.get_values(), value=float(number))
    quantizer.define(op.result, Quantized(quantizer.finish(pad, op.result), given.scale), op)


def _joined(quantizer: IntegerQuantizer, op: graph.ConcatOp | graph.BinaryOp) -> None:
    """All at the coarsest of their scales."""
    quantizer.require(*op.operands)
    given = [quantizer.integers(operand) for operand in op.operands]
    exponent = max(each.scale.exponent for each in given)
    parts = [quantizer.aligned(each, exponent) for each in given]
    new = graph.ConcatOp(parts, axis=op.axis.value.data) if isinstance(op, graph.ConcatOp) else type(op)(*parts)
    quantizer.define(op.result, Quantized(quantizer.finish(new, op.result), power_of_two(exponent)), op)


def _mean(quantizer: IntegerQuantizer, op: graph.GlobalAveragePoolOp | graph.ReduceMeanOp) -> None:
    """The sum of all elements along dimensions, divided."""
    shape = tensor_of(op.x).get_shape()
    if isinstance(op, graph.ReduceMeanOp):
        axes, keep = tuple(op.axes.get_values()), bool(op.keepdims)
    else:
        first = 2 if op.layout.data == graph.NCHW else 1
        axes, keep = tuple(range(first, first + len(shape) - 2)), True
    count = math.prod(shape[axis] for axis in axes)
    quantizer.require(op.x, op.result)
    bits, factor = _reciprocal(count)
    given = quantizer.integers(op.x)
    wide = quantizer.widened(given, given.scale.exponent)
    total = quantizer.add(graph.ReduceSumOp(wide, axes=axes, keepdims=keep), "total")
    _divided(quantizer, op, total, given.scale.exponent, bits, factor)


def _window_mean(quantizer: IntegerQuantizer, op: graph.AveragePoolOp) -> None:
    """The sums of windows, a convolution of each channel with weights of 1, divided; windows must be of one size."""
    if op.ceil_mode or (any(op.pads.get_values()) and not op.count_include_pad):
        raise Refused("its windows differ in size")
    kernel = list(op.kernel_shape.get_values())
    quantizer.require(op.x, op.result)
    bits, factor = _reciprocal(math.prod(kernel))
    given, planar = quantizer.integers(op.x), op.layout.data == graph.NCHW
    channels = tensor_of(op.x).get_shape()[1 if planar else -1]
    ones = np.ones([channels, 1, *kernel] if planar else [*kernel, 1, channels], np.int8)
    sums = graph.ConvOp(
        given.value,
        quantizer.constant(ones, "ones"),
        strides=op.strides.get_values(),
        pads=op.pads.get_values(),
        dilations=op.dilations.get_values(),
        group=channels,
        layout=op.layout.data,
        accumulator=i32,
    )
    _divided(quantizer, op, quantizer.add(sums, "total"), given.scale.exponent, bits, factor)


def _divided(
    quantizer: IntegerQuantizer, op: graph.GraphOp, total: SSAValue, of_x: int, bits: int, factor: int
) -> None:
    """The sum times 2^bits / count, rounded, shifted by so many bits more: exact where the count is a power of two."""
    if factor != 1:
        total = quantizer.add(graph.MulOp(total, quantizer.constant(np.asarray(factor, np.int32), "factor")), "scaled")
    fine = of_x - bits
    exponent = max(fine, min(quantizer.scale_of(op.result).exponent, fine + MAX_SHIFT))
    quantizer.narrow(total, fine, power_of_two(exponent), op.result, op)


def _reciprocal(count: int) -> tuple[int, int]:
    """(bits, factor) with factor / 2^bits nearest to 1 / count, for which 128 * count * factor fits into 31 bits."""
    if count & (count - 1) == 0:
        return count.bit_length() - 1, 1
    bits = 22
    while bits and 128 * count * round((1 << bits) / count) >= 1 << 30:
        bits -= 1
    if bits < count.bit_length() + 6:
        raise Refused(f"the mean of {count} numbers is not exact enough in 32 bits")
    return bits, round((1 << bits) / count)


_FORMS: dict[type[Operation], Callable[[Any, Any], None]] = {
    graph.AddOp: _sum,
    graph.SubOp: _sum,
    graph.MulOp: _product,
    graph.ReluOp: _bounded,
    graph.ClipOp: _bounded,
    graph.PadOp: _padded,
    graph.ConcatOp: _joined,
    graph.MaxOp: _joined,
    graph.MinOp: _joined,
    graph.GlobalAveragePoolOp: _mean,
    graph.ReduceMeanOp: _mean,
    graph.AveragePoolOp: _window_mean,
}
