# SPDX-License-Identifier: Apache-2.0
"""
Fitting an ONNX model to the inputs of one run: what the inputs say about shapes is taken over.

A symbolic dimension gets its size from the array that is given. An input of which shapes, axes, pads, scales and the
like are computed becomes a constant with the given value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, numpy_helper

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.element_types import element_type
from penstock.dialects.graph.base import integer_bounds
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_onnx.kernels import kernels_of, without_functions
from penstock.lowering.from_onnx.model import symbolic_names
from penstock.lowering.from_onnx.node import Unsupported, array_dtype
from penstock.runtime.tensor_specs import UNBOUND, BoundDims, TensorSpec

Array = NDArray[Any]

SHAPE_OPERANDS: Mapping[str, frozenset[int]] = {
    operator: frozenset(operands)
    for operands, operators in (
        (
            (1,),
            "AffineGrid CenterCropPad CumProd CumSum Expand OneHot ReduceL1 ReduceL2 ReduceLogSum "
            "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reshape "
            "SequenceAt SequenceErase Split SplitToSequence Squeeze Tile TopK Trilu Unsqueeze Upsample",
        ),
        ((0,), "BlackmanWindow ConstantOfShape HammingWindow HannWindow"),
        ((1, 2), "Col2Im DFT"),
        ((2,), "MaxUnpool SequenceInsert"),
        ((0, 1, 2, 3, 4), "MelWeightMatrix"),
        ((1, 3), "Pad STFT"),
        ((0, 1, 2), "Range"),
        ((1, 2, 3), "Resize"),
        ((1, 2, 3, 4), "Slice"),
    )
    for operator in operators.split()
}
"""Which operands of an ONNX operator decide about shapes, axes or places in sequences and are not data."""

OF_TYPES = frozenset({"CastLike", "Shape", "Size"})
"""Operators that read the type of their last operand, and nothing of its values."""

LARGEST_RANK = 1
"""The rank up to which a tensor is taken for a list of sizes that others are computed from, and not for data."""


@dataclass(frozen=True)
class FittedInputs:
    """What the inputs of one run fix about a model, and the inputs that are left."""

    constants: dict[str, Array]
    """The inputs that become constants, by name."""
    dims: dict[str, int]
    ordered: list[Array]
    named: dict[str, Array]


class Specialiser:
    """A loaded model, which is left as it is, and which of its inputs decide about shapes."""

    def __init__(self, model: ModelProto, kernels: Sequence[KernelFile] = (), place: str = "<model>"):
        self.model: ModelProto = without_functions(model, kernels_of(model, kernels, place), place)
        graph = self.model.graph
        constants = {tensor.name for tensor in graph.initializer}
        self.inputs = [value for value in graph.input if value.name not in constants]
        self._only = {value.name for value in self.inputs if _only_shapes(graph, value.name)}
        self._deciding = _names_that_decide(graph)

    @property
    def is_static(self) -> bool:
        """Whether nothing has to be known from the inputs of a run."""
        return not any(value.name in self._deciding or any(symbolic_names(value)) for value in self.inputs)

    def fit(self, ordered: Sequence[Array], named: Mapping[str, Array], dims: Mapping[str, int]) -> FittedInputs:
        """
        What inputs given in order and by name fix; `dims` given by hand stay as they are.

        Raises UserError where two sizes of one dimension differ, and for an input that becomes a constant and has
        another shape or element type than the model says.
        """
        given = dict(zip((value.name for value in self.inputs), ordered, strict=False)) | dict(named)
        bound = BoundDims.by_hand(dims)
        constants: dict[str, Array] = {}
        for value in self.inputs:
            if (array := given.get(value.name)) is None:
                continue
            if self._becomes_constant(value.name, array):
                constants[value.name] = _checked(value, array)
                continue
            names = symbolic_names(value)
            if len(names) == array.ndim:
                bound.take(value.name, names, array.shape)
        return FittedInputs(
            constants,
            bound.sizes,
            [array for value, array in zip(self.inputs, ordered, strict=False) if value.name not in constants]
            + list(ordered[len(self.inputs) :]),
            {name: array for name, array in named.items() if name not in constants},
        )

    def _becomes_constant(self, name: str, array: Array) -> bool:
        # "V" are the types of other packages, bfloat16 among them.
        if array.dtype.kind not in "biufV":
            return False
        return name in self._only or (name in self._deciding and array.ndim <= LARGEST_RANK)

    def with_constants(self, constants: Mapping[str, Array]) -> ModelProto:
        """A copy of the model in which these inputs are constants."""
        return _with_constants(self.model, constants)


def with_values(model: ModelProto, values: Mapping[str, Any], dims: Mapping[str, int], place: str) -> ModelProto:
    """
    The model, or a copy in which inputs are constants: each has a number, if it is of one element, or an array of its
    shape and element type. Symbolic dimensions have the sizes in `dims`.

    Raises UserError, at `place`, for a name that is no input, and for a value that the input cannot have.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in constants}
    arrays: dict[str, Array] = {}
    for name, given in values.items():
        if name not in inputs:
            near = did_you_mean(name, inputs)
            known = ", ".join(f'"{each}"' for each in inputs) or "none"
            raise UserError(f'there is no input "{name}" to fix', loc=place, notes=[near or f"inputs: {known}"])
        try:
            arrays[name] = _value_of(inputs[name], given, dims)
        except UserError as error:
            raise UserError(error.message, loc=error.loc or place, notes=error.notes) from None
    return _with_constants(model, arrays) if arrays else model


def _with_constants(model: ModelProto, constants: Mapping[str, Array]) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return copy


def _value_of(value: ValueInfoProto, given: Any, dims: Mapping[str, int]) -> Array:
    """The array of an input that is fixed to a number or to an array; raises UserError for one that it cannot have."""
    name, tensor = value.name, value.type.tensor_type
    try:
        dtype = array_dtype(tensor.elem_type)
    except Unsupported as reason:
        raise UserError(f'input "{name}" cannot be fixed: {reason} are not supported') from None
    words = symbolic_names(value)
    shape = [
        dims.get(word, UNBOUND) if word else dim.dim_value for word, dim in zip(words, tensor.shape.dim, strict=True)
    ]
    if not isinstance(given, bool | int | float | np.number | np.bool_):
        return TensorSpec(name, tuple(shape), dtype).checked(np.asarray(given))
    if any(size != 1 for size in shape):
        stated = "x".join(word or str(size) for word, size in zip(words, shape, strict=True))
        raise UserError(
            f'input "{name}" has the shape {stated}, and a number fixes one element',
            notes=[f'in Python, values={{"{name}": array}} takes an array'],
        )
    number: Any = cast(Any, given).item() if isinstance(given, np.generic) else given
    if (fault := _misfit(number, dtype)) is not None:
        raise UserError(f'input "{name}" holds elements of type {dtype}, and {number} is {fault}')
    return np.full(shape, number, dtype)


def _misfit(number: bool | float, dtype: np.dtype[Any]) -> str | None:
    """Why a number is none of an element type; None if it is one."""
    if dtype == np.bool_:
        return None if number in (0, 1) else "no truth value"
    if (bounds := integer_bounds(element_type(dtype))) is None:
        return "a truth value" if isinstance(number, bool) else None
    if isinstance(number, bool) or not (isinstance(number, int) or number.is_integer()):
        return "no integer"
    return None if bounds[0] <= number <= bounds[-1] else f"not from {bounds[0]:,} to {bounds[-1]:,}"


def _checked(value: ValueInfoProto, array: Array) -> Array:
    """An input that becomes a constant, checked as an engine checks those that stay inputs."""
    tensor = value.type.tensor_type
    try:
        dtype = array_dtype(tensor.elem_type)
    except Unsupported:
        # What the import has to say about it is more.
        return array
    shape = array.shape
    if tensor.HasField("shape"):
        sizes = zip(symbolic_names(value), tensor.shape.dim, strict=True)
        shape = tuple(UNBOUND if name else dim.dim_value for name, dim in sizes)
    return TensorSpec(value.name, shape, dtype).checked(array)


def _only_shapes(graph: GraphProto, name: str) -> bool:
    """Whether every use of an input is an operand that decides about shapes."""
    if any(output.name == name for output in graph.output):
        return False
    uses = [
        index in _deciding(node)
        for node in _nodes(graph)
        for index, operand in enumerate(node.input)
        if operand == name
    ]
    return bool(uses) and all(uses)


def _names_that_decide(graph: GraphProto) -> set[str]:
    """The names of the values that shapes are computed from, at any distance."""
    nodes = list(_nodes(graph))
    # A graph inside a node may give one of its values any name; taking two for one only specialises more.
    makers = {name: node for node in nodes for name in node.output if name}
    pending = [
        node.input[index]
        for node in nodes
        for index in _deciding(node)
        if index < len(node.input) and node.input[index]
    ]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        if (node := makers.get(name)) is None:
            continue
        last = len(node.input) - 1
        pending += [
            each for index, each in enumerate(node.input) if each and not (node.op_type in OF_TYPES and index == last)
        ]
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                pending += [output.name for output in attribute.g.output]
    return found


def _deciding(node: NodeProto) -> frozenset[int]:
    """The operands of a node that decide about shapes: of a loop that gives lines, or sequences, how many these are."""
    if node.op_type == "Loop":
        bodies = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
        has_sequences = any(value.type.HasField("sequence_type") for body in bodies for value in body.output)
        has_lines = len(node.output) > len(node.input) - 2
        return frozenset((0, 1)) if has_lines or has_sequences else frozenset()
    return SHAPE_OPERANDS.get(node.op_type, frozenset())


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, those of branches included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _nodes(attribute.g)
