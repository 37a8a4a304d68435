# SPDX-License-Identifier: Apache-2.0
"""
The data of ONNX tensors: those inside one against its shape and element type, and those in files beside the model.

Files are mapped and not loaded: a model of any size takes the memory of what is read of it at a time. See "External
Data" in https://onnx.ai/onnx/repo-docs/ExternalData.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import ml_dtypes
import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import release
from penstock.dialects.weights import Array

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "float_data": ("FLOAT", "COMPLEX64"),
    "double_data": ("DOUBLE", "COMPLEX128"),
    "int64_data": ("INT64",),
    "uint64_data": ("UINT32", "UINT64"),
    "string_data": ("STRING",),
}
"""Which field holds the numbers of which element types; all others are in `int32_data`."""

_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "BFLOAT16": 16,
    "FLOAT": 32,
    "DOUBLE": 64,
    "STRING": 0,
    "UNDEFINED": 0,
    "COMPLEX64": 64,
    "COMPLEX128": 128,
    "FLOAT8E8M0": 8,
    "FLOAT4E2M1": 4,
}
"""The bits of element types whose names do not say it themselves."""


class BadTensor(VerifyException):
    """A tensor whose data are not what its shape and element type say."""


def check_data(tensor: TensorProto) -> None:
    """
    Raise BadTensor unless the data inside a tensor are in one field, the one of its element type, and are as many
    as its shape takes.
    """
    known = tensor.data_type in TensorProto.DataType.values()
    name = TensorProto.DataType.Name(tensor.data_type) if known else ""
    if name in ("", "UNDEFINED"):
        raise BadTensor(f"its element type is {name or tensor.data_type}, which ONNX does not know")
    if any(size < 0 for size in tensor.dims):
        raise BadTensor(f"its shape is {_shape(tensor)}")
    filled = [field for field in (*_FIELDS, "int32_data") if len(getattr(tensor, field))]
    length = len(tensor.raw_data) if tensor.HasField("raw_data") else None
    if length is not None and (length > 0 or not filled):
        filled.append("raw_data")
    if len(filled) > 1:
        raise BadTensor(f"it has data in {' and in '.join(filled)}")
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    elements, bits = prod(tensor.dims), _bits(tensor)
    if filled == ["raw_data"]:
        taken = -(-elements * bits // 8)
        if taken != length:
            raise BadTensor(f"it has {length} bytes of data, and {_shape(tensor)} {name.lower()} takes {taken}")
        return
    wanted = next((field for field, types in _FIELDS.items() if name in types), "int32_data")
    if filled and filled != [wanted]:
        raise BadTensor(f"its elements of type {name.lower()} are in {filled[0]}, and belong into {wanted}")
    taken = -(-elements * bits // 8) if bits < 8 else elements * (2 if name.startswith("COMPLEX") else 1)
    there = len(getattr(tensor, wanted))
    if taken != there:
        raise BadTensor(f"it has {there} numbers in {wanted}, and its shape {_shape(tensor)} takes {taken}")


def _shape(tensor: TensorProto) -> str:
    return "x".join(map(str, tensor.dims)) or "scalar"


def _bits(tensor: TensorProto) -> int:
    """The bits of an element, which most names of types say; those that do not are small."""
    name = TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in TensorProto.DataType.values() else ""
    if name in _BITS:
        return _BITS[name]
    if name.startswith("FLOAT8"):
        return 8
    digits = "".join(character for character in name if character.isdigit())
    return int(digits) if digits else 8


def is_external(tensor: TensorProto) -> bool:
    """Whether the data of a tensor are in a file of their own."""
    return tensor.data_location == TensorProto.EXTERNAL


def bind_external_data(model: ModelProto, folder: Path, place: str) -> None:
    """
    Replace the location of every tensor's external data, relative to the model's `folder`, by the path of the file.

    Raises UserError, located at `place`, for a location outside the folder, a file that is not there, and a part of
    a file that ends before the tensor does.
    """
    for tensor in _tensors(model.graph):
        if is_external(tensor):
            _bind(tensor, folder, place)


def data_files(model: ModelProto) -> tuple[Path, ...]:
    """The files with external data of a model whose locations are bound, in the order of its tensors."""
    external = [tensor for tensor in _tensors(model.graph) if is_external(tensor)]
    return tuple(dict.fromkeys(Path(_entries(tensor)["location"]) for tensor in external))


def mapped(tensor: TensorProto, dtype: np.dtype[np.generic]) -> Array:
    """
    The array of a tensor with external data, read-only: its bytes are read when they are used.

    Raises ValueError for a tensor whose location is not bound to a file.
    """
    entries = _entries(tensor)
    path = Path(entries["location"])
    if not path.is_absolute():
        raise ValueError(
            f'its data are in the file "{path}", and a model that is loaded without its data does not say where that is'
        )
    shape = tuple(tensor.dims)
    if _bits(tensor) < 8:
        return _unpacked(tensor, path, int(entries.get("offset", "0")))
    size = prod(shape) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    data = np.memmap(path, np.uint8, "r", int(entries.get("offset", "0")), (size,))
    # Where they begin may not be a multiple of the size of an element: who hands them to machine code copies those.
    return np.asarray(data).view(dtype).reshape(shape)


def _unpacked(tensor: TensorProto, path: Path, offset: int) -> Array:
    """The array of a tensor of which several elements share a byte."""
    inside = TensorProto(data_type=tensor.data_type, dims=tensor.dims)
    with path.open("rb") as file:
        file.seek(offset)
        inside.raw_data = file.read(data_bytes(tensor))
    return numpy_helper.to_array(inside)


def _bind(tensor: TensorProto, folder: Path, place: str) -> None:
    entries = _entries(tensor)
    location = entries.get("location", "")
    if not location or leads_out(location):
        raise UserError(
            f'initializer "{tensor.name}" has its data in "{location}", outside the folder of the model',
            loc=place,
            notes=["locations are relative to the model's folder, and stay in it"],
        )
    path = (folder / location).absolute()
    if not path.is_file():
        raise UserError(
            f'the data of initializer "{tensor.name}" are in the file "{location}", which does not exist',
            loc=place,
            notes=["the model and its data files belong in one folder"],
        )
    offset, length = (_count(tensor, entries, key, place) for key in ("offset", "length"))
    needed = data_bytes(tensor)
    if length is not None and length != needed:
        raise UserError(
            f'initializer "{tensor.name}" has {length} bytes of data, and its shape takes {needed}', loc=place
        )
    size = path.stat().st_size
    if (offset or 0) + needed > size:
        raise UserError(
            f'initializer "{tensor.name}" takes bytes {offset or 0} to {(offset or 0) + needed} of "{location}", '
            f"which has {size}",
            loc=place,
            notes=["the data file is truncated, or belongs to another model"],
        )
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = str(path)


def _count(tensor: TensorProto, entries: dict[str, str], key: str, place: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not text.isdecimal():
        raise UserError(f'the {key} of the data of initializer "{tensor.name}" is "{text}", no number', loc=place)
    return int(text)


def leads_out(location: str) -> bool:
    """Whether a location leads out of the folder that it is relative to, as any system would read it."""
    for path in (PurePosixPath(location), PureWindowsPath(location)):
        if path.is_absolute() or path.drive or ".." in path.parts:
            return True
    return False


def data_bytes(tensor: TensorProto) -> int:
    """The bytes of the data of a tensor."""
    return -(-prod(tensor.dims) * _bits(tensor) // 8)


def _entries(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """The tensors of a graph: initializers and attributes of nodes, those of graphs inside it included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


# Weights that are no numbers: found when a model is imported, where they can still be named.

_PIECE_BYTES = 1 << 20
"""What is looked at together, so that it stays in the cache."""

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
    length = max(1, _PIECE_BYTES // array.itemsize)
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
