# SPDX-License-Identifier: Apache-2.0
"""The file of weights: what safetensors reads of it, its layout, and that it is written whole or not at all."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore

NARROW = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "int4",
    "uint4",
    "int2",
    "uint2",
)
"""What a file holds as bytes, and its metadata name."""
DTYPES = ("?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")


def store_of_everything() -> WeightStore:
    """One entry of each element type, of odd sizes; a scalar, and one without elements."""
    store = WeightStore()
    for number, dtype in enumerate(DTYPES):
        store.add(f"w{number}", np.arange(3 + number).astype(dtype))
    store.add("scalar", np.array(2.5, np.float32))
    store.add("empty", np.empty((0, 4), np.float64))
    store.add("bf16", np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16))
    for dtype in NARROW:
        store.add(dtype, np.arange(1, 5).reshape(2, 2).astype(getattr(ml_dtypes, dtype)))
    return store


def test_every_element_type_comes_back_as_it_was(tmp_path: Path) -> None:
    store = store_of_everything()
    store.save(tmp_path / "w.safetensors")
    again = WeightStore.open(tmp_path / "w.safetensors")
    assert set(again) == set(store)
    for name in store:
        assert again.shape_dtype(name) == store.shape_dtype(name)
        np.testing.assert_array_equal(again[name], store[name], strict=True)


def test_safetensors_itself_reads_the_file(tmp_path: Path) -> None:
    store = WeightStore()
    arrays: dict[str, Any] = {'a "quoted" name': np.arange(5, dtype=np.int8), "β": np.eye(3, dtype=np.float64)}
    for name, array in arrays.items():
        store.add(name, array)
    store.save(tmp_path / "w.safetensors")
    read = load_file(tmp_path / "w.safetensors")
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array, strict=True)


def test_data_are_aligned_to_their_elements(tmp_path: Path) -> None:
    store_of_everything().save(tmp_path / "w.safetensors")
    data = (tmp_path / "w.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    ends = [0]
    assert header.pop("__metadata__")["packed int4"] == "int4"
    for entry in header.values():
        start, end = entry["data_offsets"]
        assert start == ends[-1], "no byte is left out"
        ends.append(end)
        count = prod(entry["shape"])
        assert count == 0 or start % ((end - start) // count) == 0
    assert 8 + length + ends[-1] == len(data)


def test_a_store_is_saved_over_the_file_that_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    store_of_everything().save(path)
    again = WeightStore.open(path)
    again.add("more", np.ones(3, np.float32))
    again.save(path, ("w8", "more"))
    assert WeightStore.open(path).names() == ("more", "w8")


def test_a_type_that_a_file_cannot_hold_is_refused_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    store = WeightStore()
    store.add("fine", np.ones(2, np.float32))
    store.save(path)
    before = path.read_bytes()
    store.add("c", np.ones(2, np.complex64))
    with pytest.raises(UserError, match=r'a weights file cannot hold "c", whose elements are complex64'):
        store.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["w.safetensors"]
