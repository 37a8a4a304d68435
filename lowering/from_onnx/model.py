# SPDX-License-Identifier: Apache-2.0
"""Reading an ONNX file: what it is, its operator set, and the types that it declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, did_you_mean
from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.graph import Tensor, tensor_of
from penstock.dialects.graph.base import tensor_type
from penstock.dialects.graph.dims import checked_sizes, size_of_name
from penstock.dialects.graph.sizes import is_known
from penstock.lowering.from_onnx.data_in_place import model_without_data
from penstock.lowering.from_onnx.node import Held, Unsupported, array_dtype, node_name
from penstock.lowering.from_onnx.tensor_data import bind_external_data

OLDEST_OPSET = 7
"""Before it, operators did not broadcast as NumPy does."""

LARGEST_MODEL = (1 << 31) - 1
"""Bytes that a protocol buffer can have."""


def load_model(path: Path) -> ModelProto:
    """
    The model in a file; its external data stay in their files, by absolute path, and the weights of a large file in it.

    Raises UserError, located at the file, if it is missing, is no ONNX model, or data are missing.
    """
    place = str(path)
    try:
        if (size := path.stat().st_size) > LARGEST_MODEL:
            raise UserError(
                f"the file has {size:,} bytes, and a protocol buffer at most {LARGEST_MODEL:,}",
                loc=place,
                notes=[
                    "the weights of a larger model are in files beside it: onnx.save(..., save_as_external_data=True)"
                ],
            )
        data = model_without_data(path) or path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the model: {error.strerror}", loc=place) from None
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        # The class of the error differs between the implementations of protobuf.
        raise UserError(
            "the file is not an ONNX model, or it is truncated",
            loc=place,
            notes=[f"it has {size} bytes, which do not parse as an ONNX protocol buffer"],
        ) from None
    check_model(model, place)
    bind_external_data(model, path.parent, place)
    return model


def check_model(model: ModelProto, place: str) -> None:
    """Raise UserError unless `model` says what every ONNX model says: its graph and its operator set."""
    missing: str | None = None
    if not model.HasField("graph"):
        missing = "a graph"
    elif not model.opset_import:
        missing = "a version of the operator set"
    if missing is not None:
        raise UserError(
            "the file is not an ONNX model, or it is truncated",
            loc=place,
            notes=[f"it parses as a protocol buffer, but lacks {missing}"],
        )
    for name in _names(model.graph):
        # Protocol buffers hand out the bytes of a string that is not UTF-8.
        if not isinstance(name, str):
            raise UserError(f"the model is damaged: the name {name!r} is not UTF-8 text", loc=place)


def _names(graph: GraphProto) -> Iterator[object]:
    """The names in a graph, those of the graphs inside it included."""
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            for inner in (attribute.g, *attribute.graphs):
                yield from _names(inner)


def opsets_of(model: ModelProto, place: str) -> dict[str, int]:
    """The versions of the operator sets by domain; raises UserError for one that is not supported."""
    opsets = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
    version = opsets.setdefault("", onnx.defs.onnx_opset_version())
    newest = onnx.defs.onnx_opset_version()
    if version < OLDEST_OPSET:
        raise UserError(
            f"the model uses operator set {version}, the oldest supported is {OLDEST_OPSET}",
            loc=place,
            notes=["onnx.version_converter.convert_version(model, 13) brings it up to date"],
            status=UNSUPPORTED,
        )
    if version > newest:
        raise UserError(
            f"the model uses operator set {version}, the installed onnx knows none after {newest}",
            loc=place,
            notes=["install a newer onnx"],
            status=UNSUPPORTED,
        )
    return opsets


def input_types(model: ModelProto, dims: Mapping[str, int], place: str) -> dict[str, Tensor]:
    """
    The types of the inputs of a model that are not initializers, by name.

    `dims` binds symbolic dimensions; those left are Dims of their names. One without a name is called
    `input.axis`, as in `x.0`. Raises UserError for a `dims` that binds none, or is no size.
    """
    dims = checked_sizes(dims, place)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    symbols: dict[str, list[str]] = {}
    types: dict[str, Tensor] = {}
    for value in inputs:
        try:
            shape, element = _checked_shape(value, place)
        except UserError as error:
            notes = [*error.notes, *_readers(model.graph, value.name)]
            raise UserError(error.message, loc=place, notes=notes, status=error.status) from None
        sizes: list[int] = []
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                symbols.setdefault(size, []).append(f'dimension {axis} of "{value.name}"')
                size = size_of_name(size, dims)
            sizes.append(size)
        types[value.name] = tensor_type(element, sizes)
    _check_dims(symbols, dims, place)
    return types


def _readers(graph: GraphProto, name: str) -> list[str]:
    """The operators that read an input, for a message."""
    nodes: dict[str, list[str]] = {}
    for node in graph.node:
        if name in node.input:
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            nodes.setdefault(operator, []).append(f'"{node_name(node)}"')
    return [
        f"it is an operand of {operator}, in {len(names)} node{'s' if len(names) > 1 else ''}: {', '.join(names)}"
        for operator, names in nodes.items()
    ]


def _check_dims(symbols: Mapping[str, list[str]], dims: Mapping[str, int], place: str) -> None:
    for name in dims:
        if name not in symbols:
            near = did_you_mean(name, symbols)
            there = ", ".join(symbols) or "none: all shapes are static"
            notes = [near] if near else [f"symbolic dimensions of the model: {there}"]
            raise UserError(f'the model has no symbolic dimension "{name}"', loc=place, notes=notes)


def _checked_shape(value: ValueInfoProto, place: str):
    """The sizes of an input, symbolic ones as names, and its element type."""
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or "unknown"
        raise UserError(
            f'input "{value.name}" is no tensor but of the kind {kind}',
            loc=place,
            status=UNSUPPORTED,
        )
    tensor = value.type.tensor_type
    try:
        element = element_type(array_dtype(tensor.elem_type))
    except Unsupported as reason:
        raise UserError(f'input "{value.name}": {reason} are not supported', loc=place, status=UNSUPPORTED) from None
    if not tensor.HasField("shape"):
        raise UserError(f'input "{value.name}" has no shape, not even a rank', loc=place)
    names = symbolic_names(value)
    sizes = [name or dim.dim_value for name, dim in zip(names, tensor.shape.dim, strict=True)]
    return sizes, element


def symbolic_names(value: ValueInfoProto) -> list[str]:
    """
    The name of each dimension, "" for a static one; a symbolic one without a name is called `input.axis`.

    `?` is no name but a way to write that there is none: two of them need not be equal.
    """
    names: list[str] = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        static = dim.HasField("dim_value") and dim.dim_value >= 0
        named = dim.dim_param.strip() not in ("", "?")
        names.append("" if static else dim.dim_param if named else f"{value.name}.{axis}")
    return names


# The types that a model declares for its values, against those that they have.

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
        tensor = tensor_of(held)
        return tensor.get_shape(), tensor.element_type
    # Sizes that are not known yet are held as objects.
    return held.shape, None if held.dtype == object else element_type(held.dtype)


def _element_of(data_type: int) -> Attribute | None:
    """The element type of a declaration; None if it is left open, or the IR has none."""
    try:
        return element_type(array_dtype(data_type))
    except Unsupported:
        return None
