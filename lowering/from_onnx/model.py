"""Reading an ONNX file: what it is, its operator set, and the types of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, did_you_mean
from penstock.dialects.element_types import element_type
from penstock.dialects.graph import Tensor
from penstock.dialects.graph.base import tensor_type
from penstock.dialects.graph.dims import checked_sizes, size_of_name
from penstock.lowering.from_onnx.node import Unsupported, array_dtype, node_name
from penstock.lowering.from_onnx.tensor_data import bind_external_data

OLDEST_OPSET = 7
"""Before it, operators did not broadcast as NumPy does."""

LARGEST_MODEL = (1 << 31) - 1
"""Bytes that a protocol buffer can have."""


def load_model(path: Path) -> ModelProto:
    """
    The model in a file; its external data stay in their files, by absolute path.

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
        data = path.read_bytes()
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
            notes=[f"it has {len(data)} bytes, which do not parse as an ONNX protocol buffer"],
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
