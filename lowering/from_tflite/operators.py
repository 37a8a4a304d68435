# SPDX-License-Identifier: Apache-2.0
"""Operators of TensorFlow Lite, as those of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.lowering.from_tflite.model import TfliteOp, Unsupported

OPERATORS: dict[str, Callable[[TfliteOp], None]] = {}


def _takes(*names: str) -> Callable[[Callable[[TfliteOp], None]], Callable[[TfliteOp], None]]:
    def register(function: Callable[[TfliteOp], None]) -> Callable[[TfliteOp], None]:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return register


# Windows


def _pads(same: bool, size: int, extent: int, stride: int) -> tuple[int, int]:
    """Elements before and after a dimension."""
    total = max((math.ceil(size / stride) - 1) * stride + extent - size, 0) if same else 0
    return total // 2, total - total // 2


def _window(op: TfliteOp, options: Any, kernel: Sequence[int], dilations: Sequence[int]) -> dict[str, Any]:
    strides = [options.StrideH(), options.StrideW()]
    is_same = options.Padding() == op.model.tflite.Padding.SAME
    sides = [
        _pads(is_same, size, (extent - 1) * apart + 1, stride)
        for size, extent, apart, stride in zip(op.shape()[1:3], kernel, dilations, strides, strict=True)
    ]
    return {"strides": strides, "pads": [pair[side] for side in (0, 1) for pair in sides]}


def _convolution(op: TfliteOp, options: Any, perm: list[int], group: int, kernel: Sequence[int]) -> None:
    """Of images NHWC with filters that `perm` brings into the order OIHW."""
    model, dilations = op.model, [options.DilationHFactor(), options.DilationWFactor()]
    filters = model.add("Transpose", op.real(1), perm=perm)
    images = model.add("Transpose", op.real(), perm=[0, 3, 1, 2])
    bias = [op.real(2)] if op.has(2) else []
    window = _window(op, options, kernel, dilations)
    found = model.add("Conv", images, filters, *bias, group=group, dilations=dilations, **window)
    found = model.add("Transpose", found, perm=[0, 2, 3, 1])
    op.store(model.activated(found, options.FusedActivationFunction()))


@_takes("CONV_2D")
def _conv(op: TfliteOp) -> None:
    _, height, width, channels = op.shape(1)
    _convolution(op, op.options("Conv2DOptions"), [0, 3, 1, 2], op.shape()[3] // channels, [height, width])


@_takes("DEPTHWISE_CONV_2D")
def _depthwise(op: TfliteOp) -> None:
    """Filters are [1, H, W, outputs]: several for each channel, that stand beside each other."""
    _, height, width, _ = op.shape(1)
    _convolution(op, op.options("DepthwiseConv2DOptions"), [3, 0, 1, 2], op.shape()[3], [height, width])


@_takes("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(op: TfliteOp) -> None:
    options = op.options("Pool2DOptions")
    kernel = [options.FilterHeight(), options.FilterWidth()]
    images = op.model.add("Transpose", op.real(), perm=[0, 3, 1, 2])
    operator = "MaxPool" if op.word() == "MAX_POOL_2D" else "AveragePool"
    found = op.model.add(operator, images, kernel_shape=kernel, **_window(op, options, kernel, [1, 1]))
    found = op.model.add("Transpose", found, perm=[0, 2, 3, 1])
    op.store(op.model.activated(found, options.FusedActivationFunction()))


# Products


@_takes("FULLY_CONNECTED")
def _fully_connected(op: TfliteOp) -> None:
    model, options = op.model, op.options("FullyConnectedOptions")
    _, inner = op.shape(1)
    x = model.add("Reshape", op.real(), op.sizes([-1, inner]))
    bias = [op.real(2)] if op.has(2) else []
    found = model.add("Gemm", x, op.real(1), *bias, transB=1)
    found = model.add("Reshape", found, op.sizes(model.shape(op.outputs[0])))
    op.store(model.activated(found, options.FusedActivationFunction()))


@_takes("BATCH_MATMUL")
def _batch_matmul(op: TfliteOp) -> None:
    options, values = op.options("BatchMatMulOptions"), list[str]()
    for place, turned in ((0, options.AdjX()), (1, options.AdjY())):
        rank = len(op.shape(place))
        value = op.real(place)
        perm = [*range(rank - 2), rank - 1, rank - 2]
        values.append(op.model.add("Transpose", value, perm=perm) if turned else value)
    op.store(op.model.add("MatMul", *values))


# Elements

_BINARY = {
    "ADD": ("Add", "AddOptions"),
    "SUB": ("Sub", "SubOptions"),
    "MUL": ("Mul", "MulOptions"),
    "DIV": ("Div", "DivOptions"),
    "MAXIMUM": ("Max", ""),
    "MINIMUM": ("Min", ""),
    "POW": ("Pow", ""),
    "EQUAL": ("Equal", ""),
    "GREATER": ("Greater", ""),
    "GREATER_EQUAL": ("GreaterOrEqual", ""),
    "LESS": ("Less", ""),
    "LESS_EQUAL": ("LessOrEqual", ""),
    "LOGICAL_AND": ("And", ""),
    "LOGICAL_OR": ("Or", ""),
}
_UNARY = {
    "ABS": "Abs", "CEIL": "Ceil", "COS": "Cos", "EXP": "Exp", "FLOOR": "Floor", "HARD_SWISH": "HardSwish", "LOG": "Log",
    "LOGICAL_NOT": "Not", "LOGISTIC": "Sigmoid", "NEG": "Neg", "RELU": "Relu", "SIN": "Sin", "SQRT": "Sqrt",
    "TANH": "Tanh", "DEQUANTIZE": "Identity", "QUANTIZE": "Identity",
}  # fmt: skip


@_takes(*_BINARY)
def _binary(op: TfliteOp) -> None:
    operator, options = _BINARY[op.word()]
    found = op.model.add(operator, op.real(0), op.real(1))
    op.store(op.model.activated(found, op.options(options).FusedActivationFunction()) if options else found)


@_takes(*_UNARY)
def _unary(op: TfliteOp) -> None:
    found = op.real()
    if op.model.dtype(op.inputs[0]) == np.float16:
        # Weights that are kept in halves.
        found = op.model.add("Cast", found, to=1)
    op.store(op.model.add(_UNARY[op.word()], found))


@_takes("SQUARE", "RSQRT", "RELU6", "RELU_N1_TO_1", "LEAKY_RELU", "GELU")
def _functions(op: TfliteOp) -> None:
    name, x, model = op.word(), op.real(), op.model
    match name:
        case "SQUARE":
            found = model.add("Mul", x, x)
        case "RSQRT":
            found = model.add("Reciprocal", model.add("Sqrt", x))
        case "LEAKY_RELU":
            found = model.add("LeakyRelu", x, alpha=op.options("LeakyReluOptions").Alpha())
        case "GELU":
            found = model.add("Gelu", x, approximate="tanh" if op.options("GeluOptions").Approximate() else "none")
        case _:
            found = model.activated(x, 3 if name == "RELU6" else 2)
    op.store(found)


@_takes("SOFTMAX")
def _softmax(op: TfliteOp) -> None:
    factor = op.model.constant(np.array(op.options("SoftmaxOptions").Beta(), np.float32))
    op.store(op.model.add("Softmax", op.model.add("Mul", op.real(), factor), axis=-1))


@_takes("CAST")
def _cast(op: TfliteOp) -> None:
    from onnx import helper

    number = helper.np_dtype_to_tensor_dtype(op.model.dtype(op.outputs[0]))
    op.model.add("Cast", op.model.name(op.inputs[0]), output=op.model.name(op.outputs[0]), to=number)


@_takes("SELECT_V2", "SELECT")
def _select(op: TfliteOp) -> None:
    op.store(op.model.add("Where", op.model.name(op.inputs[0]), op.real(1), op.real(2)))


# Places


@_takes("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def _reshape(op: TfliteOp) -> None:
    op.move("Reshape", op.sizes(op.model.shape(op.outputs[0])))


@_takes("TRANSPOSE")
def _transpose(op: TfliteOp) -> None:
    op.move("Transpose", perm=[int(each) for each in op.known(1, "an order")])


@_takes("CONCATENATION")
def _concatenation(op: TfliteOp) -> None:
    options = op.options("ConcatenationOptions")
    if options.FusedActivationFunction():
        raise Unsupported("with an activation")
    op.move("Concat", places=range(len(op.inputs)), axis=options.Axis())


@_takes("PACK")
def _pack(op: TfliteOp) -> None:
    axis, model = op.options("PackOptions").Axis(), op.model
    shape = model.shape(op.outputs[0])
    axis = axis % len(shape)
    one = op.sizes([1 if dim == axis else size for dim, size in enumerate(shape)])
    parts = [model.add("Reshape", model.real(index), one) for index in op.inputs]
    op.store(model.add("Concat", *parts, axis=axis))


@_takes("PAD", "PADV2", "MIRROR_PAD")
def _pad(op: TfliteOp) -> None:
    widths = op.known(1, "widths").astype(np.int64)
    pads = op.sizes(widths.T.ravel())
    if op.word() == "MIRROR_PAD":
        if op.options("MirrorPadOptions").Mode() != op.model.tflite.MirrorPadMode.REFLECT:
            raise Unsupported("that repeats the border")
        op.move("Pad", pads, mode="reflect")
        return
    value = [op.real(2)] if op.has(2) else []
    op.store(op.model.add("Pad", op.real(), pads, *value))


@_takes("SLICE", "STRIDED_SLICE")
def _slice(op: TfliteOp) -> None:
    shape = op.shape()
    begin = [int(each) for each in op.known(1, "a beginning")]
    if op.word() == "SLICE":
        sizes = [int(each) for each in op.known(2, "sizes")]
        end = [extent if size < 0 else first + size for first, size, extent in zip(begin, sizes, shape, strict=True)]
        steps = [1] * len(begin)
    else:
        options = op.options("StridedSliceOptions")
        if options.EllipsisMask() or options.NewAxisMask():
            raise Unsupported("with an ellipsis or a new dimension")
        end, steps = ([int(each) for each in op.known(place, "a slice")] for place in (2, 3))
        for dim, step in enumerate(steps):
            if options.BeginMask() >> dim & 1:
                begin[dim] = 0 if step > 0 else shape[dim] - 1
            if options.EndMask() >> dim & 1:
                end[dim] = shape[dim] if step > 0 else -shape[dim] - 1
            if options.ShrinkAxisMask() >> dim & 1:
                end[dim], steps[dim] = begin[dim] + 1 if begin[dim] != -1 else shape[dim], 1
    axes = range(len(begin))
    parts = [op.sizes(each) for each in (begin, end, list(axes), steps)]
    found = op.model.add("Slice", op.real(), *parts)
    op.store(op.model.add("Reshape", found, op.sizes(op.model.shape(op.outputs[0]))))


@_takes("SHAPE")
def _shape(op: TfliteOp) -> None:
    index = op.outputs[0]
    op.model.initializers[op.model.name(index)] = np.array(op.shape(), op.model.dtype(index))


@_takes("GATHER")
def _gather(op: TfliteOp) -> None:
    options = op.options("GatherOptions")
    if options.BatchDims():
        raise Unsupported("with dimensions of a batch")
    op.model.add(
        "Gather",
        op.model.name(op.inputs[0]),
        op.model.name(op.inputs[1]),
        output=op.model.name(op.outputs[0]),
        axis=options.Axis(),
    )


_REDUCTIONS = {"MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin"}


@_takes(*_REDUCTIONS)
def _reduce(op: TfliteOp) -> None:
    keep = int(op.options("ReducerOptions").KeepDims())
    op.store(op.model.add(_REDUCTIONS[op.word()], op.real(), op.sizes(op.known(1, "axes").ravel()), keepdims=keep))
