"""Weights that are no numbers: found when a model is imported, where they can still be named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import release
from penstock.dialects.weights import Array

_AT_ONCE = 1 << 20
"""Bytes that are looked at together: they stay in the cache."""

_LARGEST: dict[np.dtype[Any], tuple[Any, int, int]] = {
    np.dtype(np.float16): (np.uint16, 0x7FFF, 0x7C00),
    np.dtype(ml_dtypes.bfloat16): (np.uint16, 0x7FFF, 0x7F80),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, 0x7F, 0x7E),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, 0x7F, 0x7C),
}
"""For short floats: the bits as an integer, those without the sign, and the largest that is a number or infinite."""


def refuse_nan(array: Array, name: str, place: str) -> None:
    """
    Raise UserError, located at `place`, if the initializer `name` holds a NaN. Infinities are legal: masks have them.
    """
    if array.dtype.kind not in "fV" or not any(map(_has_nan, _pieces(array))):
        return
    found = np.flatnonzero(np.isnan(array))
    first = [int(index) for index in np.unravel_index(int(found[0]), array.shape)]
    plural = "s" if len(found) > 1 else ""
    raise UserError(
        f'initializer "{name}" holds {len(found)} NaN value{plural}, the first at {first}',
        loc=place,
        notes=["--allow-nan, in Python allow_nan=True, imports the model as it is"],
    )


def _pieces(array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    length = max(1, _AT_ONCE // array.itemsize)
    for number, start in enumerate(range(0, len(flat), length), 1):
        yield flat[start : start + length]
        # What is mapped need not all be in memory at once.
        if number % 16 == 0:
            release(array)
    release(array)


def _has_nan(piece: Array) -> bool:
    if (short := _LARGEST.get(piece.dtype)) is not None:
        integer, mask, largest = short
        return bool((piece.view(integer) & mask).max() > largest)
    # The largest of some numbers is NaN where one of them is, and that is the fastest way to ask all of them.
    return bool(np.isnan(piece.max()))
