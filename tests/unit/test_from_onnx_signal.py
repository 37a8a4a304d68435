# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms, determinants and patches put back agree with NumPy, onnxruntime and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_node import LEVELS, agree, model_of, reference_of, run
from sampling import examples

from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.nodes_matrix import transform
from penstock.runtime.compiler import import_program


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-3, 3, shape).astype(np.float32)


@examples(40)
@given(size=st.integers(1, 9), length=st.integers(1, 12), parts=st.integers(1, 2), inverse=st.booleans())
def test_the_matrix_of_a_transform_is_that_transform(size: int, length: int, parts: int, inverse: bool) -> None:
    signal = np.random.default_rng(size).standard_normal((size, parts))
    numbers = signal[:, 0] + 1j * signal[:, 1] if parts == 2 else signal[:, 0]
    matrix = transform(size, parts, length, inverse=inverse, onesided=False)
    found = (signal.reshape(-1) @ matrix).reshape(length, 2)
    expected = (np.fft.ifft if inverse else np.fft.fft)(numbers, n=length)
    np.testing.assert_allclose(found[:, 0] + 1j * found[:, 1], expected, atol=1e-12)


@examples(20)
@given(length=st.integers(2, 13), seed=st.integers(0, 99))
def test_a_onesided_transform_is_undone_by_its_inverse(length: int, seed: int) -> None:
    signal = np.random.default_rng(seed).standard_normal(length)
    there = transform(length, 1, length, inverse=False, onesided=True)
    back = transform(length // 2 + 1, 2, length, inverse=True, onesided=True)
    np.testing.assert_allclose(signal @ there @ back, signal, atol=1e-12)


@pytest.mark.parametrize(
    ("operands", "attributes"),
    [
        ([floats(2, 6, 5, 1), None, np.array(1)], {}),
        ([floats(2, 6, 5, 2), None, np.array(-2)], {"inverse": 1}),
        ([floats(3, 7, 1)], {"onesided": 1}),
        # Filled with zeros, and cut off.
        ([floats(3, 7, 2), np.array(9)], {}),
        ([floats(3, 7, 1), np.array(4)], {"onesided": 1}),
    ],
    ids=str,
)
def test_transforms_along_any_axis_and_of_any_length(operands: list[Array | None], attributes: dict[str, Any]) -> None:
    at = LEVELS if "onesided" in attributes else ("graph",)
    agree("DFT", operands, known=[1, 2], at=at, opset=20, **attributes)


@pytest.mark.parametrize("length", [8, 9])
def test_the_inverse_of_a_onesided_transform_is_real(length: int) -> None:
    # onnxruntime does not have it.
    half = floats(2, length // 2 + 1, 2, seed=4)
    operands = [half, np.array(length)]
    agree("DFT", operands, known=[1], witness=reference_of, opset=20, inverse=1, onesided=1)


def test_the_last_dimension_holds_the_parts_of_numbers() -> None:
    model = model_of("DFT", [floats(2, 6, 2), None, np.array(2)], known=[2], opset=20)
    with pytest.raises(UserError, match=r'node "node" \(DFT\): the last dimension holds the parts'):
        import_program(model, {}, name="test")
    with pytest.raises(UserError, match=r'node "node" \(DFT\): numbers of 3 parts'):
        import_program(model_of("DFT", [floats(2, 6, 3)], opset=20), {}, name="test")


def test_one_side_of_the_transform_of_complex_numbers_is_not_supported() -> None:
    with pytest.raises(UserError) as caught:
        import_program(model_of("DFT", [floats(2, 6, 2)], opset=20, onesided=1), {}, name="test")
    assert caught.value.status == UNSUPPORTED


@pytest.mark.parametrize(
    ("signal", "step", "window", "length", "attributes"),
    [
        ((2, 33, 1), 5, None, 12, {}),
        ((1, 40, 1), 7, 16, None, {"onesided": 1}),
        ((1, 40, 1), 16, 16, 16, {"onesided": 0}),
    ],
    ids=str,
)
def test_frames_are_transformed(
    signal: tuple[int, ...], step: int, window: int | None, length: int | None, attributes: dict[str, Any]
) -> None:
    operands = [
        floats(*signal),
        np.array(step),
        None if window is None else floats(window, seed=2),
        None if length is None else np.array(length),
    ]
    at = ("graph",) if window is None else LEVELS
    agree("STFT", operands, known=[1, 3], at=at, opset=17, atol=1e-4, **attributes)


def test_frames_longer_than_the_signal_are_an_error_at_the_node() -> None:
    model = model_of("STFT", [floats(1, 8, 1), np.array(2), None, np.array(9)], known=[1, 3], opset=17)
    with pytest.raises(UserError, match=r'node "node" \(STFT\): frames of 9, 2 apart, of a signal of 8'):
        import_program(model, {}, name="test")


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 3, 5, 5), (4, 6, 6)])
def test_determinants(shape: tuple[int, ...]) -> None:
    agree("Det", [floats(*shape, seed=5)], rtol=1e-3, at=LEVELS if shape == (2, 3, 5, 5) else ("graph",))


MATRICES = [
    np.zeros((3, 3)),
    [[0, 1], [1, 0]],
    [[0, 2, 0], [0, 0, 3], [4, 0, 0]],
    [[1, 2], [2, 4]],
    [[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]],
    [[1e-30, 1], [1, 1]],
]


@pytest.mark.parametrize("matrix", MATRICES, ids=str)
def test_determinants_of_matrices_with_zeros_on_the_way(matrix: Any) -> None:
    array = np.array(matrix, np.float32)
    found = run(model_of("Det", [array]), [array], "graph")[0]
    assert found.shape == ()
    assert found.item() == np.float32(np.linalg.det(np.array(matrix, np.float64)))


def test_the_determinant_of_a_matrix_with_a_nan_is_none() -> None:
    for place in range(9):
        array = floats(3, 3)
        array.flat[place] = np.nan
        assert np.isnan(run(model_of("Det", [array]), [array], "graph")[0])


def test_a_matrix_that_is_not_square_has_no_determinant() -> None:
    with pytest.raises(UserError, match=r'node "node" \(Det\): matrices of 3 rows and 4 columns'):
        import_program(model_of("Det", [floats(2, 3, 4)]), {}, name="test")


@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ([5, 6], [2, 3], {}),
        ([7, 6], [3, 2], {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
        ([6, 6], [2, 2], {"dilations": [3, 2], "pads": [1, 1, 1, 1]}),
        ([9], [3], {"strides": [2], "dilations": [2], "pads": [1, 3]}),
        ([3, 4, 5], [2, 2, 2], {"strides": [1, 2, 1]}),
    ],
    ids=str,
)
def test_patches_are_put_back_where_they_come_from(
    image: list[int], block: list[int], attributes: dict[str, Any]
) -> None:
    rank = len(image)
    pads = attributes.get("pads", [0] * 2 * rank)
    counts = [
        (
            image[dim]
            + pads[dim]
            + pads[rank + dim]
            - attributes.get("dilations", [1] * rank)[dim] * (block[dim] - 1)
            - 1
        )
        // attributes.get("strides", [1] * rank)[dim]
        + 1
        for dim in range(rank)
    ]
    x = floats(2, 3 * int(np.prod(block)), int(np.prod(counts)))
    at = LEVELS if rank == 1 else ("graph",)
    operands = [x, np.array(image), np.array(block)]
    agree("Col2Im", operands, known=[1, 2], at=at, witness=reference_of, **attributes)


def test_patches_that_are_too_many_are_an_error_at_the_node() -> None:
    model = model_of("Col2Im", [floats(1, 4, 7), np.array([3, 4]), np.array([2, 2])], known=[1, 2])
    with pytest.raises(UserError, match=r'node "node" \(Col2Im\): 7 patches, where images of shape \[3, 4\]'):
        import_program(model, {}, name="test")


@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows_of_known_sizes_are_constants(operator: str, periodic: int) -> None:
    agree(operator, [np.array(11)], known=[0], at=["graph"], opset=17, periodic=periodic)
