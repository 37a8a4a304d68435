# SPDX-License-Identifier: Apache-2.0
"""
Networks for microcontrollers, of the shapes that MLPerf Tiny measures, with seeded weights.

Banbury et al., "MLPerf Tiny Benchmark", NeurIPS 2021: a depthwise separable network that spots keywords (Zhang et al.,
"Hello Edge: Keyword Spotting on Microcontrollers", 2017), MobileNet V1 of a quarter of the width for visual wake words,
a residual network of eight layers for images of CIFAR-10, and an autoencoder of matrices for anomalies in sound. Scores
are those before the softmax, which does not change which is the largest.

    model = NETWORKS["ds_cnn"](seed=0)
"""

from __future__ import annotations

from collections.abc import Callable

from mobilenet import OPSET, FeatureMap, NormalisedNetwork, mobilenet_v1
from onnx import ModelProto
from onnx_builder import OnnxBuilder


def ds_cnn(seed: int = 0) -> ModelProto:
    """Twelve words in 49 frames of 10 coefficients: a 10x4 convolution and four depthwise separable blocks of 64."""
    network = NormalisedNetwork("ds_cnn", seed)
    x = network.rectified(network.normalised(network.image(1, 49, 10), 64, (10, 4), 2, "/stem"), "/stem")
    for index in range(4):
        scope = f"/block{index}"
        x = network.rectified(network.depthwise(x, 1, f"{scope}/dw"), f"{scope}/dw")
        x = network.rectified(network.normalised(x, 64, 1, 1, f"{scope}/pw"), f"{scope}/pw")
    return network.classified(x, 12)


def mobilenet_v1_quarter(seed: int = 0) -> ModelProto:
    """Whether there is a person in an image of 96x96."""
    return mobilenet_v1(seed, 96, 0.25, 2)


def resnet8(seed: int = 0) -> ModelProto:
    """Ten classes of 32x32 images: three residual blocks of 16, 32 and 64 channels."""
    network = NormalisedNetwork("resnet8", seed)
    x = network.rectified(network.normalised(network.image(3, 32, 32), 16, 3, 1, "/stem"), "/stem")
    for index, (channels, stride) in enumerate(((16, 1), (32, 2), (64, 2))):
        x = _residual(network, x, channels, stride, f"/block{index}")
    return network.classified(x, 10)


def _residual(network: NormalisedNetwork, x: FeatureMap, channels: int, stride: int, scope: str) -> FeatureMap:
    """Two convolutions beside the input, or beside a 1x1 convolution of it where its shape is another."""
    y = network.rectified(network.normalised(x, channels, 3, stride, f"{scope}/conv0"), f"{scope}/conv0")
    y = network.normalised(y, channels, 3, 1, f"{scope}/conv1")
    beside = x if stride == 1 else network.normalised(x, channels, 1, stride, f"{scope}/shortcut")
    return network.rectified(network.added(beside, y, scope), scope)


def autoencoder(seed: int = 0) -> ModelProto:
    """Five frames of 128 frequencies through ten matrices, the narrowest with 8 results."""
    builder = OnnxBuilder("autoencoder", seed, OPSET)
    x, columns = builder.input("input", [1, 640]), 640
    sizes = (128, 128, 128, 128, 8, 128, 128, 128, 128, 640)
    for index, size in enumerate(sizes):
        scope, name = f"/layer{index}", f"layer{index}"
        weight = builder.weight(f"{name}.weight", builder.he_normal((size, columns), columns))
        bias = builder.weight(f"{name}.bias", builder.near(size, 0.1, 0.3))
        x, columns = builder.node("Gemm", [x, weight, bias], scope, transB=1), size
        if index < len(sizes) - 1:
            x = builder.node("Relu", [x], scope)
    builder.output(x, [1, columns])
    return builder.finish()


NETWORKS: dict[str, Callable[[int], ModelProto]] = {
    "ds_cnn": ds_cnn,
    "mobilenet_v1_quarter": mobilenet_v1_quarter,
    "resnet8": resnet8,
    "autoencoder": autoencoder,
}
"""The builder of each network, which takes a seed."""
