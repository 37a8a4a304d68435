# SPDX-License-Identifier: Apache-2.0
"""
Networks whose operators may be executed in many orders, of seeded wiring and weights.

- `nasnet_like`: cells in the manner of NASNet (Zoph et al., "Learning Transferable Architectures", 2018): each of
  five blocks adds two operations on states drawn among the results of the two cells before and of earlier blocks;
  what nothing uses is concatenated.
- `randomly_wired`: one stage in the manner of RandWire (Xie et al., "Exploring Randomly Wired Neural Networks", 2019):
  a graph of Watts and Strogatz, each edge from the lower number to the higher; a node adds what comes in, rectifies
  and convolves it.
- `branches`: branches that widen and narrow again, written breadth first, as some exporters do.
"""

from __future__ import annotations

import random
from itertools import pairwise

from onnx import ModelProto
from onnx_builder import OnnxBuilder

OPSET = 17
_OPERATIONS = ("separable3", "separable5", "average_pool", "max_pool", "identity")


class _Maps:
    """Maps of one size: each value has its channels."""

    def __init__(self, name: str, seed: int, size: int):
        self.size = size
        self.model = OnnxBuilder(name, seed, OPSET)

    def conv(self, x: str, inputs: int, outputs: int, scope: str, kernel: int = 1, group: int = 1) -> str:
        shape = (outputs, inputs // group, kernel, kernel)
        filters = self.model.he_normal(shape, inputs // group * kernel * kernel)
        w = self.model.weight(f"{scope}.weight", filters)
        pads = [kernel // 2] * 4
        return self.model.node("Conv", [x, w], scope, kernel_shape=[kernel, kernel], pads=pads, group=group)

    def relu(self, x: str, scope: str) -> str:
        return self.model.node("Relu", [x], scope)

    def pool(self, operator: str, x: str, scope: str) -> str:
        return self.model.node(operator, [x], scope, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])

    def total(self, values: list[str], scope: str) -> str:
        found = values[0]
        for number, value in enumerate(values[1:]):
            found = self.model.node("Add", [found, value], f"{scope}/add.{number}")
        return found

    def finish(self, x: str, channels: int) -> ModelProto:
        self.model.output(x, (1, channels, self.size, self.size))
        return self.model.finish()


def nasnet_like(seed: int = 0, cells: int = 4, channels: int = 16, size: int = 16) -> ModelProto:
    """Cells one after the other, on maps of one size."""
    maps, draw = _Maps("nasnet_like", seed, size), random.Random(seed)
    image = maps.model.input("image", (1, 3, size, size))
    previous = (maps.conv(image, 3, channels, "/stem", 3), channels)
    states = (previous, previous)
    for number in range(cells):
        scope = f"/cell.{number}"
        cell = [
            maps.relu(maps.conv(value, wide, channels, f"{scope}/adjust.{place}"), f"{scope}/adjust.{place}")
            for place, (value, wide) in enumerate(states)
        ]
        used: set[int] = set()
        for block in range(5):
            parts: list[str] = []
            for side in range(2):
                chosen = draw.randrange(len(cell))
                used.add(chosen)
                where = f"{scope}/block.{block}.{side}"
                parts.append(_operation(maps, draw.choice(_OPERATIONS), cell[chosen], channels, where))
            cell.append(maps.total(parts, f"{scope}/block.{block}"))
        loose = [value for place, value in enumerate(cell) if place not in used]
        joined = maps.model.node("Concat", loose, scope, axis=1) if len(loose) > 1 else loose[0]
        states = (states[1], (joined, channels * len(loose)))
    return maps.finish(*states[1])


def _operation(maps: _Maps, name: str, x: str, channels: int, scope: str) -> str:
    match name:
        case "average_pool":
            return maps.pool("AveragePool", x, scope)
        case "max_pool":
            return maps.pool("MaxPool", x, scope)
        case "identity":
            return x
        case _:
            wide = maps.conv(x, channels, channels, f"{scope}/depthwise", int(name[-1]), channels)
            return maps.relu(maps.conv(wide, channels, channels, f"{scope}/pointwise"), scope)


def randomly_wired(seed: int = 0, nodes: int = 32, channels: int = 16, size: int = 16) -> ModelProto:
    """A ring whose nodes know their two neighbours on each side, each edge led elsewhere with probability 3/4."""
    maps, draw = _Maps("randomly_wired", seed, size), random.Random(seed)
    edges: set[tuple[int, int]] = set()
    for node in range(nodes):
        for distance in (1, 2):
            other = (node + distance) % nodes
            if draw.random() < 0.75:
                other = draw.choice([each for each in range(nodes) if each != node])
            edges.add((min(node, other), max(node, other)))
    image = maps.model.input("image", (1, channels, size, size))
    values: list[str] = []
    for node in range(nodes):
        inputs = [values[source] for source, target in sorted(edges) if target == node] or [image]
        x = maps.relu(maps.total(inputs, f"/node.{node}"), f"/node.{node}")
        depthwise = maps.conv(x, channels, channels, f"/node.{node}/depthwise", 3, channels)
        values.append(maps.conv(depthwise, channels, channels, f"/node.{node}/pointwise"))
    sinks = [value for node, value in enumerate(values) if all(source != node for source, _ in edges)]
    return maps.finish(maps.total(sinks, "/out"), channels)


def branches(seed: int = 0, count: int | None = None, channels: int = 8, size: int = 16) -> ModelProto:
    """Branches of four times and twice the channels, layer by layer, 4 to 7 by the seed; their results are added."""
    maps = _Maps("branches", seed, size)
    count = 4 + seed % 4 if count is None else count
    image = maps.model.input("image", (1, channels, size, size))
    values = [image] * count
    for layer, (inputs, outputs) in enumerate(pairwise((channels, 4 * channels, 2 * channels, channels))):
        values = [
            maps.relu(
                maps.conv(value, inputs, outputs, f"/branch.{number}/{layer}", 1 + 2 * (number % 4)),
                f"/branch.{number}/{layer}",
            )
            for number, value in enumerate(values)
        ]
    return maps.finish(maps.total(values, "/out"), channels)
