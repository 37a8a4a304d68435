# SPDX-License-Identifier: Apache-2.0
"""
Inception networks with seeded weights, built as MobileNet is.

- V3: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016, as torchvision has it, without
  the auxiliary classifier.
- V4: Szegedy et al., "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning", 2017.

A branch is written as the convolutions that it has, one after the other: output channels, kernel, stride, padded.

    model = inception_v3(seed=0, input_size=299, width=1.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from mobilenet import CLASSES, FeatureMap, NormalisedNetwork
from onnx import ModelProto

Kernel: TypeAlias = int | tuple[int, int]
Layer: TypeAlias = tuple[int, Kernel] | tuple[int, Kernel, int]
"""Output channels and kernel of a padded convolution of stride 1; with a stride, one that is not padded."""

SMALLEST = 75
"""Pixels that the last reduction needs."""
ACROSS, DOWN = (1, 7), (7, 1)


def inception_v3(seed: int = 0, input_size: int = 299, width: float = 1.0) -> ModelProto:
    """
    Inception-v3 on 1x3xSxS images of `input_size` S; `width` scales the channels of every layer.

    Raises ValueError if the image is smaller than what its reductions need.
    """
    network = _Inception("inception_v3", seed, input_size, width)
    x = network.chain(network.image(3, input_size, input_size), "/stem", (32, 3, 2), (32, 3, 1), (64, 3))
    x = network.max_pooled(x, 3, 2, "/stem/pool1")
    x = network.chain(x, "/stem2", (80, 1), (192, 3, 1))
    x = network.max_pooled(x, 3, 2, "/stem/pool2")
    for number, features in enumerate((32, 64, 64)):
        branches: list[Sequence[Layer]] = [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]]
        x = network.block(x, f"/a{number}", branches, average=[(features, 1)])
    x = network.block(x, "/reduction_a", [[(384, 3, 2)], [(64, 1), (96, 3), (96, 3, 2)]], largest=True)
    for number, inner in enumerate((128, 160, 160, 192)):
        branches = [
            [(192, 1)],
            [(inner, 1), (inner, ACROSS), (192, DOWN)],
            [(inner, 1), (inner, DOWN), (inner, ACROSS), (inner, DOWN), (192, ACROSS)],
        ]
        x = network.block(x, f"/b{number}", branches, average=[(192, 1)])
    branches = [[(192, 1), (320, 3, 2)], [(192, 1), (192, ACROSS), (192, DOWN), (192, 3, 2)]]
    x = network.block(x, "/reduction_b", branches, largest=True)
    for number in range(2):
        scope = f"/c{number}"
        one = network.chain(x, f"{scope}/branch0", (320, 1))
        two = network.forked(network.chain(x, f"{scope}/branch1", (384, 1)), f"{scope}/branch1", 384)
        three = network.forked(network.chain(x, f"{scope}/branch2", (448, 1), (384, 3)), f"{scope}/branch2", 384)
        pooled = network.chain(network.average_pooled(x, scope), f"{scope}/pool", (192, 1))
        x = network.joined([one, *two, *three, pooled], scope)
    return network.classified(x, CLASSES)


def inception_v4(seed: int = 0, input_size: int = 299, width: float = 1.0) -> ModelProto:
    """Inception-v4, as `inception_v3`."""
    network = _Inception("inception_v4", seed, input_size, width)
    x = network.chain(network.image(3, input_size, input_size), "/stem", (32, 3, 2), (32, 3, 1), (64, 3))
    x = network.block(x, "/stem/1", [[(96, 3, 2)]], largest=True)
    x = network.block(x, "/stem/2", [[(64, 1), (96, 3, 1)], [(64, 1), (64, DOWN), (64, ACROSS), (96, 3, 1)]])
    x = network.block(x, "/stem/3", [[(192, 3, 2)]], largest=True)
    for number in range(4):
        branches: list[Sequence[Layer]] = [[(96, 1)], [(64, 1), (96, 3)], [(64, 1), (96, 3), (96, 3)]]
        x = network.block(x, f"/a{number}", branches, average=[(96, 1)])
    x = network.block(x, "/reduction_a", [[(384, 3, 2)], [(192, 1), (224, 3), (256, 3, 2)]], largest=True)
    for number in range(7):
        branches = [
            [(384, 1)],
            [(192, 1), (224, ACROSS), (256, DOWN)],
            [(192, 1), (192, ACROSS), (224, DOWN), (224, ACROSS), (256, DOWN)],
        ]
        x = network.block(x, f"/b{number}", branches, average=[(128, 1)])
    branches = [[(192, 1), (192, 3, 2)], [(256, 1), (256, ACROSS), (320, DOWN), (320, 3, 2)]]
    x = network.block(x, "/reduction_b", branches, largest=True)
    for number in range(3):
        scope = f"/c{number}"
        one = network.chain(x, f"{scope}/branch0", (256, 1))
        two = network.forked(network.chain(x, f"{scope}/branch1", (384, 1)), f"{scope}/branch1", 256)
        long = network.chain(x, f"{scope}/branch2", (384, 1), (448, (1, 3)), (512, (3, 1)))
        three = network.forked(long, f"{scope}/branch2", 256)
        pooled = network.chain(network.average_pooled(x, scope), f"{scope}/pool", (256, 1))
        x = network.joined([one, *two, *three, pooled], scope)
    return network.classified(x, CLASSES)


class _Inception(NormalisedNetwork):
    """Layers in branches, with their channels scaled."""

    def __init__(self, name: str, seed: int, input_size: int, width: float):
        if input_size < SMALLEST:
            raise ValueError(f"an image of {input_size} pixels is smaller than the {SMALLEST} that the network needs")
        super().__init__(name, seed)
        self.width = width

    def chain(self, x: FeatureMap, scope: str, *layers: Layer) -> FeatureMap:
        """Convolutions one after the other, each rectified."""
        for number, layer in enumerate(layers):
            at, stride = f"{scope}/{number}", layer[2] if len(layer) == 3 else None
            channels = max(8, int(layer[0] * self.width + 4) // 8 * 8)
            x = self.normalised(x, channels, layer[1], stride or 1, at, padded=stride is None)
            x = self.rectified(x, at)
        return x

    def forked(self, x: FeatureMap, scope: str, channels: int) -> list[FeatureMap]:
        """A row and a column of three, beside each other."""
        return [self.chain(x, f"{scope}/{name}", (channels, size)) for name, size in (("a", (1, 3)), ("b", (3, 1)))]

    def block(
        self,
        x: FeatureMap,
        scope: str,
        branches: Sequence[Sequence[Layer]],
        *,
        average: Sequence[Layer] = (),
        largest: bool = False,
    ) -> FeatureMap:
        """Branches joined, with one of the averages of windows and one of the largest of every other, if asked for."""
        found = [self.chain(x, f"{scope}/branch{number}", *layers) for number, layers in enumerate(branches)]
        if average:
            found.append(self.chain(self.average_pooled(x, scope), f"{scope}/pool", *average))
        if largest:
            found.append(self.max_pooled(x, 3, 2, scope))
        return self.joined(found, scope)
