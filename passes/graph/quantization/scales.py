# SPDX-License-Identifier: Apache-2.0
"""
Scales: how a range of real numbers maps to 8-bit integers, real = (integer - zero point) * scale.

See Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR
2018, and Nagel et al., "A White Paper on Neural Network Quantization", 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np

from penstock.dialects.weights import Array
from penstock.passes.graph.quantization.ranges import Range

LOWEST, HIGHEST = -128, 127
"""Of a signed integer of 8 bits."""
LARGEST_WEIGHT = 127
"""Weights are symmetric: -128 is not used."""
LARGEST_BIAS = 1 << 30
"""Half of what 32 bits hold: the products have the other half."""
LARGEST_LENGTH = ((1 << 31) - LARGEST_BIAS) // (128 * 127)
"""How many products of 8-bit numbers a sum of 32 bits holds beside a bias."""


@dataclass(frozen=True)
class Scale:
    """How one tensor is quantised: one scale and zero point for all of its elements."""

    factor: float
    """A number that f32 holds."""
    zero: int = 0

    @property
    def exponent(self) -> int:
        """Of the power of two that the factor is."""
        mantissa, exponent = math.frexp(self.factor)
        assert mantissa == 0.5
        return exponent - 1

    @property
    def range(self) -> Range:
        """The real numbers that 8 bits reach."""
        return (LOWEST - self.zero) * self.factor, (HIGHEST - self.zero) * self.factor

    def nearest(self, number: float) -> int:
        """The 8-bit integer that stands for a number, or for the nearest that has one."""
        return max(LOWEST, min(HIGHEST, round(number / self.factor) + self.zero))


def power_of_two(exponent: int) -> Scale:
    """The scale 2^exponent, symmetric."""
    return Scale(math.ldexp(1.0, exponent))


def affine_scale(found: Range) -> Scale:
    """The finest scale whose 8-bit integers reach from the lowest number to the highest, and hold 0 exactly."""
    low, high = min(found[0], 0.0), max(found[1], 0.0)
    factor = _single((high - low) / (HIGHEST - LOWEST))
    zero = round(LOWEST - low / factor)
    return Scale(factor, max(LOWEST, min(HIGHEST, zero)))


def symmetric_scale(found: Range) -> Scale:
    """The finest scale with the zero point 0 whose integers from -127 to 127 reach the largest number either way."""
    return Scale(_single(max(abs(found[0]), abs(found[1])) / LARGEST_WEIGHT))


def power_of_two_scale(found: Range) -> Scale:
    """
    The finest power of two whose 8-bit integers reach the numbers of a range, up to half a step.

    What is never negative is rounded and cut off at the top alone.
    """
    reach = max(found[1] / (HIGHEST + 0.5), -found[0] / (-LOWEST + 0.5))
    return power_of_two(_exponent_above(reach))


def _exponent_above(number: float) -> int:
    """The smallest e with 2^e >= number > 0, within what f32 holds as an ordinary number; 0 for 0."""
    if number <= 0:
        return 0
    mantissa, exponent = math.frexp(number)
    return max(-100, exponent - 1 if mantissa == 0.5 else exponent)


def _single(number: float) -> float:
    """`number` in f32; 1 where it is too small to divide by."""
    rounded = float(np.float32(number))
    return rounded if rounded > 1e-37 else 1.0


def weight_scales(weights: Array, axis: int | None) -> Array:
    """The symmetric scales of weights, f32: one for each index of `axis`, or a scalar."""
    others = None if axis is None else tuple(dim for dim in range(weights.ndim) if dim != axis)
    largest = np.max(np.abs(weights.astype(np.float64)), axis=others, initial=0.0)
    scales = (largest / LARGEST_WEIGHT).astype(np.float32)
    return np.where(scales > np.float32(1e-37), scales, np.float32(1))


def weight_exponent(weights: Array) -> int:
    """
    The exponent of the power of two with which weights lose least, in the mean of squares: that which reaches the
    largest, or the next finer one, which cuts off some.
    """
    largest = float(np.max(np.abs(weights), initial=0.0))
    reaching = _exponent_above(largest / LARGEST_WEIGHT)

    def loss(exponent: int) -> float:
        restored = np.ldexp(quantized_weights(weights, math.ldexp(1.0, exponent)).astype(np.float64), exponent)
        return cast(float, np.sum((restored - weights) ** 2))

    return min((reaching, reaching - 1), key=loss)


def quantized_array(array: Array, scale: Scale) -> Array:
    """The 8-bit integers of an array, as `graph.quantize_linear` computes them."""
    whole = np.rint(array.astype(np.float32) / np.float32(scale.factor)) + np.float32(scale.zero)
    return np.clip(whole, LOWEST, HIGHEST).astype(np.int8)


def quantized_weights(weights: Array, scales: Array | float) -> Array:
    """The symmetric 8-bit integers of weights; `scales` broadcast to them."""
    whole = np.rint(weights.astype(np.float64) / scales)
    return np.clip(whole, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int8)


def quantized_bias(bias: Array, scales: Array | float) -> Array:
    """The 32-bit integers of a bias; `scales` broadcast to it."""
    whole = np.rint(bias.astype(np.float64) / scales)
    return np.clip(whole, -LARGEST_BIAS, LARGEST_BIAS).astype(np.int32)
