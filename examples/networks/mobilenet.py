# SPDX-License-Identifier: Apache-2.0
"""
MobileNets with seeded weights: the depthwise separable networks that phones run.

- V1: Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications", 2017.
- V2: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018, Table 2.

Nodes are those that PyTorch's exporter writes when it keeps the batch normalisations: Conv, BatchNormalization and
Relu or Clip, with the bounds of Clip in Constant nodes. Names are torchvision's.

Convolutions are He-normal. The mean and the variance that the input of each batch normalisation is expected to have
are propagated per channel (an affine map of independent channels; the moments of a rectified normal), and are what
the normalisation gets, with a scale near 1 and a bias near 1/2: as in a trained network, the output has about the
same moments in every channel, so no channel is dead and none explodes. Nothing is executed for it. The bias keeps two
thirds of the values above 0: around 0, normalised and rectified layers of random weights amplify every difference
by about 1.2 each (Yang et al., "A Mean Field Theory of Batch Normalization", 2019), and after 50 of them the rounding
of 16-bit floats would be a hundredth of the result.

    model = mobilenet_v2(seed=0, input_size=224, width=1.0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto
from onnx_builder import OnnxBuilder

Vector = NDArray[Any]

OPSET = 13
CLASSES = 1000

V1_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)
"""Output channels and stride of each depthwise separable block (Table 1 of the paper)."""

V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, output channels, blocks, and stride of the first block, of each stage (Table 2 of the paper)."""


def mobilenet_v1(seed: int = 0, input_size: int = 224, width: float = 1.0, classes: int = CLASSES) -> ModelProto:
    """
    MobileNet V1 on 1x3xSxS images of `input_size` S; `width` scales the channels of every layer.

    Raises ValueError if the image is smaller than the 32 pixels by which the network shrinks it.
    """
    network = _network("mobilenet_v1", seed, input_size)
    x = network.normalised(network.image(3, input_size, input_size), _scaled(32, width), 3, 2, "/features.0")
    x = network.rectified(x, "/features.0")
    for index, (channels, stride) in enumerate(V1_BLOCKS, start=1):
        scope = f"/features.{index}"
        x = network.rectified(network.depthwise(x, stride, f"{scope}/dw"), f"{scope}/dw")
        x = network.rectified(network.normalised(x, _scaled(channels, width), 1, 1, f"{scope}/pw"), f"{scope}/pw")
    return network.classified(x, classes)


def mobilenet_v2(seed: int = 0, input_size: int = 224, width: float = 1.0) -> ModelProto:
    """
    MobileNet V2 on 1x3xSxS images of `input_size` S; `width` scales the channels of every layer.

    The last convolution keeps its 1280 channels for a `width` below 1, as in the paper.
    Raises ValueError if the image is smaller than the 32 pixels by which the network shrinks it.
    """
    network = _network("mobilenet_v2", seed, input_size)
    x = network.normalised(network.image(3, input_size, input_size), _scaled(32, width), 3, 2, "/features.0")
    x = network.clipped(x, "/features.0")
    index = 0
    for expansion, channels, blocks, first_stride in V2_STAGES:
        for block in range(blocks):
            index += 1
            stride = first_stride if block == 0 else 1
            x = _inverted_residual(network, x, expansion, _scaled(channels, width), stride, f"/features.{index}")
    x = network.normalised(x, max(1280, _scaled(1280, width)), 1, 1, f"/features.{index + 1}")
    return network.classified(network.clipped(x, f"/features.{index + 1}"), CLASSES)


def _network(name: str, seed: int, input_size: int) -> NormalisedNetwork:
    if input_size < 32:
        raise ValueError(f"an image of {input_size} pixels is smaller than the 32 that the network needs")
    return NormalisedNetwork(name, seed)


def _inverted_residual(
    network: NormalisedNetwork, x: FeatureMap, expansion: int, channels: int, stride: int, scope: str
) -> FeatureMap:
    """Widen, filter each channel, narrow without an activation, and add the input where the shape is its own."""
    wide = x
    if expansion > 1:
        wide = network.normalised(x, x.channels * expansion, 1, 1, f"{scope}/expand")
        wide = network.clipped(wide, f"{scope}/expand")
    filtered = network.clipped(network.depthwise(wide, stride, f"{scope}/dw"), f"{scope}/dw")
    narrow = network.normalised(filtered, channels, 1, 1, f"{scope}/project")
    return network.added(x, narrow, scope) if stride == 1 and x.channels == channels else narrow


def _scaled(channels: int, width: float) -> int:
    """The nearest multiple of 8 that is no more than a tenth below, as the reference implementations round."""
    rounded = max(8, int(channels * width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels * width else rounded


@dataclass(frozen=True)
class FeatureMap:
    """A feature map: its value, and the mean and variance that the elements of each channel are expected to have."""

    value: str
    mean: Vector
    variance: Vector

    @property
    def channels(self) -> int:
        return len(self.mean)


class NormalisedNetwork:
    """The layers of a network of convolutions with batch normalisations, which add to one model."""

    def __init__(self, name: str, seed: int):
        self.builder = OnnxBuilder(name, seed, OPSET)

    def image(self, channels: int, *sizes: int) -> FeatureMap:
        """The input, standard normal."""
        value = self.builder.input("input", [1, channels, *sizes])
        return FeatureMap(value, np.zeros(channels), np.ones(channels))

    def normalised(
        self,
        x: FeatureMap,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int,
        scope: str,
        *,
        groups: int = 1,
        padded: bool = True,
        dilation: int = 1,
    ) -> FeatureMap:
        """
        A convolution over all channels, or over those of one of the `groups`, and its batch normalisation; unless it is
        `padded`, only where the whole kernel lies in the image.
        """
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        members = x.channels // groups
        weight = self.builder.he_normal((channels, members, height, width), members * height * width)
        taps = weight.sum(axis=(2, 3), dtype=np.float64), np.square(weight, dtype=np.float64).sum(axis=(2, 3))
        # Each group of the results sees its own channels of the image.
        mean, variance = (
            np.concatenate([a @ b for a, b in zip(np.split(each, groups), np.split(moments, groups), strict=True)])
            for each, moments in zip(taps, (x.mean, x.variance), strict=True)
        )
        return self._convolution(FeatureMap(x.value, mean, variance), weight, stride, groups, scope, padded, dilation)

    def depthwise(self, x: FeatureMap, stride: int, scope: str) -> FeatureMap:
        """A 3x3 convolution of each channel with a kernel of its own, and its batch normalisation."""
        weight = self.builder.he_normal((x.channels, 1, 3, 3), 9)
        mean = weight.sum(axis=(1, 2, 3), dtype=np.float64) * x.mean
        variance = np.square(weight, dtype=np.float64).sum(axis=(1, 2, 3)) * x.variance
        return self._convolution(FeatureMap(x.value, mean, variance), weight, stride, x.channels, scope)

    def _convolution(
        self,
        x: FeatureMap,
        weight: Vector,
        stride: int,
        group: int,
        scope: str,
        padded: bool = True,
        dilation: int = 1,
    ) -> FeatureMap:
        """A convolution whose output has the moments of `x`, and its batch normalisation."""
        builder, name = self.builder, scope.strip("/").replace("/", ".")
        kernel, channels = list(weight.shape[2:]), len(weight)
        convolved = builder.node(
            "Conv",
            [x.value, builder.weight(f"{name}.conv.weight", weight)],
            scope,
            dilations=[dilation, dilation],
            group=group,
            kernel_shape=kernel,
            pads=[
                *(dilation * (size - 1) // 2 for size in kernel),
                *(dilation * (size - 1) - dilation * (size - 1) // 2 for size in kernel),
            ]
            if padded
            else [0] * 4,
            strides=[stride, stride],
        )
        scale, bias = builder.near(channels, 1.0, 0.3), builder.near(channels, 0.5, 0.3)
        # Not quite the moments that are expected: statistics of a training set never are.
        mean = x.mean + builder.normal((channels,), 0.1) * np.sqrt(x.variance)
        variance = x.variance * builder.near(channels, 1.05, 0.35)
        vectors = {"weight": scale, "bias": bias, "running_mean": mean, "running_var": variance}
        normalised = builder.node(
            "BatchNormalization",
            [convolved, *(builder.weight(f"{name}.bn.{part}", vector) for part, vector in vectors.items())],
            scope,
            epsilon=1e-5,
            momentum=0.9,
        )
        return FeatureMap(normalised, bias.astype(np.float64), np.square(scale, dtype=np.float64))

    def rectified(self, x: FeatureMap, scope: str) -> FeatureMap:
        """max(x, 0)."""
        return FeatureMap(self.builder.node("Relu", [x.value], scope), *_rectified_moments(x))

    def clipped(self, x: FeatureMap, scope: str) -> FeatureMap:
        """min(max(x, 0), 6): the upper bound is so far out that it does not move the moments."""
        bounds = [self.builder.constant(bound, scope) for bound in (0.0, 6.0)]
        return FeatureMap(self.builder.node("Clip", [x.value, *bounds], scope), *_rectified_moments(x))

    def max_pooled(self, x: FeatureMap, size: int, stride: int, scope: str, *, padded: bool = False) -> FeatureMap:
        """The largest of each window; its moments are about those of the map."""
        pads = [(size - 1) // 2] * 4 if padded else [0] * 4
        value = self.builder.node("MaxPool", [x.value], scope, kernel_shape=[size] * 2, strides=[stride] * 2, pads=pads)
        return FeatureMap(value, x.mean, x.variance)

    def average_pooled(self, x: FeatureMap, scope: str) -> FeatureMap:
        """The mean of each 3x3 window, within the image at its edges, as many as there are elements."""
        attributes = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "count_include_pad": 0}
        value = self.builder.node("AveragePool", [x.value], scope, **attributes)
        return FeatureMap(value, x.mean, x.variance / 9)

    def joined(self, maps: Sequence[FeatureMap], scope: str) -> FeatureMap:
        """The channels of maps of one size, one map after the other."""
        value = self.builder.node("Concat", [each.value for each in maps], scope, axis=1)
        return FeatureMap(
            value, np.concatenate([each.mean for each in maps]), np.concatenate([each.variance for each in maps])
        )

    def added(self, x: FeatureMap, y: FeatureMap, scope: str) -> FeatureMap:
        value = self.builder.node("Add", [x.value, y.value], scope)
        return FeatureMap(value, x.mean + y.mean, x.variance + y.variance)

    def classified(self, x: FeatureMap, classes: int) -> ModelProto:
        """The model: the mean of each channel, and a score for each class."""
        builder = self.builder
        features = builder.node("Flatten", [builder.node("GlobalAveragePool", [x.value])], axis=1)
        weight = builder.weight("classifier.weight", builder.he_normal((classes, x.channels), x.channels))
        bias = builder.weight("classifier.bias", builder.near(classes, 0.0, 0.1))
        scores = builder.node("Gemm", [features, weight, bias], "/classifier", alpha=1.0, beta=1.0, transB=1)
        builder.output(scores, [1, classes])
        return builder.finish()


def _rectified_moments(x: FeatureMap) -> tuple[Vector, Vector]:
    """Mean and variance of max(z, 0) for z normal with those of `x`, per channel."""
    deviation = np.sqrt(x.variance)
    ratio = x.mean / deviation
    density = np.exp(-0.5 * ratio * ratio) / math.sqrt(2.0 * math.pi)
    below = np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in ratio])
    mean = x.mean * below + deviation * density
    square = (x.mean * x.mean + x.variance) * below + x.mean * deviation * density
    return mean, square - mean * mean
