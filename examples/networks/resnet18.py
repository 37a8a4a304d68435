# SPDX-License-Identifier: Apache-2.0
"""
ResNet-18 for small images, in floats, for training: a first convolution of 3x3 without a pool behind it, and biases in
place of batch normalisation, as after folding it.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.

    model = resnet18(seed=0, input_size=32)
    pipeline = gradient_of(model)

`graph-gradient` then makes of it a program that takes an image and the adjoint of the scores, and returns the gradient
of every filter.
"""

from __future__ import annotations

from onnx import ModelProto
from onnx_builder import OnnxBuilder

OPSET = 17
STAGES = (64, 128, 256, 512)
"""Channels; each stage has two blocks, and all but the first halve the image."""


def resnet18(seed: int = 0, input_size: int = 32, width: int = 64, classes: int = 10, batch: int = 1) -> ModelProto:
    """Images Nx3xSxS of `input_size` S, a multiple of 8, and scores; `width` channels in the first stage."""
    if input_size % 8:
        raise ValueError(f"{input_size} pixels are no multiple of 8")
    model = OnnxBuilder("resnet18", seed, OPSET)

    def conv(x: str, inputs: int, outputs: int, kernel: int, stride: int, scope: str) -> str:
        weight = model.weight(
            f"{scope}.weight", model.he_normal((outputs, inputs, kernel, kernel), inputs * kernel * kernel)
        )
        bias = model.weight(f"{scope}.bias", model.near(outputs, 0.0, 0.1))
        pads = [kernel // 2] * 4
        return model.node("Conv", [x, weight, bias], scope, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)

    x = model.input("input", [batch, 3, input_size, input_size])
    x = model.node("Relu", [conv(x, 3, width, 3, 1, "/conv1")], "/conv1")
    channels = width
    for stage, wide in enumerate(width * each // STAGES[0] for each in STAGES):
        for block in range(2):
            scope, stride = f"/layer{stage + 1}.{block}", 2 if stage and not block else 1
            inner = model.node("Relu", [conv(x, channels, wide, 3, stride, f"{scope}/conv1")], f"{scope}/conv1")
            inner = conv(inner, wide, wide, 3, 1, f"{scope}/conv2")
            if stride > 1 or channels != wide:
                x = conv(x, channels, wide, 1, stride, f"{scope}/shortcut")
            x = model.node("Relu", [model.node("Add", [inner, x], f"{scope}/sum")], f"{scope}/sum")
            channels = wide
    x = model.node("Flatten", [model.node("GlobalAveragePool", [x], "/head")], "/head", axis=1)
    weight = model.weight("fc.weight", model.he_normal((classes, channels), channels))
    bias = model.weight("fc.bias", model.near(classes, 0.0, 0.1))
    model.output(model.node("Gemm", [x, weight, bias], "/fc", transB=1), [batch, classes])
    return model.finish()


def gradient_of(model: ModelProto) -> str:
    """The passes that make of an imported model the program of the gradients of its filters."""
    names = ",".join(f'"{each.name}"' for each in model.graph.initializer if each.name.endswith(".weight"))
    return f"graph-gradient{{wrt={names} replace=true}},cse,dce"
