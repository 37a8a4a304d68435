# SPDX-License-Identifier: Apache-2.0
"""
A small convolutional network in 8-bit integers, as static quantisation writes it in integer operators.

Every layer is ConvInteger or MatMulInteger on int8 (zero points are 0 and left out), a Cast of the 32-bit sums to
float, a Mul by the product of the scales, an Add of the bias, Relu, and QuantizeLinear to int8 for the next layer: the
operators that onnxruntime's quantiser writes, with scales known beforehand. See Jacob et al., "Quantization and
Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018.

Channels of 16 and 32 fill 16x16 and 8x8x8 units; 3 channels of the image, 24 of a layer and the 10 scores do not.

    model = int8_cnn(seed=0, input_size=32)
"""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto
from onnx_builder import OnnxBuilder

OPSET = 13
LAYERS = ((16, 3, 1), (32, 3, 2), (24, 1, 1), (32, 3, 2))
"""Channels, kernel and stride of each convolution."""
HIDDEN = 64
CLASSES = 10
LARGEST = 127
"""Symmetric: -128 is not used."""
RANGE = 4.0
"""Values beyond so many standard deviations saturate."""


def int8_cnn(seed: int = 0, input_size: int = 32) -> ModelProto:
    """
    Four convolutions and two matrices on 1x3xSxS images of `input_size` S, which must be a multiple of 4.

    Input and scores are float32; raises ValueError for another size.
    """
    if input_size % 4:
        raise ValueError(f"{input_size} pixels are no multiple of 4")
    network = _Quantised(OnnxBuilder("int8_cnn", seed, OPSET))
    builder = network.builder
    x = network.quantised(builder.input("input", [1, 3, input_size, input_size]), "/input")
    channels = 3
    for index, (wide, kernel, stride) in enumerate(LAYERS):
        scope = f"/conv{index}"
        weight = builder.he_normal((wide, channels, kernel, kernel), channels * kernel * kernel)
        shape = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
        sums = builder.node("ConvInteger", [x, network.weight(weight, 0, scope)], scope, **shape)
        x = network.quantised(network.rectified(sums, (wide, 1, 1), scope), scope)
        channels = wide
    x, features = builder.node("Flatten", [x], axis=1), channels * (input_size // 4) ** 2
    weight = network.weight(builder.he_normal((features, HIDDEN), features), 1, "/fc0")
    hidden = network.rectified(builder.node("MatMulInteger", [x, weight], "/fc0"), (HIDDEN,), "/fc0")
    x = network.quantised(hidden, "/fc0")
    weight = network.weight(builder.he_normal((HIDDEN, CLASSES), HIDDEN), 1, "/fc1")
    scores = network.real(builder.node("MatMulInteger", [x, weight], "/fc1"), (CLASSES,), "/fc1")
    builder.output(scores, [1, CLASSES])
    return builder.finish()


class _Quantised:
    """Adds quantised layers; every activation is expected to have a second moment of about 1."""

    def __init__(self, builder: OnnxBuilder):
        self.builder = builder
        self.scales = np.zeros(0)
        """Of the last weight, one for each output channel."""

    def weight(self, array: np.ndarray, axis: int, scope: str) -> str:
        """A weight as int8, with a scale for each channel of `axis`."""
        others = tuple(each for each in range(array.ndim) if each != axis)
        scales = np.abs(array).max(axis=others, keepdims=True) / LARGEST
        self.scales = scales.ravel()
        rounded = np.rint(array / scales).astype(np.int8)
        return self.builder.weight(f"{scope.strip('/')}.weight_quantized", rounded)

    def real(self, sums: str, shape: tuple[int, ...], scope: str) -> str:
        """The 32-bit sums of a layer as floats: times the scales of input and weight, plus a bias of `shape`."""
        builder, name = self.builder, scope.strip("/")
        scales = (self.scales * RANGE / LARGEST).reshape(shape)
        casted = builder.node("Cast", [sums], scope, to=1)
        scaled = builder.node("Mul", [casted, builder.weight(f"{name}.scale", scales)], scope)
        bias = builder.weight(f"{name}.bias", builder.near(math.prod(shape), 0.0, 0.1).reshape(shape))
        return builder.node("Add", [scaled, bias], scope)

    def rectified(self, sums: str, shape: tuple[int, ...], scope: str) -> str:
        return self.builder.node("Relu", [self.real(sums, shape, scope)], scope)

    def quantised(self, x: str, scope: str) -> str:
        """Floats as int8; the zero point is there only to say that the type is signed."""
        builder, name = self.builder, scope.strip("/")
        scale = builder.weight(f"{name}.output_scale", np.array(RANGE / LARGEST, np.float32))
        zero = builder.weight(f"{name}.output_zero_point", np.array(0, np.int8))
        return builder.node("QuantizeLinear", [x, scale, zero], scope)
