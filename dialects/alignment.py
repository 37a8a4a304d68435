# SPDX-License-Identifier: Apache-2.0
"""Arrays that begin with a line of the caches: vectors as wide as one then lie in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes of a line, and of the widest vectors. Arrays, buffers of the arena and parts of a context are aligned to it."""


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A new dense array, whose contents are not defined, as `numpy.empty` makes it."""
    # It takes long to load, and most who ask for the number have no arrays.
    import numpy as np

    size = prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def copied(array: NDArray[Any]) -> NDArray[Any]:
    """A dense copy."""
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def on_line(array: NDArray[Any]) -> NDArray[Any]:
    """An array itself, or a copy of one that begins elsewhere."""
    return array if array.ctypes.data % ALIGNMENT == 0 else copied(array)
