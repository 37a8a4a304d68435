# SPDX-License-Identifier: Apache-2.0
"""Images read between their elements agree with onnxruntime, at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import LEVELS, agree, model_of, reference_of, run_at
from sampling import combinations

from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.weights import Array
from penstock.runtime.compiler import import_program


def floats(*shape: int, seed: int = 0, low: float = -3, high: float = 3) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("mode", "padding_mode", "align_corners"),
    combinations(["nearest", "linear", "cubic"], ["zeros", "border", "reflection"], [0, 1]),
)
def test_a_grid_reaches_beyond_the_image(mode: str, padding_mode: str, align_corners: int) -> None:
    # Wide beyond it, so that reflections are reflected again.
    operands = [floats(2, 3, 5, 4), floats(2, 4, 6, 2, seed=1, low=-2.6, high=2.6)]
    every = (mode, padding_mode) in (("nearest", "zeros"), ("linear", "reflection"), ("cubic", "border"))
    at = LEVELS if every and align_corners else ("graph",)
    agree("GridSample", operands, at=at, mode=mode, padding_mode=padding_mode, align_corners=align_corners)


def test_the_names_of_modes_before_operator_set_20_are_understood() -> None:
    operands = [floats(1, 2, 4, 7), floats(1, 3, 3, 2, seed=1, low=-1, high=1)]
    for mode in ("bilinear", "bicubic", "nearest"):
        agree("GridSample", operands, at=["graph"], opset=16, mode=mode, padding_mode="border")


def test_volumes_are_sampled() -> None:
    operands = [floats(1, 2, 3, 4, 5), floats(1, 2, 3, 2, 3, seed=1, low=-1.3, high=1.3)]
    for padding_mode in ("zeros", "reflection"):
        agree("GridSample", operands, at=["graph"], witness=reference_of, mode="linear", padding_mode=padding_mode)


def test_what_lies_outside_is_zero_even_where_the_image_is_not_finite() -> None:
    image = np.full((1, 1, 2, 2), np.inf, np.float32)
    grid = np.full((1, 1, 1, 2), 3.0, np.float32)
    for mode in ("nearest", "linear"):
        model = model_of("GridSample", [image, grid], mode=mode)
        for _, (found,) in run_at(model, [image, grid], ("graph", "loop")):
            assert found.item() == 0


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float64, np.float16])
def test_the_nearest_pixel_is_taken_of_any_element_type(dtype: Any) -> None:
    image = np.arange(24).reshape(1, 2, 3, 4).astype(dtype)
    agree("GridSample", [image, floats(1, 3, 2, 2, seed=3)], at=["graph", "loop"], witness=reference_of, mode="nearest")


def test_interpolating_integers_is_not_supported() -> None:
    image = np.arange(12, dtype=np.int32).reshape(1, 1, 3, 4)
    with pytest.raises(UserError, match="GridSample") as caught:
        import_program(model_of("GridSample", [image, floats(1, 2, 2, 2)]), {}, name="test")
    assert caught.value.status == UNSUPPORTED
    assert "mode linear of integers" in caught.value.notes[0]


def test_a_grid_of_another_rank_is_an_error_at_the_node() -> None:
    with pytest.raises(UserError, match=r'node "node" \(GridSample\): a grid of shape \[1, 2, 3\]'):
        import_program(model_of("GridSample", [floats(1, 1, 3, 4), floats(1, 2, 3)]), {}, name="test")


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [[2, 3, 4, 5], [2, 1, 3, 1, 4]])
def test_an_affine_grid_is_a_product_with_a_known_grid(size: list[int], align_corners: int) -> None:
    rank = len(size) - 2
    theta = floats(2, rank, rank + 1)
    # With one element and aligned corners, ONNX's reference divides by zero.
    if align_corners and 1 in size[2:]:
        size = [2, 1, 3, 2, 4]
    at = ("graph",) if align_corners else LEVELS
    agree("AffineGrid", [theta, np.array(size)], at=at, known=[1], witness=reference_of, align_corners=align_corners)


def test_a_matrix_for_another_rank_is_an_error_at_the_node() -> None:
    model = model_of("AffineGrid", [floats(1, 2, 3), np.array([1, 1, 2, 3, 4])], known=[1])
    with pytest.raises(UserError, match=r'node "node" \(AffineGrid\): matrices of shape \[1, 2, 3\]'):
        import_program(model, {}, name="test")


REGIONS = np.array([[0.0, 0.0, 6.0, 4.0], [1.5, 2.25, 9.0, 7.5], [-4.0, -3.0, 1.0, 2.0]], np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
def test_regions_are_pooled_from_samples(transformation: str, mode: str) -> None:
    agree(
        "RoiAlign",
        [floats(2, 3, 7, 9), REGIONS, np.array([1, 0, 1])],
        at=LEVELS if transformation == "half_pixel" else ("graph",),
        mode=mode,
        coordinate_transformation_mode=transformation,
        output_height=3,
        output_width=2,
        sampling_ratio=3,
        spatial_scale=0.75,
        opset=16,
    )


def test_before_operator_set_16_regions_are_not_shifted_by_half_a_pixel() -> None:
    attributes: dict[str, Any] = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    agree("RoiAlign", [floats(2, 1, 7, 9), REGIONS, np.array([1, 0, 1])], at=["graph"], opset=10, **attributes)


def test_as_many_samples_as_a_region_is_large_are_not_supported() -> None:
    model = model_of("RoiAlign", [floats(2, 1, 7, 9), REGIONS, np.array([1, 0, 1])], opset=16)
    with pytest.raises(UserError) as caught:
        import_program(model, {}, name="test")
    assert caught.value.status == UNSUPPORTED
    assert "sampling_ratio 0" in caught.value.notes[0]


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 1], "pads": [1, 0, 2, 1]},
        {"dilations": [1, 2], "pads": [1, 1, 1, 1]},
        {"group": 2, "offset_group": 2},
        {"offset_group": 4, "strides": [2, 2]},
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
def test_a_deformed_convolution_samples_what_it_multiplies(attributes: dict[str, Any], masked: bool) -> None:
    strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    pads = attributes.get("pads", [0, 0, 0, 0])
    groups = attributes.get("offset_group", 1)
    result = [
        (size + pads[dim] + pads[dim + 2] - dilations[dim] * (window - 1) - 1) // strides[dim] + 1
        for dim, (size, window) in enumerate(zip((6, 7), (2, 3), strict=True))
    ]
    x, w = floats(2, 4, 6, 7), floats(6, 4 // attributes.get("group", 1), 2, 3, seed=1)
    offsets = floats(2, groups * 2 * 6, *result, seed=2, low=-1.5, high=1.5)
    mask = floats(2, groups * 6, *result, seed=3) if masked else None
    at = LEVELS if masked and "group" in attributes else ("graph",)
    agree("DeformConv", [x, w, offsets, floats(6, seed=4), mask], at=at, kernel_shape=[2, 3], **attributes)


def test_offsets_for_another_result_are_an_error_at_the_node() -> None:
    operands = [floats(1, 1, 4, 4), floats(1, 1, 2, 2), floats(1, 8, 2, 2)]
    with pytest.raises(UserError, match=r'node "node" \(DeformConv\): offsets of shape \[1, 8, 2, 2\]'):
        import_program(model_of("DeformConv", operands), {}, name="test")
