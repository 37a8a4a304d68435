# SPDX-License-Identifier: Apache-2.0
"""The store of weights: what is added comes back, in whatever order its elements stood in memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from penstock.dialects.weights import WeightStore


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (70, 3), (3, 130, 1), (1, 2, 66, 5)])
def test_transposed_arrays_are_stored_in_row_major_order(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=np.int64), dtype=np.float32).reshape(shape)
    store = WeightStore()
    for permutation in itertools.permutations(range(array.ndim)):
        transposed = array.transpose(permutation)
        stored = store[store.add("weight", transposed)]
        assert stored.flags.c_contiguous
        assert stored.shape == transposed.shape
        assert np.array_equal(stored, transposed)


def test_reversed_and_strided_arrays_are_stored_as_they_read() -> None:
    array = np.arange(200 * 6, dtype=np.int64).reshape(200, 6)
    store = WeightStore()
    for view in (array[::-1, ::2], array.T[:, ::-1], np.broadcast_to(array[:, :1], (200, 3))):
        assert np.array_equal(store[store.add("weight", view)], view)


def test_the_same_data_under_one_name_is_stored_once() -> None:
    store = WeightStore()
    first = np.ones((2, 3), np.float32)
    assert store.add("weight", first) == store.add("weight", first.copy()) == "weight"
    assert store.add("weight", first * 2) == "weight.1"
    assert store.add("weight", first.reshape(3, 2)) == "weight.2"
    assert store.names() == ("weight", "weight.1", "weight.2")
