# SPDX-License-Identifier: Apache-2.0
"""
Transformer encoder layers with seeded weights, the shape of BERT-base by default.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018. The graph is
what PyTorch's exporter writes for the encoder of a published implementation, in operators that are older than
attention: projections as MatMul and Add (bias first), heads by Reshape and Transpose, scores divided by the root of
the head's size, an additive mask, Softmax; layer normalisation as ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div,
Mul, Add, and gelu by Erf. With a symbolic batch the shapes of the Reshapes are computed by Shape, Gather, Unsqueeze
and Concat, as exporters do.

Projections into scores have variance 1 / fan_in, so that scores are about standard normal and attention is neither
flat nor a choice of one token; the others are He-normal.

    model = bert(seed=0, layers=12)
    model = bert(seed=0, batch="batch", layer_norm_op=True, gelu_op=True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto
from onnx_builder import OnnxBuilder

OPSET = 14
LAYER_NORM_OPSET = 17
"""The first operator set with LayerNormalization."""
GELU_OPSET = 20
"""The first operator set with Gelu."""
AXES_INPUT_OPSET = 18
"""From here on, the axes of ReduceMean are an input."""
EPSILON = 1e-12


@dataclass(frozen=True)
class _Shape:
    """The sizes of the layers, and which operators spell them."""

    batch: int | str
    sequence: int
    hidden: int
    heads: int
    feed_forward: int
    layer_norm_op: bool
    gelu_op: bool


def bert(
    seed: int = 0,
    *,
    layers: int = 1,
    batch: int | str = 1,
    sequence: int = 128,
    hidden: int = 768,
    heads: int = 12,
    feed_forward: int = 3072,
    layer_norm_op: bool = False,
    gelu_op: bool = False,
) -> ModelProto:
    """
    `layers` encoder layers on hidden states of `batch` x `sequence` x `hidden` and a mask that is added to scores.

    `batch` may be a name: a symbolic dimension. `layer_norm_op` writes LayerNormalization (operator set 17) and
    `gelu_op` Gelu (operator set 20) instead of their parts.
    Raises ValueError if the heads do not divide the hidden size.
    """
    if hidden % heads:
        raise ValueError(f"{heads} heads do not divide a hidden size of {hidden}")
    shape = _Shape(batch, sequence, hidden, heads, feed_forward, layer_norm_op, gelu_op)
    opset = GELU_OPSET if gelu_op else LAYER_NORM_OPSET if layer_norm_op else OPSET
    builder = OnnxBuilder("bert", seed, opset)
    states = builder.input("hidden_states", [batch, sequence, hidden])
    mask = builder.input("attention_mask", [batch, 1, 1, sequence])
    for index in range(layers):
        states = _Layer(builder, shape, f"/layer.{index}").build(states, mask)
    builder.output(states, [batch, sequence, hidden])
    return builder.finish()


@dataclass(frozen=True)
class _Layer:
    """One encoder layer."""

    builder: OnnxBuilder
    shape: _Shape
    scope: str

    def build(self, states: str, mask: str) -> str:
        """Attention, then the feed-forward network, each added to its input and normalised."""
        attended = self.attention(states, mask)
        middle = self.normalised(self.add(attended, states, "/attention/output"), "/attention/output/LayerNorm")
        wide = self.projected(middle, self.shape.hidden, self.shape.feed_forward, 2.0, "/intermediate/dense")
        active = self.gelu(wide, "/intermediate/act")
        narrow = self.projected(active, self.shape.feed_forward, self.shape.hidden, 2.0, "/output/dense")
        return self.normalised(self.add(narrow, middle, "/output"), "/output/LayerNorm")

    def attention(self, states: str, mask: str) -> str:
        """Softmax(Q K^T / sqrt(size of a head) + mask) V of each head, projected."""
        builder, scope, hidden = self.builder, f"{self.scope}/attention/self", self.shape.hidden
        query, key, value = (
            self.split(self.projected(states, hidden, hidden, gain, f"/attention/self/{part}"), perm)
            for part, gain, perm in (
                ("query", 1.0, [0, 2, 1, 3]),
                ("key", 1.0, [0, 2, 3, 1]),
                ("value", 2.0, [0, 2, 1, 3]),
            )
        )
        products = builder.node("MatMul", [query, key], scope)
        root = builder.constant(math.sqrt(hidden // self.shape.heads), scope)
        scores = builder.node("Add", [builder.node("Div", [products, root], scope), mask], scope)
        weights = builder.node("Softmax", [scores], scope, axis=-1)
        context = builder.node("MatMul", [weights, value], scope)
        joined = builder.node("Transpose", [context], scope, perm=[0, 2, 1, 3])
        flat = builder.node("Reshape", [joined, self.target(joined, [hidden])], scope)
        return self.projected(flat, hidden, hidden, 2.0, "/attention/output/dense")

    def split(self, states: str, perm: list[int]) -> str:
        """States of the whole width as heads."""
        scope, heads = f"{self.scope}/attention/self", self.shape.heads
        target = self.target(states, [heads, self.shape.hidden // heads])
        apart = self.builder.node("Reshape", [states, target], scope)
        return self.builder.node("Transpose", [apart], scope, perm=perm)

    def target(self, value: str, inner: list[int]) -> str:
        """The shape batch x sequence x `inner` for a Reshape of `value`, whose first dimension is the batch."""
        builder, scope = self.builder, f"{self.scope}/attention/self"
        if isinstance(self.shape.batch, int):
            return builder.constant([self.shape.batch, self.shape.sequence, *inner], scope)
        index = builder.constant(np.array(0), scope)
        batch = builder.node("Gather", [builder.node("Shape", [value], scope), index], scope, axis=0)
        first = builder.node("Unsqueeze", [batch, builder.constant([0], scope)], scope)
        rest = builder.constant([self.shape.sequence, *inner], scope)
        return builder.node("Concat", [first, rest], scope, axis=0)

    def projected(self, x: str, fan_in: int, fan_out: int, gain: float, part: str) -> str:
        """x W + b, with W of variance gain / fan_in; the exporter puts the bias first."""
        builder, scope = self.builder, f"{self.scope}{part}"
        name = scope.strip("/").replace("/", ".")
        weight = builder.weight(f"{name}.weight", builder.normal((fan_in, fan_out), math.sqrt(gain / fan_in)))
        bias = builder.weight(f"{name}.bias", builder.near(fan_out, 0.0, 0.1))
        return builder.node("Add", [bias, builder.node("MatMul", [x, weight], scope)], scope)

    def add(self, a: str, b: str, part: str) -> str:
        return self.builder.node("Add", [a, b], f"{self.scope}{part}")

    def normalised(self, x: str, part: str) -> str:
        """The layer normalisation over the last dimension."""
        builder, scope = self.builder, f"{self.scope}{part}"
        name = scope.strip("/").replace("/", ".")
        weight = builder.weight(f"{name}.weight", builder.near(self.shape.hidden, 1.0, 0.3))
        bias = builder.weight(f"{name}.bias", builder.near(self.shape.hidden, 0.0, 0.2))
        if self.shape.layer_norm_op:
            return builder.node("LayerNormalization", [x, weight, bias], scope, axis=-1, epsilon=EPSILON)
        centred = builder.node("Sub", [x, self.mean(x, scope)], scope)
        squares = builder.node("Pow", [centred, builder.constant(2.0, scope)], scope)
        shifted = builder.node("Add", [self.mean(squares, scope), builder.constant(EPSILON, scope)], scope)
        normal = builder.node("Div", [centred, builder.node("Sqrt", [shifted], scope)], scope)
        return builder.node("Add", [builder.node("Mul", [normal, weight], scope), bias], scope)

    def mean(self, x: str, scope: str) -> str:
        """The mean over the last dimension, which stays with a size of 1."""
        builder = self.builder
        if builder.opset < AXES_INPUT_OPSET:
            return builder.node("ReduceMean", [x], scope, axes=[-1], keepdims=1)
        return builder.node("ReduceMean", [x, builder.constant([-1], scope)], scope, keepdims=1)

    def gelu(self, x: str, part: str) -> str:
        """x * (1 + erf(x / sqrt 2)) / 2."""
        builder, scope = self.builder, f"{self.scope}{part}"
        if self.shape.gelu_op:
            return builder.node("Gelu", [x], scope, approximate="none")
        scaled = builder.node("Div", [x, builder.constant(math.sqrt(2.0), scope)], scope)
        shifted = builder.node("Add", [builder.node("Erf", [scaled], scope), builder.constant(1.0, scope)], scope)
        product = builder.node("Mul", [x, shifted], scope)
        return builder.node("Mul", [product, builder.constant(0.5, scope)], scope)
