# SPDX-License-Identifier: Apache-2.0
"""
The operators of this folder in NumPy, and the sizes that they are compared at: the last of each divides nothing.

`OPERATORS` names each kernel with its file, its sizes and its reference, which takes the kernel's arguments in order
and computes in float64 where the kernel does in f32.
"""

# Lambdas on arrays of any type say more than typed functions would.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Sizes = Mapping[str, int]

_VECTORS: Sequence[Sizes] = ({"N": 64}, {"N": 1024}, {"N": 77})
_MATRICES: Sequence[Sizes] = ({"N": 16, "M": 32}, {"N": 64, "M": 128}, {"N": 13, "M": 37})
_IMAGES: Sequence[Sizes] = ({"H": 8, "W": 8, "C": 16}, {"H": 16, "W": 16, "C": 32}, {"H": 11, "W": 9, "C": 7})
_PRODUCTS: Sequence[Sizes] = (
    {"N": 16, "M": 16, "K": 32},
    {"N": 64, "M": 48, "K": 64},
    {"N": 13, "M": 19, "K": 23},
)


@dataclass(frozen=True)
class Operator:
    """A kernel of a file, what it computes in NumPy, and the sizes to compare at."""

    file: str
    name: str
    reference: Callable[..., Array | tuple[Array, ...]]
    sizes: Sequence[Sizes]


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _softmax(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def _layer_norm(x: Array, gain: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + bias


def _local_response(x: Array) -> Array:
    padded = np.pad(x * x, ((0, 0), (2, 2)))
    squares = sum(padded[:, k : k + x.shape[1]] for k in range(5))
    return x / (1 + 1e-4 / 5 * squares) ** 0.75


def _top_k(x: Array) -> tuple[Array, Array]:
    places = np.argsort(-x, kind="stable")[:3]
    return x[places], places


def _windows(x: Array, window: tuple[int, int], stride: int, pads: int, dilation: int = 1, pad: float = 0) -> Array:
    """The windows of an image [H, W, C]: [rows, columns, R, Q, C]."""
    x = np.pad(x, ((pads, pads), (pads, pads), (0, 0)), constant_values=pad)
    rows, columns = ((x.shape[d] - dilation * (window[d] - 1) - 1) // stride + 1 for d in (0, 1))
    found = np.empty((rows, columns, *window, x.shape[2]), x.dtype)
    for r in range(window[0]):
        for q in range(window[1]):
            at = x[r * dilation :, q * dilation :]
            found[:, :, r, q] = at[: stride * rows : stride, : stride * columns : stride]
    return found


def _conv(x: Array, w: Array, stride: int = 1, pads: int = 1, dilation: int = 1) -> Array:
    return np.einsum("ijrqc,rqco->ijo", _windows(x, (w.shape[0], w.shape[1]), stride, pads, dilation), w)


def _conv1d_padded(x: Array, w: Array) -> Array:
    length = x.shape[0] - w.shape[0] + 1
    return sum((x[r : r + length] @ w[r] for r in range(w.shape[0])), np.zeros((length, w.shape[2])))


def _depthwise(x: Array, w: Array, b: Array) -> Array:
    return np.maximum(np.einsum("ijrqc,rqc->ijc", _windows(x, (w.shape[0], w.shape[1]), 1, 1), w) + b, 0)


def _attention(q: Array, k: Array, v: Array) -> Array:
    return _softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])) @ v


def _lstm_cell(x: Array, h: Array, c: Array, w: Array, u: Array, b: Array) -> tuple[Array, Array]:
    i, f, g, o = x @ w + h @ u + b[:, None]
    cell = _logistic(f) * c + _logistic(i) * np.tanh(g)
    return _logistic(o) * np.tanh(cell), cell


def _gru_cell(x: Array, h: Array, w: Array, u: Array) -> Array:
    new, old = x @ w, h @ u
    update, reset = _logistic(new[0] + old[0]), _logistic(new[1] + old[1])
    return (1 - update) * np.tanh(new[2] + reset * old[2]) + update * h


def _narrow(x: Array) -> Array:
    return np.clip(np.rint(x), -128, 127).astype(np.int8)


def _quantized_matmul(a: Array, b: Array, scale: Array) -> Array:
    return _narrow((a.astype(np.int32) @ b.astype(np.int32)).astype(np.float32) * scale)


_VECTOR_OPERATORS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "negate": ("elementwise", np.negative),
    "absolute": ("elementwise", np.abs),
    "scale": ("elementwise", np.multiply),
    "logarithm": ("elementwise", np.log),
    "exponential": ("elementwise", np.exp),
    "square_root": ("elementwise", np.sqrt),
    "square": ("elementwise", np.square),
    "inverse": ("elementwise", np.reciprocal),
    "minimum": ("elementwise", np.minimum),
    "maximum": ("elementwise", np.maximum),
    "clip": ("elementwise", lambda x, low, high: np.maximum(low, np.minimum(x, high))),
    "dropout": ("elementwise", lambda x, kept, share: np.where(kept, x / share, 0)),
    "relu": ("activations", lambda x: np.maximum(x, 0)),
    "leaky_relu": ("activations", lambda x: np.where(x < 0, 0.01 * x, x)),
    "elu": ("activations", lambda x: np.where(x < 0, np.expm1(x), x)),
    "sigmoid": ("activations", _logistic),
    "hyperbolic_tangent": ("activations", np.tanh),
    "gelu": ("activations", _gelu),
    "silu": ("activations", lambda x: x * _logistic(x)),
    "softplus": ("activations", lambda x: np.logaddexp(x, 0)),
    "hard_swish": ("activations", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "vector_sum": ("reductions", np.sum),
    "l1_norm": ("reductions", lambda x: np.abs(x).sum()),
    "l2_norm": ("reductions", lambda x: np.sqrt((x * x).sum())),
    "top_k": ("reductions", _top_k),
    "quantize": ("products", lambda x, scale: _narrow(x / scale)),
    "dequantize": ("products", lambda x, scale: x.astype(np.float32) * scale),
}
_MATRIX_OPERATORS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "add": ("elementwise", np.add),
    "subtract": ("elementwise", np.subtract),
    "multiply": ("elementwise", np.multiply),
    "divide": ("elementwise", np.divide),
    "add_bias": ("elementwise", np.add),
    "softmax": ("normalisations", _softmax),
    "log_softmax": ("normalisations", lambda x: np.log(_softmax(x))),
    "layer_norm": ("normalisations", _layer_norm),
    "rms_norm": ("normalisations", lambda x, gain: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain),
    "l2_normalize": ("normalisations", lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True))),
    "row_max": ("reductions", lambda x: x.max(1)),
    "row_mean": ("reductions", lambda x: x.mean(1)),
    "row_product": ("reductions", lambda x: x.prod(1)),
    "arg_max": ("reductions", lambda x: x.argmax(1)),
    "log_sum_exp": ("reductions", lambda x: np.logaddexp.reduce(x, axis=1)),
    "any_negative": ("reductions", lambda x: (x < 0).any(1)),
    "cumulative_sum": ("reductions", lambda x: x.cumsum(0)),
    "outer": ("products", np.outer),
    "transpose": ("shapes", np.transpose),
    "pad": ("shapes", lambda x: np.pad(x, 1)),
}
_PRODUCT_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "matmul": np.matmul,
    "matmul_transposed": lambda a, b: a @ b.T,
    "matmul_bias_gelu": lambda a, b, bias: _gelu(a @ b + bias),
    "matmul_half": lambda a, b: (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16),
    "quantized_matmul": _quantized_matmul,
}


def _with(sizes: Sequence[Sizes], **more: int) -> list[Sizes]:
    return [{**each, **more} for each in sizes]


_CHANNELS = ({"N": 16, "C": 32}, {"N": 64, "C": 64}, {"N": 13, "C": 9})
_HEADS = ({"H": 2, "S": 32, "D": 16}, {"H": 4, "S": 64, "D": 32}, {"H": 3, "S": 23, "D": 7})
_FILTERS = [{**image, "R": 3, "Q": 3, "O": o} for image, o in zip(_IMAGES, (16, 32, 5), strict=True)]

OPERATORS: Sequence[Operator] = (
    *(Operator(file, name, reference, _VECTORS) for name, (file, reference) in _VECTOR_OPERATORS.items()),
    *(Operator(file, name, reference, _MATRICES) for name, (file, reference) in _MATRIX_OPERATORS.items()),
    *(Operator("products", name, reference, _PRODUCTS) for name, reference in _PRODUCT_OPERATORS.items()),
    Operator(
        "products",
        "matmul_tiles",
        np.matmul,
        [{**_PRODUCTS[0], "BK": 32}, {**_PRODUCTS[1], "BN": 16, "BM": 48, "BK": 64}, _PRODUCTS[2]],
    ),
    Operator("products", "batch_matmul", np.matmul, _with(_PRODUCTS, B=3)),
    Operator("products", "matrix_vector", np.matmul, [{"N": s["N"], "K": s["K"]} for s in _PRODUCTS]),
    Operator(
        "normalisations",
        "batch_norm",
        lambda x, mean, variance, gain, bias: (x - mean) * (gain / np.sqrt(variance + 1e-5)) + bias,
        _CHANNELS,
    ),
    Operator("normalisations", "local_response", _local_response, _CHANNELS),
    Operator("windows", "max_pool", lambda x: _windows(x, (3, 3), 2, 1, pad=-np.inf).max((2, 3)), _IMAGES),
    Operator("windows", "average_pool", lambda x: _windows(x, (2, 2), 2, 0).mean((2, 3)), _IMAGES),
    Operator("windows", "global_average_pool", lambda x: x.mean((0, 1)), _IMAGES),
    Operator(
        "windows",
        "conv1d",
        lambda x, w: _conv1d_padded(np.pad(x, ((1, 1), (0, 0))), w),
        [{"L": 32, "C": 16, "R": 3, "O": 16}, {"L": 64, "C": 32, "R": 5, "O": 32}, {"L": 19, "C": 7, "R": 3, "O": 5}],
    ),
    Operator("windows", "conv2d", lambda x, w, b: _conv(x, w) + b, _FILTERS),
    Operator(
        "windows",
        "pointwise",
        np.matmul,
        [{**image, "O": o} for image, o in zip(_IMAGES, (16, 32, 5), strict=True)],
    ),
    Operator("windows", "depthwise", _depthwise, _with(_IMAGES, R=3, Q=3)),
    Operator("windows", "dilated", lambda x, w: _conv(x, w, 1, 0, 2), _FILTERS),
    Operator(
        "normalisations",
        "softmax_half",
        _softmax,
        [{**each, "B": block} for each, block in zip(_MATRICES, (16, 64, 13), strict=True)],
    ),
    Operator("sequences", "attention", _attention, _HEADS),
    Operator(
        "sequences",
        "attention_half",
        _attention,
        [{**each, "BQ": block, "BK": block} for each, block in zip(_HEADS, (32, 64, 23), strict=True)],
    ),
    Operator(
        "sequences",
        "lstm_cell",
        _lstm_cell,
        ({"B": 4, "I": 16, "J": 16}, {"B": 16, "I": 64, "J": 32}, {"B": 3, "I": 11, "J": 7}),
    ),
    Operator(
        "sequences",
        "gru_cell",
        _gru_cell,
        ({"B": 4, "I": 16, "J": 16}, {"B": 16, "I": 64, "J": 32}, {"B": 3, "I": 11, "J": 7}),
    ),
    Operator(
        "shapes",
        "concatenate",
        lambda a, b: np.concatenate([a, b]),
        ({"N": 16, "M": 16, "C": 32}, {"N": 64, "M": 32, "C": 64}, {"N": 5, "M": 3, "C": 7}),
    ),
    Operator("shapes", "resize_nearest", lambda x: x.repeat(2, 0).repeat(2, 1), _IMAGES),
)
