# SPDX-License-Identifier: Apache-2.0
"""
ResNet-18 and -50 in 8-bit integers with power-of-two scales, written in operators of ONNX.

Every convolution is ConvInteger on int8, an int32 bias that holds half a step of the result, and a shift to the right
by s places. ONNX shifts unsigned integers only; a double holds every int32, so Floor(double(x) * 2^-s) is that shift,
exactly. The shortcut of a block is added in 32 bits, before the sum is cut off at 0 and 127 and stored in 8 bits:
y = int8(clip((conv(x, w) + bias) >> s) + skip, 0, 127)). Scales of activations are all 2^-5; a layer's shift is the
exponent of its weights' scale. The head, a mean and a matrix, is in float.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; for shifts, Jain et al., "Trained Quantization
Thresholds for Accurate and Efficient Fixed-Point Inference of Deep Neural Networks", MLSys 2020.

    model = resnet18_int8(seed=0, input_size=224)
"""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto, TensorProto
from onnx_builder import OnnxBuilder

OPSET = 13
STAGES = (64, 128, 256, 512)
"""Channels; all stages but the first halve the image."""
BLOCKS = 2, 2, 2, 2
BOTTLENECKS = 3, 4, 6, 3
"""Blocks of each stage, of ResNet-18 and of ResNet-50."""
CLASSES = 1000
EXPONENT = 5
"""Activations count in steps of 2^-5: 127 of them are four standard deviations."""
LARGEST = 127


def resnet18_int8(seed: int = 0, input_size: int = 224, width: int = 64, classes: int = CLASSES) -> ModelProto:
    """
    Images 1x3xSxS of `input_size` S, which must be a multiple of 32, and scores, in float32.

    `width` is the number of channels of the first stage, 64 in the publication. Raises ValueError for another size.
    """
    return _resnet("resnet18_int8", BLOCKS, 1, seed, input_size, width, classes)


def resnet50_int8(seed: int = 0, input_size: int = 224, width: int = 64, classes: int = CLASSES) -> ModelProto:
    """The same with the bottlenecks of ResNet-50, the second convolution of which has the stride."""
    return _resnet("resnet50_int8", BOTTLENECKS, 4, seed, input_size, width, classes)


def _resnet(
    name: str, blocks: tuple[int, ...], expansion: int, seed: int, input_size: int, width: int, classes: int
) -> ModelProto:
    if input_size % 32:
        raise ValueError(f"{input_size} pixels are no multiple of 32")
    builder = OnnxBuilder(name, seed, OPSET)
    network = _Network(builder)
    step = builder.weight("input_scale", np.array(2.0**-EXPONENT, np.float32))
    zero = builder.weight("input_zero_point", np.array(0, np.int8))
    x = builder.input("input", [1, 3, input_size, input_size])
    x = builder.node("QuantizeLinear", [x, step, zero], "/input")
    x = network.bounded(network.convolution(x, (3, width, 7), "/conv1", 2, gain=0.7), "/conv1")
    x = builder.node("MaxPool", [x], "/maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, wide in enumerate(width * each // STAGES[0] for each in STAGES):
        for block in range(blocks[stage]):
            stride = 2 if stage and not block else 1
            x = network.block(x, channels, wide, stride, f"/layer{stage + 1}.{block}", expansion)
            channels = wide * expansion
    x = builder.node("DequantizeLinear", [x, step, zero], "/head")
    x = builder.node("Flatten", [builder.node("GlobalAveragePool", [x], "/head")], "/head", axis=1)
    weight = builder.weight("fc.weight", builder.he_normal((classes, channels), channels))
    bias = builder.weight("fc.bias", builder.near(classes, 0.0, 0.1))
    builder.output(builder.node("Gemm", [x, weight, bias], "/fc", transB=1), [1, classes])
    return builder.finish()


class _Network:
    """Adds layers; activations are expected to have a variance of about 1 before they are cut off."""

    def __init__(self, builder: OnnxBuilder):
        self.builder = builder
        self.low = builder.weight("low", np.array(0, np.int32))
        self.high = builder.weight("high", np.array(LARGEST, np.int32))

    def block(self, x: str, channels: int, wide: int, stride: int, scope: str, expansion: int = 1) -> str:
        """
        A block and its shortcut, which is a convolution where the shape changes: two convolutions of 3x3, or with an
        `expansion` one between two of 1x1, the last of which has so many times the channels.
        """
        outputs = wide * expansion
        shortened = stride != 1 or channels != outputs
        gain = math.sqrt(0.5) if shortened else 0.5
        skip = x
        if shortened:
            short = self.convolution(x, (channels, outputs, 1), f"{scope}/downsample", stride, gain=gain)
            skip = self.bounded(short, f"{scope}/downsample", "lowest")
        skip = self.builder.node("Cast", [skip], scope, to=TensorProto.INT32)
        shapes = [(channels, wide, 3), (wide, wide, 3)]
        if expansion > 1:
            shapes = [(channels, wide, 1), (wide, wide, 3), (wide, outputs, 1)]
        y, strided = x, len(shapes) - 2
        for number, shape in enumerate(shapes[:-1]):
            name = f"{scope}/conv{number + 1}"
            y = self.bounded(self.convolution(y, shape, name, stride if number == strided else 1), name)
        y = self.convolution(y, shapes[-1], f"{scope}/conv{len(shapes)}", 1, gain=gain)
        return self.bounded(self.builder.node("Add", [y, skip], scope), scope)

    def convolution(self, x: str, shape: tuple[int, int, int], scope: str, stride: int, *, gain: float = 1.0) -> str:
        """Sums of a convolution of `shape` (channels, channels of the result, kernel) as int32 in steps of 2^-5."""
        channels, wide, kernel = shape
        builder, name = self.builder, scope.strip("/").replace("/", ".")
        weight = builder.he_normal((wide, channels, kernel, kernel), channels * kernel * kernel) * gain
        shift = math.floor(math.log2(LARGEST / float(np.abs(weight).max())))
        integers = builder.weight(f"{name}.weight", np.rint(np.ldexp(weight, shift)).astype(np.int8))
        sums = builder.node(
            "ConvInteger", [x, integers], scope, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, strides=[stride] * 2
        )
        bias = np.rint(np.ldexp(builder.near((1, wide, 1, 1), 0.0, 0.1), EXPONENT + shift)) + (1 << (shift - 1))
        biased = builder.node("Add", [sums, builder.weight(f"{name}.bias", bias.astype(np.int32))], scope)
        real = builder.node("Cast", [biased], scope, to=TensorProto.DOUBLE)
        scale = builder.weight(f"{name}.scale", np.array(2.0**-shift), TensorProto.DOUBLE)
        rounded = builder.node("Floor", [builder.node("Mul", [real, scale], scope)], scope)
        return builder.node("Cast", [rounded], scope, to=TensorProto.INT32)

    def bounded(self, x: str, scope: str, low: str = "low") -> str:
        """Int32 as int8, cut off below and at 127."""
        if low == "lowest":
            low = self.builder.weight(f"{scope.strip('/').replace('/', '.')}.lowest", np.array(-LARGEST - 1, np.int32))
        clipped = self.builder.node("Clip", [x, low, self.high], scope)
        return self.builder.node("Cast", [clipped], scope, to=TensorProto.INT8)
