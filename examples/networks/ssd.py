# SPDX-License-Identifier: Apache-2.0
"""
A detector like SSD300, with seeded weights, built as MobileNet is.

Liu et al., "SSD: Single Shot MultiBox Detector", 2016: the convolutions of VGG-16, the dilated one in the place of its
first full connection, four more sizes of maps, and a convolution for the places and one for the classes of the boxes at
each of six sizes. Unlike there, each convolution but those of the boxes has a batch normalisation, as later training
codes have it, and the map of 38x38 is not scaled to unit length.

    model = ssd300(seed=0, input_size=300, width=1.0)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mobilenet import FeatureMap, NormalisedNetwork
from onnx import ModelProto

VGG = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of each stage."""
EXTRAS = ((256, 512, 2), (128, 256, 2), (128, 256, 0), (128, 256, 0))
"""Narrow and wide channels, and the stride; 0 for one of stride 1 without padding."""
BOXES = (4, 6, 6, 6, 4, 4)
CLASSES = 21
SMALLEST = 300


def ssd300(seed: int = 0, width: float = 1.0) -> ModelProto:
    """
    The places (1 x 4 x boxes) and the classes (1 x 21 x boxes) of the boxes of a 1x3x300x300 image; `width` scales the
    channels of every layer.
    """
    network = NormalisedNetwork("ssd300", seed)
    x, maps = network.image(3, SMALLEST, SMALLEST), list[FeatureMap]()
    for stage, (channels, layers) in enumerate(VGG, start=1):
        for layer in range(layers):
            x = _layer(network, x, int(channels * width), 3, 1, f"/conv{stage}.{layer}")
        if stage == 4:
            maps.append(x)
        if stage == 5:
            x = network.max_pooled(x, 3, 1, f"/pool{stage}", padded=True)
        else:
            # The third stage has an odd size, which the paper rounds up.
            x = network.max_pooled(x, 3 if stage == 3 else 2, 2, f"/pool{stage}", padded=stage == 3)
    x = _layer(network, x, int(1024 * width), 3, 1, "/fc6", dilation=6)
    x = _layer(network, x, int(1024 * width), 1, 1, "/fc7")
    maps.append(x)
    for number, (narrow, wide, stride) in enumerate(EXTRAS, start=8):
        x = _layer(network, x, int(narrow * width), 1, 1, f"/conv{number}.0")
        x = _layer(network, x, int(wide * width), 3, stride or 1, f"/conv{number}.1", padded=stride != 0)
        maps.append(x)
    for what, each in (("places", 4), ("classes", CLASSES)):
        _heads(network, maps, what, each)
    return network.builder.finish()


def _layer(
    network: NormalisedNetwork,
    x: FeatureMap,
    channels: int,
    kernel: int,
    stride: int,
    scope: str,
    *,
    padded: bool = True,
    dilation: int = 1,
) -> FeatureMap:
    y = network.normalised(x, channels, kernel, stride, scope, padded=padded, dilation=dilation)
    return network.rectified(y, scope)


def _heads(network: NormalisedNetwork, maps: Sequence[FeatureMap], what: str, each: int) -> None:
    """An output: for all boxes of all maps `each` numbers, by a convolution a map."""
    builder, found, boxes = network.builder, list[str](), 0
    shape = builder.weight(f"{what}.shape", np.array([1, each, -1], np.int64))
    for number, (x, count, size) in enumerate(zip(maps, BOXES, SIZES, strict=True)):
        weight = builder.he_normal((count * each, x.channels, 3, 3), x.channels * 9)
        inputs = [x.value, builder.weight(f"{what}.{number}.weight", weight)]
        inputs.append(builder.weight(f"{what}.{number}.bias", builder.near(count * each, 0.0, 0.1)))
        head = builder.node("Conv", inputs, f"/{what}.{number}", kernel_shape=[3, 3], pads=[1] * 4)
        found.append(builder.node("Reshape", [head, shape], f"/{what}.{number}"))
        boxes += count * size**2
    builder.output(builder.node("Concat", found, f"/{what}", axis=2), (1, each, boxes))


SIZES = (38, 19, 10, 5, 3, 1)
"""Of the maps that have boxes."""
