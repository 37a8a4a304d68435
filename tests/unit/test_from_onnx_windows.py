# SPDX-License-Identifier: Apache-2.0
"""Windows that are padded so that their number is given, or end out of bounds, agree with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import LEVELS, agree, model_of, run
from onnx import TensorProto, helper, numpy_helper

from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx import import_model


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


def imported(operator: str, inputs: list[list[int | str]], weights: list[Array], **attributes: Any) -> str:
    """The graph of one node whose sizes are symbolic."""
    names = [f"x{number}" for number in range(len(inputs))]
    constants = [numpy_helper.from_array(each, f"w{number}") for number, each in enumerate(weights)]
    node = helper.make_node(operator, [*names, *(each.name for each in constants)], ["y"], **attributes)
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip(names, inputs, strict=True)
    ]
    result = helper.make_empty_tensor_value_info("y")
    model = helper.make_model(
        helper.make_graph([node], "g", given, [result], constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    module, _ = import_model(model)
    return str(module)


@pytest.mark.parametrize("window", [2, 4])
def test_a_transposed_convolution_of_unknown_size_has_a_result_of_its_strides(window: int) -> None:
    text = imported("ConvTranspose", [["B", 4, "L"]], [floats(4, 3, window)], strides=[2], auto_pad="SAME_UPPER")
    assert "graph.conv" in text


def test_a_product_of_batches_that_are_not_known_to_be_equal_moves_nothing() -> None:
    text = imported("Einsum", [["B", "H", "I", 4], ["C", "G", "J", 4]], [], equation="bhid,bhjd->bhij")
    assert "graph.reshape" not in text


def test_a_point_of_a_transposed_convolution_in_f16_is_rounded_once() -> None:
    x, filters, bias = (each.astype(np.float16) for each in (floats(1, 8, 4, 4), floats(8, 3, 1, 1), floats(3)))
    (found,) = run(model_of("ConvTranspose", [x, filters, bias], known=[1, 2], strides=[2, 2]), [x], "graph")
    exact = np.zeros((1, 3, 7, 7))
    exact[..., ::2, ::2] = np.einsum("bchw,co->bohw", x.astype(np.float64), filters.astype(np.float64)[..., 0, 0])
    exact += bias.astype(np.float64)[:, None, None]
    np.testing.assert_array_equal(found, exact.astype(np.float32).astype(np.float16))


def test_a_grid_over_an_image_of_unknown_size_is_refused_by_its_size() -> None:
    with pytest.raises(UserError, match="the size H"):
        imported("GridSample", [["B", 2, "H", 4], ["B", 3, 3, 2]], [], align_corners=1)
