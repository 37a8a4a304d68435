# SPDX-License-Identifier: Apache-2.0
"""
ResNeXt-50 (32x4d) with seeded weights, built as MobileNet is.

Xie et al., "Aggregated Residual Transformations for Deep Neural Networks", 2017, Table 1.

    model = resnext50(seed=0, input_size=224, width=1.0)
"""

from __future__ import annotations

from mobilenet import CLASSES, FeatureMap, NormalisedNetwork
from onnx import ModelProto

GROUPS = 32
STAGES = ((128, 256, 3, 1), (256, 512, 4, 2), (512, 1024, 6, 2), (1024, 2048, 3, 2))
"""Channels of the grouped convolutions, those of the result, blocks, and stride of the first block, of each stage."""


def resnext50(seed: int = 0, input_size: int = 224, width: float = 1.0) -> ModelProto:
    """
    ResNeXt-50 on 1x3xSxS images of `input_size` S; `width` scales the channels of every layer and of no group.

    Raises ValueError if the image is smaller than the 32 pixels by which the network shrinks it.
    """
    if input_size < 32:
        raise ValueError(f"an image of {input_size} pixels is smaller than the 32 that the network needs")
    network = NormalisedNetwork("resnext50", seed)
    x = network.normalised(network.image(3, input_size, input_size), int(64 * width), 7, 2, "/stem")
    x = network.max_pooled(network.rectified(x, "/stem"), 3, 2, "/stem", padded=True)
    for stage, (inner, outer, blocks, first) in enumerate(STAGES, start=1):
        for block in range(blocks):
            scope, stride = f"/layer{stage}.{block}", first if block == 0 else 1
            x = _block(network, x, int(inner * width), int(outer * width), stride, scope)
    return network.classified(x, CLASSES)


def _block(network: NormalisedNetwork, x: FeatureMap, inner: int, outer: int, stride: int, scope: str) -> FeatureMap:
    """Narrow, filter in groups, widen, and add the input, projected where the shape is not its own."""
    groups = GROUPS * inner // 128 if inner < 128 else GROUPS
    y = network.rectified(network.normalised(x, inner, 1, 1, f"{scope}/conv1"), f"{scope}/conv1")
    y = network.normalised(y, inner, 3, stride, f"{scope}/conv2", groups=groups)
    y = network.normalised(network.rectified(y, f"{scope}/conv2"), outer, 1, 1, f"{scope}/conv3")
    if stride != 1 or x.channels != outer:
        x = network.normalised(x, outer, 1, stride, f"{scope}/shortcut")
    return network.rectified(network.added(x, y, scope), scope)
