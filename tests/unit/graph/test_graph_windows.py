# SPDX-License-Identifier: Apache-2.0
"""Convolution, pooling and other ops on images: the interpreter against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from sampling import examples
from xdsl.ir import Operation

from penstock.dialects import graph
from penstock.dialects.weights import Array

Build = Callable[..., Operation]
Interpret = Callable[..., Array]
Reference = Callable[..., Array]


def random(*shape: int, seed: int = 0, low: float = -3.0, high: float = 3.0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def random_ints(*shape: int, seed: int = 0, low: int = -9, high: int = 10, dtype: Any = np.int32) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def assert_close(found: Array, expected: Array, tolerance: float = 1e-5) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@st.composite
def window_cases(draw: st.DrawFn, ranks: Sequence[int]) -> dict[str, Any]:
    """Parameters that fit: kernel, strides, pads, dilations and spatial sizes of one rank."""
    rank = draw(st.sampled_from(ranks))

    def each(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, strides, dilations = each(1, 3), each(1, 3), each(1, 2)
    reach = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    # padding stays smaller than the kernel, as onnxruntime demands of pools
    pads = [draw(st.integers(0, kernel[dim % rank] - 1)) for dim in range(2 * rank)]
    spatial = [draw(st.integers(size, size + 6)) for size in reach]
    return {
        "kernel": kernel,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "spatial": spatial,
        "seed": draw(st.integers(0, 1000)),
    }


def channels_last(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    case=window_cases([1, 2, 3]),
    batch=st.integers(1, 2),
    group=st.integers(1, 3),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    bias=st.booleans(),
)
def test_convolutions_match_onnxruntime_in_both_layouts(
    interpret: Interpret,
    onnx_result: Reference,
    case: dict[str, Any],
    batch: int,
    group: int,
    inputs: int,
    outputs: int,
    bias: bool,
) -> None:
    seed = case["seed"]
    x = random_ints(batch, group * inputs, *case["spatial"], seed=seed, dtype=np.float32)
    w = random_ints(group * outputs, inputs, *case["kernel"], seed=seed + 1, dtype=np.float32)
    b = random_ints(group * outputs, seed=seed + 2, dtype=np.float32)
    arrays = [x, w, b] if bias else [x, w]
    parameters = {key: case[key] for key in ("strides", "pads", "dilations")}
    expected = onnx_result("Conv", arrays, group=group, **parameters)
    found = interpret(arrays, graph.ConvOp, group=group, **parameters)
    np.testing.assert_array_equal(found, expected)  # small integers: sums are exact

    last = [channels_last(x), np.ascontiguousarray(np.moveaxis(w, (0, 1), (-1, -2)))]
    found = interpret(
        [*last, *arrays[2:]],
        graph.ConvOp,
        group=group,
        layout=graph.NHWC,
        **parameters,
    )
    np.testing.assert_array_equal(found, channels_last(expected))


def test_large_convolutions_match_onnxruntime(interpret: Interpret, onnx_result: Reference) -> None:
    x, w, b = random(2, 16, 14, 15, seed=1), random(24, 4, 3, 3, seed=2), random(24, seed=3)
    found = interpret([x, w, b], graph.ConvOp, group=4, pads=[1, 0, 2, 1])
    expected = onnx_result("Conv", [x, w, b], group=4, pads=[1, 0, 2, 1], strides=[1, 1])
    assert_close(found, expected, 1e-4)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=window_cases([1, 2, 3]), ceil_mode=st.booleans())
def test_max_pools_match_onnxruntime_in_both_layouts(
    interpret: Interpret, onnx_result: Reference, case: dict[str, Any], ceil_mode: bool
) -> None:
    x = random(2, 3, *case["spatial"], seed=case["seed"])
    parameters = {key: case[key] for key in ("strides", "pads", "dilations")}
    parameters |= {"kernel_shape": case["kernel"], "ceil_mode": ceil_mode}
    expected = onnx_result("MaxPool", [x], **parameters)
    found = interpret([x], graph.MaxPoolOp, **parameters)
    np.testing.assert_array_equal(found, expected)
    found = interpret([channels_last(x)], graph.MaxPoolOp, layout=graph.NHWC, **parameters)
    np.testing.assert_array_equal(found, channels_last(expected))


@examples(80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=window_cases([1, 2, 3]), ceil_mode=st.booleans(), count_include_pad=st.booleans())
def test_average_pools_match_onnxruntime_in_both_layouts(
    interpret: Interpret, onnx_result: Reference, case: dict[str, Any], ceil_mode: bool, count_include_pad: bool
) -> None:
    x = random(2, 3, *case["spatial"], seed=case["seed"])
    parameters = {key: case[key] for key in ("strides", "pads", "dilations")}
    parameters |= {
        "kernel_shape": case["kernel"],
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
    }
    expected = onnx_result("AveragePool", [x], **parameters)
    assume(bool(np.isfinite(expected).all()))
    found = interpret([x], graph.AveragePoolOp, **parameters)
    assert_close(found, expected)
    found = interpret([channels_last(x)], graph.AveragePoolOp, layout=graph.NHWC, **parameters)
    assert_close(found, channels_last(expected))


def test_integer_max_pools_pad_with_the_smallest_number(interpret: Interpret) -> None:
    x = np.full((1, 1, 3), -100, np.int8)
    found = interpret([x], graph.MaxPoolOp, kernel_shape=[2], pads=[1, 1])
    np.testing.assert_array_equal(found, np.full((1, 1, 4), -100, np.int8))


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (graph.GlobalAveragePoolOp, "GlobalAveragePool"),
        (graph.GlobalMaxPoolOp, "GlobalMaxPool"),
    ],
)
@pytest.mark.parametrize("spatial", [(7,), (5, 4), (3, 2, 4)])
def test_global_pools_match_onnxruntime(
    interpret: Interpret, onnx_result: Reference, build: Build, name: str, spatial: tuple[int, ...]
) -> None:
    x = random(2, 3, *spatial)
    expected = onnx_result(name, [x])
    assert_close(interpret([x], build), expected)
    found = interpret([channels_last(x)], build, layout=graph.NHWC)
    assert_close(found, channels_last(expected))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_local_response_normalisation_matches_onnxruntime(
    interpret: Interpret, onnx_result: Reference, size: int
) -> None:
    x = random(2, 7, 4, 5)
    parameters: dict[str, Any] = {"size": size, "alpha": 0.02, "beta": 0.6, "bias": 1.5}
    expected = onnx_result("LRN", [x], **parameters)
    assert_close(interpret([x], graph.LrnOp, **parameters), expected)
    found = interpret([channels_last(x)], graph.LrnOp, layout="NHWC", **parameters)
    assert_close(found, channels_last(expected))


def test_local_response_normalisation_of_even_size_reaches_further_back(interpret: Interpret) -> None:
    x = random(1, 6, 1, 1)
    squares = np.pad(np.square(x[0, :, 0, 0]), (0, 1))
    total = squares[:-1] + squares[1:]  # size 2: floor(1/2) = 0 before, ceil(1/2) = 1 after
    found = interpret([x], graph.LrnOp, size=2, alpha=0.5, beta=1.0)
    np.testing.assert_allclose(found[0, :, 0, 0], x[0, :, 0, 0] / (1 + 0.25 * total), rtol=1e-6)


def test_batch_normalisation_matches_onnxruntime(interpret: Interpret, onnx_result: Reference) -> None:
    x = random(2, 5, 3, 4)
    vectors = [random(5, seed=seed, low=0.2) for seed in range(1, 5)]
    expected = onnx_result("BatchNormalization", [x, *vectors], epsilon=1e-3)
    build: Build = graph.BatchNormalizationOp
    found = interpret([x, *vectors], build, epsilon=1e-3)
    assert_close(found, expected)
    found = interpret([channels_last(x), *vectors], build, epsilon=1e-3, axis=3)
    assert_close(found, channels_last(expected))
