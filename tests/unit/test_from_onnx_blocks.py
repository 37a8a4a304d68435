# SPDX-License-Identifier: Apache-2.0
"""Quantisation in blocks, to floats of 8 bits and to integers of less than a byte, at every level."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from one_node import LEVELS, agree, comparable, model_of, reference_of, run_at
from onnx import TensorProto, helper
from sampling import every_other

from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import Array
from penstock.runtime.compiler import import_program


def floats(*shape: int, seed: int = 0, low: float = -6, high: float = 6) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def scales(*shape: int, seed: int = 1) -> Array:
    return floats(*shape, seed=seed, low=0.1, high=0.9)


def integers(name: str, *shape: int, seed: int = 2) -> Array:
    dtype = np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
    info = ml_dtypes.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def places(axis: int) -> tuple[str, ...]:
    """All levels for the usual axis."""
    return LEVELS if axis == 1 else ("graph",)


@pytest.mark.parametrize("name", every_other(["int8", "int16", "uint8", "uint16", "int4", "int2", "uint4", "uint2"]))
@pytest.mark.parametrize(("axis", "block"), [(1, 3), (-1, 4), (0, 2)])
def test_blocks_have_a_scale_and_a_zero_point_each(name: str, axis: int, block: int) -> None:
    shape = [4, 6, 5]
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // block)
    zero = integers(name, *blocks)
    attributes: dict[str, Any] = {"axis": axis, "block_size": block, "opset": 25}
    operands = [floats(*shape), scales(*blocks), zero]
    agree("QuantizeLinear", operands, witness=reference_of, at=places(axis), **attributes)
    operands = [integers(name, *shape, seed=5), scales(*blocks), zero]
    agree("DequantizeLinear", operands, witness=reference_of, at=places(axis), **attributes)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_less_than_a_byte_is_quantised_whole_and_along_an_axis(name: str, axis: int | None) -> None:
    vector = () if axis is None else ((6,) if axis == 1 else (5,))
    attributes: dict[str, Any] = {"axis": 1 if axis is None else axis, "opset": 25}
    zero = integers(name, *vector)
    at = LEVELS if axis == 1 else ("graph", "loop")
    agree("QuantizeLinear", [floats(4, 6, 5), scales(*vector), zero], witness=reference_of, at=at, **attributes)
    x = integers(name, 4, 6, 5, seed=5)
    agree("DequantizeLinear", [x, scales(*vector), zero], witness=reference_of, at=at, **attributes)


BYTE_FLOATS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"]


@pytest.mark.parametrize(("name", "block"), every_other((name, block) for name in BYTE_FLOATS for block in (0, 2)))
def test_numbers_are_scaled_to_floats_of_a_byte_or_less(name: str, block: int) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    shape = (4, 3) if block else (6,)
    x = floats(4, 6, low=-4000, high=4000)
    x[0, :3] = [1e6, -1e6, 0]
    attributes: dict[str, Any] = {"axis": 1, "opset": 25, "block_size": block}
    zero = np.zeros(shape, dtype)
    agree("QuantizeLinear", [x, scales(*shape), zero], witness=reference_of, **attributes)
    small = floats(4, 6).astype(dtype)
    agree("DequantizeLinear", [small, scales(*shape)], witness=reference_of, **attributes)


def test_numbers_too_large_are_not_cut_off_if_told_so() -> None:
    x, one = np.array([1e6, 2.0], np.float32), np.ones((), np.float32)
    zero = np.zeros((), ml_dtypes.float8_e5m2)
    model = model_of("QuantizeLinear", [x, one, zero], opset=25, saturate=0)
    for level, (found,) in run_at(model, [x, one, zero]):
        np.testing.assert_array_equal(comparable(found), [np.inf, 2.0], err_msg=level)


@pytest.mark.parametrize("precision", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_the_quotient_is_rounded_in_the_precision_asked_for(precision: int) -> None:
    x = floats(64, low=-30, high=30)
    attributes: dict[str, Any] = {"opset": 25, "precision": precision, "output_dtype": TensorProto.INT8}
    agree("QuantizeLinear", [x, np.full(1, 0.3, np.float32)], witness=reference_of, **attributes)


@pytest.mark.parametrize("output", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_the_numbers_come_back_in_the_type_asked_for(output: Any) -> None:
    wanted = helper.np_dtype_to_tensor_dtype(np.dtype(output))
    x = integers("int8", 3, 4)
    for block, shape in ((0, (4,)), (2, (3, 2))):
        attributes: dict[str, Any] = {"opset": 25, "output_dtype": wanted, "axis": 1, "block_size": block}
        operands = [x, scales(*shape), integers("int8", *shape)]
        agree("DequantizeLinear", operands, witness=reference_of, at=["graph", "loop"], **attributes)


def test_scales_for_other_blocks_are_an_error_at_the_node() -> None:
    model = model_of("QuantizeLinear", [floats(4, 6), scales(4, 2)], opset=25, axis=1, block_size=2)
    with pytest.raises(UserError) as caught:
        import_program(model, {}, name="test")
    message = "a scale of shape [4, 2] for blocks of 2 along dimension 1 of [4, 6]"
    assert caught.value.message == f'node "node" (QuantizeLinear): {message}'
