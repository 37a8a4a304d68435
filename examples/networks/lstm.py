# SPDX-License-Identifier: Apache-2.0
"""
Stacked LSTMs with seeded weights and a score for each class from the last step.

Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, as PyTorch's exporter writes `nn.LSTM` and `nn.Linear`:
sequences lead, an LSTM node a layer with initial states of zeros, its directions joined by Squeeze, or by Transpose
and Reshape where there are two, Gather of the last step, Gemm.

Weights into the gates have variance 1 / fan_in, those of the recurrence half of it, so that states neither vanish nor
saturate over the steps; the bias of the forget gate is near 1 (Jozefowicz et al., 2015).

    model = lstm(seed=0, batch="batch", bidirectional=True)
"""

from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto
from onnx_builder import OnnxBuilder

OPSET = 14
GATES = 4
FORGET = 2
"""ONNX orders the gates input, output, forget, cell."""


def lstm(
    seed: int = 0,
    *,
    layers: int = 2,
    sequence: int = 32,
    features: int = 64,
    hidden: int = 128,
    batch: int | str = 1,
    bidirectional: bool = False,
    classes: int = 10,
) -> ModelProto:
    """
    `layers` LSTMs on sequences of `sequence` x `batch` x `features`, and `classes` scores of the last step.

    `batch` may be a name: a symbolic dimension.
    """
    builder = OnnxBuilder("lstm", seed, OPSET)
    x, width = builder.input("input", [sequence, batch, features]), features
    for layer in range(layers):
        x = _layer(builder, x, width, hidden, batch, bidirectional, f"/lstm.{layer}")
        width = hidden * (2 if bidirectional else 1)
    last = builder.node("Gather", [x, builder.constant(np.array(-1))], axis=0)
    weight = builder.weight("linear.weight", builder.normal((classes, width), math.sqrt(4.0 / width)))
    bias = builder.weight("linear.bias", builder.near(classes, 0.0, 0.1))
    scores = builder.node("Gemm", [last, weight, bias], "/linear", alpha=1.0, beta=1.0, transB=1)
    builder.output(scores, [batch, classes])
    return builder.finish()


def _layer(
    builder: OnnxBuilder, x: str, width: int, hidden: int, batch: int | str, bidirectional: bool, scope: str
) -> str:
    """One LSTM: from sequence x batch x width to sequence x batch x directions * hidden."""
    directions, name = (2 if bidirectional else 1), scope.strip("/")
    gates = GATES * hidden
    weight = builder.normal((directions, gates, width), math.sqrt(1.0 / width))
    recurrence = builder.normal((directions, gates, hidden), math.sqrt(0.5 / hidden))
    bias = builder.near((directions, 2 * gates), 0.0, 0.1)
    bias[:, FORGET * hidden : (FORGET + 1) * hidden] += 1.0
    given = [builder.weight(f"{name}.{part}", a) for part, a in (("W", weight), ("R", recurrence), ("B", bias))]
    states = [_zeros(builder, x, directions, hidden, batch, scope) for _ in ("h", "c")]
    direction = {"direction": "bidirectional"} if bidirectional else {}
    output, _, _ = builder.nodes("LSTM", [x, *given, "", *states], 3, scope, hidden_size=hidden, **direction)
    if not bidirectional:
        return builder.node("Squeeze", [output, builder.constant([1], scope)], scope)
    apart = builder.node("Transpose", [output], scope, perm=[0, 2, 1, 3])
    return builder.node("Reshape", [apart, builder.constant([0, 0, -1], scope)], scope)


def _zeros(builder: OnnxBuilder, x: str, directions: int, hidden: int, batch: int | str, scope: str) -> str:
    """The initial state: directions x batch x hidden zeros, as many as the batch of `x` says if it is symbolic."""
    if isinstance(batch, int):
        return builder.constant(np.zeros((directions, batch, hidden), np.float32), scope)
    index = builder.constant(np.array(1), scope)
    size = builder.node("Gather", [builder.node("Shape", [x], scope), index], scope, axis=0)
    parts = [
        builder.constant([directions], scope),
        builder.node("Unsqueeze", [size, builder.constant([0], scope)], scope),
        builder.constant([hidden], scope),
    ]
    return builder.node("ConstantOfShape", [builder.node("Concat", parts, scope, axis=0)], scope)
