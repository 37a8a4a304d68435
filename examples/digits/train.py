# SPDX-License-Identifier: Apache-2.0
"""
Trains the small convolutional network that the demonstration compiles, and exports it as ONNX.

The data are the 1,797 handwritten digits of 8 x 8 pixels that scikit-learn bundles (the test set
of the UCI "Optical Recognition of Handwritten Digits" data set), so nothing is downloaded. The
network is written in NumPy, one function forward and one backward, and trained with Adam; a seed
fixes the split, the initial weights and the batches. It writes four files beside this one, the first
two by way of links to those that `penstock demo` has:

- `digits.onnx`: conv 3x3 (1 -> 16, pad 1), relu, max_pool 2x2, conv 3x3 (16 -> 32, pad 1), relu,
  flatten, gemm (512 -> 10);
- `test_images.npz`: `images` f32 [360, 1, 8, 8] in [0, 1], which training never saw, and `labels`
  i64 [360];
- `training_images.npz`: `images` and `labels` of the 1,437 that it was trained on;
- `calibration_images.npz`: `image` f32 [128, 1, 8, 8], some of these.

Run it as `python examples/digits/train.py`; it takes well under a minute.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Weights = dict[str, Array]

SEED = 1
HELD_OUT = 360
EPOCHS = 40
BATCH = 32
CLASSES = 10
CHANNELS = (16, 32)
WANTED_ACCURACY = 0.97
CALIBRATION = 128
"""How many of the images to train on are written for calibration."""


def load() -> tuple[Array, Array, Array, Array]:
    """Images f32 [n, 1, 8, 8] in [0, 1] and labels [n], to train on and held out."""
    # Here, since the network and its gradients are of use without the data.
    from sklearn.datasets import load_digits

    digits = cast(Any, load_digits())
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order], labels[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def initial_weights() -> Weights:
    """He initialisation: normal with variance 2 / fan-in; biases zero."""
    rng = np.random.default_rng(SEED + 1)

    def normal(*shape: int) -> Array:
        return (rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:]))).astype(np.float32)

    first, second = CHANNELS
    return {
        "conv1.weight": normal(first, 1, 3, 3),
        "conv1.bias": np.zeros(first, np.float32),
        "conv2.weight": normal(second, first, 3, 3),
        "conv2.bias": np.zeros(second, np.float32),
        "fc.weight": normal(CLASSES, second * 16),
        "fc.bias": np.zeros(CLASSES, np.float32),
    }


def windows(x: Array) -> Array:
    """The 3x3 windows of `x` [n, c, h, w], padded by one: [n, h, w, c * 9]."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    view = sliding_window_view(padded, (3, 3), axis=(2, 3))
    return view.transpose(0, 2, 3, 1, 4, 5).reshape(*view.shape[:1], *x.shape[2:], -1)


def convolve(x: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """The convolution [n, c, h, w] -> [n, o, h, w], and the windows that its gradient needs."""
    columns = windows(x)
    out = columns @ weight.reshape(len(weight), -1).T + bias
    return out.transpose(0, 3, 1, 2), columns


def convolve_gradient(grad: Array, columns: Array, weight: Array) -> tuple[Array, Array, Array]:
    """The gradients of the input, weight and bias of `convolve`, from that of its result."""
    out, channels = weight.shape[:2]
    rows = grad.transpose(0, 2, 3, 1)
    of_weight = np.tensordot(rows, columns, axes=([0, 1, 2], [0, 1, 2])).reshape(weight.shape)
    turned = weight[:, :, ::-1, ::-1].transpose(1, 0, 2, 3).reshape(channels, out * 9)
    of_input = (windows(grad) @ turned.T).transpose(0, 3, 1, 2)
    return of_input, of_weight, rows.sum((0, 1, 2))


def forward(weights: Weights, images: Array) -> tuple[Array, dict[str, Array]]:
    """The scores [n, 10], and what `backward` needs."""
    first, columns1 = convolve(images, weights["conv1.weight"], weights["conv1.bias"])
    n, c, h, w = first.shape
    cells = np.maximum(first, 0).reshape(n, c, h // 2, 2, w // 2, 2)
    pooled = cells.max((3, 5))
    second, columns2 = convolve(pooled, weights["conv2.weight"], weights["conv2.bias"])
    flat = np.maximum(second, 0).reshape(n, -1)
    scores = flat @ weights["fc.weight"].T + weights["fc.bias"]
    return scores, {
        "columns1": columns1,
        "first": first,
        "cells": cells,
        "pooled": pooled,
        "columns2": columns2,
        "second": second,
        "flat": flat,
    }


def backward(weights: Weights, kept: dict[str, Array], scores: Array, labels: Array) -> Weights:
    """The gradient of the mean cross-entropy of softmax(scores)."""
    n = len(labels)
    exponents = np.exp(scores - scores.max(1, keepdims=True))
    grad = exponents / exponents.sum(1, keepdims=True)
    grad[np.arange(n), labels] -= 1
    grad /= n
    gradient: Weights = {"fc.weight": grad.T @ kept["flat"], "fc.bias": grad.sum(0)}
    second = (grad @ weights["fc.weight"]).reshape(kept["second"].shape) * (kept["second"] > 0)
    pooled, gradient["conv2.weight"], gradient["conv2.bias"] = convolve_gradient(
        second, kept["columns2"], weights["conv2.weight"]
    )
    largest = kept["cells"] == kept["pooled"][:, :, :, None, :, None]
    shared = largest / largest.sum((3, 5), keepdims=True)
    first = (shared * pooled[:, :, :, None, :, None]).reshape(kept["first"].shape)
    first = first * (kept["first"] > 0)
    _, gradient["conv1.weight"], gradient["conv1.bias"] = convolve_gradient(
        first, kept["columns1"], weights["conv1.weight"]
    )
    return gradient


def shifted(images: Array, rng: np.random.Generator) -> Array:
    """The images, each moved by at most one pixel either way: a digit stays a digit."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    places = sliding_window_view(padded, images.shape[2:], axis=(2, 3))
    down, right = rng.integers(0, 3, (2, len(images)))
    return places[np.arange(len(images)), :, down, right]


def train(images: Array, labels: Array) -> Weights:
    """Train with Adam (Kingma and Ba 2015) and a step size that falls as a half cosine."""
    weights = initial_weights()
    rng = np.random.default_rng(SEED + 2)
    means = {name: np.zeros_like(value) for name, value in weights.items()}
    squares = {name: np.zeros_like(value) for name, value in weights.items()}
    steps = EPOCHS * (len(images) // BATCH)
    step = 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(images))
        for start in range(0, len(images) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            scores, kept = forward(weights, shifted(images[chosen], rng))
            gradient = backward(weights, kept, scores, labels[chosen])
            rate = 2e-3 * 0.5 * (1 + np.cos(np.pi * step / steps))
            step += 1
            for name, slope in gradient.items():
                means[name] = 0.9 * means[name] + 0.1 * slope
                squares[name] = 0.999 * squares[name] + 0.001 * slope**2
                mean = means[name] / (1 - 0.9**step)
                square = squares[name] / (1 - 0.999**step)
                change = rate * mean / (np.sqrt(square) + 1e-8)
                weights[name] = (weights[name] - change).astype(np.float32)
    return weights


def export(weights: Weights, path: Path) -> None:
    """Write the network: input "image" f32 [1, 1, 8, 8], output "scores" f32 [1, 10]."""
    nodes = [
        helper.make_node(
            "Conv",
            ["image", "conv1.weight", "conv1.bias"],
            ["conv1"],
            name="conv1",
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
        ),
        helper.make_node("Relu", ["conv1"], ["relu1"], name="relu1"),
        helper.make_node("MaxPool", ["relu1"], ["pool1"], name="pool1", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node(
            "Conv",
            ["pool1", "conv2.weight", "conv2.bias"],
            ["conv2"],
            name="conv2",
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
        ),
        helper.make_node("Relu", ["conv2"], ["relu2"], name="relu2"),
        helper.make_node("Flatten", ["relu2"], ["flat"], name="flatten", axis=1),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["scores"], name="fc", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, producer_name="penstock-digits", opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)  # pyright: ignore[reportUnknownMemberType]
    path.write_bytes(model.SerializeToString())


def main() -> int:
    """Train, export and report; the status is 1 if the held-out accuracy is below the wanted."""
    parser = argparse.ArgumentParser(description="train the digits network and export it as ONNX")
    parser.add_argument("--output-dir", type=Path, default=Path(__file__).parent)
    folder: Path = parser.parse_args().output_dir
    folder.mkdir(parents=True, exist_ok=True)

    images, labels, held_images, held_labels = load()
    weights = train(images, labels)
    accuracy = float((forward(weights, held_images)[0].argmax(1) == held_labels).mean())
    export(weights, folder / "digits.onnx")
    np.savez_compressed(folder / "test_images.npz", images=held_images, labels=held_labels)
    np.savez_compressed(folder / "training_images.npz", images=images, labels=labels)
    np.savez_compressed(folder / "calibration_images.npz", image=images[:CALIBRATION])
    print(f"held-out accuracy {accuracy:.2%} on {len(held_labels)} images; wrote {folder}")
    return 0 if accuracy >= WANTED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
