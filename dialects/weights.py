# SPDX-License-Identifier: Apache-2.0
"""The store of weights beside the IR: names to arrays, read from a safetensors file only when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from penstock.dialects import alignment
from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.element_bits import bits_of, is_narrow_integer, packed_bytes, unpacked_bytes
from penstock.dialects.files import release, whole_file

Array = NDArray[Any]

_SAFETENSORS_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}

_AS_BYTES: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
        "int4", "uint4", "int2", "uint2",
    )
}  # fmt: skip
"""Types that a file holds as bytes; its metadata say so, since readers know few of them."""

_TYPE_KEY = "type of "
"""What the metadata call the type of an entry with a byte for each element, with the name of the entry after it."""
_PACKED_KEY = "packed "
"""The same for one whose bytes hold several elements, along the last dimension, the first in the lowest bits."""

_NAMES_OF_DTYPES = {dtype: name for name, dtype in _SAFETENSORS_DTYPES.items()}

_PRODUCER = ("producer", "penstock")
"""The entry of the metadata by which a file that may be replaced is known."""

_AT_ONCE = 1 << 24
"""Bytes that are written, or read, together."""

_SLAB = 32
"""Elements: a cache line or two of them."""


class WeightStore:
    """
    An ordered mapping from names to arrays, the bulk data that `#graph.weight<"name">` refers to.

    Entries of a file are read when first used; entries that passes add live in memory until `save`.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._filed: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._path: Path | None = None
        self._file: Any = None

    @classmethod
    def open(cls, path: str | Path) -> WeightStore:
        """
        The store in the safetensors file at `path`, which stays open for reading.

        Raises UserError if the file is missing or no safetensors file.
        """
        store = cls()
        store._path = Path(path)
        try:
            store._file = safe_open(str(path), framework="numpy")
        except FileNotFoundError:
            raise UserError(
                "the weights file does not exist",
                loc=str(path),
                notes=["it is written beside the IR by `penstock import`; keep the two together"],
            ) from None
        except (SafetensorError, OSError) as error:
            raise UserError(f"not a readable safetensors file: {error}", loc=str(path)) from None
        metadata: dict[str, str] = store._file.metadata() or {}
        for name in store._file.keys():
            entry = store._file.get_slice(name)
            dtype = _SAFETENSORS_DTYPES.get(entry.get_dtype())
            shape = tuple(entry.get_shape())
            if dtype == np.uint8 and (held := metadata.get(_TYPE_KEY + name)) is not None:
                dtype = _AS_BYTES.get(held)
            elif dtype == np.uint8 and shape and (held := metadata.get(_PACKED_KEY + name)) is not None:
                dtype = _AS_BYTES.get(held)
                shape = (*shape[:-1], shape[-1] * (1 if dtype is None else 8 // bits_of(dtype)))
            if dtype is None:
                raise UserError(f'weight "{name}" has the unknown type {entry.get_dtype()}', loc=str(path))
            store._filed[name] = (shape, dtype)
        return store

    def copy(self) -> WeightStore:
        """A store with the same entries, to which others can be added; the arrays are shared, and read-only."""
        store = WeightStore()
        store._arrays, store._filed = dict(self._arrays), dict(self._filed)
        store._path, store._file = self._path, self._file
        return store

    def names(self) -> tuple[str, ...]:
        """All names: those of the file in its order, then those added, in the order of addition."""
        return tuple(dict.fromkeys((*self._filed, *self._arrays)))

    def __contains__(self, name: object) -> bool:
        return name in self._arrays or name in self._filed

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def shape_dtype(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and element type of an entry, without reading its data."""
        if (array := self._arrays.get(name)) is not None:
            return array.shape, array.dtype
        if name in self._filed:
            return self._filed[name]
        raise self._missing(name)

    def __getitem__(self, name: str) -> Array:
        if (array := self._arrays.get(name)) is not None:
            return array
        if name not in self._filed:
            raise self._missing(name)
        (shape, dtype), array = self._filed[name], self._file.get_tensor(name)
        array = array.view(dtype) if array.shape == shape else unpacked_bytes(array, dtype)
        array.flags.writeable = False
        self._arrays[name] = array
        return array

    def add(self, name: str, array: Array) -> str:
        """
        Add an entry and return its name: `name` itself, or `name.1`, `name.2`, ... where that is taken by
        other data. Data that is already there under one of these names is not added again.
        """
        candidate, count = name, 0
        while candidate in self:
            if _same(self[candidate], array):
                return candidate
            count += 1
            candidate = f"{name}.{count}"
        stored = _dense(array)
        if stored is array and array.flags.writeable:
            stored = alignment.copied(stored)
        elif array.flags.writeable:
            # What was computed; files are read when it is needed.
            stored = alignment.on_line(stored)
        stored.flags.writeable = False
        self._arrays[candidate] = stored
        return candidate

    def save(self, path: str | Path, names: tuple[str, ...] | None = None) -> None:
        """
        Write the entries `names` (all by default) to a safetensors file, whole or not at all.

        One entry after the other: what is in a file already, or mapped from one, need not fit into memory together.
        Raises UserError for an element type that such a file cannot hold, and for a file there that was not written
        by Penstock: somebody's own weights are never replaced.
        """
        chosen = self.names() if names is None else names
        kinds = {name: self.shape_dtype(name) for name in chosen}
        for name, (_, dtype) in kinds.items():
            if dtype not in _NAMES_OF_DTYPES and dtype not in _AS_BYTES.values():
                raise UserError(f'a weights file cannot hold "{name}", whose elements are {dtype}', loc=str(path))
        if not _may_replace(Path(path)):
            raise UserError(
                "the file was not written by Penstock, so it is not replaced by these weights",
                loc=str(path),
                notes=["--weights FILE writes the weights to another file"],
            )
        # Wide elements first, so that all are aligned.
        order = sorted(kinds, key=lambda name: (-kinds[name][1].itemsize, name))
        with whole_file(path) as file:
            file.write(_header([(name, *kinds[name]) for name in order]))
            for name in order:
                _write(file, _bytes_of(self._arrays[name]) if name in self._arrays else self._file.get_tensor(name))

    def _missing(self, name: str) -> UserError:
        near = did_you_mean(name, self.names())
        return UserError(
            f'no weight is called "{name}"',
            loc=str(self._path) if self._path else None,
            notes=[near] if near else [],
        )


def _may_replace(path: Path) -> bool:
    """Whether `path` is free, or leads to a file of ours, an empty one or something that is no regular file."""
    if not path.is_file() or path.stat().st_size == 0:
        return True
    try:
        file: Any = safe_open(str(path), framework="numpy")
        return _PRODUCER in (file.metadata() or {}).items()
    except (SafetensorError, OSError):
        return False


def _header(entries: Sequence[tuple[str, tuple[int, ...], np.dtype[Any]]]) -> bytes:
    """What a safetensors file with these entries begins with: https://huggingface.co/docs/safetensors, "Format"."""
    held = {
        (_PACKED_KEY if _per_byte(shape, dtype) > 1 else _TYPE_KEY) + name: str(dtype)
        for name, shape, dtype in entries
        if dtype in _AS_BYTES.values()
    }
    described: dict[str, Any] = {"__metadata__": dict([_PRODUCER]) | held}
    start = 0
    for name, shape, dtype in entries:
        if (each := _per_byte(shape, dtype)) > 1:
            shape = (*shape[:-1], shape[-1] // each)
        end = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
        described[name] = {
            "dtype": _NAMES_OF_DTYPES.get(dtype, "U8"),
            "shape": list(shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _per_byte(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """How many elements a byte of a file holds: several if they are small, and rows end with a byte."""
    each = 8 // bits_of(dtype) if is_narrow_integer(dtype) else 1
    return each if shape and shape[-1] % each == 0 else 1


def _bytes_of(array: Array) -> Array:
    """An array as a file holds it."""
    each = _per_byte(array.shape, array.dtype)
    return array if each == 1 else packed_bytes(array.reshape(*array.shape[:-1], array.shape[-1] // each, each))


def _write(file: IO[bytes], array: Array) -> None:
    data = array.reshape(-1).view(np.uint8)
    for start in range(0, len(data), _AT_ONCE):
        file.write(data[start : start + _AT_ONCE].data)
        release(array)


def _dense(array: Array) -> Array:
    """
    `array` in row-major order, itself if it is; NumPy's copy copies a transposed matrix element by element,
    and misses the cache at each. In slabs along the dim whose neighbours are farthest apart, which lie one after the
    other in memory, most elements of a line are used, and of what is mapped only a part is in memory at a time.
    """
    extents = [dim for dim in range(array.ndim) if array.shape[dim] > 1]
    if array.flags.c_contiguous or not extents:
        return np.ascontiguousarray(array).reshape(array.shape)
    farthest = max(extents, key=lambda dim: abs(array.strides[dim]))
    copied = alignment.empty(array.shape, array.dtype)
    together = max(1, _AT_ONCE // (array.nbytes // array.shape[farthest] * _SLAB))
    for number, start in enumerate(range(0, array.shape[farthest], _SLAB), 1):
        slab = (*(slice(None),) * farthest, slice(start, start + _SLAB))
        copied[slab] = array[slab]
        if number % together == 0:
            release(array)
    release(array)
    return copied


def _same(left: Array, right: Array) -> bool:
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()
    )
