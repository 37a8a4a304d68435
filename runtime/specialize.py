"""
Fitting an ONNX model to the inputs of one run: what the inputs say about shapes is taken over.

A symbolic dimension gets its size from the array that is given. An input that only feeds shapes, axes, pads, scales
and the like becomes a constant with the given value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, numpy_helper

from penstock.lowering.from_onnx.model import load_model, symbolic_names
from penstock.runtime.signature import BoundDims

Array = NDArray[Any]

SHAPE_OPERANDS: Mapping[str, frozenset[int]] = {
    "CenterCropPad": frozenset({1}),
    "ConstantOfShape": frozenset({0}),
    "CumProd": frozenset({1}),
    "CumSum": frozenset({1}),
    "Expand": frozenset({1}),
    "MaxUnpool": frozenset({2}),
    "OneHot": frozenset({1}),
    "Pad": frozenset({1, 3}),
    "Range": frozenset({0, 1, 2}),
    "ReduceL1": frozenset({1}),
    "ReduceL2": frozenset({1}),
    "ReduceLogSum": frozenset({1}),
    "ReduceLogSumExp": frozenset({1}),
    "ReduceMax": frozenset({1}),
    "ReduceMean": frozenset({1}),
    "ReduceMin": frozenset({1}),
    "ReduceProd": frozenset({1}),
    "ReduceSum": frozenset({1}),
    "ReduceSumSquare": frozenset({1}),
    "Reshape": frozenset({1}),
    "Resize": frozenset({1, 2, 3}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Split": frozenset({1}),
    "Squeeze": frozenset({1}),
    "Tile": frozenset({1}),
    "TopK": frozenset({1}),
    "Trilu": frozenset({1}),
    "Unsqueeze": frozenset({1}),
    "Upsample": frozenset({1}),
}
"""Which operands of an ONNX operator decide about shapes or axes and are not data."""


@dataclass(frozen=True)
class FittedModel:
    """A model with the sizes of its symbolic dimensions, and the inputs that it still takes."""

    model: ModelProto
    dims: dict[str, int]
    ordered: list[Array]
    named: dict[str, Array]


def fit_to_inputs(
    model: Path | ModelProto, ordered: Sequence[Array], named: Mapping[str, Array], dims: Mapping[str, int]
) -> FittedModel:
    """
    Fit a model, in a file or already loaded, to inputs given in order and by name; `dims` given by hand stay as they
    are. A loaded model is left as it is.

    Inputs that do not fit in number, name or rank are left for the check against the signature, which says so.
    Raises UserError for a file that is no model, and where two sizes of one dimension differ.
    """
    if isinstance(model, Path):
        model = load_model(model)
    else:
        loaded, model = model, ModelProto()
        model.CopyFrom(loaded)
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    given = dict(zip((value.name for value in inputs), ordered, strict=False)) | dict(named)
    bound = BoundDims.by_hand(dims)
    baked: set[str] = set()
    for value in inputs:
        if (array := given.get(value.name)) is None:
            continue
        if array.dtype.kind in "if" and _only_shapes(graph, value.name):
            graph.initializer.append(numpy_helper.from_array(array, value.name))
            baked.add(value.name)
        else:
            names = symbolic_names(value)
            if len(names) == array.ndim:
                bound.take(value.name, names, array.shape)
    return FittedModel(
        model,
        bound.sizes,
        [array for value, array in zip(inputs, ordered, strict=False) if value.name not in baked]
        + list(ordered[len(inputs) :]),
        {name: array for name, array in named.items() if name not in baked},
    )


def _only_shapes(graph: GraphProto, name: str) -> bool:
    """Whether every use of an input is an operand that decides about shapes."""
    if any(output.name == name for output in graph.output):
        return False
    uses = [
        index in SHAPE_OPERANDS.get(node.op_type, frozenset())
        for node in _nodes(graph)
        for index, operand in enumerate(node.input)
        if operand == name
    ]
    return bool(uses) and all(uses)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, those of branches included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _nodes(attribute.g)
