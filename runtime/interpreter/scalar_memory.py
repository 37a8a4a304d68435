"""Scalar access to memrefs: the quickest way to read and write one element, tags checked where there are any."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from penstock.dialects.weights import Array
from penstock.runtime.interpreter.scopes import Buffer, MemRef, describe, why_undefined

_BUFFER_FORMATS = "fdbhilq?"


class ScalarView(Protocol):
    """Element access by a tuple of indices (one index where there is one dim); IndexError outside."""

    def __getitem__(self, index: Any, /) -> Any: ...

    def __setitem__(self, index: Any, value: Any, /) -> None: ...


class UndefinedRead(Exception):
    """A scalar was read that was never written; the op that did so is known to the caller."""


def scalar_view(memref: MemRef) -> ScalarView:
    """The scalars of a memref."""
    if type(memref) is Buffer:
        return _TaggedView(memref)
    return _plain_view(memref)  # pyright: ignore


def _plain_view(array: Array) -> ScalarView:
    # A memoryview reads and writes Python numbers, three times as quickly as an ndarray, and rounds on the way.
    if array.dtype.char in _BUFFER_FORMATS:
        return memoryview(array)  # pyright: ignore[reportArgumentType]  (an ndarray is a buffer)
    return _FloatView(array)


class _FloatView:
    """The elements of a type that Python's buffers do not know, such as float16 and bfloat16, as floats."""

    def __init__(self, array: Array):
        self._array = array

    def __getitem__(self, index: Any) -> float:
        return float(self._array[index])

    def __setitem__(self, index: Any, value: float) -> None:
        self._array[index] = value


class _TaggedView:
    """The elements of a buffer, each access checked against the tags of its bytes."""

    def __init__(self, buffer: Buffer):
        self._buffer = buffer
        self._scalars = _plain_view(buffer.array)

    def __getitem__(self, index: Any) -> Any:
        buffer = self._buffer
        tags = buffer.tags[index]
        if (tags != buffer.tag).any():
            why = why_undefined(buffer, int(tags[tags != buffer.tag][0]))
            raise UndefinedRead(f"reads an element of {describe(buffer.scope.owners[buffer.tag])}, {why}")
        return self._scalars[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._scalars[index] = value
        self._buffer.tags[index] = self._buffer.tag


class Rounder:
    """
    Cells that round a Python float to a narrower type: store, then load.

    One operation on operands of the narrow type, done in float64 and then rounded, is correctly rounded for +, -,
    *, / and the square root, as 53 >= 2 * 24 + 2 (Figueroa, When is double rounding innocuous, 1995).
    """

    def __init__(self, dtype: np.dtype[Any]):
        self._cell = np.zeros(1, dtype)

    def __call__(self, number: float) -> float:
        self._cell[0] = number
        return float(self._cell[0])
