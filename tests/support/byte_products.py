# SPDX-License-Identifier: Apache-2.0
"""Products of bytes whose sums are the same on every CPU: random factors, and convolutions in wide integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def byte_factors(rng: np.random.Generator, dtype: Any, shape: Sequence[int]) -> Array:
    """
    Random right factors of a type of bytes: all of uint8, and int8 of 7 bits, since on CPUs without instructions for
    products of bytes onnxruntime adds two of them, uint8 by int8, in 16 bits, which saturate.
    """
    low, high = (-64, 63) if dtype == np.int8 else (0, 255)
    return rng.integers(low, high + 1, shape).astype(dtype)


def convolved(
    x: Array,
    w: Array,
    *,
    group: int = 1,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
) -> Array:
    """A convolution in the type of the operands, such as int64 or f64, written out; `pads` are of zeros."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    parts = [
        np.einsum("nchwij,ocij->nohw", each, filters)
        for each, filters in zip(np.split(windows, group, axis=1), np.split(w, group), strict=True)
    ]
    return np.concatenate(parts, axis=1)
