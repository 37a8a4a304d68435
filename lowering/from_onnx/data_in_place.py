# SPDX-License-Identifier: Apache-2.0
"""
The weights of a large ONNX file, left where they are in it: a protocol buffer is parsed as a whole, in memory of its
own, and an array of it is a copy of its bytes once more. So the bytes of large initializers are kept from the parser,
which is told that they are external data, in the same file; they are mapped as those are.

The encoding is that of https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from onnx import GraphProto, ModelProto, StringStringEntryProto, TensorProto

from penstock.lowering.from_onnx.tensor_data import data_bytes, leads_out

SMALL_FILE = 1 << 26
"""
Bytes up to which a file is read: what is mapped changes with the file, and a program may outlive it. An engine in C has
copies of its own; the interpreter reads the file as long as it runs.
"""
SMALL_TENSOR = 1 << 12
"""Bytes of data that are not worth a mapping."""

_GRAPH = ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = GraphProto.INITIALIZER_FIELD_NUMBER
_DATA = TensorProto.RAW_DATA_FIELD_NUMBER
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""


class _Field(NamedTuple):
    """A field of a message, in the bytes of the file: it begins with a tag, and ends with its contents."""

    number: int
    is_bytes: bool
    start: int
    contents: int
    end: int


def model_without_data(path: Path) -> bytes | None:
    """
    The model in a file as a protocol buffer in which the data of large initializers are external, in that file.

    None where there is nothing to gain, or the file is not understood: then it is to be read as it is.
    """
    if path.stat().st_size <= SMALL_FILE or leads_out(path.name):
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return b"".join(
                _message(field.number, b"".join(_graph(data, field, path.name)))
                if field.number == _GRAPH and field.is_bytes
                else data[field.start : field.end]
                for field in _fields(data, 0, len(data))
            )
        except ValueError:
            return None


def _graph(data: mmap.mmap, graph: _Field, location: str) -> Iterator[bytes]:
    for field in _fields(data, graph.contents, graph.end):
        large = field.end - field.start > SMALL_TENSOR
        if field.number == _INITIALIZER and field.is_bytes and large:
            if (tensor := _tensor(data, field, location)) is not None:
                yield _message(_INITIALIZER, tensor)
                continue
        yield data[field.start : field.end]


def _tensor(data: mmap.mmap, initializer: _Field, location: str) -> bytes | None:
    """An initializer without its data; None for one that has none of its own, or not those of its shape and type."""
    fields = list(_fields(data, initializer.contents, initializer.end))
    found = [field for field in fields if field.number == _DATA]
    if len(found) != 1 or not found[0].is_bytes or found[0].end - found[0].contents <= SMALL_TENSOR:
        return None
    tensor = TensorProto.FromString(b"".join(data[each.start : each.end] for each in fields if each is not found[0]))
    length = found[0].end - found[0].contents
    if tensor.external_data or tensor.data_location != TensorProto.DEFAULT or data_bytes(tensor) != length:
        return None
    entries = {"location": location, "offset": str(found[0].contents), "length": str(length)}
    tensor.external_data.extend(StringStringEntryProto(key=key, value=value) for key, value in entries.items())
    tensor.data_location = TensorProto.EXTERNAL
    return tensor.SerializeToString()


# The encoding.


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[_Field]:
    """The fields of the message between two places; raises ValueError where it is none."""
    at = start
    while at < end:
        tag, contents = _read_varint(data, at)
        kind, length = tag & 7, 0
        if kind == _VARINT:
            stop = _read_varint(data, contents)[1]
        elif kind == _BYTES:
            length, contents = _read_varint(data, contents)
            stop = contents + length
        elif kind in (_FIXED64, _FIXED32):
            stop = contents + (8 if kind == _FIXED64 else 4)
        else:
            raise ValueError("groups are none of ONNX's")
        if stop > end:
            raise ValueError("a field ends after its message")
        yield _Field(tag >> 3, kind == _BYTES, at, contents, stop)
        at = stop


def _read_varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A number, and where it ends; raises ValueError if it does not."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("a number does not end")


def _message(number: int, contents: bytes) -> bytes:
    """A field whose contents are a message."""
    return _varint(number << 3 | _BYTES) + _varint(len(contents)) + contents


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)
