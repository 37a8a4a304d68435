"""The data inside an ONNX tensor, against its shape and element type."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from onnx import TensorProto
from xdsl.utils.exceptions import VerifyException

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
    elements, bits = prod(tensor.dims), _bits(name)
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


def _bits(name: str) -> int:
    if name in _BITS:
        return _BITS[name]
    if name.startswith("FLOAT8"):
        return 8
    digits = "".join(character for character in name if character.isdigit())
    return int(digits) if digits else 8
