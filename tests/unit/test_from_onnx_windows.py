"""Windows that are padded so that their number is given, or end out of bounds, agree with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import LEVELS, agree

from penstock.dialects.weights import Array


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-3, 3, shape).astype(np.float32)


OVERHANGING: list[dict[str, Any]] = [
    {"kernel_shape": [3, 2], "strides": [2, 3]},
    {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [2, 3], "strides": [2, 2], "dilations": [2, 1], "pads": [0, 1, 0, 1]},
    # The last window would begin in the padding behind the data.
    {"kernel_shape": [1, 1], "strides": [2, 2], "pads": [0, 0, 0, 0]},
    {"kernel_shape": [2, 2], "strides": [3, 4]},
]


@pytest.mark.parametrize("attributes", OVERHANGING, ids=str)
@pytest.mark.parametrize("storage_order", [0, 1])
def test_the_places_of_the_largest_are_known_in_overhanging_windows(
    attributes: dict[str, Any], storage_order: int
) -> None:
    at = LEVELS if storage_order == 0 and "dilations" in attributes else ("graph",)
    agree("MaxPool", [floats(2, 3, 7, 8)], outputs=2, ceil_mode=1, at=at, storage_order=storage_order, **attributes)


@pytest.mark.parametrize("attributes", OVERHANGING, ids=str)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_overhanging_windows(attributes: dict[str, Any], p: int) -> None:
    at = LEVELS if p == 2 and "pads" not in attributes else ("graph",)
    agree("LpPool", [floats(2, 3, 7, 8)], ceil_mode=1, p=p, at=at, opset=18, **attributes)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 2, 2)])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_whole_channels(shape: tuple[int, ...], p: int) -> None:
    at = LEVELS if p == 3 and len(shape) == 4 else ("graph",)
    agree("GlobalLpPool", [floats(*shape)], p=p, at=at, opset=18)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("window", "strides"), [((3, 2), (2, 3)), ((1, 2), (5, 4)), ((2, 4), (1, 1))], ids=str)
def test_there_is_a_window_for_each_step_whatever_is_left_over(
    mode: str, window: tuple[int, int], strides: tuple[int, int]
) -> None:
    """Of 7 rows and 8 columns: an even and an odd padding, and steps that pass over the end."""
    x, filters = floats(1, 2, 7, 8), floats(3, 2, *window, seed=1)
    agree("Conv", [x, filters], known=[1], at=("graph",), auto_pad=mode, strides=strides)
