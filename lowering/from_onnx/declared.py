"""The types that a model declares for its values, against those that they have."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, TensorProto, ValueInfoProto
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.sizes import is_known
from penstock.lowering.from_onnx.node import Held, Unsupported, array_dtype

Declarations = Mapping[str, ValueInfoProto]
"""What a graph declares, by the name of the value."""


def declarations_of(graph: GraphProto) -> Declarations:
    """What a graph says about the types of its outputs and of the values between."""
    return {value.name: value for value in (*graph.value_info, *graph.output)}


def misfit(name: str, held: Held, declared: Declarations) -> str | None:
    """
    What a value has other than is declared for it, in words; None if nothing. The shape that it has is right: a model
    whose input was given another size often still declares what followed from the old one.

    Raises VerifyException for another element type, which other tools refuse too.
    """
    value = declared.get(name)
    if value is None or not value.type.HasField("tensor_type"):
        return None
    shape, element = _type_of(held)
    wanted = _element_of(value.type.tensor_type.elem_type)
    if wanted is not None and element is not None and wanted != element:
        raise VerifyException(
            f'its result "{name}" has elements of type {numpy_dtype(element)}, '
            f"and the model declares {numpy_dtype(wanted)}"
        )
    if _fits(shape, value):
        return None
    return f'its result "{name}" has the shape {_words(shape)}, and the model declares {declared_shape(value)}'


def mismatch(tensor: TensorProto, value: ValueInfoProto) -> str | None:
    """What an initializer has other than is declared for the input of its name, in words; None if nothing."""
    wanted = value.type.tensor_type.elem_type
    if wanted not in (TensorProto.UNDEFINED, tensor.data_type):
        names = [_name_of(data_type) for data_type in (tensor.data_type, wanted)]
        return f"has elements of type {names[0]}, and the input of that name {names[1]}"
    if not _fits(tuple(tensor.dims), value):
        shape = _words(tuple(tensor.dims))
        return f"has the shape {shape}, and the input of that name {declared_shape(value)}"
    return None


def declared_shape(value: ValueInfoProto) -> str:
    """The shape that is declared for a value, with the names of its dimensions."""
    dims = value.type.tensor_type.shape.dim
    words = [dim.dim_param or "?" if size is None else str(size) for dim, size in zip(dims, _sizes(value), strict=True)]
    return "x".join(words) or "that of a scalar"


def _fits(shape: tuple[int, ...], value: ValueInfoProto) -> bool:
    if not value.type.tensor_type.HasField("shape"):
        return True
    sizes = _sizes(value)
    return len(sizes) == len(shape) and all(
        size is None or not is_known(found) or size == found for size, found in zip(sizes, shape, strict=True)
    )


def _sizes(value: ValueInfoProto) -> list[int | None]:
    """The sizes that are declared; None where one is left open."""
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in dims]


def _words(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "of a scalar"


def _name_of(data_type: int) -> str:
    known = data_type in TensorProto.DataType.values()
    return TensorProto.DataType.Name(data_type).lower() if known else str(data_type)


def _type_of(held: Held) -> tuple[tuple[int, ...], Attribute | None]:
    if isinstance(held, SSAValue):
        tensor: TensorType[Attribute] = tensor_of(held)
        return tensor.get_shape(), tensor.element_type
    # Sizes that are not known yet are held as objects.
    return held.shape, None if held.dtype == object else element_type(held.dtype)


def _element_of(data_type: int) -> Attribute | None:
    """The element type of a declaration; None if it is left open, or the IR has none."""
    try:
        return element_type(array_dtype(data_type))
    except Unsupported:
        return None
